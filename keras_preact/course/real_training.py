"""Exercises of notebook 07."""

from __future__ import annotations

import math
from typing import Any

from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number, is_close, refuse_mistakes

NEEDED = {
    "trainable weights": "without them, training starts over.",
    "moving averages": "batch norm stores them besides its trainable weights, and nothing else contains them.",
    "momentum": "without it, the first steps after a resume are smaller.",
    "step": "without it, the schedule and the order of the data start over.",
    "dropout state": "without it, dropout repeats earlier draws.",
    "loss scale": "without it, the scale starts at its initial value, and other steps are skipped.",
}
"""The contents of a checkpoint, and the effect of leaving each out."""

NOT_NEEDED = {
    "learning rate": "the schedule and the step determine it.",
    "test error": "it can be measured again and does not affect training.",
}
"""Values that a checkpoint need not contain, and why."""


@exercise("07.1")
def chance_of_the_wrong_order(answer: Any) -> str:
    function = expect_function(answer)
    for gap, deviation in ((0.24, 0.16), (6.8, 2.6), (1.0, 1.0), (0.0, 1.0)):
        chance = expect_number(function(gap, deviation))
        wrong = _below_zero(gap, deviation * math.sqrt(2))
        if gap and not is_close(chance, wrong, 0.02):
            mistakes = {
                "that is the chance of the right order; return that of the wrong one.": 1 - wrong,
                "two runs vary, not one: the difference has the variance of both.": _below_zero(gap, deviation),
                "variances add, standard deviations do not.": _below_zero(gap, 2 * deviation),
                "only one of the two directions is wrong.": 2 * wrong,
            }
            refuse_mistakes(chance, mistakes, 0.005)
        if not is_close(chance, wrong, 0.02):
            raise Wrong(f"for a gap of {gap:g} and a deviation of {deviation:g} it returns {chance:.3g}.")
    return "With the paper's gap at 110 layers and a deviation of 0.16, one pair of runs in seven has the wrong order."


def _below_zero(mean: float, deviation: float) -> float:
    """Return the probability that a normally distributed number is below zero."""
    return 0.5 * math.erfc(mean / deviation / math.sqrt(2))


@exercise("07.2")
def learning_rate_of_the_paper(answer: Any) -> str:
    function = expect_function(answer)
    expected = {0: 0.01, 399: 0.01, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001, 63_999: 0.001}
    for step, rate in expected.items():
        returned = function(step)
        if not is_close(expect_number(returned), rate, 1e-6):
            if step == 0 and is_close(returned, 0.1):
                raise Wrong(f"step {step} is still in the warm-up: 0.01.")
            if step in (399, 31_999, 47_999):
                raise Wrong(f"at step {step} it returns {returned:g}: it changes one step too early.")
            if step in (400, 32_000, 48_000):
                raise Wrong(f"at step {step} it returns {returned:g}, not {rate:g}: steps are counted from 0.")
            raise Wrong(f"at step {step} it returns {returned:g}, not {rate:g}.")
    return "The recipe `paper` has the same numbers."


@exercise("07.3")
def smallest_loss_scale(answer: Any) -> str:
    scale = expect_number(answer)
    if scale <= 0 or not math.log2(scale).is_integer():
        raise Wrong(f"{scale:g} is not a power of two: it would round every gradient.")
    if 3e-9 * scale < 2.0**-14:
        raise Wrong(f"3e-9 times {scale:g} is {3e-9 * scale:.1e}, below 2^-14 = {2.0**-14:.1e}.")
    if 3e-9 * scale / 2 >= 2.0**-14:
        raise Wrong(f"half of {scale:g} is enough.")
    return "2^15, which is also the initial loss scale of Keras."


@exercise("07.4")
def what_a_checkpoint_holds(answer: Any) -> str:
    if isinstance(answer, str):
        raise Wrong("give a list of names.")
    names = {str(name) for name in answer}
    for name in sorted(names):
        if name in NOT_NEEDED:
            raise Wrong(f"the {name} need not be stored: {NOT_NEEDED[name]}")
        if name not in NEEDED:
            raise Wrong(f"{name!r} is not in the list; choose from {', '.join([*NEEDED, *NOT_NEEDED])}.")
    for name, why in NEEDED.items():
        if name not in names:
            raise Wrong(f"the {name} must be stored: {why}")
    return "With these six, a killed run ends as if it had never stopped. (The loss scale includes its counter.)"
