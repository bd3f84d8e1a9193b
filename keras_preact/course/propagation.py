"""Exercises of notebook 02."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_several,
    is_close,
    refuse_mistakes,
)


@exercise("02.1")
def branches_between(answer: Any) -> str:
    function = expect_function(answer)
    rng = np.random.default_rng(2)
    residuals = [rng.normal(size=(3, 4)) for _ in range(6)]
    signals = [rng.normal(size=(3, 4))]
    for residual in residuals:
        signals.append(signals[-1] + residual)
    first, last = 1, 5
    total = expect_array(function(list(signals), first, last), (3, 4))
    mistakes = {
        "the sign is wrong: the branches lead from x_l to x_L.": signals[first] - signals[last],
        "that is x_L; it still contains x_l.": signals[last],
        "you added up signals; each of them already contains all earlier branches.": sum(signals[first:last]),
        "you included one branch too many: the sum ends with L − 1.": signals[last + 1] - signals[first],
        "you left out the last branch: the sum ends with L − 1, and that branch leads to x_L.": signals[last - 1]
        - signals[first],
        "that is the last branch alone.": residuals[last - 1],
    }
    refuse_mistakes(total, mistakes)
    if not is_close(total, signals[last] - signals[first]):
        raise Wrong("it is not the sum of the branches from l to L − 1. Solve Eq. (4) for the sum.")
    return "Two signals suffice. With h and f the identity, what happened in between can only have been added."


@exercise("02.2")
def a_gradient_that_vanishes(answer: Any) -> str:
    w = expect_array(answer, (2, 2))
    unit, lost, kept = np.eye(2) + w, np.array([1.0, 1.0]), np.array([1.0, 0.0])
    if not unit.any():
        raise Wrong("I + W is 0: this unit blocks every gradient; only that of the first sample should vanish.")
    if not is_close(lost @ unit, np.zeros(2)):
        if is_close(unit @ lost, np.zeros(2)):
            raise Wrong("(I + W) times g is 0, but the gradient is a row vector, multiplied from the right: g (I + W).")
        if is_close(lost @ w, np.zeros(2)):
            raise Wrong("you have g W = 0, so the second term vanishes and the direct term is left: the result is g.")
        raise Wrong(f"the gradient of the first sample becomes {(lost @ unit).round(4).tolist()}, not 0.")
    if is_close(kept @ unit, np.zeros(2)):
        raise Wrong("the gradient of the second sample vanishes too.")
    left = (kept @ unit).round(4).tolist()
    return (
        f"The second term cancels the direct term of one sample; the other's gradient becomes {left}. "
        "To block a whole mini-batch, W would have to do this to every sample's gradient."
    )


@exercise("02.3")
def the_direct_term(answer: Any) -> str:
    rng = np.random.default_rng(3)
    gradient, jacobians = rng.normal(size=4), [0.3 * rng.normal(size=(4, 4)) for _ in range(3)]
    returned = expect_several(
        expect_function(answer)(gradient, jacobians),
        2,
        "return two values: the direct term and the term through the weights.",
    )
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
