"""From units to networks: stem, stages of residual units, head, in Keras's functional API.

`cifar.py` and `imagenet.py` define the stages; this module builds both families from them.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice, check_flag, check_model_name, check_positive, check_rate
from keras_preact.keras_private import nodes_of
from keras_preact.layers.branches import ConstantPadding2D, has_bias, operations
from keras_preact.layers.convolutions import (
    WeightLayer,
    check_kernel_initializer,
)
from keras_preact.layers.graph import check_model, graph_of
from keras_preact.layers.placements import NORM, RELU
from keras_preact.layers.preactivation import channel_axis, check_data_format, get_activation, normalization
from keras_preact.layers.remat import check_remat
from keras_preact.layers.stack import UnitStack, default_rolled, model_of_units, units_in
from keras_preact.layers.unit_names import stage_of
from keras_preact.layers.units import ResidualUnit, check_zero_init
from keras_preact.models.options import NetworkOptions, network_shortcut
from keras_preact.models.profiles import Conventions
from keras_preact.models.saving.weights import load_weights
from keras_preact.models.trained import require_uint8_like

POOLINGS = ("avg", "max")


@dataclass(frozen=True)
class Stage:
    """A stage of equal residual units. The first may have a stride and change the width.

    Attributes:
        filters: of the units (see `ResidualUnit`).
        repeats: number of units.
        strides: of the first unit.
        last_strides: of the last unit, whose shortcut is subsampled. Requires at least two units.
        dilation: of the 3×3 convolutions after the first unit's strided convolution.
        first_dilation: of the 3×3 convolutions up to it.
    """

    filters: int
    repeats: int
    strides: int = 1
    dilation: int = 1
    first_dilation: int = 1
    last_strides: int = 1


@dataclass(frozen=True)
class Stem:
    """The first convolution of a network.

    Attributes:
        convolution: its filters, kernel size and stride.
        max_pool: whether 3×3 max-pooling with stride 2 follows (ImageNet).
    """

    convolution: WeightLayer
    max_pool: bool = False


@dataclass(frozen=True)
class Network:
    """A residual network as data, which `build_network` turns into a model.

    Attributes:
        name: of the Keras model.
        stem: the first convolution.
        stages: the residual units.
        conventions: choices for the stem, the first unit and the head, which depend on the code base.
        unit: arguments of every `ResidualUnit`.
        rolled: whether the equal units of a stage run as a loop, in one `UnitStack`. `None`: as `default_rolled` says.
    """

    name: str
    stem: Stem
    stages: tuple[Stage, ...]
    conventions: Conventions
    unit: dict[str, Any]
    rolled: bool | None

    @classmethod
    def of(
        cls,
        depth: int,
        stem: Stem,
        stages: Sequence[Stage],
        conventions: Conventions,
        options: NetworkOptions,
        rolled: bool | None,
        **unit: Any,
    ) -> Network:
        """Return a network with the units that `options` describe.

        Args:
            depth: number of weight layers, for the default name.
            stem, stages, conventions, rolled: the attributes.
            options: of the builder; its name, if it has one, is the network's.
            **unit: the arguments of every unit that `options` lack: `block`, `placement` (a `Placement`) and
                `shortcut`.
        """
        check_model_name(options.name)
        name = options.name or f"resnet{depth}_{unit['placement'].name}"
        check_model_name(name)  # of a custom placement
        return cls(name, stem, tuple(stages), conventions, {**unit, **options.of_units(conventions)}, rolled)

    @property
    def stem_activates(self) -> bool:
        """Whether the stem applies norm and ReLU before its pooling, so that the first unit's input is activated."""
        return self.stem.max_pool and self.conventions.stem_activation


