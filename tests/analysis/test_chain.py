"""The chain of units: it follows the network, and says what it cannot analyze."""

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.analysis import Chain, forward_signal, gradient_signal, leave_out
from keras_preact.analysis.differentiation import vjp
from keras_preact.interop.naming import parts
from keras_preact.layers import ResidualUnit, freeze_batch_norms
from keras_preact.models import cifar_resnet, feature_maps

X = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
Y = np.arange(4)
SHAPE = X.shape[1:]


def variances(network):
    return [entry.x.variance for entry in forward_signal(network, X)]


@pytest.mark.parametrize("rolled", [True, False])
def test_a_chain_follows_the_weights_of_its_network(rolled):
    network = cifar_resnet(14, rolled=rolled, input_shape=SHAPE)
    chain = Chain.of(network)
    before = variances(chain)
    network.set_weights([1.5 * weight for weight in network.get_weights()])
    after = variances(chain)
    assert after == variances(network) and after != before


@pytest.mark.parametrize("rolled", [True, False])
def test_a_chain_follows_the_freezing_of_its_network(rolled):
    network = cifar_resnet(14, rolled=rolled, input_shape=SHAPE)
    chain = Chain.of(network)
    variances(chain)
    freeze_batch_norms(network)
    assert variances(chain) == variances(network)


class Turn(keras.layers.RandomRotation):
    pass


@pytest.mark.parametrize("how", ["a layer", "a subclass", "in a Sequential", "after another", "not at random"])
def test_images_are_not_augmented_by_any_layer(how):
    turn = keras.layers.RandomRotation(0.5, seed=0)
    layers = {
        "a layer": [turn],
        "a subclass": [Turn(0.5, seed=0)],
        "in a Sequential": [keras.Sequential([turn, keras.layers.Rescaling(1.0)])],
        "not at random": [keras.layers.Solarization(0.5, 0.5, (-9, 9), seed=0)],
        "after another": [keras.layers.RandomFlip(seed=0), keras.layers.Rescaling(1.0), turn],
    }[how]
    x = inputs = keras.Input(SHAPE)
    for layer in layers:
        x = layer(x)
    network = cifar_resnet(8, input_tensor=x)
    assert inputs is network.inputs[0]
    chain = Chain.of(network)
    training, inference = (array(chain.start(X, training)[1]) for training in (True, False))
    np.testing.assert_array_equal(training, inference)


def test_what_is_no_chain_is_refused_in_one_sentence():
    network = cifar_resnet(8, input_shape=SHAPE)
    features = keras.Model(network.input, [network.output, network.get_layer("stage3_unit01").output])
    with pytest.raises(InputError, match="has several inputs or outputs; analyze a model with one of each"):
        gradient_signal(features, X, Y)
    inputs = keras.Input(SHAPE)
    around = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Rescaling(2.0)(network(inputs))))
    with pytest.raises(InputError, match=rf"pass the model inside it, get_layer\('{network.name}'\)"):
        Chain.of(around)
    x = keras.Input(SHAPE)
    inner = cifar_resnet(8, input_tensor=x, include_top=False)
    pooled = [keras.layers.GlobalAveragePooling2D()(part) for part in (inner.output, x)]
    with pytest.raises(InputError, match="has connections around its chain of units"):
        Chain.of(keras.Model(x, keras.layers.Dense(3)(keras.layers.Concatenate()(pooled))))


def test_a_unit_that_is_called_twice_is_refused():
    """Its weights are those of two links, of which one cannot be left out."""
    unit, inputs = ResidualUnit(4, name="shared"), keras.Input(SHAPE[:2] + (4,))
    outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(unit(unit(inputs))))
    with pytest.raises(InputError, match="calls shared more than once; analyze a model of different units"):
        Chain.of(keras.Model(inputs, outputs))


def test_layers_that_have_been_called_elsewhere_form_a_chain():
    """A layer's `output` is that of its first call, perhaps in another model."""
    network = cifar_resnet(8, input_shape=SHAPE)
    x = inputs = keras.Input(SHAPE)
    for layer in network.layers[1:]:
        x = layer(x)
    again = keras.Model(inputs, x)
    part = keras.Model(network.get_layer("stem_conv").output, network.output)
    expected = forward_signal(network, X)
    assert forward_signal(again, X) == expected
    assert forward_signal(part, network.get_layer("stem_conv")(X)) == expected
    for model in (again, part):
        assert [output.shape[1] for output in feature_maps(model).output.values()] == [16, 8, 4]


@pytest.mark.parametrize("split", [Chain.of, feature_maps, lambda model: list(parts(model))])
def test_the_inner_model_that_has_the_units_is_named(split):
    inputs = keras.Input(SHAPE)
    augment = keras.Sequential([keras.Input(SHAPE), keras.layers.RandomFlip()], name="augment")
    model = keras.Model(inputs, cifar_resnet(8, input_shape=SHAPE, name="network")(augment(inputs)))
    with pytest.raises(InputError, match=r"inside it, get_layer\('network'\)"):
        split(model)
    split(model.get_layer("network"))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="other backends have no such switch")
def test_gradients_are_measured_where_the_program_turned_them_off():
    import torch

    network = cifar_resnet(8, input_shape=SHAPE)
    expected = [entry.norm for entry in gradient_signal(network, X, Y)]
    with torch.no_grad():
        assert [entry.norm for entry in gradient_signal(network, X, Y)] == expected
        assert float(vjp(lambda x: 3 * x, torch.ones(1), torch.ones(1))) == 3.0
    assert not Chain.of(network).start(X)[1].requires_grad and min(expected) > 0


def test_lesions_of_a_network_with_other_layers_in_front():
    network = cifar_resnet(8, input_tensor=keras.layers.Rescaling(0.5)(keras.Input(SHAPE)))
    plain = cifar_resnet(8, input_shape=SHAPE)
    plain.set_weights(network.get_weights())
    assert leave_out(network, X, Y) == leave_out(plain, X / 2, Y)
