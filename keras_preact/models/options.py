"""The arguments that every residual network accepts, documented once."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.shortcuts import Shortcut
from keras_preact.models.profiles import Conventions

_FROM_PROFILE = ("shape_change", "stride_on", "momentum", "epsilon", "kernel_initializer", "biases")
_OF_UNITS = ("groups", "width_per_group", "normalization", "zero_init_residual", "data_format")


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Keyword arguments of `cifar_resnet`, `imagenet_resnet` and the networks made by them.

    Attributes:
        remat: activation checkpointing of the units after the first of each stage, to save memory: `False` or `"none"`
            (default), `"unit"`, or `"segment"` or `True`; see `UnitStack`. With checkpointing, these units are one
            layer, such as `stage2_stack`, also if `rolled=False`.
        profile: the code base to follow where implementations differ: a name in `PROFILES`. It decides `shape_change`,
            `stride_on`, `momentum`, `epsilon`, `kernel_initializer` and `biases` if they are `None`, and some details
            of the stem, the first unit and the head. Default `"paper"`.
        shape_change: how a unit changes the shape: `"projection"` (the paper) or `"option_a"`.
        stride_on: the strided convolution of a bottleneck: `"3x3"` (the paper's profile) or `"1x1"`.
        groups, width_per_group: of the bottlenecks (ResNeXt); see `ResidualUnit`.
        normalization: `"batch"` (default), `"group"`, `"layer"` or `"none"`.
        momentum, epsilon: of the normalization; 0.9 and 1e-5 in the paper's profile.
        kernel_initializer, biases: of the convolutions; see `ResidualUnit`.
        drop_path: probability of dropping the last unit's branch in training (stochastic depth). It grows linearly
            from 0 at the first unit. Default 0.
        zero_init_residual: whether to initialize every branch to F = 0. Default `False`.
        include_top: whether the network ends with pooling and a dense layer. Default `True`.
        weights: name of the data set of a trained network, for example `"cifar10"` (see `pretrained`); or path of a
            weights file of this network. With `input_tensor`, the file may contain the layers before that tensor or
            leave them out. Default `None`: random weights.
        input_tensor: a Keras tensor to build on, instead of a new input.
        pooling: global pooling without top: `None` (default), `"avg"` or `"max"`.
        classifier_activation: of the dense layer. Default `None`: the model outputs logits.
        data_format: `"channels_last"` or `"channels_first"`. Default: Keras's setting.
        dtype: dtype or dtype policy of the layers. Default: Keras's setting. Logits are always float32. Images have
            Keras's `floatx`: for float64 images, call `keras.config.set_floatx("float64")` first.
        name: of the model. Default: for example `"resnet110_full_preactivation"`.
    """

    remat: bool | str = False
    profile: str = "paper"
    shape_change: str | None = None
    stride_on: str | None = None
    groups: int = 1
    width_per_group: int = 64
    normalization: str = "batch"
    momentum: float | None = None
    epsilon: float | None = None
    kernel_initializer: Any = None
    biases: str | None = None
    drop_path: float = 0.0
    zero_init_residual: bool = False
    include_top: bool = True
    weights: str | Path | None = None
    input_tensor: Any = None
    pooling: str | None = None
    classifier_activation: Any = None
    data_format: str | None = None
    dtype: Any = None
    name: str | None = None

    def of_units(self, conventions: Conventions) -> dict[str, Any]:
        """Return the arguments of every `ResidualUnit`, with the conventions in place of those that are `None`."""
        chosen = {name: getattr(self, name) for name in _FROM_PROFILE}
        return {**{name: getattr(self, name) for name in _OF_UNITS}, **conventions.unit_options(**chosen)}


def with_network_options(builder: Callable[..., keras.Model]) -> Callable[..., keras.Model]:
    """Add the fields of `NetworkOptions` to a builder's signature, and suggest the closest name for an unknown option.

    >>> from keras_preact.models import cifar_resnet
    >>> inspect.signature(cifar_resnet).parameters["profile"].default
    'paper'
    >>> cifar_resnet(20, stride_one="1x1")
    Traceback (most recent call last):
        ...
    TypeError: cifar_resnet() got an unexpected keyword argument 'stride_one'; did you mean 'stride_on'?
    """
    signature = inspect.signature(builder)
    own = _named_parameters(builder)
    shared = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(NetworkOptions)
    ]
    signature = signature.replace(parameters=[*own, *shared])

    @functools.wraps(builder)
    def build(*arguments: Any, **options: Any) -> keras.Model:
        _refuse_unknown(builder.__name__, options, signature)
        if isinstance(options.get("weights"), str):
            from keras_preact.models.catalogue import build_trained, datasets  # imports the builders

            if options["weights"] in datasets():
                return build_trained(builder, signature.bind(*arguments, **options).arguments)
        return builder(*arguments, **options)

    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


def network_shortcut(shortcut: Any) -> Shortcut:
    """Return the shortcut that an option of a network means.

    Raises:
        InputError: an unknown name, or a seed, with which all units would draw the same random numbers.
    """
    template = get_shortcut(shortcut)
    if template.get_config().get("seed") is not None:
        raise InputError(
            "the seed of the shortcut would begin again in each unit, and the units would draw the "
            "same random numbers; remove it, and call keras.utils.set_random_seed to make them reproducible"
        )
    return template


def variant_of(base: Callable[..., keras.Model], *fixed: str) -> Callable[..., Callable[..., keras.Model]]:
    """Return a decorator for a function that passes its options on to `base`, which shows them in its signature.

    Args:
        base: a builder.
        fixed: names of the arguments of `base` that the function chooses itself.

    >>> from keras_preact.models import preact_resnet50
    >>> "shortcut" in inspect.signature(preact_resnet50).parameters
    True
    >>> preact_resnet50(clases=10)
    Traceback (most recent call last):
        ...
    TypeError: preact_resnet50() got an unexpected keyword argument 'clases'; did you mean 'classes'?
    """

    def decorate(function: Callable[..., keras.Model]) -> Callable[..., keras.Model]:
        own = _named_parameters(function)
        others = [each for each in _named_parameters(base) if each.name not in {*fixed, *(mine.name for mine in own)}]
        passed_on = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
        signature = inspect.signature(function).replace(parameters=[*own, *passed_on])

        @functools.wraps(function)
        def build(*arguments: Any, **options: Any) -> keras.Model:
            _refuse_unknown(function.__name__, options, signature)
            return function(*arguments, **options)

        build.__signature__ = signature  # type: ignore[attr-defined]
        return build

    return decorate


def _named_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, without `**options`."""
    return [each for each in inspect.signature(function).parameters.values() if each.kind != each.VAR_KEYWORD]


def _refuse_unknown(function: str, options: dict[str, Any], signature: inspect.Signature) -> None:
    for name in options.keys() - signature.parameters.keys():
        near = difflib.get_close_matches(name, signature.parameters, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
