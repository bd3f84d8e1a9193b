"""Data sets: arrays, the bundled images, folders of class folders, and any set of tensorflow-datasets."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from keras_preact.data.batches import TestBatches, TrainBatches, as_labels, steps_per_epoch
from keras_preact.errors import InputError, check_choice

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}
TEST_FOLDERS = ("test", "val", "validation")
FOLDER_IMAGE_SIZE = 32
"""Pixels to which the images of a folder are scaled by default."""
SMALLEST_IMAGE = 8
"""Pixels: the networks halve an image twice or more."""


class Split(ABC):
    """Training or test examples: what a network is shown, and what it is to make of it.

    Attributes:
        labels: (n, …), what it is to make of each.
    """

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def signature(self) -> tuple[tuple[tuple[int, ...], str], tuple[tuple[int, ...], str]]:
        """Shape and dtype of one example, and of its label."""

    @abstractmethod
    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples and their labels at these indices."""

    @abstractmethod
    def update_hash(self, digest: Any) -> None:
        """Feed to a hashlib object what tells this split from another."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of whole batches in an epoch; InputError where there is none."""
        return steps_per_epoch(len(self), batch_size)

    def train_batches(self, batch_size: int, seed: int, first_step: int = 0) -> Any:
        """Return endless shuffled batches for `model.fit`, from a step of the run on."""
        return TrainBatches(self, batch_size, seed, first_step)

    def test_batches(self, batch_size: int) -> Any:
        """Return every example once, in batches, for `model.evaluate`."""
        return TestBatches(self, batch_size)


class ImageSplit(Split):
    """Images, uint8, with int32 labels (n,).

    Attributes:
        image_shape: (height, width, channels).
    """

    image_shape: tuple[int, int, int]
    is_stream = False
    """Whether the images can only be read in their own order, so that their labels take as long as an epoch."""

    def known_labels(self) -> np.ndarray:
        """Return the labels that can be checked at once: all, and the first of a stream."""
        return self.labels

    @property
    def signature(self) -> tuple[tuple[tuple[int, ...], str], tuple[tuple[int, ...], str]]:
        return (self.image_shape, "uint8"), ((), "int32")

    def part(self, indices: np.ndarray, labels: np.ndarray) -> ImageSplit:
        """Return the images at these indices alone, with these labels."""
        return _Part(self, indices, labels)

    def at(self, image_size: int, short_side: int | None = None) -> ImageSplit:
        """Return the same images at another size, for example 16 pixels instead of 32, or a test at 320.

        Images in memory are averaged down, each new pixel over the area that it covers. Image files are scaled by
        their short side, and the middle is cut out.

        Args:
            image_size: height and width in pixels.
            short_side: of image files, before the middle is cut out; default in the proportion of this split.

        Raises:
            InputError: images in memory are smaller than that or not square, or the short side is shorter than the
                square.
        """
        raise InputError(f"{type(self).__name__} has images of one size; leave out the image size")

    def mean(self) -> np.ndarray:
        """Return the mean image, float32 (height, width, channels), in the pixels' units 0 to 255."""
        total = np.zeros(self.image_shape, np.float64)
        for images in self._chunks():
            total += images.sum(0, dtype=np.float64)
        return (total / len(self)).astype(np.float32)

    def channel_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each channel, float32 (channels,), in the pixels' units."""
        return channel_moments(self._chunks())

    def _chunks(self) -> Iterator[np.ndarray]:
        """Yield all images, a thousand or so at a time."""
        for start in range(0, len(self), 1024):
            yield self.batch(np.arange(start, min(start + 1024, len(self))))[0]


