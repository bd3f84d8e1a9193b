"""Exercises of notebook 09."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_number,
    is_close,
    refuse_mistakes,
)


@exercise("09.1")
def a_pre_norm_block(answer: Any) -> str:
    x = np.random.default_rng(9).normal(size=(3, 4))

    def norm1(x: Any) -> Any:
        return np.tanh(x)

    def norm2(x: Any) -> Any:
        return x / (1 + np.abs(x))

    def attention(x: Any) -> Any:
        return x[::-1] * 2

    def feed_forward(x: Any) -> Any:
        return x**2 - 1

    y = expect_array(expect_function(answer)(x.copy(), norm1, attention, norm2, feed_forward), x.shape)
    after = x + attention(norm1(x))
    post = norm1(x + attention(x))
    mistakes = {
        "that is post-norm: the norms come after the additions.": norm2(post + feed_forward(post)),
        "the normalized signal goes along the shortcut; add x itself.": norm2(norm1(x) + attention(norm1(x)))
        + feed_forward(norm2(norm1(x) + attention(norm1(x)))),
        "both branches receive the same signal; the second must receive the sum after the first.": after
        + feed_forward(norm2(x)),
        "the feed-forward branch is missing.": after,
        "the attention branch is missing.": x + feed_forward(norm2(x)),
        "the second branch has no norm before it.": after + feed_forward(after),
        "the first branch has no norm before it.": x + attention(x) + feed_forward(norm2(x + attention(x))),
        "the shortcuts are missing.": feed_forward(norm2(attention(norm1(x)))),
        "the two norms are swapped.": x + attention(norm2(x)) + feed_forward(norm1(x + attention(norm2(x)))),
    }
    refuse_mistakes(y, mistakes)
    if not is_close(y, after + feed_forward(norm2(after))):
        raise Wrong("it is not x + attention(norm1(x)), then the same with the second norm and branch.")
    return "Two residual units in a row, and nothing on the identity path."


@exercise("09.2")
def exponent_of_a_power(answer: Any) -> str:
    function = expect_function(answer)
    depths, scatter = np.array([6.0, 12.0, 24.0, 48.0]), np.array([1.1, 0.9, 1.2, 0.95])
    x = np.log(depths)
    for power, factor in ((-0.5, 3.0), (0.0, 1.6), (1.0, 0.1)):
        norms = factor * depths**power * scatter
        y = np.log(norms)
        exponent = np.polyfit(x, y, 1)[0]
        returned = function(depths, norms)
        if np.ndim(returned) == 1 and len(returned) == 2:
            raise Wrong("it returns two numbers, perhaps from np.polyfit; the exponent is the first of them.")
        found = expect_number(returned)
        mistakes = {
            "the sign is wrong.": -exponent,
            "depth and norm are swapped.": np.polyfit(y, x, 1)[0],
            "that is the slope of the numbers; take logarithms of both.": np.polyfit(depths, norms, 1)[0],
            "you used only the first and the last depth; fit a line to all.": (y[-1] - y[0]) / (x[-1] - x[0]),
        }
        for hint, mistake in mistakes.items():
            if is_close(found, mistake):
                raise Wrong(hint)
        if not is_close(found, exponent):
            raise Wrong(f"for norms that scatter around depth^{power:g} it returns {found:g}, not {exponent:g}.")
    return "On logarithmic axes a power is a line, and its exponent is the slope."


@exercise("09.3")
def warmup_of_the_learning_rate(answer: Any) -> str:
    function = expect_function(answer)
    for peak, steps in ((0.1, 100), (2e-3, 50)):
        for step, expected in ((0, 0.0), (steps // 2, peak / 2), (steps, peak), (10 * steps, peak)):
            rate = expect_number(function(step, peak, steps))
            if not is_close(rate, expected, 1e-9):
                if step > steps and rate > peak:
                    raise Wrong(f"after the warm-up it keeps rising: at step {step} it is {rate:g}.")
                if step == 0:
                    raise Wrong(f"it starts at {rate:g}, not at 0.")
                raise Wrong(f"at step {step} of {steps} with a peak of {peak:g} it is {rate:g}, not {expected:g}.")
    return "A warm-up begins with small steps and reaches the peak rate after the steps that you choose."
