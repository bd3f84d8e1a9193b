"""A network in a few lines: units, output, parameters and multiply-adds of each stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.graph import Call, calls
from keras_preact.layers.products import OpenSize, UnknownProducts, call_products
from keras_preact.layers.stack import units_in


@dataclass(frozen=True)
class Row:
    """One line: a stage, or what comes before and after the stages."""

    name: str
    units: int | str
    output: str
    parameters: int
    multiply_adds: str


@dataclass(frozen=True)
class Summary:
    """Title and lines, the last of them the sum; `uncounted` names layers whose multiply-adds are unknown."""

    title: str
    rows: tuple[Row, ...]
    uncounted: tuple[str, ...] = ()


def multiply_adds(model: keras.Model) -> int:
    """Return the multiply-adds of one forward pass on one image or sequence.

    Convolutions, dense layers, attention, recurrent layers and matrix products are counted, each as often as it is
    called, inside other models too.

    Args:
        model: any functional model.

    Raises:
        InputError: not a functional model, an input without a fixed size, or a custom layer that has matrices and no
            method `multiply_adds(input_shape)`.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> round(multiply_adds(cifar_resnet(depth=110)) / 1e6, 2)
    253.15
    """
    graph = calls(model)
    if any(None in tensor.shape[1:] for tensor in model.inputs):
        raise OpenSize
    return sum(map(call_products, graph))


def summarize(model: keras.Model) -> Summary:
    """Return the summary of a functional network.

    Parameters are the trainable ones, and those of a shared layer are counted where it is called first. Multiply-adds
    are as in `multiply_adds`: "-" where the image size is open, and "+ ?" after the sum where there are layers whose
    multiply-adds are unknown.

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
    graph = calls(model)
    groups: dict[str, list[Call]] = {"stem": []}
    seen_units = False
    for call in graph:
        is_unit = units_in(call.operation) > 0
        seen_units = seen_units or is_unit
        name = call.operation.name.split("_")[0] if is_unit else ("head" if seen_units else "stem")
        groups.setdefault(name, []).append(call)
    counted: set[int] = set()
    rows = [_row(name, group, group[-1].outputs, counted) for name, group in groups.items() if group]
    rows.append(_row("total", graph, model.outputs, set()))
    what = "images" if all(len(each.shape) == 4 for each in model.inputs) else "sequences"
    uncounted = tuple(dict.fromkeys(kind for call in graph if (kind := _unknown(call))))
    return Summary(f"{model.name}, {what} of {_shapes(model.inputs)}", tuple(rows), uncounted)


def _row(name: str, group: Sequence[Call], outputs: Sequence[Any], counted: set[int]) -> Row:
    """Return a line; `counted` are the variables of lines before it, and is added to."""
    units, parameters = sum(units_in(call.operation) for call in group), 0
    for call in group:
        for variable in getattr(call.operation, "trainable_variables", []):
            parameters += 0 if id(variable) in counted else math.prod(variable.shape)
            counted.add(id(variable))
    return Row(name, units or "", _shapes(outputs), parameters, _sum(group))


def _shapes(tensors: Sequence[Any]) -> str:
    return ", ".join(" × ".join(str(size or "?") for size in tensor.shape[1:]) for tensor in tensors)


def _sum(group: Sequence[Call]) -> str:
    known = [call for call in group if not _unknown(call)]
    try:
        total = sum(map(call_products, known))
    except OpenSize:
        return "-"
    return (f"{total / 1e6:,.2f} M" if total else "") + (" + ?" if len(known) < len(group) else "")


def _unknown(call: Call) -> str:
    """Return the class of the layer whose multiply-adds are unknown; `""` if they are known, or the size is open."""
    try:
        call_products(call)
    except UnknownProducts as error:
        return error.kind
    except OpenSize:
        pass
    return ""
