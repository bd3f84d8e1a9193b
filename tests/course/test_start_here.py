"""The judges of notebook 00."""

import numpy as np
from answers import check_answers

IDENTITIES = ["relu_before_addition", "relu_only_preactivation", "full_preactivation", "bn_only_preactivation"]


def standard_error(first, second, ddof=1):
    return sum(np.var(errors, ddof=ddof) / len(errors) for errors in (first, second)) ** 0.5


def difference(first, second):
    return np.mean(first) - np.mean(second)


RIGHT = {
    "00.1": IDENTITIES,
    "00.2": lambda width: (np.eye(width), np.zeros((width, width))),
    "00.3": lambda first, second: (difference(first, second), standard_error(first, second)),
}

WRONG = [
    ("00.1", "full_preactivation", "give a list"),
    ("00.1", ["pre"], "pre is not a placement"),
    ("00.1", ["original"], "original has relu after the addition"),
    ("00.1", IDENTITIES[1:], "left out relu_before_addition"),
    ("00.2", 3, "give a function; this is of type int"),
    ("00.2", lambda width: np.eye(width), "return two arrays"),
    ("00.2", lambda width: None, "return two arrays"),
    ("00.2", lambda width: (None, None), "returns nothing"),
    ("00.2", lambda width: (1, 0), "the shape ()"),
    ("00.2", lambda width: (np.zeros((width, width)), np.zeros((width, width))), "no shortcut that still carries x"),
    ("00.2", lambda width: (np.ones((width, width)), np.zeros((width, width))), "leaves every vector unchanged"),
    ("00.2", lambda width: (np.eye(width), np.eye(width)), "adds something to x"),
    ("00.3", 3, "give a function"),
    ("00.3", difference, "return two numbers"),
    ("00.3", lambda a, b: (-difference(a, b), 1), "second minus first"),
    ("00.3", lambda a, b: (0, 1), "your difference is 0"),
    ("00.3", lambda a, b: (difference(a, b), "one"), "give a number; this is of type str"),
    ("00.3", lambda a, b: (difference(a, b), float("nan")), "not a finite number"),
    ("00.3", lambda a, b: (difference(a, b), standard_error(a, b, 0)), "divides by n − 1"),
    ("00.3", lambda a, b: (difference(a, b), (np.var(a, ddof=1) + np.var(b, ddof=1)) ** 0.5), "its number of runs"),
    ("00.3", lambda a, b: (difference(a, b), standard_error(a, b) ** 2), "forgot the square root"),
    (
        "00.3",
        lambda a, b: (difference(a, b), sum(np.std(e, ddof=1) / len(e) ** 0.5 for e in (a, b))),
        "not the sum of the roots",
    ),
    ("00.3", lambda a, b: (difference(a, b), 7), "your standard error is 7"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
