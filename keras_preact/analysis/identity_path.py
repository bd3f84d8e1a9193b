"""A linter for any residual network: it reports what is on the shortcuts and after the additions.

It reads the graph of a functional Keras model. An addition of two tensors with a common ancestor is a residual unit.
Its shortcut is the route from the split to the addition that leaves the values unchanged, or else the one with the
fewest weight layers. Only operations that are known to leave the values unchanged pass. All others are reported,
unknown layers included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.analysis.additions import Addition, Paths, additions, is_partial_sum
from keras_preact.analysis.chain import without_updates
from keras_preact.analysis.identity_rules import (
    ACTIVATION,
    DROPOUT,
    NORMALIZATION,
    OTHER,
    SCALING,
    WEIGHTS,
    does_change_shape,
    kinds,
    offenders_on,
    trusted_name,
)
from keras_preact.analysis.propagation import as_float64
from keras_preact.errors import InputError
from keras_preact.keras_private import layers_inside, nodes_of
from keras_preact.layers.graph import Call, calls, graph_of, is_ours, keras_name
from keras_preact.layers.preactivation import PreActivation
from keras_preact.layers.projection import ConvShortcut
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import ConstantScaling, DropoutShortcut, IdentityShortcut, ScaledResidual, Shortcut


@dataclass(frozen=True)
class UnitPath:
    """The identity path of one residual unit.

    Attributes:
        unit: name of the unit or of its addition, prefixed with the names of enclosing models.
        before_split: names of the operations between the previous addition and the split.
        shortcut: names of the operations on the shortcut.
        faults: one sentence each; empty if the path is the identity, or a projection that changes the shape.
        copies: number of units in a `UnitStack`, which are identical; otherwise 1.
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
        units: the units in the order of the graph.
        unread: layers outside the units that may contain units: custom layers, whose `call` cannot be read, and layers
            that run a functional model, such as `TimeDistributed`.
    """

    model: str
    units: tuple[UnitPath, ...]
    unread: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether no unit has a fault. The layers in `unread` are not checked."""
        return not any(unit.faults for unit in self.units)

    def __str__(self) -> str:
        """Return the report: one line per fault, with the units that have it."""
        count = _count(self.units)
        bad = _count(unit for unit in self.units if unit.faults)
        by_fault: dict[str, list[UnitPath]] = {}
        for unit in self.units:
            for fault in unit.faults:
                by_fault.setdefault(fault, []).append(unit)
        first = f"{bad} of {count} residual units have something on the identity path"
        lines = [f"{self.model}: " + (first if bad else f"{count} residual units, and nothing on the identity path")]
        lines += [f"  {_units_in_words(units, count)}: {fault}" for fault, units in by_fault.items()]
        return "\n".join(lines + [f"  not checked: {_list(self.unread)}"] * bool(self.unread))


def _count(units: Iterable[UnitPath]) -> int:
    return sum(unit.copies for unit in units)


def _units_in_words(units: Sequence[UnitPath], total: int) -> str:
    """Return the units that share a fault, in words."""
    names = [unit.unit + (f" ({unit.copies} units)" if unit.copies > 1 else "") for unit in units]
    if len(names) > 1 and _count(units) == total:
        return f"all {total} units"
    return _list(names, f"{_count(units)} units")


def _list(names: Sequence[str], many: str = "") -> str:
    """Return a list of names; of more than three, only the first and the last."""
    return ", ".join(names) if len(names) <= 3 else f"{many or len(names)}, {names[0]} to {names[-1]}"


def check_identity_path(model: keras.Model) -> IdentityPath:
    """Report what is on the shortcuts and after the additions of a residual network.

    The identity passes, and so do casts and operations that only change the shape. A unit that changes the shape may
    have a projection, pooling or padding on its shortcut, with a norm after the projection. It may also share its first
    norm and activation with the shortcut. Layers after the last addition are the head and are not checked.

    Args:
        model: any functional Keras model, made of layers of this package, of Keras, or of both. Nested models are
            checked too. An addition inside the `call` of a custom layer, or in a model that a wrapper or a `UnitStack`
            runs, is not recognized as a unit; the report names the layers that may contain units. A custom `Shortcut`
            that declares `keeps_identity` is measured: it passes if, for F = 0, it returns random x exactly, at
            inference and in training.

    Raises:
        InputError: the model is not functional, or none of its additions joins layers with weights to their input.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> print(check_identity_path(cifar_resnet(depth=14)))
    resnet14_full_preactivation: 6 residual units, and nothing on the identity path
    >>> print(check_identity_path(cifar_resnet(depth=14, placement="original")))
    resnet14_original: 6 of 6 residual units have something on the identity path
      all 6 units: after the addition: ReLU; f is not the identity
    """
    graph = calls(model)
    paths = Paths(graph)
    units = tuple(_units(paths))
    unread = _unread(paths)
    if not units:
        none = f"{model.name} has no residual units: no addition in its graph joins layers with weights to their input"
        if unread:
            raise InputError(
                f"{none}, but {_list(unread)} may contain units, which were not checked; pass the model inside, or "
                "write the additions in the graph"
            )
        raise InputError(f"{none}; pass a residual network, with its additions as keras.layers.Add or +")
    return IdentityPath(model.name, units, unread)


