"""The weights of a network by name, whether its units are layers of their own or rolled into stacks; files of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, named_variables
from keras_preact.models.archive import check_weights
from keras_preact.models.resnet import units_in
from keras_preact.models.stored import (
    Variable,
    array_of,
    check_equal_variables,
    check_file,
    finite,
    load_state,
    opened,
)

ENDINGS = (".weights.h5", ".keras", ".safetensors")
"""How the names of files end that weights are loaded from."""

# ---- in a network -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weight:
    """A weight of a network: a variable, or the part of a stacked variable that belongs to one unit.

    Attributes:
        variable: the variable.
        unit: index of the unit in a stacked variable; `None` for a variable that is not stacked.
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
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(value, "float32")))


def named_weights(model: keras.Model) -> dict[str, Weight]:
    """Return the weights of a model, trained and not trained, by the paths that they have in the unrolled network.

    Random states are left out: they are integers, and no part of the function that was learned.

    >>> from keras_preact.models import cifar_resnet
    >>> rolled, unrolled = (named_weights(cifar_resnet(14, rolled=rolled)) for rolled in (True, False))
    >>> rolled.keys() == unrolled.keys(), list(rolled)[0], rolled["stage1_unit02/conv1/kernel"].shape
    (True, 'stem_conv/kernel', (3, 3, 16, 16))
    """
    found: dict[str, Weight] = {}
    units = _unit_paths(model)
    for path, layer in _layers(model):
        if isinstance(layer, UnitStack):
            for k, unit in enumerate(units[path]):
                found |= {f"{unit}{name}": Weight(*place) for name, place in layer.unit_variables(k).items()}
        else:
            found |= {f"{path}{name}": Weight(variable) for name, variable in named_variables(layer).items()}
    return {name: weight for name, weight in found.items() if keras.backend.is_float_dtype(weight.variable.dtype)}


def assign(model: keras.Model, weights: Mapping[str, Weight], values: Mapping[str, Any]) -> None:
    """Set weights of a model; a stacked variable once, to the values of all its units.

    Args:
        model: the weights' model.
        weights: of `named_weights`, all of them.
        values: by the same names, of the weights' shapes.
    """
    stacked: dict[int, tuple[keras.Variable, np.ndarray]] = {}
    for name, weight in weights.items():
        value, variable = np.asarray(values[name]).astype("float32"), weight.variable
        if weight.unit is None:
            variable.assign(value)
        else:
            stacked.setdefault(id(variable), (variable, np.empty(tuple(variable.shape), "float32")))
            stacked[id(variable)][1][weight.unit] = value
    for variable, whole in stacked.values():
        variable.assign(whole)
    for layer in model._flatten_layers():
        if hasattr(layer, "finalize_state"):  # Keras's normalization of inputs computes with copies of its weights
            layer.finalize_state()


def _layers(model: keras.Model, path: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield the layers of a model and of the models in it, with their paths, which end in a slash."""
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        yield path, model  # its layers are attributes
        return
    for layer in model.layers:
        below = f"{path}{layer.name}/"
        if isinstance(layer, keras.Model):
            yield from _layers(layer, below)
        else:
            yield below, layer


def _unit_paths(model: keras.Model) -> dict[str, list[str]]:
    """Return the paths that the units of each stack have in the unrolled network, and of other units their own.

    Units are numbered by stage, as the builders and `unroll` do it.
    """
    found: dict[str, list[str]] = {}
    count = Counter[str]()
    for path, layer in _layers(model):
        stage = _stage(path)
        before = count[stage]
        count[stage] += layer.repeats if isinstance(layer, UnitStack) else units_in(layer)
        if isinstance(layer, UnitStack):
            word = "unit" if issubclass(layer.unit_type, ResidualLayer) else "block"
            found[path] = [f"{stage}_{word}{number:02d}/" for number in range(before + 1, count[stage] + 1)]
        elif units_in(layer):
            found[path] = [path]
    return found


def _stage(path: str) -> str:
    """Return the path of a unit or a stack up to the end of its stage's name.

    >>> _stage("backbone_1/stage2_unit07/")
    'backbone_1/stage2'
    """
    above, slash, name = path.rstrip("/").rpartition("/")
    return f"{above}{slash}{name.split('_')[0]}"


# ---- in a file ----------------------------------------------------------------------------------------------------


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
        from keras_preact.interop.files import load_safetensors  # it imports this module

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


def assign_checked(source: str, model: keras.Model, values: Mapping[str, np.ndarray]) -> None:
    """Set the weights of a model to the values of a file, by the names of `named_weights`: all of them, or none.

    Args:
        source: name of the file, for messages.
        model: the network.
        values: by name.

    Raises:
        InputError: names or shapes differ from the model's, or a value is not finite in its variable's dtype.
    """
    weights = named_weights(model)
    wanted = {name: Variable(name, weight.shape, weight) for name, weight in weights.items()}
    found = {name: Variable(name, tuple(value.shape), value) for name, value in sorted(values.items())}
    check_equal_variables(source, model, wanted, found)
    for name, weight in weights.items():
        finite(values[name], weight.variable.dtype, f"{name} in {source}")
    assign(model, weights, values)


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
    # Private to Keras, as its own saving has it.
    for number, variable in enumerate([*layer._trainable_variables, *layer._non_trainable_variables]):
        yield f"{path}{number}", variable
    for inside in layer._layers:
        yield from _numbered(inside, f"{path}{inside.name}/")
