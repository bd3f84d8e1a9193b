"""Units as pure functions of their input and of the values of their variables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_preact.keras_private import initializer_of, is_autocast, layers_inside, own_state, seed_generators
from keras_preact.layers.composite import frozen_parts, set_frozen
from keras_preact.layers.copies import nameless


class PureUnits:
    """Units in a row as a function of x and of their variables' values, which changes nothing outside."""

    def __init__(
        self,
        units: Sequence[keras.layers.Layer],
        variables: Sequence[keras.Variable],
        state: Sequence[keras.Variable],
        training: bool | None,
        mask: Any,
    ) -> None:
        self.units, self.variables, self.state = units, variables, state
        self.training, self.mask = training, mask
        self.has_losses = False
        """Whether a call has met losses (activity regularization)."""

    def __call__(self, x: Any, values: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        with keras.StatelessScope(collect_losses=True) as scope:
            for variable, value in zip(self.variables, values, strict=True):
                scope.add_update((variable, value))
            for unit in self.units:
                x = call_unit(unit, x, self.training, self.mask)
            self.has_losses = bool(scope.losses)
            loss = sum((ops.cast(loss, "float32") for loss in scope.losses), ops.zeros((), "float32"))
            return x, [scope.get_current_value(variable) for variable in self.state], loss


def call_unit(unit: keras.layers.Layer, x: Any, training: bool | None, mask: Any) -> Any:
    takes = inspect.signature(unit.call).parameters
    options = {"training": training} if "training" in takes else {}
    if "mask" in takes and mask is not None:
        options["mask"] = mask
    return unit(x, **options)


def build_unit(unit: keras.layers.Layer, input_shape: Any) -> None:
    """Build a unit with the layers in it, of which Keras's own `build` knows nothing."""
    if type(unit).build is keras.layers.Layer.build and not all(layer.built for layer in layers_inside(unit)):
        # What is in it is built by being called, as Keras does at a first call; not by calling the unit, which Keras
        # would note down as a use of it in a model.
        with keras.name_scope(unit.name):
            keras.Operation.compute_output_spec(unit, keras.KerasTensor(input_shape, dtype=unit.compute_dtype))
    unit.build(input_shape)


def freeze_alike(unit: keras.layers.Layer, other: keras.layers.Layer) -> None:
    """Freeze a built unit, or layers in it, as another one like it."""
    if unit.trainable != other.trainable:
        unit.trainable = other.trainable
    set_frozen(unit, frozen_parts(other))


def state_of(unit: keras.layers.Layer) -> list[keras.Variable]:
    """Return the unit's variables that are no weights: moving statistics, states of random generators.

    Not its `non_trainable_variables`: where a layer is frozen, its kernels are among those. No step changes them, and
    in mixed precision what would be assigned to them is what they were, rounded.
    """
    layers = [unit, *layers_inside(unit)]
    seeds = [generator.state for layer in layers for generator in seed_generators(layer)]
    return [*(variable for layer in layers for variable in own_state(layer)), *seeds]


class Template:
    """The one unit that a rolled stack runs, with the values of each unit's variables in turn.

    Not a Keras object, so that Keras does not find the unit's own variables, which are never used, in the stack.
    """

    def __init__(self, make_unit: Callable[[], keras.layers.Layer], input_shape: Any) -> None:
        # In a stateless scope, Keras notes how a variable will begin before it makes its value. The unit is made in
        # it, too: some layers, Dropout for one, make variables before they are built.
        with keras.StatelessScope():
            self.unit = make_unit()
            build_unit(self.unit, input_shape)
            named = named_variables(self.unit)
            self.initializers = [initializer_of(variable) for variable in named.values()]
        self.names, self.variables = list(named), list(named.values())
        state = {id(variable) for variable in state_of(self.unit)}
        self.state = [i for i, variable in enumerate(self.variables) if id(variable) in state]
        """Which variables are no weights: moving statistics, states of random generators."""
        self.autocast = [is_autocast(v) and "float" in v.dtype for v in self.variables]
        """Which variables the unit uses in its compute dtype: kernels, but not what normalization is made of."""


def variable_arguments(unit: keras.layers.Layer) -> dict[str, tuple[str, ...]]:
    """Return the unit's arguments that it keeps in variables, each with their names."""
    return getattr(unit, "variable_arguments", {})


def named_variables(unit: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Return the unit's variables by their path below the unit: "conv1/kernel".

    Where Keras has named a layer, its number is its place among those of its kind in the unit, not in the process.
    """
    named: dict[str, keras.Variable] = {}
    is_state = {id(variable) for variable in state_of(unit)}
    numbered = _Numbered(unit)
    # Not by `trainable`: the order must not depend on what is frozen, because files have it.
    for variable in sorted(unit.variables, key=lambda variable: id(variable) in is_state):
        name = numbered(_path_below(unit, variable))
        while name in named:
            name += "_"
        named[name] = variable
    return named


class _Numbered:
    """Numbers Keras's automatic names in paths below a unit anew, in the order in which they come.

    Keras counts layers of a kind, and random generators, through the whole process.
    """

    def __init__(self, unit: keras.layers.Layer) -> None:
        self.kinds: dict[str, str] = {}
        """Of each automatic name: the name without a number."""
        for part in layers_inside(unit):
            kind = re.sub(r"_\d+$", "", part.name)
            if kind.replace("_", "") == type(part).__name__.replace("_", "").lower():
                self.kinds[part.name] = kind
        self.names: dict[str, dict[str, str]] = {}
        """Below each path, of each name: the one with its new number."""

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
    """Return a variable's path below the unit. One made in the unit's constructor knows of no more than its parent."""
    path = unit.path or unit.name  # Keras gives the path when it builds the layer
    prefixes = (path, unit.name, path.rpartition("/")[0])
    prefix = next((prefix for prefix in prefixes if variable.path.startswith(f"{prefix}/")), "")
    return str(variable.path).removeprefix(f"{prefix}/")


def same_but_for_weights(unit: keras.layers.Layer, other: keras.layers.Layer) -> bool:
    """Return whether two built layers compute and train the same function of the same variables."""
    free = {"name", *variable_arguments(unit)}
    configs = [{k: v for k, v in nameless(layer.get_config()).items() if k not in free} for layer in (unit, other)]
    shapes = [{name: v.shape for name, v in named_variables(layer).items()} for layer in (unit, other)]
    frozen = [frozen_parts(layer) for layer in (unit, other)]
    return type(unit) is type(other) and all(pair[0] == pair[1] for pair in (configs, shapes, frozen))
