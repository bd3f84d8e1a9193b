"""From units to networks: stem, stages of residual units, head, in Keras's functional API.

`cifar.py` and `imagenet.py` say which stages a network has; everything that both families share stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice, check_positive
from keras_preact.layers.branches import ConstantPadding2D, has_bias, operations
from keras_preact.layers.convolutions import (
    HE_BY_FAN_OUT,
    WeightLayer,
    check_kernel_initializer,
)
from keras_preact.layers.placements import NORM, RELU, get_placement
from keras_preact.layers.preactivation import channel_axis, check_data_format, normalization
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.remat import check_remat
from keras_preact.layers.stack import UnitStack, default_rolled, units_in
from keras_preact.layers.units import ResidualUnit, check_zero_init
from keras_preact.models.profiles import PAPER, Conventions
from keras_preact.models.trained import refuse_alike
from keras_preact.models.weights import load_weights

POOLINGS = ("avg", "max")


@dataclass(frozen=True)
class Stage:
    """Equal residual units at one resolution, but for the first, which may stride and change the width.

    Attributes:
        filters: of the units (see `ResidualUnit`).
        repeats: number of units.
        strides: of the first unit.
        last_strides: of the last unit; its shortcut is subsampled. Needs two units at least.
        dilation: of the 3×3 convolutions after the place of the first unit's stride.
        first_dilation: of those up to it.
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
        convolution: filters, kernel and stride of it.
        max_pool: whether a 3×3 max-pooling with stride 2 follows (ImageNet).
    """

    convolution: WeightLayer
    max_pool: bool = False


@dataclass(frozen=True)
class Network:
    """A residual network as data: what `build_network` builds.

    Attributes:
        name: of the Keras model.
        stem: the first convolution.
        stages: the residual units.
        conventions: what stem, first unit and head do where code bases differ.
        unit: arguments that every `ResidualUnit` gets.
        drop_path: of the last unit; the units before it get a share that grows linearly from 0 with depth.
        rolled: whether the equal units of a stage are one `UnitStack` that runs in a loop. `None`: where
            `default_rolled` says so.
        remat: what those units compute again in the backward pass; see `UnitStack`.
    """

    name: str
    stem: Stem
    stages: tuple[Stage, ...]
    conventions: Conventions = PAPER
    unit: dict[str, Any] = field(default_factory=dict)
    drop_path: float = 0.0
    rolled: bool | None = False
    remat: bool | str = False

    @property
    def units(self) -> int:
        """Number of residual units."""
        return sum(stage.repeats for stage in self.stages)

    @property
    def stem_activates(self) -> bool:
        """Whether the stem does norm and ReLU before its pooling, so that the first unit's input is activated."""
        return self.stem.max_pool and self.conventions.stem_activation


def build_network(
    network: Network,
    *,
    input_shape: Sequence[int | None] | None,
    default_size: int,
    include_top: bool = True,
    weights: str | Path | None = None,
    input_tensor: Any = None,
    pooling: str | None = None,
    classes: int = 10,
    classifier_activation: Any = None,
    dtype: Any = None,
) -> keras.Model:
    """Build a network as a functional Keras model; arguments as in `keras_preact.models.cifar_resnet`."""
    data_format = check_data_format(network.unit.get("data_format"))
    _check_top(include_top, pooling, classes, classifier_activation)
    check_remat(network.remat)
    if not isinstance(weights, (str, Path, type(None))):
        raise InputError(f"weights is {weights!r}; give the path of a file of weights, or None")
    if network.unit.get("zero_init_residual"):
        check_zero_init(get_placement(network.unit["placement"]), get_shortcut(network.unit["shortcut"]))
    inputs, x = _inputs(input_shape, input_tensor, default_size, include_top, data_format)
    x = _stem(network, x, data_format, dtype)
    x = _stages(network, x, dtype)
    x = _head(network, x, data_format, dtype)
    if include_top or pooling == "avg":
        x = keras.layers.GlobalAveragePooling2D(data_format=data_format, dtype=dtype, name="avg_pool")(x)
    elif pooling == "max":
        x = keras.layers.GlobalMaxPooling2D(data_format=data_format, dtype=dtype, name="max_pool")(x)
    if include_top:
        # The logits and what follows are float32 whatever the policy: a softmax in half precision loses the tail.
        x = keras.layers.Dense(int(classes), dtype="float32", name="logits")(x)
        if classifier_activation not in (None, "linear"):
            x = keras.layers.Activation(classifier_activation, dtype="float32", name="predictions")(x)
    model = with_policy(keras.Model(inputs, x, name=network.name), dtype)
    if weights is not None:
        load_weights(model, weights)
    return model


