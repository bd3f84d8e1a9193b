"""The run folder: configuration, environment, metrics, curves, and the trained model."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import filelock

from keras_preact.errors import InputError, WriteError, as_command, is_installed
from keras_preact.files import PARTIAL, checksum, write_atomically, writing
from keras_preact.training.checkpoints import newest_notes

T = TypeVar("T")

METRICS = ("epoch", "step", "learning_rate", "train_loss", "train_error", "test_loss", "test_error", "seconds")
"""Columns of metrics.csv. Errors are in percent; those of a forecast are in the data's unit. train_loss and train_error
are running means over the epoch, on augmented images. seconds is the wall-clock time of the training so far. It
includes the time in which the process was suspended, but not the time between a stop and the next resume, nor the turns
of other runs in a comparison. Runs that train together slow each other down."""
ENDED = ("finished", "diverged")
"""Status of the runs that are a result. A training that diverged is one too."""
LOCK = ".lock"
"""File that the training process locks. The lock ends with the process; the file may remain."""
CHECKSUM = "sha256"
"""Entry of run.json with the checksum of all others."""
FORMAT = 2
"""Version of run.json, in its entry `format`."""


class RunLocked(InputError):
    """Another process is training this run."""


class RunFolder:
    """The folder of a run: `run.json`, `metrics.csv`, `curves.png`, `model.keras`, `checkpoints/`, `tensorboard/`.

    Args:
        path: the folder. Use `RunFolder.create` for a new run and `RunFolder.open` for an existing one.

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
        self._descriptor: int | None = None  # of the folder, open while this process holds it

    @property
    def path(self) -> Path:
        """The folder's path. If the folder is renamed while this process holds it, the path follows.

        Raises:
            WriteError: the folder was removed or moved to another disk.
        """
        if self._descriptor is not None:
            self._path = _current_path(self._path, self._descriptor)
        return self._path

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        """Create the folder of a new run.

        Raises:
            InputError: the path exists and is not an empty folder, or the folder cannot be created.
            RunLocked: another process is training a run in this folder.
        """
        cls.check_free(path)
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the folder {path}: {error.strerror}; choose another folder") from None
        return cls(path)

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        """Raise the errors of `create` without creating the folder, for example before loading data.

        Raises:
            InputError, RunLocked: as in `create`.
        """
        path = Path(path)
        leftovers = (LOCK, cls(path).record_path.name + PARTIAL)  # files of a run that was killed while starting
        try:
            is_free = not path.exists() or (path.is_dir() and all(entry.name in leftovers for entry in path.iterdir()))
        except OSError as error:
            raise InputError(f"cannot use the folder {path}: {error.strerror}; choose another folder") from None
        if is_free:
            return
        if cls(path).is_locked():
            raise RunLocked(_locked_message(path))
        resume = f", or continue that run with {as_command('train --resume', path)}" if cls(path)._can_resume() else ""
        raise InputError(f"{path} exists already and is not overwritten; choose another folder{resume}")

    def _can_resume(self) -> bool:
        """Return whether the folder contains an unfinished run, or several; a damaged record may be restored."""
        if not self.exists():
            return False
        with suppress(InputError):
            record = self.record()
            return record.get("kind") in ("training", "comparison") and record.get("status") not in ENDED
        return True

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return the folder of an existing run.

        Raises:
            InputError: the folder contains no run.
        """
        folder = cls(path)
        if not folder.exists():
            raise InputError(f"{path} is not a run folder (it has no run.json); name a folder that `train` created")
        return folder

    def exists(self) -> bool:
        """Return whether the folder contains a run: `run.json`, or checkpoints, which contain a copy of it."""
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

    def own_names(self) -> set[str]:
        """Return the names of the files and folders that a run creates in its folder."""
        paths = (self.record_path, self.metrics_path, self.model_path, self.curves_path)
        return {path.name for path in (*paths, self.checkpoints_path, self.tensorboard_path)} | {LOCK}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run while this process trains it. However the process ends, the system releases the lock.

        Raises:
            RunLocked: another process holds the lock.
            WriteError: the folder is not writable.
        """
        try:
            with writing(self.path / LOCK):
                lock = self._lock().acquire(timeout=1)  # outlasts the brief lock of `is_locked`
        except filelock.Timeout:
            raise RunLocked(_locked_message(self.path)) from None
        with lock:
            if os.name == "posix":  # Windows cannot open folders, nor rename one with open files
                self._descriptor = os.open(self.path, os.O_RDONLY)
            try:
                yield
            finally:
                if self._descriptor is not None:
                    os.close(self._descriptor)
                    self._descriptor = None

    def is_locked(self) -> bool:
        """Return whether another process is training the run now."""
        if not (self.path / LOCK).exists():
            return False
        try:
            with self._lock().acquire(timeout=0):
                return False
        except filelock.Timeout:
            return True
        except OSError:  # a read-only folder: nothing can be trained in it here
            return False

    def _lock(self) -> filelock.FileLock:
        return filelock.FileLock(self.path / LOCK, thread_local=False)  # a run may end in another thread

    def record(self) -> dict[str, Any]:
        """Return the contents of run.json, or, if it was deleted, its copy in the newest checkpoint.

        Raises:
            InputError: the file is missing, damaged or edited, or a newer version wrote it.
        """
        if not self.record_path.exists() and self._has_checkpoints():
            record = newest_notes(self.checkpoints_path).get("record")
            if record is None:
                raise InputError(f"{self.path} has no run.json, nor a checkpoint with a copy of it; start a new run")
            return record
        try:
            record = json.loads(self.record_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.record_path} cannot be read: {error}; {self._remedy()}") from None
        if isinstance(record, dict) and record.get("format", FORMAT) not in range(FORMAT + 1):
            raise InputError(f"{self.record_path} was written by a newer version of keras_preact; update it")
        if not isinstance(record, dict) or record.pop(CHECKSUM, None) != checksum(record):
            raise InputError(f"{self.record_path} is damaged or was edited; {self._remedy()}")
        return {key: value for key, value in record.items() if key != "format"}

    def _remedy(self) -> str:
        if self._has_checkpoints():
            return f"delete it and run {as_command('train --resume', self.path)}, which restores it from a checkpoint"
        return "restore it or start a new run"

    def training(self, *required: str) -> dict[str, Any]:
        """Return the contents of run.json of a training run.

        Args:
            *required: entries that it must have besides `status` and `config`.

        Raises:
            InputError: the folder contains something else, such as an inspection, or an entry is missing.
        """
        record = self.record()
        self._check_single(record)
        if (kind := record.get("kind", "something else")) != "training":
            raise InputError(f"{self.path} contains no training run ({kind}); name a folder that `train` created")
        if missing := [key for key in dict.fromkeys(("status", "config", *required)) if key not in record]:
            raise InputError(f"{self.record_path} lacks {', '.join(missing)}; {self._remedy()}")
        return record

    def _check_single(self, record: Mapping[str, Any]) -> None:
        """Raise InputError if a record is that of a comparison."""
        if record.get("kind") == "comparison" and "runs" in record:
            names = ", ".join(str(self.path / name) for name in record["runs"])
            raise InputError(f"{self.path} contains several runs; name one of them: {names}")

    def unit(self) -> str:
        """Return the unit of the errors: `"%"`, or the unit of the data if a forecast is trained.

        Raises:
            InputError: the folder contains several runs, or its record is missing or damaged.
        """
        record = self.record()
        self._check_single(record)
        return str(record.get("data", {}).get("unit", "%"))

    def trained_model(self) -> Path:
        """Return the file of the trained model.

        Raises:
            InputError: the folder contains no training run, the run diverged or is not finished, or the file is
                missing.
        """
        status = self.training()["status"]
        if status == "diverged":
            raise InputError(f"{self.path} diverged and has no trained model; train again with a lower learning rate")
        if status != "finished":
            raise InputError(
                f"{self.path} has no trained model yet; finish it first with {as_command('train --resume', self.path)}"
            )
        if not self.model_path.exists():
            raise InputError(
                f"the weights of {self.path} are not stored ({self.model_path.name} is missing); train it again with "
                f"the options in its {self.record_path.name}"
            )
        return self.model_path

    def update_record(self, **changes: Any) -> dict[str, Any]:
        """Set entries of run.json and remove those that are `None`, atomically; return the record."""
        record = {**(self.record() if self.exists() else {}), **changes}
        record = {key: value for key, value in record.items() if value is not None}
        contents = {"format": FORMAT, **record}
        contents[CHECKSUM] = checksum(contents)
        write_atomically(self.record_path, json.dumps(contents, indent=2, ensure_ascii=False) + "\n")
        return record

    def metrics(self) -> list[dict[str, float]]:
        """Return the rows of metrics.csv with values as floats, one per epoch; none before the end of the first epoch.

        Raises:
            InputError: the file of recorded epochs is missing or damaged, or the folder contains several runs.
        """
        record = self.record() if self.exists() else {}
        self._check_single(record)
        summary = record.get("metrics", {})
        if not summary and not self.metrics_path.exists() and record.get("status") != "finished":
            return []
        try:
            # Rows beyond the recorded number belong to an epoch without a checkpoint.
            lines = self.metrics_path.read_text(encoding="utf-8").splitlines()[: summary.get("rows", 10**9) + 1]
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
            raise InputError(f"{self.metrics_path} cannot be read ({error}); restore it from a copy") from None
        if summary and summary.get(CHECKSUM) != checksum(lines):
            raise InputError(f"{self.metrics_path} is damaged: rows are missing or changed; restore it from a copy")
        return rows

    def write_metrics(self, rows: Sequence[dict[str, float]]) -> None:
        """Replace metrics.csv atomically with these rows."""
        write_atomically(self.metrics_path, _metrics_text(rows))

    def write_curves(self, runs: Mapping[str, Sequence[dict[str, float]]], unit: str) -> None:
        """Draw curves.png if matplotlib is installed.

        Args:
            runs: rows of metrics by the name shown in the figure.
            unit: unit of the errors.
        """
        if is_installed("matplotlib"):
            from keras_preact.plots import draw_curves

            with writing(self.curves_path):
                draw_curves(runs, self.curves_path, unit)