def build_network(
    network: Network,
    options: NetworkOptions,
    *,
    input_shape: Sequence[int | None] | None,
    default_size: int,
    classes: int,
) -> keras.Model:
    """Build a functional Keras model.

    Args:
        network: the stem, the stages and the units.
        options: those that every residual network has.
        input_shape: (height, width, channels), or `None` for `default_size` and three channels.
        default_size: height and width in pixels.
        classes: number of classes.
    """
    data_format, dtype = check_data_format(options.data_format), options.dtype
    _check_top(options, classes)
    check_remat(options.remat)
    if not isinstance(options.weights, (str, Path, type(None))):
        raise InputError(f"weights is {options.weights!r}; pass the path of a weights file, or None")
    shortcut = network_shortcut(network.unit["shortcut"])
    if options.zero_init_residual:
        check_zero_init(network.unit["placement"], shortcut)
    images = _images(input_shape, options, default_size, data_format)
    x = _stem(network, images, data_format, dtype)
    x = _stages(network, options, x)
    x = _head(network, x, data_format, dtype)
    if options.include_top or options.pooling == "avg":
        x = keras.layers.GlobalAveragePooling2D(data_format=data_format, dtype=dtype, name="avg_pool")(x)
    elif options.pooling == "max":
        x = keras.layers.GlobalMaxPooling2D(data_format=data_format, dtype=dtype, name="max_pool")(x)
    if options.include_top:
        # Logits and predictions are always float32: a softmax in half precision loses the tail.
        x = keras.layers.Dense(int(classes), dtype="float32", name="logits")(x)
        if options.classifier_activation not in (None, "linear"):
            x = keras.layers.Activation(options.classifier_activation, dtype="float32", name="predictions")(x)
    model = with_policy(keras.Model(source_inputs(images), x, name=network.name), dtype)
    if options.weights is not None:
        _load(model, options)
    return model


def _load(model: keras.Model, options: NetworkOptions) -> None:
    """Load the weights file of the whole model, or that of the network without the layers before `input_tensor`."""
    path: Any = options.weights
    try:
        load_weights(model, path)
    except InputError:
        own = built_on(options.input_tensor, model)
        if len(own.weights) == len(model.weights):
            raise
        load_weights(own, path)


def built_on(tensor: Any, model: keras.Model) -> keras.Model:
    """Return the part of a model that a builder made, without layers that compute `input_tensor`; they are shared."""
    return model if tensor is None else keras.Model(tensor, model.output, name=model.name)


def with_policy(model: keras.Model, dtype: Any) -> keras.Model:
    """Set the dtype policy of a model to that of its layers, unless `dtype` is `None`; return the model.

    Keras assigns the global policy to a model, whatever its layers use. `compile` reads the model's policy to decide on
    loss scaling, without which small gradients underflow in float16.

    >>> from keras_preact.models import cifar_resnet
    >>> cifar_resnet(8, dtype="mixed_float16").dtype_policy.name
    'mixed_float16'
    """
    if dtype is not None:
        model.dtype_policy = dtype
    return model


def _normalize(network: Network, data_format: str, dtype: Any) -> Any:
    """Return `normalization` with the arguments of the network's units."""
    return partial(
        normalization,
        network.unit["normalization"],
        axis=channel_axis(data_format),
        momentum=network.unit["momentum"],
        epsilon=network.unit["epsilon"],
        dtype=dtype,
    )


def _stem(network: Network, x: Any, data_format: str, dtype: Any) -> Any:
    stem = network.stem
    steps = (NORM, RELU) if network.stem_activates else network.unit["placement"].stem
    layers = stem.convolution.layers(
        "stem_conv",
        data_format,
        dtype,
        kernel_initializer=check_kernel_initializer(network.unit["kernel_initializer"]),
        use_bias=has_bias(network.unit["biases"], steps, network.unit["normalization"]),
    )
    layers += operations(steps, stem.convolution.filters, "stem_norm", _normalize(network, data_format, dtype))
    if stem.max_pool:
        # After a ReLU, padding with zeros gives the same maxima as padding with −∞ and costs less.
        value = 0.0 if RELU in steps else network.conventions.pool_padding
        layers.append(ConstantPadding2D(1, value, data_format=data_format, dtype=dtype, name="stem_pool_pad"))
        layers.append(keras.layers.MaxPooling2D(3, 2, data_format=data_format, dtype=dtype, name="stem_pool"))
    for layer in layers:
        x = layer(x)
    return x


