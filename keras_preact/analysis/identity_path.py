"""A linter for any residual network: it reports what is on the shortcuts and after the additions.

It reads the graph of a functional Keras model. An addition of two tensors that come from one is a residual unit. Of
the ways from the split to the addition, the one that leaves the values alone is the shortcut; if none does, the one
with the fewest weights. Only what is known to leave the values alone passes. Everything else is reported, unknown
layers too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.layers.graph import Call, calls, keras_name, weights_in
from keras_preact.layers.preactivation import PreActivation
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import (
    ConstantScaling,
    ConvShortcut,
    DropoutShortcut,
    IdentityShortcut,
    ScaledResidual,
    Shortcut,
)
from keras_preact.layers.stack import UnitStack
from keras_preact.models.resnet import units_in

NORMALIZATION, ACTIVATION, WEIGHTS, SCALING, DROPOUT, OTHER = (
    "normalization", "activation", "weights", "scaling", "dropout", "other",
)  # fmt: skip

# What passes, by the names of Keras's own classes; a subclass, or another library's class of that name, does not.
_REORDERS = {"Permute", "Transpose", "Swapaxes", "Moveaxis"}
_RESHAPES = {"Reshape", "Flatten", "Ravel", "ExpandDims", "Squeeze"} | _REORDERS
_KEEPS = {"Identity", "Cast", "Copy", "ActivityRegularization"} | _RESHAPES
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


@dataclass(frozen=True)
class UnitPath:
    """What is on the identity path of one residual unit.

    Attributes:
        unit: name of the unit, or of its addition, after the names of the models that it is in.
        before_split: what is between the previous addition and the split.
        shortcut: what is on the shortcut.
        faults: one sentence each; empty if the path is the identity, or a projection that changes the shape.
        copies: how many units are meant: more than 1 in a `UnitStack`, whose units are alike.
    """

    unit: str
    before_split: tuple[str, ...]
    shortcut: tuple[str, ...]
    faults: tuple[str, ...]
    copies: int = 1


@dataclass(frozen=True)
class IdentityPath:
    """The report of `check_identity_path`.

    Attributes:
        model: name of the model.
        units: in the order of the graph.
        unread: custom layers outside of the units that may have units in their `call`, which cannot be read.
    """

    model: str
    units: tuple[UnitPath, ...]
    unread: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether nothing is on the identity path of the units; of what is in `unread` nothing is known."""
        return not any(unit.faults for unit in self.units)

    def __str__(self) -> str:
        """Return the report: one line for each fault, with the units that have it."""
        count = _count(self.units)
        bad = _count(unit for unit in self.units if unit.faults)
        by_fault: dict[str, list[UnitPath]] = {}
        for unit in self.units:
            for fault in unit.faults:
                by_fault.setdefault(fault, []).append(unit)
        first = f"{bad} of {count} residual units have something on the identity path"
        lines = [f"{self.model}: " + (first if bad else f"{count} residual units, and nothing on the identity path")]
        lines += [f"  {_who(units, count)}: {fault}" for fault, units in by_fault.items()]
        return "\n".join(lines + [f"  not looked into: {_list(self.unread)}"] * bool(self.unread))


def _count(units: Iterable[UnitPath]) -> int:
    return sum(unit.copies for unit in units)


def _who(units: Sequence[UnitPath], of: int) -> str:
    """Return the units that share a fault, in words."""
    names = [unit.unit + (f" ({unit.copies} units)" if unit.copies > 1 else "") for unit in units]
    if len(names) > 1 and _count(units) == of:
        return f"all {of} units"
    return _list(names, f"{_count(units)} units")


def _list(names: Sequence[str], many: str = "") -> str:
    """Return names in a row; only the first and the last of many."""
    return ", ".join(names) if len(names) <= 3 else f"{many or len(names)}, {names[0]} to {names[-1]}"


