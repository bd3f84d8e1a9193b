"""The run folder: configuration and provenance, metrics, curves, the trained model."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from keras_preact.errors import InputError, WriteError, as_command, is_installed
from keras_preact.files import PARTIAL, checksum, write_atomically, writing
from keras_preact.training.checkpoints import newest_notes

METRICS = ("epoch", "step", "learning_rate", "train_loss", "train_error", "test_loss", "test_error", "seconds")
"""Columns of metrics.csv. Errors in percent; train_loss and train_error are means over the epoch as it went, on
augmented images; seconds since the run began, pauses left out."""
LOCK = ".lock"
"""File by which the system knows that a run is being trained; it means nothing once that process has ended."""
CHECKSUM = "sha256"
"""Entry of run.json with the checksum of all others."""
FORMAT = 2
"""Of run.json, by its entry `format`: the first runs wrote neither that nor a checksum, and are read without."""
KINDS: dict[str, Any] = {
    "status": str,
    **dict.fromkeys(("config", "data", "model", "environment", "metrics"), dict),
    **dict.fromkeys(("step", "steps"), int),
    "seconds": (int, float),
    "resumed": list,
}
"""What entries of run.json are. A record without a checksum could hold anything."""


class RunLocked(InputError):
    """Another process is training this run."""


class RunFolder:
    """One folder a run: `run.json`, `metrics.csv`, `curves.png`, `model.keras`, `checkpoints/`, `tensorboard/`.

    Args:
        path: the folder. Use `RunFolder.create` for a new run and `RunFolder.open` for one that exists.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     folder = RunFolder.create(f"{runs}/mine")
    ...     folder.update_record(kind="training", status="running")
    ...     RunFolder.open(f"{runs}/mine").record()["status"], folder.metrics()
    {'kind': 'training', 'status': 'running'}
    ('running', [])
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._handle: int | None = None  # an open descriptor of the folder, while it is held

    @property
    def path(self) -> Path:
        """Where the folder is: if it is renamed while this process holds it, its new name.

        Raises:
            WriteError: it was removed, or moved to another disk.
        """
        if self._handle is not None:
            self._path = _where_now(self._path, self._handle)
        return self._path

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        """Make the folder of a new run.

        Raises:
            InputError: something stands there already: a run never overwrites another.
            RunLocked: it is a run that another process is training.
        """
        cls.check_free(path)
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {path}: {error.strerror}; name another folder") from None
        return cls(path)

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        """Refuse what `create` refuses, before anything is made: a new run asks at once, and loads its data after."""
        path = Path(path)
        beginnings = (LOCK, cls(path).record_path.name + PARTIAL)  # all that a run has which ended before it began
        if not path.exists() or (path.is_dir() and all(entry.name in beginnings for entry in path.iterdir())):
            return
        if cls(path).is_taken():
            raise RunLocked(_taken(path))
        raise InputError(
            f"{path} exists already and is not overwritten; name another folder, or continue that run "
            f"with {as_command('train --resume', path)}"
        )

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return the folder of a run that exists.

        Raises:
            InputError: there is no run in that folder.
        """
        folder = cls(path)
        if not folder.exists():
            raise InputError(f"{path} is not a run folder (it has no run.json); name a folder that `train` made")
        return folder

    def exists(self) -> bool:
        """Return whether there is a run: it has a record, or checkpoints, which have a copy of it."""
        return self.record_path.is_file() or self._has_checkpoints()

    def _has_checkpoints(self) -> bool:
        return any(self.checkpoints_path.glob("step-*.npz"))

    @property
    def record_path(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def model_path(self) -> Path:
        return self.path / "model.keras"

    @property
    def curves_path(self) -> Path:
        return self.path / "curves.png"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard_path(self) -> Path:
        return self.path / "tensorboard"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run while this process trains it. The system lets go of it when the process ends, however it ends.

        Raises:
            RunLocked: another process holds it.
            WriteError: the folder cannot be written to.
        """
        try:
            with writing(self.path / LOCK):
                hold = self._lock().acquire(timeout=1)  # longer than `is_taken` has it
        except filelock.Timeout:
            raise RunLocked(_taken(self.path)) from None
        with hold:
            if os.name == "posix":  # Windows opens no folders, and renames none that has open files
                self._handle = os.open(self.path, os.O_RDONLY)
            try:
                yield
            finally:
                if self._handle is not None:
                    os.close(self._handle)
                    self._handle = None

    def is_taken(self) -> bool:
        """Return whether another process is training the run now."""
        if not (self.path / LOCK).exists():
            return False
        try:
            with self._lock().acquire(timeout=0):
                return False
        except filelock.Timeout:
            return True
        except OSError:  # a read-only folder: whoever trains in it has it elsewhere
            return False

    def _lock(self) -> filelock.FileLock:
        return filelock.FileLock(self.path / LOCK)

    def record(self) -> dict[str, Any]:
        """Return the contents of run.json; where it was deleted, of the copy in the newest checkpoint.

        Raises:
            InputError: the file is not JSON, or not as it was written.
        """
        if not self.record_path.exists() and self._has_checkpoints():
            return self._copied_record()
        try:
            record = json.loads(self.record_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.record_path} cannot be read: {error}; {self._remedy()}") from None
        if not isinstance(record, dict) or not _is_as_written(record):
            raise InputError(f"{self.record_path} is damaged, or was edited: it is not as written; {self._remedy()}")
        return {key: value for key, value in record.items() if key not in ("format", CHECKSUM)}

    def _remedy(self) -> str:
        if self._has_checkpoints():
            return f"delete it and run {as_command('train --resume', self.path)}, which has a copy in its checkpoints"
        return "restore it or start a new run"

    def _copied_record(self) -> dict[str, Any]:
        record = newest_notes(self.checkpoints_path).get("record")
        if record is None:
            raise InputError(f"{self.path} has neither a run.json nor a checkpoint with a copy of it; start a new run")
        return record

    def training(self, *needed: str) -> dict[str, Any]:
        """Return the contents of run.json, of a training.

        Args:
            *needed: entries that it must have, besides its status and its configuration.

        Raises:
            InputError: the folder holds something else, such as an inspection, or an entry is missing.
        """
        record = self.record()
        kind = record.get("kind", "something else")
        if kind == "comparison" and "runs" in record:
            raise InputError(f"{self.path} holds several runs; name one of them: {', '.join(record['runs'])}")
        if kind != "training":
            raise InputError(f"{self.path} holds no training ({kind}); name a folder that `train` made")
        if missing := [key for key in dict.fromkeys(("status", "config", *needed)) if key not in record]:
            raise InputError(f"{self.record_path} lacks {', '.join(missing)}; {self._remedy()}")
        return record

    def unit(self) -> str:
        """Return what the errors of a training are in: `%`, unless its data have another unit."""
        return str(self.record().get("data", {}).get("unit", "%"))

    def trained_model(self) -> Path:
        """Return the file of a training's model.

        Raises:
            InputError: the folder holds no training, one that is not finished, or one whose weights were not kept.
        """
        if self.training()["status"] != "finished":
            raise InputError(
                f"{self.path} has no trained model yet; finish it first with {as_command('train --resume', self.path)}"
            )
        if not self.model_path.exists():
            raise InputError(
                f"the weights of {self.path} are not kept here ({self.model_path.name} is missing); train it again "
                f"with the options in its {self.record_path.name}"
            )
        return self.model_path

    def update_record(self, **changes: Any) -> dict[str, Any]:
        """Change entries of run.json, aside and renamed, and take out those that are `None`; return all of it."""
        record = {**(self.record() if self.exists() else {}), **changes}
        record = {key: value for key, value in record.items() if value is not None}
        written = {"format": FORMAT, **record}
        written[CHECKSUM] = checksum(written)
        write_atomically(self.record_path, json.dumps(written, indent=2, ensure_ascii=False) + "\n")
        return record

    def metrics(self) -> list[dict[str, float]]:
        """Return the rows of metrics.csv, numbers as numbers.

        Raises:
            InputError: rows are not as they were written.
        """
        written = self.record().get("metrics", {}) if self.exists() else {}
        if not written and not self.metrics_path.exists():
            return []
        try:
            # A row that the record does not count is new; its epoch has not been saved yet.
            lines = self.metrics_path.read_text(encoding="utf-8").splitlines()[: written.get("rows", 10**9) + 1]
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
            raise InputError(f"{self.metrics_path} cannot be read ({error}); restore it from a copy") from None
        if written and written.get(CHECKSUM) != checksum(lines):
            raise InputError(f"{self.metrics_path} is damaged: rows are missing or changed; restore it from a copy")
        return rows

    def write_metrics(self, rows: Sequence[dict[str, float]]) -> None:
        """Write metrics.csv, aside and renamed, with these rows."""
        write_atomically(self.metrics_path, _metrics_text(rows))

    def write_curves(self, runs: Mapping[str, Sequence[dict[str, float]]], unit: str) -> None:
        """Draw curves.png, where matplotlib is installed.

        Args:
            runs: rows of metrics, by the name that the figure calls them.
            unit: of the errors.
        """
        if is_installed("matplotlib"):
            from keras_preact.plots import draw_curves

            with writing(self.curves_path):
                draw_curves(runs, self.curves_path, unit)


