"""Convert networks between separate units and rolled stacks of units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import compile_arguments, exclude_like
from keras_preact.layers.copies import clone, same_but_for_weights
from keras_preact.layers.graph import graph_of
from keras_preact.layers.stack import UnitStack, units_in
from keras_preact.layers.unit_names import stage_of, unit_names
from keras_preact.models.rewiring import (
    LayerCall,
    check_functional,
    free_name,
    in_sequence,
    links,
    names_by_graph,
    passthrough,
    rewired,
    taken_names,
)


def roll(model: keras.Model, remat: bool | str = False) -> keras.Model:
    """Return a copy of the network in which consecutive equal residual units are one rolled `UnitStack`.

    The copy has the same weights and computes the same function. Units are stacked only if each is called once, all
    with the same arguments, and if nothing else uses the outputs between them. If a call has `training=True`, nothing
    is rolled. Nested models are rolled too.

    Args:
        model: a functional Keras model with `ResidualUnit` or `EncoderBlock` layers; it is not changed.
        remat: of the stacks; see `UnitStack`.

    Returns:
        A new model with the same outputs and, up to the order of floating-point sums, the same training steps. A row
        becomes a layer named after its stage (`stage2_stack`). The model is compiled like `model`, without the state
        of the optimizer.

    Raises:
        InputError: the model is not functional, has no two equal units in a row, or has a layer, optimizer or metric
            that cannot be copied.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> rolled = roll(cifar_resnet(depth=26, rolled=False))
    >>> [layer.name for layer in rolled.layers if layer.name.startswith("stage1")]
    ['stage1_unit01', 'stage1_stack']
    """
    check_functional(model)
    replacements: dict[Any, Callable[..., Any]] = {}
    taken = names_by_graph(model)
    for graph, row in _rows(model):
        name = free_name(f"{stage_of(row[0].name)}_stack", [taken[graph]])
        replacements |= dict.fromkeys(row, passthrough)
        replacements[row[0]] = UnitStack.from_units(row, rolled=True, remat=remat, name=name)
    if not replacements:
        unrolled = [layer.name for layer in model.layers if isinstance(layer, UnitStack) and not layer.rolled]
        if unrolled:
            raise InputError(f"{unrolled[0]} is an unrolled stack, which is one layer; use roll(unroll(model))")
        raise InputError(
            f"there is nothing to roll: {model.name} has no two equal residual units in a row, each called once"
        )
    return _compiled_like(model, rewired(model, replacements))


def unroll(model: keras.Model) -> keras.Model:
    """Return a copy of the network with every unit of its stacks as a separate layer, with the same weights.

    Stacks in nested models are unrolled too.

    Args:
        model: a functional Keras model with `UnitStack` layers; it is not changed.

    Returns:
        A new model that computes the same; units are named by stage and number (`stage2_unit07`). It is compiled like
        `model`, without the state of the optimizer.

    Raises:
        InputError: the model is not functional, has no stacks, or has a layer, optimizer or metric that cannot be
            copied.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> unrolled = unroll(cifar_resnet(depth=26, rolled=True))
    >>> [layer.name for layer in unrolled.layers if layer.name.startswith("stage1")]
    ['stage1_unit01', 'stage1_unit02', 'stage1_unit03', 'stage1_unit04']
    """
    check_functional(model)
    stacks = units_of_stacks(model)
    if not stacks:
        raise InputError(f"{model.name} has no stacks: it is already unrolled")
    return _compiled_like(model, rewired(model, {stack: in_sequence(units) for stack, units in stacks.items()}))


def units_of_stacks(model: keras.Model) -> dict[UnitStack, list[keras.layers.Layer]]:
    """Return the units of each stack, also in nested models, as layers named by stage and number."""
    stacks: dict[UnitStack, list[keras.layers.Layer]] = {}
    names_in = names_by_graph(model)
    for graph in names_in:
        numbered = unit_names((layer.name, layer) for layer in graph.layers)
        for layer in graph.layers:
            if isinstance(layer, UnitStack) and layer not in stacks:
                taken = taken_names(layer, names_in)
                names = [free_name(name, taken) for name in numbered[layer.name]]
                stacks[layer] = [layer.unit(k, name) for k, name in enumerate(names)]
    return stacks


# ---- which units can be rolled ------------------------------------------------------------------------------------


def _rows(model: keras.Model) -> list[tuple[keras.Model, list[keras.layers.Layer]]]:
    """Return the rows of two or more units that can be rolled, each with its graph."""
    rows: dict[Any, tuple[keras.Model, list[keras.layers.Layer]]] = {}
    for graph, call, following in links(model):
        if _continues(call, following):
            # Calls come in the order of computation, so the row that this link extends ends with its first unit.
            _, row = rows.pop(call.operation, (graph, [call.operation]))
            rows[following.operation] = graph, [*row, following.operation]
    return list(rows.values())


def _continues(call: LayerCall, after: LayerCall) -> bool:
    """Return whether the loop of a stack can make two consecutive calls."""
    units = call.operation, after.operation
    return (
        all(units_in(unit) and not isinstance(unit, UnitStack) for unit in units)
        and call.options.keys() <= {"training", "mask"}
        and call.options.keys() == after.options.keys()
        and all(value is after.options[name] for name, value in call.options.items())
        and not any(part.changes_shape for unit in units for part in unit.residual_layers().values())
        and same_but_for_weights(*units)
    )


# ---- copies -------------------------------------------------------------------------------------------------------


def _compiled_like(model: keras.Model, copy: keras.Model) -> keras.Model:
    """Compile the copy like the model, with the same losses, new metrics and a new optimizer; return the copy."""
    if not model.compiled:
        return copy
    config = compile_arguments(model)
    metrics = {"metrics", "weighted_metrics"}
    names = dict(zip(graph_of(model).output_names, copy.output_names, strict=True))
    for key in metrics & config.keys():
        config[key] = keras.tree.map_structure(lambda x: clone(x) if isinstance(x, keras.Metric) else x, config[key])
    for key in config.keys() & {"loss", "loss_weights", *metrics}:
        if isinstance(config[key], dict) and not isinstance(model.output, dict):
            config[key] = {names.get(name, name): value for name, value in config[key].items()}
    # The model's optimizer, not the one passed to `compile`: with mixed_float16, Keras wraps it for loss scaling.
    optimizer = model.optimizer and clone(model.optimizer)
    if optimizer:
        exclude_like(optimizer, model.optimizer)
    copy.compile(**{**config, "optimizer": optimizer, "auto_scale_loss": False})
    if optimizer:
        optimizer.build(copy.trainable_variables)
    return copy
