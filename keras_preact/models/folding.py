"""Networks for inference: each batch norm that follows a convolution carried into the convolution's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.layers.branches import DropPath
from keras_preact.layers.preactivation import PreActivation
from keras_preact.layers.shortcuts import ConvShortcut, IdentityShortcut, Projection
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.units import ResidualUnit
from keras_preact.models.rolling import check_functional, rewired, unroll

Weights = list[np.ndarray]


def fold(model: keras.Model) -> keras.Model:
    """Return the network for inference, in which no batch norm follows a convolution.

    In inference a batch norm is a scale and an offset by channel. After a convolution both go into its kernel and
    its bias. In pre-activation units that is every batch norm but the first, which stands on the sum; in original
    ones every batch norm.

    Args:
        model: a functional Keras model, of this package or of others' layers; it is not changed. Stacks are written
            out.

    Returns:
        A new model with the same input and, to about 1e-5, the same outputs as `model` in inference. Its units are
        rows of layers, named for them (`stage2_unit07_conv1`); it is meant to be saved or exported, not trained:
        dropout and drop path are left out.

    Raises:
        InputError: not a functional model.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(depth=20)
    >>> def count(model):
    ...     return sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    >>> count(fold(network))  # the first of each unit, and the head's
    10
    """
    check_functional(model)
    if any(isinstance(layer, UnitStack) for layer in model.layers):
        model = unroll(model)
    followers = _followers(model)
    replacements: dict[str, Callable[[Any], Any]] = {norm.name: lambda x: x for norm in followers.values()}
    for layer in model.layers:
        if isinstance(layer, ResidualUnit):
            replacements[layer.name] = partial(_folded_unit, layer)
        elif layer.name in followers:
            replacements[layer.name] = partial(_in_order, folded_row([layer, followers[layer.name]]), prefix="")
    folded = rewired(model, replacements)
    # `rewired` compiles what was compiled; nothing here is to be trained.
    return keras.Model(folded.inputs, folded.outputs, name=f"{model.name}_folded") if model.compiled else folded


def folded_row(layers: Sequence[keras.layers.Layer]) -> list[tuple[keras.layers.Layer, Weights]]:
    """Return built layers that follow each other as new ones with their weights, batch norms folded where they can be.

    Example:

    >>> conv, norm = keras.layers.Conv2D(4, 1, use_bias=False), PreActivation()
    >>> _ = norm(conv(np.ones((1, 2, 2, 3), "float32")))
    >>> [type(layer).__name__ for layer, _ in folded_row([conv, norm])]
    ['Conv2D']
    """
    row: list[tuple[keras.layers.Layer, Weights]] = []
    for layer in layers:
        if isinstance(layer, (DropPath, keras.layers.Dropout)):
            continue
        if row and _can_fold(row[-1][0], layer):
            row[-1] = _folded(*row[-1], layer)
        else:
            row.append((type(layer).from_config(layer.get_config()), layer.get_weights()))
    return row


def _can_fold(before: keras.layers.Layer, norm: keras.layers.Layer) -> bool:
    return (
        isinstance(before, keras.layers.Conv2D)
        and before.activation is keras.activations.linear
        and isinstance(norm, keras.layers.BatchNormalization)
    )


def _folded(
    convolution: keras.layers.Conv2D, weights: Weights, norm: keras.layers.BatchNormalization
) -> tuple[keras.layers.Layer, Weights]:
    """Return the convolution and its weights with the batch norm's scale and offset in them."""
    mean, variance = (np.float64(ops.convert_to_numpy(v)) for v in (norm.moving_mean, norm.moving_variance))
    scale = 1.0 / np.sqrt(variance + norm.epsilon)
    if norm.scale:
        scale = scale * np.float64(ops.convert_to_numpy(norm.gamma))
    offset = np.float64(ops.convert_to_numpy(norm.beta)) if norm.center else 0.0
    kernel, bias = weights[0], weights[1] if convolution.use_bias else 0.0
    activation = norm.activation if isinstance(norm, PreActivation) else keras.activations.linear
    config = {**convolution.get_config(), "use_bias": True, "bias_initializer": "zeros"}
    new = type(convolution).from_config({**config, "activation": keras.activations.serialize(activation)})
    return new, [(kernel * scale).astype("float32"), ((bias - mean) * scale + offset).astype("float32")]


def _with_bias(layer: keras.layers.Layer, weights: Weights) -> tuple[keras.layers.Layer, Weights]:
    """Return a convolution without bias as one with a bias of 0: TensorFlow fuses only those with the addition."""
    if not isinstance(layer, keras.layers.Conv2D) or layer.use_bias:
        return layer, weights
    biased = type(layer).from_config({**layer.get_config(), "use_bias": True, "bias_initializer": "zeros"})
    return biased, [*weights, np.zeros(layer.filters, "float32")]


def _folded_unit(unit: ResidualUnit, x: Any) -> Any:
    """Call the unit's parts as layers of their own: Eq. (1) and (2) written out."""
    prefix = f"{unit.name}_"
    activated = _in_order(folded_row(unit.first), x, prefix)
    *branch, last = folded_row(unit.branch)
    residual = _in_order([*branch, _with_bias(*last)], activated, prefix)
    skip = activated if unit.shares_preactivation else x
    for layer in unit.reshape:
        row = [layer.conv, *layer.norm] if isinstance(layer, Projection) else [layer]
        skip = _in_order(folded_row(row), skip, f"{prefix}projection_" if isinstance(layer, Projection) else prefix)
    y = _shortcut(unit, prefix)(skip, residual)
    return _in_order(folded_row(unit.last), y, prefix)


def _shortcut(unit: ResidualUnit, prefix: str) -> Callable[[Any, Any], Any]:
    shortcut = unit.shortcut

    def add(skip: Any, residual: Any) -> Any:
        return keras.layers.Add(dtype=unit.dtype_policy, name=f"{prefix}add")([skip, residual])

    def project_and_add(skip: Any, residual: Any) -> Any:
        row = [shortcut.projection.conv, *shortcut.projection.norm]
        return add(_in_order(folded_row(row), skip, f"{prefix}shortcut_"), residual)

    def copy(skip: Any, residual: Any) -> Any:
        new = type(shortcut).from_config({**shortcut.get_config(), "name": f"{prefix}shortcut"})
        y = new(skip, residual)
        new.set_weights(shortcut.get_weights())
        return y

    if type(shortcut) is IdentityShortcut:
        return add
    return project_and_add if type(shortcut) is ConvShortcut else copy


def _in_order(row: Sequence[tuple[keras.layers.Layer, Weights]], x: Any, prefix: str) -> Any:
    for layer, weights in row:
        layer.name = f"{prefix}{layer.name}"
        x = layer(x)
        if weights:
            layer.set_weights(weights)
    return x


def _followers(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """Return, for convolutions of the graph whose output only a batch norm takes, that batch norm by their name."""
    followers = {}
    for norm in model.layers:
        if not isinstance(norm, keras.layers.BatchNormalization):
            continue
        source = norm.input._keras_history.operation  # Keras has no public way to ask where a tensor comes from
        is_output = any(source.output is output for output in model.outputs)
        if _can_fold(source, norm) and len(source._outbound_nodes) == 1 and not is_output:
            followers[source.name] = norm
    return followers
