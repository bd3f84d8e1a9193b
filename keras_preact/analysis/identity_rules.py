"""What operations do to the values on an identity path. Only what is known to leave them alone passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_preact.layers.graph import Call, keras_name

# What passes, by the names of Keras's own classes; a subclass, or another library's class of that name, does not.
NORMALIZATION, ACTIVATION, WEIGHTS, SCALING, DROPOUT, OTHER = (
    "normalization", "activation", "weights", "scaling", "dropout", "other",
)  # fmt: skip

_REORDERS = {"Permute", "Transpose", "Swapaxes", "Moveaxis"}
RESHAPES = {"Reshape", "Flatten", "Ravel", "ExpandDims", "Squeeze"} | _REORDERS
_KEEPS = {"Identity", "Cast", "Copy", "ActivityRegularization"} | RESHAPES
_DROPS = {"Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"}
# What a shortcut may have besides where it has to change the shape, if this call of it does so.
_PROJECTIONS = {"Dense", "EinsumDense", "Projection"} | {
    f"{kind}{n}D{suffix}"
    for n in (1, 2, 3)
    for kind, suffix in (("Conv", ""), ("Conv", "Transpose"), ("DepthwiseConv", ""), ("SeparableConv", ""))
}
_RESAMPLES = {"GetItem", "Slice", "Split", "Pad", "Concatenate", "AveragePool", "MaxPool"} | {
    f"{kind}{n}D"
    for n in (1, 2, 3)
    for kind in (
        "AveragePooling", "MaxPooling", "GlobalAveragePooling", "GlobalMaxPooling", "AdaptiveAveragePooling",
        "AdaptiveMaxPooling", "ZeroPadding", "Cropping", "UpSampling",
    )
} | {"OptionA", "ConstantPadding2D"}  # fmt: skip
_NORMS = {"BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization", "BatchNorm"}
# What the rest is called in a report, by words in the name of its class, lower case; the first that is found decides.
_KINDS = (
    (NORMALIZATION, ("norm",)),
    (DROPOUT, ("dropout", "droppath", "stochasticdepth")),
    (WEIGHTS, ("conv", "dense")),
    (SCALING, ("rescaling", "multiply", "divide", "layerscale", "scale", "gate", "negative")),
    (ACTIVATION, ("activation", "relu", "elu", "selu", "gelu", "silu", "swish", "tanh", "sigmoid", "softplus", "mish")),
)


def does_change_shape(way: Sequence[Call], start: Any, end: Any) -> bool:
    """Return whether two tensors differ in shape, or, at an open size, whether a stride is between them."""
    return tuple(start.shape[1:]) != tuple(end.shape[1:]) or any(
        None in call.inputs[0].shape[1:] and _is_strided(call.operation) for call in way
    )


def reshapes(call: Call) -> bool:
    shapes = {tuple(tensor.shape[1:]) for tensor in (call.inputs[0], call.outputs[0])}
    return len(shapes) > 1 or (None in call.inputs[0].shape[1:] and _is_strided(call.operation))


def _is_strided(operation: Any) -> bool:
    strides = getattr(operation, "strides", None) or 1
    return max(strides if isinstance(strides, (tuple, list)) else (strides,)) > 1


def offenders_on(way: Sequence[Call], changes_shape: bool) -> list[Call]:
    """Return the calls on a way that are not known to leave the values alone.

    Where the shape has to change, a projection or a resampling that changes it is none, nor the normalization of a
    projection's output.
    """
    found, projected = [], False
    for call in way:
        name = trusted_name(call.operation)
        if changes_shape and reshapes(call) and (_projects(call) or _resamples(call)):
            projected = projected or name in _PROJECTIONS
        elif not (
            _keeps_values(call)
            or (changes_shape and ((projected and name in _NORMS) or name == "ZerosLike"))  # zeros for new channels
        ):
            found.append(call)
    for section in _moves(way) if changes_shape else [way]:
        if not found and not _keeps_order(section):
            found = [call for call in section if keras_name(call.operation) in _REORDERS] or list(section)
    return found


def _moves(way: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield the calls between others on a way that move values and return them in the shape that they came in."""
    for moves, section in itertools.groupby(way, _keeps_values):
        between = list(section)
        if moves and tuple(between[0].inputs[0].shape) == tuple(between[-1].outputs[0].shape):
            yield between


