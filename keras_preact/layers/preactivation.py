"""Normalization and activation: batch norm as one fused operation where the backend has one.

On a CPU, batch norm and ReLU take a third to a half of a residual network's training step if they run as separate
small operations. TensorFlow and PyTorch have one operation for the statistics, the normalization and its gradient,
with float32 statistics whatever the images' dtype. On JAX the compiler fuses the plain operations by itself.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.native import FUSED_BATCH_NORM

NORMALIZATIONS = ("batch", "group", "layer", "none")


def check_data_format(data_format: str | None) -> str:
    """Return the data format of images; `None` means Keras's setting.

    Raises:
        InputError: unknown data format.

    >>> check_data_format("channels_first")
    'channels_first'
    """
    if data_format is None:
        return keras.config.image_data_format()
    return check_choice("data format", data_format, ("channels_last", "channels_first"))


def channel_axis(data_format: str | None) -> int:
    """Return the channel axis of a batch of images: 3 for channels_last, 1 for channels_first."""
    return 1 if check_data_format(data_format) == "channels_first" else 3


def channels_of(layer: str, input_shape: Any, data_format: str | None) -> int:
    """Return the number of channels of images.

    Args:
        layer: name of the layer, for the error message.
        input_shape: of a batch of images.
        data_format: as in `channel_axis`.

    Raises:
        InputError: the number of channels is unknown.

    >>> channels_of("unit", (None, 8, 8, 3), "channels_last")
    3
    """
    channels = input_shape[channel_axis(data_format)]
    if channels is None:
        shape = tuple(input_shape)
        raise InputError(f"{layer} expects a known number of channels, not shape {shape}; set it in the model's input")
    return int(channels)


@keras.saving.register_keras_serializable(package="keras_preact")
class BatchNorm(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the paper's constants, as one operation on TensorFlow and PyTorch.

    Outputs, gradients and moving statistics (with the biased variance) equal those of its parent to float tolerance.

    Args:
        axis: the channel axis; -1 or 3 for channels_last images, 1 for channels_first. Default -1.
        momentum: of the moving statistics. Default 0.9 (the paper's framework; Keras's default is 0.99).
        epsilon: added to the variance. Default 1e-5 (Keras's default is 1e-3).
        fused: `None` (default) or `True` uses the fused operation where it is available: on TensorFlow and PyTorch, for
            inputs of rank 4 in float32, float16 or bfloat16, with float32 variables, and without a mask, `synchronized`
            and `renorm`. `False` always uses the parent's implementation, for example as a reference.
        **kwargs: as in `keras.layers.BatchNormalization`.

    Input: images (batch, height, width, channels), or a tensor of another rank, for which the parent's implementation
    runs. Output: the same shape, in the compute dtype.

    Example:

    >>> import numpy as np
    >>> y = BatchNorm()(np.ones((2, 4, 4, 3), "float32"), training=False)
    >>> tuple(y.shape), round(float(y[0, 0, 0, 0]), 4)
    ((2, 4, 4, 3), 1.0)
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        fused: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(axis=axis, momentum=momentum, epsilon=epsilon, **kwargs)
        self.fused = fused

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        # By default, each device has its own moving statistics, and Keras saves those of the first device.
        statistics = {} if kwargs.get("trainable", True) else {"aggregation": "mean"}
        return super().add_weight(*args, **{**statistics, **kwargs})

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "fused": self.fused}

    def _can_fuse(self, inputs: Any, mask: Any) -> bool:
        return (
            self.fused is not False
            and keras.backend.backend() in FUSED_BATCH_NORM
            and len(inputs.shape) == 4
            and self.axis in (-1, 1, 3)
            and keras.backend.standardize_dtype(inputs.dtype) in ("float32", "float16", "bfloat16")
            and self.variable_dtype == "float32"  # False under a pure half-precision policy
            and mask is None
            and not self.synchronized
            and not getattr(self, "renorm", False)  # Keras 3.12 has no `renorm`
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not self._can_fuse(inputs, mask):
            return super().call(inputs, training=training, mask=mask)
        # As in the parent class, a frozen batch norm runs in inference mode.
        batch_statistics = bool(training) and self.trainable
        channels = (inputs.shape[self.axis],)
        outputs, mean, variance = FUSED_BATCH_NORM[keras.backend.backend()](
            inputs,
            scale=ops.convert_to_tensor(self.gamma) if self.scale else ops.ones(channels, "float32"),
            offset=ops.convert_to_tensor(self.beta) if self.center else ops.zeros(channels, "float32"),
            statistics=None if batch_statistics else (self.moving_mean, self.moving_variance),
            epsilon=self.epsilon,
            channels_first=self.axis == 1,
        )
        if batch_statistics:
            for moving, batch in ((self.moving_mean, mean), (self.moving_variance, variance)):
                moving.assign(moving * self.momentum + batch * (1.0 - self.momentum))
        return outputs


@keras.saving.register_keras_serializable(package="keras_preact")
class PreActivation(BatchNorm):
    """Batch norm, then an activation: the pre-activation of the paper's Eq. (9), f̂(x) = ReLU(BN(x)).

    Args:
        activation: the name of a Keras activation, or a function that Keras can serialize. Default `"relu"`.
        **kwargs: as in `BatchNorm`.

    Input and output: as in `BatchNorm`.

    Example:

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(8, 4, 4, 3)).astype("float32")
    >>> y = PreActivation()(x, training=True)
    >>> bool((keras.ops.convert_to_numpy(y) >= 0).all())
    True
    """

    def __init__(self, activation: Any = "relu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = get_activation("activation", activation)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.activation(super().call(inputs, training=training, mask=mask))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "activation": keras.activations.serialize(self.activation)}


def get_activation(what: str, activation: Any) -> Any:
    """Return the function of an activation, given as Keras accepts it.

    Raises:
        InputError: Keras does not know it; the message calls it `what`.

    >>> get_activation("activation", "relu").__name__
    'relu'
    """
    try:
        return keras.activations.get(activation)
    except (ValueError, TypeError):
        raise InputError(
            f"{what} is {activation!r}; pass a Keras activation such as 'relu' or 'softmax', or a function, or None"
        ) from None


def normalization(
    kind: str,
    channels: int,
    *,
    relu: bool = False,
    axis: int = 3,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    gamma_initializer: str = "ones",
    center: bool = True,
    name: str = "norm",
    dtype: Any = None,
) -> list[keras.layers.Layer]:
    """Return the layers, at most two, that normalize images and, with `relu`, apply ReLU.

    Args:
        kind: `"batch"`, `"group"` (gcd(32, channels) groups), `"layer"` (over height, width and channels, with one
            scale and offset per channel) or `"none"`.
        channels: number of channels of the images.
        relu: whether ReLU follows; for `"batch"`, both are one `PreActivation`. Default `False`.
        axis: the channel axis. Default 3.
        momentum: of batch norm's moving statistics. Default 0.9.
        epsilon: added to the variance. Default 1e-5.
        gamma_initializer: of the scale. Default `"ones"`.
        center: whether to add an offset. Default `True`.
        name: of the normalization; a separate ReLU is named `{name}_relu`. Default `"norm"`.
        dtype: dtype or dtype policy of the layers.

    Raises:
        InputError: unknown `kind`.

    Example:

    >>> [type(layer).__name__ for layer in normalization("batch", 16, relu=True)]
    ['PreActivation']
    >>> [type(layer).__name__ for layer in normalization("group", 16, relu=True)]
    ['GroupNormalization', 'ReLU']
    """
    check_choice("normalization", kind, NORMALIZATIONS)
    shared: dict[str, Any] = {
        "epsilon": epsilon,
        "gamma_initializer": gamma_initializer,
        "center": center,
        "name": name,
        "dtype": dtype,
    }
    if kind == "batch":
        layer_type = PreActivation if relu else BatchNorm
        return [layer_type(axis=axis, momentum=momentum, **shared)]
    layers: list[keras.layers.Layer] = []
    if kind != "none":
        # With one group, group normalization is layer normalization, as its paper says.
        groups = math.gcd(32, channels) if kind == "group" else 1
        layers.append(keras.layers.GroupNormalization(groups=groups, axis=axis, **shared))
    if relu:
        layers.append(keras.layers.ReLU(name=f"{name}_relu", dtype=dtype))
    return layers