def check_identity_path(model: keras.Model) -> IdentityPath:
    """Report what is on the shortcuts and after the additions of a residual network.

    Only the identity passes, with casts, what changes nothing but the shape, and on the shortcut of a unit that
    changes the shape one projection, pooling or padding that does so. What follows the last addition is the head,
    and is not checked.

    Args:
        model: any functional Keras model, of this package's layers, of Keras's, or of both. Models inside it are
            checked with it. A custom layer that hides an addition in its `call` is not seen as a unit; the report
            names those that may.

    Raises:
        InputError: not a functional model, or one that adds no layers with weights to what they came from.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> print(check_identity_path(cifar_resnet(depth=14)))
    resnet14_full_preactivation: 6 residual units, and nothing on the identity path
    >>> print(check_identity_path(cifar_resnet(depth=14, placement="original")))
    resnet14_original: 6 of 6 residual units have something on the identity path
      all 6 units: after the addition: ReLU; f is not the identity
    """
    graph = calls(model)
    paths = _Paths(graph)
    units = tuple(_units(paths))
    unread = _unread(paths)
    if not units:
        raise InputError(
            f"{model.name} has no residual units: its graph adds no layers with weights to what they came from"
            + (f", and the calls of its custom layers cannot be read ({_list(unread)})" if unread else "")
        )
    return IdentityPath(model.name, units, unread)


