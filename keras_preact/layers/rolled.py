"""The units of a rolled stack: one unit in a loop over stacked weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_preact.errors import InputError
from keras_preact.keras_private import direct_layers, layers_inside, stored_dtype
from keras_preact.layers.functional import Masks, PureUnits, build_unit
from keras_preact.layers.loop_unit import LoopUnit
from keras_preact.layers.scan import run_units
from keras_preact.layers.variables import is_random_state, named_variables, variable_arguments

if TYPE_CHECKING:
    from keras_preact.layers.stack import UnitStack


class RolledUnits:
    """n units whose variables are stacked along a new first axis; one unit runs in a loop over them.

    No Keras object: the stacked variables are weights of the stack.
    """

    def __init__(self, stack: UnitStack) -> None:
        self.stack = stack
        self.stacked: list[keras.Variable] = []
        """The stacked variables, in the order of `loop.names`."""
        self.loop: LoopUnit
        self._trainable: list[bool] = []
        """Whether the variables of `loop.unit` were trainable when `weights` was last read."""

    # ---- variables --------------------------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        stack = self.stack
        make_unit = partial(stack.make_unit, None, stack.name)
        self.loop = loop = LoopUnit(make_unit, input_shape, stack.compute_dtype)
        self._show_to_keras(loop.unit)
        varied = self._varied()
        self.stacked = []
        for index, (name, variable) in enumerate(zip(loop.names, loop.variables, strict=True)):
            self.stacked.append(
                stack.add_weight(
                    shape=(stack.repeats, *variable.shape),
                    initializer=loop.stacked_initializer(index, stack.repeats, varied.get(name)),
                    dtype=stored_dtype(variable),
                    trainable=index not in loop.state,
                    aggregation=variable.aggregation,
                    autocast=False,  # `call` casts, as the unit would
                    regularizer=regularizer_per_unit(variable.regularizer),
                    constraint=PerUnit(variable.constraint) if variable.constraint else None,
                    name=name.replace("/", "_"),
                )
            )
        self._trainable = [variable.trainable for variable in self.stacked]
        if loop.is_assigned_in_build:
            self._initialize_unit_by_unit(input_shape)

    def _show_to_keras(self, unit: keras.layers.Layer) -> None:
        # Keras finds the unit here, for example to freeze it. As an attribute it would also be saved to files, although
        # its variables are never used.
        direct_layers(self.stack).append(unit)
        for part in layers_inside(self.stack):
            if type(part).quantize is not keras.layers.Layer.quantize:
                part.quantize = self._refuse_to_quantize
            if hasattr(part, "enable_lora"):
                part.enable_lora = self._refuse_lora

    def _varied(self) -> dict[str, Sequence[Any]]:
        """Return the values of the variables that hold arguments which differ between the units, by variable."""
        unit, places = self.loop.unit, variable_arguments(self.loop.unit)
        for argument in self.stack.vary:
            if missing := [name for name in places[argument] if name not in self.loop.names]:
                raise InputError(
                    f"with {argument}={unit.get_config()[argument]!r} the unit has no variable {missing[0]} to vary; "
                    f"set the unit's {argument} above 0, or use rolled=False"
                )
        return {name: values for argument, values in self.stack.vary.items() for name in places[argument]}

    def _initialize_unit_by_unit(self, input_shape: Any) -> None:
        units = [self.stack.make_unit(k, self.stack.name) for k in range(self.stack.repeats)]
        for unit in units:
            build_unit(unit, input_shape)
        columns = [named_variables(unit) for unit in units]
        for name, stacked in zip(self.loop.names, self.stacked, strict=True):
            if not is_random_state(name):  # already different in each unit
                stacked.assign(ops.stack([column[name].value for column in columns]))

    def _refuse_to_quantize(self, *args: Any, **kwargs: Any) -> None:
        # Keras quantizes layer by layer, so the layers before this one are already quantized.
        raise InputError(
            f"{self.stack.name} runs one unit in a loop, which Keras cannot quantize; build or load the network again, "
            "and unroll it before you quantize it"
        )

    def _refuse_lora(self, *args: Any, **kwargs: Any) -> None:
        # Keras would freeze the kernels of all units and train an adapter that no unit uses.
        raise InputError(
            f"{self.stack.name} runs one unit in a loop, which cannot have adapters (LoRA); unroll it first"
        )

    @property
    def weights(self) -> list[keras.Variable]:
        """The stacked variables. Freezing a layer in the loop freezes them; each can also be frozen itself."""
        now = [variable.trainable for variable in self.loop.variables]
        for stacked, before, trainable in zip(self.stacked, self._trainable, now, strict=True):
            if trainable != before:
                stacked.trainable = trainable
        self._trainable = now
        return list(self.stacked)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers that represent the units: one for all of them."""
        return [self.loop.unit]

    def own_unit(self, k: int) -> keras.layers.Layer:
        return self.loop.unit

    def unit_variables(self, k: int) -> dict[str, tuple[keras.Variable, int | None]]:
        return {name: (variable, k) for name, variable in zip(self.loop.names, self.weights, strict=True)}

    def assign(self, units: Sequence[Mapping[str, keras.Variable]]) -> None:
        """Set the variables of all units, given by name."""
        for name, variable in zip(self.loop.names, self.stacked, strict=True):
            variable.assign(np.stack([ops.convert_to_numpy(unit[name]) for unit in units]))

    # ---- calls ------------------------------------------------------------------------------------------------

    def call(self, x: Any, training: bool | None, masks: Masks) -> Any:
        stack, loop = self.stack, self.loop
        state = loop.assigned(x, training)
        updated = [loop.variables[i] for i in state]
        pure = partial(PureUnits, [loop.unit], loop.variables, updated, training, masks.argument)
        # One cast of all units' weights instead of one in each unit.
        values = [
            ops.cast(variable, stack.compute_dtype) if autocast else variable.value
            for variable, autocast in zip(self.weights, loop.autocast, strict=True)  # with the unit's frozen layers
        ]
        specs = [(tuple(self.stacked[i].shape[1:]), self.stacked[i].dtype) for i in state]
        step = pure(masks.later)
        first = pure(masks.first) if masks.differ else None
        remat = stack.remat if training else "none"
        x, updates, loss = run_units(step, x, values, stack.repeats, specs, remat, first)
        for i, update in zip(state, updates, strict=True):
            self.stacked[i].assign(update)
        if step.has_losses or (first is not None and first.has_losses):
            stack.add_loss(loss)
        return x


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
