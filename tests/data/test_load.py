"""Data sets by name: which options each one accepts."""

import pytest

from keras_preact import InputError
from keras_preact.data import load_dataset


@pytest.mark.parametrize(
    ("name", "option"),
    [("bundled", {"data_dir": "my_images"}), ("reviews", {"data_dir": "my_texts"}), ("reviews", {"image_size": 64})],
)
def test_bundled_data_refuse_the_options_of_other_data(name, option):
    with pytest.raises(InputError, match=f"does not apply to the bundled data set {name}; leave out --"):
        load_dataset(name, **option)


def test_a_folder_needs_a_path():
    with pytest.raises(InputError, match="--dataset folder needs --data-dir"):
        load_dataset("folder")
