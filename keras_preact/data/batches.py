"""Batches for `model.fit` and `model.evaluate`: their order is a function of seed and step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_preact.errors import InputError, check_count, check_positive

if TYPE_CHECKING:
    from keras_preact.data.splits import Split


class TrainBatches(keras.utils.PyDataset):
    """Endless training batches from a given step on. Pass `steps_per_epoch` and `shuffle=False` to `fit`.

    The batch at step s is a function of (seed, s): epoch e = s // steps_per_epoch uses the permutation drawn from
    (seed, e). A run resumed at step s therefore sees the same batches as an uninterrupted one. Every batch has
    `batch_size` examples. Examples that would leave the last batch incomplete are left out, different ones in each
    epoch.

    Keras's own shuffling has two faults that this class avoids. On TensorFlow, arrays with a fixed seed come in the
    same order in every epoch. And Keras fetches the first batches of a finite `PyDataset` for the next epoch before
    it signals the end of the current one.

    Args:
        split: the examples.
        batch_size: examples per batch.
        seed: seed of the permutations. Default 0.
        first_step: step of the run at which the batches start. Default 0.

    Raises:
        InputError: `batch_size` is not an integer, less than 1, or larger than the split; or `seed` or `first_step` is
            not an integer of at least 0.

    Example:

    >>> from keras_preact.data import ArraySplit
    >>> split = ArraySplit(np.zeros((10, 8, 8, 3), "uint8"), np.arange(10) % 2)
    >>> images, labels = TrainBatches(split, batch_size=4)[0]
    >>> images.shape, images.dtype, labels.shape
    ((4, 8, 8, 3), dtype('uint8'), (4,))
    """

    def __init__(self, split: Split, batch_size: int, seed: int = 0, first_step: int = 0) -> None:
        super().__init__()
        self.split = split
        self.batch_size = batch_size
        self.seed = check_count("seed", seed)
        self.first_step = check_count("first_step", first_step)
        self.fault: Exception | None = None
        self.steps_per_epoch = split.steps_per_epoch(batch_size)
        self._permutation: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    @property
    def num_batches(self) -> None:
        """`None`: the batches never end."""
        return None

    def indices(self, step: int) -> np.ndarray:
        """Return the indices of the examples in the batch at `step` of the run, int64 (batch_size,)."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._permutation[0] != epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.split))
            self._permutation = (epoch, order)
        return self._permutation[1][position * self.batch_size : (position + 1) * self.batch_size]

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.split.batch(self.indices(self.first_step + index))


class TestBatches(keras.utils.PyDataset):
    """Every example once, in order. The last batch may be smaller.

    Args:
        split: the examples.
        batch_size: examples per batch.

    Raises:
        InputError: `batch_size` is not an integer of at least 1.

    Example:

    >>> from keras_preact.data import ArraySplit
    >>> split = ArraySplit(np.zeros((10, 8, 8, 3), "uint8"), np.arange(10) % 2)
    >>> [len(labels) for _, labels in (TestBatches(split, 4)[i] for i in range(3))]
    [4, 4, 2]
    """

    __test__ = False  # pytest would take the name for a test

    def __init__(self, split: Split, batch_size: int) -> None:
        super().__init__()
        self.split = split
        self.batch_size = check_positive("batch_size", batch_size)
        self.fault: Exception | None = None

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = index * self.batch_size
        return self.split.batch(np.arange(start, min(start + self.batch_size, len(self.split))))


