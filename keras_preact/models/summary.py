"""A network in a few lines: units, output, parameters and multiply-adds of each stage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.models.resnet import layer_multiply_adds, units_in


@dataclass(frozen=True)
class Row:
    """One line: a stage, or what stands before and after them."""

    name: str
    units: int | str
    output: str
    parameters: int
    multiply_adds: str


@dataclass(frozen=True)
class Summary:
    """Title and lines, the last of them the sum."""

    title: str
    rows: tuple[Row, ...]


def summarize(model: keras.Model) -> Summary:
    """Return the summary of a network of this package, or of any functional model of convolutions.

    Parameters are the trainable ones. Multiply-adds are those of convolutions and dense layers on one image; "-"
    where the image size is open.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> summary = summarize(cifar_resnet(depth=20))
    >>> [row.name for row in summary.rows]
    ['stem', 'stage1', 'stage2', 'stage3', 'head', 'total']
    >>> summary.rows[-1].parameters
    272282
    """
    if not model.built:
        raise InputError(f"{model.name} has no shapes yet; call it on images before you save it")
    groups: dict[str, list[keras.layers.Layer]] = {}
    seen_units = False
    for layer in model.layers:
        is_unit = units_in(layer) > 0
        seen_units = seen_units or is_unit
        name = layer.name.split("_")[0] if is_unit else ("head" if seen_units else "stem")
        groups.setdefault(name, []).append(layer)
    rows = [_row(name, layers) for name, layers in groups.items()]
    rows.append(_row("total", model.layers, output=_shapes(model.outputs)))
    what = "images" if all(len(each.shape) == 4 for each in model.inputs) else "sequences"
    return Summary(f"{model.name}, {what} of {_shapes(model.inputs)}", tuple(rows))


def _row(name: str, layers: list[keras.layers.Layer], output: str | None = None) -> Row:
    units = sum(units_in(layer) for layer in layers)
    parameters = sum(math.prod(variable.shape) for layer in layers for variable in layer.trainable_variables)
    return Row(name, units or "", output or _shapes(layers[-1].output), parameters, _products(layers))


def _shapes(tensors: Any) -> str:
    """Return the shapes of one tensor or several without the batch, as text."""
    return ", ".join(" × ".join(str(size or "?") for size in each.shape[1:]) for each in keras.tree.flatten(tensors))


def _products(layers: list[keras.layers.Layer]) -> str:
    try:
        total = sum(layer_multiply_adds(layer) for layer in layers)
    except TypeError:  # a size is None
        return "-"
    return f"{total / 1e6:,.2f} M" if total else ""
