"""Writing files so that a crash, a full disk or a power cut never leaves half of one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from keras_preact.errors import InputError, WriteError

PARTIAL = ".partial"
"""Ending of a file that is being written; it is renamed when it is whole."""


def checksum(data: Any) -> str:
    """Return the SHA-256 of plain data, whatever the order of its keys.

    >>> checksum({"a": 1, "b": 2}) == checksum({"b": 2, "a": 1}) != checksum({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a refusal of the system to write `path` into a `WriteError`, which names it.

    TensorFlow's and Keras's writers raise errors of their own: theirs are known by what they carry of the system's.
    """
    try:
        yield
    except (InputError, WriteError, filelock.Timeout):
        raise
    except Exception as error:
        number = _error_number(error)
        if number is None:
            raise
        raise WriteError(number, os.strerror(number), str(path)) from error


def _error_number(error: BaseException | None) -> int | None:
    """Return the system's error number of an OSError, of an error that one led to, or of TensorFlow's file system."""
    if error is None:
        return None
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if type(error).__module__.startswith("tensorflow."):
        return next((number for number in errno.errorcode if os.strerror(number) in str(error)), None)
    return _error_number(error.__cause__ or error.__context__)


@contextmanager
def written_aside(path: Path, aside: Path | None = None) -> Iterator[Path]:
    """Return the name under which to write a file; after the block it has its own name, or nothing has changed.

    Raises:
        WriteError: the system refused to write it; what was written aside is removed.
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
    """Write a text file aside and rename it: a reader never sees half of it, not even after a power cut."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="")


def _move_flushed(aside: Path, path: Path) -> None:
    """Give a file that was written aside its name, when the disk has all of it: neither is half done by a power cut."""
    with open(aside, "rb+") as file:  # Windows flushes no file that is open for reading alone
        os.fsync(file.fileno())
    os.replace(aside, path)
    if os.name == "posix":  # Windows opens no folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
