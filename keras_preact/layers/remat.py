"""Activation checkpointing (rematerialization): activations are recomputed in the backward pass instead of stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_choice

StepOutputs = tuple[Any, list[Any], Any]
"""The output y of a unit, new values of its state, and the sum of its losses."""
Step = Callable[[Any, Sequence[Any]], StepOutputs]
"""A unit as a function of x and its variables' values."""
REMATS = ("none", "unit", "segment")


def check_remat(remat: bool | str) -> str:
    """Return the name in `REMATS`; `True` means "segment", `False` means "none".

    Raises:
        InputError: an unknown name.

    >>> check_remat(True)
    'segment'
    """
    return ("segment" if remat else "none") if isinstance(remat, bool) else check_choice("remat", remat, REMATS)


def rematerialized(step: Step, in_loop: bool = False) -> Step:
    """Return `step` with activations that are recomputed in the backward pass instead of stored.

    `keras.remat` runs state updates twice on TensorFlow and leaks them on JAX. Here updates are results of the step,
    assigned outside it.

    Args:
        step: the step.
        in_loop: whether it runs in a loop or contains one. Default `False`.
    """
    if keras.backend.backend() == "tensorflow":
        return partial(_rematerialized_tensorflow, step, in_loop)
    if keras.backend.backend() == "jax":
        import jax

        return jax.checkpoint(step)
    return partial(_rematerialized_torch, step)


def _rematerialized_torch(step: Step, x: Any, values: Sequence[Any]) -> StepOutputs:
    return keras.remat(step)(x, snapshots(values))


def snapshots(values: Sequence[Any]) -> list[Any]:
    """Return values that do not change when a unit assigns their variables, which PyTorch does in place.

    The backward pass reads them later.
    """
    return [ops.copy(value) for value in values]


def _rematerialized_tensorflow(step: Step, in_loop: bool, x: Any, values: Sequence[Any]) -> StepOutputs:
    """`tf.recompute_grad` for a step: that function accepts no integers, such as the states of random generators."""
    import tensorflow as tf

    values = [tf.convert_to_tensor(value) for value in values]  # read now, not again in the backward pass
    floating = [i for i, value in enumerate(values) if value.dtype.is_floating]

    def run(x: Any, *floats: Any) -> StepOutputs:
        merged = list(values)
        for i, value in zip(floating, floats, strict=True):
            merged[i] = value
        return step(x, merged)

    @tf.custom_gradient
    def store_inputs_only(*inputs: Any) -> Any:
        y, updates, loss = run(*inputs)
        _refuse_captures(tf.compat.v1.get_default_graph())

        def gradient(*upstream: Any, variables: Sequence[Any] | None = None) -> Any:
            # The copies delay the recomputation until the upstream gradient exists. They also prevent TensorFlow from
            # reusing the forward pass.
            with tf.control_dependencies(upstream[:2]):
                copies = [tf.identity(value) for value in inputs]
            others = list(variables or [])  # that the unit only reads, such as those of a layer it shares
            with tf.GradientTape() as tape:
                tape.watch(copies)
                y, _, loss = run(*copies)
            zero = tf.UnconnectedGradients.ZERO
            first = tape.gradient([y, loss], [*copies, *others], upstream[:2], unconnected_gradients=zero)
            if in_loop and not tf.executing_eagerly():
                first = [_only_first(each) for each in first]
            own, of_others = first[: len(copies)], first[len(copies) :]
            return own if variables is None else (own, of_others)

        return (y, loss, *updates), gradient

    y, loss, *updates = store_inputs_only(x, *(values[i] for i in floating))
    return y, updates, loss


def _only_first(gradient: Any) -> Any:
    """Return a gradient that cannot be differentiated again.

    In a recomputed loop, TensorFlow's tape loses the inputs of batch norm's gradient, and the second derivative would
    be wrong.
    """
    import tensorflow as tf

    def refuse(*upstream: Any) -> Any:
        raise InputError(
            "TensorFlow computes wrong second derivatives of a rolled stack with remat; use remat=False or rolled=False"
        )

    return tf.custom_gradient(lambda value: (tf.identity(value), refuse))(gradient)


def _refuse_captures(graph: Any) -> None:
    """Refuse a loop's step that uses constant tensors or variables of the program: TensorFlow cannot compute its
    gradient.

    It adds them to the gradient's graph, and then finds that they are not loop invariants.

    Raises:
        InputError: the step uses one.
    """
    if type(graph).__name__ != "WhileBodyFuncGraph":
        return
    captured = [tensor for tensor, _ in graph.captures]
    if any(tensor.dtype == "resource" for tensor in captured):
        raise InputError(
            "a unit reads a variable that is not its own, which TensorFlow cannot recompute in a loop; use remat=False "
            "or rolled=False"
        )
    if any(
        hasattr(tensor, "numpy") and not hasattr(tensor, "assign") and tensor.dtype.is_numpy_compatible
        for tensor in captured
    ):
        raise InputError(
            "a unit uses a constant tensor, which TensorFlow cannot recompute in a loop; use a Python number or a "
            "NumPy array instead, or remat=False or rolled=False"
        )
