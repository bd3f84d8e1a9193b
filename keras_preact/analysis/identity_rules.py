"""Effects of operations on an identity path. Only those known to leave the values unchanged pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_preact.layers.graph import Call, is_ours, keras_name

NORMALIZATION, ACTIVATION, WEIGHTS, SCALING, DROPOUT, OTHER = (
    "normalization", "activation", "weights", "scaling", "dropout", "other",
)  # fmt: skip

# Names of Keras's own classes. A subclass, or another library's class of the same name, does not pass.
_REORDERS = {"Permute", "Transpose", "Swapaxes", "Moveaxis"}
RESHAPES = {"Reshape", "Flatten", "Ravel", "ExpandDims", "Squeeze"} | _REORDERS
_VALUE_PRESERVING = {"Identity", "Cast", "Copy", "ActivityRegularization"} | RESHAPES
_DROPOUTS = {"Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"}
# A shortcut that must change the shape may contain these, if the call changes the shape.
_PROJECTIONS = {"Dense", "EinsumDense", "Projection"} | {
    f"{kind}{n}D{suffix}"
    for n in (1, 2, 3)
    for kind, suffix in (("Conv", ""), ("Conv", "Transpose"), ("DepthwiseConv", ""), ("SeparableConv", ""))
}
_RESAMPLING = {"GetItem", "Slice", "Split", "Pad", "Concatenate", "AveragePool", "MaxPool"} | {
    f"{kind}{n}D"
    for n in (1, 2, 3)
    for kind in (
        "AveragePooling", "MaxPooling", "GlobalAveragePooling", "GlobalMaxPooling", "AdaptiveAveragePooling",
        "AdaptiveMaxPooling", "ZeroPadding", "Cropping", "UpSampling",
    )
} | {"OptionA", "ConstantPadding2D"}  # fmt: skip
_NORMS = {"BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization", "BatchNorm", "RMSNorm"}
# Kinds of all other operations, by parts of their class names in lower case; the first match decides.
_KINDS = (
    (NORMALIZATION, ("norm",)),
    (DROPOUT, ("dropout", "droppath", "stochasticdepth")),
    (WEIGHTS, ("conv", "dense")),
    (SCALING, ("rescaling", "multiply", "divide", "layerscale", "scale", "gate", "negative")),
    (ACTIVATION, ("activation", "relu", "elu", "selu", "gelu", "silu", "swish", "tanh", "sigmoid", "softplus", "mish")),
)


def does_change_shape(route: Sequence[Call], start: Any, end: Any) -> bool:
    """Return whether two tensors differ in shape or, if sizes are unknown, whether a call between them is strided."""
    return tuple(start.shape[1:]) != tuple(end.shape[1:]) or any(
        None in call.inputs[0].shape[1:] and _is_strided(call.operation) for call in route
    )


def reshapes(call: Call) -> bool:
    shapes = {tuple(tensor.shape[1:]) for tensor in (call.inputs[0], call.outputs[0])}
    return len(shapes) > 1 or (None in call.inputs[0].shape[1:] and _is_strided(call.operation))


def _is_strided(operation: Any) -> bool:
    """Return whether an operation changes a size, even if the size is unknown."""
    if keras_name(operation).startswith(("UpSampling", "Cropping")):
        return True
    strides = getattr(operation, "strides", None) or 1
    return max(strides if isinstance(strides, (tuple, list)) else (strides,)) > 1


def offenders_on(route: Sequence[Call], changes_shape: bool) -> list[Call]:
    """Return the calls on a route that are not known to leave the values unchanged.

    If the shape must change, the route may change it by a projection or by resampling, and may normalize the
    projection's output.
    """
    found, projected = [], False
    for call in route:
        name = trusted_name(call.operation)
        if changes_shape and reshapes(call) and (_projects(call) or _resamples(call)):
            projected = projected or name in _PROJECTIONS
        elif not (
            _preserves_values(call)
            or (changes_shape and ((projected and name in _NORMS) or name == "ZerosLike"))  # zeros for new channels
        ):
            found.append(call)
    for section in _closed_moves(route) if changes_shape else [route]:
        if not found and not _preserves_order(section):
            found = [call for call in section if keras_name(call.operation) in _REORDERS] or list(section)
    return found


def _closed_moves(route: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield each run of calls that only move values, if it ends in the shape in which it began."""
    for preserved, group in itertools.groupby(route, _preserves_values):
        section = list(group)
        if preserved and tuple(section[0].inputs[0].shape) == tuple(section[-1].outputs[0].shape):
            yield section


