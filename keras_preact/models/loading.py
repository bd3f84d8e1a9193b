"""Reading a `.keras` file from a stranger: looked through first, so that nothing in it is executed.

Keras's own `safe_mode` has had holes, one in most of its releases of 2025. A network of layers needs little: three
members of known names, layers of Keras and of this package, plain numbers. All else is refused before Keras sees it.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
from keras.src.backend.common import global_state

from keras_preact.errors import InputError
from keras_preact.models.trained import refuse_other_pixels
from keras_preact.models.weights import finite

MEMBERS = {"metadata.json", "config.json", "model.weights.h5"}
TRUSTED_PARTS = {
    *("activations", "constraints", "dtype_policies", "initializers", "layers", "losses", "metrics", "models"),
    *("ops", "optimizers", "random", "regularizers"),
}
"""Parts of Keras whose classes compute. `keras.utils` and `keras.saving` also write files and open addresses."""
REFUSED_CLASSES = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}
"""Layers of Keras that hold code, or a path to some, instead of numbers."""


def load_model(path: str | Path, compile: bool = True) -> keras.Model:
    """Return the model of a `.keras` file of layers of Keras and of this package.

    Args:
        path: of the file.
        compile: whether to compile it as it was saved. Default `True`.

    Raises:
        InputError: no such file, one that is damaged, or one that holds more than a network needs: code, a foreign
            class, a path out of the archive, a link to another file, sizes that it has no data for, or weights that
            are not finite.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "network.keras"
    >>> cifar_resnet(8).save(path)
    >>> load_model(path).name
    'resnet8_full_preactivation'
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of a .keras file")
    try:
        _check_archive(path)
        with _policy_of(path):
            model = refuse_other_pixels(keras.models.load_model(path, compile=compile, safe_mode=True))
    except InputError:
        raise
    except Exception as error:  # what a damaged file brings up in Keras can be anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path.name} cannot be loaded as a Keras model ({reason}); save it again") from None
    for variable in model.weights:
        if keras.backend.is_float_dtype(variable.dtype):
            finite(keras.ops.convert_to_numpy(variable), variable.dtype, f"{variable.path} in {path.name}")
    return model


@contextmanager
def _policy_of(path: Path) -> Iterator[None]:
    """Have Keras compile the model of a file with a loss scale, as before, where its layers compute in float16.

    A model's own policy is not in its file: Keras takes the global one. All layers' are.
    """
    with zipfile.ZipFile(path) as archive:
        objects = list(_objects(json.loads(archive.read("config.json"))))
    policies = [(found.get("config") or {}).get("name") for found in objects if found["class_name"] == "DTypePolicy"]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16" if "mixed_float16" in policies else before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _check_archive(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path.name} is no .keras file, or one that is cut short; save the model again, as .keras")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        strange = sorted(set(names) - MEMBERS)
        if strange or len(names) != len(set(names)):
            raise InputError(
                f"{path.name} holds {', '.join(strange) or 'a name twice'}, which no network needs; refused"
            )
        # Keras stores without compression: what unpacks to more than the file is a bomb.
        if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
            raise InputError(f"{path.name} unpacks to more than it is; save it as Keras does, without compression")
        config = json.loads(archive.read("config.json"))
        for found in _objects(config):
            _check_object(path.name, found)
        stored = _check_weights(path.name, io.BytesIO(archive.read("model.weights.h5")))
    _check_size(path.name, config, stored)


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yield all serialized objects in a configuration, at any depth."""
    if isinstance(config, dict):
        if "class_name" in config:
            yield config
        for value in config.values():
            yield from _objects(value)
    elif isinstance(config, list):
        for value in config:
            yield from _objects(value)


def _check_object(name: str, found: dict[str, Any]) -> None:
    class_name, module = str(found["class_name"]), found.get("module")
    if class_name in REFUSED_CLASSES or class_name.startswith("__lambda"):
        raise InputError(f"{name} holds a {class_name.strip('_')}, which can execute code; ask for it without")
    # Functions are named by their configuration, classes by their registered name.
    registered = found.get("config") if class_name == "function" else found.get("registered_name")
    ours = str(registered).startswith("keras_preact>") and keras.saving.get_registered_object(registered) is not None
    if not (ours or (class_name != "function" and _is_trusted(module))):
        raise InputError(
            f"{name} asks for {module}.{class_name}, which is neither Keras's nor this package's; load it with "
            "keras.models.load_model if you trust it"
        )


def _is_trusted(module: Any) -> bool:
    if module is None:  # Keras finds nothing by that
        return True
    first, *rest = str(module).split(".")
    rest = rest[1:] if rest[:1] == ["src"] else rest
    return first == "keras" and (not rest or rest[0] in TRUSTED_PARTS)


def _check_weights(name: str, file: io.BytesIO) -> int:
    """Check that all arrays of an HDF5 file are in it, and return the number of their bytes."""
    import h5py  # Keras does without until a file is read

    with h5py.File(file, "r") as weights:
        return _bytes_below(name, weights, {_address(weights)})


def _address(member: Any) -> int:
    import h5py

    return int(h5py.h5o.get_info(member.id).addr)


def _bytes_below(name: str, group: Any, seen: set[int]) -> int:
    import h5py

    total = 0
    for key in group:
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise InputError(f"{name} links to other data at {group.name}/{key}; save the model again, without links")
        member = group[key]
        if _address(member) in seen:  # it would be counted, or walked through, again and again
            raise InputError(f"{name} holds {group.name}/{key} under another name too; save the model again")
        seen.add(_address(member))
        if isinstance(member, h5py.Group):
            total += _bytes_below(name, member, seen)
        elif member.external or member.is_virtual:
            raise InputError(f"{name} keeps {member.name} in another file; save the model again, into one")
        elif member.dtype.kind not in "fiub" or member.id.get_storage_size() < member.nbytes:
            raise InputError(f"{name} claims more for {member.name} than it holds, or no numbers; save the model again")
        else:
            total += member.nbytes
    return total


def _units(config: Any) -> int:
    """Return how many units the stacks of a configuration have, those of stacks in stacks multiplied.

    Whatever repeats counts, by the name of the argument: Keras finds a class under several names.
    """
    if isinstance(config, list):
        return sum(map(_units, config))
    if not isinstance(config, dict):
        return 0
    inside, repeats = sum(map(_units, config.values())), config.get("repeats")
    return max(repeats, 1) * max(inside, 1) if isinstance(repeats, int) else inside


def _check_size(name: str, config: dict[str, Any], stored: int) -> None:
    """Refuse a configuration whose weights would be far larger than those stored: they would be made first."""
    units = _units(config)
    if units > max(stored, 1):  # counted first: a stack that is not rolled makes a layer for each
        raise InputError(f"{name} describes stacks of {units:,} units and holds {stored:,} bytes; save the model again")
    try:
        with keras.StatelessScope(initialize_variables=False):  # variables have shapes there, and no values
            model = keras.saving.deserialize_keras_object({**config, "compile_config": None}, safe_mode=True)
            needed = sum(math.prod(variable.shape) for variable in model.variables)
    finally:
        # Private to Keras: else the next such scope, whoever opens it, would give them values after all.
        global_state.set_global_attribute("uninitialized_variables", [])
    if needed > max(stored, 1):
        raise InputError(f"{name} describes {needed:,} numbers and holds {stored:,} bytes; save the model again")
