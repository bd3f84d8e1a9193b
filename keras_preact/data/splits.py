"""Splits of examples and labels, and image data sets of a training and a test split."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keras_preact.data.batches import TestBatches, TrainBatches, as_labels
from keras_preact.data.checks import check_classes, check_examples, check_range, make_text
from keras_preact.errors import InputError, check_choice, check_positive

ARRAYS = "arrays"
"""Name and source of data that were passed as arrays."""
SMALLEST_IMAGE = 8
"""Least height and width in pixels: the networks halve an image at least twice."""
ShapeAndDtype = tuple[tuple[int, ...], str]


class Split(ABC):
    """Training or test examples with their labels.

    A subclass sets `labels` and defines `signature`, `batch` and `update_hash`. For images, subclass `ImageSplit`.

    Attributes:
        labels: (n, …), the class or target of each example.
    """

    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def signature(self) -> tuple[ShapeAndDtype, ShapeAndDtype]:
        """Shape and dtype of one example and of its label."""

    @abstractmethod
    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples and their labels at these indices."""

    @abstractmethod
    def update_hash(self, digest: Any) -> None:
        """Update a hashlib object with the data of this split. A run is only resumed on data of the same hash."""

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the number of complete batches in an epoch.

        Raises:
            InputError: there are none, or `batch_size` is not an integer of at least 1.
        """
        if check_positive("batch_size", batch_size) > len(self):
            limit = f"{len(self):,}"
            raise InputError(f"a batch of {batch_size} does not fit {limit} training examples; use 1 to {limit}")
        return len(self) // int(batch_size)

    def train_batches(self, batch_size: int, seed: int, first_step: int = 0) -> Any:
        """Return endless shuffled batches for `model.fit`, starting at a step of the run."""
        return TrainBatches(self, batch_size, seed, first_step)

    def test_batches(self, batch_size: int) -> Any:
        """Return every example once, in batches, for `model.evaluate`."""
        return TestBatches(self, batch_size)


class ImageSplit(Split):
    """Images, uint8, with int32 labels (n,).

    To read images from another source, define a subclass: it sets `labels` and `image_shape` and defines `batch` and
    `update_hash`. It defines `at` only if its images can change their size.

    Attributes:
        labels: (n,), the class of each image.
        image_shape: (height, width, channels).

    Example: gray images, made when they are needed.

    >>> class Gray(ImageSplit):
    ...     labels, image_shape = np.arange(20, dtype="int32") % 2, (8, 8, 3)
    ...     def batch(self, indices):
    ...         images = [np.full(self.image_shape, index, "uint8") for index in indices]
    ...         return np.stack(images), self.labels[indices]
    ...     def update_hash(self, digest):
    ...         digest.update(b"gray, 0 to 19")
    >>> dataset = ImageDataset("gray", Gray(), Gray(), ("even", "odd"))
    >>> dataset.train.batch(np.array([4, 7]))[1].tolist(), dataset.image_shape
    ([0, 1], (8, 8, 3))
    """

    image_shape: tuple[int, int, int]
    is_stream = False
    """Whether the images can only be read in order. Reading all labels then takes as long as an epoch."""

    def known_labels(self) -> np.ndarray:
        """Return the labels that can be read quickly: all of them, or the first few of a stream."""
        return self.labels

    @property
    def signature(self) -> tuple[ShapeAndDtype, ShapeAndDtype]:
        return (self.image_shape, "uint8"), ((), "int32")

    def at(self, image_size: int, short_side: int | None = None) -> ImageSplit:
        """Return the images at another size, for example 16 pixels instead of 32, or 320 for testing.

        Images in memory are reduced by area averaging: each new pixel is the mean of the area that it covers. Image
        files are scaled by their short side and center-cropped.

        Args:
            image_size: height and width in pixels.
            short_side: short side of image files before the crop, in pixels. Default: in the same proportion to the
                image size as now.

        Raises:
            InputError: images in memory are smaller than `image_size` or not square, or `short_side` is less than
                `image_size`.
        """
        raise InputError(f"{type(self).__name__} cannot change the size of its images; leave out the image size")

    def mean(self) -> np.ndarray:
        """Return the mean image, float32 (height, width, channels), in pixel values from 0 to 255."""
        total = np.zeros(self.image_shape, np.float64)
        for images in self._chunks():
            total += images.sum(0, dtype=np.float64)
        return (total / len(self)).astype(np.float32)

    def channel_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each channel, float32 (channels,), in pixel values from 0 to 255."""
        return channel_moments(self._chunks())

    def _chunks(self) -> Iterator[np.ndarray]:
        """Yield all images, at most 1024 at a time."""
        for start in range(0, len(self), 1024):
            yield self.batch(np.arange(start, min(start + 1024, len(self))))[0]


