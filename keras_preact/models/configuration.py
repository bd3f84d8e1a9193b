"""What the configuration of a `.keras` file may ask for, decided before Keras makes anything of it.

A configuration names classes and functions, and Keras runs what it finds by those names. Here each name is resolved
as Keras resolves it, and the object found must be one that networks of layers are made of, of the kind that its
position asks for: a layer where layers are listed, an initializer as an initializer. What is not listed is refused.
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
from keras_preact.models.allowed import (
    ARRAY_DTYPES,
    BY_NAME,
    CALLS,
    COMPILE,
    DEEPEST,
    IN_A_GRAPH,
    INHERITED,
    LAYER,
    LONGEST,
    LOOKUPS,
    METRIC_NAMES,
    MODEL,
    MOST,
    OBJECT,
    OPERATION,
    PATTERN,
    POSITIONS,
    PYTORCHS_OPTIMIZERS,
    SMALL,
    SUFFIXES,
    UNBOUNDED,
    Known,
    known,
    named,
)


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
    """Name Keras's optimizers by their public module. On PyTorch Keras writes private ones, which load nowhere else."""
    for found in objects(config):
        if isinstance(found.get("module"), str) and PYTORCHS_OPTIMIZERS.fullmatch(found["module"]):
            found.update(module="keras.optimizers", registered_name=None)


def check_configuration(name: str, config: dict[str, Any], size: int) -> None:
    """Check that a configuration describes a model, made of known objects that are not out of proportion.

    Args:
        name: of the file, for messages.
        config: the parsed `config.json`.
        size: bytes of the file: what it asks for is compared with this.

    Raises:
        InputError: it asks for something else, or for too much.
    """
    _Check(name, size).whole(config)


def _ours(custom: Any, class_name: str) -> Known | None:
    """Return a registered class if it is one of this package: others are those of the program that loads the file."""
    if not isinstance(custom, type) or custom.__module__.split(".")[0] != "keras_preact":
        return None
    kinds = {
        LAYER: keras.layers.Layer,
        "initializer": keras.initializers.Initializer,
        "optimizer": keras.optimizers.Optimizer,
        "schedule": keras.optimizers.schedules.LearningRateSchedule,
    }
    found = [kind for kind, base in kinds.items() if issubclass(custom, base)]
    return Known(custom, found[0]) if found and custom.__name__ == class_name else None


def _calls(config: Any) -> int:
    """Return how many objects are made or called to build a configuration.

    What is inside a model is called as often as the model, and units of a stack that is not rolled are made one by one.
    """
    if isinstance(config, list):
        return sum(map(_calls, config))
    if not isinstance(config, dict):
        return 0
    inside = sum(_calls(value) for key, value in config.items() if key != "compile_config")
    repeats, nodes = config.get("repeats"), config.get("inbound_nodes")
    if isinstance(repeats, int) and not config.get("rolled"):
        inside = max(repeats, 1) * max(inside, 1)
    if "class_name" in config and not str(config["class_name"]).startswith("__"):
        inside = (inside + 1) * max(len(nodes) if isinstance(nodes, list) else 1, 1)
    return inside


def _tensors(value: Any) -> Iterator[tuple[str, int]]:
    """Yield the layer and the call that each tensor in the arguments of a call comes from."""
    for found in objects(value):
        if found["class_name"] == "__keras_tensor__":
            history = found["config"]["keras_history"]
            yield history[0], history[1]


def _kinds(position: str) -> tuple[str, ...]:
    suffix = position.rsplit("_", 1)[-1]
    return POSITIONS.get(position) or SUFFIXES.get(suffix, ())


