"""Checkpoints: every variable of a training run in one file, written atomically.

Keras's own formats do not suffice. `BackupAndRestore` is exact only at the end of an epoch, and weights files omit the
random state of dropout and augmentation. Both are written in place: a full disk or a kill destroys the last good file.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.files import PARTIAL, remove, writing, written_aside
from keras_preact.models.saving.archive import check_stored
from keras_preact.models.saving.configuration import name_publicly, objects

ABOUT = "about"
"""Name of the entry that describes the others."""
MAX_CHECKPOINTS = 2
"""Checkpoints stored: the newest, and the one before it."""


class Checkpoint:
    """The state of a training run in a folder: model, optimizer, metrics, and the number of steps done.

    The order of the data is a function of seed and step, so the step suffices to restore it.

    Args:
        folder: folder of the checkpoint files; created when first needed.
        model: a compiled model with built optimizer and metrics, as after one training step.

    Attributes:
        notes: the notes saved with the state that `restore` loaded; empty before.

    Example:

    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> _ = model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(Path(folder), model)
    ...     _ = checkpoint.save(step=7)
    ...     checkpoint.restore()
    7
    """

    def __init__(self, folder: Path, model: keras.Model) -> None:
        self.folder = Path(folder)
        self.model = model
        self.notes: dict[str, Any] = {}

    def variables(self) -> list[Any]:
        """Return every variable of the run once, in an order that depends only on the model."""
        candidates = [*self.model.variables, *self.model.optimizer.variables, *self.model.metrics_variables]
        return list({id(variable): variable for variable in candidates}.values())

    def first_not_finite(self) -> str | None:
        """Return the path of the first variable of model or optimizer with a NaN or infinite value, or `None`.

        Metrics are left out: a test loss may overflow although every weight is finite.
        """
        metrics = {id(variable) for variable in self.model.metrics_variables}
        trained = (variable for variable in self.variables() if id(variable) not in metrics)
        floats = (v for v in trained if keras.backend.is_float_dtype(v.dtype))
        return next((v.path for v in floats if not bool(keras.ops.all(keras.ops.isfinite(v)))), None)

    def _names(self) -> list[str]:
        """Return the variables' names without the numbers that Keras appends to make them unique in a process."""
        return [re.sub(r"_\d+(?=_|$)", "", variable.name) for variable in self.variables()]

    def save(self, step: int, notes: Mapping[str, Any] | None = None) -> Path:
        """Write the state after `step` steps, with notes of plain data; return the file.

        The file is written under a temporary name, flushed and renamed: a kill never damages an earlier checkpoint.

        Raises:
            WriteError: (an OSError) the disk is full or the folder read-only. Earlier checkpoints are unchanged.
        """
        path = self.folder / f"step-{step:09d}.npz"
        with writing(path):
            self.folder.mkdir(exist_ok=True)
            for partial in self.folder.glob(f"*{PARTIAL}"):  # left by a killed save
                remove(partial)
        arrays: Any = {f"{i:05d}": _array(variable) for i, variable in enumerate(self.variables())}
        about = {"step": step, "names": self._names(), "notes": dict(notes or {})}
        arrays[ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        with written_aside(path, path.with_suffix(PARTIAL)) as aside, open(aside, "wb") as file:
            np.savez(file, **arrays)
        with writing(path):
            files = self.files()
            place = files.index(path)
            # Files of later steps are damaged: `restore` passed over them.
            for old in [*files[: max(0, place + 1 - MAX_CHECKPOINTS)], *files[place + 1 :]]:
                remove(old)
        return path

    def files(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        return _files(self.folder)

    def last_step(self) -> int | None:
        """Return the step of the newest checkpoint, or `None` without one."""
        files = self.files()
        return int(files[-1].stem.removeprefix("step-")) if files else None

    def restore(self) -> int:
        """Load the newest readable checkpoint; return its step, or 0 without checkpoints.

        Raises:
            InputError: the checkpoint is from another network, or no checkpoint can be read.
        """
        for path, contents in _readable(self.folder):
            return self._assign(path, contents)
        if self.files():
            raise InputError(
                f"no checkpoint in {self.folder} can be read: they are damaged or from another version of "
                "keras_preact; start a new run in another folder"
            )
        return 0

    def _assign(self, path: Path, contents: dict[str, np.ndarray]) -> int:
        about = _about(contents)
        variables = self.variables()
        arrays = [contents[key] for key in sorted(contents) if key != ABOUT]
        if about["names"] != self._names() or [a.shape for a in arrays] != [tuple(v.shape) for v in variables]:
            raise InputError(
                f"the checkpoint {path.name} belongs to another network or optimizer; resume with the configuration, "
                "backend and version of keras_preact of its run"
            )
        for variable, array in zip(variables, arrays, strict=True):
            # NumPy's files have no bfloat16: such an array comes back as bytes without a type.
            variable.assign(array.view(_array(variable).dtype) if array.dtype.kind == "V" else array)
        self.notes = about["notes"]
        return int(about["step"])


def _array(variable: Any) -> np.ndarray:
    # A TensorFlow variable mirrored on several devices is not an array; `.numpy()` returns one.
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return np.asarray(variable.value.numpy() if is_tensorflow else keras.ops.convert_to_numpy(variable.value))


def newest_notes(folder: Path) -> dict[str, Any]:
    """Return the notes of the newest readable checkpoint in a folder, or `{}` without one."""
    return next((_about(contents)["notes"] for _, contents in _readable(folder)), {})


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.npz"))


def _readable(folder: Path) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """Yield the readable checkpoints, newest first, with their contents."""
    for path in reversed(_files(folder)):
        try:
            yield path, _read(path)
        except Exception:  # for a damaged file, NumPy may raise anything
            continue


def _read(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        check_stored(path.name, archive, path.stat().st_size)
        # Read whole members: zipfile verifies the checksum only at the end of a member, and NumPy would stop earlier
        # if an altered header declares less data.
        files = {name: io.BytesIO(archive.read(name)) for name in archive.namelist()}
    read = np.lib.format.read_array
    contents = {name.removesuffix(".npy"): read(file, allow_pickle=False) for name, file in files.items()}
    if len(_about(contents)["names"]) != len(contents) - 1:
        raise ValueError(f"{path.name} has missing or extra arrays")
    return contents


def _about(contents: Mapping[str, np.ndarray]) -> dict[str, Any]:
    about = json.loads(contents[ABOUT].tobytes())
    if not isinstance(about, dict) or not {"step", "names", "notes"} <= set(about):
        raise ValueError("the checkpoint has no valid description")
    return about


def save_model(model: keras.Model, path: Path) -> None:
    """Write a model to a `.keras` file that every backend can load, with equal bytes for equal models.

    Keras's own files contain the time, and memory addresses as identifiers of shared objects. On PyTorch they name
    optimizer classes that other backends do not have. Batch norms that the run synchronized between devices are saved
    without this setting, which JAX and PyTorch refuse; a resumed run makes it again.
    """
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    metadata, config = (json.loads(members[name]) for name in ("metadata.json", "config.json"))
    metadata.pop("date_saved", None)
    members["metadata.json"] = json.dumps(metadata).encode()
    name_publicly(config)
    _forget_synchronization(config)
    members["config.json"] = json.dumps(_renumbered(config, {})).encode()
    # Pass an open file: given a path that the system refuses to open, zipfile would retry in another mode.
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # ZipInfo's fixed default date, 1980


def _forget_synchronization(config: Any) -> None:
    for found in objects(config):
        if isinstance(found.get("config"), dict) and "synchronized" in found["config"]:
            found["config"]["synchronized"] = False


def _renumbered(config: Any, numbers: dict[int, int]) -> Any:
    """Return a configuration with its shared objects numbered in order of appearance."""
    if isinstance(config, list):
        return [_renumbered(value, numbers) for value in config]
    if not isinstance(config, dict):
        return config
    return {
        key: numbers.setdefault(value, len(numbers)) if key == "shared_object_id" else _renumbered(value, numbers)
        for key, value in config.items()
    }
