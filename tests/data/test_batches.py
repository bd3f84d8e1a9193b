"""Batches: the order of the data is a function of seed and step."""

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import ArraySplit, TestBatches, TrainBatches
from keras_preact.data.batches import as_labels

SPLIT = ArraySplit(np.arange(10, dtype="uint8").reshape(10, 1, 1, 1) * np.ones((1, 8, 8, 3), "uint8"), np.arange(10))


def seen(batches, count):
    return [batches[i][1].tolist() for i in range(count)]


def test_a_run_taken_up_at_a_step_sees_what_it_would_have_seen():
    whole = seen(TrainBatches(SPLIT, 4, seed=1), 7)
    for step in range(7):
        assert seen(TrainBatches(SPLIT, 4, seed=1, first_step=step), 7 - step) == whole[step:]


def test_each_epoch_is_another_permutation_without_repeats():
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


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_batch_that_does_not_fit_is_refused(batch_size):
    with pytest.raises(InputError, match="does not fit 10 training images; give 1 to 10"):
        TrainBatches(SPLIT, batch_size)


@pytest.mark.parametrize("labels", [[0.5, 1.0], [[0, 1], [1, 0]], 3])
def test_labels_that_are_no_class_numbers_are_refused(labels):
    with pytest.raises(InputError, match="are not class numbers; give one integer an image"):
        as_labels(labels)
