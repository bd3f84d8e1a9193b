"""Normalization and activation: batch norm as one fused operation where the backend has one.

Batch norm and ReLU are a third to a half of a residual network's training step on a CPU when they run as
separate small operations. TensorFlow and PyTorch have one operation for the statistics, the normalization and its
gradient, with float32 statistics whatever the images' dtype. On JAX the compiler fuses the plain operations by itself.
"""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_preact.errors import check_choice
from keras_preact.layers.native import FUSED_BATCH_NORM

NORMALIZATIONS = ("batch", "group", "layer", "none")


def check_data_format(data_format: str | None) -> str:
    """Return the data format of images, Keras's setting for `None`.

    Raises:
        InputError: it is not one of the two.

    >>> check_data_format("channels_first")
    'channels_first'
    """
    if data_format is None:
        return keras.config.image_data_format()
    return check_choice("data format", data_format, ("channels_last", "channels_first"))


def channel_axis(data_format: str | None) -> int:
    """Return the axis of a batch of images that holds the channels: 3 for channels_last, 1 for channels_first."""
    return 1 if check_data_format(data_format) == "channels_first" else 3


@keras.saving.register_keras_serializable(package="keras_preact")
class BatchNorm(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the paper's constants, as one operation on TensorFlow and PyTorch.

    Equal to its parent to float tolerance: outputs, gradients, and moving statistics (of the biased variance).

    Args:
        axis: the channel axis; -1 or 3 for channels_last images, 1 for channels_first. Default -1.
        momentum: of the moving statistics. Default 0.9 (the paper's framework; Keras itself has 0.99).
        epsilon: added to the variance. Default 1e-5 (Keras itself has 1e-3).
        fused: `None` (default) uses the fused operation where it exists: TensorFlow and PyTorch, images of rank 4,
            float32, float16 or bfloat16, float32 variables, no mask. `False` always takes the parent's path, the
            reference.
        **kwargs: as in `keras.layers.BatchNormalization`.

    Input and output: images (batch, height, width, channels), or another rank on the unfused path, in the layer's
    compute dtype.

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
        # Keras leaves the moving statistics of several devices as they are: each its own, and the first one's saved.
        statistics = {} if kwargs.get("trainable", True) else {"aggregation": "mean"}
        return super().add_weight(*args, **{**statistics, **kwargs})

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "fused": self.fused}

    def _takes_fused_path(self, inputs: Any, mask: Any) -> bool:
        return (
            self.fused is not False
            and keras.backend.backend() in FUSED_BATCH_NORM
            and len(inputs.shape) == 4
            and self.axis in (-1, 1, 3)
            and keras.backend.standardize_dtype(inputs.dtype) in ("float32", "float16", "bfloat16")
            and self.variable_dtype == "float32"  # a policy of half precision alone has no float32 statistics
            and mask is None
            and not self.synchronized
            and not getattr(self, "renorm", False)  # Keras 3.12 has no renormalization
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not self._takes_fused_path(inputs, mask):
            return super().call(inputs, training=training, mask=mask)
        # The parent's own rule: a frozen batch norm runs in inference mode.
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
        self.activation = keras.activations.get(activation)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.activation(super().call(inputs, training=training, mask=mask))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "activation": keras.activations.serialize(self.activation)}


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
    """Return the layers that normalize `channels` channels, and apply ReLU where `relu`; none, one or two layers.

    Args:
        kind: `"batch"`, `"group"` (32 groups, or the largest divisor of 32 and of the channels), `"layer"` (over
            height, width and channels, one scale and offset a channel) or `"none"`.
        channels: number of channels of the images.
        relu: whether ReLU follows; with `"batch"` both are one `PreActivation`.
        axis: the channel axis.
        momentum: of batch norm's moving statistics.
        epsilon: added to the variance.
        gamma_initializer: of the scale.
        center: whether there is an offset. Default `True`.
        name: prefix of the layers' names.
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
        # One group over all channels is layer normalization of images, as in the group normalization paper.
        groups = math.gcd(32, channels) if kind == "group" else 1
        layers.append(keras.layers.GroupNormalization(groups=groups, axis=axis, **shared))
    if relu:
        layers.append(keras.layers.ReLU(name=f"{name}_relu", dtype=dtype))
    return layers
