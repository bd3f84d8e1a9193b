"""The residual unit of convolutions: which h, F and f a `ResidualLayer` has."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import keras

from keras_preact.errors import InputError, check_choice, check_number, check_positive, check_rate
from keras_preact.layers.branches import (
    BIASES,
    EXPANSION,
    has_bias,
    operations,
    residual_branch,
    weight_layers,
)
from keras_preact.layers.convolutions import (
    HE_BY_FAN_OUT,
    check_kernel_initializer,
    subsampled_shape,
)
from keras_preact.layers.dropout import DropPath
from keras_preact.layers.placements import RELU, Placement, get_placement, placement_config
from keras_preact.layers.preactivation import channel_axis, check_data_format, normalization
from keras_preact.layers.products import sequence_multiply_adds
from keras_preact.layers.projection import OptionA, Projection
from keras_preact.layers.registry import fitted_shortcut, get_shortcut
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import ScaledResidual, Shortcut

PREACTIVATIONS = ("branch", "shared", "none")
SHAPE_CHANGES = ("projection", "option_a")


@keras.saving.register_keras_serializable(package="keras_preact")
class ResidualUnit(ResidualLayer):
    """A residual unit: y = h(x) + F(x) (Eq. 1), then x' = f(y) (Eq. 2).

    h is the `shortcut`, F the `block` of convolutions, and the `placement` says where batch norm and ReLU stand
    inside F and after the addition (f). With the defaults, the unit that the paper proposes, h and f are the
    identity (Eq. 3): the layer adds F(x) to x and does nothing else to x.

    Args:
        filters: output channels of the 3×3 convolution in a basic block; width of a bottleneck (output 4 ×).
        block: `"basic"` (two 3×3 convolutions; default), `"bottleneck"` (1×1, 3×3, 1×1) or `"single"` (one 3×3).
        strides: of the unit. Default 1.
        placement: a name of `PLACEMENTS` (Table 2), or a `Placement` of your own. Default `"full_preactivation"`.
        shortcut: a name of `SHORTCUTS` (Table 1), with arguments if wanted (`"exclusive_gating(gate_bias=-7)"`), or
            a `Shortcut`. Default `"identity"`. Those with convolutions of their own, `conv` and `highway`, take the
            unit's strides, and its normalization, initializer and bias where they were given none.
        shape_change: what brings x to F's shape where the two differ: `"projection"` (1×1 convolution; default) or
            `"option_a"` (subsample, pad with zeros). The shortcut then acts on its result; those that have
            convolutions of their own, `conv` and `highway`, change the shape themselves.
        preactivation: where the placement's first norm and ReLU stand: `"branch"`: inside F, x passes by untouched;
            `"shared"`: before the split, feeding both paths (the first unit of a network, and units that change the
            shape); `"none"`: nowhere, the input comes activated. Default `None`: shared where the unit changes the
            shape, else in the branch.
        stride_on: which convolution of a bottleneck has the stride: `"3x3"` (default) or `"1x1"` (the authors' code).
        dilation: of the 3×3 convolutions: one number, or one up to the strided convolution and one after it. Default 1.
        groups: of a bottleneck's 3×3 convolution (ResNeXt). Default 1.
        width_per_group: a bottleneck is `int(filters * width_per_group / 64) * groups` wide. Default 64.
        normalization: `"batch"` (default), `"group"`, `"layer"` or `"none"`.
        momentum: of batch norm. Default 0.9.
        epsilon: of the normalization. Default 1e-5.
        drop_path: probability, in training, of leaving out F for an image (stochastic depth). Default 0.
        zero_init_residual: start with F = 0. Default `False`.
        kernel_initializer: of the convolutions, on both paths: `"he_by_fan_out"` (default; the authors' code): N(0,
            √(2 / (k² · filters))), or anything that Keras takes for an initializer.
        biases: which convolutions have a bias: `"none"` (default; the authors' code), `"unnormalized"`: those that
            no normalization follows, or `"all"`.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer` (`name`, `dtype`, …).

    Input: images (batch, height, width, channels), float. Output: (batch, ⌈height / strides⌉, ⌈width / strides⌉,
    filters × 1, or × 4 for a bottleneck), in the compute dtype.

    Raises:
        InputError: an unknown name, or a number out of its range.

    Example: with F = 0, the unit returns its input, negative values included.

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
            raise InputError(f"dilation is {dilation!r}; give one number, or one for each 3×3 convolution")
        self.dilation = (check_positive("dilation", pair[0]), check_positive("dilation", pair[1]))
        self.groups = groups
        self.width_per_group = width_per_group
        self.normalization = normalization
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.drop_path = check_rate("drop_path", drop_path)
        self.zero_init_residual = zero_init_residual
        self.kernel_initializer = check_kernel_initializer(kernel_initializer)
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
        made = get_shortcut(shortcut, name="shortcut")  # a wrong name is refused here, not when the unit is built
        # Not the layer itself, which Keras would count among the layers inside the unit.
        self._new_shortcut = partial(get_shortcut, shortcut if isinstance(shortcut, str) else made)

    variable_arguments: ClassVar[dict[str, tuple[str, ...]]] = {"drop_path": ("drop_path/rate",)}
    """Arguments that the unit keeps in variables: they may differ between the units of a rolled `UnitStack`."""

    # ---- the parts, made in `build` because some of them need the input's channels --------------------------------

    def build(self, input_shape: Any) -> None:
        if len(input_shape) != 4:
            raise InputError(f"a residual unit takes images (batch, height, width, channels), not shape {input_shape}")
        channels = input_shape[channel_axis(self.data_format)]
        self.changes_shape = self.strides != 1 or channels != self.output_filters
        where = self.preactivation or ("shared" if self.changes_shape else "branch")
        self.shares_preactivation = where == "shared"
        policy = self.dtype_policy
        normalize = partial(
            normalization,
            self.normalization,
            axis=channel_axis(self.data_format),
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=policy,
        )
        # With no normalization at all, none follows any convolution.
        self._biases = "all" if (self.biases, self.normalization) == ("unnormalized", "none") else self.biases
        first = () if where == "none" else self.placement.first
        self.first = operations(first, channels, "norm1", normalize)
        self.branch = residual_branch(
            self.convolutions,
            self.placement,
            normalize,
            data_format=self.data_format,
            dtype=policy,
            zero_init=self.zero_init_residual,
            kernel_initializer=self.kernel_initializer,
            biases=self._biases,
        )
        if self.drop_path:
            self.branch.append(DropPath(self.drop_path, dtype=policy, name="drop_path"))
        self._make_shortcut()
        self.last = operations(self.placement.after_addition, self.output_filters, "norm_after_addition", normalize)
        self._build_parts(input_shape)
        super().build(input_shape)

    def _make_shortcut(self) -> None:
        """Decide what stands on the shortcut: the variant, and before it what changes the shape where one is needed."""
        common: dict[str, Any] = {"data_format": self.data_format, "dtype": self.dtype_policy}
        projection: dict[str, Any] = {
            "kernel_initializer": self.kernel_initializer,
            "use_bias": has_bias(self._biases, self.placement.last),
        }
        if self.placement.normalizes_projection:
            projection |= {"normalize": self.normalization, "momentum": self.momentum, "epsilon": self.epsilon}
        shortcut = self._new_shortcut(name="shortcut", **common)
        self.reshape = []
        if shortcut.changes_shape:
            shortcut = fitted_shortcut(shortcut, self.strides, **projection)
        elif self.changes_shape and self.shape_change == "option_a":
            self.reshape = [OptionA(self.output_filters, self.strides, name="option_a", **common)]
        elif self.changes_shape:
            self.reshape = [Projection(self.output_filters, self.strides, name="projection", **projection, **common)]
        self.shortcut = shortcut

    def _build_parts(self, input_shape: Any) -> None:
        for layers in (self.first, self.branch, self.reshape):
            shape = input_shape
            for layer in layers:
                if not layer.built:
                    layer.build(shape)
                shape = layer.compute_output_shape(shape)
        x_shape = self.compute_output_shape(input_shape) if self.reshape else input_shape
        self.shortcut.build(x_shape, self.compute_output_shape(input_shape))
        for layer in self.last:
            layer.build(self.compute_output_shape(input_shape))

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.terms(x)[-1]

    # ---- facts about the unit ----------------------------------------------------------------------------------

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of all convolutions of the built unit on one image of `input_shape`."""
        x_shape = self.compute_output_shape(input_shape) if self.reshape else input_shape
        return (
            sequence_multiply_adds(self.branch, input_shape)
            + sum(layer.multiply_adds(input_shape) for layer in self.reshape)
            + self.shortcut.multiply_adds(x_shape)
        )

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        return subsampled_shape(input_shape, self.output_filters, self.strides, self.data_format)

    def get_config(self) -> dict[str, Any]:
        (shortcut,) = self._new_shortcut.args
        return {
            **super().get_config(),
            "filters": self.filters,
            "block": self.block,
            "strides": self.strides,
            "placement": placement_config(self.placement),
            "shortcut": keras.saving.serialize_keras_object(shortcut) if isinstance(shortcut, Shortcut) else shortcut,
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
    """A residual unit with block and placement fixed by its class."""

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
    """Refuse to begin with F = 0 where no gradient would ever reach F, which a network then could not train.

    A single unit may begin so, for instance to show what it does to x.

    Args:
        placement: of the units.
        shortcut: h, as `get_shortcut` returns it.

    Raises:
        InputError: F ends in ReLU, whose gradient at 0 is 0, or is multiplied by an α that begins at 0 as well.

    Example:

    >>> from keras_preact.layers.placements import PLACEMENTS
    >>> from keras_preact.layers.shortcuts import ScaledResidual
    >>> check_zero_init(PLACEMENTS["full_preactivation"], ScaledResidual())
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: zero_init_residual and an α of 0 at once leave both without a gradient; choose one
    """
    if RELU in placement.last:
        raise InputError(
            f"zero_init_residual leaves the branches of {placement.name}, which end in ReLU, without a gradient; leave "
            "it out"
        )
    if isinstance(shortcut, ScaledResidual) and shortcut.initial == 0:
        raise InputError("zero_init_residual and an α of 0 at once leave both without a gradient; choose one")
