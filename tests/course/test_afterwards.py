"""The judges of notebook 11."""

import pytest

from keras_preact.course import check
from keras_preact.layers import Shortcut


class Forgets(Shortcut):
    keeps_identity = True

    def __init__(self, c=0.1, **kwargs):
        super().__init__(**kwargs)
        self.c = c

    def call(self, x, residual):
        return x + self.c * residual


class Damped(Forgets):
    def get_config(self):
        return {**super().get_config(), "c": self.c}


RIGHT = {
    "11.1": lambda units: units**-0.5,
    "11.2": (1 / 16, 1 / 128),
    "11.3": Damped,
}

WRONG = [
    ("11.1", lambda units: 1 / units, "a scale enters squared"),
    ("11.1", lambda units: 1, "the variance at the end is 5"),
    ("11.1", lambda units: None, "returns nothing"),
    ("11.2", 0.2, "give two numbers"),
    ("11.2", (1, 2, 3), "not 3"),
    ("11.2", (64**-0.25, 1024**-0.25), "a power of β"),
    ("11.2", (64**-0.5, 1024**-0.5), "a power of β"),
    ("11.2", (1 / 8**0.5 / 2, 1 / 128**0.5 / 2), "that is β/α"),
    ("11.2", (16, 128), "the inverse"),
    ("11.2", (1 / 128, 1 / 16), "8 blocks come first"),
    ("11.2", (1, 1), "α is 2"),
    ("11.3", 3, "give a subclass"),
    ("11.3", type("Empty", (Shortcut,), {}), "no call"),
    ("11.3", Forgets, "get_config must include"),
    (
        "11.3",
        type("Half", (Shortcut,), {"call": lambda self, x, residual: 0.1 * (x + residual)}),
        "x is scaled too",
    ),
    ("11.3", type("Sum", (Shortcut,), {"call": lambda self, x, residual: x + residual}), "it should return 2"),
    ("11.3", type("Fixed", (Shortcut,), {"call": lambda self, x, residual: x + 0.1 * residual}), "has no argument c"),
    ("11.3", type("Shy", (Damped,), {"keeps_identity": False}), "does not declare it"),
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


def test_every_exercise_has_a_wrong_answer_too():
    assert {number for number, _, _ in WRONG} == set(RIGHT)
