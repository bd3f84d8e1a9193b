"""Loading weights files into networks, rolled or not."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError, first_line
from keras_preact.keras_private import direct_layers, layers_inside, own_state, own_trainable
from keras_preact.layers.copies import clone
from keras_preact.layers.graph import check_model
from keras_preact.layers.loop_unit import LoopUnit
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.unit_names import stage_of
from keras_preact.layers.variables import is_random_state, named_variables, variable_arguments
from keras_preact.models.saving.archive import check_weights
from keras_preact.models.saving.hdf5 import OtherVariables, array_of, check_file, load_state, read_h5
from keras_preact.models.saving.named_weights import (
    arguments_kept,
    assign_checked,
    layers_by_path,
    renumbered,
    unit_paths,
)
from keras_preact.models.saving.safetensors import load_safetensors

ENDINGS = (".weights.h5", ".keras", ".safetensors")
"""The endings of weights files."""


def load_weights(model: keras.Model, path: str | Path) -> None:
    """Load all weights of a model from a file, whether the saved and the loading network are rolled or not.

    Keras's own `model.load_weights` requires the form that was saved, rolled or not. Rates of drop path are arguments,
    not weights: the model keeps its own.

    Args:
        model: the saved network, with any `rolled`, `remat` and `drop_path`.
        path: a `.weights.h5` or `.keras` file of Keras, or a `.safetensors` file of `save_safetensors`.

    Raises:
        InputError: the file does not exist or is damaged, or has missing or extra weights, or weights of a
            different shape or that are not finite. The file is checked before the model is changed.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "mine.weights.h5"
    >>> cifar_resnet(14, rolled=True).save_weights(path)
    >>> load_weights(cifar_resnet(14), path)
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path is {path!r}; pass the network first and then the path of the file")
    check_model(model)
    path = Path(path)
    has_ending = path.name.endswith(ENDINGS)
    if not has_ending or not path.is_file():
        raise InputError(
            f"{path} {'does not exist' if has_ending else 'is not a weights file'}; pass the path of a file ending in "
            f"{', '.join(ENDINGS)}, or the data set of trained weights to a builder, such as weights='cifar10'"
        )
    if not model.built:
        raise InputError(f"{model.name} has no weights yet; call it on a batch, or build it, before you load any")
    if path.suffix == ".safetensors":
        load_safetensors(model, path)
        return
    try:
        stored = _StoredWeights(path)
        stacks = {path: stack.rolled for path, stack in layers_by_path(model) if isinstance(stack, UnitStack)}
        # Subclassed models, and stacks inside other layers, have no names of their own: only the saved form fits.
        as_saved = sum(isinstance(layer, UnitStack) for layer in layers_inside(model)) > len(stacks)
        as_saved = as_saved or any(layer is model for _, layer in layers_by_path(model))
        if as_saved or stored.stacks == stacks:
            try:
                check_file(path.name, model, stored.content)
                with arguments_kept(model):
                    optimizer = getattr(model, "optimizer", None)  # which is no part of the network
                    load_state(model, stored.content, {id(optimizer)})
                return
            except OtherVariables:  # perhaps only those of drop path
                if as_saved:
                    raise
        values = stored.unrolled(model)
    except InputError:
        raise
    except Exception as error:  # for a damaged file, h5py may raise any exception
        raise InputError(f"{path.name} cannot be read ({first_line(error)}); save it again") from None
    assign_checked(path.name, model, values)


