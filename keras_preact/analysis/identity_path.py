"""A linter for any residual network: it reports what is on the shortcuts and after the additions.

It reads the graph of a functional Keras model. An addition of two tensors that come from one is a residual unit. Of
the ways from the split to the addition, the one that leaves the values alone is the shortcut; if none does, the one
with the fewest weights. Only what is known to leave the values alone passes. Everything else is reported, unknown
layers too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.analysis.additions import Addition, Paths, additions, is_part
from keras_preact.analysis.identity_rules import (
    ACTIVATION,
    DROPOUT,
    NORMALIZATION,
    OTHER,
    SCALING,
    WEIGHTS,
    does_change_shape,
    is_ours,
    kinds,
    offenders_on,
    trusted_name,
)
from keras_preact.errors import InputError
from keras_preact.keras_private import layers_inside
from keras_preact.layers.graph import Call, calls, keras_name
from keras_preact.layers.preactivation import PreActivation
from keras_preact.layers.projection import ConvShortcut
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import ConstantScaling, DropoutShortcut, IdentityShortcut, ScaledResidual, Shortcut


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
    paths = Paths(graph)
    units = tuple(_units(paths))
    unread = _unread(paths)
    if not units:
        raise InputError(
            f"{model.name} has no residual units: its graph adds no layers with weights to what they came from"
            + (f", and the calls of its custom layers cannot be read ({_list(unread)})" if unread else "")
        )
    return IdentityPath(model.name, units, unread)


def _units(paths: Paths) -> Iterator[UnitPath]:
    sums = dict[int, Addition]()
    for call in paths.graph:
        if is_part(call, paths, sums):
            continue
        for found in additions(call, paths, sums):
            before = None
            if found.split is not None:
                before = paths.after_last(found.split, sums)
                paths.seen |= {id(inside.operation) for inside in paths.between(found.split, found.output)}
            yield _judge_unit(found, found.layer, before) if found.layer else _judge(found, before)
            sums[id(found.output)] = found


def _unread(paths: Paths) -> tuple[str, ...]:
    """Return the custom layers that may have units inside: they hold other layers, or are called on several tensors."""
    return tuple(
        f"{call.name} ({type(call.operation).__name__})"
        for call in paths.graph
        if id(call.operation) not in paths.seen
        and isinstance(call.operation, keras.layers.Layer)
        and not trusted_name(call.operation)
        and (len(call.inputs) > 1 or any(part.weights for part in layers_inside(call.operation)))
    )


def _judge(found: Addition, before: list[Call] | None) -> UnitPath:
    """Return what is on the path of a unit that is written in the graph, layer by layer."""
    changes_shape = does_change_shape(found.shortcut, found.split, found.output)
    faults = list(_before_split(before or [], changes_shape))
    faults += _on_shortcut(offenders_on(found.shortcut, changes_shape), changes_shape)
    if isinstance(found.operation, Shortcut):
        faults += _of_shortcut(found.operation)
    elif found.factor != 1:
        faults.append(f"scaled shortcut: {keras_name(found.operation)} adds {found.factor:g} times x")
    return UnitPath(found.name, _names(before or []), _names(found.shortcut), tuple(faults))


def _before_split(section: Sequence[Call], changes_shape: bool = False) -> Iterator[str]:
    """Yield what is wrong between an addition and the next split.

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


def _judge_unit(found: Addition, unit: ResidualLayer, before: list[Call] | None) -> UnitPath:
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
            if method is not None and not is_ours(method):
                yield f"{type(layer).__name__}.{name} is not known to leave x as it is"


def _of_shortcut(shortcut: Shortcut, changes_shape: bool = False) -> Iterator[str]:
    """Yield what is wrong with a shortcut layer of this package, or of a class made from one."""
    kind = type(shortcut)
    if not is_ours(kind):
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
