"""What `keras.applications` tests on its networks, on every builder of images here."""

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.models import NETWORKS, TRANSFORMERS, imagenet_resnet

NAMES = [name for name in NETWORKS if name not in TRANSFORMERS]
SHALLOW = {"cifar_resnet": {"depth": 8}, "imagenet_resnet": {"depth": 18}}
FORMATS = ("channels_last", "channels_first")
QUICK = ("cifar_resnet", "imagenet_resnet", "preact_resnet50", "postact_resnet18")
every_builder = pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)


def test_the_quick_builders_are_of_this_package():
    assert set(QUICK) < set(NAMES) and len(NAMES) == 14


def build(name, **options):
    return NETWORKS[name](**{**SHALLOW.get(name, {}), **options})


def channels_of(name):
    """Return how many channels come out of the last stage."""
    if name == "cifar_resnet":
        return 64
    return 512 if name.endswith(("_resnet", "18", "34")) else 2048


def in_format(height, width, channels, data_format):
    return (height, width, channels) if data_format == "channels_last" else (channels, height, width)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("channels", [1, 4])
@every_builder
def test_without_top_images_have_any_size_and_number_of_channels(name, channels, data_format):
    keras.config.set_image_data_format(data_format)
    model = build(name, include_top=False, input_shape=in_format(None, None, channels, data_format))
    assert model.output.shape == (None, *in_format(None, None, channels_of(name), data_format))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("data_format", FORMATS)
@every_builder
def test_images_of_an_odd_size(name, data_format):
    model = build(name, include_top=False, input_shape=in_format(123, 123, 3, data_format), data_format=data_format)
    side = 31 if name == "cifar_resnet" else 4
    assert model.output.shape == (None, *in_format(side, side, channels_of(name), data_format))


@every_builder
def test_an_input_that_layers_have_prepared(name):
    inputs = keras.Input((200, 200, 4), name="custom_input")
    x = keras.layers.Conv2D(3, 2, strides=2)(inputs)
    model = build(name, include_top=False, input_tensor=x)
    assert model.input is inputs and model.output.shape[-1] == channels_of(name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("pooling", ["avg", "max"])
@every_builder
def test_pooling(name, pooling):
    assert build(name, include_top=False, pooling=pooling).output.shape == (None, channels_of(name))


@pytest.mark.sampled(2)
@every_builder
def test_with_top_it_predicts_and_is_serialized(name):
    """On logits by default: `classifier_activation` is None, where keras.applications has "softmax"."""
    model = build(name, classes=7, input_shape=(32, 32, 3))
    x = np.random.default_rng(0).uniform(size=(2, 32, 32, 3))
    assert model.predict(x, verbose=0).shape == (2, 7)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


@every_builder
def test_classifier_activation(name):
    last = build(name, classifier_activation="softmax").layers[-1]
    assert last.activation is keras.activations.softmax
    assert build(name).layers[-1].activation is keras.activations.linear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "imagenet"}, "imagenet"),
        ({"weights": "no-such-file.weights.h5"}, "no-such-file.weights.h5"),
        ({"weights": 5}, "weights is 5"),
        ({"input_shape": (32, 32)}, "input_shape"),
        ({"pooling": "mean", "include_top": False}, "pooling"),
        ({"classes": 0}, "classes"),
        ({"classifier_activation": "sfotmax"}, "classifier_activation"),
    ],
)
@every_builder
def test_errors(name, options, message):
    with pytest.raises(InputError, match=message) as raised:
        build(name, **options)
    assert "\n" not in str(raised.value)


def test_weights_of_another_number_of_classes(tmp_path):
    path = tmp_path / "ten.weights.h5"
    imagenet_resnet(18, classes=10).save_weights(path)
    with pytest.raises(InputError, match="logits"):
        imagenet_resnet(18, classes=11, weights=path)
    assert len(imagenet_resnet(18, classes=10, weights=path).weights) > 0