class _StoredWeights:
    """The arrays in a weights file of Keras, by the names of their layers.

    Keras numbers the layers of a file by class, so rolling units into a stack renumbers every later unit. The layer
    names, which the file also stores, stay the same.

    Attributes:
        content: the checked HDF5 file.
        arrays: arrays by the path of the layer and the variable's number in it: `"stage1_unit01/conv1/0"`.
        layers: paths of all layers.
        stacks: whether each stack is rolled, by path.
    """

    def __init__(self, path: Path) -> None:
        import h5py  # imported only when a file is read, as in Keras

        self.content = read_h5(path)
        check_weights(path.name, self.content)
        self.source = path.name
        self.arrays: dict[str, np.ndarray] = {}
        self.layers: set[str] = set()
        self.stacks: dict[str, bool] = {}
        with h5py.File(self.content, "r") as file:
            self._read(file.get("layers", {}), "")

    def _read(self, group: Any, path: str) -> None:
        for key in group:
            inside, below = group[key], path
            if key == "vars" or not hasattr(inside, "keys"):
                continue
            if "vars" in inside:
                variables = inside["vars"]
                below = f"{path}{variables.attrs.get('name', key)}/"
                self.layers.add(below)
                self.arrays |= {f"{below}{number}": array_of(variables[number]) for number in variables}
            if key.startswith("unit_stack"):
                self.stacks[below] = "units" not in inside
            if not self.stacks.get(below):  # a rolled stack stores all its weights in its own variables
                self._read(inside, below)

    def unrolled(self, model: keras.Model) -> dict[str, np.ndarray]:
        """Return the arrays, except random states, by the names of `named_weights` or, if unknown, their own.

        Raises:
            InputError: a stack in the file has more units than the model.
        """
        names = _names_in_files(model)
        self._renumber(model, [*names, *(path for path, _ in layers_by_path(model))])
        by_unit = self._paths_of_units(model)
        found: dict[str, np.ndarray] = {}
        for name, array in self.arrays.items():
            stack = next((path for path in self.stacks if name.startswith(path)), "")
            if stack and self.stacks[stack]:
                continue  # below
            if stack:
                unit, _, inside = name.removeprefix(stack).partition("/")
                name = f"{by_unit[stack][int(unit.removeprefix('unit')) - 1]}{inside}"
            found[name] = array
        paths = renumbered(model, found, names)  # now of the layers in units too
        found = {names.get(paths[name], paths[name]): value for name, value in found.items()} | self._slices(
            model, by_unit
        )
        return {name: value for name, value in found.items() if not is_random_state(name)}

    def _slices(self, model: keras.Model, by_unit: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        """Return the slices of the arrays of rolled stacks, by the names of `named_weights`."""
        units, found = dict(_units(model)), {}
        for stack in (stack for stack, rolled in self.stacks.items() if rolled):
            arrays = {name.removeprefix(stack): array for name, array in self.arrays.items() if name.startswith(stack)}
            for k, path in enumerate(by_unit[stack]):
                names = dict(enumerate(_names_in_stack(units[path], len(arrays))))
                for number, array in arrays.items():
                    if len(array) != len(by_unit[stack]):
                        raise ValueError(f"{stack}{number} has {len(array)} units instead of {len(by_unit[stack])}")
                    found[f"{path}{names.get(int(number), number)}"] = array[k]
        return found

    def _renumber(self, model: keras.Model, wanted: list[str]) -> None:
        """Give the layers of the file the numbers that the model's have in their default names."""
        paths = renumbered(model, [*self.arrays, *self.layers, *self.stacks], wanted)
        self.arrays = {paths[name]: array for name, array in self.arrays.items()}
        self.layers = {paths[path] for path in self.layers}
        self.stacks = {paths[path]: rolled for path, rolled in self.stacks.items()}

    def _paths_of_units(self, model: keras.Model) -> dict[str, list[str]]:
        """Return, for each stack in the file, the paths of its units: those in the model that are no layers there."""
        free = {path: None for paths in unit_paths(model).values() for path in paths if path not in self.layers}
        found: dict[str, list[str]] = {}
        for stack, rolled in self.stacks.items():
            members = [name.removeprefix(stack) for name in self.arrays if name.startswith(stack)]
            count = len({member.partition("/")[0] for member in members})
            if rolled and members:
                count = len(self.arrays[stack + members[0]])
            paths = [path for path in free if stage_of(path) == stage_of(stack)][:count]
            if len(paths) < count:
                raise InputError(
                    f"{self.source} has {count} units in {stack.rstrip('/')} but {model.name} has {len(paths)}; build "
                    "the network with the options of the saved one"
                )
            found[stack] = paths
            free = {path: None for path in free if path not in paths}
        return found


def _names_in_files(model: keras.Model) -> dict[str, str]:
    """Map the names in a Keras file, which numbers the variables of each layer, to those of `named_weights`."""
    found: dict[str, str] = {}
    for path, unit in _units(model):
        names = {id(variable): name for name, variable in named_variables(unit).items()}
        found |= {f"{path}{place}": f"{path}{names[id(variable)]}" for place, variable in _numbered(unit)}
    return found


def _units(model: keras.Model) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield the layers of a model, and the units of its stacks, with their paths in the unrolled network."""
    units = unit_paths(model)
    for path, layer in layers_by_path(model):
        for k, unit_path in enumerate(units.get(path, [path])):
            yield unit_path, layer.own_unit(k) if isinstance(layer, UnitStack) else layer


def _names_in_stack(unit: keras.layers.Layer, count: int) -> list[str]:
    """Return the names of a stored unit's `count` variables; it may have drop path where the model's has none."""
    names = list(named_variables(unit))
    if len(names) != count and "drop_path" in variable_arguments(unit):
        shape, state = unit.get_build_config()["input_shape"], random.getstate()
        # The numbers of frozen layers count the layer of drop path.
        free = {"frozen": None} if "frozen" in unit.get_config() else {}
        for rate in (0.0, 0.5):
            other = LoopUnit(partial(clone, unit, drop_path=rate, **free), shape, unit.compute_dtype).names
            names = other if len(other) == count else names
        random.setstate(state)  # initializers draw their seeds
    return names


def _numbered(layer: keras.layers.Layer, path: str = "") -> Iterator[tuple[str, keras.Variable]]:
    """Yield the variables of a layer and of its inner layers by the layer's name and Keras's number in the file."""
    for number, variable in enumerate([*own_trainable(layer), *own_state(layer)]):
        yield f"{path}{number}", variable
    if isinstance(layer, UnitStack) and layer.rolled:
        return  # the file has its own variables alone, not those of the unit that runs
    for inside in direct_layers(layer):
        yield from _numbered(inside, f"{path}{inside.name}/")
