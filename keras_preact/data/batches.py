"""What `model.fit` and `model.evaluate` are given: batches whose order is a function of seed and step alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_preact.errors import InputError

if TYPE_CHECKING:
    from keras_preact.data.splits import Split


class TrainBatches(keras.utils.PyDataset):
    """Endless training batches, from a given step on; give `fit` a `steps_per_epoch`, and `shuffle=False`.

    The batch at step s is a function of (seed, s): in epoch e = s // steps_per_epoch the images come in the
    permutation drawn from (seed, e). So a run that is resumed at step s sees what it would have seen. Every batch
    has `batch_size` images; the images that do not fill a last batch are left out, others in each epoch.

    Keras's own shuffling of arrays repeats one permutation in every epoch on TensorFlow where the seed is fixed; and
    of a finite `PyDataset` it fetches the first batches of an epoch before it says that the one before has ended.
    An endless one, indexed by the step, has neither fault.

    Args:
        split: the images.
        batch_size: images a batch.
        seed: of the permutations. Default 0.
        first_step: the step of the first batch. Default 0.

    Raises:
        InputError: the batch is larger than the split.

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
        self.seed = seed
        self.first_step = first_step
        self.fault: InputError | None = None
        self.steps_per_epoch = split.steps_per_epoch(batch_size)
        self._permutation: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    @property
    def num_batches(self) -> None:
        """`None`: there is no end."""
        return None

    def indices(self, step: int) -> np.ndarray:
        """Return the indices of the images of the batch at `step` of the run, int64 (batch_size,)."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self._permutation[0] != epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.split))
            self._permutation = (epoch, order)
        return self._permutation[1][place * self.batch_size : (place + 1) * self.batch_size]

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.split.batch(self.indices(self.first_step + index))


class TestBatches(keras.utils.PyDataset):
    """Every image once, in order; the last batch may be smaller.

    Args:
        split: the images.
        batch_size: images a batch.

    Example:

    >>> from keras_preact.data import ArraySplit
    >>> split = ArraySplit(np.zeros((10, 8, 8, 3), "uint8"), np.arange(10) % 2)
    >>> [len(labels) for _, labels in (TestBatches(split, 4)[i] for i in range(3))]
    [4, 4, 2]
    """

    __test__ = False  # not a test, whatever its name begins with

    def __init__(self, split: Split, batch_size: int) -> None:
        super().__init__()
        self.split = split
        self.batch_size = batch_size
        self.fault: InputError | None = None

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = index * self.batch_size
        return self.split.batch(np.arange(start, min(start + self.batch_size, len(self.split))))


def feed(batches: Any) -> Any:
    """Return batches as `fit` and `evaluate` are best given them: on TensorFlow `TrainBatches` as a tf.data set.

    Keras would make one itself, but with tf.data's tuner, for whose next turn the end of every `fit` and of every
    evaluation then waits: up to some seconds, at random.

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
            yield from map(batches.__getitem__, steps)
        except InputError as error:
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
def as_input_errors(*batches: Any) -> Iterator[None]:
    """Raise the InputError of batches as it is: TensorFlow makes an error of its own of what its generators raise.

    Args:
        *batches: those that were given to `feed`.
    """
    try:
        yield
    except Exception as error:
        for fault in (getattr(each, "fault", None) for each in batches):
            if fault is not None and str(fault) in str(error):  # it may have been read ahead, and be another's doing
                raise fault from None
        raise


def part_of(batches: Any, index: int, count: int) -> Any:
    """Return batches that are each one of `count` equal parts of those given: what one process of several computes on.

    The parts of all processes, in order, are the batch: no example twice, and none left out.

    Args:
        batches: a `PyDataset`, a `tf.data.Dataset` or an iterable of (inputs, labels), of sizes that `count` divides.
        index: of the part, from 0.
        count: of the parts; with 1 the batches are returned as they are.

    Example:

    >>> [labels.tolist() for _, labels in part_of([(np.zeros((4, 2)), np.arange(4))], 1, 2)]
    [[2, 3]]
    """
    if count == 1:
        return batches

    def part(inputs: Any, labels: Any, length: Callable[[Any], Any] = len) -> tuple[Any, Any]:
        size = length(labels) // count
        rows = slice(index * size, (index + 1) * size)
        return inputs[rows], labels[rows]

    if isinstance(batches, keras.utils.PyDataset):
        return _Parts(batches, part)
    if hasattr(batches, "map"):
        import tensorflow as tf

        return batches.map(lambda inputs, labels: part(inputs, labels, lambda tensor: tf.shape(tensor)[0]))
    return (part(*batch) for batch in batches)


class _Parts(keras.utils.PyDataset):
    """The same part of each batch."""

    def __init__(self, batches: keras.utils.PyDataset, part: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        super().__init__()
        self.batches = batches
        self.part = part

    @property
    def num_batches(self) -> int | None:
        return self.batches.num_batches

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.part(*self.batches[index])


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Return the number of whole batches in an epoch.

    Raises:
        InputError: there is none.

    >>> steps_per_epoch(50_000, 128)
    390
    """
    if batch_size < 1 or batch_size > images:
        raise InputError(f"a batch of {batch_size} does not fit {images:,} training images; give 1 to {images:,}")
    return images // batch_size


def as_labels(labels: Any) -> np.ndarray:
    """Return labels as int32 (n,).

    Raises:
        InputError: they are not whole numbers, one an image.

    >>> as_labels([[3], [1]])
    array([3, 1], dtype=int32)
    """
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:  # as keras.datasets gives them
        array = array[:, 0]
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"labels of shape {array.shape} and dtype {array.dtype} are not class numbers; give one integer an image"
        )
    return array.astype(np.int32)
