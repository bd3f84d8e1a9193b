"""The bundled images."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
from PIL import Image

from keras_preact.data.checks import make_read_only
from keras_preact.data.splits import ArraySplit, ImageDataset

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@functools.cache
def bundled_cifar10() -> ImageDataset:
    """Return the bundled subset of CIFAR-10: the first 400 training and 100 test images of each class.

    It needs neither a download nor TensorFlow. It is meant for demonstrations and tests: an error measured on it is
    not comparable with errors on CIFAR-10.

    Every call returns the same arrays, which are read-only; copy them to change them.
    """
    folder = Path(__file__).parent / "bundled"
    labels = json.loads((folder / "labels.json").read_text())
    splits = {}
    for split in ("train", "test"):
        mosaics = []
        for path in sorted(folder.glob(f"{split}-*.webp")):
            with Image.open(path) as file:
                mosaics.append(_tiles(np.asarray(file), size=32))
        splits[split] = ArraySplit(np.concatenate(mosaics), [int(label) for label in labels[split]])
        make_read_only(splits[split].images, splits[split].labels)
    return ImageDataset("bundled", splits["train"], splits["test"], CIFAR10_CLASSES, source="bundled")


def _tiles(mosaic: np.ndarray, size: int) -> np.ndarray:
    """Cut a mosaic into its square images, row by row."""
    rows, columns, channels = mosaic.shape[0] // size, mosaic.shape[1] // size, mosaic.shape[2]
    tiles = mosaic.reshape(rows, size, columns, size, channels).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(rows * columns, size, size, channels)
