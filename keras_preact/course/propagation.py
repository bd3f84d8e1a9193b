"""Exercises of notebook 02."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_number,
    is_close,
    refuse_mistakes,
)


@exercise("02.1")
def the_sum(answer: Any) -> str:
    rng = np.random.default_rng(2)
    x, residuals = rng.normal(size=(3, 4)), [rng.normal(size=(3, 4)) for _ in range(5)]
    top = expect_array(expect_function(answer)(x, residuals), x.shape)
    total = sum(residuals)
    mistakes = {
        "you return the sum of the residuals; x_l itself is missing.": total,
        "there is a ReLU in it; if f is the identity, there is none.": np.maximum(x + total, 0),
        "the residuals are multiplied; they add up.": x + np.prod(residuals, axis=0),
        "you add only the last residual; add all of them, from l to L − 1.": x + residuals[-1],
        "you left out the last residual: the list ends with L − 1, and so does the sum.": x + sum(residuals[:-1]),
    }
    refuse_mistakes(top, mistakes)
    if not is_close(top, x + total):
        raise Wrong("it is not x_l + Σ F(x_i).")
    return "Eq. (4): at any depth, a sum."


@exercise("02.2")
def a_gradient_that_vanishes(answer: Any) -> str:
    w = expect_number(answer)
    if w == 0:
        raise Wrong("with w = 0, F = 0 and the gradient is 1: it passes unchanged.")
    if w == 1:
        raise Wrong("with w = 1 each unit doubles the gradient: (1 + w)² = 4.")
    if w != -1:
        raise Wrong(f"with w = {w:g} the gradient is (1 + w)² = {(1 + w) ** 2:g}, not 0.")
    return "F(x) = −x cancels the shortcut. Eq. (5) does not forbid this; it is only unlikely."


@exercise("02.3")
def the_direct_term(answer: Any) -> str:
    rng = np.random.default_rng(3)
    gradient, jacobians = rng.normal(size=4), [0.3 * rng.normal(size=(4, 4)) for _ in range(3)]
    returned = expect_function(answer)(gradient, jacobians)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise Wrong("return two values: the direct term and the term through the weights.")
    direct, through = (expect_array(term, (4,)) for term in returned)
    whole = gradient
    for jacobian in reversed(jacobians):
        whole = whole @ (np.eye(4) + jacobian)
    if is_close(through, gradient) and is_close(direct, whole - gradient):
        raise Wrong("they are the right terms in the wrong order.")
    if not is_close(direct, gradient):
        raise Wrong("the direct term of Eq. (5) is ∂E/∂x_L itself, whatever F is.")
    if is_close(through, gradient @ sum(jacobians)):
        raise Wrong(
            "you left out that x_{i+1} depends on x_i: multiply by (I + J) unit by unit, from the last to the first."
        )
    if is_close(through, whole):
        raise Wrong("that is the whole gradient; subtract the direct term.")
    forward = gradient
    for jacobian in jacobians:
        forward = forward @ (np.eye(4) + jacobian)
    if is_close(through, forward - gradient):
        raise Wrong("the gradient comes from the loss: begin with the last unit's Jacobian.")
    if not is_close(through, whole - gradient):
        raise Wrong("the term through the weights is g (I + J_{L−1}) … (I + J_l) − g.")
    return "Two terms: one that no branch has changed, and one that has passed through at least one branch."