# ---- the graph ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """An addition of a residual.

    Attributes:
        name: of the unit or of the addition.
        split: the tensor before the split; `None` after the first unit of a block.
        output: the sum.
        shortcut: the calls on the shortcut.
        operation: what adds.
        factor: what the addition itself multiplies x by: 1 for an `Add` with one shortcut.
        layer: the unit, if it is one of this package.
        block: the layer that the unit is in.
        copies: number of equal units.
    """

    name: str
    split: Any
    output: Any
    shortcut: tuple[Call, ...] = ()
    operation: Any = None
    factor: float = 1.0
    layer: ResidualLayer | None = None
    copies: int = 1


def _units(paths: _Paths) -> Iterator[UnitPath]:
    sums = dict[int, _Sum]()
    for call in paths.graph:
        if _is_part(call, paths, sums):
            continue
        for found in _sums(call, paths, sums):
            before = None
            if found.split is not None:
                before = paths.after_last(found.split, sums)
                paths.seen |= {id(inside.operation) for inside in paths.between(found.split, found.output)}
            yield _judge_unit(found, found.layer, before) if found.layer else _judge(found, before)
            sums[id(found.output)] = found


def _unread(paths: _Paths) -> tuple[str, ...]:
    """Return the custom layers that may have units inside: they hold other layers, or are called on several tensors."""
    return tuple(
        f"{call.name} ({type(call.operation).__name__})"
        for call in paths.graph
        if id(call.operation) not in paths.seen
        and isinstance(call.operation, keras.layers.Layer)
        and not _trusted_name(call.operation)
        and (len(call.inputs) > 1 or any(part.weights for part in call.operation._flatten_layers(include_self=False)))
    )


def _sums(call: Call, paths: _Paths, sums: Collection[int]) -> Iterator[_Sum]:
    """Yield the additions of a residual in a call: one for an `Add`, those of its units for a layer of this package."""
    operation = call.operation
    if units_in(operation):
        copies = operation.repeats if isinstance(operation, UnitStack) else 1
        block = operation.unit(0) if isinstance(operation, UnitStack) else operation
        for number, (suffix, unit) in enumerate(block.residual_layers().items()):
            split = None if number else call.inputs[0]
            yield _Sum(call.name + suffix, split, call.outputs[0], operation=block, layer=unit, copies=copies)
    elif _factors(call) or isinstance(operation, Shortcut):
        found = _residual(call, paths, sums)
        if found is not None:
            yield found


def _factors(call: Call) -> tuple[float, ...]:
    """Return what an addition multiplies each of its tensors by; nothing for any other operation."""
    name, count = keras_name(call.operation), len(call.inputs)
    factors: dict[str, tuple[float, ...]] = {"Add": (1.0,) * count}
    if count == 2:
        factors["Subtract"] = (1.0, -1.0)
    if isinstance(call.operation, keras.layers.Average):
        factors["Average"] = (1.0 / count,) * count
    if name == "CustomScaleLayer":  # of keras.applications.InceptionResNetV2
        factors[name] = (1.0, call.operation.scale)
    return factors.get(name, ())


def _is_part(call: Call, paths: _Paths, sums: Collection[int]) -> bool:
    """Return whether an addition only makes terms of another of the same x, as `x + f` in `x + f + g` does.

    Its terms are x itself and what has weights: anything else is a fault, as in `(x + 1) + f`.
    """
    users = paths.users(call.outputs[0])
    if len(users) != 1 or not _factors(call) or not _factors(users[0]) or len(call.inputs) < 2:
        return False
    split = paths.split(call.inputs, sums)
    return (
        split is not None
        and split is paths.split(users[0].inputs, sums)
        and all(weights_in(way) or not _offenders(way, False) for way in paths.ways(split, call.inputs))
    )


def _terms(call: Call, paths: _Paths, sums: Collection[int]) -> Iterator[tuple[Any, float]]:
    """Yield the tensors that an addition adds, those of the additions that are part of it too, and their factors."""
    for tensor, factor in zip(call.inputs, _factors(call) or (1.0,) * len(call.inputs), strict=True):
        made_by = paths.made_by(tensor)
        if _factors(call) and made_by and _is_part(made_by, paths, sums):
            yield from ((term, factor * inner) for term, inner in _terms(made_by, paths, sums))
        else:
            yield tensor, factor


def _residual(call: Call, paths: _Paths, sums: Collection[int]) -> _Sum | None:
    """Return an addition of tensors that come from one; `None` if they do not, or by ways without any weights.

    x + x and x - mean(x) are no units: like any other operation, they are on the path of those around them.
    """
    terms = list(_terms(call, paths, sums))
    split = paths.split([tensor for tensor, _ in terms], sums)
    if split is None:
        return None
    reached = [(tensor, factor) for tensor, factor in terms if id(split) in paths.ancestors(tensor)]
    ways = paths.ways(split, (tensor for tensor, _ in reached))
    output = call.outputs[0]
    if isinstance(call.operation, Shortcut):
        return _Sum(call.name, split, output, ways[0], call.operation)
    if not any(map(weights_in, ways)):
        return None
    costs = [_cost(way, _changes_shape(way, split, output)) for way in ways]
    chosen = costs.index(min(costs))
    factor = reached[chosen][1]
    if not _changes_shape(ways[chosen], split, output) and not _offenders(ways[chosen], False):
        factor = sum(factor for way, (_, factor) in zip(ways, reached, strict=True) if not _offenders(way, False))
    return _Sum(call.name, split, output, ways[chosen], call.operation, factor)


def _cost(way: Sequence[Call], changes_shape: bool) -> tuple[bool, int, int, int]:
    """Return what makes a way the shortcut, the least first: nothing on it, few weight layers, few weights, few calls.

    Layers come before weights: the one projection of a wide input may have more of these than a narrow bottleneck.
    """
    layers = sum(bool(weights_in([call])) and NORMALIZATION not in kinds([call.operation]) for call in way)
    return not changes_shape and bool(_offenders(way, changes_shape)), layers, weights_in(way), len(way)


class _Paths:
    """Which tensors a tensor is made of, and the calls between two tensors."""

    def __init__(self, graph: Sequence[Call]) -> None:
        self.graph = graph
        self.seen: set[int] = set()
        """The operations inside of units, by identity."""
        self.place = {id(tensor): k for k, call in enumerate(graph) for tensor in call.outputs}
        self.used: dict[int, list[Call]] = {}
        for call in graph:
            for key in {id(tensor) for tensor in call.inputs}:
                self.used.setdefault(key, []).append(call)

    def users(self, tensor: Any) -> list[Call]:
        """Return the calls on a tensor."""
        return self.used.get(id(tensor), [])

    def made_by(self, tensor: Any) -> Call | None:
        """Return the call that returned a tensor; `None` for an input."""
        place = self.place.get(id(tensor))
        return None if place is None else self.graph[place]

    def ancestors(self, tensor: Any, until: Collection[int] = ()) -> dict[int, Any]:
        """Return a tensor and all that it was made of, by identity; no further than the tensors in `until`."""
        found, waiting = {}, [tensor]
        while waiting:
            tensor = waiting.pop()
            if id(tensor) not in found:
                found[id(tensor)] = tensor
                if id(tensor) in self.place and id(tensor) not in until:
                    waiting += self.graph[self.place[id(tensor)]].inputs
        return found

    def descendants(self, start: Any) -> set[int]:
        """Return the identities of a tensor and of all that is made of it."""
        found = {id(start)}
        for call in self.graph[self.place.get(id(start), -1) + 1 :]:
            if any(id(tensor) in found for tensor in call.inputs):
                found |= {id(tensor) for tensor in call.outputs}
        return found

    def between(self, start: Any, end: Any) -> list[Call]:
        """Return the calls on the ways from one tensor to another, in order."""
        on_the_way = (self.descendants(start) & self.ancestors(end, until={id(start)}).keys()) - {id(start)}
        return [self.graph[place] for place in sorted({self.place[key] for key in on_the_way})]

    def ways(self, start: Any, ends: Iterable[Any]) -> list[tuple[Call, ...]]:
        """Return the calls on the ways from one tensor to each of others."""
        return [tuple(self.between(start, end)) for end in ends]

    def latest(self, tensors: Iterable[Any]) -> Any:
        """Return the tensor that is made last; `None` without one."""
        return max(tensors, key=lambda tensor: self.place.get(id(tensor), -1), default=None)

    def split(self, tensors: Sequence[Any], sums: Collection[int]) -> Any:
        """Return the last tensor that at least two of the tensors are made of; `None` without one.

        If there are sums among those, it comes from the last of them: what else the ways share, such as a mask or
        the embedding of a time, is not x.
        """
        ancestors = [self.ancestors(tensor) for tensor in tensors]
        common = {
            key: tensor
            for number, one in enumerate(ancestors)
            for other in ancestors[number + 1 :]
            for key, tensor in one.items()
            if key in other
        }
        last = self.latest(tensor for key, tensor in common.items() if key in sums)
        if last is not None:
            from_last = self.descendants(last)
            common = {key: tensor for key, tensor in common.items() if key in from_last}
        return self.latest(common.values())

    def after_last(self, split: Any, sums: Collection[int]) -> list[Call] | None:
        """Return the calls between the last addition before a split and the split.

        `None` without one, and where layers between two rows of units change the shape: the sum could not be passed
        on as it is. A reshape alone is not meant.
        """
        before = self.ancestors(split, until=sums)
        last = self.latest(tensor for key, tensor in before.items() if key in sums)
        if last is None:
            return None
        section = self.between(last, split)
        pure = all(keras_name(call.operation) in _RESHAPES for call in section if _reshapes(call))
        return section if pure or not _changes_shape(section, last, split) else None


# ---- what changes the shape, and what leaves the values alone -----------------------------------------------------


def _changes_shape(way: Sequence[Call], start: Any, end: Any) -> bool:
    """Return whether two tensors differ in shape, or, at an open size, whether a stride is between them."""
    return tuple(start.shape[1:]) != tuple(end.shape[1:]) or any(
        None in call.inputs[0].shape[1:] and _is_strided(call.operation) for call in way
    )


def _reshapes(call: Call) -> bool:
    shapes = {tuple(tensor.shape[1:]) for tensor in (call.inputs[0], call.outputs[0])}
    return len(shapes) > 1 or (None in call.inputs[0].shape[1:] and _is_strided(call.operation))


def _is_strided(operation: Any) -> bool:
    strides = getattr(operation, "strides", None) or 1
    return max(strides if isinstance(strides, (tuple, list)) else (strides,)) > 1


def _offenders(way: Sequence[Call], changes_shape: bool) -> list[Call]:
    """Return the calls on a way that are not known to leave the values alone.

    Where the shape has to change, a projection or a resampling that changes it is none, nor the normalization of a
    projection's output.
    """
    found, projected = [], False
    for call in way:
        name = _trusted_name(call.operation)
        if changes_shape and _reshapes(call) and (_projects(call) or _resamples(call)):
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
    return _trusted_name(call.operation) in _PROJECTIONS and _is_linear(call.operation)


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
    return _trusted_name(operation) in _RESAMPLES


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
            if keras_name(call.operation) in _RESHAPES:

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


def _is_ours(kind: Any) -> bool:
    return bool(kind.__module__.split(".")[0] == "keras_preact")


def _trusted_name(operation: Any) -> str:
    """Return the name of a class of Keras's or of this package; `""` for any other."""
    return keras_name(operation) or (type(operation).__name__ if _is_ours(type(operation)) else "")


