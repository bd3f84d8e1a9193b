"""Copy a functional model and replace some of its layers by functions.

`roll`, `unroll` and `fold` are one operation each on such a copy.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import layers_inside, nodes_of, run_through, seed_generators
from keras_preact.layers.copies import clone, set_weights
from keras_preact.layers.graph import graph_of, refuse_unbuilt, weights_outside_graph
from keras_preact.models.trained import require_uint8_like

Replacements = Mapping[Any, Callable[..., Any]]
"""Functions that replace layers. Each is called with the layer's first argument, and the others as keywords."""


def rewired(model: keras.Model, replacements: Replacements) -> keras.Model:
    """Return a copy of a functional model, not compiled, with some layers replaced by functions.

    Nested models are copied in the same way, and shared layers stay shared. The copy has the same arguments of calls,
    structure of inputs and outputs, weights, random states, dtype policies and frozen layers.
    """
    copies: dict[Any, Any] = {}
    copy = _copy(model, replacements, copies)
    for old, new in reversed(copies.items()):  # models before their layers, because freezing a model freezes its layers
        if not isinstance(old, keras.layers.Layer):
            continue  # an operation of `keras.ops`
        pairs: Iterable[tuple[Any, Any]] = [(old, new)]
        if graph_of(old) is None:
            if [v.shape for v in old.weights] != [v.shape for v in new.weights]:
                raise InputError(
                    f"{old.name} cannot be copied, because its variables do not match its configuration (it may be "
                    "quantized); roll, unroll or fold the network before you quantize it"
                )
            set_weights(new, old.get_weights())
            pairs = zip([old, *layers_inside(old)], [new, *layers_inside(new)], strict=True)
        for layer, new_layer in pairs:
            if new_layer.trainable != layer.trainable:
                new_layer.trainable = layer.trainable
            for generator, copied in zip(seed_generators(layer), seed_generators(new_layer), strict=True):
                copied.state.assign(generator.state)
    return copy


def _copy(operation: Any, replacements: Replacements, copies: dict[Any, Any]) -> Any:
    """Return the replacement of an operation, or its copy, which is made only once."""
    if operation in replacements:

        def call(*args: Any, **kwargs: Any) -> Any:
            x, options = _by_name(operation, args, kwargs)
            return replacements[operation](x, **options)

        return call
    if operation not in copies:
        graph = graph_of(operation)
        copies[operation] = _copied_graph(operation, graph, replacements, copies) if graph else clone(operation)
    return copies[operation]


