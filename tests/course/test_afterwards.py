"""The judges of notebook 11."""

from answers import check_answers

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


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
