"""The keyword arguments that all residual networks share."""

import dataclasses
import inspect
from functools import partial

import pytest

from keras_preact import InputError
from keras_preact.models import (
    NetworkOptions,
    cifar_resnet,
    imagenet_resnet,
    postact_resnet18,
    preact_resnet50,
    prenorm_transformer,
    transformer,
)
from keras_preact.models.profiles import PAPER, Conventions


@pytest.mark.parametrize("builder", [cifar_resnet, imagenet_resnet])
def test_a_builder_shows_them_in_its_signature(builder):
    parameters = inspect.signature(builder).parameters
    for field in dataclasses.fields(NetworkOptions):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].kind == inspect.Parameter.KEYWORD_ONLY
    assert list(parameters)[:3] == ["depth", "placement", "shortcut"] and "options" not in parameters


def test_a_seed_with_which_all_units_would_drop_the_same_is_refused():
    for network in (partial(cifar_resnet, 14), partial(imagenet_resnet, 18), partial(transformer, depth=2)):
        with pytest.raises(InputError, match="seed of the shortcut would begin again in each unit"):
            network(shortcut="dropout(rate=0.5, seed=7)")


@pytest.mark.parametrize("builder", [cifar_resnet, imagenet_resnet])
def test_an_unknown_one_is_named(builder):
    with pytest.raises(TypeError, match="unexpected keyword argument 'stride_one'"):
        builder(stride_one="1x1")


@pytest.mark.parametrize(
    ("variant", "builder", "fixed"),
    [
        (preact_resnet50, imagenet_resnet, {"depth", "placement"}),
        (postact_resnet18, imagenet_resnet, {"depth", "placement"}),
        (prenorm_transformer, transformer, {"placement"}),
    ],
)
def test_a_variant_shows_the_arguments_of_its_builder_without_those_that_it_fixes(variant, builder, fixed):
    shown, everything = inspect.signature(variant).parameters, inspect.signature(builder).parameters
    assert shown.keys() == everything.keys() - fixed
    assert all(shown[name].default == everything[name].default for name in shown)
    for name in ("dpeth", *fixed):
        with pytest.raises(TypeError, match=rf"{variant.__name__}\(\) got an unexpected keyword argument '{name}'"):
            variant(**{name: 50})


def test_every_one_is_documented():
    for field in dataclasses.fields(NetworkOptions):
        documented = inspect.getdoc(NetworkOptions).splitlines()
        assert any(field.name in line.split(":")[0] for line in documented if line.startswith("    "))


def test_units_get_the_profiles_choice_unless_one_is_given():
    other = Conventions(stride_on="1x1", momentum=0.99, biases="all")
    assert NetworkOptions().of_units(PAPER) == {
        "groups": 1,
        "width_per_group": 64,
        "normalization": "batch",
        "zero_init_residual": False,
        "data_format": None,
        "shape_change": "projection",
        "stride_on": "3x3",
        "momentum": 0.9,
        "epsilon": 1e-5,
        "kernel_initializer": "he_by_fan_out",
        "biases": "none",
    }
    given = NetworkOptions(groups=2, momentum=0.5).of_units(other)
    assert (given["groups"], given["momentum"], given["stride_on"], given["biases"]) == (2, 0.5, "1x1", "all")
