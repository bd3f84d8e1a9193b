"""Data sets by name: which options each one accepts."""

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import from_arrays, load_dataset, prepare_dataset


@pytest.mark.parametrize(
    ("name", "option"),
    [("bundled", {"data_dir": "my_images"}), ("reviews", {"data_dir": "my_texts"}), ("reviews", {"image_size": 64})],
)
def test_bundled_data_refuse_the_options_of_other_data(name, option):
    with pytest.raises(InputError, match=f"does not apply to the bundled data set {name}; leave it out"):
        load_dataset(name, **option)


def test_a_folder_needs_a_path():
    with pytest.raises(InputError, match=r"pass data_dir \(--data-dir\), the image folder"):
        load_dataset("folder")


def test_only_what_is_not_bundled_is_prepared(monkeypatch):
    asked = []
    monkeypatch.setattr("keras_preact.data.load.prepare_tfds", lambda *arguments: asked.append(arguments))
    for name in ("bundled", "folder", "reviews", "cifar10"):
        prepare_dataset(name, "mine")
    assert asked == [("cifar10", "mine")]


def test_a_loaded_data_set_knows_the_name_by_which_it_is_loaded_again():
    """So do parts of it; data made of arrays have none, whatever their name."""
    for name in ("bundled", "reviews", "characters", "weather"):
        assert load_dataset(name).source == name
    part = load_dataset("bundled").at(8).only(["cat", "dog"])
    x, y = part.test.batch(np.arange(8))
    assert part.source == "bundled"
    assert from_arrays(x, y, x, y, name="mnist").source == "arrays"


def test_a_data_set_that_cannot_be_prepared_is_refused(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(InputError, match="there is no data set 'cifar11'"):
        prepare_dataset("cifar11", tmp_path)