def metrics_summary(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the number of rows of metrics.csv and a checksum that is independent of line endings, for run.json."""
    return {"rows": len(rows), CHECKSUM: checksum(_metrics_text(rows).splitlines())}


class ReadOnlyRunFolder(RunFolder):
    """The folder of a run that another process writes. Methods that write do nothing."""

    @classmethod
    def create(cls, path: str | Path) -> ReadOnlyRunFolder:
        return cls(path)

    @classmethod
    def check_free(cls, path: str | Path) -> None:
        pass

    @contextmanager
    def held(self) -> Iterator[None]:
        yield  # the process that writes holds the lock

    def update_record(self, **changes: Any) -> dict[str, Any]:
        return changes

    def write_metrics(self, rows: Sequence[dict[str, float]]) -> None:
        pass

    def write_curves(self, runs: Mapping[str, Sequence[dict[str, float]]], unit: str) -> None:
        pass


def _locked_message(path: Path) -> str:
    return f"{path} is being trained by another process; wait for it, stop it, or choose another folder"


def _metrics_text(rows: Sequence[dict[str, float]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, METRICS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _format_number(row[key]) for key in METRICS} for row in rows)
    return text.getvalue()


def _format_number(value: float) -> str:
    """Format integers without a decimal point, other numbers with 7 significant digits (float32 has no more)."""
    return str(int(value)) if float(value).is_integer() else f"{value:.7g}"


def next_free_folder(parent: Path, name: str) -> Path:
    """Return the first of `name-001`, `name-002`, … that does not exist in `parent`.

    >>> str(next_free_folder(Path("no-such-folder"), "demo"))
    'no-such-folder/demo-001'
    """
    return next(path for k in range(1, 10**6) if not (path := Path(parent) / f"{name}-{k:03d}").exists())


def in_free_folder(out: Path | None, parent: Path, name: str, train: Callable[[Path], T]) -> T:
    """Call `train` with `out` or, without it, with the next free folder, which another process may take first."""
    while True:
        try:
            return train(out or next_free_folder(parent, name))
        except RunLocked:
            if out is not None:
                raise


def _current_path(path: Path, descriptor: int) -> Path:
    """Return `path` if it is still the open folder, else the folder's new path."""
    folder = os.fstat(descriptor)
    for candidate in (lambda: path, lambda: _path_of(descriptor)):
        with suppress(OSError):
            found = candidate()
            if os.path.samestat(os.stat(found), folder):
                return found
    raise WriteError(errno.ENOENT, "the run folder was removed or moved to another disk during training", str(path))


def _path_of(descriptor: int) -> Path:
    """Return the path of an open folder."""
    if sys.platform == "darwin":
        import fcntl

        return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