def channel_moments(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of the last axis of uint8 arrays of any shape."""
    counts = np.zeros((1, 256), np.int64)  # how often each value stands in each channel
    for chunk in chunks:
        channels = np.asarray(chunk).reshape(-1, chunk.shape[-1]).T
        counts = counts + np.stack([np.bincount(channel, minlength=256) for channel in channels])
    shares = counts / counts.sum(1, keepdims=True)
    values = np.arange(256)
    mean = shares @ values
    return mean.astype(np.float32), np.sqrt(shares @ values**2 - mean**2).astype(np.float32)


class ArraySplit(ImageSplit):
    """Images in memory.

    Args:
        images: uint8 (n, height, width, channels), pixels 0 to 255.
        labels: integers (n,) or (n, 1).

    Raises:
        InputError: another shape or dtype, no images, or not one label an image.

    Example:

    >>> split = ArraySplit(np.zeros((5, 8, 8, 3), "uint8"), [0, 1, 0, 1, 0])
    >>> len(split), split.image_shape
    (5, (8, 8, 3))
    """

    def __init__(self, images: Any, labels: Any) -> None:
        images = np.asarray(images)
        if images.ndim != 4:
            raise InputError(f"images of shape {images.shape} are not (number, height, width, channels); reshape them")
        if images.dtype != np.uint8:
            raise InputError(f"images of dtype {images.dtype} are not uint8; give pixels from 0 to 255 as uint8")
        self.images = images
        self.labels = as_labels(labels)
        if len(self.images) != len(self.labels):
            raise InputError(f"{len(images)} images have {len(self.labels)} labels; give one label an image")
        self.image_shape = tuple(int(size) for size in images.shape[1:])  # type: ignore[assignment]

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.images[indices], self.labels[indices]

    def at(self, image_size: int, short_side: int | None = None) -> ArraySplit:
        height, width, _ = self.image_shape
        if short_side is not None:
            raise InputError(f"the images are all {height}×{width} and none is cropped; leave out the short side")
        if image_size == height == width:
            return self
        if height != width:
            raise InputError(f"the images are {height}×{width}, not square; leave out the image size")
        if not SMALLEST_IMAGE <= image_size < height:
            raise InputError(
                f"images of {height}×{width} are averaged down, not enlarged; give an image size from "
                f"{SMALLEST_IMAGE} to {height} pixels, not {image_size}"
            )
        return ArraySplit(np.concatenate([_averaged(images, image_size) for images in self._chunks()]), self.labels)

    def update_hash(self, digest: Any) -> None:
        digest.update(np.ascontiguousarray(self.images))
        digest.update(self.labels)


def _averaged(images: np.ndarray, size: int) -> np.ndarray:
    """Return square images at a smaller size, each pixel the mean of the area that it covers, rounded to uint8."""
    before = images.shape[1]
    edges = np.linspace(0, before, size + 1)
    pixels = np.arange(before)
    overlaps = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights = (np.clip(overlaps, 0, 1) * size / before).astype(np.float32)  # (new, old): shares of a new pixel
    return np.rint(np.einsum("ih,jw,nhwc->nijc", weights, weights, images, optimize=True)).astype(np.uint8)


class FolderSplit(ImageSplit):
    """Image files, read when they are needed: turned upright, the short side brought to a length, the middle cut out.

    Args:
        root: the folder that names in messages and in the fingerprint are relative to.
        paths: the files.
        labels: integers (n,).
        image_size: pixels, height and width.
        short_side: pixels, before the middle is cut out; default `image_size`.
    """

    def __init__(
        self, root: Path, paths: Sequence[Path], labels: Any, image_size: int, short_side: int | None = None
    ) -> None:
        self.root = root
        self.paths = list(paths)
        self.labels = as_labels(labels)
        self.image_shape = (image_size, image_size, 3)
        self.short_side = check_short_side(image_size if short_side is None else short_side, image_size)

    @functools.cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=4)  # Pillow decodes outside the interpreter's lock

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_pool"}  # threads cannot be copied

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = list(self._pool.map(self._read, (self.paths[i] for i in indices)))
        return np.stack(images), self.labels[indices]

    def _read(self, path: Path) -> np.ndarray:
        size, short_side, name = self.image_shape[0], self.short_side, path.relative_to(self.root)
        try:
            with Image.open(path) as file:
                # Pillow would cut integers of 16 or 32 bits off at 255, and so make nearly all of them white.
                if file.mode.startswith(("I", "F")):
                    raise InputError(
                        f"the image {name} has pixels of more than 8 bits ({file.mode}); scale them to 0 to 255 and "
                        "save it with 8"
                    )
                image = _upright(file).convert("RGB")
        except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(f"the image {name} cannot be read ({error}); replace or remove it") from None
        scale = short_side / min(image.size)
        width, height = (max(short_side, round(length * scale)) for length in image.size)
        if (width, height) != image.size:
            # Smaller by area averaging, as images in memory; BOX would enlarge to blocks.
            image = image.resize((width, height), Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        return np.asarray(image)[top : top + size, left : left + size]

    def at(self, image_size: int, short_side: int | None = None) -> FolderSplit:
        return FolderSplit(self.root, self.paths, self.labels, image_size, short_side)

    def readable(self) -> tuple[FolderSplit, list[str]]:
        """Return the images that can be read, and the names of the others: each file is decoded once."""

        def is_readable(path: Path) -> bool:
            try:
                self._read(path)
            except InputError:
                return False
            return True

        good = np.array(list(self._pool.map(is_readable, self.paths)), dtype=bool)
        paths = [path for path, is_good in zip(self.paths, good, strict=True) if is_good]
        names = [
            str(path.relative_to(self.root)) for path, is_good in zip(self.paths, good, strict=True) if not is_good
        ]
        return FolderSplit(self.root, paths, self.labels[good], self.image_shape[0]), names

    def update_hash(self, digest: Any) -> None:
        for path, label in zip(self.paths, self.labels, strict=True):
            digest.update(f"{path.relative_to(self.root).as_posix()} {path.stat().st_size} {label}\n".encode())


def _upright(file: Image.Image) -> Image.Image:
    """Return an image as a viewer shows it: cameras store it as it was held, and in its EXIF tags how to turn it."""
    from PIL import ImageOps  # Keras imports no more of Pillow than `Image`, nor does this package by itself

    try:
        return ImageOps.exif_transpose(file)
    except (ValueError, TypeError, KeyError, struct.error):  # damaged tags; the pixels are decoded afterwards
        return file


def check_short_side(short_side: int, image_size: int) -> int:
    """Return the short side of an image out of whose middle a square is cut.

    Raises:
        InputError: it is shorter than the square.
    """
    if short_side < image_size:
        raise InputError(f"a square of {image_size} is not in an image whose short side is {short_side}; give more")
    return short_side


class _Part(ImageSplit):
    """Some images of another split, under labels of their own."""

    def __init__(self, whole: ImageSplit, indices: np.ndarray, labels: np.ndarray) -> None:
        self.whole = whole
        self.indices = indices
        self.labels = as_labels(labels)
        self.image_shape = whole.image_shape

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.whole.batch(self.indices[indices])[0], self.labels[indices]

    def at(self, image_size: int, short_side: int | None = None) -> ImageSplit:
        return _Part(self.whole.at(image_size, short_side), self.indices, self.labels)

    def update_hash(self, digest: Any) -> None:
        self.whole.update_hash(digest)
        digest.update(np.ascontiguousarray(self.indices))
        digest.update(self.labels)


def check_range(split: str, kind: str, name: str, numbers: np.ndarray, of: str, count: int) -> None:
    """Raise InputError where a number is none of `count`: a backend would stumble over it later, or say nothing."""
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= count:
        raise InputError(
            f"a {split} {kind} of {name} is {low if low < 0 else high}, but its {count} {of} are numbered 0 to "
            f"{count - 1}; correct the {kind}s or name all {of}"
        )


@dataclass(frozen=True)
class ImageDataset:
    """Training and test images of the same shape and classes.

    Attributes:
        name: for run.json and messages.
        train: training images.
        test: test images, which training never sees.
        class_names: one a class, in the order of the labels.
        skipped: names of images that were left out because they could not be read.

    Raises:
        InputError: a label without a class, a class without training images, shapes that differ, an empty split.

    Example:

    >>> bundled = bundled_cifar10()
    >>> len(bundled.train), len(bundled.test), bundled.image_shape, bundled.classes
    (4000, 1000, (32, 32, 3), 10)
    """

    name: str
    train: ImageSplit
    test: ImageSplit
    class_names: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    task = "classification"
    unit = "%"

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise InputError(f"{self.name} has {self.classes} class; classification takes at least 2")
        for what, split in (("training", self.train), ("test", self.test)):
            if len(split) == 0:
                raise InputError(f"{self.name} has no {what} images; give at least one")
            check_range(what, "label", self.name, split.known_labels(), "classes", self.classes)
        if self.train.image_shape != self.test.image_shape:
            raise InputError(
                f"training images of {self.name} are {self.train.image_shape}, test images {self.test.image_shape}; "
                "bring them to one shape"
            )
        if self.train.is_stream:
            return
        for label in np.flatnonzero(np.bincount(self.train.labels, minlength=self.classes) == 0):
            raise InputError(
                f"the class {self.class_names[label]} of {self.name} has no training image; add or drop it"
            )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.train.image_shape

    def only(self, class_names: Sequence[str]) -> ImageDataset:
        """Return the images of some classes alone, numbered in the order in which the classes are named.

        Args:
            class_names: two or more of `class_names`.

        Raises:
            InputError: there is no such class, one is named twice, fewer than two are named, or the images are read
                as a stream.

        Example:

        >>> animals = bundled_cifar10().only(["cat", "dog"])
        >>> animals.class_names, len(animals.train)
        (('cat', 'dog'), 800)
        """
        if self.train.is_stream:
            raise InputError(f"the images of {self.name} are read as a stream; take all of its classes")
        names = tuple(check_choice("class", name, self.class_names) for name in class_names)
        if len(set(names)) < len(names):
            raise InputError(f"a class is named twice in {', '.join(names)}; name each once")
        new_label = np.full(self.classes, -1)
        new_label[[self.class_names.index(name) for name in names]] = np.arange(len(names))
        found = (np.flatnonzero(new_label[split.labels] >= 0) for split in (self.train, self.test))
        splits = zip((self.train, self.test), found, strict=True)
        train, test = (split.part(places, new_label[split.labels[places]]) for split, places in splits)
        return ImageDataset(self.name, train, test, names, self.skipped)

    def at(self, image_size: int) -> ImageDataset:
        """Return the same data with images of another size; see `ImageSplit.at`.

        Example:

        >>> bundled_cifar10().at(16).image_shape
        (16, 16, 3)
        """
        train, test = self.train.at(image_size), self.test.at(image_size)
        return ImageDataset(self.name, train, test, self.class_names, self.skipped)

    def fingerprint(self) -> str:
        """Return a SHA-256 that tells these data from others: of pixels and labels, or of file names and sizes."""
        digest = hashlib.sha256(repr((self.class_names, self.image_shape)).encode())
        self.train.update_hash(digest)
        self.test.update_hash(digest)
        return digest.hexdigest()


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    class_names: Sequence[str] | None = None,
    name: str = "arrays",
) -> ImageDataset:
    """Return a data set of arrays in memory.

    Args:
        x_train, x_test: images, uint8 (n, height, width, channels).
        y_train, y_test: labels, integers (n,) or (n, 1).
        class_names: default the numbers from 0 to the largest training label.
        name: for run.json and messages.

    Raises:
        InputError: see `ArraySplit` and `ImageDataset`.

    Example:

    >>> x, y = np.zeros((6, 8, 8, 3), "uint8"), [0, 1, 2, 0, 1, 2]
    >>> from_arrays(x, y, x, y).class_names
    ('0', '1', '2')
    """
    train, test = ArraySplit(x_train, y_train), ArraySplit(x_test, y_test)
    if class_names is None:
        class_names = [str(label) for label in range(int(train.labels.max(initial=-1)) + 1)]
    return ImageDataset(name, train, test, tuple(class_names))


@functools.cache
def bundled_cifar10() -> ImageDataset:
    """Return the bundled part of CIFAR-10: the first 400 training and 100 test images of each class.

    Needs no network, no TensorFlow. For demonstrations and tests: an error measured on it is not CIFAR-10's.
    """
    folder = Path(__file__).parent / "bundled"
    labels = json.loads((folder / "labels.json").read_text())
    splits = {}
    for split in ("train", "test"):
        mosaics = []
        for path in sorted(folder.glob(f"{split}-*.png")):
            with Image.open(path) as file:
                mosaics.append(_tiles(np.asarray(file), size=32))
        splits[split] = ArraySplit(np.concatenate(mosaics), [int(label) for label in labels[split]])
    return ImageDataset("bundled", splits["train"], splits["test"], CIFAR10_CLASSES)


def _tiles(mosaic: np.ndarray, size: int) -> np.ndarray:
    """Cut a mosaic into its square images, row by row."""
    rows, columns, channels = mosaic.shape[0] // size, mosaic.shape[1] // size, mosaic.shape[2]
    tiles = mosaic.reshape(rows, size, columns, size, channels).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(rows * columns, size, size, channels)


def from_folder(directory: str | Path, image_size: int | None = None, skip_corrupt: bool = False) -> ImageDataset:
    """Return the images of a folder of class folders.

    Args:
        directory: holds `train/CLASS/*.png` and `test/CLASS/*.png` (or `val`, `validation`); most image formats.
            Images with an EXIF orientation are turned by it.
        image_size: pixels; images are scaled to it by their short side and cut to a square. Default 32.
        skip_corrupt: whether images that cannot be read are found now, by decoding each once, and left out. Default
            `False`: the first that is met stops the training.

    Raises:
        InputError: a folder is missing or empty, or the classes of the two differ.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for path in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png"):
    ...         Path(folder, path).parent.mkdir(parents=True)
    ...         Image.new("RGB", (60, 40)).save(Path(folder, path))
    ...     animals = from_folder(folder, image_size=32)
    ...     animals.class_names, animals.train.batch(np.array([0, 1]))[0].shape
    (('cat', 'dog'), (2, 32, 32, 3))
    """
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"there is no folder {directory}; name one that holds train/CLASS/ and test/CLASS/")
    test_name = next((name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or test_name is None:
        raise InputError(f"{directory} has no train/ or no test/ folder; put the class folders into those two")
    names = _class_folders(root / "train")
    if names != (others := _class_folders(root / test_name)):
        differing = ", ".join(sorted(set(names) ^ set(others)))
        raise InputError(
            f"train/ and {test_name}/ in {directory} differ in the classes {differing}; give both the same"
        )
    size = FOLDER_IMAGE_SIZE if image_size is None else image_size
    if size < SMALLEST_IMAGE:
        raise InputError(f"the image size is {size}; give at least {SMALLEST_IMAGE} pixels")
    splits, skipped = [], []
    for name in ("train", test_name):
        files = [(path, label) for label, folder in enumerate(names) for path in _images(root / name / folder)]
        split = FolderSplit(root, [path for path, _ in files], [label for _, label in files], size)
        if skip_corrupt:
            split, unreadable = split.readable()
            skipped += unreadable
        splits.append(split)
    return ImageDataset(root.name, splits[0], splits[1], tuple(names), tuple(skipped))


def _class_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    files = [path for path in files if not path.name.startswith(".")]
    if not files:
        raise InputError(f"the class folder {folder.parent.name}/{folder.name} has no image; add some or remove it")
    return files


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
    from keras_preact.data.sequences import SEQUENCES

    if name in SEQUENCES:
        _refuse_bundled(name, "--data-dir", data_dir)
        _refuse_bundled(name, "--image-size", image_size)
        return SEQUENCES[name]()
    from keras_preact.data.streams import from_tfds

    return from_tfds(name, data_dir, image_size)


def _refuse_bundled(name: str, option: str, value: Any) -> None:
    """Raise InputError where an option is given that bundled data cannot have: the user may mean other data."""
    if value is not None:
        raise InputError(
            f"the data set {name} comes with the package, as it is; leave out {option}, or name other data by "
            "--dataset (folder, or a name of tensorflow-datasets)"
        )


def nearest_names(name: str, known: Sequence[str]) -> str:
    """Return a remark that names the data sets meant, perhaps."""
    from keras_preact.data.sequences import SEQUENCES

    close = difflib.get_close_matches(name, [*known, "bundled", "folder", *SEQUENCES], n=3)
    return f" (did you mean {', '.join(close)}?)" if close else ""
