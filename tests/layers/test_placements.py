"""Table 2 as data."""

import dataclasses

import pytest

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, Placement, get_placement
from keras_preact.layers.placements import NORM, RELU


def test_the_names_are_those_of_the_contract():
    assert list(PLACEMENTS) == [
        "original",
        "bn_after_addition",
        "relu_before_addition",
        "relu_only_preactivation",
        "full_preactivation",
        "bn_only_preactivation",
    ]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_f_is_the_identity_where_nothing_follows_the_addition(name):
    assert PLACEMENTS[name].identity_after_addition == (name not in ("original", "bn_after_addition"))


@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name != "bn_only_preactivation"])
def test_the_papers_placements_have_two_norms_and_two_relus_around_two_convolutions(name):
    placement = PLACEMENTS[name]
    steps = placement.first + placement.between + placement.last + placement.after_addition
    assert (steps.count(NORM), steps.count(RELU)) == (2, 2)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_stem_and_first_preactivation_make_up_norm_and_relu(name):
    placement = PLACEMENTS[name]
    if name != "bn_only_preactivation":
        assert placement.stem + placement.first == (NORM, RELU)


def test_a_placement_of_ones_own_is_taken_as_it_is_and_comes_back_from_a_dictionary():
    own = Placement("own", "mine", first=(NORM,), after_addition=(RELU,))
    assert get_placement(own) is own
    assert get_placement({**dataclasses.asdict(own), "first": [NORM]}) == own


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
