"""Activation checkpointing (rematerialization): activations are computed again in the backward pass, not stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import check_choice

Step = Callable[[Any, Sequence[Any]], "tuple[Any, list[Any], Any]"]
"""One unit as a function: (x, its variables' values) → (y, new values of its state, sum of its losses)."""
REMATS = ("none", "unit", "segment")


def check_remat(remat: bool | str) -> str:
    """Return what the backward pass computes again, by its name.

    Raises:
        InputError: an unknown name.

    >>> check_remat(True)
    'segment'
    """
    return ("segment" if remat else "none") if isinstance(remat, bool) else check_choice("remat", remat, REMATS)


def rematerialized(step: Step) -> Step:
    """Return `step` such that its backward pass computes its insides again instead of keeping them.

    `keras.remat` would do, but for updates: it runs those twice on TensorFlow and leaks them on JAX. Here they
    are results of the step, and are assigned outside it.
    """
    if keras.backend.backend() == "tensorflow":
        return partial(_rematerialized_tensorflow, step)
    if keras.backend.backend() == "jax":
        import jax

        return jax.checkpoint(step)
    return partial(_rematerialized_torch, step)


def _rematerialized_torch(step: Step, x: Any, values: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    return keras.remat(step)(x, unchanging(values))


def unchanging(values: Sequence[Any]) -> list[Any]:
    """Return values that stay as they are when a step changes their variables: in place, on PyTorch.

    The backward pass reads them later. What is differentiated does not change before it.
    """
    return [value if getattr(value, "requires_grad", False) else ops.copy(value) for value in values]


def _rematerialized_tensorflow(step: Step, x: Any, values: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    """`tf.recompute_grad` for a step: that function takes no integers, and the states of random generators are."""
    import tensorflow as tf

    values = [tf.convert_to_tensor(value) for value in values]  # now: the backward pass must not read them anew
    floating = [i for i, value in enumerate(values) if value.dtype.is_floating]

    def run(x: Any, *floats: Any) -> tuple[Any, list[Any], Any]:
        merged = list(values)
        for i, value in zip(floating, floats, strict=True):
            merged[i] = value
        return step(x, merged)

    @tf.custom_gradient
    def keep_inputs_only(*inputs: Any) -> Any:
        y, updates, loss = run(*inputs)

        def gradient(*upstream: Any) -> Any:
            # Not before the gradient is there; and TensorFlow must not see that it has computed this once already.
            with tf.control_dependencies(upstream[:2]):
                again = [tf.identity(value) for value in inputs]
            with tf.GradientTape() as tape:
                tape.watch(again)
                y, _, loss = run(*again)
            return tape.gradient([y, loss], again, upstream[:2], unconnected_gradients=tf.UnconnectedGradients.ZERO)

        return (y, loss, *updates), gradient

    y, loss, *updates = keep_inputs_only(x, *(values[i] for i in floating))
    return y, updates, loss
