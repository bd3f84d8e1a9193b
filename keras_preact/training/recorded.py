"""Configurations as `run.json` records them: dataclasses whose fields are plain data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import PurePath
from typing import Any

import numpy as np

from keras_preact.errors import InputError, shown


def plain(value: Any) -> Any:
    """Return a value with Python's own numbers for NumPy's and text for paths, also inside lists and dictionaries.

    >>> from pathlib import Path
    >>> plain({"depth": np.int64(8), "sizes": (np.float32(0.5), 1), "weights": Path("here")})
    {'depth': 8, 'sizes': (0.5, 1), 'weights': 'here'}
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, PurePath):
        return str(value)
    if type(value) in (list, tuple):
        return type(value)(plain(entry) for entry in value)
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    return value


def make_plain(data: Any) -> None:
    """Apply `plain` to the fields of a frozen dataclass while it is created."""
    for field in dataclasses.fields(data):
        object.__setattr__(data, field.name, plain(getattr(data, field.name)))


def from_record(kind: type, record: dict[str, Any]) -> Any:
    """Return the dataclass that was recorded, with tuples instead of the lists that JSON makes of them.

    Raises:
        InputError: the record has fields that this version of the dataclass lacks, or values that it rejects.
    """
    if unknown := sorted(record.keys() - {field.name for field in dataclasses.fields(kind)}):
        raise InputError(
            f"{kind.__name__} has no {', '.join(unknown)}: the record was written by a newer version of "
            f"{kind.__module__.split('.')[0]}; update it"
        )
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in record.items()})


def check_recordable(what: str, data: dict[str, Any]) -> None:
    """Raise InputError if JSON cannot hold a value.

    Args:
        what: the kind of values, for the message.
        data: the values by name.

    >>> check_recordable("option", {"depth": 8})
    """
    for name, value in data.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise InputError(
                f"the {what} {name} is {shown(repr(value))}, which run.json cannot hold; use names, numbers, lists and "
                "dictionaries"
            ) from None
