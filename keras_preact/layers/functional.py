"""Units as pure functions of their input and the values of their variables."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.errors import InputError
from keras_preact.keras_private import (
    attach_mask,
    calling,
    direct_layers,
    initializer_of,
    is_autocast,
    layers_inside,
    own_state,
    own_trainable,
    reseed,
    seed_generators,
    trace,
)
from keras_preact.layers.composite import frozen_parts, set_frozen
from keras_preact.layers.copies import clone, same_custom_objects, without_names
from keras_preact.layers.native import eagerly


class PureUnits:
    """Units in sequence as a function of x and their variables' values, without side effects.

    In a loop or a checkpointed function x is a new tensor, without the mask that Keras attaches to it for layers inside
    the units, such as a batch norm. So `attached` is attached again.
    """

    def __init__(
        self,
        units: Sequence[keras.layers.Layer],
        variables: Sequence[keras.Variable],
        state: Sequence[keras.Variable],
        training: bool | None,
        mask: Any,
        attached: Any,
    ) -> None:
        self.units, self.variables, self.state = units, variables, state
        self.training, self.mask, self.attached = training, mask, attached
        self.has_losses = False
        """Whether the last call collected losses (activity regularization)."""
        self.assigned: list[int] = []
        """Indices of the variables that the last call assigned."""

    def __call__(self, x: Any, values: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        with _AssignmentsWithoutGradient(collect_losses=True) as scope:
            for variable, value in zip(self.variables, values, strict=True):
                scope.add_update((variable, value))
            if self.attached is not None:
                attach_mask(x, self.attached)
            for unit in self.units:
                x = call_unit(unit, x, self.training, self.mask)
            now = [scope.get_current_value(variable) for variable in self.variables]
            self.assigned = [i for i, (a, b) in enumerate(zip(now, values, strict=True)) if a is not b]
            self.has_losses = bool(scope.losses)
            loss = sum((ops.sum(ops.cast(loss, "float32")) for loss in scope.losses), ops.zeros((), "float32"))
            # Without `stop_gradient`, the backward pass of a loop computes zero gradients of the updates.
            updates = [ops.stop_gradient(scope.get_current_value(variable)) for variable in self.state]
            return x, updates, loss


class _AssignmentsWithoutGradient(keras.StatelessScope):
    """A stateless scope in which a weight that a layer assigns gets the gradient of its new value.

    Outside of any scope, TensorFlow and PyTorch do the same; JAX uses the gradient of the old value.
    """

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        before = self.get_current_value(variable)
        if before is not None and variable.trainable and keras.backend.backend() != "jax":
            value = ops.stop_gradient(value) + (before - ops.stop_gradient(before))
        super().add_update((variable, value))


def call_unit(unit: keras.layers.Layer, x: Any, training: bool | None, mask: Any) -> Any:
    """Call a unit with those of `training` and `mask` that it accepts; return y in the dtype of x."""
    parameters = inspect.signature(unit.call).parameters
    options = {"training": training} if "training" in parameters else {}
    if "mask" in parameters and mask is not None:
        options["mask"] = mask
    with calling(training):
        y = unit(x, **options)
    return y if y.dtype == x.dtype else ops.cast(y, x.dtype)


def build_unit(unit: keras.layers.Layer, input_shape: Any) -> None:
    """Build a unit and the layers inside it, which the default `build` of Keras does not build."""
    if type(unit).build is keras.layers.Layer.build and not all(layer.built for layer in layers_inside(unit)):
        # Trace `call`, as Keras does at the first call. Calling the unit would record it as a node of a model.
        with keras.name_scope(unit.name):
            keras.Operation.compute_output_spec(unit, keras.KerasTensor(input_shape, dtype=unit.compute_dtype))
    if not (isinstance(unit, keras.Model) and unit.built):  # a copy of a model with inputs is built, for any batch
        unit.build(input_shape)


def copy_frozen(source: keras.layers.Layer, unit: keras.layers.Layer) -> None:
    """Freeze a built unit, or layers inside it, as in another that may have drop path where this one has none."""
    if unit.trainable != source.trainable:
        unit.trainable = source.trainable
    frozen = {path for path, part in _inner_layers(source).items() if not part.trainable}
    parts = {id(part) for path, part in _inner_layers(unit).items() if path in frozen}
    set_frozen(unit, [index for index, part in enumerate(layers_inside(unit)) if id(part) in parts])


def _inner_layers(unit: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Return the layers inside a unit by their paths, with Keras's default names as in `named_variables`."""
    found: dict[str, keras.layers.Layer] = {}
    renumbered = Renumbering(unit)

    def add(layer: keras.layers.Layer, above: str) -> None:
        for part in direct_layers(layer):
            path = renumbered(f"{above}{part.name}/")
            while path in found:
                path += "_"
            found[path] = part
            add(part, f"{above}{part.name}/")

    add(unit, "")
    return found


