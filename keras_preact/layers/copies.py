"""Copies of Keras objects from their configurations, whether their classes are registered with Keras or not."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import keras

from keras_preact.errors import InputError


def again(thing: Any, **changes: Any) -> Any:
    """Return a new layer, optimizer or metric of the same configuration, with some changes and without its weights.

    Raises:
        InputError: the configuration does not say how to make it.

    >>> again(keras.layers.Dense(3, name="a"), name="b").units
    3
    """
    try:
        with keras.saving.CustomObjectScope(_held(thing)):
            return type(thing).from_config({**thing.get_config(), **changes})
    except InputError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"the {type(thing).__name__} {thing.name!r} cannot be copied from its configuration; give it a get_config "
            "that returns its constructor's arguments, and named functions instead of lambdas"
        ) from error


def nameless(config: Any, numbers: dict[str, int] | None = None) -> Any:
    """Return a configuration with the names of the layers in it as numbers, in the order in which they come.

    Equal for layers that differ in no more than those names, which Keras counts through the whole process.

    >>> first, second = [keras.Sequential([keras.layers.Dense(3)], name="a").get_config() for _ in range(2)]
    >>> first == second, nameless(first) == nameless(second)
    (False, True)
    """
    numbers = {} if numbers is None else numbers
    if isinstance(config, dict):
        inner = config.get("config")
        if "class_name" in config and isinstance(inner, dict) and isinstance(inner.get("name"), str):
            number = numbers.setdefault(inner["name"], len(numbers))
            config = {**config, "name": number, "config": {**inner, "name": number}}
        return {key: nameless(value, numbers) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        # [name, call, output]: how a graph refers to a tensor.
        first = numbers.get(config[0], config[0]) if len(config) == 3 and isinstance(config[0], str) else None
        return [first if first is not None and not k else nameless(x, numbers) for k, x in enumerate(config)]
    return config


def _held(thing: Any) -> dict[str, Any]:
    """Return the classes and functions that a Keras object is made of, by the names that Keras writes for them."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # the objects too, so that none is freed and its number given to another
    waiting = [thing]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, partial):
            waiting += [value.func, value.args, value.keywords]
        elif inspect.isfunction(value):
            found[keras.saving.get_registered_name(value)] = value
        elif hasattr(type(value), "get_config"):
            found[keras.saving.get_registered_name(type(value))] = type(value)
            waiting += vars(value).values()
    return found
