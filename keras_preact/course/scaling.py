"""Exercises of notebook 03."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import Wrong, exercise, expect_array, expect_function, expect_number, refuse_mistakes

UNITS = 18
"""Units in a stage of a ResNet-110."""


@exercise("03.1")
def weights_of_the_terms(answer: Any) -> str:
    function = expect_function(answer)
    for scales in ([0.5, 0.8, 2.0], [0.9] * 10, [1.1, 0.7]):
        n = len(scales)
        expected = np.array([np.prod(scales[k:]) for k in range(n + 1)])
        returned = expect_array(function(list(scales)), (n + 1,))
        products = np.cumprod([1.0, *scales])
        mistakes = {
            "you added scales; units in a row multiply them.": np.array([sum(scales[k:]) for k in range(n + 1)]),
            "a branch's own shortcut does not scale it: F_i is added after λ_i. Only later units do.": np.array(
                [np.prod(scales), *(np.prod(scales[k:]) for k in range(n))]
            ),
            "these are products of the *earlier* scales; a unit scales what comes before it.": products,
            "the order is reversed: x_l comes first, then F of the first unit.": expected[::-1],
        }
        refuse_mistakes(returned, mistakes)
        if not np.allclose(returned, expected):
            raise Wrong(f"for {scales} your function returns {returned.round(4).tolist()}.")
    return "Eq. (7): the product for x_l, and for each F the product of the scales of all later units."


@exercise("03.2")
def variance_of_the_sum(answer: Any) -> str:
    function = expect_function(answer)
    for start, scale, units in ((1.0, 0.5, 3), (4.0, 0.9, 10), (2.0, 1.0, 5)):
        right, unsquared, scaled_sum = start, start, start
        for _ in range(units):
            right = scale**2 * right + 1
            unsquared = scale * unsquared + 1
            scaled_sum = scale**2 * (scaled_sum + 1)
        returned = expect_number(function(start, scale, units))
        if scale != 1:
            mistakes = {
                "λ multiplies the signal, so it multiplies the variance by λ².": unsquared,
                "λ scales the shortcut alone, not the sum.": scaled_sum,
                "you left out the variance that x_l has at the start.": right - scale ** (2 * units) * start,
                "that is the limit of an infinite row; there are only n units.": 1 / (1 - scale**2),
                "you left out the residuals.": scale ** (2 * units) * start,
            }
            refuse_mistakes(returned, mistakes)
        if not np.isclose(returned, right, rtol=1e-5):
            raise Wrong(
                f"for a start of {start:g}, λ = {scale:g} and {units} units it is {right:.4g}, not {returned:.4g}."
            )
    return "With λ < 1 the variance approaches 1 / (1 − λ²); with λ = 1 it grows by 1 per unit, without a limit."


def effective_number(scale: float, power: int) -> float:
    """Return the effective number of residuals in a stage, with the weights λ^(power · k)."""
    weights = scale ** (power * np.arange(UNITS))
    return float(weights.sum() ** 2 / (weights**2).sum())


@exercise("03.3")
def half_the_residuals(answer: Any) -> str:
    scale = expect_number(answer)
    if not 0 < scale < 1:
        raise Wrong("the answer is between 0 and 1: with the identity, all residuals count equally.")
    reached = effective_number(scale, 2)
    if abs(reached - UNITS / 2) > 0.05:
        if abs(effective_number(scale, 1) - UNITS / 2) < 0.05:
            raise Wrong(f"that is the answer for amplitudes; with the weights λ² per unit it is {reached:.2f}.")
        raise Wrong(f"with λ = {scale:g}, the effective number is {reached:.2f}, not {UNITS / 2:g}.")
    return f"A shortcut that loses {1 - scale:.0%} per unit makes half of the {UNITS} units of a stage count."
