"""Checks that a weights file contains exactly the variables of a network, with finite values.

Keras's own loader ignores extra variables in the file, so the file of another network can load without an error.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError, shown
from keras_preact.keras_private import load_variables
from keras_preact.layers.variables import Renumbering
from keras_preact.models.saving.archive import WEIGHTS, check_stored


@dataclass(frozen=True)
class Variable:
    """A variable in a weights file.

    Attributes:
        name: its path: `stage1_unit01/conv1/kernel`, or `stage1_unit01/conv1/0` in Keras's own files, which number the
            variables of each layer.
        shape: its shape.
        values: a NumPy array or an HDF5 data set.
    """

    name: str
    shape: tuple[int, ...]
    values: Any


class OtherVariables(InputError):
    """A file has more or fewer variables than the network, or has them in another order."""


def check_equal_variables(
    file: str, model: keras.Model, wanted: Mapping[str, Variable], found: Mapping[str, Variable]
) -> None:
    """Refuse a file whose variables differ from those of a network.

    Args:
        file: name of the file.
        model: the network.
        wanted: the network's variables.
        found: the file's variables, by the same keys.

    Raises:
        InputError: the two differ in number, names or shapes.
    """
    remedy = "; build the network with the options of the saved one"
    extra = [variable.name for key, variable in found.items() if key not in wanted]
    missing = [variable.name for key, variable in wanted.items() if key not in found]
    differences = []
    if extra:
        differences.append(f"has {_count(extra)} that {model.name} lacks, the first {shown(extra[0])}")
    if missing:
        differences.append(f"lacks {_count(missing)} that {model.name} needs, the first {shown(missing[0])}")
    if differences:
        raise OtherVariables(f"{file} {', and '.join(differences)}{remedy}")
    defaults = Renumbering(model).kinds
    pairs = [(found[key].name, need.name) for key, need in wanted.items()]
    renamed = [(stored, need) for stored, need in pairs if stored != need and not _are_default(stored, need, defaults)]
    if renamed and {stored for stored, _ in renamed} == {need for _, need in renamed}:
        raise OtherVariables(f"{file} has the layers of {model.name} in another order{remedy}")
    for key, need in wanted.items():
        stored = found[key]
        if _unnumbered(stored.name) != _unnumbered(need.name):
            raise InputError(f"{file} has {shown(stored.name)} where {model.name} has {need.name}{remedy}")
        if stored.shape != need.shape:
            raise InputError(f"{need.name} has shape {stored.shape} in {file} but {need.shape} in {model.name}{remedy}")


def _count(names: list[str]) -> str:
    return f"{len(names)} variable{'' if len(names) == 1 else 's'}"


def cast_checked(values: Any, dtype: Any, what: str) -> np.ndarray:
    """Cast the values of a file to the dtype of a variable.

    Args:
        values: an array: floating-point for a floating-point variable.
        dtype: the variable's dtype.
        what: the weight and its file, for the error message.

    Raises:
        InputError: the values are not floating-point, or some are NaN, infinite, or too large for the dtype; for an
            integer or boolean variable, the dtype cannot hold some of the values.
    """
    values = np.asarray(values)
    if not keras.backend.is_float_dtype(dtype):
        whole = values.astype(keras.backend.standardize_dtype(dtype))
        if not np.array_equal(whole, values):
            raise InputError(f"{what} contains values that {whole.dtype} cannot hold; save the weights again")
        return whole
    if "float" not in values.dtype.name:
        raise InputError(f"{what} is {values.dtype}, not floating-point; save the weights as float32")
    if not np.isfinite(values).all():
        raise InputError(f"{what} contains NaN or infinite values; load weights from before training diverged")
    dtype = keras.backend.standardize_dtype(dtype)
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    if not np.isfinite(converted).all():
        raise InputError(f"{what} contains values too large for {dtype}; build the network with a larger dtype")
    return converted


def _unnumbered(path: str) -> str:
    """Return a path without the numbers that Keras appends to make layer names unique in a process."""
    return re.sub(r"_\d+(?=/|$)", "", path)


def _are_default(stored: str, need: str, defaults: Mapping[str, str]) -> bool:
    """Return whether two paths of a layer differ only in numbers of Keras's default names, which depend on history."""
    pairs = zip(stored.split("/"), need.split("/"), strict=True)
    return all(ours in defaults for theirs, ours in pairs if theirs != ours)


