"""Shortcuts with convolutions: projections where a unit changes the shape, Table 1's 1×1 convolution, Highway gates."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_choice, check_number, check_positive
from keras_preact.layers.branches import residual_branch, weight_layers
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.convolutions import (
    HE_BY_FAN_OUT,
    Conv2D,
    check_kernel_initializer,
    for_keras,
    subsampled_shape,
)
from keras_preact.layers.placements import Placement
from keras_preact.layers.preactivation import NORMALIZATIONS, channel_axis, check_data_format, normalization
from keras_preact.layers.products import convolution_multiply_adds, sequence_multiply_adds
from keras_preact.layers.shortcuts import Shortcut


class _Projecting(Shortcut):
    """A shortcut with convolutions of its own, which changes the shape where the unit does."""

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
        self.use_bias = None if use_bias is None else bool(use_bias)

    def _resolved(self) -> dict[str, Any]:
        """Return the arguments of the convolutions, with the defaults of a `Projection` for those not given."""
        given = {name: value for name, value in self._projection_config().items() if value is not None}
        return {**_PROJECTION_DEFAULTS, **given}

    def _build_projection(self, x_shape: Any, residual_shape: Any) -> Projection:
        projection = Projection(
            residual_shape[channel_axis(self.data_format)],
            **self._resolved(),
            data_format=self.data_format,
            dtype=self.dtype_policy,
            name="projection",
        )
        projection.build(x_shape)
        return projection

    def _projection_config(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "normalize": self.normalize,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "kernel_initializer": self.kernel_initializer,
            "use_bias": self.use_bias,
        }

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._projection_config()}


@keras.saving.register_keras_serializable(package="keras_preact")
class ConvShortcut(_Projecting):
    """h(x) = W x by a 1×1 convolution on every unit (section 3.1; option C of the first ResNet paper).

    Where the unit changes the shape, this convolution does that too: no other projection stands before it.

    The default of each argument is `None`: the unit's own value inside a unit, and the default of `Projection`
    elsewhere. A value that you give stays as it is.

    Args:
        strides: of the convolution.
        normalize: kind of normalization after the convolution, as in `normalization`. The unit's own is that of F
            where F ends in a normalization, else `"none"`.
        momentum: of batch norm.
        epsilon: of the normalization.
        kernel_initializer: as in `ResidualUnit`.
        use_bias: whether the convolution has a bias.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> tuple(ConvShortcut(strides=2)(np.ones((1, 8, 8, 4)), np.ones((1, 4, 4, 16))).shape)
    (1, 4, 4, 16)
    """

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        self.projection = self._build_projection(x_shape, residual_shape)
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        return self.projection(x) + residual

    def multiply_adds(self, x_shape: Any) -> int:
        return self.projection.multiply_adds(x_shape)


@keras.saving.register_keras_serializable(package="keras_preact")
class HighwayGating(_Projecting):
    """y = h + g (F − h) with g = σ(T(x) + b) and a T as large as F: Highway networks as the paper's critics have them.

    T is two 3×3 convolutions, each with its normalization, and a ReLU between them; h is x, or where the unit
    changes the shape a projection of x. The gate reads the unit's own input there too. Those who dispute the rows
    of gating in Table 1 (`paper.REPRODUCTIONS`) have it so, and nothing after the addition; the gate of the paper
    is one 1×1 convolution, `ExclusiveGating`.

    Args:
        gate_bias: initial b, one for each channel. Default -6: at first g is about 0.002, and y about h.
        **kwargs: as in `ConvShortcut`, for its convolutions (the stride is that of the gate's first).

    Example:

    >>> import numpy as np
    >>> x, residual = np.full((1, 2, 2, 4), 3.0), np.full((1, 2, 2, 4), 5.0)
    >>> y = HighwayGating(gate_bias=-50)(x, residual)
    >>> bool(np.allclose(keras.ops.convert_to_numpy(y), 3.0))
    True
    """

    def __init__(self, gate_bias: float = -6.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate_bias = float(gate_bias)

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        axis = channel_axis(self.data_format)
        filters = residual_shape[axis]
        chosen = self._resolved()
        normalize = partial(
            normalization,
            chosen["normalize"],
            axis=axis,
            momentum=chosen["momentum"],
            epsilon=chosen["epsilon"],
            dtype=self.dtype_policy,
        )
        convolutions = residual_branch(
            weight_layers("basic", filters, strides=chosen["strides"]),
            Placement("gate", "extension"),
            normalize,
            data_format=self.data_format,
            dtype=self.dtype_policy,
            kernel_initializer=chosen["kernel_initializer"],
            biases="all" if chosen["use_bias"] else "none",
        )
        self.gate = [*convolutions, *normalize(channels=filters, center=False, name="norm_last")]
        shape = x_shape
        for layer in self.gate:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        start = keras.initializers.Constant(self.gate_bias)
        self.bias = self.add_weight(shape=(filters,), initializer=start, name="gate_bias")
        keeps_shape = chosen["strides"] == 1 and x_shape[axis] == filters
        self.projection = None if keeps_shape else self._build_projection(x_shape, residual_shape)
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        h = x if self.projection is None else self.projection(x)
        logit = x
        for layer in self.gate:
            logit = layer(logit)
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
        normalize: kind of normalization after the convolution. Default `"none"`: the pre-activation nets of the
            paper project with a plain convolution; the original ResNet has batch norm after it.
        momentum: of batch norm.
        epsilon: of the normalization.
        kernel_initializer: as in `ResidualUnit`.
        use_bias: whether the convolution has a bias. Default `False`.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

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
        self.filters = int(filters)
        self.strides = int(strides)
        self.normalize = normalize
        self.momentum = float(momentum)
        self.epsilon = float(epsilon)
        self.kernel_initializer = check_kernel_initializer(kernel_initializer)
        self.use_bias = bool(use_bias)
        self.data_format = check_data_format(data_format)

    def build(self, input_shape: Any) -> None:
        self.conv = Conv2D(
            self.filters,
            1,
            strides=self.strides,
            use_bias=self.use_bias,
            data_format=self.data_format,
            kernel_initializer=for_keras(self.kernel_initializer),
            dtype=self.dtype_policy,
            name="conv",
        )
        self.conv.build(input_shape)
        self.norm = normalization(
            self.normalize,
            self.filters,
            axis=channel_axis(self.data_format),
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype_policy,
        )
        for layer in self.norm:
            layer.build(self.conv.compute_output_shape(input_shape))
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        x = self.conv(x)
        for layer in self.norm:
            x = layer(x)
        return x

    def compute_output_shape(self, input_shape: Any) -> Any:
        return subsampled_shape(input_shape, self.filters, self.strides, self.data_format)

    def multiply_adds(self, x_shape: Any) -> int:
        """Return the multiply-adds of the convolution on one image."""
        return convolution_multiply_adds(self.conv, x_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "normalize": self.normalize,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "kernel_initializer": self.kernel_initializer,
            "use_bias": self.use_bias,
            "data_format": self.data_format,
        }


_PROJECTION_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Projection.__init__).parameters.items()
    if name in ("strides", "normalize", "momentum", "epsilon", "kernel_initializer", "use_bias")
}


@keras.saving.register_keras_serializable(package="keras_preact")
class OptionA(keras.layers.Layer):
    """Every `strides`-th pixel, and zeros for the new channels: no weights (option A of the first ResNet paper).

    Args:
        filters: number of output channels, at least the input's.
        strides: distance of the pixels taken. Default 1.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Raises:
        InputError: the input has more channels than `filters`.

    Example:

    >>> import numpy as np
    >>> y = OptionA(3, strides=2)(np.arange(8.0).reshape(1, 2, 4, 1))
    >>> keras.ops.convert_to_numpy(y)[0, 0].tolist()
    [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    """

    def __init__(self, filters: int, strides: int = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = int(filters)
        self.strides = int(strides)
        self.data_format = check_data_format(data_format)

    def build(self, input_shape: Any) -> None:
        channels = input_shape[channel_axis(self.data_format)]
        if channels > self.filters:
            raise InputError(
                f"option A pads channels with zeros and cannot go from {channels} to {self.filters}; "
                "use shape_change='projection'"
            )
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        axis = channel_axis(self.data_format)
        if self.strides > 1:
            # Means of single pixels: the pixels themselves, and on TensorFlow many times faster than a strided slice.
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
        """Return 0: there is nothing to multiply."""
        return 0

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "data_format": self.data_format,
        }
