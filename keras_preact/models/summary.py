"""Summary table of a network: units, output shape, parameters and multiply-adds of each stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.graph import Call, calls
from keras_preact.layers.products import UnknownMultiplyAdds, UnknownSize, call_multiply_adds
from keras_preact.layers.stack import units_in
from keras_preact.layers.unit_names import stage_of


@dataclass(frozen=True)
class Row:
    """One row: a stage, the stem, the head or the total."""

    name: str
    units: int | str
    output: str
    parameters: int
    multiply_adds: str


@dataclass(frozen=True)
class Summary:
    """Title and rows, the last of which is the total. `uncounted` names layer classes with unknown multiply-adds."""

    title: str
    rows: tuple[Row, ...]
    uncounted: tuple[str, ...] = ()


def multiply_adds(model: keras.Model) -> int:
    """Return the multiply-adds of one forward pass on one image or sequence.

    This counts convolutions, dense layers, attention, recurrent layers and matrix products, once per call, also in
    nested models.

    Args:
        model: any functional model.

    Raises:
        InputError: the model is not functional, an input has no fixed size, or a custom layer has matrices but no
            method `multiply_adds(input_shape)`.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> round(multiply_adds(cifar_resnet(depth=110)) / 1e6, 2)
    253.15
    """
    graph = calls(model)
    if any(None in tensor.shape[1:] for tensor in model.inputs):
        raise UnknownSize
    return sum(map(call_multiply_adds, graph))


def summarize(model: keras.Model) -> Summary:
    """Return the summary of a functional network.

    Parameters are trainable parameters; those of a shared layer count at its first call. Multiply-adds are those of
    `multiply_adds`: "-" if the image size is open, and followed by "+ ?" if those of some layers are unknown.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> summary = summarize(cifar_resnet(depth=20))
    >>> [row.name for row in summary.rows]
    ['stem', 'stage1', 'stage2', 'stage3', 'head', 'total']
    >>> summary.rows[-1].parameters
    272282
    """
    if not model.built:
        raise InputError(f"{model.name} is not built; call it on a batch of data first")
    graph = calls(model)
    groups: dict[str, list[Call]] = {"stem": []}
    seen_units = False
    for call in graph:
        is_unit = units_in(call.operation) > 0
        seen_units = seen_units or is_unit
        name = stage_of(call.operation.name) if is_unit else ("head" if seen_units else "stem")
        groups.setdefault(name, []).append(call)
    counted: set[int] = set()
    rows = [_row(name, group, group[-1].outputs, counted) for name, group in groups.items() if group]
    rows.append(_row("total", graph, model.outputs, set()))
    what = "images" if all(len(each.shape) == 4 for each in model.inputs) else "sequences"
    uncounted = tuple(dict.fromkeys(kind for call in graph if (kind := _unknown(call))))
    return Summary(f"{model.name}, {what} of {_shapes(model.inputs)}", tuple(rows), uncounted)


def _row(name: str, group: Sequence[Call], outputs: Sequence[Any], counted: set[int]) -> Row:
    """Return a row; variables with an id in `counted` do not count again, and new ids are added to it."""
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
        total = sum(map(call_multiply_adds, known))
    except UnknownSize:
        return "-"
    return (f"{total / 1e6:,.2f} M" if total else "") + (" + ?" if len(known) < len(group) else "")


def _unknown(call: Call) -> str:
    """Return the class of a layer with unknown multiply-adds; `""` if they are known or the image size is open."""
    try:
        call_multiply_adds(call)
    except UnknownMultiplyAdds as error:
        return error.kind
    except UnknownSize:
        pass
    return ""
