"""Shortcuts by name: how units, files and the command refer to them."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.projection import ConvShortcut, HighwayGating, _Projecting
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


def get_shortcut(shortcut: str | Shortcut | dict[str, Any], **overrides: Any) -> Shortcut:
    """Return a new shortcut layer.

    Args:
        shortcut: a name of `SHORTCUTS`, with arguments in parentheses where the defaults do not do; a shortcut
            layer, which is copied without its weights; or a layer's serialized configuration.
        **overrides: arguments that replace those of the configuration (dtype, name, data_format, …).

    Raises:
        InputError: unknown name, or arguments that the shortcut does not take.

    Example:

    >>> layer = get_shortcut("exclusive_gating(gate_bias=-7)", name="h")
    >>> type(layer).__name__, layer.gate_bias, layer.name
    ('ExclusiveGating', -7.0, 'h')
    """
    if isinstance(shortcut, dict):
        shortcut = keras.saving.deserialize_keras_object(shortcut)
    if isinstance(shortcut, Shortcut):
        config = {key: value for key, value in shortcut.get_config().items() if key != "name"}
        return type(shortcut).from_config({**config, **overrides})
    name, arguments = _parse(str(shortcut))
    known = _own_arguments(SHORTCUTS[name])
    try:
        if fixed := sorted(arguments.keys() & overrides.keys() - set(known)):
            raise TypeError(f"{fixed[0]} is the unit's")
        return SHORTCUTS[name](**{**arguments, **overrides})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).rstrip(".")
        raise InputError(
            f"the shortcut {shortcut!r} does not take these arguments: {reason}; {name} takes "
            f"{', '.join(known) or 'none'}"
        ) from None


def shortcut_config(shortcut: str | Shortcut | dict[str, Any]) -> dict[str, Any]:
    """Return a shortcut as data: its name and all its arguments, equal for all that `get_shortcut` makes the same of.

    >>> shortcut_config("constant_scaling") == shortcut_config("constant_scaling(shortcut=0.5, residual=0.5)")
    True
    >>> shortcut_config("exclusive_gating(gate_bias=-7)")
    {'name': 'exclusive_gating', 'gate_bias': -7.0}
    """
    layer = get_shortcut(shortcut, name="shortcut")  # a name, so that Keras does not count one more of the kind
    config, own = layer.get_config(), _own_arguments(type(layer))
    name = next((name for name, kind in SHORTCUTS.items() if kind is type(layer)), type(layer).__name__)
    return {"name": name, **{key: config[key] for key in own if key in config}}


def fitted_shortcut(shortcut: Shortcut, strides: int, **arguments: Any) -> Shortcut:
    """Return a copy of a shortcut that changes the shape, with the unit's values for arguments it was not given.

    Args:
        shortcut: arguments that it was given stay as they are; those not given are `None` in its configuration.
        strides: of the unit.
        **arguments: of the unit's convolutions and normalization.

    Raises:
        InputError: the shortcut was given strides that differ from the unit's.

    Example:

    >>> shortcut = get_shortcut("conv(use_bias=False)")
    >>> shortcut = fitted_shortcut(shortcut, strides=2, use_bias=True, normalize="group")
    >>> shortcut.strides, shortcut.use_bias, shortcut.normalize
    (2, False, 'group')
    """
    own, config = _own_arguments(type(shortcut)), shortcut.get_config()
    given = {name: config[name] for name in own if config.get(name) is not None}
    if isinstance(shortcut, _Projecting) and given.get("strides", strides) != strides:
        raise InputError(
            f"the shortcut has strides={given['strides']} and its unit has strides={strides}; "
            "leave out the shortcut's, and it takes the unit's"
        )
    fitting = {name: value for name, value in arguments.items() if name in own and name not in given}
    if "strides" in own:
        fitting["strides"] = strides
    return get_shortcut(shortcut, name=shortcut.name, **fitting)


def _own_arguments(kind: type[Shortcut]) -> list[str]:
    """Return the names of the arguments that a kind of shortcut has beyond those of all shortcuts."""
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    names: dict[str, None] = {}
    for constructor in constructors[: constructors.index(Shortcut.__init__)]:
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                names.setdefault(parameter.name)
    return list(names)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and keyword arguments of `"name"` or `"name(key=value, …)"`, values being literals."""
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