@dataclass
class _Check:
    name: str
    size: int
    shared: dict[Any, Any] = field(default_factory=dict)

    def whole(self, config: dict[str, Any]) -> None:
        calls = _calls(config)
        if calls > CALLS + self.size // 50:
            raise self.refused(
                f"describes {calls:,} layers and parts of them in {self.size:,} bytes", "save it without repeats"
            )
        self.object(config, (MODEL,), "the file", 0)

    def refused(self, fault: str, remedy: str) -> InputError:
        return InputError(f"{self.name} {fault}; {remedy}")

    # ---- values -----------------------------------------------------------------------------------------------

    def value(self, value: Any, position: str, depth: int, kinds: tuple[str, ...] | None = None) -> None:
        """Check an argument: a number, a word, a list or dictionary of such, or an object of the position's kind."""
        kinds = _kinds(position) if kinds is None else kinds
        if depth > DEEPEST:
            raise self.refused(f"nests more than {DEEPEST} levels deep", "take the model apart")
        if isinstance(value, list):
            for inside in value:
                self.value(inside, position, depth + 1, kinds)
        elif isinstance(value, dict) and "class_name" in value:
            self.object(value, kinds, position, depth + 1)
        elif isinstance(value, dict):
            for key, inside in value.items():  # the keys are no arguments of an object: they expect no other
                own = position in INHERITED
                self.value(inside, position if own else key, depth + 1, kinds if own else ())
        elif isinstance(value, str):
            self.word(value, position, kinds)
        elif isinstance(value, int) and not isinstance(value, bool):
            self.integer(value, position)

    def word(self, word: str, position: str, kinds: tuple[str, ...]) -> None:
        if keras.saving.get_registered_object(word) is not None:
            raise self.refused(f"asks for {shown(word)} as {shown(position)}", "load it with Keras if you trust it")
        by_name = [kind for kind in kinds if kind in BY_NAME]
        if not by_name or (position == "dtype" or (position.endswith("initializer") and word in INITIALIZERS)):
            return
        if "metric" in by_name and word in METRIC_NAMES:
            return
        if not any(word in named(kind) or word.lower() in named(kind) for kind in by_name):
            raise self.refused(
                f"asks for {shown(word)} as {shown(position)}, which Keras does not have", "save it again"
            )

    def integer(self, value: int, position: str) -> None:
        limit = max(self.size, MOST)
        if position not in UNBOUNDED and abs(value) > SMALL.get(position, limit):
            raise self.refused(
                f"asks for {shown(position)} of {shown(f'{value:,}')}",
                f"at most {SMALL.get(position, limit):,} is loaded",
            )

    def number_of(self, value: Any) -> int:
        """Return how many numbers a nested list has; refuse it where it contains something else."""
        if isinstance(value, list):
            return sum(map(self.number_of, value))
        if not isinstance(value, (int, float)):
            raise self.refused(f"has {shown(value)} in an array", "save it again")
        return 1

    # ---- objects ----------------------------------------------------------------------------------------------

    def object(self, found: dict[str, Any], kinds: tuple[str, ...], position: str, depth: int) -> None:
        if found["class_name"] in ("__numpy__", "__tensor__"):
            self.array(found.get("config"), kinds, position)
        elif found["class_name"] == "function":
            self.function(found, kinds, position)
        else:
            self.instance(found, kinds, position, depth)

    def instance(self, found: dict[str, Any], kinds: tuple[str, ...], position: str, depth: int) -> None:
        """Check an object of a class: a known one, of the position's kind, with arguments that can be checked."""
        thing, config = self.resolved(found, kinds), found.get("config")
        if thing is None or thing.kind not in kinds or not isinstance(config, dict):
            where = f"{shown(found.get('module'))}.{shown(found['class_name'])}"
            what = f"asks for {where} {'among its layers' if position == 'layers' else 'as ' + shown(position)}"
            expected = f", where it may be {' or '.join(kinds)}" if kinds and thing is not None else ""
            raise self.refused(f"{what}{expected}", "load it with keras.models.load_model if you trust it")
        if extra := set(found) - OBJECT - (IN_A_GRAPH if position == "layers" else set()):
            raise self.refused(f"has {shown(sorted(extra)[0])} in the description of an object", "save it again")
        self.once(found, thing)
        self.arguments(thing, found, depth)

    def resolved(self, found: dict[str, Any], kinds: tuple[str, ...]) -> Known | None:
        """Return what Keras would find, if it is known here."""
        module, class_name = found.get("module"), found["class_name"]
        if not isinstance(class_name, str) or not isinstance(module, (str, type(None))):
            return None
        registered = found.get("registered_name", class_name)
        custom = keras.saving.get_registered_object(registered)
        if custom is not None:
            return _ours(custom, class_name)
        if "module" not in found:  # the short form, for what has a list of names
            short = [Known(named(kind)[class_name], kind) for kind in kinds if class_name in named(kind)]
            return short[0] if short and set(found) == {"class_name", "config"} else None
        return known().get((module or "", class_name)) if registered in (None, class_name) else None

    def function(self, found: dict[str, Any], kinds: tuple[str, ...], position: str) -> None:
        """Check a function: one of the names that stand for an activation, a loss or a metric."""
        name, module, registered = found.get("config"), found.get("module"), found.get("registered_name")
        names = [kind for kind in kinds if isinstance(name, str) and isfunction(named(kind).get(name))]
        public = module in {f"keras.{BY_NAME[kind]}" for kind in names} and registered == name
        builtin = module == "builtins" and registered in (name, "function", None)
        if not names or not (public or builtin) or keras.saving.get_registered_object(name) is not None:
            raise self.refused(
                f"asks for the function {shown(name)} as {shown(position)}",
                "load it with keras.models.load_model if you trust it",
            )

    def array(self, config: Any, kinds: tuple[str, ...], position: str) -> None:
        if "array" not in kinds or not isinstance(config, dict) or set(config) != {"value", "dtype"}:
            raise self.refused(f"has an array as {shown(position)}", "save it again with weights, or numbers")
        if config["dtype"] not in ARRAY_DTYPES:
            raise self.refused(f"has an array of {shown(config['dtype'])}", "save it again")
        self.number_of(config["value"])

    def once(self, found: dict[str, Any], thing: Known) -> None:
        """Check that what is shared is the same everywhere: Keras takes the first without a look at the others."""
        here = (thing.found, found["config"])
        if (number := found.get("shared_object_id")) is not None and (
            not isinstance(number, int) or self.shared.setdefault(number, here) != here
        ):
            raise self.refused(f"shares one object as {shown(found['class_name'])} and as another", "save it again")

    def arguments(self, thing: Known, found: dict[str, Any], depth: int) -> None:
        config, compiled = found["config"], found.get("compile_config") or {}
        if not isinstance(compiled, dict) or set(compiled) - COMPILE:
            raise self.refused("is compiled with arguments that Keras does not have", "save it again")
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
        """Check what single classes would read or compute from plain arguments."""
        config, class_name = found["config"], found["class_name"]
        if class_name in LOOKUPS:
            if not isinstance(config.get("vocabulary"), (list, type(None))):
                raise self.refused("names a file with a vocabulary", "save the vocabulary in the layer")
            if any(isinstance(config.get(key), (dict, list)) for key in ("standardize", "split")):
                raise self.refused("splits text by a function", "give a name, for example 'whitespace'")
        elif class_name == "Unstack" and config.get("num") is None:
            raise self.refused("unstacks an axis of any length", "call `keras.ops.unstack` with `num`")
        elif class_name == "Normalization":
            self.moments(config.get("axis"), (found.get("build_config") or {}).get("input_shape"))
        if isinstance(layers := config.get("layers"), list) and thing.kind == MODEL:
            self.order(layers)
            if thing.found is keras.Sequential and len(layers) > LONGEST:
                raise self.refused(f"describes a sequence of {len(layers):,} layers", "take it apart")

    def patterns(self, paths: dict[str, Any]) -> None:
        """Refuse regular expressions that take forever: Keras compares the paths of layers with them."""
        for path in paths:
            if not PATTERN.fullmatch(path):
                raise self.refused(f"gives dtypes by the pattern {shown(path)}", "name the layers")

    def moments(self, axes: Any, shape: Any) -> None:
        """Bound the moments of a Normalization layer: it makes them when it is built, as constants."""
        try:
            kept = [shape[axis] for axis in (axes if isinstance(axes, list) else [axes]) if axis is not None]
            numbers = math.prod(kept)
        except (TypeError, IndexError):
            numbers = None
        if numbers is None:
            raise self.refused("has a Normalization layer of unknown shape", "call the model before you save it")
        if numbers > max(self.size, MOST):
            raise self.refused(f"describes moments of {numbers:,} numbers", f"it holds {self.size:,} bytes")

    # ---- graphs -----------------------------------------------------------------------------------------------

    def nodes(self, nodes: Any, layer: str, depth: int) -> None:
        """Check the calls of a layer in a graph: on tensors of the graph, with numbers beside them."""
        for node in nodes if isinstance(nodes, list) else [None]:
            if not isinstance(node, dict) or set(node) != {"args", "kwargs"}:
                raise self.refused(
                    f"describes a call of {layer} as Keras 3 does not", "load it with Keras and save it again"
                )
            tensors = [self.input(value, layer, depth) for value in (node["args"], node["kwargs"])]
            if not any(tensors):  # it would not be a part of the graph, but be computed at once
                raise self.refused(f"calls {layer} on constants", "make them weights, or an input")

    def input(self, value: Any, layer: str, depth: int) -> bool:
        """Check one argument of a layer's call; return whether it contains a tensor."""
        if depth > DEEPEST or isinstance(value, str):
            raise self.refused(f"calls {layer} with {shown(value)}", "only tensors and numbers are loaded")
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
        tensors = [self.input(value, layer, depth + 1) for value in values]  # all of them, also after the first
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
        raise self.refused(f"calls {layer} with {shown(class_name)}", "only tensors and numbers are loaded")

    def order(self, layers: list[Any]) -> None:
        """Refuse a graph whose layers are listed so that Keras would look for the next to call again and again."""
        listed = [layer for layer in layers if isinstance(layer, dict) and {"name", "inbound_nodes"} <= set(layer)]
        waiting = {
            layer["name"]: deque(set(_tensors(node)) for node in layer.get("inbound_nodes", [])) for layer in listed
        }
        called = {name: int(not calls) for name, calls in waiting.items()}  # an input counts as called
        looked, limit = 0, 100 + 20 * sum(map(len, waiting.values()))
        while waiting := {name: calls for name, calls in waiting.items() if calls}:
            before = sum(called.values())
            for name, calls in waiting.items():
                looked += 1
                while calls and all(called.get(source, 0) > index for source, index in calls[0]):
                    calls.popleft()
                    called[name] += 1
            if looked > limit:
                raise self.refused("lists its layers out of order", "save the model again")
            if sum(called.values()) == before:  # no graph: Keras says what is missing
                return
