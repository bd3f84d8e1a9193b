"""The same network either way: unrolled unit by unit, or its equal units rolled into stacks.

Both directions, and `fold`, are one operation: copy a graph, calling other functions in place of some of its layers.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import compile_arguments, layers_inside, nodes_of, run_through, seed_generators
from keras_preact.layers.copies import again
from keras_preact.layers.functional import same_but_for_weights
from keras_preact.layers.graph import graph_of
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, units_in
from keras_preact.models.trained import refuse_alike

Replacements = Mapping[Any, Callable[..., Any]]
"""What is called in place of a layer: on what the layer is called on, with its other arguments by name."""


def roll(model: keras.Model, remat: bool | str = False) -> keras.Model:
    """Return the network with each row of equal residual units as one rolled `UnitStack`, weights carried over.

    A row is rolled only if the result computes the same: its units are called once each, with equal arguments, and
    nothing else uses the outputs between them. Other units stay as they are, and so do all units of a model in which
    some call has `training=True`. Models inside the model are rolled too.

    Args:
        model: a functional Keras model with `ResidualUnit` or `EncoderBlock` layers; it is not changed.
        remat: of the stacks; see `UnitStack`.

    Returns:
        A new model that computes the same: outputs and, to the order of floating-point sums, training steps. A row
        becomes a layer named for its stage (`stage2_stack`). It is compiled as `model` is, without its optimizer's
        state.

    Raises:
        InputError: not a functional model, one without two equal units in a row, or one with a layer, optimizer or
            metric that cannot be copied.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> rolled = roll(cifar_resnet(depth=26, rolled=False))
    >>> [layer.name for layer in rolled.layers if layer.name.startswith("stage1")]
    ['stage1_unit01', 'stage1_stack']
    """
    check_functional(model)
    replacements: dict[Any, Callable[..., Any]] = {}
    taken = names_by_graph(model)
    for graph, row in _rows(model):
        name = free_name(f"{_stage(row[0])}_stack", [taken[graph]])
        replacements |= dict.fromkeys(row, first_argument)
        replacements[row[0]] = UnitStack.from_units(row, rolled=True, remat=remat, name=name)
    if not replacements:
        raise InputError(
            f"{model.name} has no two equal residual units in a row, each called once: there is nothing to roll"
        )
    return _compiled_like(model, rewired(model, replacements))


def unroll(model: keras.Model) -> keras.Model:
    """Return the network with every unit of its stacks as a layer of its own, weights carried over.

    Stacks of models inside the model are unrolled too.

    Args:
        model: a functional Keras model with `UnitStack` layers; it is not changed.

    Returns:
        A new model that computes the same; units are named by stage and number (`stage2_unit07`). It is compiled as
        `model` is, without its optimizer's state.

    Raises:
        InputError: not a functional model, one without stacks, or one with a layer, optimizer or metric that cannot
            be copied.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> unrolled = unroll(cifar_resnet(depth=26, rolled=True))
    >>> [layer.name for layer in unrolled.layers if layer.name.startswith("stage1")]
    ['stage1_unit01', 'stage1_unit02', 'stage1_unit03', 'stage1_unit04']
    """
    check_functional(model)
    stacks = units_of_stacks(model)
    if not stacks:
        raise InputError(f"{model.name} has no stacks: it is unrolled already")
    return _compiled_like(model, rewired(model, {stack: in_row(units) for stack, units in stacks.items()}))


def units_of_stacks(model: keras.Model) -> dict[UnitStack, list[keras.layers.Layer]]:
    """Return the units of each stack of the model and of the models in it, as layers named by stage and number."""
    stacks: dict[UnitStack, list[keras.layers.Layer]] = {}
    names_in = names_by_graph(model)
    for graph in names_in:
        count = Counter[str]()
        for layer in graph.layers:
            stage, before = _stage(layer), count[_stage(layer)]
            count[stage] += layer.repeats if isinstance(layer, UnitStack) else units_in(layer)
            if isinstance(layer, UnitStack) and layer not in stacks:
                word = "unit" if issubclass(layer.unit_type, ResidualLayer) else "block"
                taken = names_beside(layer, names_in)
                names = [free_name(f"{stage}_{word}{k:02d}", taken) for k in range(before + 1, count[stage] + 1)]
                stacks[layer] = [layer.unit(k, name) for k, name in enumerate(names)]
    return stacks


# ---- which units can be rolled ------------------------------------------------------------------------------------


def _rows(model: keras.Model) -> list[tuple[keras.Model, list[keras.layers.Layer]]]:
    """Return the rows of two and more units that can be rolled, each with the graph that it is in."""
    rows: dict[Any, tuple[keras.Model, list[keras.layers.Layer]]] = {}
    for graph, call, following in links(model):
        if _continues(call, following):
            # The calls come in the order of computation: a row that this one continues ends in its first unit.
            _, row = rows.pop(call.operation, (graph, [call.operation]))
            rows[following.operation] = graph, [*row, following.operation]
    return list(rows.values())


def _continues(call: Call, after: Call) -> bool:
    """Return whether a stack can make two calls, one on the output of the other, in its loop."""
    units = call.operation, after.operation
    return (
        all(units_in(unit) and not isinstance(unit, UnitStack) for unit in units)
        and call.options.keys() <= {"training", "mask"}
        and call.options.keys() == after.options.keys()
        and all(value is after.options[name] for name, value in call.options.items())
        and not any(part.changes_shape for unit in units for part in unit.residual_layers().values())
        and same_but_for_weights(*units)
    )


def _stage(layer: keras.layers.Layer) -> str:
    return layer.name.split("_")[0]


def names_by_graph(model: keras.Model) -> dict[keras.Model, set[str]]:
    """Return the names that are taken in each graph of the model."""
    return {graph: {operation.name for operation in graph.operations} for graph in graphs(model)}


def names_beside(layer: keras.layers.Layer, names: Mapping[keras.Model, set[str]]) -> list[set[str]]:
    """Return the names that are taken in each graph that has the layer: a layer can be in several."""
    return [taken for graph, taken in names.items() if layer in graph.operations]


def free_name(name: str, taken: Sequence[set[str]]) -> str:
    """Return the name, numbered if it is taken in one of the sets, and take it in all."""
    candidates = itertools.chain([name], (f"{name}_{k}" for k in itertools.count(2)))
    free = next(free for free in candidates if not any(free in names for names in taken))
    for names in taken:
        names.add(free)
    return free


# ---- graphs -------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call of a layer or another operation in the graph of a model."""

    operation: Any
    x: Any
    """The first argument: what the operation is called on."""
    options: dict[str, Any]
    """The other arguments by name, without those that are `None`."""
    inputs: list[Any]
    outputs: list[Any]


