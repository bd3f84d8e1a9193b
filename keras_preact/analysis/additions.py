"""Find the residual units of a graph: its additions, and the routes between tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.analysis.identity_rules import (
    NORMALIZATION,
    RESHAPES,
    does_change_shape,
    kinds,
    offenders_on,
    reshapes,
)
from keras_preact.layers.graph import Call, keras_name, weights_in
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import Shortcut
from keras_preact.layers.stack import UnitStack, units_in


@dataclass(frozen=True)
class Addition:
    """The addition of a residual unit.

    Attributes:
        name: name of the unit or of the addition.
        split: the tensor where shortcut and branch split; `None` after the first unit of a block.
        output: the sum.
        shortcut: the calls on the shortcut.
        operation: the operation that adds; for a unit of this package, the block that contains it.
        factor: the factor of x in the sum: 1 for an `Add` with one shortcut.
        layer: the unit, if it belongs to this package.
        stack: the `UnitStack` of which it is the first unit, or `None`.
        number: index of the unit in its block, from 0.
    """

    name: str
    split: Any
    output: Any
    shortcut: tuple[Call, ...] = ()
    operation: Any = None
    factor: float = 1.0
    layer: ResidualLayer | None = None
    stack: UnitStack | None = None
    number: int = 0

    @property
    def copies(self) -> int:
        """Number of units that differ only in their weights."""
        return self.stack.repeats if self.stack else 1

    def copied_units(self) -> Iterator[ResidualLayer]:
        """Yield the other units of the stack."""
        if self.stack is not None:
            for k in range(1, self.stack.repeats):
                yield list(self.stack.unit(k).residual_layers().values())[self.number]


def additions(call: Call, paths: Paths) -> Iterator[Addition]:
    """Yield the residual additions of a call: one for an `Add`, one per unit for a layer of this package."""
    operation = call.operation
    if units_in(operation):
        stack = operation if isinstance(operation, UnitStack) else None
        block = operation if stack is None else stack.unit(0)
        for number, (suffix, unit) in enumerate(block.residual_layers().items()):
            split, name = None if number else call.inputs[0], call.name + suffix
            yield Addition(name, split, call.outputs[0], (), block, layer=unit, stack=stack, number=number)
    elif _factors(call) or isinstance(operation, Shortcut):
        found = _residual(call, paths)
        if found is not None:
            yield found


def _factors(call: Call) -> tuple[float, ...]:
    """Return the factor of each input of an addition; `()` for any other operation."""
    name, count = keras_name(call.operation), len(call.inputs)
    factors: dict[str, tuple[float, ...]] = {"Add": (1.0,) * count}
    if count == 2:
        factors["Subtract"] = (1.0, -1.0)
    if isinstance(call.operation, keras.layers.Average):
        factors["Average"] = (1.0 / count,) * count
    if name == "CustomScaleLayer":  # in keras.applications.InceptionResNetV2
        factors[name] = (1.0, call.operation.scale)
    return factors.get(name, ())


def is_partial_sum(call: Call, paths: Paths) -> bool:
    """Return whether an addition is a partial sum of another one with the same x, as `x + f` is in `x + f + g`.

    The terms of a partial sum are x and terms with weights. Other terms are faults, as in `(x + 1) + f`.
    """
    users = paths.users(call.outputs[0])
    if len(users) != 1 or not _factors(call) or not _factors(users[0]) or len(call.inputs) < 2:
        return False
    split = paths.split(call.inputs)
    return (
        split is not None
        and split is paths.split(users[0].inputs)
        and all(weights_in(route) or not offenders_on(route, False) for route in paths.routes(split, call.inputs))
    )


def _terms(call: Call, paths: Paths) -> Iterator[tuple[Any, float]]:
    """Yield the terms of an addition with their factors; its partial sums are expanded."""
    for tensor, factor in zip(call.inputs, _factors(call) or (1.0,) * len(call.inputs), strict=True):
        producer = paths.producer(tensor)
        if _factors(call) and producer and is_partial_sum(producer, paths):
            yield from ((term, factor * inner) for term, inner in _terms(producer, paths))
        else:
            yield tensor, factor


def _residual(call: Call, paths: Paths) -> Addition | None:
    """Return the addition of a unit; `None` if its terms have no common ancestor, or no route has weights.

    x + x and x - mean(x) are not units. Like any other operation, they are on the identity path of the units around.
    """
    terms = list(_terms(call, paths))
    split = paths.split([tensor for tensor, _ in terms])
    if split is None:
        return None
    reached = [(tensor, factor) for tensor, factor in terms if paths.depends(tensor, split)]
    routes = paths.routes(split, (tensor for tensor, _ in reached))
    output = call.outputs[0]
    if isinstance(call.operation, Shortcut):
        return Addition(call.name, split, output, routes[0], call.operation)
    if not any(map(weights_in, routes)):
        return None
    costs = [_cost(route, does_change_shape(route, split, output)) for route in routes]
    chosen = costs.index(min(costs))
    factor = reached[chosen][1]
    if not does_change_shape(routes[chosen], split, output) and not offenders_on(routes[chosen], False):
        clear = [not offenders_on(route, False) for route in routes]
        factor = sum(factor for is_clear, (_, factor) in zip(clear, reached, strict=True) if is_clear)
    return Addition(call.name, split, output, routes[chosen], call.operation, factor)


def _cost(route: Sequence[Call], changes_shape: bool) -> tuple[bool, int, int, int]:
    """Return a sort key; the smallest is the shortcut: an identity, few weight layers, few weights, few calls.

    Layers come before weights: the projection of a wide input may have more weights than a narrow bottleneck.
    """
    layers = sum(bool(weights_in([call])) and NORMALIZATION not in kinds([call.operation]) for call in route)
    return not changes_shape and bool(offenders_on(route, changes_shape)), layers, weights_in(route), len(route)


class Paths:
    """Dependencies between the tensors of a graph, and the calls between two of them.

    Each tensor has a number: those it depends on have smaller ones. A set of tensors is an integer whose bit k stands
    for tensor k, so that a thousand units need no search through the whole graph.
    """

    def __init__(self, graph: Sequence[Call]) -> None:
        self.graph = graph
        self.seen: set[int] = set()
        """Ids of the operations inside units."""
        self.sums = 0
        """The sums of the units found so far."""
        self.producers = {id(tensor): call for call in graph for tensor in call.outputs}
        self.consumers: dict[int, list[Call]] = {}
        for call in graph:
            for key in {id(tensor) for tensor in call.inputs}:
                self.consumers.setdefault(key, []).append(call)
        self._tensors: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._ancestors: list[int] = []
        inputs = [tensor for call in graph for tensor in call.inputs if id(tensor) not in self.producers]
        for tensor in reversed(inputs):  # of several inputs or outputs, the first counts as the last one computed
            self._append(tensor, 0)
        for call in graph:
            on = 0
            for tensor in call.inputs:
                on |= self.ancestors(tensor)
            for tensor in reversed(call.outputs):
                self._append(tensor, on)

    def _append(self, tensor: Any, on: int) -> None:
        """Give a tensor that depends on the set `on` the next number."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._tensors)
            self._ancestors.append(on | 1 << len(self._tensors))
            self._tensors.append(tensor)

    def users(self, tensor: Any) -> list[Call]:
        """Return the calls that use a tensor."""
        return self.consumers.get(id(tensor), [])

    def producer(self, tensor: Any) -> Call | None:
        """Return the call that produced a tensor; `None` for an input."""
        return self.producers.get(id(tensor))

    def ancestors(self, tensor: Any) -> int:
        """Return the set of a tensor and everything it depends on."""
        return self._ancestors[self._numbers[id(tensor)]]

    def depends(self, tensor: Any, on: Any) -> bool:
        """Return whether a tensor is or depends on another."""
        return bool(self.ancestors(tensor) >> self._numbers[id(on)] & 1)

    def between(self, start: Any, end: Any) -> list[Call]:
        """Return the calls on all routes from one tensor to another, in order."""
        first = self._numbers[id(start)] + 1
        after = self.ancestors(end) >> first
        tensors = (self._tensors[first + k] for k in range(after.bit_length()) if after >> k & 1)
        found = (self.producer(tensor) for tensor in tensors if self.depends(tensor, start))
        return list(dict.fromkeys(call for call in found if call is not None))

    def routes(self, start: Any, ends: Iterable[Any]) -> list[tuple[Call, ...]]:
        """Return the calls between one tensor and each of `ends`."""
        return [tuple(self.between(start, end)) for end in ends]

    def latest(self, tensors: int) -> Any:
        """Return the tensor of a set that is computed last; `None` if there are none."""
        return self._tensors[tensors.bit_length() - 1] if tensors else None

    def split(self, tensors: Sequence[Any]) -> Any:
        """Return the last tensor that at least two of the tensors depend on; `None` if there is none.

        If they depend on sums, the split comes from the last of them. Other tensors that the routes share, such as
        a mask or a time embedding, are not x.
        """
        common = any_of = 0
        for tensor in tensors:
            common |= any_of & self.ancestors(tensor)
            any_of |= self.ancestors(tensor)
        last, found = self.latest(common & self.sums), self.latest(common)
        while last is not None and not self.depends(found, last):
            common ^= 1 << self._numbers[id(found)]
            found = self.latest(common)
        return found

    def after_last(self, split: Any) -> list[Call] | None:
        """Return the calls between the previous addition and a split.

        `None` if there is no previous addition, or if layers between two stages change the shape: the sum itself
        would not fit there. Reshapes do not count.
        """
        last = self.latest(self.ancestors(split) & self.sums)
        if last is None:
            return None
        section = self.between(last, split)
        pure = all(keras_name(call.operation) in RESHAPES for call in section if reshapes(call))
        return section if pure or not does_change_shape(section, last, split) else None

    def add_sum(self, tensor: Any) -> None:
        """Note that a tensor is the sum of a unit."""
        self.sums |= 1 << self._numbers[id(tensor)]
