"""Networks by name: what each accepts, and how programs that know only the name build it."""

import keras
import pytest

from keras_preact import InputError
from keras_preact.models import NETWORKS, TRANSFORMERS, Classification, Tokens, get_entry, get_network
from keras_preact.models.registry import ENTRIES, ResNetEntry

RESNETS = sorted(NETWORKS.keys() - set(TRANSFORMERS))
SMALL = {"cifar_resnet": {"depth": 8}, "transformer": {"depth": 1, "dim": 8, "heads": 2}}


def test_every_name_is_that_of_its_builder():
    assert {name: builder.__name__ for name, builder in NETWORKS.items()} == {name: name for name in ENTRIES}
    assert get_network("preact-resnet18") is NETWORKS["preact_resnet18"]
    with pytest.raises(InputError, match=r"unknown network 'preact_resnet19'.*preact_resnet18"):
        get_entry("preact_resnet19")
    with pytest.raises(InputError, match="unknown network <function"):
        get_entry(get_network("cifar_resnet"))


@pytest.mark.parametrize("name", NETWORKS)
def test_fixed_arguments_are_not_options(name):
    entry = get_entry(name)
    assert not entry.fixed.keys() & entry.options
    assert {"shortcut", "rolled", "dtype"} <= entry.options
    assert ("profile" in entry.options) == (name in RESNETS) == isinstance(entry, ResNetEntry)
    assert ("patch" in entry.options) == (name in TRANSFORMERS)
    assert "options" not in entry.options


@pytest.mark.parametrize("name", ["preact_resnet18", "postnorm_transformer"])
def test_a_name_fixes_arguments_of_another_builder(name):
    entry = get_entry(name)
    small = {"dim": 8, "heads": 2, "depth": 1} if name in TRANSFORMERS else {"classes": 2, "input_shape": (32, 32, 3)}
    models = [entry.builder(**small), entry.base(**entry.fixed, **small)]
    shapes = [[(v.path, v.shape) for v in model.variables] for model in models]
    assert models[0].name == models[1].name and shapes[0] == shapes[1]


def test_resolved_options_are_those_that_change_the_function():
    entry = get_entry("preact_resnet50")
    default = entry.resolved({})
    assert (
        entry.resolved({"rolled": True, "dtype": "mixed_bfloat16", "stride_on": "3x3", "output_stride": 32}) == default
    )
    assert (default["depth"], default["placement"], default["momentum"]) == (50, "full_preactivation", 0.9)
    assert entry.resolved({"profile": "keras_applications"})["stride_in"] == "last"
    assert entry.resolved({"output_stride": 16}) != default
    assert get_entry("cifar_resnet").resolved({"depth": 164})["block"] == "bottleneck"
    assert get_entry("transformer").resolved({"dim": 8}) == get_entry("transformer").resolved(
        {"dim": 8, "feed_forward_dim": 32, "patch": 4}
    )
    with pytest.raises(InputError, match="unknown placement"):
        get_entry("cifar_resnet").resolved({"placement": "upside_down"})


@pytest.mark.parametrize("name", SMALL)
def test_a_network_without_data(name):
    entry = get_entry(name)
    assert entry.on_its_own(None, None, SMALL[name]).output_shape == (None, 10 if name in RESNETS else 2)
    options = {**SMALL[name], **({"patch": 8} if name in TRANSFORMERS else {})}
    model = entry.on_its_own(16, 3, options)
    assert (model.input_shape, model.output_shape) == ((None, 16, 16, 3), (None, 3))


def test_a_transformer_has_an_image_size_only_with_patches():
    with pytest.raises(InputError, match="set it, or leave out the image size"):
        get_entry("transformer").on_its_own(16, None, SMALL["transformer"])


@pytest.mark.parametrize("name", SMALL)
def test_a_network_on_images(name):
    images = keras.Input((16, 16, 3))
    model = get_entry(name).on_images(keras.layers.Rescaling(2.0)(images), 5, SMALL[name])
    assert model.input_shape == (None, 16, 16, 3) and model.output_shape == (None, 5)


def test_images_are_channels_last_whatever_keras_s_setting():
    keras.config.set_image_data_format("channels_first")
    model = get_entry("cifar_resnet").on_images(keras.Input((16, 16, 3)), 5, SMALL["cifar_resnet"])
    assert model.get_layer("stem_conv").data_format == "channels_last"


def test_only_transformers_accept_sequences():
    inputs, head = Tokens(20, 6), Classification(3)
    assert get_entry("transformer").on_sequences(inputs, head, SMALL["transformer"]).output_shape == (None, 3)
    with pytest.raises(InputError, match="cifar_resnet accepts images, not sequences; use one of transformer, prenorm"):
        get_entry("cifar_resnet").on_sequences(inputs, head, {})
    with pytest.raises(InputError, match="patch divides images, but the data are sequences; leave it out"):
        get_entry("prenorm_transformer").on_sequences(inputs, head, {"patch": 4})


def test_what_a_run_starts_from():
    for name, entry in ENTRIES.items():
        expected = ("reviews", "adam", "adam") if name in TRANSFORMERS else ("bundled", "demo", "short")
        found = entry.default_dataset, entry.default_recipe("bundled"), entry.default_recipe("cifar10")
        assert found == expected
        assert entry.has_batch_norm == (name in RESNETS)
    assert get_entry("cifar_resnet").facts({}) == {"profile": "paper"}
    assert get_entry("cifar_resnet").facts({"profile": "timm"}) == {"profile": "timm"}
    assert get_entry("transformer").facts({}) == {}
