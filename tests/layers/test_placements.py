"""Table 2 as data."""

import dataclasses

import pytest

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, Placement, get_placement
from keras_preact.layers.placements import NORM, RELU, placement_config

TABLE_2 = {  # panel of Fig. 4: before the first weights, after the last, after the addition, stem, head
    "original": ("a", "", "norm", "relu", "norm relu", ""),
    "bn_after_addition": ("b", "", "", "norm relu", "norm relu", ""),
    "relu_before_addition": ("c", "", "norm relu", "", "norm relu", ""),
    "relu_only_preactivation": ("d", "relu", "norm", "", "norm", "relu"),
    "full_preactivation": ("e", "norm relu", "", "", "", "norm relu"),
    "bn_only_preactivation": ("extension", "norm", "", "", "", "norm relu"),
}


def test_the_placements_are_those_of_table_2():
    assert list(PLACEMENTS) == list(TABLE_2)
    for name, (figure, *places) in TABLE_2.items():
        p = PLACEMENTS[name]
        assert (p.name, p.figure, p.between) == (name, figure, (NORM, RELU))
        assert [" ".join(steps) for steps in (p.first, p.last, p.after_addition, p.stem, p.head)] == places
        assert p.identity_after_addition == (name not in ("original", "bn_after_addition"))


def test_a_placement_of_ones_own_is_taken_as_it_is_and_comes_back_from_a_dictionary():
    own = Placement("own", "mine", first=(NORM,), after_addition=(RELU,))
    assert get_placement(own) is own
    assert get_placement({**dataclasses.asdict(own), "first": [NORM]}) == own


def test_a_changed_placement_with_a_known_name_is_saved_whole():
    changed = dataclasses.replace(PLACEMENTS["original"], after_addition=())
    assert get_placement(placement_config(changed)) == changed
    assert placement_config(PLACEMENTS["original"]) == "original"


@pytest.mark.parametrize("given", [(RELU, NORM), (NORM, "gelu"), ("bn",), (NORM, NORM), "norm"])
def test_what_would_not_be_built_as_it_is_written_is_refused(given):
    with pytest.raises(InputError, match="the placement own has between="):
        Placement("own", "mine", between=given)


def test_stem_and_head_of_ones_own_follow_from_its_preactivation():
    assert [(p.stem, p.head) for p in (Placement("a", "", first=(NORM, RELU)), Placement("b", "", last=(NORM,)))] == [
        ((), (NORM, RELU)),
        ((NORM, RELU), ()),
    ]


@pytest.mark.parametrize("given", [{"name": "x"}, {"name": "x", "figure": "", "before": []}])
def test_a_dictionary_of_other_fields_is_refused(given):
    with pytest.raises(InputError, match="name and figure are required"):
        get_placement(given)


def test_an_unknown_placement_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"did you mean 'full_preactivation'.*known: original, bn_after_addition"):
        get_placement("full_preactivaton")
