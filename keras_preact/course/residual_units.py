"""Exercises of notebook 01."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_preact.analysis import check_identity_path
from keras_preact.course.exercise import Wrong, exercise, expect_array, expect_function, is_close, refuse_mistakes


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
def order_of_full_preactivation(answer: Any) -> str:
    if isinstance(answer, str):
        raise Wrong("give a list of six words.")
    words = [str(word).strip().lower() for word in answer]
    words = [{"batchnorm": "bn", "batch norm": "bn", "weight": "conv", "convolution": "conv"}.get(w, w) for w in words]
    if unknown := [word for word in words if word not in ("bn", "relu", "conv")]:
        raise Wrong(f"{unknown[0]!r} is not one of BN, ReLU and conv.")
    if len(words) != 6:
        raise Wrong(f"you gave {len(words)} words; the branch has six: two convolutions, each with BN and ReLU.")
    if words == ["conv", "bn", "relu"] * 2:
        raise Wrong("each convolution comes first: that is the order of a plain network. Activate before, not after.")
    if words == ["relu", "bn", "conv"] * 2:
        raise Wrong("BN comes after ReLU: the convolution then sees normalized values, with no ReLU between.")
    if words != ["bn", "relu", "conv"] * 2:
        raise Wrong(
            f"position {next(i for i, w in enumerate(words) if w != ('bn', 'relu', 'conv')[i % 3]) + 1} is wrong."
        )
    return "BN, ReLU, conv, twice, then the addition: Fig. 4(e)."


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
    return "The linter finds nothing on the identity path."
