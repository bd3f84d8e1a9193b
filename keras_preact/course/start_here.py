"""Exercises of notebook 00."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import Wrong, exercise, expect_array, expect_function, expect_number, is_close
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
def what_is_left_of_the_original(answer: Any) -> str:
    x = np.array([[-2.0, -0.5, 0.0, 1.5], [3.0, -1.0, 0.25, -4.0]])
    y = expect_array(expect_function(answer)(x), x.shape)
    if is_close(y, x):
        raise Wrong("your function returns x itself: that is the pre-activation unit. What follows the addition?")
    if is_close(y, 0 * x):
        raise Wrong("your function returns zeros: that is F. The shortcut still carries x.")
    if not is_close(y, np.maximum(x, 0)):
        raise Wrong(f"for x = −2 your function returns {y[0, 0]:g}, for x = 1.5 {y[0, 3]:g}.")
    return "With F = 0 the original unit is a ReLU: negative values do not pass."


@exercise("00.3")
def units_of_110(answer: Any) -> str:
    number = expect_number(answer)
    if number == 18:
        raise Wrong("18 is n, the units of one stage; there are three stages.")
    if number in (108, 110):
        raise Wrong("you counted convolutions; a unit has two.")
    if number != 54:
        raise Wrong(f"{number:g} is wrong: 110 = 6n + 2 with n units per stage and three stages.")
    return "54 units: the signal of a ResNet-110 passes 54 additions."
