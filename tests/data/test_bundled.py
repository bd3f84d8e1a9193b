"""The bundled images are the right part of CIFAR-10."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import keras_preact.data
from keras_preact.data import bundled_cifar10, load_dataset


def test_bundled_images_are_the_first_of_each_class_of_cifar10():
    """The SHA-256 of images and labels was computed from the whole CIFAR-10 when the subset was made."""
    data = bundled_cifar10()

    def digest(split):
        return hashlib.sha256(split.images.tobytes() + split.labels.astype("uint8").tobytes()).hexdigest()

    assert digest(data.train) == "c65a8e17914f8d30740c538461b87e2cd2199e251a68f826d89a9b1b377a892c"
    assert digest(data.test) == "2d34d5dc5491f71e1de575ecdfc7287f543e2c8ae81278990a0dba0f0af2d57d"


def test_bundled_classes_are_balanced_and_named():
    data = bundled_cifar10()
    assert np.bincount(data.train.labels).tolist() == [400] * 10
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert data.class_names[3] == "cat"


def test_no_test_image_is_a_training_image():
    data = bundled_cifar10()
    training = {image.tobytes() for image in data.train.images}
    assert not any(image.tobytes() in training for image in data.test.images)


@pytest.mark.parametrize("name", ["bundled", "reviews", "characters", "weather"])
def test_a_program_cannot_change_what_the_next_one_loads(name):
    for split in (load_dataset(name).train, load_dataset(name).test):
        for array in (split.images if name == "bundled" else split.sequences, split.labels):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
        for array in split.batch(np.arange(2)):
            array[0] = 0  # a batch is a copy


def test_the_bundle_is_small():
    folder = Path(keras_preact.data.__file__).parent / "bundled"
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) <= 9e6
    assert (folder / "README.md").is_file()
