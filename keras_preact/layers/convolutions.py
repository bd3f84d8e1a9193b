"""The convolution of branches and shortcuts: its initializers, and its padding if it is strided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.native import CONVOLUTION
from keras_preact.layers.preactivation import channel_axis

HE_BY_FAN_OUT = "he_by_fan_out"
"""The name of `HE_NORMAL` in units and builders."""
HE_NORMAL = {
    "class_name": "VarianceScaling",
    # N(0, 2 / (k² · filters)): He initialization by fan-out, not truncated, as in the authors' code.
    "config": {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"},
}
INITIALIZERS = {
    HE_BY_FAN_OUT: HE_NORMAL,
    "uniform_by_fan_in": {
        "class_name": "VarianceScaling",
        # Uniform within ± 1/√(k² · channels), PyTorch's default for convolutions.
        "config": {"scale": 1 / 3, "mode": "fan_in", "distribution": "uniform"},
    },
}
"""Kernel initializers by the names that this package adds to Keras's."""


def check_kernel_initializer(initializer: Any) -> Any:
    """Return a kernel initializer as a name or a configuration.

    Layers that share one initializer object would all draw the same values.

    Args:
        initializer: `"he_by_fan_out"`, `"uniform_by_fan_in"` (PyTorch's default), or any Keras initializer.

    Raises:
        InputError: the initializer is unknown, or its class is not registered with Keras.

    >>> check_kernel_initializer(keras.initializers.HeNormal())["class_name"]
    'HeNormal'
    """
    if isinstance(initializer, str) and initializer in INITIALIZERS:
        return initializer
    try:
        instance = keras.initializers.get(initializer)
    except (ValueError, TypeError):
        instance = None
    if instance is None:
        raise InputError(
            f"unknown kernel initializer {initializer!r}; use {', '.join(map(repr, INITIALIZERS))} or any Keras "
            "initializer, for example 'glorot_uniform'"
        )
    if isinstance(initializer, (str, dict)):
        return initializer
    config = keras.initializers.serialize(instance)
    try:
        keras.initializers.get(config)
    except (ValueError, TypeError):
        name = getattr(instance, "__name__", type(instance).__name__)
        raise InputError(
            f"the kernel initializer {name} cannot be copied for each convolution; "
            "register it with @keras.saving.register_keras_serializable()"
        ) from None
    return config


def refuse_seed(initializer: Any) -> None:
    """Raise InputError if an initializer has a seed, with which all kernels of one shape would be equal."""
    if isinstance(initializer, keras.initializers.Initializer):
        initializer = {"class_name": type(initializer).__name__, "config": initializer.get_config()}
    if isinstance(initializer, dict) and (initializer.get("config") or {}).get("seed") is not None:
        raise InputError(
            f"the seed of {initializer.get('class_name')} would begin again in each convolution, and all kernels of "
            "one shape would be equal; remove it, and call keras.utils.set_random_seed to make the weights reproducible"
        )


def keras_initializer(initializer: Any) -> Any:
    """Return a checked kernel initializer in the form that Keras layers accept.

    >>> keras_initializer("he_by_fan_out")["config"]["mode"]
    'fan_out'
    """
    return INITIALIZERS.get(initializer, initializer) if isinstance(initializer, str) else initializer


@keras.saving.register_keras_serializable(package="keras_preact")
class Conv2D(keras.layers.Conv2D):
    """`keras.layers.Conv2D` with the backend's own operation where it is faster.

    On PyTorch it avoids Keras's copies of the images and a oneDNN bug. With JAX on CPUs, its gradients let
    loops use XLA's fast convolutions; see `native.py`.

    Arguments, weights and outputs are those of `keras.layers.Conv2D`.

    Example:

    >>> import numpy as np
    >>> tuple(Conv2D(8, 3, padding="same")(np.ones((2, 4, 4, 3), "float32")).shape)
    (2, 4, 4, 8)
    """

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        native = CONVOLUTION.get(keras.backend.backend(), lambda *arguments: None)
        channels_first = self.data_format == "channels_first"
        settings = (self.strides, self.padding, self.dilation_rate, self.groups, channels_first)
        outputs = native(inputs, kernel, *settings)
        return super().convolution_op(inputs, kernel) if outputs is None else outputs


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
        """Return the convolution, after a padding layer if it is strided and larger than 1×1.

        That layer pads all sides equally, as the authors' code does. With Keras's "same" padding, stride 2 and an even
        image size, the windows would be centered on the odd pixels, but a strided 1×1 shortcut reads the even ones.
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
            kernel_initializer=keras_initializer(kernel_initializer),
            dtype=dtype,
            name=name,
        )
        if not pads:
            return [convolution]
        padding = self.dilation * (self.kernel_size // 2)
        return [keras.layers.ZeroPadding2D(padding, data_format, dtype=dtype, name=f"{name}_pad"), convolution]


def subsampled_shape(shape: Any, filters: int, strides: int, data_format: str) -> tuple[Any, ...]:
    """Return the shape of images of `shape` after a layer with these strides and `filters` output channels.

    >>> subsampled_shape((None, 32, 31, 16), 64, 2, "channels_last")
    (None, 16, 16, 64)
    """
    axis = channel_axis(data_format)
    spatial = [None if size is None else -(-size // strides) for i, size in enumerate(shape) if i not in (0, axis)]
    return (shape[0], filters, *spatial) if axis == 1 else (shape[0], *spatial, filters)
