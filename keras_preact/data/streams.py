"""tensorflow-datasets: small sets into memory, large ones and those of images of any size as streams.

The one module of the package that imports tensorflow-datasets, when a function of it is called.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import itertools
import logging
import os
import re
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_preact.data.sequences import SEQUENCES
from keras_preact.data.splits import ArraySplit, ImageDataset, ImageSplit, channel_moments, check_short_side
from keras_preact.errors import InputError, check_installed

IN_MEMORY_BYTES = 2 * 2**30
"""Sets of images of one size, below this many bytes, are read into memory as a whole."""
SHUFFLE_BUFFER = 10_000
FIRST_EXAMPLES = 64
"""Examples of a stream that are read at its start: they tell it from others, and have to have labels."""
SCALES = (256 / 224, 480 / 224)
"""Short side of a training image before the crop, over the crop: the paper's scale jitter, 256 to 480 for 224."""


def from_tfds(
    name: str, data_dir: str | Path | None = None, image_size: int | None = None, download: bool = True
) -> ImageDataset:
    """Return a classification set of tensorflow-datasets.

    Args:
        name: as in `tfds.load`, for example `"cifar10"`, `"cifar100"`, `"imagenet2012"`.
        data_dir: where it is, or will be, prepared; default tensorflow-datasets' own place.
        image_size: pixels; required where the images differ in size. Images of one size are averaged down to it.
        download: whether a set that is not there may be downloaded. Never where it is there.

    Returns:
        The set, its test images those of `test`, or of `validation` where the test labels are not published.

    Raises:
        InputError: not installed, no such set, not there and not to be had, half written, no images with labels, or
            with pixels of more than 8 bits.
    """
    check_installed(f"the data set {name!r}", "tensorflow", "tensorflow_datasets")
    builder = _prepared_builder(name, data_dir, download)
    splits = _split_names(builder, name)
    image = builder.info.features["image"]
    if image.np_dtype != np.uint8:
        raise InputError(f"the pixels of {name} are {np.dtype(image.np_dtype)}, not uint8; choose another data set")
    class_names = tuple(builder.info.features["label"].names)
    height, width, channels = image.shape
    images = sum(builder.info.splits[split].num_examples for split in splits)
    if None not in image.shape and images * height * width * channels < IN_MEMORY_BYTES:
        train, test = (_in_memory(builder, split) for split in splits)
        dataset = ImageDataset(name, train, test, class_names)
        return dataset if image_size is None else dataset.at(image_size)
    if image_size is None:
        raise InputError(
            f"the images of {name} differ in size or are too many for memory; give --image-size, for example 224"
        )
    first, second = (_Stream(builder, split, image_size) for split in splits)
    return ImageDataset(name, first, second, class_names)


def _prepared_builder(name: str, data_dir: str | Path | None, download: bool) -> Any:
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    where = {} if data_dir is None else {"data_dir": str(data_dir)}
    is_new = data_dir is not None and not Path(data_dir).exists()
    try:
        builder = tfds.builder(name, **where)
    except tfds.core.DatasetNotFoundError:
        near = _nearest_names(name, tfds.list_builders(with_community_datasets=False))
        raise InputError(
            f"there is no data set {name!r}{near}; give 'bundled', 'folder', {', '.join(map(repr, SEQUENCES))} or a "
            "name of tensorflow-datasets"
        ) from None
    except Exception as error:
        if Path(name).is_dir():
            raise InputError(f"{name} is a folder; for its images give --dataset folder --data-dir {name}") from None
        raise InputError(
            f"the data set {name} in {data_dir or 'the default data_dir'} cannot be opened ({_first_line(error)}); "
            "remove its folder and prepare it again"
        ) from None
    if not builder.is_prepared():
        if _has_remains(builder):
            raise InputError(
                f"the data set {name} in {data_dir or 'the default data_dir'} is only half written; "
                "remove its folder and prepare it again"
            )
        if not download:
            raise InputError(f"the data set {name} is not prepared in {data_dir or 'the default data_dir'}")
        try:
            _refuse_in_vain(builder)
            with _quiet_retries():
                builder.download_and_prepare()
        except Exception as error:
            if is_new:
                _remove_empty_folders(data_dir)
            raise InputError(
                f"the data set {name} is not prepared in {data_dir or 'the default data_dir'} and cannot "
                f"be downloaded ({_first_line(error)}); prepare it with tensorflow-datasets and name its "
                "folder by --data-dir"
            ) from None
    _check_files(builder, name)
    return builder