def _units(paths: Paths) -> Iterator[UnitPath]:
    for call in paths.graph:
        if is_partial_sum(call, paths):
            continue
        for found in additions(call, paths):
            before = None
            if found.split is not None:
                before = paths.after_last(found.split)
                paths.seen |= {id(inside.operation) for inside in paths.between(found.split, found.output)}
            yield _judge_unit(found, found.layer, before) if found.layer else _judge(found, before)
            paths.add_sum(found.output)


def _unread(paths: Paths) -> tuple[str, ...]:
    """Return the layers outside the units that may contain units, by name and class."""
    return tuple(
        f"{call.name} ({type(call.operation).__name__})"
        for call in paths.graph
        if id(call.operation) not in paths.seen
        and isinstance(call.operation, keras.layers.Layer)
        and _may_hide_units(call)
    )


def _may_hide_units(call: Call) -> bool:
    """Return whether a call runs a model that joins tensors, or a custom layer with weights or several inputs."""
    parts = layers_inside(call.operation)
    if any(map(_joins, parts)):
        return True
    is_custom = not all(map(trusted_name, [call.operation, *parts]))
    return is_custom and (len(call.inputs) > 1 or any(part.weights for part in parts))


def _joins(part: keras.layers.Layer) -> bool:
    """Return whether a layer inside another is a functional model whose graph joins tensors, perhaps by addition."""
    graph = graph_of(part)
    return graph is not None and any(len(node.input_tensors) > 1 for node in nodes_of(graph))


def _judge(found: Addition, before: list[Call] | None) -> UnitPath:
    """Return the identity path of a unit that consists of separate layers."""
    changes_shape = does_change_shape(found.shortcut, found.split, found.output)
    faults = list(_faults_before_split(before or [], changes_shape))
    faults += _faults_on_shortcut(offenders_on(found.shortcut, changes_shape), changes_shape)
    if isinstance(found.operation, Shortcut):
        x = found.shortcut[-1].outputs[0] if found.shortcut else found.split
        faults += _shortcut_faults(found, found.operation, tuple(x.shape[1:]) != tuple(found.output.shape[1:]))
    elif found.factor != 1:
        faults.append(f"scaled shortcut: {keras_name(found.operation)} adds {found.factor:g} times x")
    return UnitPath(found.name, _names(before or []), _names(found.shortcut), tuple(faults))


def _faults_before_split(section: Sequence[Call], changes_shape: bool = False) -> Iterator[str]:
    """Yield the faults between an addition and the next split.

    A unit that changes the shape may share its pre-activation with the shortcut: one norm, then one activation.
    """
    offenders = offenders_on(section, False)
    by_kind = _by_kind(offenders)
    shared = [kinds([call.operation]) for call in offenders]
    if changes_shape and shared in ([{NORMALIZATION}], [{ACTIVATION}], [{NORMALIZATION}, {ACTIVATION}],
                                    [{NORMALIZATION, ACTIVATION}]):  # fmt: skip
        return
    activated = [*by_kind.pop(NORMALIZATION, []), *by_kind.pop(ACTIVATION, [])]
    if {NORMALIZATION, ACTIVATION} <= kinds(call.operation for call in offenders):
        yield (
            f"activated shortcut: {_words(offenders)} between the previous addition and the split; pass the sum "
            "itself to the shortcut"
        )
    elif activated:
        yield f"after the previous addition: {_words(activated)}; f is not the identity"
    for kind, fault in (
        (WEIGHTS, "between the previous addition and the split; f is not the identity"),
        (SCALING, "scales the sum before the split"),
        (DROPOUT, "drops values of the sum before the split"),
        (OTHER, "between the previous addition and the split is not known to leave the sum unchanged"),
    ):
        if kind in by_kind:
            yield f"{_words(by_kind[kind])} {fault}"


def _faults_on_shortcut(offenders: Sequence[Call], changes_shape: bool) -> Iterator[str]:
    """Yield the faults on a shortcut, by kind."""
    by_kind = _by_kind(offenders)
    if WEIGHTS in by_kind:
        where = "the shortcut besides the projection" if changes_shape else "a shortcut between equal shapes"
        yield f"{_words(by_kind[WEIGHTS])} on {where}"
    activated = [*by_kind.get(NORMALIZATION, []), *by_kind.get(ACTIVATION, [])]
    if activated:
        yield f"activated shortcut: {_words(activated)} on it"
    if SCALING in by_kind:
        yield f"scaled shortcut: {_words(by_kind[SCALING])} on it"
    if DROPOUT in by_kind:
        yield f"dropout on the shortcut: {_words(by_kind[DROPOUT])}"
    if OTHER in by_kind:
        yield f"{_words(by_kind[OTHER])} on the shortcut is not known to leave x unchanged"


