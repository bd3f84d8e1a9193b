"""A convolution: how it begins, and how a strided one is padded. Branches and shortcuts share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.native import CONVOLUTION
from keras_preact.layers.preactivation import channel_axis

HE_BY_FAN_OUT = "he_by_fan_out"
"""The name that units and builders take for `HE_NORMAL`."""
HE_NORMAL = {
    "class_name": "VarianceScaling",
    # N(0, 2 / (k² · filters)): He initialization by fan-out, not truncated, as in the authors' code.
    "config": {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"},
}
UNIFORM_BY_FAN_IN = "uniform_by_fan_in"
"""The name for `PYTORCH_UNIFORM`."""
PYTORCH_UNIFORM = {
    "class_name": "VarianceScaling",
    # Between ± 1/√(k² · channels), which PyTorch's convolutions begin with where nothing is said.
    "config": {"scale": 1 / 3, "mode": "fan_in", "distribution": "uniform"},
}
INITIALIZERS = {HE_BY_FAN_OUT: HE_NORMAL, UNIFORM_BY_FAN_IN: PYTORCH_UNIFORM}
"""The names that kernel initializers have in this package only."""


def check_kernel_initializer(initializer: Any) -> Any:
    """Return a kernel initializer as it stands in configurations: a name, or what Keras writes of an object.

    Not an object, because one draws the same numbers for each layer that it is given to.

    Args:
        initializer: `"he_by_fan_out"`, `"uniform_by_fan_in"` (PyTorch's), or anything that Keras takes for one.

    Raises:
        InputError: there is no such initializer, or it is of a class that is not registered with Keras.

    >>> check_kernel_initializer(keras.initializers.HeNormal())["class_name"]
    'HeNormal'
    """
    if isinstance(initializer, str) and initializer in INITIALIZERS:
        return initializer
    try:
        known = keras.initializers.get(initializer)
    except (ValueError, TypeError):
        known = None
    if known is None:
        raise InputError(
            f"there is no kernel initializer {initializer!r}; give he_by_fan_out or one of Keras's, as glorot_uniform"
        )
    if isinstance(initializer, (str, dict)):
        return initializer
    written = keras.initializers.serialize(known)
    try:
        keras.initializers.get(written)
    except (ValueError, TypeError):
        name = getattr(known, "__name__", type(known).__name__)
        raise InputError(
            f"the kernel initializer {name} has to be copied for each convolution; "
            "register it with @keras.saving.register_keras_serializable()"
        ) from None
    return written


def for_keras(initializer: Any) -> Any:
    """Return a checked kernel initializer as Keras's layers take it.

    >>> for_keras("he_by_fan_out")["config"]["mode"]
    'fan_out'
    """
    return INITIALIZERS.get(initializer, initializer) if isinstance(initializer, str) else initializer


@keras.saving.register_keras_serializable(package="keras_preact")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D`, on PyTorch without Keras's copies of images and a fault of oneDNN.

    Arguments, weights and outputs are those of `keras.layers.Conv2D`.

    Example:

    >>> import numpy as np
    >>> tuple(Conv2D(8, 3, padding="same")(np.ones((2, 4, 4, 3), "float32")).shape)
    (2, 4, 4, 8)
    """

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        native = CONVOLUTION.get(keras.backend.backend())
        if native is None or (self.padding == "same" and self.strides != (1, 1) and self.kernel_size != (1, 1)):
            return super().convolution_op(inputs, kernel)
        channels_first = self.data_format == "channels_first"
        return native(inputs, kernel, self.strides, self.padding, self.dilation_rate, self.groups, channels_first)


@dataclass(frozen=True)
class WeightLayer:
    """One convolution of a branch: filters, kernel size, strides, dilation, groups."""

    filters: int
    kernel_size: int
    strides: int = 1
    dilation: int = 1
    groups: int = 1

    def layers(
        self,
        name: str,
        data_format: str,
        dtype: Any,
        *,
        kernel_initializer: Any = HE_BY_FAN_OUT,
        use_bias: bool = False,
    ) -> list[keras.layers.Layer]:
        """Return the convolution as one layer, or two: a strided one pads by itself, equally on all sides.

        With Keras's "same" padding, an even image and stride 2, the windows would be centred on the odd pixels,
        while a strided 1×1 shortcut reads the even ones; equal padding, the authors', centres both alike.
        """
        pads = self.strides > 1 and self.kernel_size > 1
        convolution = Conv2D(
            self.filters,
            self.kernel_size,
            strides=self.strides,
            padding="valid" if pads else "same",
            dilation_rate=self.dilation,
            groups=self.groups,
            use_bias=use_bias,
            data_format=data_format,
            kernel_initializer=for_keras(kernel_initializer),
            dtype=dtype,
            name=name,
        )
        if not pads:
            return [convolution]
        padding = self.dilation * (self.kernel_size // 2)
        return [keras.layers.ZeroPadding2D(padding, data_format, dtype=dtype, name=f"{name}_pad"), convolution]


def subsampled_shape(shape: Any, filters: int, strides: int, data_format: str) -> tuple[Any, ...]:
    """Return the shape after taking every `strides`-th pixel of `shape` into `filters` channels.

    >>> subsampled_shape((None, 32, 31, 16), 64, 2, "channels_last")
    (None, 16, 16, 64)
    """
    axis = channel_axis(data_format)
    spatial = [None if size is None else -(-size // strides) for i, size in enumerate(shape) if i not in (0, axis)]
    return (shape[0], filters, *spatial) if axis == 1 else (shape[0], *spatial, filters)
