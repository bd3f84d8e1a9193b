"""The units of an unrolled stack: a layer for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_preact.keras_private import attach_mask, mask_of, without_autocast
from keras_preact.layers.composite import frozen_parts
from keras_preact.layers.functional import Masks, PureUnits, assigned_in_call, build_unit, call_unit
from keras_preact.layers.initial_values import separate_seeds
from keras_preact.layers.remat import rematerialized
from keras_preact.layers.variables import named_variables

if TYPE_CHECKING:
    from keras_preact.layers.stack import UnitStack


class UnrolledUnits:
    """n units, each a layer of the stack (`UnitStack.units`), called one after the other."""

    def __init__(self, stack: UnitStack) -> None:
        self.stack = stack

    # ---- variables --------------------------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        for unit in self.layers:
            build_unit(unit, input_shape)
        separate_seeds(self.layers)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers that represent the units: one for each."""
        return self.stack.units

    def own_unit(self, k: int) -> keras.layers.Layer:
        return self.layers[k]

    def unit_variables(self, k: int) -> dict[str, tuple[keras.Variable, int | None]]:
        return {name: (variable, None) for name, variable in named_variables(self.layers[k]).items()}

    def assign(self, units: Sequence[Mapping[str, keras.Variable]]) -> None:
        """Set the variables of all units, given by name."""
        for k, unit in enumerate(units):
            self.stack.set_unit_weights(k, {name: variable.value for name, variable in unit.items()})

    # ---- calls ------------------------------------------------------------------------------------------------

    def call(self, x: Any, training: bool | None, masks: Masks) -> Any:
        if masks.first is not None and mask_of(x) is None:  # a cast returns a new tensor
            attach_mask(x, masks.first)
        units, n = self.layers, self.stack.repeats
        length = {"none": 0, "unit": 1, "segment": math.isqrt(n)}[self.stack.remat]
        if not (length and training):
            for unit in units:
                x = call_unit(unit, x, training, masks.argument)
            return x
        assigned = self._assigned(x, training)
        for start in range(0, n, length):
            part = slice(start, start + length)
            state = [variable for unit in assigned[part] for variable in unit]
            attached = masks.later if start else masks.first
            x = self._call_rematerialized(units[part], state, x, training, masks.argument, attached)
        return x

    def _assigned(self, x: Any, training: bool | None) -> list[list[keras.Variable]]:
        """Return the variables that a call assigns, for each unit; units of one kind assign the same."""
        indices: dict[Any, list[int]] = {}
        found = []
        for k, unit in enumerate(self.layers):
            # A frozen norm assigns nothing. A unit without drop path has fewer variables.
            kind = (unit.trainable, *frozen_parts(unit), *((v.name, tuple(v.shape)) for v in unit.variables))
            kind += tuple(repr(values[k]) for values in self.stack.vary.values())
            if kind not in indices:
                indices[kind] = assigned_in_call(unit, unit.variables, x, training)
            found.append([unit.variables[i] for i in indices[kind]])
        return found

    def _call_rematerialized(
        self,
        units: Sequence[keras.layers.Layer],
        state: Sequence[keras.Variable],
        x: Any,
        training: bool | None,
        mask: Any,
        attached: Any,
    ) -> Any:
        variables = [variable for unit in units for variable in unit.variables]
        step = PureUnits(units, variables, state, training, mask, attached)
        with without_autocast():  # the layers cast
            values = [variable.value for variable in variables]
        x, updates, loss = rematerialized(step)(x, values)
        for variable, update in zip(state, updates, strict=True):
            variable.assign(update)
        if step.has_losses:
            self.stack.add_loss(loss)
        return x
