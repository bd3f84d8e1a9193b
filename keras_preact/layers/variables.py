"""The variables of a unit: their names below the unit, and which of them are state or arguments instead of weights."""

from __future__ import annotations

import re
from collections.abc import Sequence

import keras

from keras_preact.keras_private import layers_inside, own_state, seed_generators


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


def is_random_state(name: str) -> bool:
    """Return whether a name of `named_variables` is that of a random generator's state.

    >>> is_random_state("drop_path/seed_generator/seed_generator_state"), is_random_state("mask")
    (True, False)
    """
    return name.rstrip("_").endswith("seed_generator_state")  # a rolled stack joins the path with underscores


class Renumbering:
    """A function that renumbers Keras's default names in paths below a unit, in order of appearance."""

    def __init__(self, unit: keras.layers.Layer) -> None:
        self.kinds: dict[str, str] = {}
        """For each default name: the name without its number."""
        for part in layers_inside(unit):
            kind = re.sub(r"_\d+$", "", part.name)
            own_name = re.sub(r"^(forward|backward)_", "", kind)  # as `Bidirectional` names its layers
            if own_name.replace("_", "") == type(part).__name__.replace("_", "").lower():
                self.kinds[part.name] = kind
        self.names: dict[str, dict[str, str]] = {}
        """For each path and kind: the new name of each default name."""

    def __call__(self, path: str) -> str:
        *layers, variable = path.split("/")
        below = ""
        for name in layers:
            kind = "seed_generator" if re.fullmatch(r"seed_generator(_\d+)?", name) else self.kinds.get(name)
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
    if not prefix:  # one in a stack's unit that is a functional model, which has no path of its own
        _, is_below, rest = f"/{variable.path}".partition(f"/{unit.name}/")
        return rest if is_below else str(variable.path)
    return str(variable.path).removeprefix(f"{prefix}/")


def state_of(unit: keras.layers.Layer) -> list[keras.Variable]:
    """Return the unit's variables that are not weights: moving statistics, states of random generators.

    `non_trainable_variables` would include the kernels of frozen layers. No step changes these, and in mixed precision
    assigning them their own values would round them.
    """
    layers = [unit, *layers_inside(unit)]
    seeds = [generator.state for layer in layers for generator in seed_generators(layer)]
    return [*(variable for layer in layers for variable in own_state(layer)), *seeds]


def state_indices(unit: keras.layers.Layer, variables: Sequence[keras.Variable]) -> list[int]:
    state = {id(variable) for variable in state_of(unit)}
    return [i for i, variable in enumerate(variables) if id(variable) in state]


def variable_arguments(unit: keras.layers.Layer) -> dict[str, tuple[str, ...]]:
    """Return the unit's arguments that are stored in variables, each with the names of those variables."""
    return getattr(unit, "variable_arguments", {})


def argument_variables(unit: keras.layers.Layer) -> set[str]:
    """Return the names, as in `named_variables`, of a unit's variables that hold arguments instead of weights."""
    found: set[int] = set()
    for part in [unit, *layers_inside(unit)]:
        names = {name for names in variable_arguments(part).values() for name in names}
        found |= {id(variable) for name, variable in named_variables(part).items() if name in names} if names else set()
        if part is not unit and hasattr(part, "unit_variables"):  # a stack; if rolled, it holds its units' variables
            inner = argument_variables(part.own_unit(0))
            found |= {id(variable) for name, (variable, _) in part.unit_variables(0).items() if name in inner}
    return {name for name, variable in named_variables(unit).items() if id(variable) in found}
