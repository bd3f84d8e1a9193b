"""The weights of a network by name. The names do not depend on whether its stages are rolled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.keras_private import layers_inside
from keras_preact.layers.copies import refresh_normalizations
from keras_preact.layers.graph import weights_outside_graph
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.unit_names import unit_names
from keras_preact.layers.variables import Renumbering, argument_variables, is_random_state, named_variables
from keras_preact.models.saving.hdf5 import Variable, cast_checked, check_equal_variables

_DROP_PATH = re.compile(r"(^|/)drop_path/(rate|0)$")
"""The rate in a unit with drop path, by name or by Keras's number in a file."""


@dataclass(frozen=True)
class Weight:
    """A weight of a network: a variable, or one unit's slice of a stacked variable.

    Attributes:
        variable: the variable.
        unit: index of the unit in a stacked variable; `None` if the variable is not stacked.
    """

    variable: keras.Variable
    unit: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return tuple(self.variable.shape)[self.unit is not None :]

    def value(self) -> np.ndarray:
        """Return the weight's value."""
        value = self.variable if self.unit is None else self.variable[self.unit]
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(value, _numpy_dtype(self.variable))))


def _numpy_dtype(variable: keras.Variable) -> str:
    """Return the dtype in which NumPy holds a weight; it has no bfloat16."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return "float32" if keras.backend.is_float_dtype(dtype) and dtype != "float64" else dtype


def named_weights(model: keras.Model) -> dict[str, Weight]:
    """Return the weights of a model, trainable or not, by their paths in the unrolled network.

    Random states and rates of drop path are left out: they are not part of the learned function.

    >>> from keras_preact.models import cifar_resnet
    >>> rolled, unrolled = (named_weights(cifar_resnet(14, rolled=rolled)) for rolled in (True, False))
    >>> rolled.keys() == unrolled.keys(), list(rolled)[0], rolled["stage1_unit02/conv1/kernel"].shape
    (True, 'stem_conv/kernel', (3, 3, 16, 16))
    """
    refuse_quantized(model)
    _refuse_weights_outside_graph(model)
    return _weights_and_arguments(model)[0]


def refuse_quantized(model: keras.Model) -> None:
    """Raise InputError if Keras has quantized the model: names and files of weights are for floats only."""
    quantized = [variable.path for variable in model.weights if "int8" in str(variable.dtype)]
    if quantized:
        raise InputError(
            f"{model.name} is quantized ({quantized[0]} contains integers), and these files are for floats; use them "
            "before you quantize the network, or use Keras's model.save, model.save_weights and model.load_weights"
        )


def _refuse_weights_outside_graph(model: keras.Model) -> None:
    """Raise InputError if the model, or one inside it, has weights that belong to no layer of its graph."""
    for each in [model, *(layer for layer in layers_inside(model) if isinstance(layer, keras.Model))]:
        if outside := weights_outside_graph(each):
            raise InputError(
                f"{outside[0].path} is a weight of {each.name} but of no layer in its graph, and would be lost; use "
                "Keras's model.save_weights and model.load_weights"
            )


def _weights_and_arguments(model: keras.Model) -> tuple[dict[str, Weight], dict[str, Weight]]:
    """Return the weights, and the variables that hold arguments, such as the rates of drop path."""
    found: dict[str, Weight] = {}
    arguments: set[str] = set()
    units = unit_paths(model)
    for path, layer in layers_by_path(model):
        if isinstance(layer, UnitStack):
            for k, unit in enumerate(units[path]):
                found |= {f"{unit}{name}": Weight(*place) for name, place in layer.unit_variables(k).items()}
                arguments |= {f"{unit}{name}" for name in argument_variables(layer.own_unit(k))}
        else:
            found |= {f"{path}{name}": Weight(variable) for name, variable in named_variables(layer).items()}
            arguments |= {f"{path}{name}" for name in argument_variables(layer)}
    weights = {name: found[name] for name in found if name not in arguments and not is_random_state(name)}
    return weights, {name: found[name] for name in arguments}


@contextlib.contextmanager
def arguments_kept(model: keras.Model) -> Iterator[None]:
    """Return a context after which the variables that hold arguments have the values that they had before."""
    variables = {id(weight.variable): weight.variable for weight in _weights_and_arguments(model)[1].values()}
    before = {key: keras.ops.copy(variable) for key, variable in variables.items()}
    try:
        yield
    finally:
        for key, variable in variables.items():
            variable.assign(before[key])


def assign(model: keras.Model, weights: Mapping[str, Weight], values: Mapping[str, Any]) -> None:
    """Set all weights of a model; a stacked variable is assigned once, with the values of all its units.

    Args:
        model: the model.
        weights: all its weights, from `named_weights`.
        values: arrays of the weights' shapes, by the same names.
    """
    stacked: dict[int, tuple[keras.Variable, np.ndarray]] = {}
    for name, weight in weights.items():
        variable = weight.variable
        dtype = _numpy_dtype(variable)
        value = np.asarray(values[name]).astype(dtype)
        if weight.unit is None:
            variable.assign(value)
        else:
            stacked.setdefault(id(variable), (variable, np.empty(tuple(variable.shape), dtype)))
            stacked[id(variable)][1][weight.unit] = value
    for variable, whole in stacked.values():
        variable.assign(whole)
    refresh_normalizations(model)


def layers_by_path(model: keras.Model, path: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield the layers of a model and of nested models, with their paths, which end in a slash."""
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        yield path, model  # a subclassed model
        return
    for layer in model.layers:
        below = f"{path}{layer.name}/"
        if isinstance(layer, keras.Model):
            yield from layers_by_path(layer, below)
        else:
            yield below, layer


