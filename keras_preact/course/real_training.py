"""Exercises of notebook 07."""

from __future__ import annotations

import math
from typing import Any

from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number, is_close

NEEDED = {
    "weights": "without them everything is learned again.",
    "moving averages": "batch norm has them besides its weights, and no optimizer knows of them.",
    "momentum": "without it the first steps after a resume are smaller.",
    "step": "without it the schedule and the order of the data begin anew.",
    "random state": "without it augmentation and dropout draw what they have drawn before.",
}
"""What a checkpoint must hold, and what happens without it."""

FOLLOWS = {
    "learning rate": "it is the schedule at the step.",
    "test error": "it can be measured again, and changes nothing.",
}
"""What it need not hold, and why."""


@exercise("07.1")
def smallest_loss_scale(answer: Any) -> str:
    scale = expect_number(answer)
    if scale <= 0 or not math.log2(scale).is_integer():
        raise Wrong(f"{scale:g} is no power of two: it would round every gradient.")
    if 3e-9 * scale < 2.0**-14:
        raise Wrong(f"3e-9 times {scale:g} is {3e-9 * scale:.1e}, below 2^-14 = {2.0**-14:.1e}.")
    if 3e-9 * scale / 2 >= 2.0**-14:
        raise Wrong(f"half of {scale:g} is enough.")
    return "2^15, which is also where Keras begins."


@exercise("07.2")
def learning_rate_of_the_paper(answer: Any) -> str:
    function = expect_function(answer)
    expected = {0: 0.01, 399: 0.01, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001, 63_999: 0.001}
    for step, rate in expected.items():
        given = function(step)
        if not is_close(expect_number(given), rate, 1e-6):
            if step == 0 and is_close(given, 0.1):
                raise Wrong(f"at step {step} it is still the warm-up: 0.01.")
            if step in (399, 31_999, 47_999):
                raise Wrong(f"at step {step} it gives {given:g}: it changes a step too early.")
            if step in (400, 32_000, 48_000):
                raise Wrong(f"at step {step} it gives {given:g}, not {rate:g}: steps are counted from 0.")
            raise Wrong(f"at step {step} it gives {given:g}, not {rate:g}.")
    return "The recipe `paper` has the same numbers, as data."


@exercise("07.3")
def what_a_checkpoint_holds(answer: Any) -> str:
    if isinstance(answer, str):
        raise Wrong("give a list of names.")
    given = {str(name) for name in answer}
    for name in sorted(given):
        if name in FOLLOWS:
            raise Wrong(f"the {name} need not be kept: {FOLLOWS[name]}")
        if name not in NEEDED:
            raise Wrong(f"{name!r} is not in the list; its names are {', '.join([*NEEDED, *FOLLOWS])}.")
    for name, why in NEEDED.items():
        if name not in given:
            raise Wrong(f"something is missing: the {name}; {why}")
    return "With these five a run that was killed ends as if it had not been."
