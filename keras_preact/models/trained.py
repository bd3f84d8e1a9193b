"""What is done to a trained network: a part frozen, batch norms' statistics estimated again, other image sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_preact.data import PerPixelMean
from keras_preact.errors import InputError, check_positive
from keras_preact.keras_private import accept_any_dtype
from keras_preact.layers.composite import batch_norms


def freeze(network: keras.Model, before: str | None = None) -> list[str]:
    """Freeze a network, or its layers before one, for fine-tuning; return the names of the frozen layers.

    A frozen layer keeps its weights, and a frozen batch norm also its statistics: it normalizes with them as at
    inference, even where the network is called with `training=True`. Compile the model afterwards.
    `freeze_batch_norms` freezes the batch norms alone, those inside units too.

    Args:
        network: a functional model, such as the networks of this package.
        before: name of the first layer that stays trainable, or what its name begins with: `"stage3"`, `"logits"`.
            Default `None`: all are frozen.

    Raises:
        InputError: no layer has such a name.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(20)
    >>> freeze(network, before="stage3")[-1]
    'stage2_unit03'
    """
    names = [layer.name for layer in network.layers]
    places = range(len(names)) if before is None else [k for k, name in enumerate(names) if name.startswith(before)]
    if not places:
        raise InputError(f"no layer's name begins with {before!r}; the layers are {', '.join(names)}")
    end = len(names) if before is None else places[0]
    for layer in network.layers[:end]:
        layer.trainable = False
    return names[:end]


def reestimate_statistics(network: keras.Model, batches: Iterable[Any]) -> int:
    """Estimate the statistics of all batch norms again, over batches as in training; return the number of batches.

    The moving statistics that training leaves lag behind the weights. Afterwards they are the means, over these
    batches, of each batch's mean and variance. The weights stay as they are; dropout and augmentation layers of the
    network act as in training.

    Args:
        network: a model with batch norms that are not frozen; they are changed in place.
        batches: inputs of the model, each a batch, as large as those of training; or tuples of inputs and labels, as
            `fit` takes them.

    Raises:
        InputError: no batch, or no batch norm that is not frozen.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> images = np.random.default_rng(0).normal(size=(32, 32, 32, 3)).astype("float32")
    >>> reestimate_statistics(cifar_resnet(8), [images[:16], images[16:]])
    2
    """
    if isinstance(batches, tuple):
        raise InputError("the batches are a tuple, which means one of (inputs, labels); give a list or a data set")
    norms = [norm for norm in batch_norms(network) if norm.trainable]
    if not norms:
        raise InputError(f"{network.name} has no batch norm that is not frozen; there are no statistics to estimate")
    momenta = [norm.momentum for norm in norms]
    count = 0
    try:
        for count, batch in enumerate(batches, start=1):
            for norm in norms:
                norm.momentum = (count - 1) / count  # the running mean of `count` values
            network(keras.utils.unpack_x_y_sample_weight(batch)[0], training=True)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    if not count:
        raise InputError("there is no batch; give at least one")
    return count


def resized(network: keras.Model, size: int) -> keras.Model:
    """Return the network with the same weights for square images of another size, as for a test at 320 pixels.

    Frozen layers stay frozen.

    Args:
        network: a functional model of images whose weights do not depend on their size; a `PerPixelMean` is taken
            along where it has one mean for all pixels, as for ImageNet.
        size: height and width in pixels.

    Raises:
        InputError: inputs that are no images, a mean that differs from pixel to pixel, or layers or weights that
            belong to one size.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> resized(cifar_resnet(8), 48).input_shape
    (None, 48, 48, 3)
    """
    check_positive("size", size)
    config = network.get_config()
    if "layers" not in config:
        raise InputError(f"{network.name} has a call of its own; only functional models can be resized")
    for shape in (tuple(tensor.shape) for tensor in network.inputs):
        if len(shape) != 4:
            raise InputError(f"{network.name} takes {shape}, which are no images; give a network of images")
    _set_size(config, size)
    try:
        larger = network.__class__.from_config(config)
    except ValueError:
        raise InputError(
            f"{network.name} has a layer that belongs to one image size, as patches do; crop the images instead"
        ) from None
    larger.dtype_policy = network.dtype_policy  # with mixed_float16, Keras scales the loss of what is compiled
    for old, new in zip(network.layers, larger.layers, strict=True):
        weights = old.get_weights()
        if isinstance(old, PerPixelMean):
            weights = [_one_mean(mean, new.mean.shape) for mean in weights]
        try:
            new.set_weights(weights)
        except ValueError:
            raise InputError(f"the weights of {old.name} belong to one image size; crop the images instead") from None
    return refuse_other_pixels(larger)


def _set_size(config: dict[str, Any], size: int | None) -> None:
    """Set height and width of a functional model's inputs; those of models inside it to any."""
    formats = (layer["config"].get("data_format") for layer in config["layers"])
    sides = (2, 3) if next(filter(None, formats), None) == "channels_first" else (1, 2)
    for layer in config["layers"]:
        layer.pop("build_config", None)  # the shapes of the size before
        if layer["class_name"] == "InputLayer":
            shape = layer["config"]["batch_shape"]
            layer["config"]["batch_shape"] = tuple(size if axis in sides else shape[axis] for axis in range(len(shape)))
        elif "layers" in layer["config"]:
            _set_size(layer["config"], None)


def refuse_other_pixels(model: keras.Model) -> keras.Model:
    """Have a model whose inputs are uint8 refuse others, wherever it is called; return the model.

    Keras casts what it is given: to such a model, pixels from 0 to 1 are all 0. The model's files do not say this, so
    it is said of each model that is built or loaded.

    >>> images = keras.Input((2,), dtype="uint8")
    >>> model = refuse_other_pixels(keras.Model(images, keras.layers.Rescaling(1 / 255)(images)))
    >>> model.predict(np.ones((1, 2), "uint8"), verbose=0).shape
    (1, 2)
    >>> model.predict(np.ones((1, 2)), verbose=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: ...expected dtype=uint8, found dtype=float32...
    """
    dtypes = [tensor.dtype for tensor in getattr(model, "inputs", ())]
    if "uint8" in dtypes:
        accept_any_dtype(model)  # a Sequential model has no specs, and casts before it looks at them
        specs = model.input_spec or [keras.InputSpec(shape=tuple(tensor.shape)) for tensor in model.inputs]
        for spec, dtype in zip(keras.tree.flatten(specs), dtypes, strict=True):
            spec.dtype = "uint8" if dtype == "uint8" else None
        model.input_spec = specs
    return model


def refuse_alike(copy: keras.Model, model: keras.Model) -> keras.Model:
    """Have a model that was made of another one refuse other pixels if that one does; return it."""
    refuses = any(getattr(spec, "dtype", None) == "uint8" for spec in keras.tree.flatten(model.input_spec))
    return refuse_other_pixels(copy) if refuses else copy


def _one_mean(mean: np.ndarray, shape: Any) -> np.ndarray:
    if not np.allclose(mean, mean[:1, :1], rtol=0, atol=1e-3):
        raise InputError("the mean differs from pixel to pixel and belongs to one image size; crop the images instead")
    return np.broadcast_to(mean[:1, :1], tuple(shape))
