"""Exercises of notebook 10, and the network with a fault for one of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from keras_preact.course.exercise import Wrong, exercise, expect_array, expect_function, is_close, refuse_mistakes
from keras_preact.layers import ResidualUnit


def network_with_a_fault() -> keras.Model:
    """Return a network of nine units, `unit1` to `unit9`; one has a fault on its identity path."""
    faulty = int(np.random.default_rng(2016).integers(2, 9))
    x = inputs = keras.Input((16, 16, 8))
    for number in range(1, 10):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.Conv2D(8, 3, padding="same", use_bias=False)(y)
        skip = layers.Dropout(0.1)(x) if number == faulty else x
        x = layers.Add(name=f"unit{number}")([skip, y])
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name="nine_units")


class _ActivatedShortcut(layers.Layer):
    """A unit with an activated shortcut and F = 0."""

    def call(self, x: Any) -> Any:
        return keras.ops.relu(x)


class _PositivesCutOff(layers.Layer):
    """A unit that changes positive values only."""

    def call(self, x: Any) -> Any:
        return -keras.ops.relu(-x)


def _candidates() -> dict[str, tuple[Any, bool]]:
    def unit(**options: Any) -> Any:
        return ResidualUnit(4, zero_init_residual=True, **options)

    scaled = unit(shortcut="constant_scaling(shortcut=0.999, residual=1)")
    return {
        "the full pre-activation unit": (unit(), True),
        "the unit with ReLU before the addition": (unit(placement="relu_before_addition"), True),
        "the original unit, which has a ReLU after the addition": (unit(placement="original"), False),
        "a unit with an activated shortcut": (_ActivatedShortcut(), False),
        "a unit that scales its shortcut by 0.999": (scaled, False),
        "a unit that forgets its shortcut": (layers.Rescaling(0.0), False),
        "a unit that cuts off positive values": (_PositivesCutOff(), False),
    }


@exercise("10.1")
def a_test_of_the_identity(answer: Any) -> str:
    test = expect_function(answer)
    for name, (unit, is_identity) in _candidates().items():
        result = test(unit)
        if result is None or result is ...:
            raise Wrong("your test returns nothing; return True or False.")
        if bool(result) != is_identity:
            if name.startswith("the original"):
                raise Wrong(f"your test passes {name}. Do its inputs include negative values?")
            if "0.999" in name:
                raise Wrong(f"your test passes {name}. An identity is exact: test for equality.")
            if "positive" in name:
                raise Wrong(f"your test passes {name}. Do its inputs include positive values?")
            raise Wrong(f"your test {'fails' if is_identity else 'passes'} {name}.")
    return "It passes the two identities and catches the five others."


@exercise("10.2")
def find_the_fault(answer: Any) -> str:
    model = network_with_a_fault()
    names = [layer.name for layer in model.layers if isinstance(layer, layers.Add)]
    if answer not in names:
        raise Wrong(f"give the name of a unit: {', '.join(names)}.")
    graph_input = model.get_layer(str(answer)).input[0]
    if not any(isinstance(layer, layers.Dropout) and layer.output is graph_input for layer in model.layers):
        raise Wrong(f"{answer} adds its input unchanged. Run check_identity_path.")
    return "Dropout on the shortcut zeroes and rescales a signal that should pass unchanged (Table 1: rate 0.5 fails)."


@exercise("10.3")
def coupled_decay(answer: Any) -> str:
    start, gradients = np.array([2.0, -1.0]), np.array([[0.5, 0.25], [-0.25, 1.0], [1.0, 0.5]])
    rate, momentum, decay = 0.1, 0.9, 0.05

    def trained(coupled: float = 0.0, decoupled: float = 0.0, rate: float = rate, momentum: float = momentum) -> Any:
        w, velocity = start, np.zeros(2)
        for gradient in gradients:
            velocity = momentum * velocity - rate * (gradient + coupled * w)
            w = w + velocity - decoupled * w
        return w

    new = expect_array(expect_function(answer)(start.copy(), gradients.copy(), rate, momentum, decay), start.shape)
    mistakes = {
        "this is decoupled decay: it bypasses the momentum.": trained(decoupled=rate * decay),
        "the decay is not multiplied by the learning rate: it belongs to the gradient.": trained(decoupled=decay),
        "it decays twice as fast: that is the gradient of λ‖w‖², not of ½λ‖w‖².": trained(2 * decay),
        "the decay is missing.": trained(),
        "the sign of the decay is wrong: the weights grow.": trained(-decay),
        "the momentum is missing.": trained(decay, momentum=0.0),
        "you step up the gradient, not down.": trained(decay, rate=-rate),
    }
    refuse_mistakes(new, mistakes, 1e-7)
    if not is_close(new, trained(decay), 1e-7):
        raise Wrong("it is not v ← μv − η (g + λw), w ← w + v, with momentum μ, learning rate η and decay λ.")
    return "The decay passes through the momentum. Decoupled decay does not, so the same λ is weaker there."
