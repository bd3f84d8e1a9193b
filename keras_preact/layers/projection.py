"""Shortcuts with convolutions: projections to another shape, Table 1's 1×1 convolution, and Highway gates."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_choice, check_flag, check_number, check_positive
from keras_preact.layers.branches import residual_branch, weight_layers
from keras_preact.layers.composite import CompositeLayer, build_in_order, in_order, with_channels
from keras_preact.layers.convolutions import (
    HE_BY_FAN_OUT,
    Conv2D,
    check_kernel_initializer,
    keras_initializer,
    refuse_seed,
    subsampled_shape,
)
from keras_preact.layers.placements import Placement
from keras_preact.layers.preactivation import (
    NORMALIZATIONS,
    channel_axis,
    channels_of,
    check_data_format,
    normalization,
)
from keras_preact.layers.products import convolution_multiply_adds, sequence_multiply_adds
from keras_preact.layers.shortcuts import Shortcut

_ARGUMENTS = ("strides", "normalize", "momentum", "epsilon", "kernel_initializer", "use_bias")
"""Arguments that a `Projection` shares with the shortcuts that contain one."""


class _ConvolutionalShortcut(Shortcut):
    """A shortcut with its own convolutions, which also change the shape if the unit does."""

    changes_shape = True

    def __init__(
        self,
        strides: int | None = None,
        normalize: str | None = None,
        momentum: float | None = None,
        epsilon: float | None = None,
        kernel_initializer: Any = None,
        use_bias: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strides = None if strides is None else check_positive("the shortcut's strides", strides)
        self.normalize = None if normalize is None else check_choice("normalization", normalize, NORMALIZATIONS)
        self.momentum = None if momentum is None else check_number("momentum", momentum, 0, 1)
        self.epsilon = None if epsilon is None else check_number("epsilon", epsilon, 0)
        self.kernel_initializer = None if kernel_initializer is None else check_kernel_initializer(kernel_initializer)
        self.use_bias = None if use_bias is None else check_flag("use_bias", use_bias)

    def _make_projection(self, filters: int) -> Projection:
        """Return an unbuilt projection with this shortcut's arguments; those that are `None` keep their defaults."""
        explicit = {name: value for name in _ARGUMENTS if (value := getattr(self, name)) is not None}
        return Projection(filters, **explicit, data_format=self.data_format, dtype=self.dtype_policy, name="projection")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in _ARGUMENTS}}


@keras.saving.register_keras_serializable(package="keras_preact")
class ConvShortcut(_ConvolutionalShortcut):
    """h(x) = W x by a 1×1 convolution on every unit (section 3.1; option C of the first ResNet paper).

    If the unit changes the shape, this convolution does so too; there is no other projection.

    An argument that is `None` (default) gets the unit's value inside a unit, and the default of `Projection` elsewhere.
    Other values are never overridden.

    Args:
        strides: of the convolution.
        normalize: kind of normalization after the convolution, as in `normalization`. The unit's value is the kind
            that F ends in, or `"none"`.
        momentum: of batch norm. The unit's value is used only if F ends in a normalization.
        epsilon: of the normalization. The unit's value is used only if F ends in a normalization.
        kernel_initializer: as in `ResidualUnit`.
        use_bias: whether the convolution has a bias.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> tuple(ConvShortcut(strides=2)(np.ones((1, 8, 8, 4)), np.ones((1, 4, 4, 16))).shape)
    (1, 4, 4, 16)
    """

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        self.projection = self._make_projection(residual_shape[channel_axis(self.data_format)])
        self.projection.build(x_shape)
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        return self.projection(x) + residual

    def multiply_adds(self, x_shape: Any) -> int:
        return self.projection.multiply_adds(x_shape)


@keras.saving.register_keras_serializable(package="keras_preact")
class HighwayGating(_ConvolutionalShortcut):
    """y = h + g (F − h) with the gate g = σ(T(x) + b), where T is two 3×3 convolutions with a ReLU between them.

    In a basic block, T is as large as F; the paper's gate, `ExclusiveGating`, is one 1×1 convolution. Both convolutions
    of T are followed by the normalization `normalize`. Its default is the normalization that F ends in, or none. h is
    x, or a projection of x if the unit changes the shape; the gate always reads x.

    The repository flukeskywalker/highway-resnet-comparison disputes the gating rows of Table 1 with this gate and
    nothing after the addition (see `keras_preact.paper.REPRODUCTIONS`).

    Args:
        gate_bias: initial b, one per channel. Default -6: initially g is about 0.002, and y about h.
        **kwargs: as in `ConvShortcut`, for all convolutions; the stride is that of T's first and of the projection.

    Example:

    >>> import numpy as np
    >>> x, residual = np.full((1, 2, 2, 4), 3.0), np.full((1, 2, 2, 4), 5.0)
    >>> y = HighwayGating(gate_bias=-50)(x, residual)
    >>> bool(np.allclose(keras.ops.convert_to_numpy(y), 3.0))
    True
    """

    def __init__(self, gate_bias: float = -6.0, **kwargs: Any) -> None:
        refuse_seed(kwargs.get("kernel_initializer"))
        super().__init__(**kwargs)
        self.gate_bias = check_number("gate_bias", gate_bias)

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        axis = channel_axis(self.data_format)
        filters = residual_shape[axis]
        projection = self._make_projection(filters)
        normalize = partial(
            normalization,
            projection.normalize,
            axis=axis,
            momentum=projection.momentum,
            epsilon=projection.epsilon,
            dtype=self.dtype_policy,
        )
        convolutions = residual_branch(
            weight_layers("basic", filters, strides=projection.strides),
            Placement("gate", "extension"),
            normalize,
            data_format=self.data_format,
            dtype=self.dtype_policy,
            kernel_initializer=projection.kernel_initializer,
            biases="all" if projection.use_bias else "none",
        )
        self.gate = [*convolutions, *normalize(channels=filters, center=False, name="norm_last")]
        build_in_order(self.gate, x_shape)
        constant = keras.initializers.Constant(self.gate_bias)
        self.bias = self.add_weight(shape=(filters,), initializer=constant, name="gate_bias")
        self.projection = None
        if projection.strides != 1 or x_shape[axis] != filters:
            projection.build(x_shape)
            self.projection = projection
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        h = x if self.projection is None else self.projection(x)
        logit = in_order(self.gate, x)
        bias = ops.convert_to_tensor(self.bias)
        g = ops.sigmoid(logit + (bias[:, None, None] if self.data_format == "channels_first" else bias))
        return h + g * (residual - h)

    def multiply_adds(self, x_shape: Any) -> int:
        projection = 0 if self.projection is None else self.projection.multiply_adds(x_shape)
        return sequence_multiply_adds(self.gate, x_shape) + projection

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gate_bias": self.gate_bias}