def _stages(network: Network, options: NetworkOptions, x: Any) -> Any:
    rates = drop_path_rates(options.drop_path, sum(stage.repeats for stage in network.stages))
    for number, stage in enumerate(network.stages, start=1):
        unit = partial(ResidualUnit, stage.filters, **network.unit, dtype=options.dtype)
        first, *rest = (rates.pop(0) for _ in range(stage.repeats))
        special: dict[str, Any] = {"strides": stage.strides, "dilation": (stage.first_dilation, stage.dilation)}
        if number == 1:
            # Special case in the paper: the first unit activates right after conv1, before the split. A stem that
            # activates before its pooling has already done so.
            shared = "shared" if network.conventions.first_preactivation == "shared" else None
            special["preactivation"] = "none" if network.stem_activates else shared
        x = unit(**special, drop_path=first, name=f"stage{number}_unit01")(x)
        strided = rest.pop() if stage.last_strides > 1 else None
        x = equal_units(
            partial(unit, dilation=stage.dilation),
            rest,
            x,
            rolled=network.rolled,
            remat=options.remat,
            stack=f"stage{number}_stack",
            names=[f"stage{number}_unit{k:02d}" for k in range(2, 2 + len(rest))],
        )
        if strided is not None:
            # The width does not change here, so option A only subsamples.
            last = partial(unit, strides=stage.last_strides, shape_change="option_a", preactivation="branch")
            x = last(drop_path=strided, name=f"stage{number}_unit{stage.repeats:02d}")(x)
    return x


def equal_units(
    unit: Callable[..., keras.layers.Layer],
    rates: Sequence[float],
    x: Any,
    *,
    rolled: bool | None,
    remat: bool | str,
    stack: str,
    names: Sequence[str],
) -> Any:
    """Apply equal units one after the other, as one `UnitStack` or as separate layers; return the output.

    Args:
        unit: a function of `drop_path` and `name` that returns a unit.
        rates: drop-path probability of each unit.
        x: input of the first unit.
        rolled, remat: see `UnitStack`.
        stack: name of the `UnitStack`.
        names: of the units as separate layers.
    """
    rolls = default_rolled(len(rates)) if rolled is None else check_flag("rolled", rolled)
    if rates and (rolls or remat not in (False, "none")):
        vary = {"drop_path": rates} if rates[-1] else None
        return UnitStack(unit(drop_path=rates[-1]), len(rates), rolls, remat, vary, name=stack)(x)
    for rate, name in zip(rates, names, strict=True):
        x = unit(drop_path=rate, name=name)(x)
    return x


def drop_path_rates(last: float, units: int) -> list[float]:
    """Return the drop-path probability of each unit, growing linearly from 0 to `last` (Huang et al. 2016).

    Raises:
        InputError: `last` is not a rate: at least 0 and below 1.

    >>> drop_path_rates(0.4, 3)
    [0.0, 0.2, 0.4]
    """
    check_rate("drop_path", last)
    return [last * count / max(units - 1, 1) for count in range(units)]


def _head(network: Network, x: Any, data_format: str, dtype: Any) -> Any:
    """Apply the activation after the last unit: the one with which a further unit would begin."""
    steps = network.unit["placement"].head if network.conventions.head_activation else ()
    channels = x.shape[channel_axis(data_format)]
    for layer in operations(steps, channels, "head_norm", _normalize(network, data_format, dtype)):
        x = layer(x)
    return x


def dilate(stages: Sequence[Stage], output_stride: int, stem_stride: int) -> list[Stage]:
    """Replace strides beyond `output_stride` by dilation, for dense prediction; return the new stages.

    The dilated network computes the same features at a higher resolution: every n-th pixel of its maps is a pixel of
    the strided network, where n is the product of the replaced strides.

    Args:
        stages: of the strided network.
        output_stride: desired number of input pixels per pixel of the last feature map.
        stem_stride: of the stem.

    Raises:
        InputError: the network has no such output stride.

    Example:

    >>> stage = dilate([Stage(64, 2), Stage(128, 2, strides=2)], output_stride=4, stem_stride=4)[1]
    >>> stage.strides, stage.first_dilation, stage.dilation
    (1, 1, 2)
    """
    strides = [stem_stride]
    for stage in stages:
        strides.append(strides[-1] * stage.strides)
    if output_stride not in strides:
        known = ", ".join(map(str, sorted(set(strides))))
        raise InputError(f"this network has no output stride of {output_stride}; choose one of {known}")
    dilated, dilation = [], 1
    for stage, stride in zip(stages, strides[1:], strict=True):
        first = dilation
        if stride > output_stride:
            dilation *= stage.strides
            stage = replace(stage, strides=1)
        dilated.append(replace(stage, dilation=dilation, first_dilation=first))
    return dilated


