"""A linter for anyone's residual network: what stands on its shortcuts, and after its additions.

It reads the graph of a functional Keras model. An addition of two tensors that come from one is a residual unit; of
the two ways from the split to the addition, the one with fewer weights is the shortcut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.preactivation import PreActivation
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import ConstantScaling, ConvShortcut, DropoutShortcut
from keras_preact.layers.stack import UnitStack
from keras_preact.models.resnet import units_in
from keras_preact.models.rolling import check_functional, is_functional

NORMALIZATION, ACTIVATION, WEIGHTS, SCALING, DROPOUT, SHAPE = (
    "normalization", "activation", "weights", "scaling", "dropout", "shape",
)  # fmt: skip

# By words in the name of a layer's or operation's class, lower case; the first that is found decides.
_KINDS = (
    (SHAPE, ("pool", "padding", "pad", "getitem", "identity", "cast", "slice", "concatenate", "inputlayer", "linear")),
    (NORMALIZATION, ("norm",)),
    (DROPOUT, ("dropout", "droppath", "stochasticdepth")),
    (WEIGHTS, ("conv", "dense")),
    (SCALING, ("rescaling", "multiply", "divide", "layerscale", "scale", "gate")),
    (ACTIVATION, ("activation", "relu", "elu", "selu", "gelu", "silu", "swish", "tanh", "sigmoid", "softplus", "mish")),
)


@dataclass(frozen=True)
class UnitPath:
    """What the identity path meets at one residual unit.

    Attributes:
        unit: name of the unit, or of its addition.
        before_split: what stands between the addition before and the split.
        shortcut: what stands on the shortcut.
        faults: a sentence each; empty where the path is the identity, or a projection that changes the shape.
        copies: how many units are meant: more than 1 in a `UnitStack`, whose units are alike.
    """

    unit: str
    before_split: tuple[str, ...]
    shortcut: tuple[str, ...]
    faults: tuple[str, ...]
    copies: int = 1


@dataclass(frozen=True)
class IdentityPath:
    """What `check_identity_path` has found.

    Attributes:
        model: name of the model.
        units: in the order of the graph.
    """

    model: str
    units: tuple[UnitPath, ...]

    @property
    def is_clear(self) -> bool:
        """Whether nothing stands on the identity path."""
        return not any(unit.faults for unit in self.units)

    def __str__(self) -> str:
        """Return the report, a line a fault."""
        count = sum(unit.copies for unit in self.units)
        if self.is_clear:
            return f"{self.model}: {count} residual units, and nothing on the identity path"
        faulty = [unit for unit in self.units if unit.faults]
        names = {unit.unit: unit.unit + (f" ({unit.copies} units)" if unit.copies > 1 else "") for unit in faulty}
        faults = [f"  {names[unit.unit]}: {fault}" for unit in faulty for fault in unit.faults]
        bad = sum(unit.copies for unit in faulty)
        return "\n".join([f"{self.model}: {bad} of {count} residual units have something on the path", *faults])


def check_identity_path(model: keras.Model) -> IdentityPath:
    """Report, unit by unit, what stands on the shortcut and after the addition of a residual network.

    Args:
        model: any functional Keras model, of this package's layers, of Keras's, or of both. Models in it are looked
            into; a layer of somebody else's that hides an addition inside its `call` is not.

    Raises:
        InputError: not a functional model, or one in which nothing is added to what it came from.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> print(check_identity_path(cifar_resnet(depth=14)))
    resnet14_full_preactivation: 6 residual units, and nothing on the identity path
    >>> print(check_identity_path(cifar_resnet(depth=14, placement="original")).units[1].faults[0])
    after the addition: ReLU; f is not the identity
    """
    check_functional(model, "checked")
    units = tuple(_units(model))
    if not units:
        raise InputError(f"{model.name} has no residual units: nothing in its graph is added to what it came from")
    return IdentityPath(model.name, units)


# ---- the graph ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """An addition of a residual: the tensor before the split, the sum, and what stands on the shortcut.

    `split` is `None` where a layer of this package has begun with another unit before this one.
    """

    name: str
    split: Any
    output: Any
    shortcut: tuple[Any, ...]
    layer: ResidualLayer | None = None
    copies: int = 1


def _units(model: keras.Model) -> Iterator[UnitPath]:
    graph = _Graph(model)
    sums: dict[int, _Sum] = {}
    for operation in graph.operations:
        if is_functional(operation):
            yield from _units(operation)
            continue
        for found in graph.sums(operation):
            before = [] if found.split is None else graph.operations_after_last(found.split, sums)
            yield _judge(found, before)
            sums[id(found.output)] = found


class _Graph:
    """Who made which tensor of what. Keras has no public way to ask; all private names stand here."""

    def __init__(self, model: keras.Model) -> None:
        nodes = [node for depth in sorted(model._nodes_by_depth, reverse=True) for node in model._nodes_by_depth[depth]]
        self.nodes = [node for node in nodes if node.input_tensors]
        self.made_by = {id(tensor): node for node in self.nodes for tensor in node.outputs}
        self.place = {id(tensor): k for k, node in enumerate(self.nodes) for tensor in node.outputs}
        self.operations = list(dict.fromkeys(node.operation for node in self.nodes))

    def sums(self, operation: Any) -> Iterator[_Sum]:
        for node in self.nodes:
            if node.operation is not operation:
                continue
            tensors, output = node.input_tensors, node.outputs[0]
            if units_in(operation):
                copies = operation.repeats if isinstance(operation, UnitStack) else 1
                block = operation.unit(0) if isinstance(operation, UnitStack) else operation
                for number, (suffix, unit) in enumerate(block.residual_layers().items()):
                    yield _Sum(operation.name + suffix, None if number else tensors[0], output, (), unit, copies)
            elif type(operation).__name__ == "Add" and len(tensors) == 2:
                found = self._residual(operation.name, tensors, output)
                if found is not None:
                    yield found

    def _residual(self, name: str, tensors: Any, output: Any) -> _Sum | None:
        ancestors = [self._ancestors(tensor) for tensor in tensors]
        common = ancestors[0].keys() & ancestors[1].keys()
        if not common:
            return None
        split = ancestors[0][max(common, key=lambda tensor: self.place.get(tensor, -1))]
        ways = [self._between(split, tensor) for tensor in tensors]
        shortcut = min(ways, key=lambda way: (_weights(way), len(way)))
        return _Sum(name, split, output, tuple(shortcut))

    def _ancestors(self, tensor: Any) -> dict[int, Any]:
        """Return a tensor and all that it was made of, by identity."""
        found, waiting = {}, [tensor]
        while waiting:
            tensor = waiting.pop()
            if id(tensor) not in found:
                found[id(tensor)] = tensor
                node = self.made_by.get(id(tensor))
                waiting += node.input_tensors if node else []
        return found

    def _between(self, start: Any, end: Any) -> list[Any]:
        """Return the operations from one tensor to another, in order."""
        from_start = {id(start)}
        for node in self.nodes[self.place.get(id(start), -1) + 1 :]:
            if any(id(tensor) in from_start for tensor in node.input_tensors):
                from_start |= {id(tensor) for tensor in node.outputs}
        on_the_way = (from_start & self._ancestors(end).keys()) - {id(start)}
        return [node.operation for node in self.nodes if any(id(tensor) in on_the_way for tensor in node.outputs)]

    def operations_after_last(self, split: Any, sums: dict[int, _Sum]) -> list[Any] | None:
        """Return the operations between the last addition before a split and the split; `None` without one.

        A sum of another shape is none: what changes the shape between two rows of units cannot be the identity.
        """
        before = [tensor for key, tensor in self._ancestors(split).items() if key in sums]
        last = max(before, key=lambda tensor: self.place[id(tensor)], default=None)
        if last is None or tuple(last.shape[1:]) != tuple(split.shape[1:]):
            return None
        return self._between(last, split)


def _weights(operations: list[Any]) -> int:
    return sum(operation.count_params() for operation in operations if isinstance(operation, keras.layers.Layer))


# ---- the verdict --------------------------------------------------------------------------------------------------


def _judge(found: _Sum, before: list[Any] | None) -> UnitPath:
    if found.layer is not None:
        return _judge_unit(found, found.layer, before)
    changes_shape = tuple(found.split.shape[1:]) != tuple(found.output.shape[1:])
    faults = [] if changes_shape else list(_before_split(before or []))
    on_it, names = kinds(found.shortcut), _names(found.shortcut)
    if WEIGHTS in on_it and not changes_shape:
        faults.append(f"{names} on a shortcut that changes no shape")
    elif WEIGHTS not in on_it and on_it & {NORMALIZATION, ACTIVATION}:
        faults.append(f"activated shortcut: {names} on it")
    faults += [f"scaled shortcut: {names} on it"] if SCALING in on_it else []
    faults += [f"dropout on the shortcut: {names}"] if DROPOUT in on_it else []
    return UnitPath(found.name, tuple(map(_name, before or [])), tuple(map(_name, found.shortcut)), tuple(faults))


def _before_split(operations: list[Any]) -> Iterator[str]:
    """Yield what is wrong with what stands between an addition and the next split, in a unit that keeps the shape."""
    found, names = kinds(operations), _names(operations)
    if {NORMALIZATION, ACTIVATION} <= found:
        yield (
            f"activated shortcut: {names} stand between the addition before and the split, and feed the shortcut too; "
            "give it the sum itself"
        )
    elif found & {NORMALIZATION, ACTIVATION}:
        yield f"after the addition before: {names}; f is not the identity"
    if SCALING in found:
        yield f"{names} scales the sum before the split"
    if DROPOUT in found:
        yield f"{names} drops values of the sum before the split"


def _judge_unit(found: _Sum, unit: ResidualLayer, before: list[Any] | None) -> UnitPath:
    """The same, for a unit of this package: it says what it has."""
    faults = list(_before_split(before or []))
    shortcut = unit.shortcut
    if isinstance(shortcut, ConvShortcut) and not unit.changes_shape:
        faults.append("Conv2D on a shortcut that changes no shape")
    elif isinstance(shortcut, DropoutShortcut):
        faults.append(f"dropout on the shortcut: rate {shortcut.rate:g}")
    elif isinstance(shortcut, ConstantScaling) and shortcut.shortcut != 1:
        faults.append(f"scaled shortcut: the factor is {shortcut.shortcut:g}")
    elif not shortcut.keeps_identity and not isinstance(shortcut, (ConvShortcut, ConstantScaling)):
        faults.append(f"scaled shortcut: {type(shortcut).__name__}")
    if unit.shares_preactivation and unit.first and not unit.changes_shape and before is not None:
        faults.append(f"activated shortcut: {_names(unit.first)} stand before the split; give it the sum itself")
    if unit.last:
        faults.append(f"after the addition: {_words(unit)}; f is not the identity")
    names = () if shortcut.keeps_identity else (type(shortcut).__name__,)
    return UnitPath(found.name, tuple(map(_name, before or [])), names, tuple(faults), found.copies)


def _words(unit: ResidualLayer) -> str:
    """Return what stands after the addition, by Keras's names: a `PreActivation` is two layers of those."""
    words = "BatchNormalization, ReLU"
    return ", ".join(words if isinstance(layer, PreActivation) else _name(layer) for layer in unit.last)


def kinds(operations: Iterable[Any]) -> set[str]:
    """Return what operations or layers do to a signal, as far as their classes say.

    >>> sorted(kinds([keras.layers.ReLU(), keras.layers.Conv2D(1, 1)])), kinds([keras.layers.Activation("linear")])
    (['activation', 'weights'], {'shape'})
    """
    found: set[str] = set()
    for operation in operations:
        name = _name(operation).lower()
        found |= {next((kind for kind, words in _KINDS if any(word in name for word in words)), "unknown")}
        if isinstance(operation, keras.layers.BatchNormalization):  # a PreActivation is one, whatever its name
            found.add(NORMALIZATION)
        if getattr(operation, "activation", keras.activations.linear) is not keras.activations.linear:
            found.add(ACTIVATION)
    return found


def _name(operation: Any) -> str:
    """Return the name of the class, or of an `Activation` that of its function."""
    name = type(operation).__name__
    return getattr(operation.activation, "__name__", name) if name == "Activation" else name


def _names(operations: Any) -> str:
    return ", ".join(map(_name, operations))
