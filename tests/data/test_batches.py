"""Batches: the order of the data is a function of seed and step."""

import itertools

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import ArraySplit, TestBatches, TrainBatches, feed, original_errors, part_of
from keras_preact.data.batches import as_labels

SPLIT = ArraySplit(np.arange(10, dtype="uint8").reshape(10, 1, 1, 1) * np.ones((1, 8, 8, 3), "uint8"), np.arange(10))


def seen(batches, count):
    return [batches[i][1].tolist() for i in range(count)]


def test_a_resumed_run_sees_the_same_batches():
    whole = seen(TrainBatches(SPLIT, 4, seed=1), 7)
    for step in range(7):
        assert seen(TrainBatches(SPLIT, 4, seed=1, first_step=step), 7 - step) == whole[step:]


def test_each_epoch_is_a_new_permutation():
    epochs = [np.concatenate(seen(TrainBatches(SPLIT, 5, seed=1, first_step=2 * e), 2)).tolist() for e in range(4)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert seen(TrainBatches(SPLIT, 5, seed=1), 2) != seen(TrainBatches(SPLIT, 5, seed=2), 2)


def test_images_and_labels_stay_together():
    images, labels = TrainBatches(SPLIT, 4)[3]
    np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
    assert images.dtype == np.uint8


def test_test_batches_hold_every_image_once_in_order():
    batches = TestBatches(SPLIT, 4)
    assert len(batches) == 3
    assert np.concatenate(seen(batches, 3)).tolist() == list(range(10))


def as_pairs(batches):
    """An endless `PyDataset` can be indexed but not iterated over."""
    if isinstance(batches, keras.utils.PyDataset):
        assert batches.num_batches is None
        return map(batches.__getitem__, itertools.count())
    return iter(batches)


def as_stream(batches):
    tf = pytest.importorskip("tensorflow")
    pairs = [batches[i] for i in range(5)]
    signature = (tf.TensorSpec((None, 8, 8, 3), "uint8"), tf.TensorSpec((None,), "int64"))
    return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=signature)


def as_generator(batches):
    return (batches[i] for i in range(5))


@pytest.mark.parametrize(
    "kind", [lambda batches: batches, as_stream, as_generator], ids=["PyDataset", "tf.data", "any"]
)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_parts_of_a_batch_make_up_the_batch(kind, count):
    batches = TrainBatches(SPLIT, 8, seed=3)
    whole = [batches[i] for i in range(5)]
    parts = [itertools.islice(as_pairs(part_of(kind(batches), index, count)), 5) for index in range(count)]
    for (images, labels), *shares in zip(whole, *parts, strict=True):
        assert all(len(share) == 8 // count for _, share in shares)
        np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part, _ in shares]), images)
        np.testing.assert_array_equal(np.concatenate([np.asarray(part) for _, part in shares]), labels)


@pytest.mark.parametrize("kind", [lambda batches: batches, as_generator], ids=["PyDataset", "any"])
def test_a_batch_that_cannot_be_divided_is_refused(kind):
    """Its last examples would be left out without a word."""
    with pytest.raises(InputError, match="a batch of 5 examples cannot be divided into 2 equal parts; use a batch"):
        next(as_pairs(part_of(kind(TrainBatches(SPLIT, 5)), 0, 2)))


def test_a_batch_of_tensors_that_cannot_be_divided_is_refused():
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a batch cannot be divided into 2 equal parts"):
        next(as_pairs(part_of(as_stream(TrainBatches(SPLIT, 5)), 0, 2)))


def test_a_batch_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="does not fit 10 training examples; use 1 to 10"):
        TrainBatches(SPLIT, 11)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "4"])
def test_a_batch_has_a_whole_number_of_examples(batch_size):
    for make in (TestBatches, TrainBatches, ArraySplit.steps_per_epoch):
        with pytest.raises(InputError, match=r"batch_size is .*; it must be an integer of at least 1"):
            make(SPLIT, batch_size)


@pytest.mark.parametrize("option", ["seed", "first_step"])
@pytest.mark.parametrize("number", [-1, 0.5, "1"])
def test_a_seed_or_step_that_is_no_number_from_0_is_refused(option, number):
    with pytest.raises(InputError, match=f"{option} is {number!r}; it must be an integer of at least 0"):
        TrainBatches(SPLIT, 4, **{option: number})


class Odd(Exception):
    """An exception that no library knows."""


class Failing(ArraySplit):
    """A split that raises an exception when it is read."""

    def __init__(self, error):
        super().__init__(SPLIT.images, SPLIT.labels)
        self.error = error

    def batch(self, indices):
        raise self.error


def train_on(split):
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model.compile(loss="sparse_categorical_crossentropy")
    batches = TrainBatches(split, 4)
    with original_errors(batches):
        model.fit(feed(batches), steps_per_epoch=2, shuffle=False, verbose=0)


FAULTS = [KeyError("row 7"), Odd(), Odd("two\nlines, one of them with é"), MemoryError(), OSError(5, "I/O error")]


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_an_exception_of_a_split_is_the_same_on_every_backend(error):
    """TensorFlow wraps it in an error of many lines."""
    with pytest.raises(type(error)) as caught:
        train_on(Failing(error))
    assert caught.value is error


def test_a_split_that_stops_is_not_taken_for_the_end_of_the_data():
    with pytest.raises(RuntimeError, match="StopIteration"):
        train_on(Failing(StopIteration()))


def test_the_fault_of_a_prefetched_batch_does_not_hide_another_error():
    batches = TestBatches(SPLIT, 4)
    batches.fault = Odd()
    with pytest.raises(ValueError, match="another"), original_errors(batches):
        raise ValueError("another")


@pytest.mark.parametrize("label", [2**32 + 1, 2**31, -(2**31) - 1])
def test_labels_that_do_not_fit_int32_are_refused(label):
    with pytest.raises(InputError, match=f"the label {label} of image 1 does not fit int32; pass class numbers from 0"):
        as_labels([2, label])


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1], [1, 0]], 3])
def test_labels_that_are_not_class_numbers_are_refused(labels):
    with pytest.raises(InputError, match="are not class numbers; pass one integer per image"):
        as_labels(labels)