def _judge_unit(found: Addition, unit: ResidualLayer, before: list[Call] | None) -> UnitPath:
    """Return the identity path of a unit of this package, from the unit's own attributes."""
    faults = list(_faults_before_split(before or [], unit.changes_shape))
    faults += _overridden_methods(found.operation, unit)
    on_shortcut = list(_shortcut_faults(found, unit.shortcut, unit.changes_shape))
    faults += on_shortcut
    if unit.shares_preactivation and unit.preact and not unit.changes_shape and before is not None:
        faults.append(f"activated shortcut: {_layer_words(unit.preact)} before the split; pass the sum itself")
    if unit.postact:
        faults.append(f"after the addition: {_layer_words(unit.postact)}; f is not the identity")
    names = () if unit.shortcut.keeps_identity and not on_shortcut else (type(unit.shortcut).__name__,)
    return UnitPath(found.name, _names(before or []), names, tuple(faults), found.copies)


def _overridden_methods(*layers: Any) -> Iterator[str]:
    """Yield the methods on the identity path that third-party subclasses of a unit or block override."""
    for layer in dict.fromkeys(layers):
        for name in ("call", "terms", "preactivate", "add", "after_addition"):
            method = getattr(type(layer), name, None)
            if method is not None and not is_ours(method):
                yield f"{type(layer).__name__}.{name} is not known to leave x unchanged"


def _shortcut_faults(found: Addition, shortcut: Shortcut, changes_shape: bool) -> Iterator[str]:
    """Yield the faults of a shortcut layer of this package or of a subclass."""
    kind = type(shortcut)
    if not is_ours(kind):
        declares = shortcut.keeps_identity and not (changes_shape and shortcut.changes_shape)
        what = _measured_fault(found, shortcut) if declares else "is not known to leave x unchanged"
        if what:
            yield f"the shortcut {kind.__name__} {what}"
    elif isinstance(shortcut, ConvShortcut):
        if not changes_shape:
            yield "Conv2D on a shortcut between equal shapes"
    elif isinstance(shortcut, DropoutShortcut):
        if shortcut.rate:
            yield f"dropout on the shortcut: rate {shortcut.rate:g}"
    elif isinstance(shortcut, ConstantScaling):
        if shortcut.shortcut != 1:
            yield f"scaled shortcut: the factor is {shortcut.shortcut:g}"
    elif kind not in (IdentityShortcut, ScaledResidual):
        yield f"scaled shortcut: {kind.__name__}"


def _measured_fault(found: Addition, shortcut: Shortcut) -> str:
    """Return what is wrong with a custom shortcut that declares `keeps_identity`, in words; `""` if it returns x."""
    shortcuts = [shortcut]
    if shortcut.weights:
        shortcuts += [unit.shortcut for unit in found.copied_units()]
    batch, *sizes = found.output.shape
    shape = (batch or 2, *(size or 8 for size in sizes))
    try:
        at_inference, in_training = (
            max(_identity_error(each, shape, training) for each in shortcuts) for training in (False, True)
        )
    except Exception:  # a custom `call` may raise anything
        return f"declares keeps_identity but fails on x and F of shape {shape}"
    if not at_inference and not in_training:
        return ""
    when = "" if at_inference else " in training"
    return f"declares keeps_identity but changes x{when}, by up to {max(at_inference, in_training):.1g} × max |x|"


def _identity_error(shortcut: Shortcut, shape: Sequence[int], training: bool) -> float:
    """Return max |h(x) − x| / max |x| for random x, with F = 0; the variables of the shortcut do not change."""
    values = 10 * np.random.default_rng(0).normal(size=shape)  # large, because a shortcut may clip
    x = ops.convert_to_tensor(values, dtype=shortcut.compute_dtype)
    y = without_updates(lambda x: shortcut(x, ops.zeros_like(x)), x, training)
    before, after = as_float64(x), as_float64(y)
    if after.shape != before.shape:
        raise InputError(f"{shortcut.name} returns the shape {after.shape} for x and F of shape {before.shape}")
    error = float(np.abs(after - before).max() / np.abs(before).max())
    return error if math.isfinite(error) else math.inf


def _by_kind(offenders: Sequence[Call]) -> dict[str, list[Call]]:
    """Group calls by their effect; one that normalizes and activates counts as a normalization."""
    found: dict[str, list[Call]] = {}
    for call in offenders:
        kind = next(kind for kind in (NORMALIZATION, WEIGHTS, SCALING, DROPOUT, ACTIVATION, OTHER)
                    if kind in kinds([call.operation]))  # fmt: skip
        found.setdefault(kind, []).append(call)
    return found


def _name(operation: Any) -> str:
    """Return the name of an operation's class, or of the function of an `Activation`."""
    name = type(operation).__name__
    return getattr(operation.activation, "__name__", name) if name == "Activation" else name


def _names(section: Iterable[Call]) -> tuple[str, ...]:
    return tuple(_name(call.operation) for call in section)


def _words(section: Iterable[Call]) -> str:
    return ", ".join(_names(section))


def _layer_words(layers: Iterable[Any]) -> str:
    """Return the layers of a unit by Keras's names: a `PreActivation` is two of Keras's layers."""
    names = ("BatchNormalization, ReLU" if isinstance(layer, PreActivation) else _name(layer) for layer in layers)
    return ", ".join(names)