def unit_paths(model: keras.Model) -> dict[str, list[str]]:
    """Return, for each stack or unit, the paths of its units in the unrolled network."""
    found = unit_names((path.rstrip("/"), layer) for path, layer in layers_by_path(model))
    return {f"{path}/": [f"{name}/" for name in names] for path, names in found.items()}


def renumbered(model: keras.Model, found: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Map the paths in a file to those of a model whose layers have other numbers in their default names.

    Keras numbers default names across the whole process: the `dense_1` of one process is the `dense_7` of another.
    Within each layer, default names of one kind correspond in the order of their numbers.

    Args:
        model: the model.
        found: paths in the file.
        wanted: paths in the model.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense_7")])
    >>> renumbered(model, ["dense_1/kernel", "head/kernel"], ["dense_7/kernel", "head/kernel"])
    {'dense_1/kernel': 'dense_7/kernel', 'head/kernel': 'head/kernel'}
    """
    units = [layer.loop_unit() for _, layer in layers_by_path(model) if isinstance(layer, UnitStack) and layer.rolled]
    kinds = {kind for layer in (model, *units) for kind in Renumbering(layer).kinds.values()}
    return _renumbered(kinds, list(found), list(wanted))


def _renumbered(kinds: set[str], found: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    theirs, ours = _by_first_name(found), _by_first_name(wanted)
    in_file, in_model = _by_kind(kinds, theirs), _by_kind(kinds, ours)
    names = {name: name for name in theirs}
    for kind, numbered in in_file.items():
        if len(numbered) == len(in_model.get(kind, ())):  # otherwise, the file is of another network
            names |= dict(zip(numbered, in_model[kind], strict=True))
    paths = {path: path for path in found if "/" not in path}
    for name, inside in theirs.items():
        below = _renumbered(kinds, inside, ours.get(names[name], ()))
        paths |= {f"{name}/{old}": f"{names[name]}/{new}" for old, new in below.items()}
    return paths


def _by_first_name(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the rest of each path that has several names, by the first one."""
    found: dict[str, list[str]] = {}
    for path in paths:
        name, slash, rest = path.partition("/")
        if slash:
            found.setdefault(name, []).append(rest)
    return found


def _by_kind(kinds: set[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return default names by kind, in the order of their numbers; the first layer of a kind has none."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for name in names:
        kind, _, number = name.rpartition("_")
        if not number.isdecimal():
            kind, number = name, ""
        if kind in kinds:
            found.setdefault(kind, []).append((len(number), number, name))
    return {kind: [name for *_, name in sorted(entries)] for kind, entries in found.items()}


def assign_checked(source: str, model: keras.Model, values: Mapping[str, np.ndarray]) -> None:
    """Set the weights of a model to the values of a file. If an error is raised, the model is unchanged.

    Args:
        source: name of the file, for error messages.
        model: the network.
        values: arrays by the names of `named_weights`, in which default names of layers may have other numbers.
            Rates of drop path are ignored.

    Raises:
        InputError: names or shapes differ from the model's, or a value is not finite in its variable's dtype.
    """
    refuse_quantized(model)
    _refuse_weights_outside_graph(model)
    weights, arguments = _weights_and_arguments(model)
    paths = renumbered(model, values, [*weights, *arguments])
    values = {paths[name]: value for name, value in values.items()}
    # Files of the network with other arguments, or in Keras's own format, hold these.
    ignored = {name for name in values if name not in weights and (name in arguments or _DROP_PATH.search(name))}
    values = {name: value for name, value in values.items() if name not in ignored}
    wanted = {name: Variable(name, weight.shape, weight) for name, weight in weights.items()}
    found = {name: Variable(name, tuple(value.shape), value) for name, value in sorted(values.items())}
    check_equal_variables(source, model, wanted, found)
    for name, weight in weights.items():
        cast_checked(values[name], weight.variable.dtype, f"{name} in {source}")
    assign(model, weights, values)