def state_of(unit: keras.layers.Layer) -> list[keras.Variable]:
    """Return the unit's variables that are not weights: moving statistics, states of random generators.

    `non_trainable_variables` would include the kernels of frozen layers. No step changes these, and in mixed precision
    assigning them their own values would round them.
    """
    layers = [unit, *layers_inside(unit)]
    seeds = [generator.state for layer in layers for generator in seed_generators(layer)]
    return [*(variable for layer in layers for variable in own_state(layer)), *seeds]


def assigned_in_call(
    unit: keras.layers.Layer, variables: Sequence[keras.Variable], x: Any, training: bool | None
) -> list[int]:
    """Return the indices of those variables of a unit that a call assigns.

    The units of this package and Keras's layers assign their state in training, and nothing else. Other units may
    assign weights, as spectral normalization does, or draw random numbers at inference. These are traced.
    """
    if all(map(_is_ordinary, [unit, *layers_inside(unit)])):
        return _state_indices(unit, variables) if training else []
    step = PureUnits([unit], variables, [], training, None, None)
    specs = [keras.KerasTensor(variable.shape, variable.dtype) for variable in variables]
    trace(step, keras.KerasTensor(x.shape, x.dtype), specs)
    return step.assigned


def _state_indices(unit: keras.layers.Layer, variables: Sequence[keras.Variable]) -> list[int]:
    state = {id(variable) for variable in state_of(unit)}
    return [i for i, variable in enumerate(variables) if id(variable) in state]


def _is_ordinary(layer: keras.layers.Layer) -> bool:
    is_known = type(layer).__module__.split(".")[0] in ("keras", "keras_preact")
    return is_known and not isinstance(layer, (keras.Model, keras.layers.Wrapper, keras.layers.RNN))


class Template:
    """The one unit that a rolled stack runs, with the values of each unit's variables in turn.

    Not a Keras object, so that Keras does not find the unit's own variables in the stack. These are never used.
    """

    def __init__(self, make_unit: Callable[[], keras.layers.Layer], input_shape: Any, compute_dtype: str) -> None:
        # In a stateless scope, Keras stores a variable's initializer instead of its value. The unit is created in it
        # as well, because some layers, such as Dropout, create variables before they are built.
        with keras.StatelessScope() as scope:
            self.unit = make_unit()
            try:
                build_unit(self.unit, input_shape)
            except ValueError as error:
                if "stateless scope" not in str(error):
                    raise
                raise InputError(
                    f"{self.unit.name} creates variables that have values at once, which units of a rolled stack "
                    "cannot have; use rolled=False"
                ) from None
            named = named_variables(self.unit)
            self.initializers = [initializer_of(variable) for variable in named.values()]
            self.is_assigned_in_build = any(scope.get_current_value(v) is not None for v in named.values())
            """Whether `build` assigned values, so that initializers alone do not determine the initial values."""
        self.names, self.variables = list(named), list(named.values())
        self.state = _state_indices(self.unit, self.variables)
        """Indices of the variables that are not weights: moving statistics, states of random generators."""
        layers = [self.unit, *layers_inside(self.unit)]
        owners = {id(v): layer.compute_dtype for layer in layers for v in (*own_trainable(layer), *own_state(layer))}
        self.autocast = [
            is_autocast(v) and "float" in v.dtype and owners.get(id(v)) == compute_dtype for v in self.variables
        ]
        """For each variable, whether its layer casts it to `compute_dtype`; those of normalization stay."""
        self._assigned: dict[tuple[bool, ...], list[int]] = {}

    def assigned(self, x: Any, training: bool | None) -> list[int]:
        """Return the indices of the variables that a call of the unit assigns."""
        layers = [self.unit, *layers_inside(self.unit)]
        key = (bool(training), *(layer.trainable for layer in layers))  # a frozen norm assigns nothing
        if key not in self._assigned:
            self._assigned[key] = assigned_in_call(self.unit, self.variables, x, training)
        return self._assigned[key]

    def stacked_initializer(self, index: int, n: int, values: Sequence[Any] | None = None) -> Callable[..., Any]:
        """Return an initializer of the variable's values in n units, stacked along a new first axis.

        Args:
            index: of the variable.
            values: the n values, if they do not come from the variable's initializer.
        """
        if values is not None:
            return partial(_constant, values)
        if self.variables[index].name == "seed_generator_state":
            return partial(_different_seeds, self.initializers[index], n)
        return partial(_stacked_draws, self.initializers[index], n)


_SAME_EACH_TIME = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)


