"""Checks and conversions that image and sequence data sets share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_preact.errors import InputError


def check_range(split: str, kind: str, name: str, numbers: np.ndarray, of: str, count: int) -> None:
    """Raise InputError if a number is outside [0, count): a backend would fail later, or not at all."""
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= count:
        raise InputError(
            f"a {split} {kind} of {name} is {low if low < 0 else high}, but its {count} {of} are numbered 0 to "
            f"{count - 1}; correct the {kind}s or name all {of}"
        )


def check_classes(name: str, class_names: Sequence[str]) -> None:
    """Raise InputError if a data set has fewer than two classes."""
    if len(class_names) < 2:
        raise InputError(f"the number of classes of {name} is {len(class_names)}; it must be at least 2")


def check_examples(name: str, class_names: Sequence[str], labels: np.ndarray, kind: str) -> None:
    """Raise InputError if a class has no training examples, which are of a kind such as `"images"`."""
    for label in np.setdiff1d(np.arange(len(class_names)), labels):
        raise InputError(
            f"the class {class_names[label]} of {name} has no training {kind}; add some, or leave out the class"
        )


def make_text(dataset: Any, *fields: str) -> None:
    """Convert the name of a frozen data set and the names in its fields to `str`: run.json cannot hold other types."""
    object.__setattr__(dataset, "name", str(dataset.name))
    for field in fields:
        names = getattr(dataset, field)
        # Lists of strings stay lists: the fingerprints that runs have recorded depend on it.
        if isinstance(names, np.ndarray) or not all(isinstance(name, str) for name in names):
            object.__setattr__(dataset, field, tuple(map(str, names)))


def make_read_only(*arrays: np.ndarray) -> None:
    """Make cached arrays read-only: a program that changed them would change what every later caller gets."""
    for array in arrays:
        array.flags.writeable = False
