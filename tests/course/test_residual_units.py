"""The judges of notebook 01."""

import numpy as np
import pytest
from answers import check_answers
from keras import layers

from keras_preact.course import check


def relu(x):
    return np.maximum(x, 0)


def conv(x):
    return layers.Conv2D(16, 3, padding="same", use_bias=False)(layers.ReLU()(layers.BatchNormalization()(x)))


def plain(x):
    return layers.Conv2D(16, 3, padding="same")(x)


def swish(x):
    return layers.Conv2D(16, 3, padding="same")(layers.Activation("swish")(layers.BatchNormalization()(x)))


def copied_unit(x):
    out = layers.ReLU()(layers.BatchNormalization()(x))
    return layers.Add()([conv(layers.Conv2D(16, 3, padding="same")(out)), out])


def changes_x(x, a, b):
    x += relu(relu(x) @ a) @ b
    return x


RIGHT = {
    "01.1": lambda x, a, b: x + relu(relu(x) @ a) @ b,
    "01.2": lambda units, v: 1 / np.sqrt(1 + units * v),
    "01.3": lambda x: x + conv(conv(x)),
}


WRONG = [
    ("01.1", lambda x, a, b: relu(x + relu(relu(x) @ a) @ b), "ReLU after the addition"),
    ("01.1", lambda x, a, b: relu(x) + relu(relu(x) @ a) @ b, "your shortcut carries relu(x)"),
    ("01.1", lambda x, a, b: relu(relu(x) @ a) @ b, "the shortcut is missing"),
    ("01.1", lambda x, a, b: x + relu(x @ a) @ b, "that is the original order"),
    ("01.1", lambda x, a, b: x + relu(relu(x) @ a @ b), "belongs before it"),
    ("01.1", lambda x, a, b: x + relu(x) @ a @ b, "two linear maps are one"),
    ("01.1", lambda x, a, b: x * 7, "it is not x + relu(relu(x) W1) W2"),
    ("01.1", changes_x, "modifies x in place"),
    ("01.1", lambda x, a, b: None, "returns nothing"),
    ("01.1", lambda x: x, "checking it raised TypeError"),
    ("01.2", 0.5, "give a function; this is of type float"),
    ("01.2", lambda units, v: None, "returns nothing"),
    ("01.2", lambda units, v: "half", "give a number; this is of type str"),
    ("01.2", lambda units, v: 1 / (1 + units * v), "the share of the variance"),
    ("01.2", lambda units, v: (units * v) ** -0.5, "the variance 1 of the input itself"),
    ("01.2", lambda units, v: (1 + units * v) ** 0.5, "the correlation is the inverse"),
    ("01.2", lambda units, v: 1 / (1 + units * v**0.5), "the variances do"),
    ("01.2", lambda units, v: (1 + v) ** -0.5, "after one unit"),
    ("01.2", lambda units, v: (1 + v) ** (-units / 2), "they do not multiply"),
    ("01.2", lambda units, v: 0.9, "for 1 unit and v = 0.5 it returns 0.9, not 0.816"),
    ("01.3", copied_unit, "the linter reports"),
    ("01.3", lambda x: layers.ReLU()(layers.Add()([x, conv(conv(x))])), "ReLU"),
    ("01.3", lambda x: layers.Conv2D(4, 1)(x), "it must keep the shape"),
    ("01.3", lambda x: x + plain(plain(x)), "the branch is conv, conv, not BN, ReLU, conv, twice"),
    ("01.3", lambda x: x + swish(swish(x)), "the branch is BN, silu, conv, BN, silu, conv, not BN, ReLU, conv"),
    ("01.3", conv, "no keras.layers.Add"),
    ("01.3", lambda x: layers.Add()([x, conv(x)]), "should have two convolutions, not 1"),
    ("01.3", lambda x: 3, "must return the tensor"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)


@pytest.mark.parametrize("relu", ["relu", layers.ReLU()])
def test_an_activation_layer_with_relu_is_a_relu(relu, capsys):
    def activated(x):
        return layers.Conv2D(16, 3, padding="same")(layers.Activation(relu)(layers.BatchNormalization()(x)))

    check("01.3", lambda x: x + activated(activated(x)))
    assert capsys.readouterr().out.startswith("01.3 right. ")
