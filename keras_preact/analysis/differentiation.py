"""Exact derivatives on any backend: the only place where the analysis calls a backend directly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras


def without_graph(x: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which PyTorch stores nothing for gradients, unless x asks for one.

    Otherwise, all activations would stay in memory, since the weights ask for gradients.
    """
    if keras.backend.backend() != "torch" or getattr(x, "requires_grad", False):
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def vjp(function: Callable[[Any], Any], x: Any, upstream: Any) -> Any:
    """Return upstreamᵀ ∂function/∂x at x by automatic differentiation, which `keras.ops` does not have.

    Args:
        function: maps one tensor to one tensor.
        x: the point at which to differentiate.
        upstream: a tensor of the shape and dtype of function(x).

    Returns:
        A tensor of the shape of x; zeros if the function does not depend on x.

    Example:

    >>> x = keras.ops.array([3.0, 4.0])
    >>> [float(g) for g in vjp(lambda x: x * x, x, keras.ops.array([1.0, 10.0]))]
    [6.0, 80.0]
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.identity(x)  # a copy: the same tensor held by the function stays a constant
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    if backend == "jax":
        import jax

        return jax.vjp(function, x)[1](upstream)[0]
    if backend == "torch":
        import torch

        with torch.enable_grad():  # the program may have turned gradients off
            x = x.detach().requires_grad_()
            y = function(x)
            gradient = torch.autograd.grad(y, x, upstream, allow_unused=True)[0] if y.requires_grad else None
        return torch.zeros_like(x) if gradient is None else gradient
    raise NotImplementedError(f"the {backend} backend has no gradients; use tensorflow, jax or torch")
