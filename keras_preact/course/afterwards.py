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
        alpha = expect_number(function(units))
        if units > 1 and is_close(alpha, 1 / units):
            raise Wrong(
                f"with 1/L = {alpha:g} the variance grows by L · 1/L² = {units * alpha**2:g}: a scale enters squared."
            )
        if not is_close(1 + units * alpha**2, 2):
            raise Wrong(f"with {units} units and α = {alpha:g} the variance at the end is {1 + units * alpha**2:g}.")
    return "1/√L: the residuals' variances add up to 1 at every depth."


@exercise("11.2")
def share_of_the_branch(answer: Any) -> str:
    try:
        shares = [expect_number(value) for value in answer]
    except TypeError:
        raise Wrong("give two numbers, for 8 and for 128 blocks.") from None
    if len(shares) != 2:
        raise Wrong(f"give two numbers, not {len(shares)}.")
    alphas, betas = [(2 * n) ** 0.25 for n in (8, 128)], [(8 * n) ** -0.25 for n in (8, 128)]
    expected = [b**2 / a for a, b in zip(alphas, betas, strict=True)]
    if is_close(shares, betas, 1e-3) or is_close(shares, [b**2 for b in betas], 1e-3):
        raise Wrong("that is a power of β; divide it by α.")
    if is_close(shares, [b / a for a, b in zip(alphas, betas, strict=True)], 1e-3):
        raise Wrong("that is β/α; two weights in a row make β².")
    if is_close(shares, [1 / share for share in expected], 1e-3):
        raise Wrong("that is α/β², the inverse.")
    if is_close(shares, expected[::-1], 1e-3):
        raise Wrong("the right numbers in the wrong order: 8 blocks come first.")
    if not is_close(shares, expected, 1e-3):
        raise Wrong(f"for 8 blocks α is {alphas[0]:.3g} and β is {betas[0]:.3g}.")
    return "Sixteen times as many blocks, an eighth of the share."


@exercise("11.3")
def a_shortcut_of_your_own(answer: Any) -> str:
    if not inspect.isclass(answer) or not issubclass(answer, Shortcut):
        raise Wrong("give a subclass of keras_preact.layers.Shortcut.")
    if answer.call is Shortcut.call:
        raise Wrong("your class has no call(self, x, residual).")
    x, residual = np.array([[1.0, -2.0]], "float32"), np.array([[10.0, 20.0]], "float32")
    y = np.array(answer()(x, residual))
    if is_close(y, 0.1 * (x + residual)):
        raise Wrong("x is scaled too; scale only F.")
    if not is_close(y, x + 0.1 * residual):
        raise Wrong(f"for x = 1, F = 10 and the default c it returns {y[0, 0]:g}; it should return 2.")
    names = [
        name for name in inspect.signature(answer.__init__).parameters if name not in ("self", "data_format", "kwargs")
    ]
    if not names:
        raise Wrong("the constructor has no argument c.")
    options: Any = {names[0]: 0.5}
    loaded = answer.from_config(answer(**options).get_config())
    if not is_close(np.array(loaded(x, residual)), x + 0.5 * residual):
        raise Wrong(
            f"created with {names[0]} = 0.5, it changes when saved and loaded: get_config must include {names[0]}."
        )
    if not answer.keeps_identity:
        raise Wrong("it keeps the identity but does not declare it: set keeps_identity = True.")
    unit = ResidualUnit(4, shortcut=answer())
    unit.build((None, 4, 4, 4))
    if identity_error(unit) != 0:
        raise Wrong("in a unit without F it does not return x.")
    return "It works in every unit, stack and network of the package."
