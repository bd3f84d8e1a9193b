"""Find the residual units of a graph: its additions, and the routes between tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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


def additions(call: Call, paths: Paths, sums: Collection[int]) -> Iterator[Addition]:
    """Yield the residual additions of a call: one for an `Add`, one per unit for a layer of this package."""
    operation = call.operation
    if units_in(operation):
        stack = operation if isinstance(operation, UnitStack) else None
        block = operation if stack is None else stack.unit(0)
        for number, (suffix, unit) in enumerate(block.residual_layers().items()):
            split, name = None if number else call.inputs[0], call.name + suffix
            yield Addition(name, split, call.outputs[0], (), block, layer=unit, stack=stack, number=number)
    elif _factors(call) or isinstance(operation, Shortcut):
        found = _residual(call, paths, sums)
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


def is_partial_sum(call: Call, paths: Paths, sums: Collection[int]) -> bool:
    """Return whether an addition is a partial sum of another one with the same x, as `x + f` is in `x + f + g`.

    The terms of a partial sum are x and terms with weights. Other terms are faults, as in `(x + 1) + f`.
    """
    users = paths.users(call.outputs[0])
    if len(users) != 1 or not _factors(call) or not _factors(users[0]) or len(call.inputs) < 2:
        return False
    split = paths.split(call.inputs, sums)
    return (
        split is not None
        and split is paths.split(users[0].inputs, sums)
        and all(weights_in(route) or not offenders_on(route, False) for route in paths.routes(split, call.inputs))
    )


def _terms(call: Call, paths: Paths, sums: Collection[int]) -> Iterator[tuple[Any, float]]:
    """Yield the terms of an addition with their factors; its partial sums are expanded."""
    for tensor, factor in zip(call.inputs, _factors(call) or (1.0,) * len(call.inputs), strict=True):
        producer = paths.producer(tensor)
        if _factors(call) and producer and is_partial_sum(producer, paths, sums):
            yield from ((term, factor * inner) for term, inner in _terms(producer, paths, sums))
        else:
            yield tensor, factor


def _residual(call: Call, paths: Paths, sums: Collection[int]) -> Addition | None:
    """Return the addition of a unit; `None` if its terms have no common ancestor, or no route has weights.

    x + x and x - mean(x) are not units. Like any other operation, they are on the identity path of the units around.
    """
    terms = list(_terms(call, paths, sums))
    split = paths.split([tensor for tensor, _ in terms], sums)
    if split is None:
        return None
    reached = [(tensor, factor) for tensor, factor in terms if id(split) in paths.ancestors(tensor)]
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
    """Dependencies between the tensors of a graph, and the calls between two of them."""

    def __init__(self, graph: Sequence[Call]) -> None:
        self.graph = graph
        self.seen: set[int] = set()
        """Ids of the operations inside units."""
        self.position = {id(tensor): k for k, call in enumerate(graph) for tensor in call.outputs}
        self.consumers: dict[int, list[Call]] = {}
        for call in graph:
            for key in {id(tensor) for tensor in call.inputs}:
                self.consumers.setdefault(key, []).append(call)

    def users(self, tensor: Any) -> list[Call]:
        """Return the calls that use a tensor."""
        return self.consumers.get(id(tensor), [])

    def producer(self, tensor: Any) -> Call | None:
        """Return the call that produced a tensor; `None` for an input."""
        position = self.position.get(id(tensor))
        return None if position is None else self.graph[position]

    def ancestors(self, tensor: Any, until: Collection[int] = ()) -> dict[int, Any]:
        """Return a tensor and everything it depends on, by id; the search stops at the tensors in `until`."""
        found, pending = {}, [tensor]
        while pending:
            tensor = pending.pop()
            if id(tensor) not in found:
                found[id(tensor)] = tensor
                if id(tensor) in self.position and id(tensor) not in until:
                    pending += self.graph[self.position[id(tensor)]].inputs
        return found

    def descendants(self, start: Any) -> set[int]:
        """Return the ids of a tensor and of everything that depends on it."""
        found = {id(start)}
        for call in self.graph[self.position.get(id(start), -1) + 1 :]:
            if any(id(tensor) in found for tensor in call.inputs):
                found |= {id(tensor) for tensor in call.outputs}
        return found

    def between(self, start: Any, end: Any) -> list[Call]:
        """Return the calls on all routes from one tensor to another, in order."""
        common = (self.descendants(start) & self.ancestors(end, until={id(start)}).keys()) - {id(start)}
        return [self.graph[position] for position in sorted({self.position[key] for key in common})]

    def routes(self, start: Any, ends: Iterable[Any]) -> list[tuple[Call, ...]]:
        """Return the calls between one tensor and each of `ends`."""
        return [tuple(self.between(start, end)) for end in ends]

    def latest(self, tensors: Iterable[Any]) -> Any:
        """Return the tensor that is computed last; `None` if there are none."""
        return max(tensors, key=lambda tensor: self.position.get(id(tensor), -1), default=None)

    def split(self, tensors: Sequence[Any], sums: Collection[int]) -> Any:
        """Return the last tensor that at least two of the tensors depend on; `None` if there is none.

        If they depend on sums, the split comes from the last of them. Other tensors that the routes share, such as
        a mask or a time embedding, are not x.
        """
        ancestors = [self.ancestors(tensor) for tensor in tensors]
        common = {
            key: tensor
            for number, first in enumerate(ancestors)
            for second in ancestors[number + 1 :]
            for key, tensor in first.items()
            if key in second
        }
        last = self.latest(tensor for key, tensor in common.items() if key in sums)
        if last is not None:
            from_last = self.descendants(last)
            common = {key: tensor for key, tensor in common.items() if key in from_last}
        return self.latest(common.values())

    def after_last(self, split: Any, sums: Collection[int]) -> list[Call] | None:
        """Return the calls between the previous addition and a split.

        `None` if there is no previous addition, or if layers between two stages change the shape: the sum itself
        would not fit there. Reshapes do not count.
        """
        before = self.ancestors(split, until=sums)
        last = self.latest(tensor for key, tensor in before.items() if key in sums)
        if last is None:
            return None
        section = self.between(last, split)
        pure = all(keras_name(call.operation) in RESHAPES for call in section if reshapes(call))
        return section if pure or not does_change_shape(section, last, split) else None
