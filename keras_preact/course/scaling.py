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
        returned = function(list(scales))
        expected = float(np.prod(scales))
        if not np.isclose(expect_number(returned), expected):
            if np.isclose(returned, np.sum(scales)):
                raise Wrong("you added the scales; units in a row multiply them.")
            raise Wrong(f"for {scales} your function returns {float(returned):g}, not {expected:g}.")
    return "Eq. (7) and (8): Π λ, forward and backward alike."


@exercise("03.2")
def where_half_precision_ends(answer: Any) -> str:
    number = expect_number(answer)
    smallest = float(np.finfo(np.float16).smallest_normal)
    first = int(np.ceil(np.log(smallest) / np.log(0.9)))
    if number != int(number):
        raise Wrong(f"{number:g} is not a whole number of units.")
    if number < first:
        raise Wrong(f"0.9 to the power of {number:g} is {0.9**number:.3g}, still above {smallest:.3g}.")
    if number > first:
        raise Wrong(f"it happens earlier: 0.9 to the power of {first} is already below {smallest:.3g}.")
    return (
        f"{first} units: of the networks here, only a ResNet-1001 has that many in one stage (111). Over that distance "
        "its direct term falls below the range in which float16 has full precision."
    )


@exercise("03.3")
def a_scale_that_halves(answer: Any) -> str:
    scale = expect_number(answer)
    if scale <= 0:
        raise Wrong("a negative scale flips the sign at every unit, and 0 cuts the shortcut; give a positive one.")
    reached = scale**UNITS
    if not np.isclose(reached, 0.5, rtol=0.01):
        raise Wrong(f"{scale:g} to the power of {UNITS} is {reached:.3g}, not 0.5.")
    return f"Losing {1 - scale:.2%} at each unit halves the signal over {UNITS} units."
