"""The convolutional residual unit: a `ResidualLayer` with a choice of h, F and f."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import keras

from keras_preact.errors import InputError, check_choice, check_flag, check_number, check_positive, check_rate
from keras_preact.keras_private import calling
from keras_preact.layers.branches import BIASES, EXPANSION, has_bias, operations, residual_branch, weight_layers
from keras_preact.layers.convolutions import HE_BY_FAN_OUT, check_kernel_initializer, refuse_seed, subsampled_shape
from keras_preact.layers.dropout import DropPath
from keras_preact.layers.placements import NORM, RELU, Placement, get_placement, placement_config
from keras_preact.layers.preactivation import (
    NORMALIZATIONS,
    channel_axis,
    channels_of,
    check_data_format,
    normalization,
)
from keras_preact.layers.products import sequence_multiply_adds
from keras_preact.layers.projection import OptionA, Projection
from keras_preact.layers.registry import fitted_shortcut
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import ScaledResidual, Shortcut

PREACTIVATIONS = ("branch", "shared", "none")
SHAPE_CHANGES = ("projection", "option_a")


@keras.saving.register_keras_serializable(package="keras_preact")
class ResidualUnit(ResidualLayer):
    """A residual unit: y = h(x) + F(x) (Eq. 1), then x' = f(y) (Eq. 2).

    h is the `shortcut`, and F is the `block` of convolutions. The `placement` sets where batch norm and ReLU come
    inside F and after the addition (f). The defaults are the unit that the paper proposes: h and f are the identity,
    and the unit returns x + F(x) (Eq. 3).

    Args:
        filters: output channels of the 3×3 convolution in a basic block; width of a bottleneck (output 4 ×).
        block: `"basic"` (two 3×3 convolutions; default), `"bottleneck"` (1×1, 3×3, 1×1) or `"single"` (one 3×3).
        strides: of the unit. Default 1.
        placement: a name of `PLACEMENTS` (Table 2), or a custom `Placement`. Default `"full_preactivation"`.
        shortcut: a name of `SHORTCUTS` (Table 1), optionally with arguments (`"exclusive_gating(gate_bias=-7)"`), or
            a `Shortcut`. Default `"identity"`. The unit uses a copy of the layer, without its weights and with the
            unit's dtype and data format. `conv` and `highway` use the unit's strides and, unless you set them, its
            initializer and bias, and its normalization if F ends in one.
        shape_change: how x reaches F's shape if the two differ: `"projection"` (1×1 convolution; default) or
            `"option_a"` (subsample, pad with zeros). The shortcut then acts on the result. `conv` and `highway` change
            the shape themselves.
        preactivation: where the placement's first norm and ReLU come: `"branch"` (inside F; the shortcut receives x
            itself), `"shared"` (before the split, for both paths, as in the first unit of a network and in units that
            change the shape) or `"none"` (nowhere; the input is already activated). Default `None`: `"shared"` if the
            unit changes the shape, else `"branch"`.
        stride_on: which convolution of a bottleneck has the stride: `"3x3"` (default) or `"1x1"` (the authors' code).
        dilation: of the 3×3 convolutions: one integer, or a pair (before, after): `before` for the convolutions up to
            and including the strided one, `after` for the others. Default 1.
        groups: of a bottleneck's 3×3 convolution (ResNeXt). Default 1.
        width_per_group: a bottleneck is `int(filters * width_per_group / 64) * groups` wide. Default 64.
        normalization: `"batch"` (default), `"group"`, `"layer"` or `"none"`.
        momentum: of batch norm. Default 0.9.
        epsilon: of the normalization. Default 1e-5.
        drop_path: probability of dropping F for an image in training (stochastic depth). Default 0.
        zero_init_residual: start with F = 0. Default `False`.
        kernel_initializer: of the convolutions on both paths: `"he_by_fan_out"` (default; the authors' code), which is
            normal with variance 2 / (k² · filters), `"uniform_by_fan_in"` (PyTorch's default), or any Keras
            initializer without a seed. The gates of `exclusive_gating` and `shortcut_only_gating` always use the
            default, and always have a bias.
        biases: which convolutions have a bias: `"none"` (default; the authors' code), `"unnormalized"` (those
            without a normalization right after them) or `"all"`.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer` (`name`, `dtype`, …).

    Input: images (batch, height, width, channels), float. Output: (batch, ⌈height / strides⌉, ⌈width / strides⌉,
    filters × 1, or × 4 for a bottleneck), in the compute dtype.

    Raises:
        InputError: an unknown name, a number out of range, or an input that is not floating-point images.

    Example: with F = 0, the unit returns its input, including negative values.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2, 8, 8, 16)).astype("float32")
    >>> unit = ResidualUnit(16, zero_init_residual=True)
    >>> bool((keras.ops.convert_to_numpy(unit(x)) == x).all())
    True
    """

    def __init__(
        self,
        filters: int,
        *,
        block: str = "basic",
        strides: int = 1,
        placement: str | Placement = "full_preactivation",
        shortcut: str | Shortcut | dict[str, Any] = "identity",
        shape_change: str = "projection",
        preactivation: str | None = None,
        stride_on: str = "3x3",
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        width_per_group: int = 64,
        normalization: str = "batch",
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        drop_path: float = 0.0,
        zero_init_residual: bool = False,
        kernel_initializer: Any = HE_BY_FAN_OUT,
        biases: str = "none",
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive("filters", filters)
        self.strides = check_positive("strides", strides)
        self.block = block
        self.placement = get_placement(placement)
        self.shape_change = check_choice("shape_change", shape_change, SHAPE_CHANGES)
        if preactivation is not None:
            check_choice("preactivation", preactivation, PREACTIVATIONS)
        self.preactivation = preactivation
        self.stride_on = stride_on
        pair = tuple(dilation) if isinstance(dilation, (tuple, list)) else (dilation, dilation)
        if len(pair) != 2:
            raise InputError(f"dilation is {dilation!r}; use one integer, or a pair of integers")
        self.dilation = (check_positive("dilation", pair[0]), check_positive("dilation", pair[1]))
        self.groups = groups
        self.width_per_group = width_per_group
        self.normalization = check_choice("normalization", normalization, NORMALIZATIONS)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.drop_path = check_rate("drop_path", drop_path)
        self.zero_init_residual = check_flag("zero_init_residual", zero_init_residual)
        self.kernel_initializer = check_kernel_initializer(kernel_initializer)
        refuse_seed(kernel_initializer)
        self.biases = check_choice("biases", biases, BIASES)
        self.data_format = check_data_format(data_format)
        self.convolutions = weight_layers(
            block,
            self.filters,
            strides=self.strides,
            stride_on=stride_on,
            dilation=self.dilation,
            groups=groups,
            width_per_group=width_per_group,
        )
        self.output_filters = self.filters * EXPANSION[block]
        self._set_shortcut(shortcut)

    # ---- the parts, created in `build` because some of them need the input's channels ------------------------------

    def build(self, input_shape: Any) -> None:
        if len(input_shape) != 4:
            raise InputError(f"{self.name} expects images (batch, height, width, channels), not shape {input_shape}")
        channels = channels_of(self.name, input_shape, self.data_format)
        self.changes_shape = self.strides != 1 or channels != self.output_filters
        preactivation = self.preactivation or ("shared" if self.changes_shape else "branch")
        self.shares_preactivation = preactivation == "shared"
        policy = self.dtype_policy
        normalize = partial(
            normalization,
            self.normalization,
            axis=channel_axis(self.data_format),
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=policy,
        )
        first = () if preactivation == "none" else self.placement.first
        self.preact = operations(first, channels, "norm1", normalize)
        self.branch = residual_branch(
            self.convolutions,
            self.placement,
            normalize,
            data_format=self.data_format,
            dtype=policy,
            zero_init=self.zero_init_residual,
            kernel_initializer=self.kernel_initializer,
            biases=self.biases,
        )
        if self.drop_path:
            self.branch.append(DropPath(self.drop_path, dtype=policy, name="drop_path"))
        self._make_shortcut()
        self.postact = operations(self.placement.after_addition, self.output_filters, "norm_after_addition", normalize)
        super().build(input_shape)

    def _make_shortcut(self) -> None:
        """Create the shortcut and, unless it changes the shape itself, the layer before it that does."""
        common: dict[str, Any] = {"data_format": self.data_format, "dtype": self.dtype_policy}
        shortcut = self._new_shortcut(name="shortcut", **common)
        of_unit = self.normalization if self.placement.normalizes_projection else "none"
        normalize = getattr(shortcut, "normalize", None) or of_unit
        projection: dict[str, Any] = {
            "kernel_initializer": self.kernel_initializer,
            "use_bias": has_bias(self.biases, (NORM,), normalize),
        }
        if self.placement.normalizes_projection:
            projection |= {"normalize": normalize, "momentum": self.momentum, "epsilon": self.epsilon}
        self.projection = []
        if shortcut.changes_shape:
            shortcut = fitted_shortcut(shortcut, self.strides, **projection)
        elif self.changes_shape and self.shape_change == "option_a":
            self.projection = [OptionA(self.output_filters, self.strides, name="option_a", **common)]
        elif self.changes_shape:
            self.projection = [Projection(self.output_filters, self.strides, name="projection", **projection, **common)]
        self.shortcut = shortcut

    def call(self, x: Any, training: bool | None = None) -> Any:
        with calling(training):
            return self.terms(x)[-1]

    # ---- facts about the unit ----------------------------------------------------------------------------------

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of all convolutions of the built unit on one image of `input_shape`."""
        x_shape = self.compute_output_shape(input_shape) if self.projection else input_shape
        return (
            sequence_multiply_adds(self.branch, input_shape)
            + sum(layer.multiply_adds(input_shape) for layer in self.projection)
            + self.shortcut.multiply_adds(x_shape)
        )

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        return subsampled_shape(input_shape, self.output_filters, self.strides, self.data_format)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "block": self.block,
            "strides": self.strides,
            "placement": placement_config(self.placement),
            "shape_change": self.shape_change,
            "preactivation": self.preactivation,
            "stride_on": self.stride_on,
            "dilation": self.dilation,
            "groups": self.groups,
            "width_per_group": self.width_per_group,
            "normalization": self.normalization,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "drop_path": self.drop_path,
            "zero_init_residual": self.zero_init_residual,
            "kernel_initializer": self.kernel_initializer,
            "biases": self.biases,
            "data_format": self.data_format,
        }


class _NamedUnit(ResidualUnit):
    """A residual unit with the block and placement of its class."""

    fixed: ClassVar[dict[str, Any]]

    def __init__(self, filters: int, strides: int = 1, **kwargs: Any) -> None:
        super().__init__(filters, strides=strides, **self.fixed, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().get_config().items() if key not in self.fixed}


@keras.saving.register_keras_serializable(package="keras_preact")
class PreActBasicBlock(_NamedUnit):
    """The proposed unit with two 3×3 convolutions, Fig. 4(e): BN, ReLU, conv, BN, ReLU, conv, then the addition.

    Arguments, shapes and errors as in `ResidualUnit`, without `block` and `placement`.

    >>> import numpy as np
    >>> tuple(PreActBasicBlock(32, strides=2)(np.ones((1, 8, 8, 16), "float32")).shape)
    (1, 4, 4, 32)
    """

    fixed: ClassVar[dict[str, Any]] = {"block": "basic", "placement": "full_preactivation"}


@keras.saving.register_keras_serializable(package="keras_preact")
class PreActBottleneck(_NamedUnit):
    """The proposed unit with a bottleneck: three times BN, ReLU, conv (1×1, 3×3, 1×1), then the addition.

    Arguments, shapes and errors as in `ResidualUnit`, without `block` and `placement`.

    >>> import numpy as np
    >>> tuple(PreActBottleneck(16)(np.ones((1, 8, 8, 16), "float32")).shape)
    (1, 8, 8, 64)
    """

    fixed: ClassVar[dict[str, Any]] = {"block": "bottleneck", "placement": "full_preactivation"}


@keras.saving.register_keras_serializable(package="keras_preact")
class PostActBasicBlock(_NamedUnit):
    """The original unit with two 3×3 convolutions, Fig. 4(a): conv, BN, ReLU, conv, BN, the addition, ReLU.

    Arguments, shapes and errors as in `ResidualUnit`, without `block` and `placement`.

    >>> import numpy as np
    >>> float(keras.ops.convert_to_numpy(PostActBasicBlock(16)(-np.ones((1, 8, 8, 16), "float32"))).min()) >= 0
    True
    """

    fixed: ClassVar[dict[str, Any]] = {"block": "basic", "placement": "original"}


@keras.saving.register_keras_serializable(package="keras_preact")
class PostActBottleneck(_NamedUnit):
    """The original unit with a bottleneck: conv, BN, ReLU (1×1, 3×3), conv, BN (1×1), the addition, ReLU.

    Arguments, shapes and errors as in `ResidualUnit`, without `block` and `placement`.

    >>> import numpy as np
    >>> tuple(PostActBottleneck(16)(np.ones((1, 8, 8, 16), "float32")).shape)
    (1, 8, 8, 64)
    """

    fixed: ClassVar[dict[str, Any]] = {"block": "bottleneck", "placement": "original"}


def check_zero_init(placement: Placement, shortcut: keras.layers.Layer) -> None:
    """Check that a network that starts with F = 0 can train F.

    A single unit is not checked: it may start so, for example to show its effect on x.

    Args:
        placement: of the units.
        shortcut: h, as returned by `get_shortcut`.

    Raises:
        InputError: F would never receive a gradient. It ends in ReLU, whose gradient at 0 is 0, or is multiplied by
            an α that also starts at 0.

    Example:

    >>> from keras_preact.layers.placements import PLACEMENTS
    >>> from keras_preact.layers.shortcuts import ScaledResidual
    >>> check_zero_init(PLACEMENTS["full_preactivation"], ScaledResidual())
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: zero_init_residual and α = 0 leave each other without a gradient; choose one
    """
    if RELU in placement.last:
        raise InputError(
            f"the branches of {placement.name} end in ReLU, which has no gradient at 0; use zero_init_residual=False"
        )
    if isinstance(shortcut, ScaledResidual) and shortcut.initial == 0:
        raise InputError("zero_init_residual and α = 0 leave each other without a gradient; choose one")
