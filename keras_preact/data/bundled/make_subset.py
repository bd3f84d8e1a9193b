"""Make the bundled subset from the whole CIFAR-10; run by hand, once.

    python keras_preact/data/bundled/make_subset.py --data-dir DIR

takes the first 400 training and 100 test images of each class, in CIFAR-10's own order (that of the file names
`train_00000`, … that tensorflow-datasets keeps), and writes lossless mosaics of 1,000 images, 20 per row, beside this
script. DIR is a tensorflow-datasets folder that holds a prepared `cifar10`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
PER_CLASS = {"train": 400, "test": 100}
MOSAIC = 1000
COLUMNS = 20


def read_split(data_dir: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 32, 32, 3) and labels (n,), both uint8, in CIFAR-10's order."""
    import tensorflow_datasets as tfds

    examples: list[dict[str, Any]] = list(
        tfds.as_numpy(tfds.load("cifar10", split=split, data_dir=data_dir, download=False))
    )
    examples.sort(key=lambda example: example["id"])
    images = np.stack([example["image"] for example in examples])
    return images, np.array([example["label"] for example in examples], np.uint8)


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the sorted indices of the first `count` images of each class."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(10)]))


def mosaic(images: np.ndarray) -> np.ndarray:
    """Return images (n, 32, 32, 3) side by side, `COLUMNS` per row."""
    rows = images.reshape(-1, COLUMNS, 32, 32, 3).transpose(0, 2, 1, 3, 4)
    return rows.reshape(len(images) // COLUMNS * 32, COLUMNS * 32, 3)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data-dir", type=Path, required=True)
    data_dir = arguments.parse_args().data_dir
    labels: dict[str, str] = {}
    for split, count in PER_CLASS.items():
        images, all_labels = read_split(data_dir, split)
        chosen = first_of_each_class(all_labels, count)
        labels[split] = "".join(str(label) for label in all_labels[chosen])
        for start in range(0, len(chosen), MOSAIC):
            part = mosaic(images[chosen[start : start + MOSAIC]])
            path = HERE / f"{split}-{start // MOSAIC}.webp"
            Image.fromarray(part).save(path, lossless=True, quality=100, method=6, exact=True)
    (HERE / "labels.json").write_text(json.dumps(labels, indent=1) + "\n")


if __name__ == "__main__":
    main()
