"""Checkpoints: every variable of a training run in one file that is there whole or not at all.

Keras's own do not do here: `BackupAndRestore` is exact at the ends of epochs alone, weights files leave out the
random state of dropout and augmentation, and both are written in place, so that a full disk or a kill leaves a
stub where the last good file was.
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
from keras_preact.files import PARTIAL, writing, written_aside
from keras_preact.models.archive import check_stored
from keras_preact.models.configuration import name_publicly

ABOUT = "about"
"""Name of the entry that says what the others are."""
KEPT = 2
"""Checkpoints kept: the newest, and the one before it."""


class Checkpoint:
    """The state of a training run in a folder: model, optimizer, metrics, and the number of steps done.

    The order of the data is a function of seed and step, so the step is all that is kept of it.

    Args:
        folder: where the files stand; made when first needed.
        model: a compiled model whose optimizer and metrics are built, as they are after one step of training.

    Attributes:
        notes: what was saved with the state that `restore` loaded; empty before.

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
        """Return every variable of the run once, in an order that depends on the model alone."""
        candidates = [*self.model.variables, *self.model.optimizer.variables, *self.model.metrics_variables]
        return list({id(variable): variable for variable in candidates}.values())

    def first_not_finite(self) -> str | None:
        """Return the path of the first variable of floats that has a value which is none, or infinite."""
        floats = (v for v in self.variables() if keras.backend.is_float_dtype(v.dtype))
        return next((v.path for v in floats if not bool(keras.ops.all(keras.ops.isfinite(v)))), None)

    def _names(self) -> list[str]:
        """Return the variables' names without the numbers by which Keras tells equal names in one process apart."""
        return [re.sub(r"_\d+(?=_|$)", "", variable.name) for variable in self.variables()]

    def save(self, step: int, notes: Mapping[str, Any] | None = None) -> Path:
        """Write the state after `step` steps, and notes of plain data beside it; return the file.

        Written aside, flushed, renamed: at every instant the folder holds a whole checkpoint, if it ever held one.

        Raises:
            WriteError: (an OSError) the disk is full or the folder read-only; the checkpoints before are as they were.
        """
        path = self.folder / f"step-{step:09d}.npz"
        with writing(path):
            self.folder.mkdir(exist_ok=True)
            for left in self.folder.glob(f"*{PARTIAL}"):  # by a save that was killed
                left.unlink()
        arrays: Any = {f"{i:05d}": _array(variable) for i, variable in enumerate(self.variables())}
        about = {"step": step, "names": self._names(), "notes": dict(notes or {})}
        arrays[ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        with written_aside(path, path.with_suffix(PARTIAL)) as aside, open(aside, "wb") as file:
            np.savez(file, **arrays)
        with writing(path):
            for old in self.files()[:-KEPT]:
                old.unlink()
        return path

    def files(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        return _files(self.folder)

    def last_step(self) -> int | None:
        """Return the number of steps after which the newest checkpoint was written; `None` where there is none."""
        files = self.files()
        return int(files[-1].stem.removeprefix("step-")) if files else None

    def restore(self) -> int:
        """Load the newest checkpoint that is whole; return its step, or 0 where there is none.

        Raises:
            InputError: a checkpoint of another network, or checkpoints of which none can be read.
        """
        for path, contents in _readable(self.folder):
            return self._assign(path, contents)
        if self.files():
            raise InputError(
                f"no checkpoint in {self.folder} can be read: they are damaged, or of another version of keras_preact; "
                "start the run again in another folder"
            )
        return 0

    def _assign(self, path: Path, contents: dict[str, np.ndarray]) -> int:
        about = _about(contents)
        variables = self.variables()
        arrays = [contents[key] for key in sorted(contents) if key != ABOUT]
        if about["names"] != self._names() or [a.shape for a in arrays] != [tuple(v.shape) for v in variables]:
            raise InputError(
                f"the checkpoint {path.name} belongs to another network or optimizer; resume with the run's own "
                "configuration"
            )
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)
        self.notes = about["notes"]
        return int(about["step"])


def _array(variable: Any) -> np.ndarray:
    # Not Keras's function on TensorFlow: a variable that is mirrored on several devices is no array, but gives one.
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return np.asarray(variable.value.numpy() if is_tensorflow else keras.ops.convert_to_numpy(variable.value))


def newest_notes(folder: Path) -> dict[str, Any]:
    """Return the notes of the newest checkpoint in a folder that is whole; nothing where there is none."""
    return next((_about(contents)["notes"] for _, contents in _readable(folder)), {})


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.npz"))


def _readable(folder: Path) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """Yield the checkpoints that can be read, newest first, with their contents."""
    for path in reversed(_files(folder)):
        try:
            yield path, _read(path)
        except Exception:  # what a damaged file brings up in NumPy can be anything
            continue  # cut short or altered: the one before it is whole


def _read(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        check_stored(path.name, archive, path.stat().st_size)
        # Whole members, for only what is read to its end is compared with its checksum. NumPy stops earlier if an
        # altered header asks for less.
        files = {name: io.BytesIO(archive.read(name)) for name in archive.namelist()}
    read = np.lib.format.read_array
    contents = {name.removesuffix(".npy"): read(file, allow_pickle=False) for name, file in files.items()}
    if len(_about(contents)["names"]) != len(contents) - 1:
        raise ValueError(f"{path.name} does not hold what it says")
    return contents


def _about(contents: Mapping[str, np.ndarray]) -> dict[str, Any]:
    about = json.loads(contents[ABOUT].tobytes())
    if not isinstance(about, dict) or not {"step", "names", "notes"} <= set(about):
        raise ValueError("it does not say what it is of, or in the words of an older version")
    return about


def save_model(model: keras.Model, path: Path) -> None:
    """Write a model to a `.keras` file as Keras does, but with equal bytes for equal models, for every backend.

    Keras's own files differ by the time of day, and by the addresses in memory with which it marks shared objects;
    those of PyTorch name optimizers that other backends do not have.
    """
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    metadata, config = (json.loads(members[name]) for name in ("metadata.json", "config.json"))
    metadata.pop("date_saved", None)
    members["metadata.json"] = json.dumps(metadata).encode()
    name_publicly(config)
    members["config.json"] = json.dumps(_renumbered(config, {})).encode()
    # Given a path, zipfile would try again in another mode where the system refuses to open it.
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # of 1980, the first year that zip knows


def _renumbered(config: Any, numbers: dict[int, int]) -> Any:
    """Return a configuration with its shared objects numbered in their order."""
    if isinstance(config, list):
        return [_renumbered(value, numbers) for value in config]
    if not isinstance(config, dict):
        return config
    return {
        key: numbers.setdefault(value, len(numbers)) if key == "shared_object_id" else _renumbered(value, numbers)
        for key, value in config.items()
    }
