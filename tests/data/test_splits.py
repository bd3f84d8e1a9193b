"""Arrays: splits, data sets of some classes, other sizes, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import ArraySplit, ImageDataset, bundled_cifar10, from_arrays, load_dataset
from keras_preact.data.splits import check_image_size


def pixels(count, size=8):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3)).astype("uint8")


def test_arrays():
    data = from_arrays(pixels(6), [0, 1, 2] * 2, pixels(3), [[0], [1], [2]], class_names=["a", "b", "c"])
    assert (data.classes, data.image_shape, len(data.train), len(data.test)) == (3, (8, 8, 3), 6, 3)
    np.testing.assert_allclose(data.train.mean(), pixels(6).mean(0), rtol=1e-6)


def test_the_fingerprint_tells_data_apart():
    x, y = pixels(4), np.array([0, 1, 0, 1])
    base = from_arrays(x, y, x, y).fingerprint()
    assert from_arrays(x.copy(), y.copy(), x, y).fingerprint() == base
    assert from_arrays(x, 1 - y, x, y).fingerprint() != base
    assert from_arrays(255 - x, y, x, y).fingerprint() != base
    assert from_arrays(x, y, 255 - x, y).fingerprint() != base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": pixels(4).astype("float32")}, "dtype float32 are not uint8; pass pixels from 0 to 255"),
        ({"x_train": pixels(4)[0]}, "are not \\(number, height, width, channels\\)"),
        ({"y_train": [0, 1, 0]}, "4 images have 3 labels"),
        ({"y_test": [0, 2, 0, 1]}, "a test label of arrays is 2, but its 2 classes are numbered 0 to 1"),
        ({"y_train": [0, 1, -1, 1]}, "a training label of arrays is -1"),
        ({"x_test": pixels(4, 9)}, "test images \\(9, 9, 3\\); make their shapes equal"),
        ({"y_train": [0, 0, 0, 0], "class_names": ["a", "b"]}, "the class b of arrays has no training images"),
        ({"y_train": [0] * 4, "y_test": [0] * 4}, "it must be at least 2"),
        ({"x_test": pixels(0), "y_test": np.zeros(0, int)}, "has no test images"),
    ],
)
def test_bad_arrays_are_refused(change, message):
    good = {"x_train": pixels(4), "y_train": [0, 1, 0, 1], "x_test": pixels(4), "y_test": [0, 1, 0, 1]}
    with pytest.raises(InputError, match=message):
        from_arrays(**{**good, **change})


def test_names_of_any_type_become_text():
    """run.json cannot hold NumPy's numbers or paths."""
    x, y = pixels(4), [0, 1, 0, 1]
    data = from_arrays(x, y, x, y, class_names=np.arange(2), name=Path("mine"))
    assert (data.name, data.class_names) == ("mine", ("0", "1")) and json.dumps(data.facts())
    assert ImageDataset("mine", data.train, data.test, np.arange(2)).fingerprint() == data.fingerprint()
    assert data.fingerprint() == from_arrays(x, y, x, y).fingerprint()


def test_length_and_steps_per_epoch():
    split = ArraySplit(pixels(10), np.zeros(10, int))
    assert (len(split), split.steps_per_epoch(3)) == (10, 3)


@pytest.mark.parametrize(("before", "after"), [(32, 16), (24, 8), (32, 24), (17, 9)])
def test_images_in_memory_are_reduced_by_area_averaging(before, after):
    """The reference repeats each pixel until every area covers a whole number of them."""
    images = pixels(2, before)
    fine = np.repeat(np.repeat(images.astype("float64"), after, 1), after, 2)
    means = fine.reshape(2, after, before, after, before, 3).mean((2, 4))
    found = ArraySplit(images, [0, 1]).at(after)
    assert found.image_shape == (after, after, 3)
    assert np.abs(found.images - means).max() <= 0.5 + 1e-4  # rounding


def test_impossible_sizes_of_images_in_memory_are_refused():
    split = ArraySplit(pixels(2, 16), [0, 1])
    assert split.at(16) is split
    for size in (7, 17):
        with pytest.raises(InputError, match=f"choose an image size from 8 to 16 pixels, not {size}"):
            split.at(size)
    with pytest.raises(InputError, match="are not cropped; leave out the short side"):
        split.at(8, short_side=12)
    with pytest.raises(InputError, match="the images are 8×16, not square; leave out the image size"):
        ArraySplit(np.zeros((2, 8, 16, 3), "uint8"), [0, 1]).at(8)


def test_channel_moments_equal_those_of_numpy():
    images = np.random.default_rng(2).integers(0, 256, (1100, 3, 4, 3)).astype("uint8")
    images[..., 1] = 7
    mean, deviation = ArraySplit(images, np.zeros(1100, int)).channel_moments()
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(deviation, images.std((0, 1, 2)), rtol=1e-5)


class TestOnlySomeClasses:
    def test_are_labeled_in_the_order_named(self):
        whole = bundled_cifar10()
        part = whole.only(["ship", "cat"])
        assert part.class_names == ("ship", "cat") and len(part.train) == 800 and len(part.test) == 200
        indices = [np.flatnonzero(whole.train.labels == label) for label in (8, 3)]
        images, labels = part.train.batch(np.arange(800))
        for label, expected in enumerate(indices):
            assert np.array_equal(images[labels == label], whole.train.images[expected])
        assert np.array_equal(part.train.labels, labels)

    def test_have_different_fingerprints(self):
        whole = bundled_cifar10()
        data_sets = (whole, whole.only(["cat", "dog"]), whole.only(["dog", "cat"]))
        assert len({data.fingerprint() for data in data_sets}) == 3

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            (["cat", "dgo"], r"unknown class 'dgo' \(did you mean 'dog'"),
            (["cat", "cat"], "named twice"),
            (["cat"], "is 1; it must be at least 2"),
            ([], "is 0; it must be at least 2"),
        ],
    )
    def test_bad_names_are_refused(self, names, message):
        with pytest.raises(InputError, match=message):
            bundled_cifar10().only(names)


def test_some_classes_at_another_size():
    small = bundled_cifar10().only(["cat", "dog"]).at(16)
    assert small.image_shape == small.test.image_shape == (16, 16, 3)
    np.testing.assert_array_equal(small.train.labels, bundled_cifar10().only(["cat", "dog"]).train.labels)
    assert small.fingerprint() != load_dataset("bundled", image_size=16).fingerprint()


@pytest.mark.parametrize(
    ("size", "says"), [("8", "it must be an integer"), (True, "it must be an integer"), (7, "at least 8")]
)
def test_a_size_that_no_network_accepts_is_refused(size, says):
    with pytest.raises(InputError, match=says):
        check_image_size(size)


@pytest.mark.parametrize("size", ["16", 16.0, None])
def test_images_have_a_size_in_whole_pixels(size):
    with pytest.raises(InputError, match=r"image_size is .*; it must be an integer of at least 1"):
        bundled_cifar10().at(size)
