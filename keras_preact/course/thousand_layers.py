"""Exercises of notebook 06."""

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


@exercise("06.1")
def units_of_a_depth(answer: Any) -> str:
    function = expect_function(answer)
    for depth, convolutions, units in ((110, 2, 18), (164, 3, 18), (1001, 3, 111), (20, 2, 3)):
        number = expect_number(function(depth, convolutions))
        if number == 3 * units:
            raise Wrong(f"{number:g} for depth {depth} counts the units of all three stages.")
        if is_close(number, depth / (3 * convolutions)):
            raise Wrong("two layers belong to no unit: the first convolution and the classifier.")
        if number != units:
            raise Wrong(
                f"for depth {depth} with {convolutions} convolutions per unit it returns {number:g}, not {units}."
            )
    return "111 units per stage make 1001 layers."


@exercise("06.2")
def a_stack_by_hand(answer: Any) -> str:
    rng = np.random.default_rng(6)
    x, weights = rng.normal(size=(2, 3)), 0.5 * rng.normal(size=(5, 3, 3))

    def body(x: Any, w: Any) -> Any:
        return x + np.maximum(x, 0) @ w

    def run(order: Any) -> Any:
        y = x
        for w in order:
            y = body(y, w)
        return y

    y = expect_array(expect_function(answer)(body, x.copy(), weights), x.shape)
    mistakes = {
        "your loop begins with the last unit.": run(weights[::-1]),
        "every iteration uses the first unit's weights.": run([weights[0]] * 5),
        "it stops after one unit.": run(weights[:1]),
        "it stops one unit too early.": run(weights[:-1]),
        "it adds x once more: body already adds it.": x + run(weights),
        "each unit receives x itself, not the output of the unit before it.": body(x, weights[-1]),
    }
    refuse_mistakes(y, mistakes)
    if not is_close(y, run(weights)):
        raise Wrong("it is not the output of the units one after the other.")
    return "One body, one iteration per unit: this is UnitStack."


@exercise("06.3")
def best_segment(answer: Any) -> str:
    k = expect_number(answer)
    if k < 1 or k > 110:
        raise Wrong(f"k is a number of units, from 1 to 110, not {k:g}.")
    if k not in (10, 11):
        if abs(k - np.sqrt(110)) < 0.5:
            raise Wrong("it is √110, but k must be a whole number: 10 or 11.")
        raise Wrong(f"with k = {k:g} the sum is {110 / k + k:.1f}; it can be 21.")
    return "√n: memory grows with the square root of the depth, at the cost of one more forward pass."
