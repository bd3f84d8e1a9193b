"""Exercises of notebook 02."""

import numpy as np
from answers import check_answers

from keras_preact.course import check


def two_terms(g, jacobians):
    whole = g
    for jacobian in reversed(jacobians):
        whole = whole + whole @ jacobian
    return g, whole - g


RIGHT = {
    "02.1": lambda signals, first, last: signals[last] - signals[first],
    "02.2": [[0, 0], [-1, -1]],
    "02.3": two_terms,
}

WRONG = [
    ("02.1", lambda x, first, last: x[first] - x[last], "the sign is wrong"),
    ("02.1", lambda x, first, last: x[last], "still contains x_l"),
    ("02.1", lambda x, first, last: sum(x[first:last]), "added up signals"),
    ("02.1", lambda x, first, last: x[last + 1] - x[first], "one branch too many"),
    ("02.1", lambda x, first, last: x[last - 1] - x[first], "left out the last branch"),
    ("02.1", lambda x, first, last: x[last] - x[last - 1], "the last branch alone"),
    ("02.1", lambda x, first, last: 0 * x[0], "Solve Eq. (4)"),
    ("02.1", lambda x, first, last: None, "returns nothing"),
    ("02.2", -1, "should be (2, 2)"),
    ("02.2", -np.eye(2), "blocks every gradient"),
    ("02.2", [[0, -1], [0, -1]], "a row vector"),
    ("02.2", [[1, 1], [-1, -1]], "the result is g"),
    ("02.2", np.eye(2), "becomes [2.0, 2.0], not 0"),
    ("02.3", lambda g, jacobians: g, "return two values"),
    ("02.3", lambda g, jacobians: two_terms(g, jacobians)[::-1], "in the wrong order"),
    ("02.3", lambda g, jacobians: (0 * g, g), "whatever F is"),
    ("02.3", lambda g, jacobians: (g, g @ sum(jacobians)), "unit by unit"),
    ("02.3", lambda g, jacobians: (g, sum(two_terms(g, jacobians))), "subtract the direct term"),
    ("02.3", lambda g, jacobians: two_terms(g, jacobians[::-1]), "begin with the last unit"),
    ("02.3", lambda g, jacobians: (g, 0 * g), "the term through the weights is"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)


def test_a_gradient_that_vanishes_for_one_sample_only(capsys):
    check("02.2", np.array([[-1.0, 0.0], [0.0, -1.0 + 1e-12]]))
    assert "second sample vanishes too" in capsys.readouterr().out
