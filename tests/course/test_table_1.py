"""Exercises of notebook 04: right answers are right, and wrong ones are told why."""

import numpy as np
from answers import check_answers

RIGHT = {
    "04.1": lambda bias, units: (1 / (1 + np.exp(bias))) ** units,
    "04.2": -3.24,
    "04.3": lambda rate, units: (1 - rate) ** (-units / 2),
}

WRONG = [
    ("04.1", lambda bias, units: (1 / (1 + np.exp(-bias))) ** units, "that is the factor of F"),
    ("04.1", lambda bias, units: units / (1 + np.exp(bias)), "units in a row multiply"),
    ("04.1", lambda bias, units: 1 / (1 + np.exp(bias)), "that is one unit"),
    ("04.1", lambda bias, units: 2.0, "it returns 2"),
    ("04.1", lambda bias, units: None, "returns nothing"),
    ("04.2", 3.24, "wrong sign"),
    ("04.2", -6, "0.956 of the signal"),
    ("04.2", -3.2, "of the signal is left"),
    ("04.3", lambda rate, units: (1 - rate) ** -units, "growth of the squared norm"),
    ("04.3", lambda rate, units: (1 - rate) ** -0.5, "that is one unit"),
    ("04.3", lambda rate, units: units * (1 - rate) ** -0.5, "units in a row multiply"),
    ("04.3", lambda rate, units: 1.0, "the mean of the mask"),
    ("04.3", lambda rate, units: (1 - rate) ** (units / 2), "it does not shrink"),
    ("04.3", lambda rate, units: rate ** (-units / 2), "not by the rate"),
    ("04.3", lambda rate, units: 2.5, "not 16"),
    ("04.3", lambda rate, units: None, "returns nothing"),
    ("04.3", 16, "give a function"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
