"""The graph of a functional model as a flat list of calls, with the models inside it opened up.

Keras has no public way to ask which layer is called on which tensor; all private names that this needs are here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import functional_of, names_its_inputs, nodes_of


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or operation. A layer called twice makes two of them.

    Attributes:
        operation: the layer or operation.
        name: its name, after those of the models that it is in: `"backbone/conv1"`.
        args, kwargs: what it is called on and with.
        inputs: the tensors among those, in order.
        outputs: the tensors that it returns. They and the tensors in `args` are identical where the graph connects
            them, and have the shapes of this call: a model built for any image size has a size here if it is called
            on a tensor that has one.
    """

    operation: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def tensors_in(structure: Any) -> tuple[Any, ...]:
    """Return the Keras tensors in nested lists, tuples and dictionaries."""
    return tuple(leaf for leaf in keras.tree.flatten(structure) if isinstance(leaf, keras.KerasTensor))


def graph_of(operation: Any) -> Any:
    """Return the functional model that runs when a model is called; `None` for all that has a `call` of its own.

    >>> inputs = keras.Input((4,))
    >>> model = keras.Sequential([inputs, keras.layers.Dense(2)])
    >>> len(graph_of(model).operations), graph_of(keras.layers.Dense(2))
    (2, None)
    """
    if isinstance(operation, keras.Sequential) and type(operation).call is keras.Sequential.call:
        operation = functional_of(operation)
    kind: Any = type(operation)
    functional: Any = next((c for c in kind.__mro__ if c.__name__ == "Functional" and _is_of_keras(c)), None)
    return operation if functional is not None and kind.call is functional.call else None


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "keras"


def keras_name(operation: Any) -> str:
    """Return the name of the class of one of Keras's own layers or operations; `""` for any other, a subclass too.

    >>> class Custom(keras.layers.ReLU):
    ...     pass
    >>> keras_name(keras.layers.ReLU()), keras_name(Custom())
    ('ReLU', '')
    """
    return type(operation).__name__ if _is_of_keras(type(operation)) else ""


def calls(model: keras.Model, inputs: Sequence[Any] | None = None) -> list[Call]:
    """Return the calls of a functional model in an order in which they can run.

    Args:
        model: for which `graph_of` returns a graph.
        inputs: Keras tensors to run it on. Default: of the shapes that the model was built for.

    Raises:
        InputError: any other model.

    >>> x = keras.Input((8,))
    >>> inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="dense")], name="inner")
    >>> [call.name for call in calls(keras.Model(x, inner(inner(x))))]
    ['inner/dense', 'inner/dense']
    """
    graph = graph_of(model) if isinstance(model, keras.Model) else None
    if graph is None:
        raise InputError(
            f"only functional Keras models have a graph to read, not {type(model).__name__}; give the functional model "
            "that it was made from"
        )
    given = [_like(tensor) for tensor in graph.inputs] if inputs is None else inputs
    return list(_walk(graph, {id(tensor): new for tensor, new in zip(graph.inputs, given, strict=False)}, ""))


def _walk(graph: Any, tensors: dict[int, Any], prefix: str) -> Iterator[Call]:
    """Yield the calls of a graph; `tensors` maps its own tensors to those of this run, and is filled in."""
    for node in nodes_of(graph):
        if any(id(tensor) not in tensors for tensor in node.input_tensors):
            continue
        args, kwargs = node.arguments.fill_in(tensors)
        name, inner = prefix + node.operation.name, graph_of(node.operation)
        if inner is None:
            given, outputs = tensors_in((args, kwargs)), _outputs(node, tensors, args, kwargs)
            yield Call(node.operation, name, tuple(args), dict(kwargs), given, outputs)
        else:
            given = _in_order(inner, args[0] if args else kwargs["inputs"])
            inside = {id(tensor): new for tensor, new in zip(inner.inputs, given, strict=False)}
            yield from _walk(inner, inside, f"{name}/")
            outputs = tuple(inside[id(tensor)] for tensor in inner.outputs)
        tensors.update({id(tensor): new for tensor, new in zip(node.outputs, outputs, strict=False)})


def _in_order(graph: Any, given: Any) -> tuple[Any, ...]:
    """Return what a model is called on in the order of its inputs: a dictionary may name those of a list."""
    if isinstance(given, dict) and not names_its_inputs(graph):
        given = [given[tensor.name] for tensor in graph.inputs]
    return tuple(keras.tree.flatten(given))


def _outputs(node: Any, tensors: Mapping[int, Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return new tensors for what a call returns; their shapes are asked for only where the inputs' differ."""
    outputs: Sequence[Any] = node.outputs
    if any(tuple(tensors[id(tensor)].shape) != tuple(tensor.shape) for tensor in node.input_tensors):
        outputs = tensors_in(node.operation.compute_output_spec(*args, **kwargs))
    return tuple(map(_like, outputs))


def _like(tensor: Any) -> Any:
    return keras.KerasTensor(tensor.shape, dtype=tensor.dtype, name=tensor.name)


def weights_in(graph: Iterable[Call]) -> int:
    """Return how many numbers the variables that calls use hold, those of a shared layer once.

    >>> x = keras.Input((3,))
    >>> dense = keras.layers.Dense(3)
    >>> weights_in(calls(keras.Model(x, dense(dense(x)))))
    12
    """
    variables: dict[int, Any] = {}
    for call in graph:
        own = call.operation.variables if isinstance(call.operation, keras.layers.Layer) else []
        given = [leaf for leaf in keras.tree.flatten((call.args, call.kwargs)) if isinstance(leaf, keras.Variable)]
        variables |= {id(variable): variable for variable in (*own, *given)}
    return sum(math.prod(variable.shape) for variable in variables.values())


def input_of(layer: keras.layers.Layer) -> Any:
    """Return what a layer of a functional model is called on, without the mask that Keras may have put beside it."""
    return layer.input[0] if isinstance(layer.input, list) else layer.input


def mask_of(layer: keras.layers.Layer) -> list[Any]:
    """Return the mask that a layer of a functional model is given, as a list of one, or of none."""
    return layer.input[1:] if isinstance(layer.input, list) else []
