"""The one unit that a rolled stack runs in its loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import (
    forgotten_on_error,
    initializer_of,
    is_autocast,
    layers_inside,
    own_state,
    own_trainable,
    stored_dtype,
    without_layouts,
)
from keras_preact.layers.functional import assigned_in_call, build_unit
from keras_preact.layers.initial_values import constant_values, different_seeds, stacked_draws
from keras_preact.layers.variables import named_variables, state_indices


class LoopUnit:
    """The one unit that a rolled stack runs in its loop, with the values of each unit's variables in turn.

    The unit's own variables keep their initial values, which are never used. The stack lists the unit among its layers,
    so that it can be frozen, and overrides `variables` and `weights`, so that Keras finds the stacked variables
    instead.
    """

    def __init__(self, make_unit: Callable[[], keras.layers.Layer], input_shape: Any, compute_dtype: str) -> None:
        # In a stateless scope, Keras stores a variable's initializer instead of its value. The unit is created in it
        # as well, because some layers, such as Dropout, create variables before they are built.
        with without_layouts(), forgotten_on_error(), keras.StatelessScope() as scope:
            self.unit = make_unit()
            try:
                build_unit(self.unit, input_shape)
            except ValueError as error:
                if "stateless scope" not in str(error):
                    raise
                raise InputError(
                    f"{self.unit.name} creates a variable from a value, but a rolled stack needs an initializer; use "
                    "add_weight, or rolled=False"
                ) from None
            layers = [self.unit, *layers_inside(self.unit)]
            if any(isinstance(layer, keras.layers.Normalization) and layer.input_mean is None for layer in layers):
                raise InputError(
                    f"{self.unit.name} has a keras.layers.Normalization, which computes with copies of its variables; "
                    "pass it mean and variance, or use rolled=False"
                )
            if any(layer.metrics for layer in layers):
                raise InputError(
                    f"{self.unit.name} has a metric, which the loop of a rolled stack cannot update; use rolled=False"
                )
            named = named_variables(self.unit)
            self.initializers = [initializer_of(variable) for variable in named.values()]
            self.is_assigned_in_build = any(scope.get_current_value(v) is not None for v in named.values())
            """Whether `build` assigned values, so that initializers alone do not determine the initial values."""
        self.names, self.variables = list(named), list(named.values())
        self.state = state_indices(self.unit, self.variables)
        """Indices of the variables that are not weights: moving statistics, states of random generators."""
        owners = {id(v): layer.compute_dtype for layer in layers for v in (*own_trainable(layer), *own_state(layer))}
        self.autocast = [
            is_autocast(v) and "float" in stored_dtype(v) and owners.get(id(v)) == compute_dtype for v in self.variables
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
            return partial(constant_values, values)
        if self.variables[index].name == "seed_generator_state":
            return partial(different_seeds, self.initializers[index], n)
        return partial(stacked_draws, self.initializers[index], n)