def _projects(call: Call) -> bool:
    return trusted_name(call.operation) in _PROJECTIONS and _is_linear(call.operation)


def _resamples(call: Call) -> bool:
    """Return whether a call leaves out values, averages them, or adds zeros: no other values, no other order."""
    operation = call.operation
    if keras_name(operation) == "Pad":
        return operation.mode == "constant" and not any(call.args[1:]) and not any(call.kwargs.values())
    if keras_name(operation) == "GetItem":
        parts = [part for key in (*call.args[1:], *call.kwargs.values()) for part in keras.tree.flatten(key)]
        return all(isinstance(part, int | slice | type(None) | type(...)) for part in parts) and all(
            (part.step or 1) > 0 for part in parts if isinstance(part, slice)
        )
    return trusted_name(operation) in _RESAMPLES


def _keeps_values(call: Call) -> bool:
    """Return whether a call is known to return the values that it is given, in another shape or float type at most."""
    operation, name = call.operation, keras_name(call.operation)
    if len(call.inputs) != 1 or not all(keras.backend.is_float_dtype(tensor.dtype) for tensor in call.outputs):
        return False
    return (
        name in _KEEPS
        or (name in _DROPS and operation.rate == 0)
        or (name == "Activation" and operation.activation is keras.activations.linear)
    )


def _keeps_order(way: Sequence[Call]) -> bool:
    """Return whether values that are only moved are in their old order at the end: numbered values show it.

    A transposition may be undone later on the way, and two reshapes around one may leave the shape as it was.
    """
    if not any(keras_name(call.operation) in _REORDERS for call in way):
        return True
    shape = [2 if size is None else size for size in way[0].inputs[0].shape]
    start = np.arange(np.prod(shape), dtype="int32").reshape(shape)
    values = {id(way[0].inputs[0]): keras.ops.convert_to_tensor(start)}
    try:
        for call in way:
            if keras_name(call.operation) in RESHAPES:

                def value(leaf: Any) -> Any:
                    return values.get(id(leaf), leaf)

                args, kwargs = keras.tree.map_structure(value, (call.args, call.kwargs))
                values[id(call.outputs[0])] = call.operation(*args, **kwargs)
            else:
                values[id(call.outputs[0])] = values[id(call.inputs[0])]
    except (TypeError, ValueError, KeyError):
        return False
    end = keras.ops.convert_to_numpy(values[id(way[-1].outputs[0])])
    return bool(np.array_equal(end.ravel(), start.ravel()))


def is_ours(kind: Any) -> bool:
    return bool(kind.__module__.split(".")[0] == "keras_preact")


def trusted_name(operation: Any) -> str:
    """Return the name of a class of Keras's or of this package; `""` for any other."""
    return keras_name(operation) or (type(operation).__name__ if is_ours(type(operation)) else "")


def _is_linear(operation: Any) -> bool:
    linear = keras.activations.linear
    return getattr(operation, "activation", linear) is linear


def kinds(operations: Iterable[Any]) -> set[str]:
    """Return what operations or layers do to a signal, as far as the names of their classes say.

    >>> sorted(kinds([keras.layers.ReLU(), keras.layers.Conv2D(1, 1)])), kinds([keras.layers.Flatten()])
    (['activation', 'weights'], {'other'})
    """
    found: set[str] = set()
    for operation in operations:
        name = type(operation).__name__.lower()
        own = {next((kind for kind, words in _KINDS if any(word in name for word in words)), OTHER)}
        if isinstance(operation, keras.layers.BatchNormalization):  # a PreActivation is one, whatever its name
            own = {NORMALIZATION}
        if not _is_linear(operation):
            own = (own - {OTHER}) | {ACTIVATION}
        found |= own
    return found