def feed(batches: Any) -> Any:
    """Return batches in the best form for `fit` and `evaluate`: on TensorFlow, as a `tf.data.Dataset`.

    Keras would convert them itself, but with tf.data's autotuner. The end of every `fit` and evaluation then waits
    for the tuner's next turn, a random time of up to several seconds.

    Example:

    >>> from keras_preact.data import ArraySplit
    >>> split = ArraySplit(np.zeros((10, 8, 8, 3), "uint8"), np.arange(10) % 2)
    >>> [len(labels) for _, labels in feed(TestBatches(split, 4))]
    [4, 4, 2]
    """
    if keras.backend.backend() != "tensorflow" or not isinstance(batches, (TrainBatches, TestBatches)):
        return batches
    import tensorflow as tf

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        steps = itertools.count() if batches.num_batches is None else range(batches.num_batches)
        try:
            for step in steps:  # `map` would take a StopIteration of the split for the end of the data
                yield batches[step]
        except Exception as error:
            batches.fault = error
            raise

    signature = tuple(tf.TensorSpec((None, *shape), dtype) for shape, dtype in batches.split.signature)
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    if batches.num_batches is not None:
        data = data.apply(tf.data.experimental.assert_cardinality(batches.num_batches))
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.prefetch(2).with_options(options)


@contextmanager
def original_errors(*batches: Any) -> Iterator[None]:
    """Re-raise the exception of a batch, such as an InputError, that TensorFlow wrapped in an error of its own.

    Args:
        *batches: the batches that were passed to `feed`.
    """
    try:
        yield
    except Exception as error:
        for fault in (getattr(each, "fault", None) for each in batches):
            # TensorFlow quotes the fault. That of a prefetched batch may have nothing to do with this error.
            if fault is not None and all(text in str(error) for text in (type(fault).__name__, str(fault))):
                raise fault from None
        raise


def part_of(batches: Any, index: int, count: int) -> Any:
    """Return one of `count` equal parts of each batch, for one of several processes.

    The parts of all processes, in order, make up the batch.

    Args:
        batches: a `PyDataset`, a `tf.data.Dataset` or an iterable of (inputs, labels). `count` must divide the sizes.
        index: index of the part, from 0.
        count: number of parts. With 1, the batches are returned unchanged.

    Raises:
        InputError: `count` does not divide the size of a batch; raised when the batch is read. A `tf.data.Dataset`
            raises an InvalidArgumentError instead.

    Example:

    >>> [labels.tolist() for _, labels in part_of([(np.zeros((4, 2)), np.arange(4))], 1, 2)]
    [[2, 3]]
    """
    if count == 1:
        return batches

    def rows(size: Any) -> slice:
        return slice(index * (size // count), (index + 1) * (size // count))

    def part(inputs: Any, labels: Any) -> tuple[Any, Any]:
        if len(labels) % count:
            raise InputError(
                f"a batch of {len(labels)} examples cannot be divided into {count} equal parts; use a batch size and a "
                f"number of test examples that {count} divides"
            )
        return inputs[rows(len(labels))], labels[rows(len(labels))]

    if isinstance(batches, keras.utils.PyDataset):
        return _Parts(batches, part)
    if hasattr(batches, "map"):
        import tensorflow as tf

        def part_of_tensors(inputs: Any, labels: Any) -> tuple[Any, Any]:
            size = tf.shape(labels)[0]
            tf.debugging.assert_equal(size % count, 0, f"a batch cannot be divided into {count} equal parts")
            return inputs[rows(size)], labels[rows(size)]

        return batches.map(part_of_tensors)
    return (part(*batch) for batch in batches)


class _Parts(keras.utils.PyDataset):
    """One part of each batch."""

    def __init__(self, batches: keras.utils.PyDataset, part: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        super().__init__()
        self.batches = batches
        self.part = part

    @property
    def num_batches(self) -> int | None:
        return self.batches.num_batches

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.part(*self.batches[index])


def as_labels(labels: Any) -> np.ndarray:
    """Return labels as int32 (n,).

    Raises:
        InputError: they are not integers that fit int32, one per image.

    >>> as_labels([[3], [1]])
    array([3, 1], dtype=int32)
    """
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:  # the shape in keras.datasets
        array = array[:, 0]
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"labels of shape {array.shape} and dtype {array.dtype} are not class numbers; pass one integer per image"
        )
    converted = array.astype(np.int32)
    for index in np.flatnonzero(converted != array):
        raise InputError(f"the label {array[index]} of image {index} does not fit int32; pass class numbers from 0")
    return converted