@keras.saving.register_keras_serializable(package="keras_preact")
class Projection(CompositeLayer):
    """A strided 1×1 convolution to the residual's shape (option B of the first ResNet paper).

    Args:
        filters: number of output channels.
        strides: of the convolution. Default 1.
        normalize: kind of normalization after the convolution. Default `"none"`, as in the paper's pre-activation
            networks; the original ResNet has batch norm.
        momentum: of batch norm. Default 0.9.
        epsilon: of the normalization. Default 1e-5.
        kernel_initializer: as in `ResidualUnit`.
        use_bias: whether the convolution has a bias. Default `False`.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Input: (batch, height, width, channels). Output: (batch, ⌈height / strides⌉, ⌈width / strides⌉, filters), in the
    compute dtype.

    Example:

    >>> import numpy as np
    >>> tuple(Projection(16, strides=2)(np.ones((1, 8, 8, 4))).shape)
    (1, 4, 4, 16)
    """

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        normalize: str = "none",
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        kernel_initializer: Any = HE_BY_FAN_OUT,
        use_bias: bool = False,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive("filters", filters)
        self.strides = check_positive("strides", strides)
        self.normalize = check_choice("normalization", normalize, NORMALIZATIONS)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.kernel_initializer = check_kernel_initializer(kernel_initializer)
        self.use_bias = check_flag("use_bias", use_bias)
        self.data_format = check_data_format(data_format)

    def build(self, input_shape: Any) -> None:
        channels_of(self.name, input_shape, self.data_format)
        self.conv = Conv2D(
            self.filters,
            1,
            strides=self.strides,
            use_bias=self.use_bias,
            data_format=self.data_format,
            kernel_initializer=keras_initializer(self.kernel_initializer),
            dtype=self.dtype_policy,
            name="conv",
        )
        self.norm = normalization(
            self.normalize,
            self.filters,
            axis=channel_axis(self.data_format),
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype_policy,
        )
        build_in_order((self.conv, *self.norm), input_shape)
        super().build(input_shape)
        self.input_spec = with_channels(input_shape, channel_axis(self.data_format))

    def call(self, x: Any) -> Any:
        return in_order((self.conv, *self.norm), x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return subsampled_shape(input_shape, self.filters, self.strides, self.data_format)

    def multiply_adds(self, x_shape: Any) -> int:
        """Return the multiply-adds of the convolution on one image."""
        return convolution_multiply_adds(self.conv, x_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            **{name: getattr(self, name) for name in _ARGUMENTS},
            "data_format": self.data_format,
        }


@keras.saving.register_keras_serializable(package="keras_preact")
class OptionA(keras.layers.Layer):
    """Every `strides`-th pixel, with zeros for the new channels: no weights (option A of the first ResNet paper).

    Args:
        filters: number of output channels, at least the input's.
        strides: step between pixels, in both directions. Default 1.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Input: (batch, height, width, channels). Output: (batch, ⌈height / strides⌉, ⌈width / strides⌉, filters), in the
    compute dtype.

    Raises:
        InputError: an argument is out of range, or the input has more channels than `filters`.

    Example:

    >>> import numpy as np
    >>> y = OptionA(3, strides=2)(np.arange(8.0).reshape(1, 2, 4, 1))
    >>> keras.ops.convert_to_numpy(y)[0, 0].tolist()
    [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    """

    def __init__(self, filters: int, strides: int = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive("filters", filters)
        self.strides = check_positive("strides", strides)
        self.data_format = check_data_format(data_format)

    def build(self, input_shape: Any) -> None:
        channels = channels_of(self.name, input_shape, self.data_format)
        if channels > self.filters:
            raise InputError(
                f"option A adds channels of zeros and cannot go from {channels} to {self.filters}; "
                "use shape_change='projection'"
            )
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        axis = channel_axis(self.data_format)
        if self.strides > 1:
            # Pooling over one pixel: faster than a strided slice on TensorFlow.
            x = ops.average_pool(x, 1, self.strides, data_format=self.data_format)
        new = self.filters - x.shape[axis]
        if not new:
            return x
        widths = [(0, 0)] * 4
        widths[axis] = (0, new)
        return ops.pad(x, widths)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return subsampled_shape(input_shape, self.filters, self.strides, self.data_format)

    def multiply_adds(self, x_shape: Any) -> int:
        """Return 0: nothing is multiplied."""
        return 0

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "data_format": self.data_format,
        }
