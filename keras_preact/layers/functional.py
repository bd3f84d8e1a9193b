"""Units as pure functions of their input and the values of their variables."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError
from keras_preact.keras_private import (
    attach_mask,
    calling,
    current_stateless_scope,
    forget_losses,
    layers_inside,
    trace,
)
from keras_preact.layers.composite import build_inner
from keras_preact.layers.variables import is_random_state, state_indices


@dataclass(frozen=True)
class Masks:
    """The Keras masks that the units of a stack see.

    Attributes:
        argument: the argument `mask` of the stack's call, which every unit that accepts one receives.
        first: the mask attached to x, which the layers of the first unit find.
        later: the mask that each unit attaches to its output, which the layers of the next unit find.
        differ: whether the first unit needs a graph of its own, because it finds another mask than later units.
    """

    argument: Any
    first: Any
    later: Any
    differ: bool


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
        with _StraightThroughAssignments(collect_losses=True) as scope:
            for variable, value in zip(self.variables, values, strict=True):
                scope.add_update((variable, value))
            if self.attached is not None:
                attach_mask(x, self.attached)
            for unit in self.units:
                x = call_unit(unit, x, self.training, self.mask)
                scope.check_assigns_only(self.variables, unit.name)
            now = [scope.get_current_value(variable) for variable in self.variables]
            self.assigned = [i for i, (a, b) in enumerate(zip(now, values, strict=True)) if a is not b]
            self.has_losses = bool(scope.losses)
            loss = sum((ops.sum(ops.cast(loss, "float32")) for loss in scope.losses), ops.zeros((), "float32"))
            for unit in self.units:
                forget_losses(unit, scope.losses)
            # Without `stop_gradient`, the backward pass of a loop computes zero gradients of the updates.
            updates = [ops.stop_gradient(scope.get_current_value(variable)) for variable in self.state]
            return x, updates, loss


class _StraightThroughAssignments(keras.StatelessScope):
    """A stateless scope in which the gradient passes through assignments unchanged.

    If a layer assigns a weight during the call (spectral normalization does), later layers compute with the new value,
    and its gradient becomes that of the weight. TensorFlow and PyTorch do the same outside of a scope; JAX
    differentiates the computation of the new value.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.assigned: dict[int, keras.Variable] = {}
        self._outer = current_stateless_scope()

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return the value in this scope or, for other variables of the program, in the scope around it.

        Keras's scope hides the one around it. On JAX, that one has the values which are differentiated.
        """
        value = super().get_current_value(variable)
        return self._outer.get_current_value(variable) if value is None and self._outer is not None else value

    def check_assigns_only(self, variables: Sequence[keras.Variable], name: str) -> None:
        """Raise InputError if other variables were assigned: their new values would be lost with this scope."""
        own = {id(variable) for variable in variables}
        foreign = [variable.path for key, variable in self.assigned.items() if key not in own]
        if not foreign:
            return
        if is_random_state(foreign[0]):
            raise InputError(
                f"{name} draws random numbers without a seed generator of its own; create a "
                "keras.random.SeedGenerator in its constructor and pass it as seed="
            )
        raise InputError(
            f"{name} assigns {foreign[0]}, which its variables do not include, so a loop or a checkpoint would lose "
            "the new value; use rolled=False without remat"
        )

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        self.assigned[id(variable)] = variable
        # Of this scope alone: there, a unit's own variable has no value until it receives its first one.
        before = super().get_current_value(variable)
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
    if type(unit).build is keras.layers.Layer.build:
        build_inner(unit, input_shape)
    if not (isinstance(unit, keras.Model) and unit.built):  # a copy of a model with inputs is built, for any batch
        unit.build(input_shape)
    build_inner(unit, input_shape)  # those that a `build` of its own leaves to the first call


def assigned_in_call(
    unit: keras.layers.Layer, variables: Sequence[keras.Variable], x: Any, training: bool | None
) -> list[int]:
    """Return the indices of those variables of a unit that a call assigns.

    The units of this package and Keras's layers assign their state in training, and nothing else. Other units may
    assign weights, as spectral normalization does, or draw random numbers at inference. These are traced.
    """
    if all(map(_is_ordinary, [unit, *layers_inside(unit)])):
        return state_indices(unit, variables) if training else []
    step = PureUnits([unit], variables, [], training, None, None)
    specs = [keras.KerasTensor(variable.shape, variable.dtype) for variable in variables]
    trace(step, keras.KerasTensor(x.shape, x.dtype), specs)
    if keras.backend.backend() != "torch":
        return step.assigned
    # PyTorch has no random generator for tensors without values, so Keras draws nothing in a trace.
    drawn = {index for index in state_indices(unit, variables) if is_random_state(variables[index].name)}
    return sorted(drawn.union(step.assigned))


def _is_ordinary(layer: keras.layers.Layer) -> bool:
    is_known = type(layer).__module__.split(".")[0] in ("keras", "keras_preact")
    return is_known and not isinstance(layer, (keras.Model, keras.layers.Wrapper, keras.layers.RNN))
