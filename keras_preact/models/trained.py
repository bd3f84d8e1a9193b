"""Operations on trained networks: freezing, re-estimating batch-norm statistics, changing the image size."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError, check_positive, shown
from keras_preact.keras_private import accept_any_dtype, check_arrays_on_jax, layers_inside
from keras_preact.layers.composite import batch_norms
from keras_preact.layers.copies import custom_objects, set_weights
from keras_preact.layers.graph import check_model
from keras_preact.layers.preprocessing import PerPixelMean
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.variables import named_variables


def freeze(network: keras.Model, before: str | None = None) -> list[str]:
    """Freeze a network, or its first layers, for fine-tuning; return the names of the frozen layers.

    A frozen batch norm also keeps its statistics and uses them as in inference, even if the network is called with
    `training=True`. Compile the model afterwards. To freeze only the batch norms, including those inside units, use
    `freeze_batch_norms`.

    Args:
        network: a functional model, such as the networks of this package.
        before: name, or start of the name, of the first layer that stays trainable: `"stage3"`, `"logits"`. Default
            `None`: all layers are frozen.

    Raises:
        InputError: no layer's name starts with `before`.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(20)
    >>> freeze(network, before="stage3")[-1]
    'stage2_unit03'
    """
    check_model(network)
    names = [layer.name for layer in network.layers]
    end = len(names) if before is None else next((k for k, name in enumerate(names) if name.startswith(before)), None)
    if end is None:
        raise InputError(f"no layer's name starts with {before!r}; the layers are {', '.join(names)}")
    for layer in network.layers[:end]:
        layer.trainable = False
    return names[:end]


def reestimate_statistics(network: keras.Model, batches: Iterable[Any]) -> int:
    """Re-estimate the statistics of all batch norms on training batches; return the number of batches.

    After training, the moving statistics lag behind the weights. This replaces them with the averages of the batch
    means and variances over `batches`. The weights do not change. Dropout and augmentation layers act as in training.
    If a network calls one batch norm several times, the last call counts most.

    Args:
        network: a model with batch norms that are not frozen; it is changed in place.
        batches: batches of inputs of the model, as large as in training; or tuples of inputs and labels, as for `fit`.

    Raises:
        InputError: there are no batches, `batches` is a number, a single array or a tuple, all batch norms are frozen,
            or the network is not built.

    After an error, the statistics are as before.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> images = np.random.default_rng(0).normal(size=(32, 32, 32, 3)).astype("float32")
    >>> reestimate_statistics(cifar_resnet(8), [images[:16], images[16:]])
    2
    """
    check_model(network)
    if isinstance(batches, tuple):
        raise InputError("batches is a tuple, which could be one pair of inputs and labels; pass a list or a data set")
    if hasattr(batches, "shape"):
        raise InputError("batches is a single array, which could be one batch; pass a list of arrays or a data set")
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise InputError(f"batches is {shown(repr(batches))}; pass a list of batches or a data set")
    norms = [norm for norm in batch_norms(network) if norm.trainable]
    if not norms:
        raise InputError(f"{network.name} has no trainable batch norm; unfreeze those whose statistics to estimate")
    if not all(norm.built for norm in norms):
        raise InputError(f"{network.name} has batch norms without statistics yet; call it on a batch first")
    momenta = [norm.momentum for norm in norms]
    statistics = _moving_statistics(network, norms)
    before = [keras.ops.copy(variable) for variable in statistics]
    count_of_inputs = len(getattr(network, "inputs", None) or [None])
    count = 0
    try:
        for count, batch in enumerate(batches, start=1):
            if count == 1:  # 0 times NaN would remain
                for variable in statistics:
                    variable.assign(np.zeros(tuple(variable.shape)))
            for norm in norms:
                norm.momentum = (count - 1) / count  # the running mean of `count` values
            network(_inputs_of(batch, count_of_inputs), training=True)
    except BaseException:
        for variable, value in zip(statistics, before, strict=True):
            variable.assign(value)
        raise
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    if not count:
        raise InputError("batches is empty; pass at least one batch")
    return count


def _moving_statistics(network: keras.Model, norms: Iterable[keras.layers.BatchNormalization]) -> list[keras.Variable]:
    """Return the variables with the moving statistics of batch norms; those of a rolled stack are stacked."""
    found = [variable for norm in norms for variable in (norm.moving_mean, norm.moving_variance)]
    stacks = [layer for layer in layers_inside(network) if isinstance(layer, UnitStack) and layer.rolled]
    for stack in reversed(stacks):  # a stack may be in the unit of another, which comes first
        stacked = {name: variable for name, (variable, _) in stack.unit_variables(0).items()}
        of_unit = {id(variable): stacked[name] for name, variable in named_variables(stack.own_unit(0)).items()}
        found = [of_unit.get(id(variable), variable) for variable in found]
    return found


def _inputs_of(batch: Any, count: int) -> Any:
    """Return the inputs in a batch: for a model of several, a list of so many arrays has no labels."""
    if count > 1 and isinstance(batch, list) and len(batch) == count and not isinstance(batch[0], (list, tuple, dict)):
        return batch
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def resized(network: keras.Model, size: int) -> keras.Model:
    """Return a copy of the network for square images of another size, for example to test at 320 pixels.

    The copy has the same weights, and frozen layers stay frozen.

    Args:
        network: a functional image model with weights that do not depend on the image size. A `PerPixelMean` must have
            the same mean for all pixels, as for ImageNet.
        size: height and width in pixels.

    Raises:
        InputError: the model is not functional, an input is not an image, a mean differs from pixel to pixel, or a
            layer or its weights depend on the image size, such as the resizing of `with_preprocessing`.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> resized(cifar_resnet(8), 48).input_shape
    (None, 48, 48, 3)
    """
    check_model(network)
    check_positive("size", size)
    config = network.get_config()
    if "layers" not in config:
        raise InputError(f"{network.name} is not functional; only functional models can be resized")
    for shape in (tuple(tensor.shape) for tensor in network.inputs):
        if len(shape) != 4:
            raise InputError(f"{network.name} has an input of shape {shape}, not an image; pass an image model")
    if fixed := [part.name for part in layers_inside(network) if isinstance(part, _FIXED_SIZE)]:
        raise InputError(
            f"{network.name} resizes its images itself, in its layer {fixed[0]}; call `resized` on the network inside "
            "it, then add the preprocessing"
        )
    _set_size(config, size)
    scope = keras.saving.CustomObjectScope(custom_objects(network))
    try:
        with scope:
            larger = network.__class__.from_config(config)
    except ValueError:
        raise InputError(
            f"{network.name} has a layer that depends on the image size, such as patches; crop the images instead"
        ) from None
    larger.dtype_policy = network.dtype_policy  # with mixed_float16, `compile` adds loss scaling
    for old, new in zip(network.layers, larger.layers, strict=True):
        weights = old.get_weights()
        if isinstance(old, PerPixelMean):
            weights = [_one_mean(mean, new.mean.shape) for mean in weights]
        try:
            set_weights(new, weights)
        except ValueError:
            raise InputError(f"the weights of {old.name} depend on the image size; crop the images instead") from None
    return require_uint8(larger)


_FIXED_SIZE = (keras.layers.Resizing, keras.layers.CenterCrop, keras.layers.RandomCrop)
"""Layers whose outputs have one size, whatever the size of the images."""


def _set_size(config: dict[str, Any], size: int | None) -> None:
    """Set the height and width of a functional model's images; leave those of nested models open."""
    for layer in config["layers"]:
        layer.pop("build_config", None)  # shapes for the old size
        if layer["class_name"] == "InputLayer":
            shape = layer["config"]["batch_shape"]
            if len(shape) == 4:  # a nested model may also have vectors as input
                sides = _sides(shape, next(_data_formats(config), None))
                layer["config"]["batch_shape"] = tuple(size if axis in sides else shape[axis] for axis in range(4))
        elif "layers" in layer["config"]:
            _set_size(layer["config"], None)