def is_functional(model: Any) -> bool:
    """Return whether a model has a graph of layers, and runs it when it is called."""
    return isinstance(model, keras.Model) and graph_of(model) is not None


def check_functional(model: Any, what: str = "rolled, unrolled or folded") -> None:
    """Raise InputError unless a model has a graph of layers; `what` is what cannot be done without."""
    if not is_functional(model):
        own = " with a call of its own" if hasattr(model, "operations") else ""
        raise InputError(f"only functional Keras models can be {what}, not {type(model).__name__}{own}")


def graphs(model: keras.Model) -> list[keras.Model]:
    """Return the graph of the model and those of all models in it, each once."""
    found, waiting = {}, [model]
    while waiting:
        operation = waiting.pop()
        if operation not in found and (graph := graph_of(operation)) is not None:
            found[operation] = graph
            waiting += graph.operations
    return list(found.values())


def calls(graph: keras.Model) -> Iterator[Call]:
    """Yield the calls of a graph in the order of computation, without its inputs."""
    for node in nodes_of(graph):
        x, options = _by_name(node.operation, node.arguments.args, node.arguments.kwargs)
        yield Call(node.operation, x, options, node.input_tensors, node.outputs)


def asks_for_training(model: keras.Model) -> bool:
    """Return whether a call in the model, or in a model in it, has the argument `training=True`.

    Keras then treats the layers that run later as if they had it too. No call can be moved or left out, therefore.
    """
    made = (call for graph in graphs(model) for call in calls(graph))
    return any(call.options.get("training", False) is not False for call in made)