def with_policy(model: keras.Model, dtype: Any) -> keras.Model:
    """Return the model with the dtype policy of its layers, or as it is where `dtype` is `None`.

    Keras gives a model the global policy, whatever its layers have; and by the model's policy `compile` decides
    whether the loss is scaled, without which small gradients are 0 in float16.

    >>> from keras_preact.models import cifar_resnet
    >>> cifar_resnet(8, dtype="mixed_float16").dtype_policy.name
    'mixed_float16'
    """
    if dtype is not None:
        model.dtype_policy = dtype
    return model


def _normalize(network: Network, data_format: str, dtype: Any) -> Any:
    """Return `normalization` with the arguments that the units of the network get."""
    return partial(
        normalization,
        network.unit.get("normalization", "batch"),
        axis=channel_axis(data_format),
        momentum=network.unit.get("momentum", 0.9),
        epsilon=network.unit.get("epsilon", 1e-5),
        dtype=dtype,
    )


def _stem(network: Network, x: Any, data_format: str, dtype: Any) -> Any:
    stem = network.stem
    steps = (NORM, RELU) if network.stem_activates else get_placement(network.unit["placement"]).stem
    layers = stem.convolution.layers(
        "stem_conv",
        data_format,
        dtype,
        kernel_initializer=check_kernel_initializer(network.unit.get("kernel_initializer", HE_BY_FAN_OUT)),
        use_bias=has_bias(network.unit.get("biases", "none"), steps),
    )
    layers += operations(steps, stem.convolution.filters, "stem_norm", _normalize(network, data_format, dtype))
    if stem.max_pool:
        # Zeros around the image do as well as −∞ where what is pooled has come out of a ReLU, and cost less.
        value = 0.0 if RELU in steps else network.conventions.pool_padding
        layers.append(ConstantPadding2D(1, value, data_format=data_format, dtype=dtype, name="stem_pool_pad"))
        layers.append(keras.layers.MaxPooling2D(3, 2, data_format=data_format, dtype=dtype, name="stem_pool"))
    for layer in layers:
        x = layer(x)
    return x


def _stages(network: Network, x: Any, dtype: Any) -> Any:
    rates = drop_path_rates(network.drop_path, network.units)
    for number, stage in enumerate(network.stages, start=1):
        unit = partial(ResidualUnit, stage.filters, **network.unit, dtype=dtype)
        first, *rest = (rates.pop(0) for _ in range(stage.repeats))
        options: dict[str, Any] = {"strides": stage.strides, "dilation": (stage.first_dilation, stage.dilation)}
        if number == 1:
            # The special case of the paper's first unit: its activation comes right after conv1, before the
            # split; where the stem has done it before the pooling, there is none left to do.
            shared = "shared" if network.conventions.first_preactivation == "shared" else None
            options["preactivation"] = "none" if network.stem_activates else shared
        x = unit(**options, drop_path=first, name=f"stage{number}_unit01")(x)
        strided = rest.pop() if stage.last_strides > 1 else None
        x = equal_units(
            partial(unit, dilation=stage.dilation),
            rest,
            x,
            rolled=network.rolled,
            remat=network.remat,
            stack=f"stage{number}_stack",
            names=[f"stage{number}_unit{k:02d}" for k in range(2, 2 + len(rest))],
        )
        if strided is not None:
            # The width is right already: of the shortcut only the subsampling is left.
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
    """Call equal units one after the other, as one stack or one by one.

    Args:
        unit: makes a unit, given its `drop_path` and its `name`.
        rates: drop-path probability of each unit.
        x: what the first is called on.
        rolled, remat: of the stack; see `UnitStack`.
        stack: name of the stack.
        names: of the units, where they stand one by one.
    """
    rolls = default_rolled(len(rates)) if rolled is None else rolled
    if rates and (rolls or remat not in (False, "none")):
        vary = {"drop_path": rates} if rates[-1] else None
        return UnitStack(unit(drop_path=rates[-1]), len(rates), rolls, remat, vary, name=stack)(x)
    for rate, name in zip(rates, names, strict=True):
        x = unit(drop_path=rate, name=name)(x)
    return x


def drop_path_rates(last: float, units: int) -> list[float]:
    """Return the drop-path probability of each unit: from 0 at the first linearly to `last` (Huang et al. 2016).

    >>> drop_path_rates(0.4, 3)
    [0.0, 0.2, 0.4]
    """
    return [last * count / max(units - 1, 1) for count in range(units)]


def _head(network: Network, x: Any, data_format: str, dtype: Any) -> Any:
    """The special case after the last unit: one more activation, which a further unit would have begun with."""
    steps = get_placement(network.unit["placement"]).head if network.conventions.head_activation else ()
    channels = x.shape[channel_axis(data_format)]
    for layer in operations(steps, channels, "head_norm", _normalize(network, data_format, dtype)):
        x = layer(x)
    return x