def _is_linear(operation: Any) -> bool:
    linear = keras.activations.linear
    return getattr(operation, "activation", linear) is linear


# ---- the verdict --------------------------------------------------------------------------------------------------


def _judge(found: _Sum, before: list[Call] | None) -> UnitPath:
    """Return what is on the path of a unit that is written in the graph, layer by layer."""
    changes_shape = _changes_shape(found.shortcut, found.split, found.output)
    faults = list(_before_split(before or [], changes_shape))
    faults += _on_shortcut(_offenders(found.shortcut, changes_shape), changes_shape)
    if isinstance(found.operation, Shortcut):
        faults += _of_shortcut(found.operation)
    elif found.factor != 1:
        faults.append(f"scaled shortcut: {keras_name(found.operation)} adds {found.factor:g} times x")
    return UnitPath(found.name, _names(before or []), _names(found.shortcut), tuple(faults))


def _before_split(section: Sequence[Call], changes_shape: bool = False) -> Iterator[str]:
    """Yield what is wrong between an addition and the next split.

    A unit that changes the shape may share its pre-activation with the shortcut: one norm, then one activation.
    """
    offenders = _offenders(section, False)
    by_kind = _by_kind(offenders)
    shared = [kinds([call.operation]) for call in offenders]
    if changes_shape and shared in ([{NORMALIZATION}], [{ACTIVATION}], [{NORMALIZATION}, {ACTIVATION}],
                                    [{NORMALIZATION, ACTIVATION}]):  # fmt: skip
        return
    activated = [*by_kind.pop(NORMALIZATION, []), *by_kind.pop(ACTIVATION, [])]
    if {NORMALIZATION, ACTIVATION} <= kinds(call.operation for call in offenders):
        yield (
            f"activated shortcut: {_words(offenders)} between the previous addition and the split; the shortcut gets "
            "it too, so give it the sum itself"
        )
    elif activated:
        yield f"after the previous addition: {_words(activated)}; f is not the identity"
    for kind, says in (
        (WEIGHTS, "between the previous addition and the split; f is not the identity"),
        (SCALING, "scales the sum before the split"),
        (DROPOUT, "drops values of the sum before the split"),
        (OTHER, "between the previous addition and the split is not known to leave the sum as it is"),
    ):
        if kind in by_kind:
            yield f"{_words(by_kind[kind])} {says}"


