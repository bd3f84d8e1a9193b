"""tensorflow-datasets: data sets that fit into memory are read at once, the others as streams.

Only this module imports tensorflow-datasets, and only inside functions.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_preact.data.sequences import SEQUENCES
from keras_preact.data.splits import (
    ArraySplit,
    ImageDataset,
    ImageSplit,
    channel_moments,
    check_image_size,
    check_short_side,
)
from keras_preact.errors import InputError, check_count, check_installed
from keras_preact.keras_private import without_tensorflow_seed
from keras_preact.paper import IMAGENET_CROP, IMAGENET_SHORT_SIDE

IN_MEMORY_BYTES = 2 * 2**30
"""Data sets below this size are read into memory if all images have one size."""
SHUFFLE_BUFFER = 10_000
FIRST_EXAMPLES = 64
"""Number of examples read at the start of a stream, to check their labels and for the fingerprint."""
WITHOUT_TEST_LABELS = ("imagenet", "i_naturalist2017", "i_naturalist2018")
"""First parts of the names of data sets whose test labels are not published."""
SCALES = (IMAGENET_SHORT_SIDE[0] / IMAGENET_CROP, IMAGENET_SHORT_SIDE[1] / IMAGENET_CROP)
"""Range of a training image's short side relative to the crop: the paper's scale jitter."""


def from_tfds(
    name: str, data_dir: str | Path | None = None, image_size: int | None = None, download: bool = True
) -> ImageDataset:
    """Return an image classification set of tensorflow-datasets.

    Args:
        name: as in `tfds.load`, for example `"cifar10"`, `"cifar100"`, `"imagenet2012"`.
        data_dir: folder in which the data set is or will be prepared. Default: that of tensorflow-datasets.
        image_size: height and width in pixels. Images of one size are reduced to it by area averaging. Required for
            streams: if the images differ in size or do not fit into memory.
        download: whether to download a data set that is missing. Default `True`.

    Returns:
        The data set. Its test split is `test`, or `validation` if there is no `test` or its labels are not published.

    Raises:
        InputError: tensorflow-datasets is not installed; the data set is unknown or incomplete, or cannot be
            downloaded; or it does not have uint8 images with one label each.
    """
    builder = prepare_tfds(name, data_dir, download)
    splits = _split_names(builder, name)
    image = builder.info.features["image"]
    if image.np_dtype != np.uint8:
        raise InputError(f"the pixels of {name} are {np.dtype(image.np_dtype)}, not uint8; choose another data set")
    class_names = tuple(builder.info.features["label"].names)
    selection: dict[str, Any] = {} if data_dir is None else {"data_dir": str(data_dir)}
    height, width, channels = image.shape
    images = sum(builder.info.splits[split].num_examples for split in splits)
    if None not in image.shape and images * height * width * channels < IN_MEMORY_BYTES:
        train, test = (_in_memory(builder, split) for split in splits)
        dataset = ImageDataset(name, train, test, class_names, source=name, selection=selection)
        return dataset if image_size is None else dataset.at(image_size)
    if image_size is None:
        raise InputError(
            f"the images of {name} differ in size or do not fit into memory; pass image_size (--image-size), for "
            "example 224"
        )
    check_image_size(image_size)
    first, second = (_Stream(builder, split, image_size) for split in splits)
    selection["image_size"] = image_size
    return ImageDataset(name, first, second, class_names, source=name, selection=selection)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings that a data set is missing and that a try to download it failed: the error says the same."""
    loggers = [logging.getLogger(name) for name in ("absl", "urllib3")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Within the block, tensorflow-datasets shows no progress bars; after it, as the program chose."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.utils import tqdm_utils

    had_bars = getattr(tqdm_utils, "_active", True)  # no public function returns it
    tfds.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            tfds.enable_progress_bar()


@_quiet()
def prepare_tfds(name: str, data_dir: str | Path | None = None, download: bool = True) -> Any:
    """Return the builder of a data set of tensorflow-datasets; download the data set if it is missing.

    Args:
        name, data_dir, download: as in `from_tfds`.

    Raises:
        InputError: tensorflow-datasets is not installed, or the data set is unknown, missing or incomplete.
    """
    check_installed(f"the data set {name!r}", "tensorflow", "tensorflow_datasets")
    with _without_progress_bars():
        return _prepared(name, data_dir, download)


def _prepared(name: str, data_dir: str | Path | None, download: bool) -> Any:
    import tensorflow_datasets as tfds

    folder = data_dir or "the default folder"
    is_new = data_dir is not None and not Path(data_dir).exists()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        own = ["bundled", "folder", *SEQUENCES]
        close = difflib.get_close_matches(name, [*tfds.list_builders(with_community_datasets=False), *own], n=3)
        guess = f" (did you mean {', '.join(close)}?)" if close else ""
        raise InputError(
            f"there is no data set {name!r}{guess}; choose {', '.join(own)} or a name from tensorflow-datasets"
        ) from None
    except Exception as error:
        if Path(name).is_dir():
            raise InputError(
                f'{name} is a folder; for its images pass the data set "folder" (--dataset) and this folder as '
                "data_dir (--data-dir)"
            ) from None
        raise InputError(
            f"the data set {name} in {folder} cannot be opened ({_reason(error)}); remove its folder and prepare it "
            "again"
        ) from None
    if not builder.is_prepared():
        files = Path(builder.data_path)
        if files.is_dir() and any(files.iterdir()):  # without the description, which is written last
            raise InputError(f"the data set {name} in {folder} is incomplete; remove its folder and prepare it again")
        if not download:
            raise InputError(f"the data set {name} is not prepared in {folder}; prepare it, or pass download=True")
        try:
            _check_network(builder)
            builder.download_and_prepare()
        except Exception as error:
            if is_new:
                _remove_empty_folders(data_dir)
            raise InputError(
                f"the data set {name} is not prepared in {folder} and cannot be downloaded ({_reason(error)}); "
                "prepare it with tensorflow-datasets and pass its folder as data_dir (--data-dir)"
            ) from None
    _check_files(builder, name)
    return builder


def _check_network(builder: Any) -> None:
    """Raise OSError if a download must fail: tensorflow-datasets would retry it ten times, for three minutes."""
    needs_network = builder.url_infos and not builder.MANUAL_DOWNLOAD_INSTRUCTIONS
    if not needs_network or urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo("storage.googleapis.com", 443)  # the first host that tensorflow-datasets asks
    except OSError:
        raise OSError("there is no network connection: DNS lookup failed") from None


def _remove_empty_folders(data_dir: Any) -> None:
    """Remove the empty folders that a failed download leaves in a new, perhaps mistyped `data_dir`."""
    for folder, _, _ in os.walk(data_dir, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            os.rmdir(folder)


def _reason(error: BaseException) -> str:
    """Return the system error that an error quotes last, or the first line of the error."""
    quoted = re.findall(r"\[Errno -?\d+\] [^'\")]+", str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (*quoted[-1:], *lines, type(error).__name__)[0][:200]


def _check_files(builder: Any, name: str) -> None:
    """Raise InputError if a file is missing or empty: reading would fail much later, or yield fewer examples."""
    for split in builder.info.splits.values():
        for path in split.filepaths:
            file = Path(path)
            if not file.is_file() or file.stat().st_size == 0:
                raise InputError(
                    f"the data set {name} is incomplete: {file.name} is missing or empty; remove its folder and "
                    "prepare it again"
                )


def _split_names(builder: Any, name: str) -> tuple[str, str]:
    """Return the names of the training and the test split.

    Raises:
        InputError: the data set has no images with one label each, no training split or no test split.
    """
    import tensorflow_datasets as tfds

    features = builder.info.features
    found = dict(features.items()) if hasattr(features, "items") else {}
    kinds = {"image": tfds.features.Image, "label": tfds.features.ClassLabel}
    if not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise InputError(f"the data set {name} does not have images with one label each; choose another")
    splits = set(builder.info.splits)
    test = "validation" if name.startswith(WITHOUT_TEST_LABELS) or "test" not in splits else "test"
    if not {"train", test} <= splits:
        raise InputError(
            f"the data set {name} has the splits {', '.join(sorted(splits))}, but needs train and test; choose another"
        )
    return "train", test


def _read(builder: Any, split: str, seed: int | None = None, **options: Any) -> Any:
    """Return the examples file by file, with the files in the set's order or in an order drawn from `seed`."""
    import tensorflow_datasets as tfds

    def shuffled(files: list[Any]) -> list[Any]:
        return [files[i] for i in np.random.default_rng(seed).permutation(len(files))]

    config = tfds.ReadConfig(
        interleave_cycle_length=1,
        try_autocache=False,
        add_tfds_id=False,
        experimental_interleave_sort_fn=None if seed is None else shuffled,
    )
    return builder.as_dataset(split=split, shuffle_files=False, read_config=config, **options)


def _in_memory(builder: Any, split: str) -> ArraySplit:
    import tensorflow_datasets as tfds

    try:
        batches = list(tfds.as_numpy(_read(builder, split, batch_size=4096)))
    except Exception as error:
        raise InputError(
            f"the data set {builder.name} cannot be read ({_reason(error)}); remove its folder and prepare it again"
        ) from None
    images = np.concatenate([batch["image"] for batch in batches])
    return ArraySplit(images, np.concatenate([batch["label"] for batch in batches]))


class _Stream(ImageSplit):
    """A split that is read, decoded and cropped on the fly. The order is a function of (seed, epoch).

    Training images: short side drawn from `SCALES`, random crop. Test images: short side `short_side`, by default the
    smaller of `SCALES`, center crop. The model flips the images and subtracts the mean.
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
        """The labels in the set's order. Training does not need them: reading every file of ImageNet takes minutes."""
        labels = self._encoded().map(lambda example: example["label"]).batch(65_536)
        return np.concatenate(list(labels.as_numpy_iterator())).astype(np.int32)

    @functools.cached_property
    def _first(self) -> list[tuple[bytes, int]]:
        """The first images, encoded, and their labels."""
        data = self._encoded().take(FIRST_EXAMPLES).as_numpy_iterator()
        return [(example["image"], int(example["label"])) for example in data]

    def known_labels(self) -> np.ndarray:
        return np.array([label for _, label in self._first])

    def _encoded(self, seed: int | None = None) -> Any:
        """Return the examples in the order of `_read`, with encoded images."""
        import tensorflow_datasets as tfds

        return _read(self.builder, self.split, seed, decoders={"image": tfds.decode.SkipDecoding()})

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise InputError(f"the images of {self.builder.name} are read as a stream, without indices; use its batches")

    def update_hash(self, digest: Any) -> None:
        info = self.builder.info
        split = info.splits[self.split]
        about = (info.full_name, self.split, split.shard_lengths, split.num_bytes, self.image_shape)
        digest.update(repr((about, self._first)).encode())

    def train_batches(self, batch_size: int, seed: int, first_step: int = 0) -> Iterator[tuple[Any, Any]]:
        steps = self.steps_per_epoch(batch_size)
        check_count("seed", seed)
        first_epoch, skipped = divmod(first_step, steps)
        for epoch in itertools.count(first_epoch):
            yield from self._epoch(batch_size, seed, epoch, skipped).as_numpy_iterator()
            skipped = 0

    def _epoch(self, batch_size: int, seed: int, epoch: int, skipped: int) -> Any:
        """Return the batches of one epoch after the first `skipped`, which are not decoded."""
        import tensorflow as tf

        # Files are shuffled too: a shuffle buffer alone never mixes examples that are far apart.
        # The buffer holds encoded images: as many decoded ones would not fit into memory.
        seed = epoch_seed(seed, epoch)
        with without_tensorflow_seed():  # a resumed run may have another global seed, on which shuffling depends
            data = self._encoded(seed).shuffle(SHUFFLE_BUFFER, seed=seed, reshuffle_each_iteration=False)
        data = data.enumerate().skip(skipped * batch_size)
        data = data.map(lambda i, example: self._train_image(example, seed, i), tf.data.AUTOTUNE)
        return data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def test_batches(self, batch_size: int) -> Any:
        import tensorflow as tf

        data = self._encoded().map(self._test_image, tf.data.AUTOTUNE)
        return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    def mean(self) -> np.ndarray:
        """Return the mean of each channel, repeated at every pixel, as is usual for ImageNet."""
        return np.broadcast_to(self.channel_moments()[0], self.image_shape).copy()

    def channel_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of each channel over the center crops of the first 10,000 images."""
        data = self._encoded().take(10_000).map(self._test_image)
        return channel_moments(image for image, _ in data.as_numpy_iterator())

    def at(self, image_size: int, short_side: int | None = None) -> _Stream:
        check_image_size(image_size)
        other = copy.copy(self)  # with the labels, if they have been read
        other.image_shape = (image_size, image_size, self.image_shape[-1])
        default = self.short_side / self.image_shape[0] * image_size
        other.short_side = default if short_side is None else check_short_side(short_side, image_size)
        return other

    def _scaled(self, example: Any, short_side: Any) -> Any:
        """Return the decoded image, scaled to `short_side`."""
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
    """Return the seed of one epoch of a run.

    >>> epoch_seed(0, 0) != epoch_seed(0, 1) != epoch_seed(1, 0)
    True
    """
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0] >> 1)


def _as_uint8(image: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.clip_by_value(tf.round(image), 0.0, 255.0), tf.uint8)
