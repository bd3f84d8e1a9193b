"""Folding batch norms into the preceding convolutions, for inference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from keras_preact.layers.composite import in_order
from keras_preact.layers.convolutions import Conv2D
from keras_preact.layers.copies import clone, set_weights
from keras_preact.layers.dropout import DropPath
from keras_preact.layers.preactivation import BatchNorm, PreActivation
from keras_preact.layers.projection import ConvShortcut, Projection
from keras_preact.layers.shortcuts import IdentityShortcut
from keras_preact.layers.units import ResidualUnit
from keras_preact.models.rewiring import (
    asks_for_training,
    check_functional,
    free_name,
    in_sequence,
    links,
    names_by_graph,
    passthrough,
    rewired,
    taken_names,
)
from keras_preact.models.rolling import units_of_stacks

_NORMS = (layers.BatchNormalization, BatchNorm, PreActivation)
_OUTPUTS_LAST = (layers.Conv1D, layers.Conv2D, Conv2D, layers.Conv3D, layers.Dense)
_OUTPUTS_BEFORE_INPUTS = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
_OUTPUTS_IN_TWO_AXES = (layers.DepthwiseConv1D, layers.DepthwiseConv2D)
_CONVOLUTIONS = (*_OUTPUTS_LAST, *_OUTPUTS_BEFORE_INPUTS, *_OUTPUTS_IN_TWO_AXES)
"""Grouped by the kernel's output axis. Subclasses are not folded, because they may use their kernels differently."""


def fold(model: keras.Model) -> keras.Model:
    """Return a copy of the network for inference, with batch norms folded into the preceding convolutions.

    In inference, a batch norm is a scale and an offset per channel, which the kernel and the bias of a preceding
    convolution or dense layer can absorb. In original units, all are folded. In pre-activation units, all but the first
    are: it follows an addition. In a network's first unit, it may follow a convolution and is folded too.

    A batch norm is folded only if the result is the same: both layers are called once and compute in the same dtype,
    the batch norm normalizes the convolution's channels, and nothing else uses the convolution's output. Other layers
    are copied unchanged. If a call in the model has `training=True`, nothing is folded. Nested models are folded too,
    unless they are subclassed or in a wrapper such as `TimeDistributed`.

    Args:
        model: a functional Keras model, with or without layers of this package; it is not changed. Stacks are unrolled.

    Returns:
        A new model with the same inputs and, to about 1e-5 in float32, the same outputs as `model` in inference. Each
        `ResidualUnit` is replaced by its layers, named after the unit (`stage2_unit07_conv1`). The model is for saving,
        exporting and inference, not for training: it is not compiled, and drop path and dropout inside F are removed.

    Raises:
        InputError: the model is not functional, or has a layer that cannot be copied.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(depth=20)
    >>> def count(model):
    ...     return sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    >>> count(fold(network))  # after each addition
    9
    """
    check_functional(model)
    stacks = units_of_stacks(model)
    foldable = not asks_for_training(model)
    replacements: dict[Any, Callable[..., Any]] = {}
    names = names_by_graph(model)
    for graph in names:
        for layer in graph.layers:
            units = stacks.get(layer, [layer])
            if layer not in replacements and foldable and all(map(_is_plain, units)):
                taken = taken_names(layer, names)
                replacements[layer] = _composed([_folded_unit(unit, taken) for unit in units])
            elif layer in stacks:
                replacements.setdefault(layer, in_sequence(units))
    copy = rewired(model, replacements | _folded_pairs(model))
    # Units are now layers, so the first norm of the first unit may follow the stem's convolution.
    folded = _folded_pairs(copy)
    return rewired(copy, folded) if folded else copy


def _folded_pairs(model: keras.Model) -> dict[Any, Callable[..., Any]]:
    """Return replacements that fold every pair of consecutive layers in the graph that can be folded."""
    replacements: dict[Any, Callable[..., Any]] = {}
    for _, call, following in links(model):
        convolution, norm = call.operation, following.operation
        if _can_fold(convolution, norm):
            replacements |= {convolution: _folded(convolution, norm), norm: passthrough}
    return replacements


# ---- a convolution and a batch norm -------------------------------------------------------------------------------


def _can_fold(convolution: keras.layers.Layer, norm: keras.layers.Layer) -> bool:
    """Return whether a convolution can absorb the batch norm that follows it."""
    if type(convolution) not in _CONVOLUTIONS or type(norm) not in _NORMS:
        return False
    rank = norm.input_spec.ndim
    channels_first = getattr(convolution, "data_format", "channels_last") == "channels_first"
    return (
        convolution.activation is keras.activations.linear
        and len(convolution.weights) == 1 + convolution.use_bias  # no low-rank adapters, no quantization
        and convolution.compute_dtype == norm.compute_dtype
        and norm.axis % rank == (1 if channels_first else rank - 1)
    )