def _copied_graph(model: Any, graph: keras.Model, replacements: Replacements, copies: dict[Any, Any]) -> keras.Model:
    layers = {id(layer.output): layer for layer in graph.layers if isinstance(layer, keras.layers.InputLayer)}
    inputs = keras.tree.map_structure(lambda x: _copy(layers[id(x)], replacements, copies).output, graph.input)
    outputs = run_through(graph, inputs, lambda operation: _copy(operation, replacements, copies))
    parameters = inspect.signature(type(model).__init__).parameters
    passes_on = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= {
        parameter.kind for parameter in parameters.values()
    }
    # A constructor of (inputs, outputs), or one that passes all its arguments on; of other classes, a plain model.
    kind = type(model) if passes_on or {"inputs", "outputs"} <= parameters.keys() else keras.Model
    further = [p.name for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    further = [name for name in further if name not in ("self", "inputs", "outputs", "name", "trainable")]
    if kind is type(model) and (lost := [*further, *(variable.path for variable in weights_outside_graph(model))]):
        raise InputError(
            f"a copy of {model.name}, a {kind.__name__}, would lose {lost[0]}; copy keras.Model(model.input, "
            "model.output) and create a new one from it"
        )
    copy = kind(inputs, outputs, name=model.name)
    copy.dtype_policy = model.dtype_policy
    return require_uint8_like(copy, model)


# ---- graphs -------------------------------------------------------------------------------------------------------


class LayerCall(NamedTuple):
    """One call of a layer or operation in the graph of a model."""

    operation: Any
    x: Any
    """The first argument."""
    options: dict[str, Any]
    """The other arguments that are not `None`, by name."""
    inputs: list[Any]
    outputs: list[Any]


def is_functional(model: Any) -> bool:
    """Return whether calling a model runs a graph of layers."""
    return isinstance(model, keras.Model) and graph_of(model) is not None


def check_functional(model: Any, action: str = "rolled, unrolled or folded") -> None:
    """Raise InputError unless a model is functional; the message says that no other model can be `action`."""
    if not is_functional(model):
        refuse_unbuilt(model)
        custom = ", which overrides `call`" if hasattr(model, "operations") else ""
        raise InputError(f"only functional Keras models can be {action}, not {type(model).__name__}{custom}")


def graphs(model: keras.Model) -> list[keras.Model]:
    """Return the graph of the model and those of all nested models, each once."""
    found, waiting = {}, [model]
    while waiting:
        operation = waiting.pop()
        if operation not in found and (graph := graph_of(operation)) is not None:
            found[operation] = graph
            waiting += graph.operations
    return list(found.values())


def own_calls(graph: keras.Model) -> Iterator[LayerCall]:
    """Yield the calls of one graph in the order of computation, without its inputs and the calls in nested models."""
    for node in nodes_of(graph):
        x, options = _by_name(node.operation, node.arguments.args, node.arguments.kwargs)
        yield LayerCall(node.operation, x, options, node.input_tensors, node.outputs)


def asks_for_training(model: keras.Model) -> bool:
    """Return whether a call in the model, or in a nested model, has the argument `training=True`.

    Keras then also applies it to the layers that run later, so no call can be moved or left out.
    """
    flags = (call.options.get("training", False) for graph in graphs(model) for call in own_calls(graph))
    return any(flag is not False for flag in flags)


def _by_name(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the first argument of a call, and the others that are not `None` by name."""
    arguments = inspect.signature(operation.call).bind(*args, **kwargs).arguments
    (_, x), *options = arguments.items()
    return x, {name: value for name, value in options if any(v is not None for v in keras.tree.flatten(value))}


def links(model: keras.Model) -> Iterator[tuple[keras.Model, LayerCall, LayerCall]]:
    """Yield every pair of consecutive calls that can be merged into one, with their graph.

    Neither layer is called again, also not in nested models, and nothing else uses the output between them. A model
    that asks for training has no such pairs.
    """
    if asks_for_training(model):
        return
    calls_in = {graph: list(own_calls(graph)) for graph in graphs(model)}
    times = Counter(call.operation for in_graph in calls_in.values() for call in in_graph)
    for graph, in_graph in calls_in.items():
        uses = Counter(id(tensor) for call in in_graph for tensor in call.inputs)
        uses.update(map(id, graph.outputs))
        called_on = {id(call.x): call for call in in_graph}
        for call in in_graph:
            output = id(call.outputs[0])
            following = called_on.get(output)
            if following and uses[output] == times[call.operation] == times[following.operation] == 1:
                yield graph, call, following


def in_sequence(layers: Sequence[keras.layers.Layer]) -> Callable[..., Any]:
    """Return a function that calls layers in sequence, each with the options that it accepts."""

    def call(x: Any, **options: Any) -> Any:
        for layer in layers:
            accepted = inspect.signature(layer.call).parameters
            x = layer(x, **{name: value for name, value in options.items() if name in accepted})
        return x

    return call


def passthrough(x: Any, **_: Any) -> Any:
    """Return x, in place of a layer that was merged into another."""
    return x


# ---- names --------------------------------------------------------------------------------------------------------


def names_by_graph(model: keras.Model) -> dict[keras.Model, set[str]]:
    """Return the names taken in the graph of the model and in those of nested models."""
    return {graph: {operation.name for operation in graph.operations} for graph in graphs(model)}


def taken_names(layer: keras.layers.Layer, names: Mapping[keras.Model, set[str]]) -> list[set[str]]:
    """Return the names taken in each graph that contains the layer, which can be several."""
    return [taken for graph, taken in names.items() if layer in graph.operations]


def free_name(name: str, taken: Sequence[set[str]]) -> str:
    """Return the name, numbered if one of the sets contains it, and add it to all of them."""
    candidates = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(2)))
    free = next(free for free in candidates if not any(free in names for names in taken))
    for names in taken:
        names.add(free)
    return free
