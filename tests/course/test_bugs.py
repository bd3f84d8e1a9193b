"""The judges of notebook 10."""

import numpy as np
from answers import check_answers

from keras_preact.analysis import check_identity_path
from keras_preact.course.bugs import network_with_a_fault

NORMAL = np.random.default_rng(0).normal(size=(2, 8, 8, 4)).astype("float32")


def trained(w, gradients, rate, momentum, decay, decoupled=0.0):
    """Return the weights after SGD as PyTorch writes it, whose velocity contains no learning rate."""
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient + decay * w
        w = w - rate * velocity - decoupled * w
    return w


RIGHT = {
    "10.1": lambda unit: np.array_equal(np.array(unit(NORMAL)), NORMAL),
    "10.2": "unit3",
    "10.3": lambda *arguments: trained(*arguments),
}

WRONG = [
    ("10.1", lambda unit: True, "passes the original unit"),
    ("10.1", lambda unit: np.array_equal(np.array(unit(abs(NORMAL))), abs(NORMAL)), "negative values"),
    ("10.1", lambda unit: np.allclose(unit(NORMAL), NORMAL, rtol=0.01), "test for equality"),
    ("10.1", lambda unit: np.array_equal(np.array(unit(-abs(NORMAL))), -abs(NORMAL)), "include positive values"),
    ("10.1", lambda unit: False, "fails the full pre-activation unit"),
    ("10.1", lambda unit: None, "returns nothing"),
    ("10.2", "unit4", "adds its input unchanged"),
    ("10.2", "stage1_unit04", "give the name of a unit"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, rate, m, 0, rate * decay), "this is decoupled decay"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, rate, m, 0, decay), "not multiplied by the learning rate"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, rate, m, 2 * decay), "twice as fast"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, rate, m, 0), "the decay is missing"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, rate, m, -decay), "the weights grow"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, rate, 0, decay), "the momentum is missing"),
    ("10.3", lambda w, g, rate, m, decay: trained(w, g, -rate, m, decay), "up the gradient"),
    ("10.3", lambda w, g, rate, m, decay: w, "it is not v"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)


def test_the_linter_finds_the_fault_of_the_suspect():
    report = check_identity_path(network_with_a_fault())
    assert [unit.unit for unit in report.units if unit.faults] == [RIGHT["10.2"]]
