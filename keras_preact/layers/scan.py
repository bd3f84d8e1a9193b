"""The loop over the stacked weights of equal units, on each backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_preact.layers.native import inside_loop
from keras_preact.layers.remat import Step, StepOutputs, rematerialized, snapshots

Specs = Sequence[tuple[Any, Any]]
"""Shape and dtype of each update of a step."""


def run_units(
    step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs, remat: str, first: Step | None = None
) -> StepOutputs:
    """Run `loop` with a unit as its step and the rematerialization of `REMATS`.

    Args:
        first: the step of the first unit, if it differs from `step`.
    """
    if first is not None:
        return _run_first(first, step, x, values, n, specs, remat)
    if remat == "segment":
        return loop_over_segments(step, x, values, n, specs, length=math.isqrt(n))
    return loop(rematerialized(step, in_loop=True) if remat == "unit" else step, x, values, n, specs)


def _run_first(first: Step, step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs, remat: str) -> StepOutputs:
    run = first if remat == "none" else rematerialized(first, in_loop=True)
    x, updates, loss = run(x, [value[0] for value in values])
    updates = [update[None] for update in updates]
    if n > 1:
        x, others, rest = run_units(step, x, [value[1:] for value in values], n - 1, specs, remat)
        updates, loss = [ops.concatenate(parts) for parts in zip(updates, others, strict=True)], loss + rest
    return x, updates, loss


def loop(step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs) -> StepOutputs:
    """Run `step` n times, the k-th time with slice k of each value; return x, stacked updates and the total loss."""
    run = {"tensorflow": _loop_tensorflow, "jax": _loop_scan}.get(keras.backend.backend(), _loop_unrolled)
    return run(step, x, values, n, specs)


def _loop_tensorflow(step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs) -> StepOutputs:
    """The loop as `tf.while_loop`; on TensorFlow, `keras.ops.scan` fails if updates and x differ in shape.

    Weights are read from TensorArrays: the gradient of `value[k]` would fill a whole stack with zeros in each step.
    """
    import tensorflow as tf

    weights = _Packed([v.dtype.name if v.shape.rank == 2 else None for v in values], [v.shape[1:] for v in values])
    values = weights.pack(values)
    arrays = [tf.TensorArray(v.dtype, size=n, element_shape=v.shape[1:]).unstack(v) for v in values]
    state = _Packed([dtype if len(shape) == 1 else None for shape, dtype in specs], [shape for shape, _ in specs])
    collected = tuple(tf.TensorArray(dtype, size=n, element_shape=shape) for shape, dtype in state.pack_specs(specs))

    def body(k: Any, x: Any, loss: Any, collected: Any) -> Any:
        y, updates, unit_loss = step(x, weights.unpack([array.read(k) for array in arrays]))
        y.set_shape(x.shape)
        updates = state.pack(updates)
        collected = tuple(array.write(k, update) for array, update in zip(collected, updates, strict=True))
        return k + 1, y, loss + unit_loss, collected

    start = (tf.constant(0), tf.convert_to_tensor(x), tf.constant(0.0), collected)
    _, x, loss, collected = tf.while_loop(lambda k, *_: k < n, body, start, maximum_iterations=n)
    return x, state.unpack([array.stack() for array in collected]), loss


class _Packed:
    """Concatenates vectors of the same dtype, because each TensorArray costs several operations per unit.

    Args:
        kinds: for each tensor, its dtype if it is a vector, else `None`.
        shapes: of each tensor in one unit.
    """

    def __init__(self, kinds: Sequence[str | None], shapes: Sequence[Any]) -> None:
        by_kind: dict[str, list[int]] = {}
        for i, kind in enumerate(kinds):
            by_kind.setdefault(f"tensor {i}" if kind is None else kind, []).append(i)
        self.groups = list(by_kind.values())
        self.sizes = [[int(shapes[i][0]) for i in group] if len(group) > 1 else [] for group in self.groups]

    def pack(self, tensors: Sequence[Any]) -> list[Any]:
        return [ops.concatenate([tensors[i] for i in g], axis=-1) if len(g) > 1 else tensors[g[0]] for g in self.groups]

    def pack_specs(self, specs: Specs) -> list[tuple[Any, Any]]:
        joined = [(sum(sizes),) if sizes else specs[g[0]][0] for g, sizes in zip(self.groups, self.sizes, strict=True)]
        return [(shape, specs[g[0]][1]) for g, shape in zip(self.groups, joined, strict=True)]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        tensors: dict[int, Any] = {}
        for tensor, group, sizes in zip(packed, self.groups, self.sizes, strict=True):
            parts = tf.split(tensor, sizes, axis=-1) if sizes else [tensor]  # `ops.split` adds 20 operations
            tensors.update(zip(group, parts, strict=True))
        return [tensors[i] for i in sorted(tensors)]


def _loop_scan(step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs) -> StepOutputs:
    def body(carry: Any, values: Any) -> Any:
        x, loss = carry
        y, updates, unit_loss = step(x, values)
        return (y, loss + unit_loss), updates

    with inside_loop():
        (x, loss), updates = ops.scan(body, (x, ops.zeros((), "float32")), list(values), length=n)
    return x, updates, loss


def _loop_unrolled(step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs) -> StepOutputs:
    loss, updates = ops.zeros((), "float32"), []
    # Unstacked, because the gradient of `value[k]` is a whole stack of zeros.
    units = [ops.unstack(value, n) for value in snapshots(values)]
    for k in range(n):
        x, unit_updates, unit_loss = step(x, [value[k] for value in units])
        updates.append(unit_updates)
        loss = loss + unit_loss
    return x, [ops.stack(update) for update in zip(*updates, strict=True)], loss


def loop_over_segments(step: Step, x: Any, values: Sequence[Any], n: int, specs: Specs, length: int) -> StepOutputs:
    """Run `loop` over segments of `length` steps, each rematerialized in the backward pass, then over the rest."""
    segments, rest = divmod(n, length)
    cut = segments * length

    def segment(units: int) -> Step:
        return rematerialized(lambda x, values: loop(step, x, values, units, specs), in_loop=True)

    whole = [ops.reshape(value[:cut], (segments, length, *value.shape[1:])) for value in values]
    x, updates, loss = loop(segment(length), x, whole, segments, [((length, *shape), dtype) for shape, dtype in specs])
    updates = [ops.reshape(update, (cut, *update.shape[2:])) for update in updates]
    if rest:
        x, rest_updates, rest_loss = segment(rest)(x, [value[cut:] for value in values])
        updates = [ops.concatenate(parts) for parts in zip(updates, rest_updates, strict=True)]
        loss = loss + rest_loss
    return x, updates, loss
