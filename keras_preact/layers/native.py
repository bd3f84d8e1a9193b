"""Operations of a backend, where `keras.ops` has none or a slow one. No other module of layers calls a backend."""

from __future__ import annotations

from typing import Any

from keras import ops


def _fused_batch_norm_tensorflow(
    inputs: Any, scale: Any, offset: Any, statistics: tuple[Any, Any] | None, epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """Return (outputs, batch mean, biased batch variance); with `statistics` given, normalize by those instead.

    A backend's own operation, because `keras.ops` has no fused batch norm. The raw one, because `tf.nn`'s wrapper
    raises epsilon to 1.001e-5 without a word.
    """
    import tensorflow as tf

    empty = tf.zeros([0], tf.float32)
    mean, variance = (empty, empty) if statistics is None else map(tf.convert_to_tensor, statistics)
    fused = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=scale,
        offset=offset,
        mean=mean,
        variance=variance,
        epsilon=epsilon,
        data_format="NCHW" if channels_first else "NHWC",
        is_training=statistics is None,
    )
    # The operation returns the unbiased variance n/(n-1) s²; Keras keeps s².
    n = tf.cast(tf.size(inputs) // tf.maximum(tf.size(scale), 1), tf.float32)
    unbiased_to_biased = (n - 1) / tf.maximum(n, 1)
    return fused.y, tf.stop_gradient(fused.batch_mean), tf.stop_gradient(fused.batch_variance * unbiased_to_biased)


def _fused_batch_norm_torch(
    inputs: Any, scale: Any, offset: Any, statistics: tuple[Any, Any] | None, epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """Return the same, computed by PyTorch's operation, which takes images of either order as channels first."""
    import torch

    mean, variance = (None, None) if statistics is None else map(ops.convert_to_tensor, statistics)
    images = inputs if channels_first else inputs.permute(0, 3, 1, 2)
    outputs, batch_mean, inverse = torch.native_batch_norm(
        images, scale, offset, mean, variance, statistics is None, 0.0, epsilon
    )
    # What it keeps for the gradient: the mean, and 1 / √(variance + ε) of the biased variance.
    variance = (inverse**-2.0 - epsilon).clamp(min=0.0)
    return outputs if channels_first else outputs.permute(0, 2, 3, 1), batch_mean, variance


FUSED_BATCH_NORM = {"tensorflow": _fused_batch_norm_tensorflow, "torch": _fused_batch_norm_torch}
"""Batch norm as one operation, by backend."""


def _convolution_torch(
    inputs: Any, kernel: Any, strides: tuple[int, int], padding: str, dilation: Any, groups: int, channels_first: bool
) -> Any:
    """Return the convolution of images.

    Keras's copies those of channels_last twice: into channels_first, and back into the layout of channels_last. A
    permuted view has that layout already.
    """
    import torch

    images, weights = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel).permute(3, 2, 0, 1)
    images = images if channels_first else images.permute(0, 3, 1, 2)
    if weights.shape[2:] == (1, 1):
        # Pixels that no window sees go first: oneDNN 3.12 writes past its memory in the gradient of a strided 1×1
        # convolution of fewer than 8 or 16 channels (oneDNN's issue 6035).
        images, strides, padding = images[:, :, :: strides[0], :: strides[1]], (1, 1), "valid"
    outputs = torch.conv2d(images, weights, None, strides, padding, dilation, groups)
    return outputs if channels_first else outputs.permute(0, 2, 3, 1)


CONVOLUTION = {"torch": _convolution_torch}
"""Convolution of images, by backend. It has no "same" padding for strided windows of more than one pixel."""
