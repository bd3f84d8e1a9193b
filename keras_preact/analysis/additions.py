"""The additions of a graph, and the paths between them: where residual units are."""

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


def additions(call: Call, paths: Paths, sums: Collection[int]) -> Iterator[Addition]:
    """Yield the additions of a residual in a call: one for an `Add`, those of its units for a layer of this package."""
    operation = call.operation
    if units_in(operation):
        copies = operation.repeats if isinstance(operation, UnitStack) else 1
        block = operation.unit(0) if isinstance(operation, UnitStack) else operation
        for number, (suffix, unit) in enumerate(block.residual_layers().items()):
            split = None if number else call.inputs[0]
            yield Addition(call.name + suffix, split, call.outputs[0], operation=block, layer=unit, copies=copies)
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


def is_part(call: Call, paths: Paths, sums: Collection[int]) -> bool:
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
        and all(weights_in(way) or not offenders_on(way, False) for way in paths.ways(split, call.inputs))
    )


def _terms(call: Call, paths: Paths, sums: Collection[int]) -> Iterator[tuple[Any, float]]:
    """Yield the tensors that an addition adds, those of the additions that are part of it too, and their factors."""
    for tensor, factor in zip(call.inputs, _factors(call) or (1.0,) * len(call.inputs), strict=True):
        made_by = paths.made_by(tensor)
        if _factors(call) and made_by and is_part(made_by, paths, sums):
            yield from ((term, factor * inner) for term, inner in _terms(made_by, paths, sums))
        else:
            yield tensor, factor


def _residual(call: Call, paths: Paths, sums: Collection[int]) -> Addition | None:
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
        return Addition(call.name, split, output, ways[0], call.operation)
    if not any(map(weights_in, ways)):
        return None
    costs = [_cost(way, does_change_shape(way, split, output)) for way in ways]
    chosen = costs.index(min(costs))
    factor = reached[chosen][1]
    if not does_change_shape(ways[chosen], split, output) and not offenders_on(ways[chosen], False):
        factor = sum(factor for way, (_, factor) in zip(ways, reached, strict=True) if not offenders_on(way, False))
    return Addition(call.name, split, output, ways[chosen], call.operation, factor)


def _cost(way: Sequence[Call], changes_shape: bool) -> tuple[bool, int, int, int]:
    """Return what makes a way the shortcut, the least first: nothing on it, few weight layers, few weights, few calls.

    Layers come before weights: the one projection of a wide input may have more of these than a narrow bottleneck.
    """
    layers = sum(bool(weights_in([call])) and NORMALIZATION not in kinds([call.operation]) for call in way)
    return not changes_shape and bool(offenders_on(way, changes_shape)), layers, weights_in(way), len(way)


class Paths:
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
        pure = all(keras_name(call.operation) in RESHAPES for call in section if reshapes(call))
        return section if pure or not does_change_shape(section, last, split) else None
