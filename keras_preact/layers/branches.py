"""The residual branch F: weight layers with the norms and ReLUs of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_choice, check_positive
from keras_preact.layers.convolutions import HE_BY_FAN_OUT, WeightLayer
from keras_preact.layers.placements import NORM, RELU, Placement

BLOCKS = ("basic", "bottleneck", "single")
BIASES = ("none", "unnormalized", "all")
STRIDE_PLACES = ("1x1", "3x3")
EXPANSION = {"basic": 1, "bottleneck": 4, "single": 1}
"""Ratio of a block's output channels to its `filters`."""
Normalize = partial[list[keras.layers.Layer]]
"""A partial of `normalization` with the kind; its calls set the channels, `relu`, `gamma_initializer` and name."""


@keras.saving.register_keras_serializable(package="keras_preact")
class ConstantPadding2D(keras.layers.ZeroPadding2D):
    """`keras.layers.ZeroPadding2D` with any fill value, for example −∞, which a max pooling ignores.

    Args:
        padding: rows and columns on each side, as in `keras.layers.ZeroPadding2D`. Default 1.
        value: the fill value. Default 0.
        **kwargs: as in `keras.layers.ZeroPadding2D`.

    Input: (batch, height, width, channels). Output: the padded images.

    Example:

    >>> import numpy as np
    >>> keras.ops.convert_to_numpy(ConstantPadding2D(1, -1.0)(np.ones((1, 1, 1, 1), "float32")))[0, :, :, 0].tolist()
    [[-1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]]
    """

    def __init__(self, padding: Any = 1, value: float = 0.0, **kwargs: Any) -> None:
        super().__init__(padding, **kwargs)
        self.value = float(value)

    def call(self, x: Any) -> Any:
        sides = [(0, 0), *self.padding, (0, 0)]
        if self.data_format == "channels_first":
            sides = [(0, 0), (0, 0), *self.padding]
        return ops.pad(x, sides, constant_values=self.value)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "value": self.value}


def weight_layers(
    block: str,
    filters: int,
    *,
    strides: int = 1,
    stride_on: str = "3x3",
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    width_per_group: int = 64,
) -> tuple[WeightLayer, ...]:
    """Return the convolutions of a block.

    Args:
        block: `"basic"` (two 3×3), `"bottleneck"` (1×1, 3×3, 1×1 to 4 × `filters`) or `"single"` (one 3×3).
        filters: output channels of the 3×3 convolutions of a basic block; width of a bottleneck.
        strides: of the block.
        stride_on: the convolution of a bottleneck that has the stride: `"1x1"` or `"3x3"`.
        dilation: of the 3×3 convolutions up to and including the strided one, and of those after it.
        groups: of a bottleneck's 3×3 convolution (ResNeXt).
        width_per_group: the bottleneck's width is `int(filters * width_per_group / 64) * groups`.

    Raises:
        InputError: an unknown block or `stride_on`, a number out of range, `groups` or `width_per_group` without a
            bottleneck, or a convolution with both strides and dilation.

    Example:

    >>> [layer.filters for layer in weight_layers("bottleneck", 64)]
    [64, 64, 256]
    >>> [layer.filters for layer in weight_layers("bottleneck", 64, groups=32, width_per_group=4)]
    [128, 128, 256]
    """
    check_choice("block", block, BLOCKS)
    check_choice("stride_on", stride_on, STRIDE_PLACES)
    check_positive("groups", groups)
    check_positive("width_per_group", width_per_group)
    if block != "bottleneck" and (groups, width_per_group) != (1, 64):
        raise InputError(f"groups and width_per_group require block='bottleneck', not {block!r}")
    before, after = dilation
    if strides > 1 and before > 1 and (block, stride_on) != ("bottleneck", "1x1"):
        raise InputError(
            f"a convolution cannot have both strides={strides} and dilation={before}; dilate only the convolutions "
            f"after it, with dilation=(1, {after})"
        )
    if block == "single":
        return (WeightLayer(filters, 3, strides, before),)
    if block == "basic":
        return (WeightLayer(filters, 3, strides, before), WeightLayer(filters, 3, 1, after))
    width = int(filters * width_per_group / 64) * groups
    if width < 1:
        raise InputError(
            f"width_per_group={width_per_group} makes a bottleneck of {filters} filters 0 channels wide; increase it"
        )
    outputs = filters * EXPANSION[block]
    if stride_on == "1x1":
        return (WeightLayer(width, 1, strides), WeightLayer(width, 3, 1, after, groups), WeightLayer(outputs, 1))
    return (WeightLayer(width, 1), WeightLayer(width, 3, strides, before, groups), WeightLayer(outputs, 1))


