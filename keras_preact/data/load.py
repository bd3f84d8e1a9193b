"""Load a data set by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_preact.data.bundled import bundled_cifar10
from keras_preact.data.folder import from_folder
from keras_preact.data.sequences import SEQUENCES
from keras_preact.data.streams import from_tfds, prepare_tfds
from keras_preact.errors import InputError


def load_dataset(
    name: str, data_dir: str | Path | None = None, image_size: int | None = None, skip_corrupt: bool = False
) -> Any:
    """Return a data set by name: an `ImageDataset` or a `SequenceDataset`.

    Args:
        name: `"bundled"`; `"folder"`, with `data_dir`; the bundled sequences `"reviews"`, `"characters"` or
            `"weather"`; or an image classification set of tensorflow-datasets.
        data_dir: the image folder, or the data folder of tensorflow-datasets (default: its own).
        image_size: height and width in pixels. Images of one size (bundled, CIFAR) are reduced to it by area
            averaging. Required if the images differ in size, except for a folder, where the default is 32.
        skip_corrupt: whether to leave out images of a folder that cannot be read; see `from_folder`.

    Raises:
        InputError: the data set is unknown, missing or incomplete, or does not accept one of the arguments.

    Example:

    >>> load_dataset("bundled", image_size=16).image_shape
    (16, 16, 3)
    """
    if skip_corrupt and name != "folder":
        raise InputError(f"skip_corrupt (--skip-corrupt) applies only to image folders; leave it out for {name}")
    if name == "bundled":
        _check_unset(name, "data_dir (--data-dir)", data_dir)
        return bundled_cifar10() if image_size is None else bundled_cifar10().at(image_size)
    if name == "folder":
        if data_dir is None:
            raise InputError("pass data_dir (--data-dir), the image folder with train/CLASS/ and test/CLASS/")
        return from_folder(data_dir, image_size, skip_corrupt)
    if name in SEQUENCES:
        _check_unset(name, "data_dir (--data-dir)", data_dir)
        _check_unset(name, "image_size (--image-size)", image_size)
        return SEQUENCES[name]()
    return from_tfds(name, data_dir, image_size)


def prepare_dataset(name: str, data_dir: str | Path | None = None) -> None:
    """Download a data set if it is missing, without loading it. Call it before several processes load the same data.

    Args:
        name, data_dir: as in `load_dataset`.

    Raises:
        InputError: a data set of tensorflow-datasets is unknown, missing or incomplete.

    Example: bundled data are always there.

    >>> prepare_dataset("bundled")
    """
    if name != "folder" and not is_bundled(name):
        prepare_tfds(name, data_dir)


def is_bundled(name: str) -> bool:
    """Return whether a data set comes with the package.

    >>> is_bundled("bundled"), is_bundled("cifar10")
    (True, False)
    """
    return name == "bundled" or name in SEQUENCES


def _check_unset(name: str, option: str, value: Any) -> None:
    """Raise InputError if an option is set that bundled data do not have: the user may want other data."""
    if value is not None:
        raise InputError(
            f"{option} does not apply to the bundled data set {name}; leave it out, or choose another data set "
            "(--dataset): folder, or a name from tensorflow-datasets"
        )
