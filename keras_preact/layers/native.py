"""Backend operations for what `keras.ops` lacks or does slowly."""

from __future__ import annotations

from typing import Any

from keras import ops


def _fused_batch_norm_tensorflow(
    inputs: Any, scale: Any, offset: Any, statistics: tuple[Any, Any] | None, epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """Return (outputs, batch mean, biased batch variance); with `statistics`, normalize by those instead.

    `keras.ops` has no fused batch norm. TensorFlow's wrapper in `tf.nn` silently raises epsilon to 1.001e-5, so this
    calls the raw op.
    """
    import tensorflow as tf

    empty = tf.constant([], tf.float32)
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
    # The op returns the unbiased variance n/(n-1) s²; Keras stores the biased s².
    channels, size = scale.shape[0], inputs.shape.num_elements()
    if size is None:
        share = tf.math.divide_no_nan(float(channels), tf.cast(tf.size(inputs, tf.int64), tf.float32))
    else:  # a constant: every operation counts in the time of the first step
        share = channels / size if size else 0.0
    return fused.y, tf.stop_gradient(fused.batch_mean), tf.stop_gradient(fused.batch_variance * (1 - share))


def _fused_batch_norm_torch(
    inputs: Any, scale: Any, offset: Any, statistics: tuple[Any, Any] | None, epsilon: float, channels_first: bool
) -> tuple[Any, Any, Any]:
    """Return the same, computed by PyTorch's op, which expects images channels first."""
    import torch

    mean, variance = (None, None) if statistics is None else map(ops.convert_to_tensor, statistics)
    images = inputs if channels_first else inputs.permute(0, 3, 1, 2)
    outputs, batch_mean, inverse = torch.native_batch_norm(
        images, scale, offset, mean, variance, statistics is None, 0.0, epsilon
    )
    # The op saves the mean and 1 / √(variance + ε) for the gradient, with the biased variance.
    variance = (inverse**-2.0 - epsilon).clamp(min=0.0)
    return outputs if channels_first else outputs.permute(0, 2, 3, 1), batch_mean, variance


FUSED_BATCH_NORM = {"tensorflow": _fused_batch_norm_tensorflow, "torch": _fused_batch_norm_torch}
"""Fused batch norm, by backend."""


def _convolution_torch(
    inputs: Any, kernel: Any, strides: tuple[int, int], padding: str, dilation: Any, groups: int, channels_first: bool
) -> Any:
    """Return the convolution of images.

    Keras's own convolution copies channels_last images twice: into channels_first, and back into PyTorch's
    channels_last memory format. A permuted view already has that format.
    """
    import torch

    images, weights = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel).permute(3, 2, 0, 1)
    images = images if channels_first else images.permute(0, 3, 1, 2)
    if weights.shape[2:] == (1, 1):
        # Subsample first: in oneDNN 3.12, the gradient of a strided 1×1 convolution with fewer than 8 or 16 channels
        # writes out of bounds (oneDNN issue 6035).
        images, strides, padding = images[:, :, :: strides[0], :: strides[1]], (1, 1), "valid"
    outputs = torch.conv2d(images, weights, None, strides, padding, dilation, groups)
    return outputs if channels_first else outputs.permute(0, 2, 3, 1)


CONVOLUTION = {"torch": _convolution_torch}
"""Convolution of images, by backend. It does not support "same" padding for strided kernels larger than 1×1."""
