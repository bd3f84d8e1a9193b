"""Copies of Keras objects: nothing in them has to be registered with Keras."""

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.layers import EncoderBlock, ResidualUnit, Shortcut, UnitStack
from keras_preact.layers.copies import clone, same_but_for_weights, without_names


class HalfAndHalf(Shortcut):
    def call(self, x, residual):
        return (x + residual) / 2


def double(x):
    return 2 * x


class Scheduled(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.5

    def get_config(self):
        return {}


@pytest.mark.parametrize("built", [True, False])
def test_what_a_layer_is_made_of_need_not_be_registered(built):
    for layer in (
        keras.layers.Dense(16, activation=double),
        ResidualUnit(16, shortcut=HalfAndHalf()),
        UnitStack(ResidualUnit(16, shortcut=HalfAndHalf()), 2, rolled=True),
    ):
        if built:
            layer.build((None, 8, 8, 16))
        copy = clone(clone(layer, name="other"), name=layer.name)
        assert type(copy) is type(layer) and not copy.built
        assert copy.get_config() == layer.get_config()
        copy.build((None, 8, 8, 16))


def test_what_an_optimizer_is_made_of_need_not_be_registered():
    copy = clone(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(Scheduled())))
    assert float(copy.inner_optimizer.learning_rate) == 0.5


def test_a_layer_that_does_not_say_how_it_is_made():
    class Secretive(keras.layers.Layer):
        def __init__(self, secret):
            super().__init__()

        def get_config(self):
            return super().get_config()

    with pytest.raises(InputError, match="the Secretive 'secretive' cannot be copied from its configuration; return"):
        clone(Secretive(1))


def times(factor):
    def activation(x):
        return factor * x

    return activation


def two_layers(*factors):
    return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4, times(factor)) for factor in factors)])


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(InputError, match=r"two different objects called activation, .* give them different names"):
        clone(two_layers(2.0, -2.0))
    copy, x = clone(model := two_layers(2.0, 2.0)), np.ones((1, 4), "float32")
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(copy(x)), array(model(x)))


def test_units_with_different_functions_of_one_name_are_not_equal():
    units = [EncoderBlock(2, activation=times(factor)) for factor in (2.0, 2.0, -2.0)]
    for unit in units:
        unit.build((None, 3, 4))
    assert same_but_for_weights(units[0], units[1]) and not same_but_for_weights(units[0], units[2])


def test_configurations_without_names_tell_functions_apart():
    def graph(units=4, name="first", second=True):
        inputs = keras.Input((4,))
        first = keras.layers.Dense(4, name=name)(inputs)
        last = keras.layers.Dense(units)(first)
        return without_names(keras.Model(inputs, last if second else first + last, name="model").get_config())

    assert graph() == graph(name="other")
    assert graph() != graph(units=3)
    assert graph() != graph(second=False)
    assert without_names({"a": {"name": "batch"}}) != without_names({"a": {"name": "layer"}})
