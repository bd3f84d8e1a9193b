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
    if is_close(_open(-bias) ** UNITS, 0.5, 0.02):
        raise Wrong("wrong sign: this bias opens the gate of F and closes the shortcut.")
    if not is_close(left, 0.5, 0.02):
        raise Wrong(f"with b = {bias:g}, {left:.3g} of the signal is left after {UNITS} units.")
    return f"F is then multiplied by {1 - _open(bias):.3f}: opening one closes the other."


@exercise("04.3")
def weights_of_convolutions(answer: Any) -> str:
    number = expect_number(answer)
    mistakes = {
        "two units change the shape and have a projection anyway: count 17 with 32 channels and 17 with 64.": 18
        * (16**2 + 32**2 + 64**2),
        "a 1×1 convolution of c channels has c² weights, not c.": 18 * 16 + 17 * 32 + 17 * 64,
        "those are the weights of 3×3 convolutions.": 9 * (18 * 16**2 + 17 * 32**2 + 17 * 64**2),
    }
    refuse_mistakes(number, mistakes)
    right = 18 * 16**2 + 17 * 32**2 + 17 * 64**2
    if number != right:
        raise Wrong(f"{number:,.0f} is not 18 · 16² + 17 · 32² + 17 · 64².")
    return f"{right:,} more weights and a worse network: capacity is not the reason."
