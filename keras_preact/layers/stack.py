"""n equal units as one layer: written out, or rolled: one unit run n times in a loop over stacked weights.

A network written out unit by unit costs time and memory for each of them before the first step: the graph of a
ResNet-1001 has 333. Rolled, the graph holds one unit a stage, and depth is the length of a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.errors import InputError, check_choice, check_positive
from keras_preact.keras_private import direct_layers, layers_inside
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.copies import again
from keras_preact.layers.functional import (
    PureUnits,
    Template,
    build_unit,
    call_unit,
    freeze_alike,
    named_variables,
    same_but_for_weights,
    state_of,
    variable_arguments,
)
from keras_preact.layers.products import layer_products
from keras_preact.layers.remat import Step, check_remat, rematerialized
from keras_preact.layers.scan import in_segments, loop


@keras.saving.register_keras_serializable(package="keras_preact")
class UnitStack(CompositeLayer):
    """n equal units, one after the other, as one layer: x_{l+1} = unit_l(x_l).

    Written out, each unit is a layer of its own. Rolled, the units' weights are stacked along a new first axis and
    one unit runs in a loop over it: the same function, and a graph that does not grow with n. On TensorFlow the
    loop is `tf.while_loop`, on JAX `keras.ops.scan`; other backends run the stacked weights one by one.

    Args:
        unit: any Keras layer or functional model whose output has its input's shape; it is copied, without its
            weights.
        repeats: n, the number of units, at least 1.
        rolled: `True`, `False`, or `None` (default): as `default_rolled` says for this backend and n.
        remat: what the backward pass computes again instead of keeping it in memory: `"none"` (default), `"unit"`:
            all inside a unit, `"segment"`: all inside of √n units in a row. `True` means `"segment"`, which saves
            most where batches are large.
        vary: arguments of the unit that differ from unit to unit, each with n values. Rolled, only those that the
            unit keeps in a variable (its `variable_arguments`: `drop_path` of a `ResidualUnit`, if above 0).
        **kwargs: as in `keras.layers.Layer`. Default dtype policy and `trainable`: the unit's.

    Layers inside are frozen one by one as in any model: those of `units`, or rolled those of `loop_unit()`, each of
    which represents that layer in every unit. `freeze_batch_norms` freezes the batch norms.

    Input and output: what the unit takes and gives, in the compute dtype. A mask (Keras's, of sequences) reaches
    every unit that takes one.

    State (moving statistics, random seeds) is each unit's own and changes in training only. Dropout draws anew in
    each unit. An optimizer that looks at a variable as a whole (gradient clipping by variable, LARS) sees a stack
    as one variable; SGD with momentum, Adam and clipping by global norm do not tell the difference.

    Raises:
        InputError: not a layer, fewer than 1 unit, a unit that changes the shape, or an argument that cannot vary.

    Example:

    >>> import numpy as np
    >>> from keras_preact.layers import PreActBasicBlock
    >>> stack = UnitStack(PreActBasicBlock(16, zero_init_residual=True), repeats=50, rolled=True)
    >>> x = np.random.default_rng(0).normal(size=(2, 8, 8, 16)).astype("float32")
    >>> bool((keras.ops.convert_to_numpy(stack(x)) == x).all())
    True
    >>> tuple(stack.unit_weights(49)["conv1/kernel"].shape)
    (3, 3, 16, 16)
    """

    def __init__(
        self,
        unit: keras.layers.Layer | dict[str, Any],
        repeats: int,
        rolled: bool | None = None,
        remat: bool | str = False,
        vary: Mapping[str, Sequence[Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        # Here and not later: classes that are not registered are known only while Keras loads a file.
        template = keras.saving.deserialize_keras_object(unit) if isinstance(unit, dict) else unit
        if not isinstance(template, keras.layers.Layer):
            raise InputError(f"a UnitStack is made of a Keras layer, for example a ResidualUnit, not of {unit!r}")
        if len(getattr(template, "inputs", [None])) != 1 or len(getattr(template, "outputs", [None])) != 1:
            raise InputError(f"{template.name} has several inputs or outputs; a unit of a stack has one of each")
        template = again(template)
        kwargs.setdefault("dtype", template.dtype_policy)
        kwargs.setdefault("trainable", template.trainable)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.new_unit = partial(again, template)  # not the layer itself, which Keras would count among those inside
        self.unit_spec = keras.saving.serialize_keras_object(template)
        self.unit_type = type(template)
        self.repeats = check_positive("repeats", repeats)
        self.rolled = default_rolled(self.repeats) if rolled is None else bool(rolled)
        self.remat = check_remat(remat)
        self.vary = {name: list(values) for name, values in (vary or {}).items()}
        self._check_vary(template)
        if not self.rolled:
            self.units = [self._make_unit(k, f"unit{k + 1:02d}") for k in range(repeats)]

    def _check_vary(self, template: keras.layers.Layer) -> None:
        for name, values in self.vary.items():
            if len(values) != self.repeats:
                raise InputError(f"vary gives {len(values)} values of {name} for {self.repeats} units; give one a unit")
            if self.rolled and name not in variable_arguments(template):
                known = ", ".join(variable_arguments(template)) or "none"
                raise InputError(
                    f"{name} cannot differ between the units of a rolled stack; those that can: {known}; "
                    "take rolled=False for others"
                )

    def _make_unit(self, k: int | None, name: str) -> keras.layers.Layer:
        """Return unit k, or without k the one that the others vary from; not frozen as a whole: the stack says that."""
        own = {} if k is None else {argument: values[k] for argument, values in self.vary.items()}
        # Written down, for a layer without a get_config of its own: Keras has none for it if it was given an object.
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        unit = self.new_unit(**{**own, "name": name, "dtype": dtype})
        if not unit.trainable:
            unit.trainable = True
        return unit

    # ---- weights ----------------------------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        if self.rolled:
            self._build_stacked(input_shape)
        else:
            for unit in self.units:
                build_unit(unit, input_shape)
        unit = self.loop_unit() if self.rolled else self.units[0]
        # Not `compute_output_shape`, which a layer need not have.
        output_shape = unit.compute_output_spec(keras.KerasTensor(input_shape, dtype=unit.compute_dtype)).shape
        if tuple(output_shape) != tuple(input_shape):
            raise InputError(
                f"the units of a stack must keep the shape: {tuple(input_shape)} became {tuple(output_shape)}; put "
                "the unit that changes it before the stack"
            )
        super().build(input_shape)

    def _build_stacked(self, input_shape: Any) -> None:
        self._template = template = Template(partial(self._make_unit, None, self.name), input_shape)
        # Where Keras looks for the layers inside a layer, to freeze them for example; but no attribute, or Keras would
        # write the variables of this unit, which are never used, into files.
        direct_layers(self).append(template.unit)
        for part in layers_inside(self):
            if type(part).quantize is not keras.layers.Layer.quantize:
                part.quantize = self._refuse_to_quantize
        places = variable_arguments(template.unit)
        for argument in self.vary:
            if missing := [name for name in places[argument] if name not in template.names]:
                raise InputError(
                    f"with {argument}={template.unit.get_config()[argument]!r} the unit has no variable {missing[0]} "
                    f"to vary; give the unit a {argument} above 0, or take rolled=False"
                )
        varied = {name: values for argument, values in self.vary.items() for name in places[argument]}
        self.stacked: list[keras.Variable] = []
        for number, (name, variable) in enumerate(zip(template.names, template.variables, strict=True)):
            initializer = template.initializers[number]
            if name in varied:
                initializer = partial(_given, varied[name])
            else:
                is_seed = variable.name == "seed_generator_state"
                initializer = _stacked_initializer(initializer, self.repeats, is_seed)
            self.stacked.append(
                self.add_weight(
                    shape=(self.repeats, *variable.shape),
                    initializer=initializer,
                    dtype=variable.dtype,
                    trainable=number not in template.state,
                    aggregation=variable.aggregation,
                    autocast=False,  # the template's variables cast, as they would in a unit on its own
                    regularizer=variable.regularizer,
                    constraint=_PerUnit(variable.constraint) if variable.constraint else None,
                    name=name.replace("/", "_"),
                )
            )

    @property
    def variables(self) -> list[keras.Variable]:
        return self.weights if self.rolled and self.built else super().variables

    @property
    def weights(self) -> list[keras.Variable]:
        if not (self.rolled and self.built):
            return super().weights
        for stacked, variable in zip(self.stacked, self._template.variables, strict=True):
            stacked.trainable = variable.trainable  # as the layer in the loop is frozen, or is not
        return list(self.stacked)

    def _refuse_to_quantize(self, *args: Any, **kwargs: Any) -> None:
        # Keras goes through the layers of a network in turn, and those before this one are quantized already.
        raise InputError(
            f"{self.name} runs one unit in a loop, which Keras cannot quantize; build or load the network again, and "
            "unroll it first"
        )

    def unit_variables(self, k: int) -> dict[str, tuple[keras.Variable, int | None]]:
        """Return where unit k's variables are, by name: a variable, and the place in it where it is a stacked one.

        Raises:
            InputError: there is no unit k, or the stack is not built yet.
        """
        k = self._check_index(k)
        if self.rolled:
            return {name: (variable, k) for name, variable in zip(self._template.names, self.stacked, strict=True)}
        return {name: (variable, None) for name, variable in named_variables(self.units[k]).items()}

    def unit_weights(self, k: int) -> dict[str, Any]:
        """Return the values of unit k's variables, k from 0, by name: `{"conv1/kernel": tensor, …}`.

        Raises:
            InputError: there is no unit k, or the stack is not built yet.
        """
        places = self.unit_variables(k).items()
        return {name: ops.copy(variable) if place is None else variable[place] for name, (variable, place) in places}

    def set_unit_weights(self, k: int, weights: Mapping[str, Any]) -> None:
        """Set variables of unit k, by the names that `unit_weights` gives; others stay as they are.

        Raises:
            InputError: there is no unit k, no such variable, or a value of another shape.
        """
        variables = self.unit_variables(k)
        for name, value in weights.items():
            variable, place = variables[check_choice("variable", name, variables)]
            shape = tuple(variable.shape)[place is not None :]
            if tuple(np.shape(value)) != shape:
                raise InputError(f"{name} of a unit has shape {shape}, not {tuple(np.shape(value))}; give that shape")
            if place is not None:
                everything = np.array(ops.convert_to_numpy(variable))
                everything[place] = ops.convert_to_numpy(value)
                value = everything
            variable.assign(value)

    def unit(self, k: int, name: str | None = None) -> keras.layers.Layer:
        """Return a layer on its own that equals unit k, k from 0, with a copy of its weights; frozen if that unit is.

        Raises:
            InputError: there is no unit k, or the stack is not built yet.
        """
        k = self._check_index(k)
        unit = self._make_unit(k, name or f"{self.name}_unit{k + 1:02d}")
        build_unit(unit, self.get_build_config()["input_shape"])
        weights = self.unit_weights(k)
        for variable_name, variable in named_variables(unit).items():
            variable.assign(weights[variable_name])
        freeze_alike(unit, self.loop_unit() if self.rolled else self.units[k])
        return unit

    @classmethod
    def from_units(cls, units: Sequence[keras.layers.Layer], **options: Any) -> UnitStack:
        """Return a stack of the given units in this order, with a copy of their weights; frozen where they are.

        Args:
            units: built layers, equal in all but their weights, their names, and what a unit keeps in variables.
            **options: of the stack, without `unit`, `repeats` and `vary`.

        Raises:
            InputError: there is no unit, one is not built, or they differ.
        """
        if not units:
            raise InputError("there are no units to stack; give at least one")
        if unbuilt := [unit.name for unit in units if not unit.built]:
            raise InputError(f"{unbuilt[0]} has no weights yet; call or build it first")
        first = units[0]
        for unit in units[1:]:
            if not same_but_for_weights(first, unit):
                raise InputError(f"{first.name} and {unit.name} are not equal units; a stack takes equal ones")
        configs = [unit.get_config() for unit in units]
        varying = {name: [config[name] for config in configs] for name in variable_arguments(first)}
        vary = {name: values for name, values in varying.items() if any(value != values[0] for value in values)}
        stack = cls(first, len(units), vary=vary, **options)
        stack.build(first.get_build_config()["input_shape"] or first.input_shape)  # a functional model's is its graph's
        for unit in [stack.loop_unit()] if stack.rolled else stack.units:
            freeze_alike(unit, first)
        columns = [named_variables(unit) for unit in units]
        if not stack.rolled:
            for k, column in enumerate(columns):
                stack.set_unit_weights(k, {name: variable.value for name, variable in column.items()})
            return stack
        for name, variable in zip(stack._template.names, stack.stacked, strict=True):
            variable.assign(np.stack([ops.convert_to_numpy(column[name]) for column in columns]))
        return stack

    def _check_index(self, k: int) -> int:
        if not self.built:
            raise InputError("this stack has no weights yet; call or build it first")
        if not -self.repeats <= k < self.repeats:
            raise InputError(f"there is no unit {k}: the stack's units are 0 to {self.repeats - 1}")
        return k % self.repeats

    # ---- the units, one after the other -----------------------------------------------------------------------

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not self.rolled:
            return self._call_written_out(x, training, mask)
        template = self._template
        state = template.state if training else []
        step = PureUnits([template.unit], template.variables, [template.variables[i] for i in state], training, mask)
        # All units' weights in one cast, rather than a cast in each unit.
        values = [
            ops.cast(variable, self.compute_dtype) if autocast else variable.value
            for variable, autocast in zip(self.stacked, template.autocast, strict=True)
        ]
        specs = [(tuple(self.stacked[i].shape[1:]), self.stacked[i].dtype) for i in state]
        x, updates, loss = self._run(step, x, values, specs)
        for i, update in zip(state, updates, strict=True):
            self.stacked[i].assign(update)
        if step.has_losses:
            self.add_loss(loss)
        return x

    def loop_unit(self) -> keras.layers.Layer:
        """Return the one unit that a built, rolled stack runs in its loop, for all units.

        A layer in it that is frozen is frozen in all units. The values of its own variables are never used.
        """
        return self._template.unit

    def _run(self, step: Step, x: Any, values: Sequence[Any], specs: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        if self.remat == "segment":
            return in_segments(step, x, values, self.repeats, specs, length=math.isqrt(self.repeats))
        return loop(rematerialized(step) if self.remat == "unit" else step, x, values, self.repeats, specs)

    def _call_written_out(self, x: Any, training: bool | None, mask: Any) -> Any:
        length = {"none": 0, "unit": 1, "segment": math.isqrt(self.repeats)}[self.remat]
        if not (length and training):
            for unit in self.units:
                x = call_unit(unit, x, training, mask)
            return x
        for start in range(0, self.repeats, length):
            x = self._call_rematerialized(self.units[start : start + length], x, training, mask)
        return x

    def _call_rematerialized(
        self, units: Sequence[keras.layers.Layer], x: Any, training: bool | None, mask: Any
    ) -> Any:
        variables = [variable for unit in units for variable in unit.variables]
        state = [variable for unit in units for variable in state_of(unit)]
        step = PureUnits(units, variables, state, training, mask)
        x, updates, loss = rematerialized(step)(x, [variable.value for variable in variables])
        for variable, update in zip(state, updates, strict=True):
            variable.assign(update)
        if step.has_losses:
            self.add_loss(loss)
        return x

    def activations(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        """Return x_0 = x, x_1, …, x_n, the input and the output of every unit, stacked: (n + 1, batch, …).

        With `training=True` batch statistics normalize, as in training, unless the stack is frozen; no state changes.
        """
        x = ops.cast(ops.convert_to_tensor(x), self.compute_dtype)
        if not self.built:
            self.build(x.shape)
        outputs = [x]
        for unit in self.units if not self.rolled else map(self.unit, range(self.repeats)):
            with keras.StatelessScope():
                outputs.append(call_unit(unit, outputs[-1], training, mask))
        return ops.stack(outputs)

    # ---- facts ------------------------------------------------------------------------------------------------

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of all units on one image of `input_shape`; 0 for layers that do not say theirs."""
        unit = self.loop_unit() if self.rolled else self.units[0]
        return self.repeats * layer_products(unit, input_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        # Keras would trace the whole loop to learn what is known.
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "unit": self.unit_spec,
            "repeats": self.repeats,
            "rolled": self.rolled,
            "remat": self.remat,
            "vary": self.vary,
        }


def default_rolled(repeats: int) -> bool:
    """Return whether a stack of `repeats` units is rolled by default.

    On TensorFlow from 12 units on: a loop starts several times sooner and steps about as fast. Elsewhere from 500 on,
    where a graph of units takes minutes to build and reaches Python's recursion limit. Below that a loop would start
    sooner on JAX, too, but on processors XLA runs the convolutions of a loop on one thread.
    """
    return repeats >= (12 if keras.backend.backend() == "tensorflow" else 500)


def _stacked_initializer(initializer: Any, n: int, is_seed: bool) -> Callable[..., Any]:
    """Return an initializer of n values stacked, from the one that a single unit has."""

    def draw(shape: Sequence[int], dtype: Any = None) -> Any:
        if isinstance(initializer, _SAME_EACH_TIME):
            # Not broadcast: each unit's part of a variable of PyTorch must have its own memory.
            return ops.stack([initializer(tuple(shape[1:]), dtype=dtype)] * n)
        values = []
        for _ in range(n):
            # A Keras initializer repeats its values; a clone draws others, unless it was given a seed.
            fresh = initializer.clone() if hasattr(initializer, "clone") else initializer
            values.append(fresh(tuple(shape[1:]), dtype=dtype))
        return ops.stack(values)

    def different_seeds(shape: Sequence[int], dtype: Any = None) -> Any:
        first = ops.convert_to_numpy(initializer(tuple(shape[1:]), dtype=dtype))
        # The first unit's seed is the given one; the others' follow from it, and are as good as independent.
        seeds = [np.random.SeedSequence([int(first[0]), k]).generate_state(1)[0] % 10**9 for k in range(1, n)]
        return ops.convert_to_tensor(np.array([first, *([seed, 0] for seed in seeds)]), dtype=dtype)

    return different_seeds if is_seed else draw


def _given(values: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    return ops.convert_to_tensor(np.asarray(values), dtype=dtype)


_SAME_EACH_TIME = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)


class _PerUnit(keras.constraints.Constraint):
    """A constraint applied to each unit's part of a stacked variable."""

    def __init__(self, constraint: Any) -> None:
        self.constraint = constraint

    def __call__(self, value: Any) -> Any:
        return ops.stack([self.constraint(value[k]) for k in range(value.shape[0])])


def units_in(layer: keras.layers.Layer) -> int:
    """Return how many residual units, or blocks of them, a layer is: 1, those of a stack, or 0 for other layers."""
    if isinstance(layer, UnitStack):
        return layer.repeats if hasattr(layer.unit_type, "residual_layers") else 0
    return int(hasattr(layer, "residual_layers"))