def _on_shortcut(offenders: Sequence[Call], changes_shape: bool) -> Iterator[str]:
    """Yield what is wrong on a shortcut, by kinds."""
    by_kind = _by_kind(offenders)
    if WEIGHTS in by_kind:
        where = "the shortcut besides the projection" if changes_shape else "a shortcut that changes no shape"
        yield f"{_words(by_kind[WEIGHTS])} on {where}"
    activated = [*by_kind.get(NORMALIZATION, []), *by_kind.get(ACTIVATION, [])]
    if activated:
        yield f"activated shortcut: {_words(activated)} on it"
    if SCALING in by_kind:
        yield f"scaled shortcut: {_words(by_kind[SCALING])} on it"
    if DROPOUT in by_kind:
        yield f"dropout on the shortcut: {_words(by_kind[DROPOUT])}"
    if OTHER in by_kind:
        yield f"{_words(by_kind[OTHER])} on the shortcut is not known to leave x as it is"


def _judge_unit(found: _Sum, unit: ResidualLayer, before: list[Call] | None) -> UnitPath:
    """Return what is on the path of a unit of this package: the unit says what it has."""
    faults = list(_before_split(before or []))
    faults += _own_methods(found.operation, unit)
    faults += _of_shortcut(unit.shortcut, unit.changes_shape)
    if unit.shares_preactivation and unit.first and not unit.changes_shape and before is not None:
        faults.append(f"activated shortcut: {_layer_words(unit.first)} before the split; give it the sum itself")
    if unit.last:
        faults.append(f"after the addition: {_layer_words(unit.last)}; f is not the identity")
    names = () if unit.shortcut.keeps_identity else (type(unit.shortcut).__name__,)
    return UnitPath(found.name, _names(before or []), names, tuple(faults), found.copies)