def described(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return what run.json says of metrics.csv: the number of its rows and their checksum, whatever its line ends."""
    return {"rows": len(rows), CHECKSUM: checksum(_metrics_text(rows).splitlines())}


def _is_as_written(record: dict[str, Any]) -> bool:
    if not all(isinstance(record[key], kind) for key, kind in KINDS.items() if key in record):
        return False
    if "format" not in record and CHECKSUM not in record:
        return True
    return record.get(CHECKSUM) == checksum({key: value for key, value in record.items() if key != CHECKSUM})


class ReadOnlyRunFolder(RunFolder):
    """The folder of a run that another process writes: this one reads it, and leaves it as it is."""

    @classmethod
    def create(cls, path: str | Path) -> ReadOnlyRunFolder:
        return cls(path)

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        pass

    @contextmanager
    def held(self) -> Iterator[None]:
        yield  # the one that writes holds it

    def update_record(self, **changes: Any) -> dict[str, Any]:
        return changes

    def write_metrics(self, rows: Sequence[dict[str, float]]) -> None:
        pass


def _taken(path: Path) -> str:
    return f"{path} is being trained by another process; wait for it, stop it first, or name another folder"


def _metrics_text(rows: Sequence[dict[str, float]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, METRICS)
    writer.writeheader()
    writer.writerows({key: _short(row[key]) for key in METRICS} for row in rows)
    return text.getvalue()


def _short(value: float) -> str:
    """Return a whole number as such, another with 7 significant digits (float32 has no more)."""
    return str(int(value)) if float(value).is_integer() else f"{value:.7g}"


def next_free_folder(parent: Path, name: str) -> Path:
    """Return the first of `name-001`, `name-002`, … that does not exist in `parent`.

    >>> str(next_free_folder(Path("no-such-folder"), "demo"))
    'no-such-folder/demo-001'
    """
    return next(path for k in range(1, 10**6) if not (path := Path(parent) / f"{name}-{k:03d}").exists())


def _where_now(path: Path, handle: int) -> Path:
    """Return `path`, or the new name of the folder that is open as `handle` if it is no longer there."""
    held = os.fstat(handle)
    for candidate in (lambda: path, lambda: _name_of(handle)):
        with suppress(OSError):
            found = candidate()
            if os.path.samestat(os.stat(found), held):
                return found
    raise WriteError(
        errno.ENOENT, "the run folder was removed, or moved to another disk, while it was trained", str(path)
    )


def _name_of(handle: int) -> Path:
    """Return the name that the system knows an open folder by."""
    if sys.platform == "darwin":
        import fcntl

        return Path(os.fsdecode(fcntl.fcntl(handle, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
    return Path(os.readlink(f"/proc/self/fd/{handle}"))
