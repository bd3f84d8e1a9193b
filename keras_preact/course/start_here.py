"""Exercises of notebook 00."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_number,
    expect_several,
    is_close,
    refuse_mistakes,
)
from keras_preact.layers import PLACEMENTS


@exercise("00.1")
def which_are_identities(answer: Any) -> str:
    if isinstance(answer, str):
        raise Wrong("give a list of names, even for one name.")
    names = set(answer)
    if unknown := sorted(names - set(PLACEMENTS)):
        raise Wrong(f"{unknown[0]} is not a placement; choose from {', '.join(PLACEMENTS)}.")
    identities = {name for name, placement in PLACEMENTS.items() if not placement.after_addition}
    if extra := sorted(names - identities):
        raise Wrong(f"{extra[0]} has {' and '.join(PLACEMENTS[extra[0]].after_addition)} after the addition.")
    if missing := sorted(identities - names):
        raise Wrong(f"you left out {missing[0]}: nothing follows its addition.")
    return "With F = 0, a unit is the identity if nothing is on the shortcut and nothing follows the addition."


@exercise("00.2")
def weights_that_do_nothing(answer: Any) -> str:
    width, rng = 5, np.random.default_rng(0)
    returned = expect_several(
        expect_function(answer)(width), 2, "return two arrays: W of the plain layer and W2 of the residual layer."
    )
    plain, residual = (expect_array(weights, (width, width)) for weights in returned)
    x, first = np.maximum(rng.normal(size=(20, width)), 0), rng.normal(size=(width, width))
    after_plain = np.maximum(x @ plain, 0)
    after_residual = x + np.maximum(x @ first, 0) @ residual
    if not is_close(after_plain, x):
        if not plain.any():
            raise Wrong("with W = 0 the plain layer returns zeros: there is no shortcut that still carries x.")
        raise Wrong("the plain layer does not return x. Which matrix leaves every vector unchanged?")
    if not is_close(after_residual, x):
        raise Wrong("the residual layer adds something to x: the shortcut already carries x, so what should be added?")
    return (
        "A plain layer has to learn the identity matrix; a residual layer needs only zeros, towards which weight decay "
        "pulls all weights anyway."
    )


@exercise("00.3")
def difference_with_its_error(answer: Any) -> str:
    first, second = [42.0, 47.0, 40.0, 45.0], [35.0, 37.0, 36.0]
    returned = expect_several(
        expect_function(answer)(list(first), list(second)),
        2,
        "return two numbers: the difference of the means and its standard error.",
    )
    found, error = (expect_number(number) for number in returned)
    difference = np.mean(first) - np.mean(second)
    if is_close(found, -difference):
        raise Wrong("your difference is second minus first; it should be first minus second.")
    if not is_close(found, difference):
        raise Wrong(f"for the means {np.mean(first):g} and {np.mean(second):g} your difference is {found:g}.")
    variances = [np.var(errors, ddof=1) for errors in (first, second)]
    shares = [variance / len(errors) for variance, errors in zip(variances, (first, second), strict=True)]
    biased = [np.var(errors) / len(errors) for errors in (first, second)]
    refuse_mistakes(
        error,
        {
            "your variances divide by n; an estimate from n runs divides by n − 1 (ddof=1).": np.sqrt(sum(biased)),
            "each variance must be divided by its number of runs: a mean of more runs is more certain.": np.sqrt(
                sum(variances)
            ),
            "you forgot the square root.": sum(shares),
            "add the squares s²/n and take the root of the sum, not the sum of the roots.": sum(np.sqrt(shares)),
        },
    )
    if not is_close(error, np.sqrt(sum(shares))):
        raise Wrong(f"your standard error is {error:g}; it should be {np.sqrt(sum(shares)):.4g} for these seven runs.")
    return "A difference of more than about three standard errors is hard to explain by the choice of seeds."
