"""Backend operations for what `keras.ops` lacks or does slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
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

    images = inputs if channels_first else inputs.permute(0, 3, 1, 2)
    if statistics is not None:
        mean, variance = map(ops.convert_to_tensor, statistics)
        # Unlike `native_batch_norm`, this op is known to PyTorch's exporter to ONNX.
        outputs = torch.nn.functional.batch_norm(images, mean, variance, scale, offset, False, 0.0, epsilon)
        return outputs if channels_first else outputs.permute(0, 2, 3, 1), mean, variance
    outputs, batch_mean, inverse = torch.native_batch_norm(images, scale, offset, None, None, True, 0.0, epsilon)
    # The op saves the mean and 1 / √(variance + ε) for the gradient, with the biased variance.
    variance = (inverse**-2.0 - epsilon).clamp(min=0.0)
    return outputs if channels_first else outputs.permute(0, 2, 3, 1), batch_mean, variance


def eagerly(function: Callable[[], Any]) -> Any:
    """Return the result of a function as a value, even while TensorFlow or JAX traces a program."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.init_scope():
            return function()
    if keras.backend.backend() != "jax":
        return function()
    import jax

    with jax.ensure_compile_time_eval():
        return function()


FUSED_BATCH_NORM = {"tensorflow": _fused_batch_norm_tensorflow, "torch": _fused_batch_norm_torch}
"""Fused batch norm, by backend."""


def _convolution_torch(
    inputs: Any, kernel: Any, strides: tuple[int, int], padding: str, dilation: Any, groups: int, channels_first: bool
) -> Any:
    """Return the convolution of images; `None` for strided kernels larger than 1×1 with "same" padding.

    Keras's own convolution copies channels_last images twice: into channels_first, and back into PyTorch's
    channels_last memory format. A permuted view already has that format.
    """
    import torch

    images, weights = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel).permute(3, 2, 0, 1)
    if padding == "same" and tuple(strides) != (1, 1) and weights.shape[2:] != (1, 1):
        return None
    images = images if channels_first else images.permute(0, 3, 1, 2)
    if weights.shape[2:] == (1, 1):
        # Subsample first: in oneDNN 3.12, the gradient of a strided 1×1 convolution with fewer than 8 or 16 channels
        # writes out of bounds (oneDNN issue 6035).
        images, strides, padding = images[:, :, :: strides[0], :: strides[1]], (1, 1), "valid"
    outputs = torch.conv2d(images, weights, None, strides, padding, dilation, groups)
    return outputs if channels_first else outputs.permute(0, 2, 3, 1)


_in_loop = ContextVar("_in_loop", default=False)


@contextmanager
def inside_loop() -> Iterator[None]:
    """While this runs, convolutions know that they are in the body of a loop."""
    token = _in_loop.set(True)
    try:
        yield
    finally:
        _in_loop.reset(token)


def _convolution_jax(
    inputs: Any, kernel: Any, strides: tuple[int, int], padding: str, dilation: Any, groups: int, channels_first: bool
) -> Any:
    """Return the convolution of images in a loop on CPUs; `None` elsewhere.

    XLA's fast convolutions for CPUs need the usual order of dimensions. XLA transposes those of JAX's gradients into
    that order, but not in the body of a loop, where they are slow. So the gradient of this function transposes. It can
    be differentiated again, but not in forward mode (`jax.jvp`).
    """
    import jax

    is_plain = tuple(strides) == (1, 1) and set(dilation) == {1} and groups == 1 and not channels_first
    if not (is_plain and padding == "same" and _in_loop.get() and jax.default_backend() == "cpu"):
        return None
    inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel)
    before = [(size - 1) // 2 for size in kernel.shape[:2]]
    pads = [(k, size - 1 - k) for k, size in zip(before, kernel.shape[:2], strict=True)]

    def convolve(images: Any, kernel: Any, pads: Any) -> Any:
        return jax.lax.conv_general_dilated(images, kernel, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    @jax.custom_vjp
    def convolution(images: Any, kernel: Any) -> Any:
        return convolve(images, kernel, pads)

    def backward(saved: Any, gradient: Any) -> Any:
        images, kernel = saved
        flipped = jax.numpy.flip(kernel, (0, 1)).swapaxes(2, 3)
        by_images = convolve(gradient, flipped, [(after, before) for before, after in pads])
        by_kernel = convolve(images.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3), pads)
        return by_images, by_kernel.transpose(1, 2, 0, 3)

    convolution.defvjp(lambda images, kernel: (convolve(images, kernel, pads), (images, kernel)), backward)
    return convolution(inputs, kernel)


CONVOLUTION = {"torch": _convolution_torch, "jax": _convolution_jax}
"""Convolution of images, by backend. It returns `None` where Keras's own convolution is to be used."""
