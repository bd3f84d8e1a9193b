"""Exercises of notebook 11."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from keras_preact.analysis import identity_error
from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number, is_close
from keras_preact.layers import ResidualUnit, Shortcut


@exercise("11.1")
def scale_of_the_residuals(answer: Any) -> str:
    function = expect_function(answer)
    for units in (1, 4, 54):
        given = function(units)
        alpha = expect_number(given)
        if units > 1 and is_close(alpha, 1 / units):
            raise Wrong(
                f"with 1/L = {alpha:g} the variance grows by L · 1/L² = {units * alpha**2:g}: scales count twice."
            )
        if not is_close(1 + units * alpha**2, 2):
            raise Wrong(f"with {units} units and α = {alpha:g} the variance at the end is {1 + units * alpha**2:g}.")
    return "1/√L: the residuals' variances add up to 1 at every depth."


@exercise("11.2")
def share_of_the_branch(answer: Any) -> str:
    try:
        given = [expect_number(value) for value in answer]
    except TypeError:
        raise Wrong("give two numbers, for 8 and for 128 blocks.") from None
    if len(given) != 2:
        raise Wrong(f"give two numbers, not {len(given)}.")
    alphas, betas = [(2 * n) ** 0.25 for n in (8, 128)], [(8 * n) ** -0.25 for n in (8, 128)]
    expected = [b**2 / a for a, b in zip(alphas, betas, strict=True)]
    if is_close(given, betas, 1e-3) or is_close(given, [b**2 for b in betas], 1e-3):
        raise Wrong("that is a power of β; it is still to be divided by α.")
    if is_close(given, [b / a for a, b in zip(alphas, betas, strict=True)], 1e-3):
        raise Wrong("that is β/α; two weights in a row make it β².")
    if is_close(given, [1 / share for share in expected], 1e-3):
        raise Wrong("that is α/β²; the question is the other way round.")
    if is_close(given, expected[::-1], 1e-3):
        raise Wrong("the right two, the other way round: first for 8 blocks.")
    if not is_close(given, expected, 1e-3):
        raise Wrong(f"for 8 blocks α is {alphas[0]:.3g} and β is {betas[0]:.3g}.")
    return "Sixteen times as many blocks, an eighth of the share."


@exercise("11.3")
def a_shortcut_of_your_own(answer: Any) -> str:
    if not inspect.isclass(answer) or not issubclass(answer, Shortcut):
        raise Wrong("give a class that is derived from keras_preact.layers.Shortcut.")
    if answer.call is Shortcut.call:
        raise Wrong("your class has no call(self, x, residual).")
    x, residual = np.array([[1.0, -2.0]], "float32"), np.array([[10.0, 20.0]], "float32")
    y = np.array(answer()(x, residual))
    if is_close(y, 0.1 * (x + residual)):
        raise Wrong("x is scaled as well; only F shall be.")
    if not is_close(y, x + 0.1 * residual):
        raise Wrong(f"of x = 1 and F = 10 it makes {y[0, 0]:g}, with the default c; it should be 2.")
    names = [
        name for name in inspect.signature(answer.__init__).parameters if name not in ("self", "data_format", "kwargs")
    ]
    if not names:
        raise Wrong("the constructor takes no c.")
    made: Any = {names[0]: 0.5}
    again = answer.from_config(answer(**made).get_config())
    if not is_close(np.array(again(x, residual)), x + 0.5 * residual):
        raise Wrong(
            f"made with {names[0]} = 0.5, saved and loaded, it is not the same: {names[0]} must be in get_config."
        )
    if not answer.keeps_identity:
        raise Wrong("it keeps the identity, and does not say so: keeps_identity = True.")
    unit = ResidualUnit(4, shortcut=answer())
    unit.build((None, 4, 4, 4))
    if identity_error(unit) != 0:
        raise Wrong("in a unit with F left out it does not return x.")
    return "It works in every unit, stack and network of the package."