def _sides(shape: Sequence[int | None], data_format: str | None) -> tuple[int, int]:
    """Return the axes of height and width: those of square images, or else those of the layers' data format."""
    is_first, is_last = (shape[a] == shape[b] != shape[c] for a, b, c in ((2, 3, 1), (1, 2, 3)))
    if is_first == is_last:
        is_first = data_format == "channels_first"
    return (2, 3) if is_first else (1, 2)


def _data_formats(config: dict[str, Any]) -> Iterator[str]:
    """Yield the data formats of a model's layers, including those of nested models."""
    for layer in config["layers"]:
        if data_format := layer["config"].get("data_format"):
            yield data_format
        elif "layers" in layer["config"]:
            yield from _data_formats(layer["config"])


def require_uint8(model: keras.Model) -> keras.Model:
    """Make a model with uint8 inputs reject other dtypes; return the model.

    Otherwise Keras casts them, and pixels scaled to [0, 1) all become 0. This package's functions that build, load or
    convert a model add the check themselves; add it to a `keras.Model` that you make from the layers of such a model.
    A saved model does not store it, but `load_model` adds it again. On JAX, `fit`, `evaluate` and `predict` check
    arrays but not generators.

    Args:
        model: any model; without uint8 inputs it is left as it is.

    Example:

    >>> images = keras.Input((2,), dtype="uint8")
    >>> model = require_uint8(keras.Model(images, keras.layers.Rescaling(1 / 255)(images)))
    >>> model.predict(np.ones((1, 2), "uint8"), verbose=0).shape
    (1, 2)
    >>> model.predict(np.ones((1, 2)), verbose=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: ...expected dtype=uint8, found dtype=float32...
    """
    check_model(model)
    dtypes = [tensor.dtype for tensor in getattr(model, "inputs", ())]
    if "uint8" in dtypes:
        accept_any_dtype(model)  # a Sequential model has no specs, and casts before it checks them
        specs = model.input_spec or [keras.InputSpec(shape=tuple(tensor.shape)) for tensor in model.inputs]
        flat = keras.tree.flatten(specs)
        for spec, dtype in zip(flat, dtypes, strict=True):
            spec.dtype = "uint8" if dtype == "uint8" else None
        model.input_spec = specs
        check_arrays_on_jax(model, functools.partial(_check_dtypes, model.name, flat))
    return model


