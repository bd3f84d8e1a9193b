"""Shortcuts by name, as units, files and the command line write them."""

from __future__ import annotations

import ast
import functools
import inspect
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.projection import ConvShortcut, HighwayGating, _ConvolutionalShortcut
from keras_preact.layers.shortcuts import (
    ConstantScaling,
    DropoutShortcut,
    ExclusiveGating,
    IdentityShortcut,
    ScaledResidual,
    Shortcut,
    ShortcutOnlyGating,
)

SHORTCUTS: dict[str, type[Shortcut]] = {
    "identity": IdentityShortcut,
    "constant_scaling": ConstantScaling,
    "exclusive_gating": ExclusiveGating,
    "shortcut_only_gating": ShortcutOnlyGating,
    "conv": ConvShortcut,
    "dropout": DropoutShortcut,
    # Not in the paper:
    "scaled_residual": ScaledResidual,
    "highway": HighwayGating,
}
"""The shortcuts by name: those of Table 1, and two that are not in the paper, `scaled_residual` and `highway`."""


def get_shortcut(shortcut: str | Shortcut | dict[str, Any], **overrides: Any) -> Shortcut:
    """Return a new shortcut layer.

    Args:
        shortcut: a name of `SHORTCUTS`, optionally with arguments in parentheses; a shortcut layer, which is copied
            without its weights; or a layer's serialized configuration.
        **overrides: arguments that replace those of the configuration (dtype, name, data_format, …).

    Raises:
        InputError: unknown name, arguments that the shortcut does not accept, or a layer whose `get_config` lacks an
            argument.

    Example:

    >>> layer = get_shortcut("exclusive_gating(gate_bias=-7)", name="h")
    >>> type(layer).__name__, layer.gate_bias, layer.name
    ('ExclusiveGating', -7.0, 'h')
    """
    if isinstance(shortcut, dict):
        shortcut = keras.saving.deserialize_keras_object(shortcut)
    if isinstance(shortcut, Shortcut):
        config = shortcut.get_config()
        _check_complete(shortcut, config)
        config = {key: value for key, value in config.items() if key != "name"}
        try:
            return type(shortcut).from_config({**config, **overrides})
        except TypeError as error:
            if isinstance(error.__context__, InputError):  # Keras has wrapped it
                raise error.__context__ from None
            raise InputError(
                f"{type(shortcut).__name__} cannot be copied from its configuration; let its constructor accept "
                "**kwargs and pass them to super().__init__"
            ) from None
    if not isinstance(shortcut, str):
        instead = f", for example {shortcut.__name__}()" if isinstance(shortcut, type) else ""
        raise InputError(f"the shortcut is {shortcut!r}; pass a name or a Shortcut layer{instead}")
    name, arguments = _parse(shortcut)
    known = _argument_names(SHORTCUTS[name])
    try:
        if fixed := sorted(arguments.keys() & overrides.keys() - set(known)):
            raise TypeError(f"the unit sets {fixed[0]}")
        return SHORTCUTS[name](**{**arguments, **overrides})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).rstrip(".")
        raise InputError(
            f"the shortcut {shortcut!r} has invalid arguments: {reason}; {name} accepts {', '.join(known) or 'none'}"
        ) from None


def _check_complete(shortcut: Shortcut, config: dict[str, Any]) -> None:
    """Raise InputError if the configuration lacks an argument of the constructor: a copy would have its default."""
    kind = type(shortcut)
    known = {*config, *(("strides",) if kind.changes_shape else ())}  # a unit sets the strides
    own = [name for name in inspect.signature(kind.__init__).parameters if name in _argument_names(kind)]
    if missing := [name for name in own if name not in known]:
        names = ", ".join(missing)
        raise InputError(
            f"the configuration of the shortcut {kind.__name__} lacks {names}, so the unit's copy would have the "
            f"default; return {names} from get_config"
        )


def shortcut_config(shortcut: str | Shortcut | dict[str, Any]) -> dict[str, Any]:
    """Return a shortcut's name and all its arguments, the same for every way to write the same shortcut.

    >>> shortcut_config("constant_scaling") == shortcut_config("constant_scaling(shortcut=0.5, residual=0.5)")
    True
    >>> shortcut_config("exclusive_gating(gate_bias=-7)")
    {'name': 'exclusive_gating', 'gate_bias': -7.0}
    """
    return {**(_config_of_text(shortcut) if isinstance(shortcut, str) else _config_of(shortcut))}


@functools.lru_cache(1024)
def _config_of_text(shortcut: str) -> dict[str, Any]:
    """Return the result of `_config_of`, which builds a layer; many runs have the same text."""
    return _config_of(shortcut)


def _config_of(shortcut: str | Shortcut | dict[str, Any]) -> dict[str, Any]:
    layer = get_shortcut(shortcut, name="shortcut")  # named, so that Keras's counter of automatic names does not change
    config = layer.get_config()
    name = next((name for name, kind in SHORTCUTS.items() if kind is type(layer)), type(layer).__name__)
    return {"name": name, **{key: config[key] for key in _argument_names(type(layer)) if key in config}}


def fitted_shortcut(shortcut: Shortcut, strides: int, **arguments: Any) -> Shortcut:
    """Return a copy of a shortcut that changes the shape, with the unit's values for arguments that are `None`.

    Args:
        shortcut: its explicit arguments, those that are not `None` in its configuration, are not overridden.
        strides: of the unit.
        **arguments: of the unit's convolutions and normalization.

    Raises:
        InputError: the shortcut has explicit strides that differ from the unit's.

    Example:

    >>> shortcut = get_shortcut("conv(use_bias=False)")
    >>> shortcut = fitted_shortcut(shortcut, strides=2, use_bias=True, normalize="group")
    >>> shortcut.strides, shortcut.use_bias, shortcut.normalize
    (2, False, 'group')
    """
    names, config = _argument_names(type(shortcut)), shortcut.get_config()
    explicit = {name: config[name] for name in names if config.get(name) is not None}
    if isinstance(shortcut, _ConvolutionalShortcut) and explicit.get("strides", strides) != strides:
        raise InputError(
            f"the shortcut has strides={explicit['strides']} and its unit has strides={strides}; "
            "leave out the shortcut's strides to use the unit's"
        )
    fitting = {name: value for name, value in arguments.items() if name in names and name not in explicit}
    if "strides" in names:
        fitting["strides"] = strides
    return get_shortcut(shortcut, name=shortcut.name, **fitting)


def _argument_names(kind: type[Shortcut]) -> list[str]:
    """Return the names of the arguments that a kind of shortcut adds to those of `Shortcut`."""
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    names: dict[str, None] = {}
    for constructor in constructors[: constructors.index(Shortcut.__init__)]:
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                names.setdefault(parameter.name)
    return list(names)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the keyword arguments in `"name"` or `"name(key=value, …)"`; values must be literals."""
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Name):
            return check_choice("shortcut", call.id, SHORTCUTS), {}
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            return check_choice("shortcut", call.func.id, SHORTCUTS), arguments
    except (SyntaxError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(
        f"cannot read the shortcut {text!r}; write a name or name(key=number), for example "
        "exclusive_gating(gate_bias=-7)"
    )
