"""The names of units are those of the unrolled network, whatever is in a stack."""

import pytest

from keras_preact.layers import ResidualUnit, UnitStack
from keras_preact.layers.unit_names import stage_of, unit_names
from keras_preact.models import Classification, Series, cifar_resnet, transformer


@pytest.mark.parametrize(
    ("path", "stage"),
    [("stage2_unit07", "stage2"), ("stage2_stack", "stage2"), ("a_1/stage2_unit07/", "a_1/stage2"), ("unit", "unit")],
)
def test_the_stage_of_a_path(path, stage):
    assert stage_of(path) == stage


@pytest.mark.parametrize("rolled", [True, False])
def test_names_are_those_of_the_unrolled_network(rolled):
    networks = (
        lambda rolled: cifar_resnet(26, input_shape=(8, 8, 3), rolled=rolled),
        lambda rolled: transformer(Series(4, 2), Classification(3), depth=3, dim=8, heads=2, rolled=rolled),
    )
    for build in networks:
        names = unit_names((layer.name, layer) for layer in build(rolled).layers)
        unrolled = [layer.name for layer in build(False).layers if "_unit" in layer.name or "block" in layer.name]
        assert [name for units in names.values() for name in units] == unrolled


def test_a_stack_leaves_out_the_numbers_of_other_layers():
    unit = ResidualUnit(16)
    stack = UnitStack(unit, 2, rolled=False)
    layers = [("stage1_stack", stack), ("stage1_unit02", unit), ("stage1_stack_2", stack)]
    assert unit_names(layers) == {
        "stage1_stack": ["stage1_unit01", "stage1_unit03"],
        "stage1_unit02": ["stage1_unit02"],
        "stage1_stack_2": ["stage1_unit04", "stage1_unit05"],
    }


def test_a_unit_after_a_stack_does_not_share_its_number():
    unit = ResidualUnit(16)
    stack = UnitStack(unit, 2, rolled=False)
    assert unit_names([("stage1_stack", stack), ("stage1_stack_2", stack)])["stage1_stack_2"] == [
        "stage1_unit03",
        "stage1_unit04",
    ]