def channel_moments(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each channel, the last axis, of uint8 arrays of any shape."""
    counts = np.zeros((1, 256), np.int64)  # of each value in each channel
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
        InputError: the images have another shape or dtype, or there is not one label per image.

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
            raise InputError(f"images of dtype {images.dtype} are not uint8; pass pixels from 0 to 255 as uint8")
        self.images = images
        self.labels = as_labels(labels)
        if len(self.images) != len(self.labels):
            raise InputError(f"{len(images)} images have {len(self.labels)} labels; pass one label per image")
        self.image_shape = images.shape[1:]

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.images[indices], self.labels[indices]

    def at(self, image_size: int, short_side: int | None = None) -> ArraySplit:
        height, width, _ = self.image_shape
        if short_side is not None:
            raise InputError(f"images in memory ({height}×{width}) are not cropped; leave out the short side")
        if image_size == height == width:
            return self
        if height != width:
            raise InputError(f"the images are {height}×{width}, not square; leave out the image size")
        if not SMALLEST_IMAGE <= image_size < height:
            raise InputError(
                f"images of {height}×{width} can only be reduced; choose an image size from {SMALLEST_IMAGE} to "
                f"{height} pixels, not {image_size}"
            )
        return ArraySplit(np.concatenate([_averaged(images, image_size) for images in self._chunks()]), self.labels)

    def update_hash(self, digest: Any) -> None:
        digest.update(np.ascontiguousarray(self.images))
        digest.update(self.labels)


def _averaged(images: np.ndarray, size: int) -> np.ndarray:
    """Reduce square images by area averaging: each new pixel is the mean of the area that it covers."""
    old_size = images.shape[1]
    edges = np.linspace(0, old_size, size + 1)
    pixels = np.arange(old_size)
    overlaps = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    weights = (np.clip(overlaps, 0, 1) * size / old_size).astype(np.float32)  # (new, old)
    return np.rint(np.einsum("ih,jw,nhwc->nijc", weights, weights, images, optimize=True)).astype(np.uint8)


def check_image_size(image_size: int) -> int:
    """Return the image size if it is an integer that the networks can work with.

    Raises:
        InputError: it is not an integer, or less than 8 pixels.

    >>> check_image_size(32)
    32
    """
    if check_positive("image_size", image_size) < SMALLEST_IMAGE:
        raise InputError(f"the image size is {image_size}; it must be at least {SMALLEST_IMAGE} pixels")
    return int(image_size)


def check_short_side(short_side: float, image_size: int) -> float:
    """Return `short_side`, the short side of an image before the center crop.

    Raises:
        InputError: it is less than `image_size`.
    """
    if short_side < image_size:
        raise InputError(
            f"a crop of {image_size} pixels does not fit a short side of {short_side}; use a longer short side"
        )
    return short_side


class _Part(ImageSplit):
    """Some images of another split, with new labels."""

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


@dataclass(frozen=True)
class ImageDataset:
    """Training and test images of the same shape and classes.

    The name and the class names are converted to `str`.

    Attributes:
        name: used in run.json and messages.
        train: training images.
        test: test images.
        class_names: names of the classes, in the order of the labels.
        skipped: names of images that were left out because they could not be read.
        source: the name by which `load_dataset` returns these data; `"arrays"` (default) if it cannot.
        selection: the other fields of a `RunConfig` with which it returns them, such as `{"image_size": 16}`.

    Raises:
        InputError: fewer than two classes, a label without a class, a class without training images, different image
            shapes, or an empty split.

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
    source: str = ARRAYS
    selection: Mapping[str, Any] = field(default_factory=dict)
    kind = "images"
    task = "classification"
    unit = "%"

    def __post_init__(self) -> None:
        make_text(self, "class_names")
        check_classes(self.name, self.class_names)
        for what, split in (("training", self.train), ("test", self.test)):
            if len(split) == 0:
                raise InputError(f"{self.name} has no {what} images; add at least one")
            check_range(what, "label", self.name, split.known_labels(), "classes", self.classes)
        if self.train.image_shape != self.test.image_shape:
            raise InputError(
                f"training images of {self.name} are {self.train.image_shape}, test images {self.test.image_shape}; "
                "make their shapes equal"
            )
        if not self.train.is_stream:
            check_examples(self.name, self.class_names, self.train.labels, "images")

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return self.train.image_shape

    def facts(self) -> dict[str, Any]:
        """Return what the record of a run says of the data."""
        return {
            "classes": self.classes,
            "class_names": list(self.class_names),
            **({"skipped": list(self.skipped)} if self.skipped else {}),
            "image_shape": list(self.image_shape),
            "train_images": len(self.train),
            "test_images": len(self.test),
        }

    def only(self, class_names: Sequence[str]) -> ImageDataset:
        """Return the images of some classes only, labeled in the order in which the classes are named.

        Args:
            class_names: two or more of `class_names`.

        Raises:
            InputError: a class is unknown or named twice, fewer than two are named, or the images are a stream.

        Example:

        >>> from keras_preact.data import bundled_cifar10
        >>> animals = bundled_cifar10().only(["cat", "dog"])
        >>> animals.class_names, len(animals.train)
        (('cat', 'dog'), 800)
        """
        if self.train.is_stream:
            raise InputError(f"the images of {self.name} are read as a stream; use all of its classes")
        names = tuple(check_choice("class", name, self.class_names) for name in class_names)
        if len(set(names)) < len(names):
            raise InputError(f"a class is named twice in {', '.join(names)}; name each once")
        new_label = np.full(self.classes, -1)
        new_label[[self.class_names.index(name) for name in names]] = np.arange(len(names))

        def part(split: ImageSplit) -> ImageSplit:
            labels = new_label[split.labels]
            indices = np.flatnonzero(labels >= 0)
            return _Part(split, indices, labels[indices])

        selection = {} if self.source == ARRAYS else {**self.selection, "only": names}
        return replace(self, train=part(self.train), test=part(self.test), class_names=names, selection=selection)

    def at(self, image_size: int) -> ImageDataset:
        """Return the data with images of another size; see `ImageSplit.at`.

        Example:

        >>> from keras_preact.data import bundled_cifar10
        >>> bundled_cifar10().at(16).image_shape
        (16, 16, 3)
        """
        check_image_size(image_size)
        source, selection = self.source, {**self.selection, "image_size": image_size}
        if source == ARRAYS or "image_size" in self.selection:  # averaged twice, which no configuration says
            source, selection = ARRAYS, {}
        train, test = self.train.at(image_size), self.test.at(image_size)
        return replace(self, train=train, test=test, source=source, selection=selection)

    def size_at(self, scale: float) -> int:
        """Return the height and width in pixels of images scaled by `scale`.

        Raises:
            InputError: the images are not square, or their new size is too small for the networks.
        """
        height, width, _ = self.image_shape
        size = round(scale * height)
        if height != width or size < SMALLEST_IMAGE:
            raise InputError(
                f"images of {height}×{width} pixels cannot be scaled by {scale:g}; they must be square, and at least "
                f"{SMALLEST_IMAGE} pixels afterwards"
            )
        return size

    def at_scale(self, scale: float) -> ImageDataset:
        """Return the data with images scaled by `scale`, for the early epochs of a `FastRecipe`.

        Raises:
            InputError: as in `size_at`.
        """
        return self.at(self.size_at(scale))

    def fingerprint(self) -> str:
        """Return a SHA-256 that identifies the data: of pixels and labels, or of file names and sizes."""
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
    name: str = ARRAYS,
) -> ImageDataset:
    """Return a data set of arrays in memory.

    Args:
        x_train, x_test: images, uint8 (n, height, width, channels).
        y_train, y_test: labels, integers (n,) or (n, 1).
        class_names: default: the numbers from 0 to the largest training label.
        name: used in run.json and messages.

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