def _check_dtypes(name: str, specs: list[keras.InputSpec], inputs: Any) -> None:
    """Raise ValueError, with Keras's words, if an input is not uint8 but must be."""
    if isinstance(inputs, dict) and all(spec.name for spec in specs):
        inputs = [inputs.get(spec.name) for spec in specs]  # Keras too matches a dictionary by name, not by order
    for x, spec in zip(keras.tree.flatten(inputs), specs, strict=False):
        found = keras.backend.standardize_dtype(getattr(x, "dtype", "uint8"))  # a generator has none
        if spec.dtype == "uint8" and found != "uint8":
            raise ValueError(f"an input of {name} is incompatible with it: expected dtype=uint8, found dtype={found}")


def accept_any_size(model: keras.Model) -> None:
    """Let a model of `require_uint8` train on images of other sizes too; a saved model does not store this."""
    for spec in model.input_spec:
        spec.shape = (None, None, None, spec.shape[-1])


def require_uint8_like(copy: keras.Model, model: keras.Model) -> keras.Model:
    """Make a copy of a model reject other dtypes than uint8 if that model does; return the copy."""
    refuses = any(getattr(spec, "dtype", None) == "uint8" for spec in keras.tree.flatten(model.input_spec))
    return require_uint8(copy) if refuses else copy


def _one_mean(mean: np.ndarray, shape: Any) -> np.ndarray:
    if not np.allclose(mean, mean[:1, :1], rtol=0, atol=1e-3):
        raise InputError("the mean differs from pixel to pixel, so it fits one image size; crop the images instead")
    return np.broadcast_to(mean[:1, :1], tuple(shape))
