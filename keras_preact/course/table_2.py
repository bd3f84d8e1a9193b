"""Exercises of notebook 05."""

from __future__ import annotations

import math
from typing import Any

from keras_preact.course.exercise import Wrong, exercise, expect_number, is_close, refuse_mistakes
from keras_preact.layers import PLACEMENTS, Placement

UNITS = 54
"""Of a ResNet-110."""


@exercise("05.1")
def normalized_orders(answer: Any) -> str:
    if isinstance(answer, str) or not isinstance(answer, (list, tuple, set)):
        raise Wrong("give a list of names.")
    names = set(answer)
    why = {
        "original": "its first convolution sees the sum that the unit before it has made, after a ReLU.",
        "relu_before_addition": "its first convolution sees the bare sum.",
        "relu_only_preactivation": "its first convolution sees the ReLU of a sum; its BN stands before the addition.",
    }
    for name in sorted(names):
        if name not in PLACEMENTS:
            raise Wrong(f"{name} is no placement; they are {', '.join(PLACEMENTS)}.")
        if name in why:
            raise Wrong(f"not {name}: {why[name]}")
    if "full_preactivation" not in names:
        raise Wrong("full_preactivation is missing: BN stands before each of its convolutions.")
    if "bn_after_addition" not in names:
        raise Wrong("one is missing, which normalizes after the addition, for the next unit to see.")
    return "Two of them; and the one with BN after the addition has it on the common path, shortcut and all."


@exercise("05.2")
def a_mean_that_grows(answer: Any) -> str:
    mean = expect_number(answer)
    each = 1 / math.sqrt(2 * math.pi)
    mistakes = {
        "that is the mean of one residual; there are 54.": each,
        "the mean of |z| is twice that of max(z, 0), which is 0 half of the time.": 2 * UNITS * each,
        "half of the values are positive, but their mean is not 1.": UNITS / 2,
        "means add up with the number of units, not with its root.": math.sqrt(UNITS) * each,
    }
    refuse_mistakes(mean, mistakes, tolerance=2e-3)
    if not is_close(mean, UNITS * each, tolerance=2e-3):
        raise Wrong(f"{mean:g} is not 54 times the mean of max(z, 0), the integral of z φ(z) from 0 on.")
    return "54 / √(2π): some 21 standard deviations of what stands before the ReLU, all upwards."


@exercise("05.3")
def an_order_of_ones_own(answer: Any) -> str:
    if not isinstance(answer, Placement):
        raise Wrong(f"give a Placement, not a {type(answer).__name__}.")
    if answer.after_addition:
        raise Wrong(f"after the addition stands {', '.join(answer.after_addition)}: f is not the identity.")
    for place, convolution in (("first", "first"), ("between", "second")):
        if "norm" not in getattr(answer, place):
            raise Wrong(f"the {convolution} convolution sees a signal that is not normalized.")
    if answer.last and answer.last[-1] == "relu":
        raise Wrong("a branch that ends in a ReLU can only push the signal up.")
    if "relu" not in (*answer.first, *answer.between, *answer.last):
        raise Wrong("there is no ReLU in it: its branch is linear but for the normalization.")
    order = (answer.first, answer.between, answer.last)
    for name in ("full_preactivation", "bn_only_preactivation"):
        known = PLACEMENTS[name]
        if order == (known.first, known.between, known.last):
            raise Wrong(f"that is {name}, under another name.")
    return "Any network of this package takes it: cifar_resnet(110, placement=mine)."