def check_file(file: str, model: keras.Model, content: io.BytesIO) -> None:
    """Raise InputError if a Keras weights file has other variables than the network would save."""
    import h5py  # imported only when a file is read, as in Keras

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.weights.h5"
        model.save_weights(path)
        with h5py.File(path, "r") as saved, h5py.File(content, "r") as file_content:
            wanted, found = _variables(saved), _variables(file_content)
            check_equal_variables(file, model, wanted, found)
            for name, variable in wanted.items():
                dtype = array_of(variable.values).dtype
                if "float" in dtype.name:
                    cast_checked(array_of(found[name].values), dtype, f"{variable.name} in {file}")


def has_loss_scale(content: io.BytesIO) -> bool | None:
    """Return whether the optimizer in a Keras weights file is a `LossScaleOptimizer`; `None` without an optimizer."""
    import h5py

    content.seek(0)
    with h5py.File(content, "r") as file:
        optimizer = file.get("optimizer")
        return None if optimizer is None else "inner_optimizer" in optimizer


def load_state(model: keras.Model, content: io.BytesIO, visited: set[int]) -> set[int]:
    """Load a model's variables as Keras does, but from checked bytes instead of a path.

    Args:
        model: the network.
        content: the HDF5 file of its weights.
        visited: ids of the objects to skip; the ids of the loaded objects are added.

    Returns:
        `visited`.

    Raises:
        ValueError: the file has no values of the right shape for some variable.
    """
    content.seek(0)
    if failed := load_variables(model, content, visited):
        layer, reason = next(iter(failed.values()))
        raise ValueError(f"{getattr(layer, 'name', type(layer).__name__)}: {reason}")
    return visited


def read_h5(path: Path) -> io.BytesIO:
    """Return the content of an HDF5 file, or of the weights in a `.keras` file after checking their CRC."""
    if path.suffix != ".keras":
        return io.BytesIO(path.read_bytes())
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        check_stored(path.name, archive, os.fstat(file.fileno()).st_size)
        return io.BytesIO(archive.read(WEIGHTS))


_TRAINING = ("optimizer", "metrics", "losses")
"""Groups of a weights file that belong to the compilation of a model, not to the model."""


def _variables(file: Any) -> dict[str, Variable]:
    """Return the variables of a network in an HDF5 file, by their HDF5 paths, without those of its training.

    Links are not followed, so linked data count as missing.
    """
    import h5py

    names: dict[str, str] = {}
    arrays: dict[str, Any] = {}

    def visit(place: str, member: Any) -> None:
        if place.split("/")[0] in _TRAINING:
            return
        if isinstance(member, h5py.Dataset):
            arrays[place] = member
        elif place.endswith("/vars") and "name" in member.attrs:
            names[place.removesuffix("/vars")] = "".join(filter(str.isprintable, str(member.attrs["name"])))

    file.visititems(visit)
    found = {place: Variable(_name(place, names), array.shape, array) for place, array in arrays.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def _name(place: str, names: Mapping[str, str]) -> str:
    """Return the name of the variable at an HDF5 path, or the path itself if Keras stored no layer names."""
    group, _, variable = place.partition("/vars/")
    ends = [match.start() for match in re.finditer("/|$", group)]
    layers = [names[group[:end]] for end in ends if group[:end] in names]
    return "/".join([*layers, variable]) if layers else "".join(filter(str.isprintable, place))


def array_of(dataset: Any) -> np.ndarray:
    """Return an HDF5 data set as an array. HDF5 lacks bfloat16; Keras writes its bytes, with the dtype as attribute."""
    values = np.array(dataset)
    return values.view("bfloat16") if dataset.attrs.get("dtype") == "bfloat16" else values
