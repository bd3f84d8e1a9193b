"""n equal units as one layer, unrolled or rolled into a loop that runs one unit over stacked weights.

In an unrolled network, each unit costs time and memory before the first step; the graph of a ResNet-1001 has 333.
Rolled, the graph has one unit per stage, and depth is the length of a loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.errors import InputError, check_choice, check_flag, check_positive, shown
from keras_preact.keras_private import layers_inside, mask_of, move_variables
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.copies import check_copyable, clone, copy_frozen, refresh_normalizations, same_but_for_weights
from keras_preact.layers.functional import Masks, build_unit, call_unit
from keras_preact.layers.products import layer_multiply_adds
from keras_preact.layers.remat import check_remat
from keras_preact.layers.residual import check_floating
from keras_preact.layers.rolled import RolledUnits
from keras_preact.layers.unrolled import UnrolledUnits
from keras_preact.layers.variables import named_variables, variable_arguments


@keras.saving.register_keras_serializable(package="keras_preact")
class UnitStack(CompositeLayer):
    """n equal units in sequence as one layer: x_{l+1} = unit_l(x_l).

    Unrolled, each unit is a separate layer. Rolled, the units' weights are stacked along a new first axis, and one unit
    runs in a loop over them. Both compute the same function. The loop is `tf.while_loop` on TensorFlow and
    `keras.ops.scan` on JAX, so the graph does not grow with n. On other backends it is a Python loop.

    Args:
        unit: any Keras layer or functional model whose output has its input's shape. It is copied without its weights.
        repeats: n, the number of units, at least 1.
        rolled: whether the stack is rolled. Default `None`: rolled from 8 units on with TensorFlow, and from 500 units
            on with other backends.
        remat: activation checkpointing (rematerialization), which recomputes activations in the backward pass instead
            of storing them: `False` or `"none"` (default); `"unit"` (those inside each unit); `"segment"` or `True`
            (those inside each segment of √n units), which saves most memory with large batches.
        vary: arguments that differ between the units, `{name: [n values]}`. In a rolled stack, only arguments that the
            unit stores in variables can differ: `drop_path` of a `ResidualUnit` or `EncoderBlock` created with
            `drop_path` above 0, or those in `variable_arguments` of a custom unit. Default `None`: all units are equal.
        **kwargs: as in `keras.layers.Layer`. The default dtype policy and `trainable` are the unit's. The layers of a
            functional unit keep their own dtypes.

    To freeze single layers of an unrolled stack, freeze layers of its `units`. In a rolled stack, freeze layers of
    `loop_unit()`: each represents that layer in all units. `freeze_batch_norms` freezes the batch norms.

    Input and output: those of the unit, in the compute dtype. A Keras mask of sequences reaches every unit that
    accepts one.

    Each unit has its own state (moving statistics, random seeds). Dropout draws separately in each unit. An initializer
    with a seed gives all units the same values. Unlike that of other layers, `weights` of a rolled stack contains the
    states of its random generators.
    Optimizers that treat a variable as a whole (gradient clipping by variable, LARS, Muon) see a rolled stack as one
    variable; with SGD with momentum, Adam and clipping by global norm it makes no difference.

    On TensorFlow, a rolled stack with `remat` has no second derivatives in a `tf.function`, and `tf.vectorized_map`
    fails on the gradient of a rolled stack: use `rolled=False`.

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
        # Deserialized here, because Keras knows unregistered classes only while it loads a file.
        template = keras.saving.deserialize_keras_object(unit) if isinstance(unit, dict) else unit
        if not isinstance(template, keras.layers.Layer):
            raise InputError(f"the unit of a UnitStack must be a Keras layer, such as a ResidualUnit, not {unit!r}")
        if len(getattr(template, "inputs", [None])) != 1 or len(getattr(template, "outputs", [None])) != 1:
            raise InputError(f"{template.name} has several inputs or outputs; a unit of a stack has one of each")
        template = clone(template)
        kwargs.setdefault("dtype", template.dtype_policy)
        kwargs.setdefault("trainable", template.trainable)
        super().__init__(**kwargs)
        self.supports_masking = template.supports_masking
        self._has_two_masks = False
        """Whether the argument `mask` differs from the mask attached to x, which the layers of the first unit see."""
        self.new_unit = partial(clone, template)  # in a partial: Keras would track an attribute
        self.unit_spec = keras.saving.serialize_keras_object(template)
        self.unit_type = type(template)
        self.repeats = check_positive("repeats", repeats)
        self.rolled = default_rolled(self.repeats) if rolled is None else check_flag("rolled", rolled)
        self.remat = check_remat(remat)
        self.vary = _lists(vary or {})
        check_vary(template, self.vary, self.repeats, self.rolled)
        if not self.rolled:
            self.units = [self.make_unit(k, f"unit{k + 1:02d}") for k in range(repeats)]
        self._form: RolledUnits | UnrolledUnits = RolledUnits(self) if self.rolled else UnrolledUnits(self)

    def make_unit(self, k: int | None, name: str) -> keras.layers.Layer:
        """Return unit k; without k, the one unit that a rolled stack runs in its loop."""
        varied = {} if k is None else {argument: values[k] for argument, values in self.vary.items()}
        # Serialized, because Keras's default get_config fails if a layer receives the policy object.
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        unit = self.new_unit(**{**varied, "name": name, "dtype": dtype})
        if not unit.trainable:
            unit.trainable = True  # the stack's own `trainable` freezes it as a whole
        if k is not None:
            move_variables(unit, self.name)
        return unit

    # ---- weights ----------------------------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        self._form.build(input_shape)
        for unit in self._form.layers if self._units_differ else [self.own_unit(0)]:
            # Not `compute_output_shape`, which a layer need not define.
            output = unit.compute_output_spec(keras.KerasTensor(input_shape, dtype=unit.compute_dtype))
            if not isinstance(output, keras.KerasTensor):
                raise InputError(f"{unit.name} has several outputs; a unit of a stack has one")
            if tuple(output.shape) != tuple(input_shape):
                raise InputError(
                    f"the units of a stack must keep the shape: {tuple(input_shape)} became {tuple(output.shape)}; "
                    "put the unit that changes it before the stack"
                )
        super().build(input_shape)
        self.input_spec = self.own_unit(0).input_spec

    def _checkpointed(self) -> list[Any]:
        return self._form.stacked if isinstance(self._form, RolledUnits) else super()._checkpointed()

    @property
    def variables(self) -> list[keras.Variable]:
        return self._form.weights if isinstance(self._form, RolledUnits) and self.built else super().variables

    @property
    def weights(self) -> list[keras.Variable]:
        return self._form.weights if isinstance(self._form, RolledUnits) and self.built else super().weights

    def unit_variables(self, k: int) -> dict[str, tuple[keras.Variable, int | None]]:
        """Return unit k's variables by name, each with the unit's index if it is a stacked variable, else `None`.

        Raises:
            InputError: there is no unit k, or the stack is not built.
        """
        return self._form.unit_variables(self._check_index(k))

    def unit_weights(self, k: int) -> dict[str, Any]:
        """Return the values of unit k's variables, k from 0, by name: `{"conv1/kernel": tensor, …}`.

        Raises:
            InputError: there is no unit k, or the stack is not built.
        """
        variables = self.unit_variables(k).items()
        return {name: ops.copy(variable if i is None else variable[i]) for name, (variable, i) in variables}

    def set_unit_weights(self, k: int, weights: Mapping[str, Any]) -> None:
        """Set variables of unit k, by their names in `unit_weights`; after an error, none has changed.

        Raises:
            InputError: there is no unit k, an unknown variable, or a value of a different shape.
        """
        variables = self.unit_variables(k)
        for name, value in weights.items():
            variable, index = variables[check_choice("variable", name, variables)]
            shape = tuple(variable.shape)[index is not None :]
            if tuple(np.shape(value)) != shape:
                raise InputError(f"the value of {name} has shape {tuple(np.shape(value))}; use shape {shape}")
        for name, value in weights.items():
            variable, index = variables[name]
            if index is not None:
                stacked = np.array(ops.convert_to_numpy(variable))
                stacked[index] = ops.convert_to_numpy(value)
                value = stacked
            variable.assign(value)
        refresh_normalizations(self.own_unit(k))

    def unit(self, k: int, name: str | None = None) -> keras.layers.Layer:
        """Return a copy of unit k, k from 0, as a separate layer with the same weights and frozen layers.

        Raises:
            InputError: there is no unit k, or the stack is not built.
        """
        k = self._check_index(k)
        check_copyable(self.own_unit(k))
        unit = self.make_unit(k, name or f"{self.name}_unit{k + 1:02d}")
        build_unit(unit, self.get_build_config()["input_shape"])
        copy_frozen(self.own_unit(k), unit)
        self.update_copy(k, unit)
        return unit

    def update_copy(self, k: int, copy: keras.layers.Layer) -> None:
        """Give a layer that `unit(k)` returned the present values of unit k, and freeze the same variables."""
        variables = self.unit_variables(k)
        for name, variable in named_variables(copy).items():
            source, index = variables[name]
            variable.assign(source.value if index is None else source[index])
            variable.trainable = source.trainable
        refresh_normalizations(copy)

    @classmethod
    def from_units(cls, units: Sequence[keras.layers.Layer], **options: Any) -> UnitStack:
        """Return a stack of these units, in this order, with copies of their weights and the same frozen layers.

        Args:
            units: built layers, equal apart from their weights, names and `variable_arguments`.
            **options: of the stack, except `unit`, `repeats` and `vary`.

        Raises:
            InputError: there is no unit, one is not built, or they differ.
        """
        if not isinstance(units, Sequence):
            raise InputError(f"units is a {type(units).__name__}; pass a list of layers")
        if not units:
            raise InputError("there are no units to stack; pass at least one")
        if strange := [unit for unit in units if not isinstance(unit, keras.layers.Layer)]:
            raise InputError(f"{shown(repr(strange[0]))} is not a layer; pass a list of layers")
        if unbuilt := [unit.name for unit in units if not unit.built]:
            raise InputError(f"{unbuilt[0]} has no weights yet; call or build it first")
        for unit in units:
            check_copyable(unit)
        first = units[0]
        for unit in units[1:]:
            if not same_but_for_weights(first, unit):
                raise InputError(f"{first.name} and {unit.name} are not equal units; stack only equal ones")
        configs = [unit.get_config() for unit in units]
        varying = {name: [config[name] for config in configs] for name in variable_arguments(first)}
        vary = {name: values for name, values in varying.items() if any(value != values[0] for value in values)}
        stack = cls(first, len(units), vary=vary, **options)
        # A functional model stores no build shape.
        stack.build(first.get_build_config()["input_shape"] or first.input_shape)
        columns = [named_variables(unit) for unit in units]
        for k, unit in enumerate(stack._form.layers):
            copy_frozen(first, unit)
            for name, (variable, _) in stack.unit_variables(k).items():
                variable.trainable = columns[0][name].trainable  # single variables may be frozen, in all units alike
        stack._form.assign(columns)
        return stack

    def _check_index(self, k: int) -> int:
        if not self.built:
            raise InputError("this stack has no weights yet; call or build it first")
        if not -self.repeats <= k < self.repeats:
            raise InputError(f"there is no unit {k}: the stack's units are 0 to {self.repeats - 1}")
        return k % self.repeats

    # ---- calls ------------------------------------------------------------------------------------------------

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        attached, later = mask_of(x), mask if self.supports_masking else None
        differ = later is not None and attached is not mask and (attached is None or self._has_two_masks)
        return self._form.call(self._in_compute_dtype(x), training, Masks(mask, attached, later, differ))

    def _in_compute_dtype(self, x: Any) -> Any:
        """Return x in the compute dtype. Keras casts inputs of `__call__`, but not of `stateless_call` on JAX."""
        dtype = keras.backend.standardize_dtype(x.dtype)
        return ops.cast(x, self.compute_dtype) if "float" in dtype and dtype != self.compute_dtype else x

    def loop_unit(self) -> keras.layers.Layer:
        """Return the one unit that a built, rolled stack runs in its loop.

        Freezing a layer in it freezes that layer in all units. The values of its own variables are never used.

        Raises:
            InputError: the stack is unrolled, so that each unit is a layer of `units`; or it is not built.
        """
        if not self.rolled:
            raise InputError(f"{self.name} is unrolled and has no loop; its units are the layers in `units`")
        self._check_index(0)
        return self._form.own_unit(0)

    def own_unit(self, k: int) -> keras.layers.Layer:
        """Return unit k of a built stack: a layer of `units` or, if rolled, the one that runs in the loop."""
        return self._form.own_unit(k)

    @property
    def _units_differ(self) -> bool:
        """Whether the units differ in more than values of variables, which change neither shapes nor products."""
        return not set(self.vary) <= set(variable_arguments(self.own_unit(0)))

    def activations(self, x: Any, training: bool = False, mask: Any = None) -> Any:
        """Return x_0 = x, x_1, …, x_n, the input and the output of every unit, stacked: (n + 1, batch, …).

        With `training=True`, batch norms use batch statistics unless they are frozen. No state changes.
        """
        x = ops.cast(ops.convert_to_tensor(x), self.compute_dtype)
        if not self.built:
            self.build(x.shape)
        outputs = [x]
        for unit in map(self.unit, range(self.repeats)) if self.rolled else self.units:
            with keras.StatelessScope():
                outputs.append(call_unit(unit, outputs[-1], training, mask))
        return ops.stack(outputs)

    # ---- shapes, configuration --------------------------------------------------------------------------------

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of all units on one image or sequence; see `layer_multiply_adds`."""
        if not self._units_differ:
            return self.repeats * layer_multiply_adds(self.own_unit(0), input_shape)
        return sum(layer_multiply_adds(self.own_unit(k), input_shape) for k in range(self.repeats))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        # Without this, Keras would trace the whole loop.
        if hasattr(self.unit_type, "residual_layers"):
            check_floating(self.name, x)
        self._has_two_masks = self._has_two_masks or mask_of(x) is not mask
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


def _lists(vary: Any) -> dict[str, list[Any]]:
    if not isinstance(vary, Mapping) or any(isinstance(v, str) or not isinstance(v, Iterable) for v in vary.values()):
        raise InputError(f"vary is {vary!r}; pass one value per unit, for example {{'drop_path': [0.0, 0.1]}}")
    return {name: list(values) for name, values in vary.items()}


def check_vary(unit: keras.layers.Layer, vary: Mapping[str, Sequence[Any]], repeats: int, rolled: bool) -> None:
    """Check the arguments that differ between the units of a stack.

    Raises:
        InputError: there is no such argument, not one value per unit, or a value that the unit refuses; or a rolled
            stack cannot vary the argument.
    """
    for name, values in vary.items():
        if name in ("name", "dtype", "trainable"):
            instead = "; freeze layers of the built stack instead" if name == "trainable" else ""
            raise InputError(f"vary names {name}, which the stack itself sets for its units; leave it out{instead}")
        if len(values) != repeats:
            raise InputError(f"vary has {len(values)} values of {name} for {repeats} units; use one per unit")
        if name not in unit.get_config():
            raise InputError(f"vary names {name}, which is not an argument of {type(unit).__name__}; leave it out")
        if name == "drop_path" and unit.get_config().get("frozen") and not all(values):
            raise InputError(
                "a unit with frozen inner layers cannot vary to drop_path=0, which leaves out a layer; build the stack "
                "first, and freeze the layers of its units"
            )
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


def default_rolled(repeats: int) -> bool:
    """Return whether a stack of `repeats` units is rolled by default.

    On TensorFlow, stacks of 8 or more units are rolled: training starts sooner, and a step takes about as long.
    On other backends, stacks of 500 or more units are rolled, because their unrolled graph takes minutes to build and
    reaches Python's recursion limit. Shorter loops start sooner on JAX too, and on CPUs a step takes about as long,
    but they need more memory and have no forward mode (`jax.jvp`).
    """
    return repeats >= (8 if keras.backend.backend() == "tensorflow" else 500)


def units_in(layer: keras.layers.Layer) -> int:
    """Return the number of residual units, or blocks of them, in a layer: n for a stack, 1 for a unit, else 0."""
    if isinstance(layer, UnitStack):
        return layer.repeats if hasattr(layer.unit_type, "residual_layers") else 0
    return int(hasattr(layer, "residual_layers"))


def model_of_units(model: keras.Model) -> str | None:
    """Return the name of the first model that a model calls and that contains residual units; `None` without one."""
    inner = [layer for layer in model.layers if isinstance(layer, keras.Model)]
    return next((each.name for each in inner if any(map(units_in, layers_inside(each)))), None)
