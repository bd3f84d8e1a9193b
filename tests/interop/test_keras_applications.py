"""keras.applications' networks and ours with the same weights: the same answers, there and back."""

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.interop import load_keras_applications, to_keras_applications
from keras_preact.interop.keras_applications import NAMES
from keras_preact.models import imagenet_resnet, preact_resnet34, preact_resnet50, with_preprocessing

SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if "50" not in name]


def randomized(model):
    """Statistics, scales and biases away from 0 and 1, where a missing or misplaced one would go unseen."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if variable.name in ("gamma", "moving_variance"):
            variable.assign(rng.uniform(0.5, 1.5, variable.shape))
        elif variable.name in ("beta", "bias", "moving_mean"):
            variable.assign(rng.normal(0, 0.1, variable.shape))
    return model


def theirs(name, **options):
    """A network of keras.applications for small images, with random weights and statistics."""
    return randomized(getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), **options))


def difference(one, other):
    images = np.random.default_rng(1).uniform(-1, 1, (2, *one.input_shape[1:])).astype("float32")
    answers = [np.asarray(model.predict(images, verbose=0)) for model in (one, other)]
    assert answers[0].std() > 0.01  # a network that answers nothing would agree with any other
    return np.abs(answers[0] - answers[1]).max()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["ResNet50V2", "ResNet50", *SLOW])
def test_same_logits_and_back(name):
    model = theirs(name, classes=10, classifier_activation=None)
    ours = load_keras_applications(model)
    assert difference(model, ours) < 1e-4
    assert ours.count_params() == model.count_params()
    back = to_keras_applications(ours)
    assert back.name == model.name
    for one, other in zip(model.weights, back.weights, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.thorough
def test_features_probabilities_and_rolled_stages():
    maps = theirs("ResNet50V2", include_top=False)
    assert difference(maps, load_keras_applications(maps)) < 1e-4
    features = theirs("ResNet50V2", include_top=False, pooling="max")
    ours = load_keras_applications(features, rolled=True)
    assert difference(features, ours) < 1e-4
    assert difference(to_keras_applications(ours), ours) < 1e-4
    classifier = theirs("ResNet50V2", classes=10)
    ours = load_keras_applications(classifier)
    assert difference(classifier, ours) < 1e-5
    assert difference(to_keras_applications(ours), ours) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ResNet34",), "unknown network of keras.applications 'ResNet34'"),
        (("ResNet50", "nowhere.h5"), "cannot load 'nowhere.h5' into ResNet50"),
        ((preact_resnet34(input_shape=(64, 64, 3)),), "is not one of keras.applications'"),
        ((keras.Sequential([keras.layers.Dense(2)]),), "has no input shape yet; begin it with keras.Input"),
        ((keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),), "is not one of keras.applications'"),
        (
            (keras.Sequential([keras.Input((64, 64, 3)), preact_resnet34(input_shape=(64, 64, 3), name="body")]),),
            r"perhaps the model inside it, get_layer\('body'\)",
        ),
        ((keras.Model(),), "only functional Keras models can be recognized"),
    ],
)
def test_what_is_none_of_them_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        load_keras_applications(*arguments)


def test_without_a_network_it_is_one_sentence(monkeypatch):
    def offline(weights):
        raise Exception("URL fetch failure on https://…: None -- [Errno -3] Temporary failure in name resolution")

    monkeypatch.setattr(keras.applications, "ResNet50", offline)
    with pytest.raises(InputError, match="cannot load 'imagenet' into ResNet50: URL fetch failure"):
        load_keras_applications("ResNet50", weights="imagenet")


def test_options_that_the_model_decides_are_refused():
    model = keras.applications.ResNet50V2(weights=None, include_top=False, input_shape=(64, 64, 3))
    for option in ({"pooling": "avg"}, {"depth": 101}, {"placement": "original"}, {"output_stride": 8}):
        with pytest.raises(InputError, match=f"leave out {next(iter(option))}, which the model"):
            load_keras_applications(model, **option)
    with pytest.raises(InputError, match="leave out weights"):
        load_keras_applications(model, weights="imagenet")


def test_layers_before_or_after_the_network_are_not_dropped():
    images = keras.Input((64, 64, 3))
    scaled = keras.layers.Rescaling(1 / 255, name="scaling")(images)
    with pytest.raises(InputError, match="resnet50 has scaling, which"):
        load_keras_applications(keras.applications.ResNet50(weights=None, include_top=False, input_tensor=scaled))
    options = {"profile": "keras_applications", "include_top": False}
    for tensor in (scaled, keras.ops.multiply(images, 2.0)):
        with pytest.raises(InputError, match=r"no layer for (scaling|multiply)"):
            to_keras_applications(preact_resnet50(**options, input_tensor=tensor))
    network = preact_resnet50(**options, input_shape=(64, 64, 3))
    with pytest.raises(InputError, match="no layer for flat"):
        to_keras_applications(keras.Model(network.input, keras.layers.Flatten(name="flat")(network.output)))


@pytest.mark.thorough
def test_networks_with_drop_path_come_and_go():
    model = theirs("ResNet50V2", include_top=False)
    ours = load_keras_applications(model, drop_path=0.2)
    assert difference(model, ours) < 1e-4
    assert difference(to_keras_applications(ours), ours) < 1e-4


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ResNet50V2", {"stride_in": "first"}, "stride in another unit"),
        ("ResNet50", {"shortcut": "dropout"}, "has shortcut='dropout'"),
    ],
)
def test_options_that_change_what_is_computed_are_refused(name, options, words):
    model = getattr(keras.applications, name)(weights=None, include_top=False, input_shape=(64, 64, 3))
    with pytest.raises(InputError, match=words):
        load_keras_applications(model, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "stride in another unit"),
        ({"stride_in": "last"}, "has epsilon=1e-05"),
        ({"epsilon": 1.001e-5, "stride_in": "last"}, "lacks conv1_conv/bias of keras.applications' resnet50v2"),
        (
            {"profile": "keras_applications", "groups": 32},
            r"conv2_block1_1_conv/kernel of shape \(1, 1, 64, 2048\), but .* has \(1, 1, 64, 64\)",
        ),
        ({"profile": "keras_applications", "normalization": "group"}, "normalization='group'"),
        ({"profile": "keras_applications", "stride_on": "1x1"}, "stride_on='1x1'"),
        ({"profile": "keras_applications", "shortcut": "constant_scaling"}, "shortcut='constant_scaling'"),
        ({"stride_in": "first", "output_stride": 16}, "no dilated networks"),
        (
            {"profile": "timm", "stride_in": "last", "epsilon": 1.001e-5, "biases": "unnormalized"},
            "pads with 0 before the pooling, and stem_pool_pad with -inf",
        ),
    ],
)
def test_another_network_does_not_go_back(options, words):
    with pytest.raises(InputError, match=words):
        to_keras_applications(preact_resnet50(include_top=False, input_shape=(64, 64, 3), **options))


def test_the_other_order_of_layers_does_not_go_back():
    with pytest.raises(InputError, match="no network with the units of"):
        to_keras_applications(imagenet_resnet(18, input_shape=(64, 64, 3)))


def test_a_network_with_several_outputs_is_refused():
    theirs = keras.applications.ResNet50V2(weights=None, input_shape=(64, 64, 3), include_top=False)
    stages = keras.Model(theirs.input, [theirs.get_layer("conv3_block4_out").output, theirs.output])
    with pytest.raises(InputError, match="has 2 outputs; pass the network with its last one alone"):
        load_keras_applications(stages)


def test_the_other_data_format_is_refused():
    channels_first = imagenet_resnet(
        50, profile="keras_applications", include_top=False, input_shape=(3, 64, 64), data_format="channels_first"
    )
    with pytest.raises(InputError, match=r"is channels_first, but keras\.applications builds channels_last networks"):
        to_keras_applications(channels_first)


def test_a_network_inside_another_model_is_named():
    network = imagenet_resnet(18, input_shape=(64, 64, 3), classes=4)
    outer = with_preprocessing(network)
    with pytest.raises(InputError, match=rf"pass the network inside it, get_layer\('{network.name}'\)"):
        to_keras_applications(outer)


def test_images_that_keras_applications_refuses_are_one_sentence():
    small = preact_resnet50(profile="keras_applications", input_shape=(16, 16, 3))
    with pytest.raises(InputError, match=r"keras\.applications cannot build this network: .*at least 32x32"):
        to_keras_applications(small)
