"""Exercises of notebook 04: right answers are right, and wrong ones are told why."""

import numpy as np
import pytest

from keras_preact.course import check

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


@pytest.mark.parametrize("number", RIGHT)
def test_a_right_answer_is_right_and_none_is_open(number, capsys):
    check(number, RIGHT[number])
    assert capsys.readouterr().out.startswith(f"{number} right. ")
    check(number, ...)
    assert "open: replace the dots" in capsys.readouterr().out


@pytest.mark.parametrize("number, answer, words", WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, words, capsys):
    check(number, answer)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{number} not yet: ") and words in printed
