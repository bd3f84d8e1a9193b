"""Checks of the configuration of an untrusted `.keras` file, before Keras deserializes it.

A configuration names classes and functions, which Keras looks up and calls. Here each name is resolved as in Keras, and
the object must be on an allowlist and of the kind that its position requires: a layer in a list of layers, an
initializer as an initializer. Everything else is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from inspect import isfunction
from typing import Any

import keras

from keras_preact.errors import InputError, shown
from keras_preact.layers.convolutions import INITIALIZERS
from keras_preact.layers.graph import is_ours
from keras_preact.models.saving.allowlist import (
    ARGUMENT_LIMITS,
    ARRAY_DTYPES,
    BY_NAME,
    COMPILE_KEYS,
    GRAPH_KEYS,
    INHERITED,
    LAYER,
    LOOKUPS,
    MAX_CALLS,
    MAX_DEPTH,
    MAX_SEQUENTIAL_LAYERS,
    METRIC_NAMES,
    MODEL,
    OBJECT_KEYS,
    OPERATION,
    POSITIONS,
    SAFE_PATTERN,
    SIZE_LIMIT,
    SUFFIXES,
    TORCH_OPTIMIZERS,
    UNBOUNDED,
    Known,
    known,
    named,
)

LOAD_IF_TRUSTED = "load it with keras.models.load_model if you trust it"


def objects(config: Any) -> Iterator[dict[str, Any]]:
    """Yield all serialized objects in a configuration, at any depth."""
    if isinstance(config, dict):
        if "class_name" in config:
            yield config
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from objects(value)


def name_publicly(config: Any) -> None:
    """Name optimizers by their public module. On PyTorch, Keras writes private modules, which other backends lack."""
    for found in objects(config):
        if isinstance(found.get("module"), str) and TORCH_OPTIMIZERS.fullmatch(found["module"]):
            found.update(module="keras.optimizers", registered_name=None)


def check_configuration(name: str, config: dict[str, Any], size: int) -> None:
    """Check that a configuration describes a model of allowed objects, with sizes in proportion to the file.

    Args:
        name: of the file, for messages.
        config: the parsed `config.json`.
        size: of the file in bytes.

    Raises:
        InputError: the configuration contains another object, or a size that is too large.
    """
    _Check(name, size).root(config)


def _from_this_package(custom: Any, class_name: str) -> Known | None:
    """Return a registered class if it is from this package. A file must not choose classes of the loading program."""
    if not isinstance(custom, type) or not is_ours(custom):
        return None
    kinds = {
        LAYER: keras.layers.Layer,
        "initializer": keras.initializers.Initializer,
        "loss": keras.losses.Loss,
        "optimizer": keras.optimizers.Optimizer,
        "schedule": keras.optimizers.schedules.LearningRateSchedule,
    }
    kind = next((kind for kind, base in kinds.items() if issubclass(custom, base)), None)
    return Known(custom, kind) if kind and custom.__name__ == class_name else None


def _count_calls(config: Any) -> int:
    """Return how many objects Keras creates or calls to build a configuration.

    The layers of a model are called as often as the model, and the units of an unrolled stack are created one by one.
    """
    if isinstance(config, list):
        return sum(map(_count_calls, config))
    if not isinstance(config, dict):
        return 0
    inside = sum(_count_calls(value) for key, value in config.items() if key != "compile_config")
    repeats, nodes = config.get("repeats"), config.get("inbound_nodes")
    if isinstance(repeats, int) and not config.get("rolled"):
        inside = max(repeats, 1) * max(inside, 1)
    if "class_name" in config and not str(config["class_name"]).startswith("__"):
        inside = (inside + 1) * max(len(nodes) if isinstance(nodes, list) else 1, 1)
    return inside


def _tensors(value: Any) -> Iterator[tuple[str, int]]:
    """Yield the source of each tensor in the arguments of a call: the layer's name and the number of its call."""
    for found in objects(value):
        if found["class_name"] == "__keras_tensor__":
            history = found["config"]["keras_history"]
            yield history[0], history[1]