def _own_methods(*layers: Any) -> Iterator[str]:
    """Yield what a subclass of a unit or of a block has of its own where the identity path runs through."""
    for layer in dict.fromkeys(layers):
        for name in ("call", "terms", "preactivate", "add", "after_addition"):
            method = getattr(type(layer), name, None)
            if method is not None and not _is_ours(method):
                yield f"{type(layer).__name__}.{name} is not known to leave x as it is"


def _of_shortcut(shortcut: Shortcut, changes_shape: bool = False) -> Iterator[str]:
    """Yield what is wrong with a shortcut layer of this package, or of a class made from one."""
    kind = type(shortcut)
    if not _is_ours(kind):
        yield f"the shortcut {kind.__name__} is not known to leave x as it is"
    elif isinstance(shortcut, ConvShortcut):
        if not changes_shape:
            yield "Conv2D on a shortcut that changes no shape"
    elif isinstance(shortcut, DropoutShortcut):
        if shortcut.rate:
            yield f"dropout on the shortcut: rate {shortcut.rate:g}"
    elif isinstance(shortcut, ConstantScaling):
        if shortcut.shortcut != 1:
            yield f"scaled shortcut: the factor is {shortcut.shortcut:g}"
    elif kind not in (IdentityShortcut, ScaledResidual):
        yield f"scaled shortcut: {kind.__name__}"


def _by_kind(offenders: Sequence[Call]) -> dict[str, list[Call]]:
    """Return calls by what they do to a signal; one that normalizes and activates is a normalization."""
    found: dict[str, list[Call]] = {}
    for call in offenders:
        kind = next(kind for kind in (NORMALIZATION, WEIGHTS, SCALING, DROPOUT, ACTIVATION, OTHER)
                    if kind in kinds([call.operation]))  # fmt: skip
        found.setdefault(kind, []).append(call)
    return found


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


def _name(operation: Any) -> str:
    """Return the name of the class, or of an `Activation` that of its function."""
    name = type(operation).__name__
    return getattr(operation.activation, "__name__", name) if name == "Activation" else name


def _names(section: Iterable[Call]) -> tuple[str, ...]:
    return tuple(_name(call.operation) for call in section)


def _words(section: Iterable[Call]) -> str:
    return ", ".join(_names(section))


def _layer_words(layers: Iterable[Any]) -> str:
    """Return layers of a unit by Keras's names: a `PreActivation` is two layers of those."""
    words = "BatchNormalization, ReLU"
    return ", ".join(words if isinstance(layer, PreActivation) else _name(layer) for layer in layers)
