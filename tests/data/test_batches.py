"""Batches: the order of the data is a function of seed and step."""

import itertools

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import ArraySplit, TestBatches, TrainBatches, part_of
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
    if hasattr(batches, "num_batches"):
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


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_batch_that_does_not_fit_is_refused(batch_size):
    with pytest.raises(InputError, match="does not fit 10 training examples; use 1 to 10"):
        TrainBatches(SPLIT, batch_size)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True])
def test_a_batch_has_a_whole_number_of_examples(batch_size):
    with pytest.raises(InputError, match=r"batch_size is .*; it must be an integer of at least 1"):
        TestBatches(SPLIT, batch_size)
    if batch_size > 0:
        with pytest.raises(InputError, match=r"batch_size is .*; it must be an integer of at least 1"):
            TrainBatches(SPLIT, batch_size)


@pytest.mark.parametrize("label", [2**32 + 1, 2**31, -(2**31) - 1])
def test_labels_that_do_not_fit_int32_are_refused(label):
    with pytest.raises(InputError, match=f"the label {label} of image 1 does not fit int32; pass class numbers from 0"):
        as_labels([2, label])


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1], [1, 0]], 3])
def test_labels_that_are_not_class_numbers_are_refused(labels):
    with pytest.raises(InputError, match="are not class numbers; pass one integer per image"):
        as_labels(labels)