def operations(steps: Sequence[str], channels: int, name: str, normalize: Normalize, **options: Any) -> list[Any]:
    """Return the layers for one field of a `Placement`: norm, ReLU, both or none."""
    if NORM in steps:
        return normalize(channels=channels, relu=RELU in steps, name=name, **options)
    return [keras.layers.ReLU(dtype=normalize.keywords["dtype"], name=f"{name}_relu")] if RELU in steps else []


def has_bias(biases: str, steps: Sequence[str], normalization: str) -> bool:
    """Return whether a convolution has a bias, given `biases`, the operations after it and the kind of norm.

    Batch norm subtracts a bias together with the mean, so the bias has no effect and no gradient.

    >>> has_bias("unnormalized", (NORM, RELU), "batch"), has_bias("unnormalized", (), "batch")
    (False, True)
    >>> has_bias("unnormalized", (NORM, RELU), "none")
    True
    """
    check_choice("biases", biases, BIASES)
    return biases == "all" or (biases == "unnormalized" and (NORM not in steps or normalization == "none"))


def residual_branch(
    convolutions: Sequence[WeightLayer],
    placement: Placement,
    normalize: Normalize,
    *,
    data_format: str,
    dtype: Any = None,
    zero_init: bool = False,
    kernel_initializer: Any = HE_BY_FAN_OUT,
    biases: str = "none",
) -> list[keras.layers.Layer]:
    """Return the layers of F in order, without the pre-activation before the first weight layer.

    Args:
        convolutions: the weight layers.
        placement: the operations between them and after them.
        normalize: creates the normalization layers.
        data_format: of the images.
        dtype: dtype or policy of the layers.
        zero_init: start with F = 0. This zeroes the scale of the norm after the last convolution, or without such a
            norm that convolution's kernel.
        kernel_initializer: of the convolutions; see `ResidualUnit`.
        biases: which convolutions have a bias; see `ResidualUnit`.

    Example:

    >>> from keras_preact.layers.placements import PLACEMENTS
    >>> from keras_preact.layers.preactivation import normalization
    >>> normalize = partial(normalization, "batch", dtype=None)
    >>> layers = residual_branch(
    ...     weight_layers("basic", 16), PLACEMENTS["original"], normalize, data_format="channels_last"
    ... )
    >>> [layer.name for layer in layers]
    ['conv1', 'norm2', 'conv2', 'norm_last']
    """
    gamma = {"gamma_initializer": "zeros"} if zero_init else {}
    last = operations(placement.last, convolutions[-1].filters, "norm_last", normalize, **gamma)
    # With normalization "none" there is no scale to zero, whatever the placement.
    zero_kernel = zero_init and not any(hasattr(layer, "gamma_initializer") for layer in last)
    layers: list[keras.layers.Layer] = []
    for number, convolution in enumerate(convolutions, start=1):
        is_last = number == len(convolutions)
        layers += convolution.layers(
            f"conv{number}",
            data_format,
            dtype,
            kernel_initializer="zeros" if zero_kernel and is_last else kernel_initializer,
            use_bias=has_bias(biases, placement.last if is_last else placement.between, normalize.args[0]),
        )
        if not is_last:
            layers += operations(placement.between, convolution.filters, f"norm{number + 1}", normalize)
    return layers + last
