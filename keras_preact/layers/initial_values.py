"""Initial values of the variables of n equal units, each drawn as in a separate unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.keras_private import layers_inside, reseed, seed_generators
from keras_preact.layers.native import eagerly

_SAME_EACH_TIME = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)


def constant_values(values: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    return ops.convert_to_tensor(np.asarray(values), dtype=dtype)


def stacked_draws(initializer: Any, n: int, shape: Sequence[int], dtype: Any = None) -> Any:
    unit_shape = tuple(shape[1:])
    if isinstance(initializer, _SAME_EACH_TIME):
        # Stacked, not broadcast: on PyTorch, the units' slices must not share memory.
        return ops.stack([initializer(unit_shape, dtype=dtype)] * n)
    if _draws_at_once(initializer, unit_shape):
        # Keras counts the new axis as part of a kernel's size and divides the scale by n.
        settings = {"mode": initializer.mode, "distribution": initializer.distribution}
        return keras.initializers.VarianceScaling(initializer.scale * n, **settings)(shape, dtype=dtype)
    values = []
    for _ in range(n):
        # A Keras initializer repeats its values; a clone draws new ones, unless it has an explicit seed.
        fresh = initializer.clone() if hasattr(initializer, "clone") else initializer
        values.append(fresh(unit_shape, dtype=dtype))
    return ops.stack(values)


def _draws_at_once(initializer: Any, unit_shape: Sequence[int]) -> bool:
    """Return whether the initializer can draw n kernels in one call, from the same distribution and much faster."""
    if type(initializer).__call__ is not keras.initializers.VarianceScaling.__call__ or len(unit_shape) < 2:
        return False
    has_seed = initializer.get_config().get("seed", 0) is not None  # separate draws would be equal
    return not has_seed and getattr(initializer, "input_axes", None) is None


def different_seeds(initializer: Any, n: int, shape: Sequence[int], dtype: Any = None) -> Any:
    first = eagerly(lambda: ops.convert_to_numpy(initializer(tuple(shape[1:]), dtype=dtype)))
    states = [[_seed_of_unit(k, int(first[0])), 0] for k in range(1, n)]
    return ops.convert_to_tensor(np.array([first, *states]), dtype=dtype)


def _seed_of_unit(k: int, seed: int) -> int:
    """Return the seed of unit k: the first has the given one; the others are practically independent of it."""
    return int(np.random.SeedSequence([seed, k]).generate_state(1)[0] % 10**9) if k else seed


def separate_seeds(units: Sequence[keras.layers.Layer]) -> None:
    """Set the explicit seeds of built, equal units as in a rolled stack, so that the units draw different values."""
    for k, unit in enumerate(units):
        for generator in (g for layer in [unit, *layers_inside(unit)] for g in seed_generators(layer)):
            # Keras's seed is `None` unless explicit. The unit may be in a stack in a stack.
            seed = getattr(generator, "seed_in_stack", generator.get_config()["seed"])
            if k and seed is not None:
                generator.seed_in_stack = _seed_of_unit(k, seed)
                reseed(generator, generator.seed_in_stack)