@dataclass
class _Check:
    """The check of one file. A position is the name of an argument, and its kinds are those of the objects allowed."""

    name: str
    size: int
    shared: dict[Any, Any] = field(default_factory=dict)

    def root(self, config: dict[str, Any]) -> None:
        calls = _count_calls(config)
        if calls > MAX_CALLS + self.size // 50:
            raise self.refused(f"creates {calls:,} objects from {self.size:,} bytes", LOAD_IF_TRUSTED)
        self.object(config, (MODEL,), "the model", 0)

    def refused(self, fault: str, remedy: str = "save it again") -> InputError:
        return InputError(f"{self.name} {fault}; {remedy}")

    # ---- values -----------------------------------------------------------------------------------------------

    def value(self, value: Any, position: str, depth: int, kinds: tuple[str, ...] | None = None) -> None:
        """Check an argument: a number, a string, a list or dictionary, or an object of the position's kinds."""
        if kinds is None:
            kinds = POSITIONS.get(position) or SUFFIXES.get(position.rsplit("_", 1)[-1], ())
        if depth > MAX_DEPTH:
            raise self.refused(f"nests more than {MAX_DEPTH} levels deep", "split the model")
        if isinstance(value, list):
            for inside in value:
                self.value(inside, position, depth + 1, kinds)
        elif isinstance(value, dict) and "class_name" in value:
            self.object(value, kinds, position, depth + 1)
        elif isinstance(value, dict):
            for key, inside in value.items():  # the keys of a plain dictionary allow no objects
                inherits = position in INHERITED
                self.value(inside, position if inherits else key, depth + 1, kinds if inherits else ())
        elif isinstance(value, str):
            self.string(value, position, kinds)
        elif isinstance(value, int) and not isinstance(value, bool):
            self.integer(value, position)

    def string(self, value: str, position: str, kinds: tuple[str, ...]) -> None:
        """Check a string that Keras may resolve to an object: only to one of the position's kinds."""
        if keras.saving.get_registered_object(value) is not None:
            raise self.refused(f"asks for {shown(value)} as {shown(position)}", LOAD_IF_TRUSTED)
        by_name = [kind for kind in kinds if kind in BY_NAME]
        if not by_name or position == "dtype" or (position.endswith("initializer") and value in INITIALIZERS):
            return
        if "metric" in by_name and value in METRIC_NAMES:
            return
        if not any(value in named(kind) or value.lower() in named(kind) for kind in by_name):
            raise self.refused(f"asks for {shown(value)} as {shown(position)}, which Keras does not have")

    def integer(self, value: int, position: str) -> None:
        limit = ARGUMENT_LIMITS.get(position, max(self.size, SIZE_LIMIT))
        if position not in UNBOUNDED and abs(value) > limit:
            raise self.refused(
                f"asks for {shown(position)} of {shown(f'{value:,}')}, more than {limit:,}", LOAD_IF_TRUSTED
            )

    def numbers(self, value: Any) -> None:
        """Refuse a nested list that contains anything but numbers."""
        if isinstance(value, list):
            for inside in value:
                self.numbers(inside)
        elif not isinstance(value, (int, float)):
            raise self.refused(f"has {shown(value)} in an array")

    # ---- objects ----------------------------------------------------------------------------------------------

    def object(self, found: dict[str, Any], kinds: tuple[str, ...], position: str, depth: int) -> None:
        if found["class_name"] in ("__numpy__", "__tensor__"):
            self.array(found.get("config"), kinds, position)
        elif found["class_name"] == "function":
            self.function(found, kinds, position)
        else:
            self.instance(found, kinds, position, depth)

    def instance(self, found: dict[str, Any], kinds: tuple[str, ...], position: str, depth: int) -> None:
        """Check an instance: its class must be allowed and of the position's kinds, and so must its arguments."""
        thing, config = self.resolved(found, kinds), found.get("config")
        if thing is None or thing.kind not in kinds or not isinstance(config, dict):
            name = f"{shown(found.get('module'))}.{shown(found['class_name'])}"
            role = "among its layers" if position == "layers" else f"as {shown(position)}"
            allowed = f" (allowed: {', '.join(kinds)})" if kinds and thing is not None else ""
            raise self.refused(f"asks for {name} {role}{allowed}", LOAD_IF_TRUSTED)
        if extra := set(found) - OBJECT_KEYS - (GRAPH_KEYS if position == "layers" else set()):
            raise self.refused(f"has an unknown key {shown(sorted(extra)[0])} in the configuration of an object")
        self.shared_object(found, thing)
        self.arguments(thing, found, depth)

    def resolved(self, found: dict[str, Any], kinds: tuple[str, ...]) -> Known | None:
        """Return the object that Keras would find, if it is allowed."""
        module, class_name = found.get("module"), found["class_name"]
        if not isinstance(class_name, str) or not isinstance(module, (str, type(None))):
            return None
        registered = found.get("registered_name", class_name)
        custom = keras.saving.get_registered_object(registered)
        if custom is not None:
            return _from_this_package(custom, class_name)
        if "module" not in found:  # the short form, for kinds in `BY_NAME`
            short = [Known(named(kind)[class_name], kind) for kind in kinds if class_name in named(kind)]
            return short[0] if short and set(found) == {"class_name", "config"} else None
        return known().get((module or "", class_name)) if registered in (None, class_name) else None

    def function(self, found: dict[str, Any], kinds: tuple[str, ...], position: str) -> None:
        """Check a function, which must be one of Keras's activations, losses or metrics."""
        name, module, registered = found.get("config"), found.get("module"), found.get("registered_name")
        matching = [kind for kind in kinds if isinstance(name, str) and isfunction(named(kind).get(name))]
        public = module in {f"keras.{BY_NAME[kind]}" for kind in matching} and registered == name
        builtin = module == "builtins" and registered in (name, "function", None)
        if not matching or not (public or builtin) or keras.saving.get_registered_object(name) is not None:
            raise self.refused(f"asks for the function {shown(name)} as {shown(position)}", LOAD_IF_TRUSTED)

    def array(self, config: Any, kinds: tuple[str, ...], position: str) -> None:
        if "array" not in kinds or not isinstance(config, dict) or set(config) != {"value", "dtype"}:
            raise self.refused(f"has an array as {shown(position)}", "save it with weights or numbers instead")
        if config["dtype"] not in ARRAY_DTYPES:
            raise self.refused(f"has an array of dtype {shown(config['dtype'])}")
        self.numbers(config["value"])

    def shared_object(self, found: dict[str, Any], thing: Known) -> None:
        """Check that all objects of one ID are equal: Keras uses the first for all, without a look at the others."""
        described = (thing.found, found["config"])
        if (number := found.get("shared_object_id")) is not None and (
            not isinstance(number, int) or self.shared.setdefault(number, described) != described
        ):
            raise self.refused(f"has a {shown(found['class_name'])} with the ID of another shared object")

    def arguments(self, thing: Known, found: dict[str, Any], depth: int) -> None:
        config, compiled = found["config"], found.get("compile_config") or {}
        if not isinstance(compiled, dict) or set(compiled) - COMPILE_KEYS:
            raise self.refused("is compiled with unknown arguments")
        for key, value in [*config.items(), *compiled.items()]:
            self.value(value, key, depth + 1)
        self.value(found.get("build_config"), "build_config", depth + 1)
        if thing.kind == "policy":
            self.patterns(config.get("policy_map") or {})
        if thing.kind in (LAYER, MODEL, OPERATION):
            self.special(thing, found)
            if "inbound_nodes" in found:
                self.nodes(found["inbound_nodes"], shown(config.get("name", found.get("name"))), depth)

    def special(self, thing: Known, found: dict[str, Any]) -> None:
        """Check classes that read files or allocate memory because of plain arguments."""
        config, class_name = found["config"], found["class_name"]
        if class_name in LOOKUPS:
            if not isinstance(config.get("vocabulary"), (list, type(None))):
                raise self.refused("reads a vocabulary from a file", "save the vocabulary in the layer")
            if any(isinstance(config.get(key), (dict, list)) for key in ("standardize", "split")):
                raise self.refused("processes text with a function", "use a name such as 'whitespace'")
        elif class_name == "Unstack" and config.get("num") is None:
            raise self.refused("unstacks an axis of unknown length", "call `keras.ops.unstack` with `num`")
        elif class_name == "Normalization":
            self.moments(config.get("axis"), (found.get("build_config") or {}).get("input_shape"))
        if isinstance(layers := config.get("layers"), list) and thing.kind == MODEL:
            self.order(layers)
            if thing.found is keras.Sequential and len(layers) > MAX_SEQUENTIAL_LAYERS:
                raise self.refused(f"has a Sequential model of {len(layers):,} layers", "split it")

    def patterns(self, paths: dict[str, Any]) -> None:
        """Refuse slow regular expressions: Keras matches the paths of layers against them."""
        for path in paths:
            if not SAFE_PATTERN.fullmatch(path):
                raise self.refused(f"sets dtypes by the pattern {shown(path)}", "name the layers")

    def moments(self, axes: Any, shape: Any) -> None:
        """Bound the size of the moments of a Normalization layer, which allocates them when it is built."""
        try:
            size = math.prod(shape[axis] for axis in (axes if isinstance(axes, list) else [axes]) if axis is not None)
        except (TypeError, IndexError):
            raise self.refused(
                "has a Normalization layer of unknown shape", "call the model before you save it"
            ) from None
        if size > max(self.size, SIZE_LIMIT):
            raise self.refused(f"has moments of {size:,} numbers in {self.size:,} bytes", LOAD_IF_TRUSTED)

    # ---- graphs -----------------------------------------------------------------------------------------------

    def nodes(self, nodes: Any, layer: str, depth: int) -> None:
        """Check the calls of a layer in a graph: their arguments are tensors of the graph and numbers."""
        for node in nodes if isinstance(nodes, list) else [None]:
            if not isinstance(node, dict) or set(node) != {"args", "kwargs"}:
                raise self.refused(
                    f"has a call of {layer} in another format than Keras 3's", "load it with Keras and save it again"
                )
            tensors = [self.input(value, layer, depth) for value in (node["args"], node["kwargs"])]
            if not any(tensors):  # Keras would compute the call at once, outside the graph
                raise self.refused(f"calls {layer} on constants", "make them weights or inputs")

    def input(self, value: Any, layer: str, depth: int) -> bool:
        """Check one argument of a layer's call; return whether it contains a tensor."""
        if depth > MAX_DEPTH or isinstance(value, str):
            raise self.refused(f"calls {layer} with {shown(value)}", "use tensors and numbers only")
        if isinstance(value, int):
            self.integer(value, f"an argument of a call of {layer}")
        if isinstance(value, list):
            return self.inputs(value, layer, depth)
        if not isinstance(value, dict):
            return False
        if "class_name" not in value:
            return self.inputs(value.values(), layer, depth)
        return self.tensor_or_index(value, layer, depth)

    def inputs(self, values: Iterable[Any], layer: str, depth: int) -> bool:
        tensors = [self.input(value, layer, depth + 1) for value in values]  # a list, so that all are checked
        return any(tensors)

    def tensor_or_index(self, value: dict[str, Any], layer: str, depth: int) -> bool:
        class_name, config = value["class_name"], value.get("config")
        if set(value) == {"class_name", "config"} and isinstance(config, dict):
            if class_name == "__keras_tensor__" and set(config) == {"shape", "dtype", "keras_history"}:
                self.value(config["shape"], f"the shape of an input of {layer}", depth, ())
                history, dtype = config["keras_history"], config["dtype"]
                if isinstance(history, list) and [type(part) for part in history] == [str, int, int]:
                    return isinstance(dtype, str)
            if class_name == "__slice__" and set(config) == {"start", "stop", "step"}:
                return self.inputs(config.values(), layer, depth)
            if class_name == "__ellipsis__" and not config:
                return False
        raise self.refused(f"calls {layer} with {shown(class_name)}", "use tensors and numbers only")

    def order(self, layers: list[Any]) -> None:
        """Refuse a graph with layers in an order that makes Keras search the list again and again."""
        listed = [layer for layer in layers if isinstance(layer, dict) and {"name", "inbound_nodes"} <= set(layer)]
        waiting = {
            layer["name"]: deque(set(_tensors(node)) for node in layer.get("inbound_nodes", [])) for layer in listed
        }
        called = {name: int(not calls) for name, calls in waiting.items()}  # an input counts as called
        visits, limit = 0, 100 + 20 * sum(map(len, waiting.values()))
        while waiting := {name: calls for name, calls in waiting.items() if calls}:
            before = sum(called.values())
            for name, calls in waiting.items():
                visits += 1
                while calls and all(called.get(source, 0) > index for source, index in calls[0]):
                    calls.popleft()
                    called[name] += 1
            if visits > limit:
                raise self.refused("lists its layers out of order")
            if sum(called.values()) == before:  # a call has no source, which Keras reports
                return