def dilate(stages: Sequence[Stage], output_stride: int, stem_stride: int) -> tuple[Stage, ...]:
    """Return the stages with strides replaced by dilation beyond `output_stride`, for dense prediction.

    The dilated network computes what the strided one does, and in between: every `stride`-th pixel of its maps
    is a pixel of the strided network's.

    Args:
        stages: of the strided network.
        output_stride: input pixels a pixel of the last feature map, as wanted.
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
        known = ", ".join(str(stride) for stride in sorted(set(strides)))
        raise InputError(f"this network has no output stride of {output_stride}; choose one of {known}")
    dilated, dilation = [], 1
    for stage, stride in zip(stages, strides[1:], strict=True):
        first = dilation
        if stride > output_stride:
            dilation *= stage.strides
            stage = replace(stage, strides=1)
        dilated.append(replace(stage, dilation=dilation, first_dilation=first))
    return tuple(dilated)


def feature_maps(model: keras.Model, stages: Sequence[str] | None = None) -> keras.Model:
    """Return a model with the same input and weights whose output is a dictionary of feature maps by stage.

    Args:
        model: a network of this package.
        stages: names among `"stage1"`, `"stage2"`, …; default all.

    Returns:
        A Keras model; output `{"stage1": (batch, height, width, channels), …}`. In pre-activation networks these
        are the sums x_l themselves, not normalized: put a `PreActivation` before a convolution on them.

    Raises:
        InputError: the model has no such stage.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> maps = feature_maps(cifar_resnet(depth=8, include_top=False, input_shape=(32, 32, 3)))
    >>> {name: tuple(output.shape) for name, output in maps.output.items()}
    {'stage1': (None, 32, 32, 16), 'stage2': (None, 16, 16, 32), 'stage3': (None, 8, 8, 64)}
    """
    last_units = {layer.name.split("_")[0]: layer for layer in model.layers if units_in(layer)}
    if not last_units:
        inner = [layer.name for layer in model.layers if isinstance(layer, keras.Model)]
        remedy = f"; give the model in it, get_layer({inner[0]!r})" if inner else ""
        raise InputError(f"{model.name} has no stages of residual units{remedy}")
    names = list(last_units) if stages is None else [check_choice("stage", name, last_units) for name in stages]
    features = keras.Model(
        model.input, {name: last_units[name].output for name in names}, name=f"{model.name}_features"
    )
    return refuse_alike(features, model)


def _check_top(include_top: bool, pooling: str | None, classes: int, classifier_activation: Any) -> None:
    if pooling is not None:
        check_choice("pooling", pooling, POOLINGS)
    if include_top:
        check_positive("classes", classes)
        try:
            keras.activations.get(classifier_activation)
        except (ValueError, TypeError):
            raise InputError(
                f"classifier_activation is {classifier_activation!r}; give a function or a name of Keras, such as "
                "'softmax', or None for logits"
            ) from None


def _inputs(shape: Any, tensor: Any, default_size: int, include_top: bool, data_format: str) -> tuple[Any, Any]:
    """Return the model's inputs and the tensor that the stem is called on."""
    if tensor is not None:
        if not keras.backend.is_keras_tensor(tensor):
            raise InputError("input_tensor must be a Keras tensor, such as keras.Input(shape) or a layer's output")
        _check_image_shape(tuple(tensor.shape[1:]), data_format)
        sources = keras.utils.get_source_inputs(tensor)
        return sources[0] if len(sources) == 1 else sources, tensor
    if shape is None:
        size = default_size if include_top else None
        shape = (3, size, size) if data_format == "channels_first" else (size, size, 3)
    _check_image_shape(tuple(shape), data_format)
    inputs = keras.Input(tuple(shape), name="images")
    return inputs, inputs


def _check_image_shape(shape: tuple[Any, ...], data_format: str) -> None:
    order = "(channels, height, width)" if data_format == "channels_first" else "(height, width, channels)"
    if len(shape) != 3:
        raise InputError(f"input_shape is {shape}; give {order} of one image, without the batch")
    channels, *sizes = shape if data_format == "channels_first" else (shape[2], shape[0], shape[1])
    if not isinstance(channels, int) or channels < 1:
        raise InputError(f"input_shape is {shape}: the number of channels must be known; give {order}")
    if channels > 16 and min((size for size in sizes if size), default=channels) <= 4:
        raise InputError(f"input_shape is {shape}, which looks like the other data format; give {order}")
    if any(size is not None and size < 8 for size in sizes):
        raise InputError(f"input_shape is {shape}; the images must be at least 8 pixels high and wide")
