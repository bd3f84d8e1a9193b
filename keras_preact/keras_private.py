"""Every use of what is private to Keras, in one place. `tests/test_keras_private.py` fails when Keras changes one."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import keras
from keras.src import api_export
from keras.src.backend.common import global_state
from keras.src.backend.common.variables import initialize_all_variables
from keras.src.saving import saving_lib, serialization_lib

# ---- layers -------------------------------------------------------------------------------------------------------


def layers_inside(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers inside a layer, and inside those, each before what is in it; a layer's class orders them."""
    return list(layer._flatten_layers(include_self=False))


def direct_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers right inside a layer, in the order in which Keras saves them; what is appended is one, too.

    A layer that is an attribute is saved; one that is appended here is only found, for example to be frozen.
    """
    return layer._layers


def own_trainable(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the variables of a layer alone that were made trainable, whether it is frozen now or not."""
    return list(layer._trainable_variables)


def own_state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the variables of a layer alone that were made not trainable."""
    return list(layer._non_trainable_variables)


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Return the generators of random seeds of a layer alone."""
    return list(layer._seed_generators)


def accept_any_dtype(model: keras.Model) -> None:
    """Have a Sequential model look at what it is called on before it casts it."""
    model._convert_input_args = False


# ---- variables ----------------------------------------------------------------------------------------------------


def initializer_of(variable: keras.Variable) -> Any:
    """Return what begins a variable that was made in a stateless scope."""
    return variable._initializer


def is_autocast(variable: keras.Variable) -> bool:
    """Return whether a layer uses a variable in its compute dtype."""
    return bool(variable._autocast)


def initialize(values: dict[int, Any]) -> None:
    """Give the variables without values those of `values`, by their ids, and the others their initial ones."""
    for variable in global_state.get_global_attribute("uninitialized_variables", []):
        if id(variable) in values:
            variable._initializer = _Loaded(values.pop(id(variable)))
    initialize_all_variables()


def forget_uninitialized() -> None:
    """Leave the variables without values: else the next scope, whoever opens it, would give them some after all."""
    global_state.set_global_attribute("uninitialized_variables", [])


class _Loaded:
    """An initializer that returns a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return self.value


# ---- graphs -------------------------------------------------------------------------------------------------------


def functional_of(model: keras.Sequential) -> keras.Model | None:
    """Return the functional model that a Sequential one runs; `None` until it is built."""
    return model._functional


def nodes_of(graph: keras.Model) -> Iterator[Any]:
    """Yield the calls in a functional model in an order in which they can run, without those of its inputs."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from (node for node in graph._nodes_by_depth[depth] if not node.is_input)


def names_its_inputs(graph: keras.Model) -> bool:
    """Return whether a functional model was made from a dictionary of inputs."""
    return isinstance(graph._inputs_struct, dict)


def run_through(graph: keras.Model, inputs: Any, operation: Callable[[Any], Callable[..., Any]]) -> Any:
    """Return the outputs of a functional model, with `operation(layer)` called in place of each layer.

    The public way, `clone_model`, would compile the copy, and copies a layer once for each model that has it.
    """
    return graph._run_through_graph(inputs, operation)


def maker_of(tensor: Any) -> Any:
    """Return the operation that makes a Keras tensor."""
    return tensor._keras_history.operation


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return what a model was compiled with; `get_compile_config` would serialize losses, and not all can be."""
    return dict(model._compile_config.config)


# ---- names and files ----------------------------------------------------------------------------------------------


def public_symbol(name: str) -> Any:
    """Return what Keras exports by a name such as `keras.layers.Dense`; `None` where this release has no such thing."""
    return api_export.get_symbol_from_name(name)


def objects_by_name(part: str) -> dict[str, Any]:
    """Return what Keras finds by name in a part: `losses`, `metrics`, `initializers`, …"""
    return defining_module(part).ALL_OBJECTS_DICT


def defining_module(part: str) -> Any:
    """Return the module of Keras in which something without a public name is defined, for example `ops.numpy`."""
    return importlib.import_module(f"keras.src.{part}")


def load_variables(model: keras.Model, content: BinaryIO, visited: set[int]) -> dict[Any, Any]:
    """Load variables from the content of an HDF5 file; `load_weights` wants a path.

    Args:
        model: the network.
        content: of the file.
        visited: ids of the objects to leave as they are; those that are loaded are added.

    Returns:
        What could not be loaded, with the reasons.
    """
    failed: dict[Any, Any] = {}
    with contextlib.closing(saving_lib.H5IOStore(content, mode="r")) as store:
        saving_lib._load_state(
            model,
            weights_store=store,
            assets_store=None,
            inner_path="",
            visited_saveables=visited,
            failed_saveables=set(),
            error_msgs=failed,
        )
    return failed


def safe_mode() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which Keras refuses to load code."""
    return serialization_lib.SafeModeScope(True)


def shared_objects() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which an object that a configuration names twice is made once."""
    return serialization_lib.ObjectSharingScope()


def open_both_writers(callback: keras.callbacks.TensorBoard) -> None:
    """Have TensorBoard's callback open its file of validation results, which it does when it first writes one."""
    callback._val_writer  # noqa: B018
