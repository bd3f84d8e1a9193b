"""Exercises of notebook 01."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_preact.analysis import check_identity_path
from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_number,
    is_close,
    refuse_mistakes,
)


def _relu(x: Any) -> Any:
    return np.maximum(x, 0)


@exercise("01.1")
def preactivation_in_numpy(answer: Any) -> str:
    rng = np.random.default_rng(1)
    x, first, second = rng.normal(size=(5, 4)), rng.normal(size=(4, 6)), rng.normal(size=(6, 4))
    before = x.copy()
    y = expect_array(expect_function(answer)(x, first, second), x.shape)
    if not np.array_equal(x, before):
        raise Wrong("your function modifies x in place; the caller still needs it. Return a new array.")
    branch = _relu(_relu(x) @ first) @ second
    mistakes = {
        "there is a ReLU after the addition: f is not the identity.": _relu(x + branch),
        "your shortcut carries relu(x): h is not the identity. Add x itself.": _relu(x) + branch,
        "you return F alone: the shortcut is missing.": branch,
        "the branch begins with the weights: that is the original order. Put a ReLU before each product.": x
        + _relu(x @ first) @ second,
        "the second ReLU comes after the second product; it belongs before it.": x + _relu(_relu(x) @ first @ second),
        "there is no ReLU between the two products: two linear maps are one.": x + _relu(x) @ first @ second,
    }
    refuse_mistakes(y, mistakes)
    if not is_close(y, x + branch):
        raise Wrong("it is not x + relu(relu(x) W1) W2.")
    return "x passes unchanged, and F sees it only through ReLUs."


@exercise("01.2")
def dilution_of_the_input(answer: Any) -> str:
    function = expect_function(answer)
    for units, variance in ((1, 0.5), (10, 0.5), (54, 1.0)):
        found = expect_number(function(units, variance))
        right = (1 + units * variance) ** -0.5
        refuse_mistakes(
            found,
            {
                "that is the share of the variance; the correlation is a ratio of standard deviations.": right**2,
                "you left out the variance 1 of the input itself.": (units * variance) ** -0.5,
                "that is the standard deviation of the sum; the correlation is the inverse.": 1 / right,
                "the standard deviations do not add up; the variances do.": 1 / (1 + units * variance**0.5),
            }
            | (
                {
                    "that is the correlation after one unit.": (1 + variance) ** -0.5,
                    "the variances of the residuals add up; they do not multiply.": (1 + variance) ** (-units / 2),
                }
                if units > 1
                else {}
            ),
        )
        if not is_close(found, right):
            after = f"{units} {'unit' if units == 1 else 'units'}"
            raise Wrong(f"for {after} and v = {variance:g} it returns {found:g}, not {right:.3g}.")
    return "The variance grows linearly, so the correlation falls like 1/√L: slowly, and never to zero."


_PARTS = {
    "BatchNormalization": ("BN",),
    "ReLU": ("ReLU",),
    "Relu": ("ReLU",),
    "PreActivation": ("BN", "ReLU"),
    "Conv2D": ("conv",),
}


def _parts_of(operation: Any) -> tuple[str, ...]:
    """Return what an operation is in words; an activation by its function."""
    kind = type(operation).__name__
    if kind == "Activation":
        activation = operation.activation  # a function, or a layer
        name = getattr(activation, "__name__", type(activation).__name__.lower())
        return () if name == "linear" else ("ReLU" if name == "relu" else name,)
    return _PARTS.get(kind, ())


@exercise("01.3")
def a_unit_with_an_identity_path(answer: Any) -> str:
    inputs = keras.Input((8, 8, 16))
    unit = expect_function(answer)
    outputs = unit(inputs)
    if not isinstance(outputs, keras.KerasTensor):
        raise Wrong("your function must return the tensor after the addition.")
    if tuple(outputs.shape) != tuple(inputs.shape):
        raise Wrong(
            f"the unit turns {tuple(inputs.shape[1:])} into {tuple(outputs.shape[1:])}; it must keep the shape."
        )
    model = keras.Model(inputs, unit(unit(outputs)))  # three in a row: each unit has a neighbor
    kinds = [type(operation).__name__ for operation in model.operations]  # `+` is an operation but not a layer
    if "Add" not in kinds:
        raise Wrong("there is no keras.layers.Add (or +) in it: what is added to x?")
    if kinds.count("Conv2D") < 6:
        raise Wrong(f"its branch should have two convolutions, not {kinds.count('Conv2D') // 3}.")
    report = check_identity_path(model)
    if not report.is_clear:
        fault = next(fault for unit in report.units for fault in unit.faults)
        raise Wrong(f"for three of your units in a row, the linter reports: {fault}.")
    first, second = [place for place, kind in enumerate(kinds) if kind == "Add"][:2]
    order = [part for operation in model.operations[first:second] for part in _parts_of(operation)]
    if order != ["BN", "ReLU", "conv"] * 2:
        raise Wrong(f"the identity path is clear, but the branch is {', '.join(order)}, not BN, ReLU, conv, twice.")
    return "The linter finds nothing on the identity path, and the branch is BN, ReLU, conv, BN, ReLU, conv."
