"""The same network either way: written out unit by unit, or its equal units rolled into stacks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, same_but_for_weights
from keras_preact.models.resnet import units_in


def roll(model: keras.Model, remat: bool | str = False) -> keras.Model:
    """Return the network with each row of equal residual units as one rolled `UnitStack`, weights carried over.

    Args:
        model: a functional Keras model with `ResidualUnit` or `EncoderBlock` layers; it is not changed.
        remat: of the stacks; see `UnitStack`.

    Returns:
        A new model that computes the same: outputs and, to the order of floating-point sums, training steps. A row
        becomes a layer named for its stage (`stage2_stack`). It is compiled as `model` is, without its optimizer's
        state.

    Raises:
        InputError: not a functional model, or one without two equal units in a row.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> rolled = roll(cifar_resnet(depth=26, rolled=False))
    >>> [layer.name for layer in rolled.layers if layer.name.startswith("stage1")]
    ['stage1_unit01', 'stage1_stack']
    """
    check_functional(model)
    rows = [row for row in _rows(model) if len(row) > 1]
    if not rows:
        raise InputError(f"{model.name} has no two equal residual units in a row: there is nothing to roll")
    replacements: dict[str, Callable[[Any], Any]] = {}
    taken = {layer.name for layer in model.layers}
    for row in rows:
        name = _free_name(f"{_stage(row[0])}_stack", taken)
        taken.add(name)
        replacements |= {unit.name: _row([]) for unit in row}
        replacements[row[0].name] = UnitStack.from_units(row, rolled=True, remat=remat, name=name)
    return rewired(model, replacements)


def unroll(model: keras.Model) -> keras.Model:
    """Return the network with every unit of its stacks as a layer of its own, weights carried over.

    Args:
        model: a functional Keras model with `UnitStack` layers; it is not changed.

    Returns:
        A new model that computes the same; units are named by stage and number (`stage2_unit07`). It is compiled as
        `model` is, without its optimizer's state.

    Raises:
        InputError: not a functional model, or one without stacks.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> written_out = unroll(cifar_resnet(depth=26, rolled=True))
    >>> [layer.name for layer in written_out.layers if layer.name.startswith("stage1")]
    ['stage1_unit01', 'stage1_unit02', 'stage1_unit03', 'stage1_unit04']
    """
    check_functional(model)
    if not any(isinstance(layer, UnitStack) for layer in model.layers):
        raise InputError(f"{model.name} has no stacks: it is written out already")
    replacements: dict[str, Callable[[Any], Any]] = {}
    count: dict[str, int] = {}
    for layer in model.layers:
        stage, before = _stage(layer), count.get(_stage(layer), 0)
        count[stage] = before + (layer.repeats if isinstance(layer, UnitStack) else units_in(layer))
        if isinstance(layer, UnitStack):
            word = "unit" if issubclass(layer.unit_type, ResidualLayer) else "block"
            names = [f"{stage}_{word}{number:02d}" for number in range(before + 1, count[stage] + 1)]
            replacements[layer.name] = _row([layer.unit(k, name) for k, name in enumerate(names)])
    return rewired(model, replacements)


def is_functional(model: Any) -> bool:
    """Return whether a model has a graph of layers."""
    return isinstance(model, keras.Model) and hasattr(model, "operations")


def check_functional(model: Any, what: str = "rolled, unrolled or folded") -> None:
    """Raise InputError unless a model has a graph of layers; `what` is what cannot be done without."""
    if not is_functional(model):
        raise InputError(f"only functional Keras models can be {what}, not {type(model).__name__}")


def rewired(model: keras.Model, replacements: dict[str, Callable[[Any], Any]]) -> keras.Model:
    """Return a copy of the model, weights and all, in which functions stand for the layers named."""

    def call(layer: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        new = replacements.get(layer.name)
        return layer(x, *args, **kwargs) if new is None else new(x)

    copy = keras.models.clone_model(model, call_function=call)
    for layer in model.layers:
        if layer.name not in replacements and layer.weights:
            copy.get_layer(layer.name).set_weights(layer.get_weights())
    return copy


def _row(layers: Sequence[keras.layers.Layer]) -> Callable[[Any], Any]:
    return lambda x: functools.reduce(lambda x, layer: layer(x), layers, x)


def _rows(model: keras.Model) -> Iterator[list[keras.layers.Layer]]:
    """Yield the model's residual units in rows of equal ones that feed each other and nothing else."""
    row: list[keras.layers.Layer] = []
    for layer in model.layers:
        if isinstance(layer, UnitStack) or not units_in(layer):
            continue
        if row and not _continues(model, row[-1], layer):
            yield row
            row = []
        row.append(layer)
    if row:
        yield row


def _continues(model: keras.Model, unit: keras.layers.Layer, following: keras.layers.Layer) -> bool:
    # Keras has no public way to ask who uses a layer's output.
    users = [node.operation for node in unit._outbound_nodes]
    is_output = any(unit.output is output for output in model.outputs)
    return (
        users == [following]
        and not is_output
        and not any(part.changes_shape for layer in (unit, following) for part in layer.residual_layers().values())
        and same_but_for_weights(unit, following)
    )


def _stage(layer: keras.layers.Layer) -> str:
    return layer.name.split("_")[0]


def _free_name(name: str, taken: set[str]) -> str:
    numbered = (f"{name}{k}" for k in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)
