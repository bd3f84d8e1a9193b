"""Exercises of notebook 05."""

from __future__ import annotations

import math
from typing import Any

from keras_preact.course.exercise import Wrong, exercise, expect_number, is_close, refuse_mistakes
from keras_preact.layers import PLACEMENTS, Placement

UNITS = 54
"""Units of a ResNet-110."""


@exercise("05.1")
def normalized_orders(answer: Any) -> str:
    if isinstance(answer, str) or not isinstance(answer, (list, tuple, set)):
        raise Wrong("give a list of names.")
    names = set(answer)
    why = {
        "original": "its first convolution sees the sum of the previous unit, after a ReLU.",
        "relu_before_addition": "its first convolution sees the bare sum.",
        "relu_only_preactivation": "its first convolution sees the ReLU of a sum; its BN comes before the addition.",
    }
    for name in sorted(names):
        if name not in PLACEMENTS:
            raise Wrong(f"{name} is not a placement; choose from {', '.join(PLACEMENTS)}.")
        if name in why:
            raise Wrong(f"not {name}: {why[name]}")
    if "bn_only_preactivation" in names:
        raise Wrong("bn_only_preactivation is not one of the five orders of Table 2.")
    if "full_preactivation" not in names:
        raise Wrong("full_preactivation is missing: each of its convolutions has BN before it.")
    if "bn_after_addition" not in names:
        raise Wrong("one is missing: the one that normalizes after the addition, before the next unit.")
    return "Two of them. The one with BN after the addition normalizes the shortcut's signal too."


@exercise("05.2")
def a_mean_that_grows(answer: Any) -> str:
    mean = expect_number(answer)
    each = 1 / math.sqrt(2 * math.pi)
    mistakes = {
        "that is the mean of one residual; there are 54.": each,
        "the mean of |z| is twice that of max(z, 0), which is 0 half the time.": 2 * UNITS * each,
        "half of the values are positive, but their mean is not 1.": UNITS / 2,
        "means grow with the number of units, not with its square root.": math.sqrt(UNITS) * each,
    }
    refuse_mistakes(mean, mistakes, tolerance=2e-3)
    if not is_close(mean, UNITS * each, tolerance=2e-3):
        raise Wrong(f"{mean:g} is not 54 times the mean of max(z, 0), the integral of z φ(z) from 0 to ∞.")
    return "54 / √(2π): about 21.5 standard deviations of the ReLU's input, all upwards."


@exercise("05.3")
def an_order_of_ones_own(answer: Any) -> str:
    if not isinstance(answer, Placement):
        raise Wrong(f"give a Placement; this is of type {type(answer).__name__}.")
    if answer.after_addition:
        raise Wrong(f"{', '.join(answer.after_addition)} follows the addition: f is not the identity.")
    for place, convolution in (("first", "first"), ("between", "second")):
        if "norm" not in getattr(answer, place):
            raise Wrong(f"the {convolution} convolution sees a signal that is not normalized.")
    if answer.last and answer.last[-1] == "relu":
        raise Wrong("a branch that ends in a ReLU can only push the signal up.")
    if "relu" not in (*answer.first, *answer.between, *answer.last):
        raise Wrong("it has no ReLU: its branch is linear except for the normalization.")
    order = (answer.first, answer.between, answer.last)
    for name in ("full_preactivation", "bn_only_preactivation"):
        known = PLACEMENTS[name]
        if order == (known.first, known.between, known.last):
            raise Wrong(f"that is {name} under another name.")
    return "Any network of this package accepts it: cifar_resnet(110, placement=mine)."
