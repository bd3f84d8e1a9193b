"""The variables in a file of weights: whether they are exactly those that a network needs, and finite.

Keras's own loader reads what the network asks for and ignores whatever else the file holds, so that the file of another
network can load without an error.
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
from keras_preact.models.archive import WEIGHTS, check_stored


@dataclass(frozen=True)
class Variable:
    """A variable as a file has it.

    Attributes:
        name: with the names of the layers that it is in: `stage1_unit01/conv1/kernel`. (Keras's own files number the
            variables of a layer: `stage1_unit01/conv1/0`.)
        shape: of its values.
        values: an array of NumPy or HDF5.
    """

    name: str
    shape: tuple[int, ...]
    values: Any


def check_equal_variables(
    file: str, model: keras.Model, wanted: Mapping[str, Variable], found: Mapping[str, Variable]
) -> None:
    """Refuse a file that holds more, fewer or other variables than a network needs.

    Args:
        file: its name.
        model: the network.
        wanted: what it needs, by keys that are the same in both.
        found: what the file holds.

    Raises:
        InputError: the two differ in number, names or shapes.
    """
    remedy = "; build the network with the options of the one that was saved"
    extra = [variable.name for key, variable in found.items() if key not in wanted]
    missing = [variable.name for key, variable in wanted.items() if key not in found]
    differences = [f"holds {_count(extra)} that {model.name} lacks, the first {shown(extra[0])}"] if extra else []
    differences += (
        [f"lacks {_count(missing)} that {model.name} needs, the first {shown(missing[0])}"] if missing else []
    )
    if differences:
        raise InputError(f"{file} {', and '.join(differences)}{remedy}")
    for key, need in wanted.items():
        held = found[key]
        if _unnumbered(held.name) != _unnumbered(need.name):
            raise InputError(f"{file} holds {shown(held.name)} where {model.name} has {need.name}{remedy}")
        if held.shape != need.shape:
            raise InputError(f"{need.name} is {held.shape} in {file} and {need.shape} in {model.name}{remedy}")


def _count(names: list[str]) -> str:
    return f"{len(names)} variable{'' if len(names) == 1 else 's'}"


def finite(values: Any, dtype: Any, what: str) -> np.ndarray:
    """Return values of floating point in another dtype.

    Args:
        values: an array of floating point.
        dtype: of the variable that they are for.
        what: the file and the weight, for the message.

    Raises:
        InputError: no floating-point numbers, or some that are NaN, infinite, or too large for the dtype.
    """
    values = np.asarray(values)
    if "float" not in values.dtype.name:
        raise InputError(f"{what} holds {values.dtype}, no floating-point numbers; nothing was loaded")
    if not np.isfinite(values).all():
        raise InputError(f"{what} holds values that are NaN or infinite; nothing was loaded")
    dtype = keras.backend.standardize_dtype(dtype)
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    if not np.isfinite(converted).all():
        raise InputError(f"{what} holds values that are too large for {dtype}; nothing was loaded")
    return converted


def _unnumbered(layer: str) -> str:
    """Return layers' names without the numbers by which Keras tells equal names in one process apart."""
    return re.sub(r"_\d+(?=/|$)", "", layer)


def check_file(file: str, model: keras.Model, content: io.BytesIO) -> None:
    """Raise InputError where a file of Keras differs from the one that the network would be saved to."""
    import h5py  # Keras does without until a file is read

    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own.weights.h5"
        model.save_weights(own)
        with h5py.File(own, "r") as needed, h5py.File(content, "r") as held:
            wanted, found = _variables(needed), _variables(held)
            check_equal_variables(file, model, wanted, found)
            for name, variable in wanted.items():
                dtype = array_of(variable.values).dtype
                if "float" in dtype.name:
                    finite(array_of(found[name].values), dtype, f"{variable.name} in {file}")


def load_state(model: keras.Model, content: io.BytesIO, visited: set[int]) -> set[int]:
    """Load a model's variables as Keras does, but from content that was checked, not from a path.

    Args:
        model: the network.
        content: the HDF5 file of its weights.
        visited: ids of the objects to leave as they are.

    Returns:
        The ids of all objects that are loaded now.

    Raises:
        ValueError: a variable has no values of its shape in the file.
    """
    content.seek(0)
    failed = load_variables(model, content, visited)
    if failed:
        layer, reason = next(iter(failed.values()))
        raise ValueError(f"{getattr(layer, 'name', type(layer).__name__)}: {reason}")
    return visited


def opened(path: Path) -> io.BytesIO:
    """Return the content of an HDF5 file: of the file, or of the member of a `.keras` file, checked by its CRC."""
    if path.suffix != ".keras":
        return io.BytesIO(path.read_bytes())
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        check_stored(path.name, archive, os.fstat(file.fileno()).st_size)
        return io.BytesIO(archive.read(WEIGHTS))


def _variables(file: Any) -> dict[str, Variable]:
    """Return the variables of a network's layers in an HDF5 file, by their places in it; the optimizer's are left out.

    Links are not followed: what they lead to counts as missing.
    """
    import h5py

    if not isinstance(file.get("layers", getlink=True), h5py.HardLink):
        return {}
    names: dict[str, str] = {}
    arrays: dict[str, Any] = {}

    def visit(place: str, member: Any) -> None:
        if isinstance(member, h5py.Dataset):
            arrays[place] = member
        elif place.endswith("/vars") and "name" in member.attrs:
            names[place.removesuffix("/vars")] = "".join(filter(str.isprintable, str(member.attrs["name"])))

    file["layers"].visititems(visit)
    found = {place: Variable(_name(place, names), array.shape, array) for place, array in arrays.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def _name(place: str, names: Mapping[str, str]) -> str:
    """Return the name of the variable at a place in a file; where Keras named no layers, the place itself."""
    group, _, variable = place.partition("/vars/")
    ends = [match.start() for match in re.finditer("/|$", group)]
    layers = [names[group[:end]] for end in ends if group[:end] in names]
    return "/".join([*layers, variable]) if layers else "".join(filter(str.isprintable, place))


def array_of(dataset: Any) -> np.ndarray:
    """Return the values of an HDF5 data set. Keras writes bfloat16, which HDF5 lacks, as bytes, the dtype beside."""
    values = np.array(dataset)
    return values.view("bfloat16") if dataset.attrs.get("dtype") == "bfloat16" else values
