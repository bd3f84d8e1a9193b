"""Exercises of notebook 00."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import Wrong, exercise, expect_array, expect_function, expect_number, is_close
from keras_preact.layers import PLACEMENTS


@exercise("00.1")
def which_are_identities(answer: Any) -> str:
    if isinstance(answer, str):
        raise Wrong("give a list of names, even of one.")
    given = set(answer)
    if unknown := sorted(given - set(PLACEMENTS)):
        raise Wrong(f"{unknown[0]} is no placement; they are {', '.join(PLACEMENTS)}.")
    identities = {name for name, placement in PLACEMENTS.items() if not placement.after_addition}
    if extra := sorted(given - identities):
        raise Wrong(f"{extra[0]} has {' and '.join(PLACEMENTS[extra[0]].after_addition)} after the addition.")
    if missing := sorted(identities - given):
        raise Wrong(f"you left out {missing[0]}: nothing stands after its addition.")
    return "A unit is an identity where nothing stands on the shortcut and nothing after the addition."


@exercise("00.2")
def what_is_left_of_the_original(answer: Any) -> str:
    x = np.array([[-2.0, -0.5, 0.0, 1.5], [3.0, -1.0, 0.25, -4.0]])
    y = expect_array(expect_function(answer)(x), x.shape)
    if is_close(y, x):
        raise Wrong("your function returns x itself: that is the pre-activation unit. What stands after the addition?")
    if is_close(y, 0 * x):
        raise Wrong("your function returns zeros: that is F. The copy on the shortcut is still there.")
    if not is_close(y, np.maximum(x, 0)):
        raise Wrong(f"of x = −2 your function makes {y[0, 0]:g}, of x = 1.5 {y[0, 3]:g}.")
    return "With F = 0 the original unit is a ReLU: negative values do not pass."


@exercise("00.3")
def units_of_110(answer: Any) -> str:
    number = expect_number(answer)
    if number == 18:
        raise Wrong("18 is n, the units of one stage; there are three stages.")
    if number in (108, 110):
        raise Wrong("you have counted convolutions; a unit has two.")
    if number != 54:
        raise Wrong(f"{number:g} is not it: 110 = 6n + 2, n units a stage, three stages.")
    return "54 units: the signal of a ResNet-110 passes 54 additions."