def _by_name(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the first argument of a call, and the others by name, without those that are `None`."""
    arguments = inspect.signature(operation.call).bind(*args, **kwargs).arguments
    (_, x), *others = arguments.items()
    return x, {name: value for name, value in others if any(v is not None for v in keras.tree.flatten(value))}


def links(model: keras.Model) -> Iterator[tuple[keras.Model, Call, Call]]:
    """Yield each two calls of layers, one on the output of the other, that can be made one; and the graph they are in.

    Neither layer is called again, in the model or in a model in it, and nothing else uses the output between them.
    There are none in a model that asks for training.
    """
    if asks_for_training(model):
        return
    made = {graph: list(calls(graph)) for graph in graphs(model)}
    times = Counter(call.operation for in_graph in made.values() for call in in_graph)
    for graph, in_graph in made.items():
        uses = Counter(id(tensor) for call in in_graph for tensor in call.inputs)
        uses.update(map(id, graph.outputs))
        called_on = {id(call.x): call for call in in_graph}
        for call in in_graph:
            output = id(call.outputs[0])
            following = called_on.get(output)
            if following and uses[output] == times[call.operation] == times[following.operation] == 1:
                yield graph, call, following


def in_row(layers: Sequence[keras.layers.Layer]) -> Callable[..., Any]:
    """Return a function that calls layers one after the other, with the options that each of them accepts."""

    def call(x: Any, **options: Any) -> Any:
        for layer in layers:
            accepted = inspect.signature(layer.call).parameters
            x = layer(x, **{name: value for name, value in options.items() if name in accepted})
        return x

    return call


def first_argument(x: Any, **_: Any) -> Any:
    """Return x: what is called in place of a layer that has no work left."""
    return x


# ---- copies -------------------------------------------------------------------------------------------------------


def rewired(model: keras.Model, replacements: Replacements) -> keras.Model:
    """Return a copy of a functional model that calls other functions in place of some layers; it is not compiled.

    Models in the model are copied the same way, and layers that are used twice are used twice in the copy.
    Everything else is carried over: arguments of calls, the structure of inputs and outputs, weights, random states,
    dtype policies, and what is frozen.
    """
    copies: dict[Any, Any] = {}
    copy = _copy(model, replacements, copies)
    for old, new in reversed(copies.items()):  # models before what is in them: freezing reaches down
        if not isinstance(old, keras.layers.Layer):
            continue  # an operation of `keras.ops`
        pairs: Iterable[tuple[Any, Any]] = [(old, new)]
        if graph_of(old) is None:
            if [v.shape for v in old.weights] != [v.shape for v in new.weights]:
                raise InputError(
                    f"{old.name} has other variables than its copy, as quantized layers can; roll, unroll or fold the "
                    "network before you quantize it"
                )
            new.set_weights(old.get_weights())
            pairs = zip([old, *layers_inside(old)], [new, *layers_inside(new)], strict=True)
        for mine, its in pairs:
            if its.trainable != mine.trainable:
                its.trainable = mine.trainable
            for generator, copied in zip(seed_generators(mine), seed_generators(its), strict=True):
                copied.state.assign(generator.state)
    return copy


def _copy(operation: Any, replacements: Replacements, copies: dict[Any, Any]) -> Any:
    """Return what is called in place of an operation: its replacement or its copy, which is made only once."""
    if operation in replacements:

        def call(*args: Any, **kwargs: Any) -> Any:
            x, options = _by_name(operation, args, kwargs)
            return replacements[operation](x, **options)

        return call
    if operation not in copies:
        graph = graph_of(operation)
        copies[operation] = _copied_graph(operation, graph, replacements, copies) if graph else again(operation)
    return copies[operation]


def _copied_graph(model: Any, graph: keras.Model, replacements: Replacements, copies: dict[Any, Any]) -> keras.Model:
    layers = {id(layer.output): layer for layer in graph.layers if isinstance(layer, keras.layers.InputLayer)}
    inputs = keras.tree.map_structure(lambda x: _copy(layers[id(x)], replacements, copies).output, graph.input)
    outputs = run_through(graph, inputs, lambda operation: _copy(operation, replacements, copies))
    parameters = inspect.signature(type(model).__init__).parameters
    kind = type(model) if {"inputs", "outputs"} <= parameters.keys() else keras.Model
    copy = kind(inputs, outputs, name=model.name)
    copy.dtype_policy = model.dtype_policy
    return refuse_alike(copy, model)


def _compiled_like(model: keras.Model, copy: keras.Model) -> keras.Model:
    """Return the copy, compiled with the same losses, and with new metrics and a new optimizer, if the model is."""
    if not model.compiled:
        return copy
    config = compile_arguments(model)
    metrics = {"metrics", "weighted_metrics"}
    names = dict(zip(graph_of(model).output_names, copy.output_names, strict=True))
    for key in metrics & config.keys():
        config[key] = keras.tree.map_structure(lambda x: again(x) if isinstance(x, keras.Metric) else x, config[key])
    for key in config.keys() & {"loss", "loss_weights", *metrics}:
        if isinstance(config[key], dict) and not isinstance(model.output, dict):
            config[key] = {names.get(name, name): value for name, value in config[key].items()}
    # The model's own optimizer, not the one it was given: with mixed_float16 it scales the loss.
    optimizer = model.optimizer and again(model.optimizer)
    copy.compile(**{**config, "optimizer": optimizer, "auto_scale_loss": False})
    if optimizer:
        optimizer.build(copy.trainable_variables)
    return copy