def _projects(call: Call) -> bool:
    return trusted_name(call.operation) in _PROJECTIONS and _is_linear(call.operation)


def _resamples(call: Call) -> bool:
    """Return whether a call only selects, averages or zero-pads values, in their order."""
    operation = call.operation
    if keras_name(operation) == "Pad":
        return operation.mode == "constant" and not any(call.args[1:]) and not any(call.kwargs.values())
    if keras_name(operation) == "GetItem":
        parts = [part for key in (*call.args[1:], *call.kwargs.values()) for part in keras.tree.flatten(key)]
        return all(isinstance(part, int | slice | type(None) | type(...)) for part in parts) and all(
            (part.step or 1) > 0 for part in parts if isinstance(part, slice)
        )
    return trusted_name(operation) in _RESAMPLING


def _preserves_values(call: Call) -> bool:
    """Return whether a call is known to return its input values, at most in another shape or float type."""
    operation, name = call.operation, keras_name(call.operation)
    if len(call.inputs) != 1 or not all(keras.backend.is_float_dtype(tensor.dtype) for tensor in call.outputs):
        return False
    return (
        name in _VALUE_PRESERVING
        or (name in _DROPOUTS and operation.rate == 0)
        or (name == "Activation" and operation.activation is keras.activations.linear)
    )


def _preserves_order(route: Sequence[Call]) -> bool:
    """Return whether moved values end up in their original order, by moving numbered values.

    The shapes do not tell: a later transposition may undo an earlier one, and reshapes around one may hide it.
    """
    if not any(keras_name(call.operation) in _REORDERS for call in route):
        return True
    shape = [2 if size is None else size for size in route[0].inputs[0].shape]
    start = np.arange(np.prod(shape), dtype="int32").reshape(shape)
    values = {id(route[0].inputs[0]): keras.ops.convert_to_tensor(start)}
    try:
        for call in route:
            if keras_name(call.operation) in RESHAPES:

                def value(leaf: Any) -> Any:
                    return values.get(id(leaf), leaf)

                args, kwargs = keras.tree.map_structure(value, (call.args, call.kwargs))
                values[id(call.outputs[0])] = call.operation(*args, **kwargs)
            else:
                values[id(call.outputs[0])] = values[id(call.inputs[0])]
    except (TypeError, ValueError, KeyError):
        return False
    end = keras.ops.convert_to_numpy(values[id(route[-1].outputs[0])])
    return bool(np.array_equal(end.ravel(), start.ravel()))


def trusted_name(operation: Any) -> str:
    """Return the class name of an operation of Keras or of this package; `""` for any other."""
    return keras_name(operation) or (type(operation).__name__ if is_ours(type(operation)) else "")


def _is_linear(operation: Any) -> bool:
    linear = keras.activations.linear
    return getattr(operation, "activation", linear) is linear


def kinds(operations: Iterable[Any]) -> set[str]:
    """Return the effects of operations or layers on a signal, judged by their class names.

    >>> sorted(kinds([keras.layers.ReLU(), keras.layers.Conv2D(1, 1)])), kinds([keras.layers.Flatten()])
    (['activation', 'weights'], {'other'})
    """
    found: set[str] = set()
    for operation in operations:
        name = type(operation).__name__.lower()
        effects = {next((kind for kind, words in _KINDS if any(word in name for word in words)), OTHER)}
        if isinstance(operation, keras.layers.BatchNormalization):  # PreActivation is a subclass
            effects = {NORMALIZATION}
        if not _is_linear(operation):
            effects = (effects - {OTHER}) | {ACTIVATION}
        found |= effects
    return found
