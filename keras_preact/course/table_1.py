"""Exercises of notebook 04."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number, is_close, refuse_mistakes

UNITS = 18
"""Units per stage of a ResNet-110."""


def _open(bias: float) -> float:
    return float(1 / (1 + np.exp(bias)))  # 1 − σ(b)


@exercise("04.1")
def what_gates_leave(answer: Any) -> str:
    function = expect_function(answer)
    for bias, units in ((-6.0, 18), (-1.0, 10), (1.0, 3)):
        factor = expect_number(function(bias, units))
        mistakes = {
            "that is the factor of F; the shortcut has 1 − σ(b).": (1 - _open(bias)) ** units,
            "units in a row multiply: take the power n, not the product with n.": units * _open(bias),
            "that is one unit; there are n of them.": _open(bias),
        }
        refuse_mistakes(factor, mistakes)
        if not is_close(factor, _open(bias) ** units):
            raise Wrong(f"for b = {bias:g} and {units} units it returns {factor:.4g}, not {_open(bias) ** units:.4g}.")
    return "Eq. (7) with λ = 1 − σ(b), as long as the gate's weights are zero."


@exercise("04.2")
def a_bias_that_halves(answer: Any) -> str:
    bias = expect_number(answer)
    left = _open(bias) ** UNITS
    if is_close(_open(-bias) ** UNITS, 0.5, 0.004):
        raise Wrong("wrong sign: this bias opens the gate of F and closes the shortcut.")
    if not is_close(left, 0.5, 0.004):
        raise Wrong(f"with b = {bias:g}, {left:.3g} of the signal is left after {UNITS} units.")
    return f"F is then multiplied by {1 - _open(bias):.3f}: opening one closes the other."


@exercise("04.3")
def how_dropout_grows(answer: Any) -> str:
    function = expect_function(answer)
    for rate, units in ((0.5, 8), (0.1, 18), (0.8, 3)):
        factor = expect_number(function(rate, units))
        right = (1 - rate) ** (-units / 2)
        mistakes = {
            "that is the growth of the squared norm; take the root.": right**2,
            "that is one unit; there are n of them.": (1 - rate) ** -0.5,
            "units in a row multiply: take the power n, not the product with n.": units * (1 - rate) ** -0.5,
            "that is the mean of the mask; a norm grows with the mean of its square.": 1.0,
            "it does not shrink: the values that remain are divided by 1 − rate.": 1 / right,
            "the values that remain are divided by 1 − rate, the share that remains, not by the rate.": rate
            ** (-units / 2),
        }
        if not is_close(factor, right):  # first: with a rate of 0.5 a mistake may give the right number
            refuse_mistakes(factor, mistakes)
            raise Wrong(f"for a rate of {rate:g} and {units} units it returns {factor:.4g}, not {right:.4g}.")
    return "(1 − rate)^(−n/2): the square of a mask value is 1/(1 − rate)² with probability 1 − rate, else 0."
