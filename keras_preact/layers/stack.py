"""n equal units as one layer: written out, or rolled: one unit run n times in a loop over stacked weights.

A network written out unit by unit costs time and memory for each of them before the first step: the graph of a
ResNet-1001 has 333. Rolled, the graph holds one unit a stage, and depth is the length of a loop.
"""

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

from keras_preact.errors import InputError, check_choice, check_positive
from keras_preact.layers.composite import CompositeLayer, frozen_parts, parts, set_frozen
from keras_preact.layers.copies import again, nameless
from keras_preact.layers.products import layer_products

REMATS = ("none", "unit", "segment")


def check_remat(remat: bool | str) -> str:
    """Return what the backward pass computes again, by its name.

    Raises:
        InputError: an unknown name.

    >>> check_remat(True)
    'segment'
    """
    return ("segment" if remat else "none") if isinstance(remat, bool) else check_choice("remat", remat, REMATS)


Step = Callable[[Any, Sequence[Any]], "tuple[Any, list[Any], Any]"]
"""One unit as a function: (x, its variables' values) → (y, new values of its state, sum of its losses)."""


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
            if self.rolled and name not in _variable_arguments(template):
                known = ", ".join(_variable_arguments(template)) or "none"
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
                _build_unit(unit, input_shape)
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
        self._template = template = _Template(partial(self._make_unit, None, self.name), input_shape)
        # Where Keras looks for the layers inside a layer, to freeze them for example; but no attribute, or Keras would
        # write the variables of this unit, which are never used, into files.
        self._layers.append(template.unit)
        for part in parts(self):
            if type(part).quantize is not keras.layers.Layer.quantize:
                part.quantize = self._refuse_to_quantize
        places = _variable_arguments(template.unit)
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
        _build_unit(unit, self.get_build_config()["input_shape"])
        weights = self.unit_weights(k)
        for variable_name, variable in named_variables(unit).items():
            variable.assign(weights[variable_name])
        _freeze_alike(unit, self.loop_unit() if self.rolled else self.units[k])
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
        varying = {name: [config[name] for config in configs] for name in _variable_arguments(first)}
        vary = {name: values for name, values in varying.items() if any(value != values[0] for value in values)}
        stack = cls(first, len(units), vary=vary, **options)
        stack.build(first.get_build_config()["input_shape"] or first.input_shape)  # a functional model's is its graph's
        for unit in [stack.loop_unit()] if stack.rolled else stack.units:
            _freeze_alike(unit, first)
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
        step = _Pure([template.unit], template.variables, [template.variables[i] for i in state], training, mask)
        # All units' weights in one cast, rather than a cast in each unit.
        values = [
            ops.cast(variable, self.compute_dtype) if autocast else variable.value
            for variable, autocast in zip(self.stacked, template.autocast, strict=True)
        ]
        specs = [(tuple(self.stacked[i].shape[1:]), self.stacked[i].dtype) for i in state]
        x, updates, loss = self._loop(step, x, values, specs)
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

    def _loop(self, step: Step, x: Any, values: Sequence[Any], specs: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        if self.remat == "segment":
            return _in_segments(step, x, values, self.repeats, specs, length=math.isqrt(self.repeats))
        return _loop(rematerialized(step) if self.remat == "unit" else step, x, values, self.repeats, specs)

    def _call_written_out(self, x: Any, training: bool | None, mask: Any) -> Any:
        length = {"none": 0, "unit": 1, "segment": math.isqrt(self.repeats)}[self.remat]
        if not (length and training):
            for unit in self.units:
                x = _call_unit(unit, x, training, mask)
            return x
        for start in range(0, self.repeats, length):
            x = self._call_rematerialized(self.units[start : start + length], x, training, mask)
        return x

    def _call_rematerialized(
        self, units: Sequence[keras.layers.Layer], x: Any, training: bool | None, mask: Any
    ) -> Any:
        variables = [variable for unit in units for variable in unit.variables]
        state = [variable for unit in units for variable in _state(unit)]
        step = _Pure(units, variables, state, training, mask)
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
                outputs.append(_call_unit(unit, outputs[-1], training, mask))
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


# ---- one unit as a function ---------------------------------------------------------------------------------------


class _Pure:
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
                x = _call_unit(unit, x, self.training, self.mask)
            self.has_losses = bool(scope.losses)
            loss = sum((ops.cast(loss, "float32") for loss in scope.losses), ops.zeros((), "float32"))
            return x, [scope.get_current_value(variable) for variable in self.state], loss


def _call_unit(unit: keras.layers.Layer, x: Any, training: bool | None, mask: Any) -> Any:
    takes = inspect.signature(unit.call).parameters
    options = {"training": training} if "training" in takes else {}
    if "mask" in takes and mask is not None:
        options["mask"] = mask
    return unit(x, **options)


def _build_unit(unit: keras.layers.Layer, input_shape: Any) -> None:
    """Build a unit with the layers in it, of which Keras's own `build` knows nothing."""
    if type(unit).build is keras.layers.Layer.build and not all(layer.built for layer in unit._flatten_layers(False)):
        # What is in it is built by being called, as Keras does at a first call; not by calling the unit, which Keras
        # would note down as a use of it in a model.
        with keras.name_scope(unit.name):
            keras.Operation.compute_output_spec(unit, keras.KerasTensor(input_shape, dtype=unit.compute_dtype))
    unit.build(input_shape)


def _freeze_alike(unit: keras.layers.Layer, other: keras.layers.Layer) -> None:
    """Freeze a built unit, or layers in it, as another one like it."""
    if unit.trainable != other.trainable:
        unit.trainable = other.trainable
    set_frozen(unit, frozen_parts(other))


def _state(unit: keras.layers.Layer) -> list[keras.Variable]:
    """Return the unit's variables that are no weights: moving statistics, states of random generators.

    Not its `non_trainable_variables`: where a layer is frozen, its kernels are among those. No step changes them, and
    in mixed precision what would be assigned to them is what they were, rounded.
    """
    layers = unit._flatten_layers()  # private to Keras, like a layer's variables by their kind
    seeds = [generator.state for layer in layers for generator in layer._seed_generators]
    return [*(variable for layer in layers for variable in layer._non_trainable_variables), *seeds]


class _Template:
    """The one unit that a rolled stack runs, with the values of each unit's variables in turn.

    Not a Keras object, so that Keras does not find the unit's own variables, which are never used, in the stack.
    """

    def __init__(self, make_unit: Callable[[], keras.layers.Layer], input_shape: Any) -> None:
        # In a stateless scope, Keras notes how a variable will begin before it makes its value. The unit is made in
        # it, too: some layers, Dropout for one, make variables before they are built.
        with keras.StatelessScope():
            self.unit = make_unit()
            _build_unit(self.unit, input_shape)
            named = named_variables(self.unit)
            # Private to Keras, and the only place where it says how a variable begins.
            self.initializers = [variable._initializer for variable in named.values()]
        self.names, self.variables = list(named), list(named.values())
        state = {id(variable) for variable in _state(self.unit)}
        self.state = [i for i, variable in enumerate(self.variables) if id(variable) in state]
        """Which variables are no weights: moving statistics, states of random generators."""
        self.autocast = [v._autocast and "float" in v.dtype for v in self.variables]
        """Which variables the unit uses in its compute dtype: kernels, but not what normalization is made of."""


def _variable_arguments(unit: keras.layers.Layer) -> dict[str, tuple[str, ...]]:
    """Return the unit's arguments that it keeps in variables, each with their names."""
    return getattr(unit, "variable_arguments", {})


def named_variables(unit: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Return the unit's variables by their path below the unit: "conv1/kernel".

    Where Keras has named a layer, its number is its place among those of its kind in the unit, not in the process.
    """
    named: dict[str, keras.Variable] = {}
    is_state = {id(variable) for variable in _state(unit)}
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
        for part in parts(unit):
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
    free = {"name", *_variable_arguments(unit)}
    configs = [{k: v for k, v in nameless(layer.get_config()).items() if k not in free} for layer in (unit, other)]
    shapes = [{name: v.shape for name, v in named_variables(layer).items()} for layer in (unit, other)]
    frozen = [frozen_parts(layer) for layer in (unit, other)]
    return type(unit) is type(other) and all(pair[0] == pair[1] for pair in (configs, shapes, frozen))


# ---- initial values -----------------------------------------------------------------------------------------------


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


# ---- the loop -----------------------------------------------------------------------------------------------------


def _loop(
    step: Step, x: Any, values: Sequence[Any], n: int, specs: Sequence[tuple[Any, Any]]
) -> tuple[Any, list[Any], Any]:
    """Run `step` n times, the k-th with the k-th part of each value; return x, the stacked updates, summed losses."""
    loop = {"tensorflow": _loop_tensorflow, "jax": _loop_scan}.get(keras.backend.backend(), _loop_written_out)
    return loop(step, x, values, n, specs)


def _loop_tensorflow(
    step: Step, x: Any, values: Sequence[Any], n: int, specs: Sequence[tuple[Any, Any]]
) -> tuple[Any, list[Any], Any]:
    """The loop as `tf.while_loop`, because `keras.ops.scan` fails there where updates and x differ in shape.

    Weights are read from TensorArrays: with `value[k]`, the gradient would fill a whole stack of zeros each time.
    """
    import tensorflow as tf

    small = _Packed([v.dtype.name if v.shape.rank == 2 else None for v in values], [v.shape[1:] for v in values])
    values = small.pack(values)
    arrays = [tf.TensorArray(v.dtype, size=n, element_shape=v.shape[1:]).unstack(v) for v in values]
    state = _Packed([dtype if len(shape) == 1 else None for shape, dtype in specs], [shape for shape, _ in specs])
    collected = tuple(tf.TensorArray(dtype, size=n, element_shape=shape) for shape, dtype in state.pack_specs(specs))

    def body(k: Any, x: Any, loss: Any, collected: Any) -> Any:
        y, updates, unit_loss = step(x, small.unpack([array.read(k) for array in arrays]))
        y.set_shape(x.shape)
        updates = state.pack(updates)
        collected = tuple(array.write(k, update) for array, update in zip(collected, updates, strict=True))
        return k + 1, y, loss + unit_loss, collected

    start = (tf.constant(0), tf.convert_to_tensor(x), tf.constant(0.0), collected)
    _, x, loss, collected = tf.while_loop(lambda k, *_: k < n, body, start, maximum_iterations=n)
    return x, state.unpack([array.stack() for array in collected]), loss


class _Packed:
    """Vectors of one dtype side by side as one vector: each TensorArray costs several operations a unit.

    Args:
        kinds: of each tensor: its dtype, if it is a vector, else `None`.
        shapes: of each tensor, without leading axes.
    """

    def __init__(self, kinds: Sequence[str | None], shapes: Sequence[Any]) -> None:
        by_kind: dict[str, list[int]] = {}
        for i, kind in enumerate(kinds):
            by_kind.setdefault(f"tensor {i}" if kind is None else kind, []).append(i)
        self.groups = list(by_kind.values())
        self.sizes = [[int(shapes[i][0]) for i in group] if len(group) > 1 else [] for group in self.groups]

    def pack(self, tensors: Sequence[Any]) -> list[Any]:
        return [ops.concatenate([tensors[i] for i in g], axis=-1) if len(g) > 1 else tensors[g[0]] for g in self.groups]

    def pack_specs(self, specs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        joined = [(sum(sizes),) if sizes else specs[g[0]][0] for g, sizes in zip(self.groups, self.sizes, strict=True)]
        return [(shape, specs[g[0]][1]) for g, shape in zip(self.groups, joined, strict=True)]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        tensors: dict[int, Any] = {}
        for tensor, group, sizes in zip(packed, self.groups, self.sizes, strict=True):
            parts = ops.split(tensor, np.cumsum(sizes)[:-1].tolist(), axis=-1) if sizes else [tensor]
            tensors.update(zip(group, parts, strict=True))
        return [tensors[i] for i in sorted(tensors)]


def _loop_scan(
    step: Step, x: Any, values: Sequence[Any], n: int, specs: Sequence[tuple[Any, Any]]
) -> tuple[Any, list[Any], Any]:
    def body(carry: Any, values: Any) -> Any:
        x, loss = carry
        y, updates, unit_loss = step(x, values)
        return (y, loss + unit_loss), updates

    (x, loss), updates = ops.scan(body, (x, ops.zeros((), "float32")), list(values), length=n)
    return x, updates, loss


def _loop_written_out(
    step: Step, x: Any, values: Sequence[Any], n: int, specs: Sequence[tuple[Any, Any]]
) -> tuple[Any, list[Any], Any]:
    loss, updates = ops.zeros((), "float32"), []
    # Not `value[k]`: the gradient of an index is a whole stack of zeros.
    for unit_values in zip(*(ops.unstack(value, n) for value in _unchanging(values)), strict=True):
        x, update, unit_loss = step(x, unit_values)
        updates.append(update)
        loss = loss + unit_loss
    return x, [ops.stack(update) for update in zip(*updates, strict=True)], loss


# ---- recomputation ------------------------------------------------------------------------------------------------


def rematerialized(step: Step) -> Step:
    """Return `step` such that its backward pass computes its insides again instead of keeping them.

    `keras.remat` would do, but for updates: it runs those twice on TensorFlow and leaks them on JAX. Here they
    are results of the step, and are assigned outside it.
    """
    if keras.backend.backend() == "tensorflow":
        return partial(_rematerialized_tensorflow, step)
    if keras.backend.backend() == "jax":
        import jax

        return jax.checkpoint(step)
    return partial(_rematerialized_torch, step)


def _rematerialized_torch(step: Step, x: Any, values: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    return keras.remat(step)(x, _unchanging(values))


def _unchanging(values: Sequence[Any]) -> list[Any]:
    """Return values that stay as they are when a step changes their variables: in place, on PyTorch.

    The backward pass reads them later. What is differentiated does not change before it.
    """
    return [value if getattr(value, "requires_grad", False) else ops.copy(value) for value in values]


def _rematerialized_tensorflow(step: Step, x: Any, values: Sequence[Any]) -> tuple[Any, list[Any], Any]:
    """`tf.recompute_grad` for a step: that function takes no integers, and the states of random generators are."""
    import tensorflow as tf

    values = [tf.convert_to_tensor(value) for value in values]  # now: the backward pass must not read them anew
    floating = [i for i, value in enumerate(values) if value.dtype.is_floating]

    def run(x: Any, *floats: Any) -> tuple[Any, list[Any], Any]:
        merged = list(values)
        for i, value in zip(floating, floats, strict=True):
            merged[i] = value
        return step(x, merged)

    @tf.custom_gradient
    def keep_inputs_only(*inputs: Any) -> Any:
        y, updates, loss = run(*inputs)

        def gradient(*upstream: Any) -> Any:
            # Not before the gradient is there; and TensorFlow must not see that it has computed this once already.
            with tf.control_dependencies(upstream[:2]):
                again = [tf.identity(value) for value in inputs]
            with tf.GradientTape() as tape:
                tape.watch(again)
                y, _, loss = run(*again)
            return tape.gradient([y, loss], again, upstream[:2], unconnected_gradients=tf.UnconnectedGradients.ZERO)

        return (y, loss, *updates), gradient

    y, loss, *updates = keep_inputs_only(x, *(values[i] for i in floating))
    return y, updates, loss


def _in_segments(
    step: Step, x: Any, values: Sequence[Any], n: int, specs: Sequence[tuple[Any, Any]], length: int
) -> tuple[Any, list[Any], Any]:
    """Run the loop as one over segments of `length` units, each computed again in the backward pass, and a rest."""
    segments, rest = divmod(n, length)
    cut = segments * length

    def segment(units: int) -> Step:
        return rematerialized(lambda x, values: _loop(step, x, values, units, specs))

    whole = [ops.reshape(value[:cut], (segments, length, *value.shape[1:])) for value in values]
    x, updates, loss = _loop(segment(length), x, whole, segments, [((length, *shape), dtype) for shape, dtype in specs])
    updates = [ops.reshape(update, (cut, *update.shape[2:])) for update in updates]
    if rest:
        x, more, rest_loss = segment(rest)(x, [value[cut:] for value in values])
        updates = [ops.concatenate(parts) for parts in zip(updates, more, strict=True)]
        loss = loss + rest_loss
    return x, updates, loss
