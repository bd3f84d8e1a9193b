"""Exercises of notebook 03."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number

UNITS = 54
"""Units of a ResNet-110."""


@exercise("03.1")
def product_of_scales(answer: Any) -> str:
    function = expect_function(answer)
    for scales in ([0.5, 0.5, 2.0], [0.9] * 10, [1.1]):
        given = function(list(scales))
        expected = float(np.prod(scales))
        if not np.isclose(expect_number(given), expected):
            if np.isclose(given, np.sum(scales)):
                raise Wrong("you have added the scales; passing one unit after the other multiplies them.")
            raise Wrong(f"for {scales} your function gives {float(given):g}, not {expected:g}.")
    return "Eq. (7) and (8): Π λ, forward and backward alike."


@exercise("03.2")
def where_half_precision_ends(answer: Any) -> str:
    number = expect_number(answer)
    smallest = float(np.finfo(np.float16).smallest_normal)
    first = int(np.ceil(np.log(smallest) / np.log(0.9)))
    if number != int(number):
        raise Wrong(f"{number:g} is no number of units.")
    if number < first:
        raise Wrong(f"0.9 to the power of {number:g} is {0.9**number:.3g}, still above {smallest:.3g}.")
    if number > first:
        raise Wrong(f"it happens before: 0.9 to the power of {first} is already below {smallest:.3g}.")
    return (
        f"{first} units: of the networks here only a ResNet-1001 has so many in one stage, 111. From there on its "
        "direct term is below what float16 holds in full precision."
    )


@exercise("03.3")
def a_scale_that_halves(answer: Any) -> str:
    scale = expect_number(answer)
    if scale <= 0:
        raise Wrong("a negative scale turns the sign at every unit, and 0 cuts the shortcut; give a positive one.")
    reached = scale**UNITS
    if not np.isclose(reached, 0.5, rtol=0.01):
        raise Wrong(f"{scale:g} to the power of {UNITS} is {reached:.3g}, not 0.5.")
    return f"{1 - scale:.2%} off at each unit halve the signal over {UNITS} units in a row."
