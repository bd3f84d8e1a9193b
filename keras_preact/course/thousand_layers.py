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
    function = expect_function(answer)
    for n, c in ((100, 1), (100, 4), (110, 1), (110, 6), (54, 2), (11, 5), (7, 50)):
        memory = {k: n / k + c * k for k in range(1, n + 1)}
        best = min(memory, key=memory.__getitem__)
        k = expect_number(function(n, c))
        if k == best:
            continue
        call = f"with n = {n} and c = {c}"
        if not k.is_integer():
            raise Wrong(f"{call} it returns {k:g}, but k must be a whole number.")
        if k not in memory:
            raise Wrong(f"{call} it returns {k:g}, but k is a number of units, from 1 to {n}.")
        if c != 1 and abs(k - np.sqrt(n)) < 1:
            raise Wrong(f"{call} it returns {k:g}, about √n: you left out c.")
        if is_close(memory[int(k)], memory[best]):
            raise Wrong(f"{call} it returns {k:g}; {best} is as good and smaller.")
        raise Wrong(f"{call} it returns {k:g}, where the sum is {memory[int(k)]:.1f}; it can be {memory[best]:.1f}.")
    return "About √(n/c): memory grows with the square root of the depth, at the cost of one more forward pass."


CLAIMS = {
    "A": "the depth study has several runs at both depths, and the intervals do not overlap.",
    "B": "look at the training loss: the deep original networks fit the training images worse, too.",
    "C": "in the screening, the original ResNet-218 with the warm-up still guesses.",
    "D": "at 0.01 its error in the screening is below 80 %, and one run suffices to show that it can happen.",
    "E": "that gap was measured on small images after 1,560 steps; nobody here has trained for the whole schedule.",
    "F": "before training both gradients explode; neither vanishes.",
}
"""The claims of exercise 06.4, and the evidence for or against each."""

SUPPORTED = {"A", "D"}
"""The claims that the stored runs support."""


@exercise("06.4")
def supported_claims(answer: Any) -> str:
    if isinstance(answer, str) or not all(isinstance(letter, str) for letter in answer):
        raise Wrong("give a list of letters.")
    letters = {letter.strip().upper() for letter in answer}
    for letter in sorted(letters):
        if letter not in CLAIMS:
            raise Wrong(f"{letter!r} is not a claim; the claims are {', '.join(CLAIMS)}.")
        if letter not in SUPPORTED:
            raise Wrong(f"{letter} is not supported: {CLAIMS[letter]}")
    for letter in sorted(SUPPORTED):
        if letter not in letters:
            raise Wrong(f"{letter} is missing: {CLAIMS[letter]}")
    return "Before you repeat a claim, ask which training the runs had, and how many there are."