def feature_maps(model: keras.Model, stages: Sequence[str] | None = None) -> keras.Model:
    """Return a model with the same input and weights that outputs a dictionary of feature maps, one per stage.

    Args:
        model: a network of this package.
        stages: names such as `"stage1"` and `"stage2"`. Default `None`: all stages.

    Returns:
        A Keras model; output `{"stage1": (batch, height, width, channels), …}`. In pre-activation networks these are
        the unnormalized sums x_l: apply a `PreActivation` before a convolution.

    Raises:
        InputError: the model has no such stage.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> maps = feature_maps(cifar_resnet(depth=8, include_top=False, input_shape=(32, 32, 3)))
    >>> {name: tuple(output.shape) for name, output in maps.output.items()}
    {'stage1': (None, 32, 32, 16), 'stage2': (None, 16, 16, 32), 'stage3': (None, 8, 8, 64)}
    """
    check_model(model)
    graph = graph_of(model)
    found = [] if graph is None else [node for node in nodes_of(graph) if units_in(node.operation)]
    ends = {stage_of(node.operation.name): node.outputs[0] for node in found}  # not the layers' outputs: see `nodes_of`
    if not ends:
        inner = model_of_units(model)
        remedy = f"; pass the model inside it, get_layer({inner!r})" if inner else ""
        raise InputError(f"{model.name} has no stages of residual units{remedy}")
    wanted = [stages] if isinstance(stages, str) else stages
    names = list(ends) if wanted is None else [check_choice("stage", name, ends) for name in wanted]
    features = keras.Model(model.input, {name: ends[name] for name in names}, name=f"{model.name}_features")
    return require_uint8_like(with_policy(features, model.dtype_policy), model)


def _check_top(options: NetworkOptions, classes: int) -> None:
    check_flag("include_top", options.include_top)
    if options.pooling is not None:
        check_choice("pooling", options.pooling, POOLINGS)
    if options.include_top:
        check_positive("classes", classes)
        get_activation("classifier_activation", options.classifier_activation)


def _images(shape: Any, options: NetworkOptions, default_size: int, data_format: str) -> Any:
    """Return the input of the stem: `input_tensor`, or a new input if it is `None`."""
    tensor = options.input_tensor
    if tensor is not None:
        check_float_tensor(tensor)
        _check_image_shape(tuple(tensor.shape[1:]), data_format)
        return tensor
    if shape is not None and not isinstance(shape, Iterable):
        raise InputError(f"input_shape is {shape!r}; pass (height, width, channels), without the batch dimension")
    if shape is None:
        size = default_size if options.include_top else None
        shape = (3, size, size) if data_format == "channels_first" else (size, size, 3)
    shape = tuple(int(size) if isinstance(size, numbers.Integral) else size for size in shape)  # of NumPy
    _check_image_shape(shape, data_format)
    return keras.Input(shape, name="images")


def check_input_tensor(tensor: Any) -> None:
    """Raise InputError if `tensor` is not a Keras tensor."""
    if not keras.backend.is_keras_tensor(tensor):
        raise InputError("input_tensor must be a Keras tensor, such as keras.Input(shape) or a layer's output")


def check_float_tensor(tensor: Any) -> None:
    """Raise InputError if `tensor` is not a floating-point Keras tensor."""
    check_input_tensor(tensor)
    if not keras.backend.is_float_dtype(tensor.dtype):
        raise InputError(f"input_tensor is {tensor.dtype}; convert it first, for example with Rescaling(1 / 255)")


def source_inputs(tensor: Any) -> Any:
    """Return the model input from which a Keras tensor is computed, or the list of them if there are several."""
    sources = keras.utils.get_source_inputs(tensor)
    return sources[0] if len(sources) == 1 else sources


def _check_image_shape(shape: tuple[Any, ...], data_format: str) -> None:
    order = "(channels, height, width)" if data_format == "channels_first" else "(height, width, channels)"
    if len(shape) != 3:
        raise InputError(f"input_shape is {shape}; pass {order}, without the batch dimension")
    channels, *sizes = shape if data_format == "channels_first" else (shape[2], shape[0], shape[1])
    if not isinstance(channels, int) or channels < 1:
        raise InputError(f"input_shape is {shape}: the number of channels must be known; pass {order}")
    if channels > 16 and min((size for size in sizes if size), default=channels) <= 4:
        raise InputError(f"input_shape is {shape}, which looks like the other data format; pass {order}")
    if any(size is not None and size < 8 for size in sizes):
        raise InputError(f"input_shape is {shape}; the images must be at least 8 pixels high and wide")
