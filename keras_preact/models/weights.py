"""The weights of a network by name, whether its units are layers of their own or rolled into stacks; files of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.keras_private import direct_layers, own_state, own_trainable
from keras_preact.layers.functional import named_variables
from keras_preact.layers.stack import UnitStack
from keras_preact.models.archive import check_weights
from keras_preact.models.named_weights import _layers, _stage, _unit_paths, assign_checked
from keras_preact.models.safetensors import load_safetensors
from keras_preact.models.stored import (
    array_of,
    check_file,
    load_state,
    opened,
)

ENDINGS = (".weights.h5", ".keras", ".safetensors")
"""How the names of files end that weights are loaded from."""


def load_weights(model: keras.Model, path: str | Path) -> None:
    """Set a model's weights to those of a file, all of them or none, whether units are rolled in the one or the other.

    Keras's own `model.load_weights` needs the network in the form that it was saved in: rolled where that was rolled.

    Args:
        model: the network whose weights were saved, in any of its forms (`rolled`, `remat`).
        path: a `.weights.h5` or `.keras` file of Keras, or a `.safetensors` file of `save_safetensors`.

    Raises:
        InputError: no such file, a damaged one, or one with weights that are missing, too many or of another shape;
            the model is unchanged if the form is another than the file's.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "mine.weights.h5"
    >>> cifar_resnet(14, rolled=True).save_weights(path)
    >>> load_weights(cifar_resnet(14), path)
    """
    path = Path(path)
    if not path.name.endswith(ENDINGS):
        raise InputError(
            f"{path.name} is no file of weights, and no trained weights are downloaded; give one that ends in "
            f"{', '.join(ENDINGS)}"
        )
    if not path.is_file():
        raise InputError(
            f"there is no file {path}, and no trained weights are downloaded; give the path of one that ends in "
            f"{', '.join(ENDINGS)}"
        )
    if path.suffix == ".safetensors":
        load_safetensors(model, path)
        return
    try:
        stored = _StoredWeights(path)
        if stored.stacks == {path: stack.rolled for path, stack in _layers(model) if isinstance(stack, UnitStack)}:
            check_file(path.name, model, stored.content)
            load_state(model, stored.content, set())
            return
        values = stored.unrolled(model)
    except InputError:
        raise
    except Exception as error:  # what a damaged file brings up in h5py can be anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path.name} cannot be read ({reason}); save it again") from None
    assign_checked(path.name, model, values)


class _StoredWeights:
    """The arrays in a weights file of Keras, by the names of their layers.

    Keras numbers the layers of a file by class, so a stack in place of units moves the number of every later unit.
    The file also holds the names of the layers, and these do not move.

    Attributes:
        content: of the HDF5 file, checked.
        arrays: by the path of the layer and the variable's number in it: `"stage1_unit01/conv1/0"`.
        layers: paths of all layers.
        stacks: paths of the stacks, and whether each is rolled.
    """

    def __init__(self, path: Path) -> None:
        import h5py  # Keras imports it only when it reads a file

        self.content = opened(path)
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
                own = inside["vars"]
                below = f"{path}{own.attrs.get('name', key)}/"
                self.layers.add(below)
                self.arrays |= {f"{below}{number}": array_of(own[number]) for number in own}
            if key.startswith("unit_stack"):
                self.stacks[below] = "units" not in inside
            if not self.stacks.get(below):  # a rolled stack has all that is needed in its own variables
                self._read(inside, below)

    def unrolled(self, model: keras.Model) -> dict[str, np.ndarray]:
        """Return the arrays by the names of `named_weights`, without random states; others by names of their own.

        Raises:
            InputError: a stack of the file has more units than the model.
        """
        names, by_unit = _names_in_files(model), self._paths_of_units(model)
        found: dict[str, np.ndarray] = {}
        for name, array in self.arrays.items():
            stack = next((path for path in self.stacks if name.startswith(path)), "")
            if stack and self.stacks[stack]:
                number = int(name.removeprefix(stack))
                for path, value in zip(by_unit[stack], array, strict=True):
                    found[names.get(f"{path}#{number}", f"{path}{number}")] = value
                continue
            if stack:
                unit, _, inside = name.removeprefix(stack).partition("/")
                name = f"{by_unit[stack][int(unit.removeprefix('unit')) - 1]}{inside}"
            found[names.get(name, name)] = array
        return {name: value for name, value in found.items() if "float" in value.dtype.name}

    def _paths_of_units(self, model: keras.Model) -> dict[str, list[str]]:
        """Return the paths of the units of each stack in the file: the model's, in order, that the file has nowhere."""
        free = {path: None for paths in _unit_paths(model).values() for path in paths if path not in self.layers}
        found: dict[str, list[str]] = {}
        for stack, rolled in self.stacks.items():
            members = [name.removeprefix(stack) for name in self.arrays if name.startswith(stack)]
            count = len({member.partition("/")[0] for member in members})
            if rolled and members:
                count = len(self.arrays[stack + members[0]])
            paths = [path for path in free if _stage(path) == _stage(stack)][:count]
            if len(paths) < count:
                raise InputError(
                    f"{self.source} has {count} units in {stack.rstrip('/')}, and {model.name} has {len(paths)}; build "
                    "it with the options of the network that was saved"
                )
            found[stack] = paths
            free = {path: None for path in free if path not in paths}
        return found


def _names_in_files(model: keras.Model) -> dict[str, str]:
    """Return the names of the unrolled network's weights by those in a file, where variables are numbers in layers.

    Each weight also has its number in the whole unit, `"stage1_unit02/#7"`, which a rolled stack saves it by.
    """
    found: dict[str, str] = {}
    units = _unit_paths(model)
    for path, layer in _layers(model):
        for k, unit_path in enumerate(units.get(path, [path])):
            unit = layer
            if isinstance(layer, UnitStack):
                unit = layer.loop_unit() if layer.rolled else layer.units[k]
            named = named_variables(unit)
            found |= {f"{unit_path}#{number}": f"{unit_path}{name}" for number, name in enumerate(named)}
            by_variable = {id(variable): name for name, variable in named.items()}
            found |= {
                f"{unit_path}{place}": f"{unit_path}{by_variable[id(variable)]}" for place, variable in _numbered(unit)
            }
    return found


def _numbered(layer: keras.layers.Layer, path: str = "") -> Iterator[tuple[str, keras.Variable]]:
    """Yield the variables of a layer and of those in it by the layer's name and the number that Keras saves them by."""
    for number, variable in enumerate([*own_trainable(layer), *own_state(layer)]):
        yield f"{path}{number}", variable
    for inside in direct_layers(layer):
        yield from _numbered(inside, f"{path}{inside.name}/")
