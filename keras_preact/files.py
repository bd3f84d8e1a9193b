"""Atomic writes: a crash, a full disk or a power cut never leaves half of a file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from keras_preact.errors import InputError, WriteError

PARTIAL = ".partial"
"""Suffix of a file that is being written; the complete file is renamed."""


def checksum(data: Any) -> str:
    """Return the SHA-256 of JSON data, independent of the order of keys.

    >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1}) != checksum({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a `WriteError` that names `path` if the system refuses to write it.

    TensorFlow and Keras raise errors of their own types; these count if they carry an error of the system. One that
    was being handled when the block began does not count.
    """
    handled = sys.exc_info()[1]
    try:
        yield
    except (InputError, WriteError, filelock.Timeout):
        raise
    except Exception as error:
        number = _error_number(error, handled)
        if number is None:
            raise
        raise WriteError(number, os.strerror(number), str(path)) from error


def _error_number(error: BaseException | None, handled: BaseException | None) -> int | None:
    """Return the error number of an OSError, of an error caused by one, or of an error of TensorFlow's file system.

    Causes are followed up to `handled`, the error that was being handled before.
    """
    if error is None or error is handled:
        return None
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if type(error).__module__.startswith("tensorflow."):
        said = str(error).lower()  # TensorFlow writes "is not a directory"
        return next((number for number in errno.errorcode if os.strerror(number).lower() in said), None)
    context = None if error.__suppress_context__ else error.__context__
    return _error_number(error.__cause__ or context, handled)


@contextmanager
def written_aside(path: Path, aside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; after the block it is renamed to `path`, or nothing has changed.

    Raises:
        WriteError: the system refused to write it; the temporary file is removed.
    """
    aside = aside or path.with_name(path.name + PARTIAL)
    with writing(path):
        try:
            yield aside
            _move_flushed(aside, path)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it: no reader ever sees half of it."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="")


def remove(path: Path) -> None:
    """Remove a file, if it exists; on Windows, wait while another program reads it."""
    _patiently(lambda: path.unlink(missing_ok=True))


def _patiently(change: Callable[[], Any], tries: int = 20 if os.name == "nt" else 1) -> None:
    """Rename or remove a file. On Windows, wait for up to a second while another program reads it: a virus scanner."""
    for _ in range(tries - 1):
        with suppress(PermissionError):
            change()
            return
        time.sleep(0.05)
    change()


def _move_flushed(aside: Path, path: Path) -> None:
    """Flush a temporary file to the disk, then rename it: a power cut leaves the old file or the new one."""
    with open(aside, "rb+") as file:  # Windows cannot flush a file that is open for reading only
        os.fsync(file.fileno())
    _patiently(lambda: os.replace(aside, path))
    if os.name == "posix":  # Windows cannot open folders
        _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    """Flush a folder to the disk, unless it cannot be read or, as on some network drives, folders cannot be flushed."""
    try:
        folder = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)
