"""Images and labels: a split, and a data set of two splits."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_preact.data.batches import TestBatches, TrainBatches, as_labels, steps_per_epoch
from keras_preact.errors import InputError, check_choice

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

    >>> from keras_preact.data import bundled_cifar10
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

        >>> from keras_preact.data import bundled_cifar10
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

        >>> from keras_preact.data import bundled_cifar10
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
