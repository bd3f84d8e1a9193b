"""The graph of a functional model as a flat list of calls, including those inside nested models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact.errors import InputError, shown
from keras_preact.keras_private import functional_of, names_its_inputs, nodes_of


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or operation. A layer that is called twice has two.

    Attributes:
        operation: the layer or operation.
        name: its name, prefixed with the names of the models that contain it: `"backbone/conv1"`.
        args, kwargs: the arguments of the call.
        inputs: the tensors among those, in order.
        outputs: the tensors that it returns. If the graph connects two calls, an output of one is the same object as
            an input of the other. Shapes are those of this call: a model built for any image size has a fixed size
            here if it is called on a tensor with one.
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
    """Return the functional model that runs when a model is called; `None` for a layer or model with its own `call`.

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


def refuse_unbuilt(model: Any) -> None:
    """Raise InputError for a Sequential model that has no graph only because it was never called."""
    if isinstance(model, keras.Sequential) and not model.built:
        raise InputError(f"{model.name} has no input shape yet; begin it with keras.Input, or call it on a batch first")


def is_ours(kind: Any) -> bool:
    """Return whether a class or function belongs to this package."""
    return bool(kind.__module__.split(".")[0] == "keras_preact")


def _is_of_keras(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "keras"


def keras_name(operation: Any) -> str:
    """Return the class name of one of Keras's layers or operations; `""` for all others, including subclasses.

    >>> class Custom(keras.layers.ReLU):
    ...     pass
    >>> keras_name(keras.layers.ReLU()), keras_name(Custom())
    ('ReLU', '')
    """
    return type(operation).__name__ if _is_of_keras(type(operation)) else ""


def check_model(model: object) -> None:
    """Raise InputError unless the argument is a Keras model.

    >>> check_model("resnet50")
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: 'resnet50' is not a Keras model; pass a model
    """
    if isinstance(model, keras.Model):
        return
    if inspect.isfunction(model):
        raise InputError(f"{model.__name__} is a function, not a Keras model; call it, and pass the model it returns")
    what = repr(model) if model is None or isinstance(model, (str, int)) else f"a {type(model).__name__}"
    raise InputError(f"{shown(what)} is not a Keras model; pass a model")


def calls(model: keras.Model, inputs: Sequence[Any] | None = None) -> list[Call]:
    """Return the calls of a functional model in topological order.

    Args:
        model: a model for which `graph_of` returns a graph.
        inputs: Keras tensors to run it on. Default: tensors of the shapes that the model was built for.

    Raises:
        InputError: any other model.

    >>> x = keras.Input((8,))
    >>> inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, name="dense")], name="inner")
    >>> [call.name for call in calls(keras.Model(x, inner(inner(x))))]
    ['inner/dense', 'inner/dense']
    """
    graph = graph_of(model) if isinstance(model, keras.Model) else None
    if graph is None:
        refuse_unbuilt(model)
        raise InputError(
            f"only functional Keras models have a graph, not {type(model).__name__}; use the functional model inside it"
        )
    inputs = [_like(tensor) for tensor in graph.inputs] if inputs is None else inputs
    return list(_walk(graph, {id(tensor): new for tensor, new in zip(graph.inputs, inputs, strict=False)}, ""))


def _walk(graph: Any, tensors: dict[int, Any], prefix: str) -> Iterator[Call]:
    """Yield the calls of a graph. `tensors` maps ids of its tensors to the tensors of this run, and is extended."""
    for node in nodes_of(graph):
        if any(id(tensor) not in tensors for tensor in node.input_tensors):
            continue
        args, kwargs = node.arguments.fill_in(tensors)
        name, inner = prefix + node.operation.name, graph_of(node.operation)
        if inner is None:
            inputs, outputs = tensors_in((args, kwargs)), _outputs(node, tensors, args, kwargs)
            yield Call(node.operation, name, tuple(args), dict(kwargs), inputs, outputs)
        else:
            inputs = _ordered_inputs(inner, args[0] if args else kwargs["inputs"])
            inside = {id(tensor): new for tensor, new in zip(inner.inputs, inputs, strict=False)}
            yield from _walk(inner, inside, f"{name}/")
            outputs = tuple(inside[id(tensor)] for tensor in inner.outputs)
        tensors.update({id(tensor): new for tensor, new in zip(node.outputs, outputs, strict=False)})


def _ordered_inputs(graph: Any, inputs: Any) -> tuple[Any, ...]:
    """Return the inputs of a call in the model's order; a call may pass a list of inputs as a dictionary."""
    if isinstance(inputs, dict) and not names_its_inputs(graph):
        inputs = [inputs[tensor.name] for tensor in graph.inputs]
    return tuple(keras.tree.flatten(inputs))


def _outputs(node: Any, tensors: Mapping[int, Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return new tensors for the outputs of a call; their shapes are computed only if those of the inputs differ."""
    outputs: Sequence[Any] = node.outputs
    if any(tuple(tensors[id(tensor)].shape) != tuple(tensor.shape) for tensor in node.input_tensors):
        outputs = tensors_in(node.operation.compute_output_spec(*args, **kwargs))
    return tuple(map(_like, outputs))


def _like(tensor: Any) -> Any:
    return keras.KerasTensor(tensor.shape, dtype=tensor.dtype, name=tensor.name)


def weights_in(graph: Iterable[Call]) -> int:
    """Return the total size of the variables that calls use; those of a shared layer count once.

    >>> x = keras.Input((3,))
    >>> dense = keras.layers.Dense(3)
    >>> weights_in(calls(keras.Model(x, dense(dense(x)))))
    12
    """
    variables: dict[int, Any] = {}
    for call in graph:
        own = call.operation.variables if isinstance(call.operation, keras.layers.Layer) else []
        passed = [leaf for leaf in keras.tree.flatten((call.args, call.kwargs)) if isinstance(leaf, keras.Variable)]
        variables |= {id(variable): variable for variable in (*own, *passed)}
    return sum(math.prod(variable.shape) for variable in variables.values())


def weights_outside_graph(model: keras.Model) -> list[keras.Variable]:
    """Return the weights that a subclass of a functional model holds besides the layers of its graph."""
    if isinstance(model, keras.Sequential) or not hasattr(model, "operations"):
        return []
    inside = {id(variable) for layer in model.layers for variable in layer.variables}
    return [variable for variable in model.weights if id(variable) not in inside]
