"""Copies of Keras objects from their configurations, also of classes that are not registered, and of weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import direct_layers, layers_inside, no_shared_objects
from keras_preact.layers.composite import frozen_parts, set_frozen
from keras_preact.layers.variables import Renumbering, named_variables, variable_arguments


def clone(thing: Any, **changes: Any) -> Any:
    """Return a copy of a layer, optimizer or metric without its weights; `changes` update its configuration.

    Inner layers of an unbuilt layer that are frozen are frozen in the copy too, although no configuration says so.

    Raises:
        InputError: it cannot be created from its configuration.

    >>> clone(keras.layers.Dense(3, name="a"), name="b").units
    3
    """
    known = custom_objects(thing)
    try:
        with keras.saving.CustomObjectScope(known), no_shared_objects():
            copy = type(thing).from_config({**thing.get_config(), **changes})
    except InputError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error.__context__, InputError):  # an argument is refused; Keras wraps the reason
            raise error.__context__ from None
        raise InputError(
            f"the {type(thing).__name__} {thing.name!r} cannot be copied from its configuration; return all "
            "constructor arguments from get_config, and use named functions instead of lambdas"
        ) from error
    if isinstance(thing, keras.layers.Layer) and not thing.built:
        for part, copied in zip(layers_inside(thing), layers_inside(copy), strict=False):
            if copied.trainable != part.trainable:
                copied.trainable = part.trainable
    return copy


def set_weights(layer: keras.layers.Layer, weights: Sequence[Any]) -> None:
    """Set the weights of a layer or model, as its own `set_weights`; inner `Normalization` layers use them at once."""
    layer.set_weights(weights)
    refresh_normalizations(layer)


def refresh_normalizations(layer: keras.layers.Layer) -> None:
    """Let `keras.layers.Normalization` layers compute with their present weights; they use copies made in `build`."""
    for part in [layer, *layers_inside(layer)]:
        if isinstance(part, keras.layers.Normalization):
            part.finalize_state()


def without_names(config: Any, numbers: dict[str, int] | None = None) -> Any:
    """Return a configuration with layer names replaced by numbers, in order of appearance.

    Layers that differ only in those names get equal configurations. Keras numbers its default names across the whole
    process, so two equal layers have different ones.

    >>> first, second = [keras.Sequential([keras.layers.Dense(3)], name="a").get_config() for _ in range(2)]
    >>> first == second, without_names(first) == without_names(second)
    (False, True)
    """
    numbers = {} if numbers is None else numbers
    if isinstance(config, dict):
        inner = config.get("config")
        if "class_name" in config and isinstance(inner, dict) and isinstance(inner.get("name"), str):
            number = numbers.setdefault(inner["name"], len(numbers))
            config = {**config, "name": number, "config": {**inner, "name": number}}
        return {key: without_names(value, numbers) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        if len(config) == 3 and isinstance(config[0], str):  # [name, call, output]: a graph's reference to a tensor
            config = [numbers.get(config[0], config[0]), *config[1:]]
        return [without_names(value, numbers) for value in config]
    return config


def custom_objects(thing: Any) -> dict[str, Any]:
    """Return the classes and functions that a Keras object is made of, by the names that Keras saves for them.

    Raises:
        InputError: two of them, which its configuration names, have one name.
    """
    found: dict[str, Any] = {}
    ambiguous: set[str] = set()

    def add(part: Any) -> None:
        name = keras.saving.get_registered_name(part)
        if not _is_same(found.setdefault(name, part), part) and name != "<lambda>":  # Keras saves a lambda's code
            ambiguous.add(name)

    seen: dict[int, Any] = {}  # by id; holds the objects, so that no id is reused
    pending = [thing]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, (list, tuple)):
            pending.extend(value)  # `+=` fails with TensorFlow's wrapper of a tuple
        elif isinstance(value, partial):
            pending += [value.func, value.args, value.keywords]
        elif inspect.isfunction(value):
            add(value)
        elif hasattr(type(value), "get_config"):
            if type(value).__module__.split(".")[0] != "keras":
                add(type(value))
            pending += vars(value).values()
    if ambiguous and (names := sorted(ambiguous & _strings(thing))):
        raise InputError(
            f"{thing.name} is made of two different objects called {names[0]}, and its configuration can name only "
            "one; give them different names"
        )
    return found


def _strings(thing: Any) -> set[str]:
    """Return all strings in the configuration of a Keras object, among them the names of classes and functions."""
    return {leaf for leaf in keras.tree.flatten(thing.get_config()) if isinstance(leaf, str)}


def same_custom_objects(thing: Any, other: Any) -> bool:
    """Return whether the classes and functions that two equal configurations name are the same, too."""
    objects, others, names = custom_objects(thing), custom_objects(other), _strings(thing)
    return all(_is_same(objects[name], others[name]) for name in objects.keys() & others.keys() & names)


def _is_same(part: Any, other: Any) -> bool:
    """Return whether two classes or functions are the same, or closures of the same code and values."""
    if part is other or not (inspect.isfunction(part) and inspect.isfunction(other)):
        return part is other
    values = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (part, other)]
    same = all(a is b or (type(a) in (int, float, str, bool) and a == b) for a, b in zip(*values, strict=False))
    return part.__code__ == other.__code__ and part.__defaults__ == other.__defaults__ and same


def check_copyable(unit: keras.layers.Layer) -> None:
    """Refuse a unit with weights that a copy from its configuration does not have.

    Raises:
        InputError: it contains adapters (LoRA) or quantized layers.
    """
    for part in [unit, *layers_inside(unit)]:
        if getattr(part, "lora_enabled", False):
            raise InputError(
                f"{unit.name} has adapters (LoRA), which a copy would lose; save the network and load it again, which "
                "merges them into the kernels"
            )
        if part.quantization_mode:
            raise InputError(
                f"{unit.name} has quantized layers, which cannot be copied; stack or copy units before quantizing them"
            )


def copy_frozen(source: keras.layers.Layer, unit: keras.layers.Layer) -> None:
    """Freeze a built unit, or layers inside it, as in another that may have drop path where this one has none."""
    if unit.trainable != source.trainable:
        unit.trainable = source.trainable
    frozen = {path for path, part in _inner_layers(source).items() if not part.trainable}
    parts = {id(part) for path, part in _inner_layers(unit).items() if path in frozen}
    set_frozen(unit, [index for index, part in enumerate(layers_inside(unit)) if id(part) in parts])


def _inner_layers(unit: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Return the layers inside a unit by their paths, with Keras's default names as in `named_variables`."""
    found: dict[str, keras.layers.Layer] = {}
    renumbered = Renumbering(unit)

    def add(layer: keras.layers.Layer, above: str) -> None:
        for part in direct_layers(layer):
            path = renumbered(f"{above}{part.name}/")
            while path in found:
                path += "_"
            found[path] = part
            add(part, f"{above}{part.name}/")

    add(unit, "")
    return found


def same_but_for_weights(unit: keras.layers.Layer, other: keras.layers.Layer) -> bool:
    """Return whether two built layers compute and train the same function, apart from their variables' values."""
    free = {"name", *variable_arguments(unit)}
    configs = [{k: v for k, v in without_names(layer.get_config()).items() if k not in free} for layer in (unit, other)]
    variables = [{name: (v.shape, v.trainable) for name, v in named_variables(each).items()} for each in (unit, other)]
    frozen = [frozen_parts(layer) for layer in (unit, other)]
    is_alike = type(unit) is type(other) and all(pair[0] == pair[1] for pair in (configs, variables, frozen))
    return is_alike and same_custom_objects(unit, other)
