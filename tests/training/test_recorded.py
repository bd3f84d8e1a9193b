"""Configurations as plain data: what is converted, what is refused, and what a newer version wrote."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.layers import ExclusiveGating
from keras_preact.training.recorded import check_recordable, from_record, make_plain, plain


@dataclass(frozen=True)
class Point:
    x: float
    sizes: tuple[int, ...] = ()

    def __post_init__(self):
        make_plain(self)


def test_numpys_numbers_and_paths_become_pythons():
    made = plain({"a": np.int64(1), "b": [np.float32(0.5), (np.bool_(True), Path("c"))], "d": "e", "f": None})
    assert made == {"a": 1, "b": [0.5, (True, "c")], "d": "e", "f": None}
    assert [type(value) for value in (made["a"], made["b"][0], made["b"][1][0])] == [int, float, bool]
    assert type(Point(np.float64(1)).x) is float


def test_a_record_comes_back_with_tuples_unless_it_has_fields_of_a_newer_version():
    assert from_record(Point, {"x": 1, "sizes": [1, 2]}) == Point(1, (1, 2))
    with pytest.raises(InputError, match=r"Point has no y, z: the record was written by a newer version of .*; update"):
        from_record(Point, {"x": 1, "z": 3, "y": 2})


@pytest.mark.parametrize("value", [ExclusiveGating(), [{1, 2}], {"a": object()}, "\ud800"])
def test_what_json_cannot_hold_is_named(value):
    with pytest.raises(InputError, match=r"the option mine is .*, which run\.json cannot hold; use names"):
        check_recordable("option", {"depth": 8, "mine": value})