def _folded(convolution: keras.layers.Layer, norm: keras.layers.BatchNormalization) -> keras.layers.Layer:
    """Return a new convolution that absorbs the batch norm, followed by its activation if it has one."""
    mean, variance = _values(norm.moving_mean), _values(norm.moving_variance)
    scale = (_values(norm.gamma) if norm.scale else 1.0) / np.sqrt(variance + norm.epsilon)
    offset = _values(norm.beta) if norm.center else 0.0
    kernel, bias = _values(convolution.kernel), _values(convolution.bias) if convolution.use_bias else 0.0
    shape: tuple[int, ...] = (-1,)
    if type(convolution) in _OUTPUTS_BEFORE_INPUTS:
        shape = (-1, 1)
    elif type(convolution) in _OUTPUTS_IN_TWO_AXES:
        shape = kernel.shape[-2:]
    weights = [kernel * scale.reshape(shape), (bias - mean) * scale + offset]
    activation = norm.activation if isinstance(norm, PreActivation) else None
    return _remade(convolution, weights, use_bias=True, activation=activation)


def _with_bias(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a 2D convolution with a bias, 0 if it had none: TensorFlow fuses only biased ones with the addition."""
    if not isinstance(layer, layers.Conv2D) or len(layer.weights) > 1:  # it has a bias, or adapters (LoRA)
        return layer
    return _remade(layer, [*layer.get_weights(), np.zeros(layer.filters)], use_bias=True)


def _remade(layer: keras.layers.Layer, weights: Sequence[Any], **changes: Any) -> keras.layers.Layer:
    """Return a built copy of a layer with the given weights and changes to its configuration."""
    new = clone(layer, **changes)
    new.build_from_config(layer.get_build_config())
    set_weights(new, weights)
    return new


def _values(variable: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(variable), "float64")


# ---- units --------------------------------------------------------------------------------------------------------


def _is_plain(layer: keras.layers.Layer) -> bool:
    """Return whether a layer is a `ResidualUnit`, or a subclass that composes its parts in the same way."""
    methods = ("call", "terms", "preactivate", "residual", "add", "after_addition")
    return isinstance(layer, ResidualUnit) and all(
        getattr(type(layer), name) is getattr(ResidualUnit, name) for name in methods
    )


def _folded_unit(unit: ResidualUnit, taken: Sequence[set[str]]) -> Callable[[Any], Any]:
    """Return a function that computes Eq. (1) and (2) with the unit's parts as layers of the model's graph."""

    def row(parts: Sequence[keras.layers.Layer], prefix: str = "") -> list[keras.layers.Layer]:
        return _folded_row(parts, f"{unit.name}_{prefix}", taken)

    def projected(projection: Projection, prefix: str) -> list[keras.layers.Layer]:
        return row([projection.conv, *projection.norm], prefix)

    first, branch, last = row(unit.preact), row(unit.branch), row(unit.postact)
    branch[-1] = _with_bias(branch[-1])
    reshape: list[keras.layers.Layer] = []
    for layer in unit.projection:
        reshape += projected(layer, "projection_") if isinstance(layer, Projection) else row([layer])
    if type(unit.shortcut) is ConvShortcut:
        reshape += projected(unit.shortcut.projection, "shortcut_")
    add: Callable[[Any, Any], Any]
    if type(unit.shortcut) in (IdentityShortcut, ConvShortcut):
        plus = layers.Add(dtype=unit.dtype_policy, name=free_name(f"{unit.name}_add", taken))
        add = lambda skip, residual: plus([skip, residual])  # noqa: E731
    else:
        (add,) = row([unit.shortcut])

    def call(x: Any) -> Any:
        activated = in_order(first, x)
        skip = in_order(reshape, activated if unit.shares_preactivation else x)
        return in_order(last, add(skip, in_order(branch, activated)))

    return call


def _folded_row(
    parts: Sequence[keras.layers.Layer], prefix: str, taken: Sequence[set[str]]
) -> list[keras.layers.Layer]:
    """Return copies of consecutive built layers, with batch norms folded where possible."""
    row: list[keras.layers.Layer] = []
    for layer in parts:
        if isinstance(layer, (DropPath, layers.Dropout)):
            continue
        if row and _can_fold(row[-1], layer):
            row[-1] = _folded(row[-1], layer)
        else:
            row.append(_remade(layer, layer.get_weights(), name=free_name(f"{prefix}{layer.name}", taken)))
    return row


def _composed(functions: Sequence[Callable[[Any], Any]]) -> Callable[..., Any]:
    return lambda x, **_: functools.reduce(lambda x, function: function(x), functions, x)