def _constant(values: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    return ops.convert_to_tensor(np.asarray(values), dtype=dtype)


def _stacked_draws(initializer: Any, n: int, shape: Sequence[int], dtype: Any = None) -> Any:
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
    """Return whether one draw of n kernels is like n separate draws. It is much faster."""
    if type(initializer).__call__ is not keras.initializers.VarianceScaling.__call__ or len(unit_shape) < 2:
        return False
    has_seed = initializer.get_config().get("seed", 0) is not None  # separate draws would be equal
    return not has_seed and getattr(initializer, "input_axes", None) is None


def _different_seeds(initializer: Any, n: int, shape: Sequence[int], dtype: Any = None) -> Any:
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


def regularizer_per_unit(regularizer: Any) -> Any:
    """Return the sum of a regularizer over the units' slices of a stacked variable."""
    if regularizer is None or type(regularizer) in _SUMS:
        return regularizer
    return lambda value: sum(regularizer(value[k]) for k in range(value.shape[0]))


_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
"""Regularizers that are sums over all elements, so that a stack needs no loop over its units."""


class PerUnit(keras.constraints.Constraint):
    """A constraint that applies to each unit's slice of a stacked variable."""

    def __init__(self, constraint: Any) -> None:
        self.constraint = constraint

    def __call__(self, value: Any) -> Any:
        return ops.stack([self.constraint(value[k]) for k in range(value.shape[0])])


def variable_arguments(unit: keras.layers.Layer) -> dict[str, tuple[str, ...]]:
    """Return the unit's arguments that are stored in variables, each with the names of those variables."""
    return getattr(unit, "variable_arguments", {})


def argument_variables(unit: keras.layers.Layer) -> set[str]:
    """Return the names, as in `named_variables`, of a unit's variables that hold arguments instead of weights."""
    found: set[int] = set()
    for part in [unit, *layers_inside(unit)]:
        names = {name for names in variable_arguments(part).values() for name in names}
        found |= {id(variable) for name, variable in named_variables(part).items() if name in names} if names else set()
    return {name for name, variable in named_variables(unit).items() if id(variable) in found}


def check_vary(unit: keras.layers.Layer, vary: Mapping[str, Sequence[Any]], repeats: int, rolled: bool) -> None:
    """Check the arguments that differ between the units of a stack.

    Raises:
        InputError: there is no such argument, not one value per unit, or a value that the unit refuses; or a rolled
            stack cannot vary the argument.
    """
    for name, values in vary.items():
        if len(values) != repeats:
            raise InputError(f"vary has {len(values)} values of {name} for {repeats} units; use one per unit")
        if name not in unit.get_config():
            raise InputError(f"vary names {name}, which is not an argument of {type(unit).__name__}; leave it out")
        if rolled and name not in variable_arguments(unit):
            known = ", ".join(variable_arguments(unit)) or "none"
            raise InputError(
                f"{name} cannot differ between the units of a rolled stack; use rolled=False "
                f"(arguments that can differ: {known})"
            )
        if rolled:
            are_numbers = all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
            for value in (min(values), max(values)) if are_numbers else values:
                clone(unit, **{name: value})  # refuses it, as an unrolled unit would


def named_variables(unit: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Return the unit's variables by their path below the unit, such as "conv1/kernel".

    Keras numbers default names across the whole process; here, they are numbered within the unit.
    """
    named: dict[str, keras.Variable] = {}
    is_state = {id(variable) for variable in state_of(unit)}
    renumbered = Renumbering(unit)
    # Not sorted by `trainable`: files store this order, so it must not depend on which layers are frozen.
    for variable in sorted(unit.variables, key=lambda variable: id(variable) in is_state):
        name = renumbered(_path_below(unit, variable))
        while name in named:
            name += "_"
        named[name] = variable
    return named


class Renumbering:
    """A function that renumbers Keras's default names in paths below a unit, in order of appearance."""

    def __init__(self, unit: keras.layers.Layer) -> None:
        self.kinds: dict[str, str] = {}
        """For each default name: the name without its number."""
        for part in layers_inside(unit):
            kind = re.sub(r"_\d+$", "", part.name)
            if kind.replace("_", "") == type(part).__name__.replace("_", "").lower():
                self.kinds[part.name] = kind
        self.names: dict[str, dict[str, str]] = {}
        """For each path and kind: the new name of each default name."""

    def __call__(self, path: str) -> str:
        *layers, variable = path.split("/")
        below = ""
        for name in layers:
            kind = "seed_generator" if re.fullmatch(r"seed_generator_\d+", name) else self.kinds.get(name)
            if kind is not None:
                names = self.names.setdefault(f"{below}{kind}", {})
                name = names.setdefault(name, f"{kind}_{len(names)}" if names else kind)
            below += f"{name}/"
        return below + variable


def _path_below(unit: keras.layers.Layer, variable: keras.Variable) -> str:
    """Return a variable's path below the unit. One created in the unit's constructor has only the parent's path."""
    path = unit.path or unit.name  # Keras sets the path when it builds the layer
    prefixes = (path, unit.name, path.rpartition("/")[0])
    prefix = next((prefix for prefix in prefixes if variable.path.startswith(f"{prefix}/")), "")
    return str(variable.path).removeprefix(f"{prefix}/")


def same_but_for_weights(unit: keras.layers.Layer, other: keras.layers.Layer) -> bool:
    """Return whether two built layers compute and train the same function, apart from their variables' values."""
    free = {"name", *variable_arguments(unit)}
    configs = [{k: v for k, v in without_names(layer.get_config()).items() if k not in free} for layer in (unit, other)]
    shapes = [{name: v.shape for name, v in named_variables(layer).items()} for layer in (unit, other)]
    frozen = [frozen_parts(layer) for layer in (unit, other)]
    is_alike = type(unit) is type(other) and all(pair[0] == pair[1] for pair in (configs, shapes, frozen))
    return is_alike and same_custom_objects(unit, other)
