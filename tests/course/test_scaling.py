"""Exercises of notebook 03."""

import numpy as np
from answers import check_answers


def weights(scales):
    return [np.prod(scales[k:]) for k in range(len(scales) + 1)]


def variance(start, scale, units):
    for _ in range(units):
        start = scale**2 * start + 1
    return start


RIGHT = {"03.1": weights, "03.2": variance, "03.3": 0.8986}

WRONG = [
    ("03.1", lambda scales: [sum(scales[k:]) for k in range(len(scales) + 1)], "units in a row multiply"),
    ("03.1", lambda scales: [np.prod(scales), *weights(scales)[:-1]], "does not scale it"),
    ("03.1", lambda scales: np.cumprod([1, *scales]), "earlier"),
    ("03.1", lambda scales: weights(scales)[::-1], "the order is reversed"),
    ("03.1", np.prod, "is wrong; it should be"),
    ("03.1", lambda scales: None, "returns nothing"),
    ("03.1", lambda scales: [7] * (len(scales) + 1), "your function returns [7.0"),
    ("03.2", lambda start, scale, units: variance(start, scale**0.5, units), "by λ²"),
    ("03.2", lambda start, scale, units: scale**2 * variance(start / scale**2, scale, units), "not the sum"),
    ("03.2", lambda start, scale, units: variance(0, scale, units), "at the start"),
    ("03.2", lambda start, scale, units: 1 / (1 - min(scale, 0.99) ** 2), "an infinite row"),
    ("03.2", lambda start, scale, units: start * scale ** (2 * units), "left out the residuals"),
    ("03.2", lambda start, scale, units: 3, "for a start of 1"),
    ("03.3", 1, "between 0 and 1"),
    ("03.3", 0.8986**2, "the answer for amplitudes"),
    ("03.3", 0.5, "not 9"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