def _refuse_in_vain(builder: Any) -> None:
    """Raise OSError where a download has to fail: ten tries of it, each later than the last, are three minutes."""
    needs_network = builder.url_infos and not builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    if not needs_network or urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo("storage.googleapis.com", 443)  # where tensorflow-datasets looks first
    except OSError:
        raise OSError("there is no network: the names of other machines are not found") from None


@contextlib.contextmanager
def _quiet_retries() -> Iterator[None]:
    """Keep the ten warnings of as many tries off the screen: the error that ends them says the same."""
    logger = logging.getLogger("urllib3")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _remove_empty_folders(data_dir: Any) -> None:
    """Remove what a failed download leaves of a mistyped `data_dir`: empty folders, and nothing else."""
    for folder, _, _ in os.walk(data_dir, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder)


def _first_line(error: BaseException) -> str:
    """Return what an error says: the system's own words where it quotes them, else its first line."""
    quoted = re.findall(r"\[Errno -?\d+\] [^'\")]+", str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (*quoted[-1:], *lines, type(error).__name__)[0][:200]


def _has_remains(builder: Any) -> bool:
    """Whether a preparation was broken off: files of the set, without the description that is written last."""
    folder = Path(builder.data_path)
    return folder.is_dir() and any(folder.iterdir())


def _check_files(builder: Any, name: str) -> None:
    """Refuse a set of which a file is missing or empty: reading it would fail much later, or train on less."""
    for split in builder.info.splits.values():
        for path in split.filepaths:
            file = Path(path)
            if not file.is_file() or file.stat().st_size == 0:
                raise InputError(
                    f"the data set {name} is only half written: {file.name} is missing or empty; remove "
                    "its folder and prepare it again"
                )


def _split_names(builder: Any, name: str) -> tuple[str, str]:
    """Return the names of the training and the test split.

    Raises:
        InputError: the set has no labelled images, no training split, or nothing to test on.
    """
    features = builder.info.features
    if not hasattr(features, "keys") or not {"image", "label"} <= set(features.keys()):
        raise InputError(f"the data set {name} is not one of images with one label each; choose another")
    found = set(builder.info.splits)
    # The test labels of ImageNet are not published: there, and where there is no test split, validation is the test.
    test = "validation" if name.startswith("imagenet") or "test" not in found else "test"
    if not {"train", test} <= found:
        raise InputError(f"the data set {name} has the splits {', '.join(sorted(found))}, not train and test")
    return "train", test


def _read(builder: Any, split: str, seed: int | None = None, **options: Any) -> Any:
    """Return the examples of one file after the other: in the set's order, or in one drawn from a seed."""
    import tensorflow_datasets as tfds

    def shuffled(files: list[Any]) -> list[Any]:
        return [files[i] for i in np.random.default_rng(seed).permutation(len(files))]

    read = tfds.ReadConfig(
        interleave_cycle_length=1,
        try_autocache=False,
        add_tfds_id=False,
        experimental_interleave_sort_fn=None if seed is None else shuffled,
    )
    return builder.as_dataset(split=split, shuffle_files=False, read_config=read, **options)


def _in_memory(builder: Any, split: str) -> ArraySplit:
    import tensorflow_datasets as tfds

    try:
        batches = list(tfds.as_numpy(_read(builder, split, batch_size=4096)))
    except Exception as error:
        raise InputError(
            f"the data set {builder.name} cannot be read ({_first_line(error)}); remove its folder and prepare it again"
        ) from None
    images = np.concatenate([batch["image"] for batch in batches])
    return ArraySplit(images, np.concatenate([batch["label"] for batch in batches]))


class _Stream(ImageSplit):
    """A split that is read, decoded and cropped as it goes; the order is a function of (seed, epoch).

    Training images: short side scaled at random (`SCALES`), random crop. Test images: short side scaled to
    `short_side`, by default the smaller of `SCALES`, centre crop. Flip and mean are the model's.
    """

    is_stream = True

    def __init__(self, builder: Any, split: str, image_size: int) -> None:
        self.builder = builder
        self.split = split
        self.image_shape = (image_size, image_size, builder.info.features["image"].shape[-1] or 3)
        self.short_side: float = SCALES[0] * image_size

    def __len__(self) -> int:
        return int(self.builder.info.splits[self.split].num_examples)

    @functools.cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        """The labels in the set's order. Nothing in training asks for them: every file is read, minutes of ImageNet."""
        labels = self._encoded().map(lambda example: example["label"]).batch(65_536)
        return np.concatenate(list(labels.as_numpy_iterator())).astype(np.int32)

    @functools.cached_property
    def _first(self) -> list[tuple[bytes, int]]:
        """The first images, as they are stored, and their labels."""
        data = self._encoded().take(FIRST_EXAMPLES).as_numpy_iterator()
        return [(example["image"], int(example["label"])) for example in data]

    def known_labels(self) -> np.ndarray:
        return np.array([label for _, label in self._first])

    def _encoded(self, seed: int | None = None) -> Any:
        """Return the examples as `_read` orders them, their images still as they are stored."""
        import tensorflow_datasets as tfds

        return _read(self.builder, self.split, seed, decoders={"image": tfds.decode.SkipDecoding()})

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise InputError(f"the images of {self.builder.name} are read as a stream and have no order to index")

    def update_hash(self, digest: Any) -> None:
        info = self.builder.info
        split = info.splits[self.split]
        about = (info.full_name, self.split, split.shard_lengths, split.num_bytes, self.image_shape)
        digest.update(repr((about, self._first)).encode())

    def train_batches(self, batch_size: int, seed: int, first_step: int = 0) -> Iterator[tuple[Any, Any]]:
        steps = self.steps_per_epoch(batch_size)
        first_epoch, skipped = divmod(first_step, steps)
        for epoch in itertools.count(first_epoch):
            yield from self._epoch(batch_size, seed, epoch, skipped).as_numpy_iterator()
            skipped = 0

    def _epoch(self, batch_size: int, seed: int, epoch: int, skipped: int) -> Any:
        """Return the batches of one epoch but for the first `skipped`, whose images are not even decoded."""
        import tensorflow as tf

        own = epoch_seed(seed, epoch)
        # Files, then examples in a window that passes over them: alone it would leave far ones apart in every epoch.
        # Shuffled as stored: decoded, so many images would not fit into memory.
        data = self._encoded(own).shuffle(SHUFFLE_BUFFER, seed=own, reshuffle_each_iteration=False)
        data = data.enumerate().skip(skipped * batch_size)
        data = data.map(lambda i, example: self._train_image(example, own, i), tf.data.AUTOTUNE)
        return data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def test_batches(self, batch_size: int) -> Any:
        import tensorflow as tf

        data = self._encoded().map(self._test_image, tf.data.AUTOTUNE)
        return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    def mean(self) -> np.ndarray:
        """Return the mean of the channels, at every pixel the same, as for ImageNet."""
        return np.broadcast_to(self.channel_moments()[0], self.image_shape).copy()

    def channel_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and deviation of each channel, of the first 10,000 training images' centres."""
        data = self._encoded().take(10_000).map(self._test_image)
        return channel_moments(image for image, _ in data.as_numpy_iterator())

    def at(self, image_size: int, short_side: int | None = None) -> _Stream:
        other = copy.copy(self)  # whose labels need not be read again
        other.image_shape = (image_size, image_size, self.image_shape[-1])
        default = self.short_side / self.image_shape[0] * image_size
        other.short_side = default if short_side is None else check_short_side(short_side, image_size)
        return other

    def _scaled(self, example: Any, short_side: Any) -> Any:
        """Return the decoded image with its short side of that many pixels."""
        import tensorflow as tf

        image = self.builder.info.features["image"].decode_example(example["image"])
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        factor = short_side / tf.reduce_min(size)
        target = tf.maximum(tf.cast(tf.round(size * factor), tf.int32), self.image_shape[0])
        return tf.image.resize(image, target, antialias=True)

    def _train_image(self, example: Any, seed: int, index: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        key = tf.stack([tf.constant(seed, tf.int64), tf.cast(index, tf.int64)])
        scale = tf.random.stateless_uniform([], key, *SCALES)
        image = self._scaled(example, scale * self.image_shape[0])
        image = tf.image.stateless_random_crop(image, self.image_shape, key + 1)
        return _as_uint8(image), example["label"]

    def _test_image(self, example: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        image = self._scaled(example, self.short_side)
        image = tf.image.resize_with_crop_or_pad(image, *self.image_shape[:2])
        return _as_uint8(tf.ensure_shape(image, self.image_shape)), example["label"]


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a seed for one epoch of a run.

    >>> epoch_seed(0, 0) != epoch_seed(0, 1) != epoch_seed(1, 0)
    True
    """
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0] >> 1)


def _as_uint8(image: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.clip_by_value(tf.round(image), 0.0, 255.0), tf.uint8)


def _nearest_names(name: str, known: Sequence[str]) -> str:
    """Return a remark that names the data sets meant, perhaps."""
    close = difflib.get_close_matches(name, [*known, "bundled", "folder", *SEQUENCES], n=3)
    return f" (did you mean {', '.join(close)}?)" if close else ""
