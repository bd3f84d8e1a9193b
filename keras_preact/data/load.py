"""Data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_preact.data.bundled import bundled_cifar10
from keras_preact.data.folder import from_folder
from keras_preact.data.sequences import SEQUENCES
from keras_preact.data.streams import from_tfds
from keras_preact.errors import InputError


def load_dataset(
    name: str, data_dir: str | Path | None = None, image_size: int | None = None, skip_corrupt: bool = False
) -> Any:
    """Return a data set by name: an `ImageDataset` or a `SequenceDataset`.

    Args:
        name: `"bundled"`, `"folder"` (with `data_dir`), a classification set of tensorflow-datasets; or the bundled
            sequences: `"reviews"`, `"characters"`, `"weather"`.
        data_dir: the folder, or where tensorflow-datasets keeps its data (default: its own place).
        image_size: height and width in pixels. Images of one size (the bundled ones, CIFAR) are averaged down to it;
            it is required where sizes differ, except in a folder, whose default is 32.
        skip_corrupt: with `"folder"`, whether images that cannot be read are left out; see `from_folder`.

    Raises:
        InputError: there is no such set, it is missing, or half written; an image size that it cannot have; or a
            folder for bundled data.

    Example:

    >>> load_dataset("bundled", image_size=16).image_shape
    (16, 16, 3)
    """
    if skip_corrupt and name != "folder":
        raise InputError(f"only images of a folder can be skipped; leave out --skip-corrupt with --dataset {name}")
    if name == "bundled":
        _refuse_bundled(name, "--data-dir", data_dir)
        return bundled_cifar10() if image_size is None else bundled_cifar10().at(image_size)
    if name == "folder":
        if data_dir is None:
            raise InputError("--dataset folder needs --data-dir, a folder that holds train/CLASS/ and test/CLASS/")
        return from_folder(data_dir, image_size, skip_corrupt)
    if name in SEQUENCES:
        _refuse_bundled(name, "--data-dir", data_dir)
        _refuse_bundled(name, "--image-size", image_size)
        return SEQUENCES[name]()
    return from_tfds(name, data_dir, image_size)


def _refuse_bundled(name: str, option: str, value: Any) -> None:
    """Raise InputError where an option is given that bundled data cannot have: the user may mean other data."""
    if value is not None:
        raise InputError(
            f"the data set {name} comes with the package, as it is; leave out {option}, or name other data by "
            "--dataset (folder, or a name of tensorflow-datasets)"
        )
