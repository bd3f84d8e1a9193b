"""fold: the same function in inference, with the batch norms after convolutions gone."""

import keras
import numpy as np
import pytest
from harness import array, disturb

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, SHORTCUTS, UnitStack
from keras_preact.models import cifar_resnet, fold, freeze, imagenet_resnet, multiply_adds

X = np.random.default_rng(6).normal(size=(4, 32, 32, 3)).astype("float32")


def norms(model):
    return [layer.name for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]


def assert_same(model, folded, x=X, tolerance=1e-5):
    expected = array(model(x))
    np.testing.assert_allclose(array(folded(x)), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement(placement):
    model = cifar_resnet(14, placement)
    disturb(model)
    assert_same(model, fold(model))


@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("shape_change", ["projection", "option_a"])
def test_every_shortcut(shortcut, shape_change):
    model = cifar_resnet(8, "original", shortcut, shape_change=shape_change, drop_path=0.1)
    disturb(model)
    assert_same(model, fold(model))


def test_what_is_left():
    assert norms(fold(cifar_resnet(8, "original"))) == []
    left = [f"stage{number}_unit01_norm1" for number in (1, 2, 3)]
    assert norms(fold(cifar_resnet(8))) == [*left, "head_norm"]
    assert norms(fold(imagenet_resnet(18, "original", input_shape=(64, 64, 3)))) == []


def test_rolled_networks_and_bottlenecks():
    model = cifar_resnet(29, bottleneck=True, rolled=True)
    disturb(model)
    folded = fold(model)
    assert_same(model, folded)
    assert multiply_adds(folded) == multiply_adds(model)


def test_stacks_of_other_layers_stay_in_the_network():
    inputs = keras.Input((8, 8, 3))
    convolution = keras.layers.Conv2D(3, 3, padding="same")
    model = keras.Model(inputs, UnitStack(convolution, 3, rolled=True, name="conv_stack")(inputs))
    assert_same(model, fold(model), X[:, :8, :8])


def test_frozen_units_stay_frozen():
    model = cifar_resnet(20, "original", rolled=True)
    freeze(model, before="logits")
    assert [v.path for v in fold(model).trainable_variables] == ["logits/kernel", "logits/bias"]


def test_imagenet_networks_with_groups():
    model = imagenet_resnet(50, groups=4, width_per_group=16, input_shape=(64, 64, 3), classes=7)
    x = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype("float32")
    assert_same(model, fold(model), x)


def test_group_normalization_stays():
    model = cifar_resnet(8, normalization="group")
    disturb(model)
    assert_same(model, fold(model))


def test_saved_and_loaded(tmp_path):
    model = cifar_resnet(8)
    disturb(model)
    folded = fold(model)
    folded.save(tmp_path / "folded.keras")
    loaded = keras.models.load_model(tmp_path / "folded.keras", safe_mode=True)
    np.testing.assert_array_equal(array(loaded(X)), array(folded(X)))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_exported(tmp_path):
    import tensorflow as tf

    model = cifar_resnet(8)
    disturb(model)
    fold(model).export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve(X)
    np.testing.assert_allclose(array(served), array(model(X)), rtol=1e-4, atol=1e-4)


def test_the_model_itself_is_not_changed():
    model = cifar_resnet(8)
    model.compile("sgd", "mse")
    before = [array(v) for v in model.weights]
    folded = fold(model)
    assert not folded.compiled
    for mine, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(mine), old)


def test_a_convolution_with_another_user_is_left_alone():
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, name="shared")(inputs)
    outputs = keras.layers.Add()([x, keras.layers.BatchNormalization(name="norm")(x)])
    model = keras.Model(inputs, outputs)
    disturb(model)
    folded = fold(model)
    assert norms(folded) == ["norm"]
    assert_same(model, folded, X[:, :8, :8])


def test_errors():
    with pytest.raises(InputError, match="only functional"):
        fold(keras.Sequential([keras.layers.Dense(2)]))
