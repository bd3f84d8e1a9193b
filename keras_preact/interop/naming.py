"""Mapping between this package's weight names and those of other libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.shortcuts import IdentityShortcut
from keras_preact.layers.stack import UnitStack, model_of_units, units_in
from keras_preact.layers.units import ResidualUnit
from keras_preact.layers.variables import is_random_state, named_variables, variable_arguments
from keras_preact.models.imagenet import STRIDE_UNITS
from keras_preact.models.saving.hdf5 import cast_checked

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Part:
    """One unit, or one layer outside the units, of a network of this package.

    Attributes:
        name: name of the layer or, also in a stack, of the unit: `stage2_unit07`.
        unit: the unit, or for a stack a unit with the same configuration; `None` outside the units.
        stage, number: position of the unit, from 1; 0 outside the units.
        weights: returns the values by name, `{"conv1/kernel": tensor, …}`.
        assign: sets the values by name.
    """

    name: str
    unit: ResidualUnit | None
    stage: int
    number: int
    weights: Callable[[], dict[str, Any]]
    assign: Callable[[Arrays], None]


def parts(model: keras.Model) -> Iterator[Part]:
    """Yield all parts of a network that have weights, in order.

    Raises:
        InputError: the model was not built by this package.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> [part.name for part in parts(cifar_resnet(8))]
    ['stem_conv', 'stage1_unit01', 'stage2_unit01', 'stage3_unit01', 'head_norm', 'logits']
    """
    stage = number = 0
    for layer in model.layers:
        if units_in(layer):
            here = _stage_of(model, layer)
            stage, number = here, number if here == stage else 0
            unit = layer.new_unit() if isinstance(layer, UnitStack) else layer
            for k in range(units_in(layer)):
                number += 1
                yield Part(f"stage{stage}_unit{number:02d}", unit, stage, number, *_access(layer, k))
        elif layer.weights:
            yield Part(layer.name, None, 0, 0, *_access(layer, 0))
    if not stage:
        inner = model_of_units(model)
        remedy = f"pass the network inside it, get_layer({inner!r})" if inner else "build it with imagenet_resnet"
        raise InputError(f"{model.name} itself has no residual units of this package; {remedy}")


def _stage_of(model: keras.Model, layer: keras.layers.Layer) -> int:
    match = re.match(r"stage(\d+)_", layer.name)
    if match is None:
        raise InputError(f"unit {layer.name} of {model.name} has no stage in its name; build it with imagenet_resnet")
    return int(match[1])


def _access(layer: keras.layers.Layer, k: int) -> tuple[Callable[[], dict[str, Any]], Callable[[Arrays], None]]:
    """Return functions that get and set the weights of unit k of a stack, or of any other layer."""
    if isinstance(layer, UnitStack):
        return partial(layer.unit_weights, k), partial(layer.set_unit_weights, k)
    return partial(named_variables, layer), partial(_assign, layer)


def _assign(layer: keras.layers.Layer, values: Arrays) -> None:
    variables = named_variables(layer)
    for name, value in values.items():
        variables[name].assign(value)


@dataclass(frozen=True)
class Naming:
    """How another library names the layers of the same network.

    Attributes:
        library: the library's name in messages.
        unit: prefix of a unit's layers, with `{stage}` and `{unit}` from 1, `{stage0}` and `{unit0}` from 0, and
            `{stage1}` from 2.
        parts: the library's names of a unit's layers, by this package's; `{convolutions}` is the unit's number of
            convolutions.
        top: the library's names of the layers outside the units, by this package's.
        variables: the library's names of variables, by this package's.
        separator: separator between layer and variable.
        requires: arguments that the units must have for the weights to compute the same.
        stride_in: which unit of a stage has the stride; a name of `STRIDE_UNITS`.
    """

    library: str
    unit: str
    parts: Mapping[str, str]
    top: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    separator: str = "."
    requires: Mapping[str, Any] = field(default_factory=dict)
    stride_in: str = "first"

    def foreign(self, part: Part, variable: str) -> str:
        """Return the library's name for a variable of a part: `conv1/kernel` → `layer1.0.conv1.weight`.

        Raises:
            InputError: the library's networks have no such layer.
        """
        if part.unit is None:
            layer, prefix = self.top.get(part.name), ""
        else:
            path, variable = variable.rsplit("/", 1)
            numbers = {"stage": part.stage, "stage0": part.stage - 1, "stage1": part.stage + 1}
            prefix = self.unit.format(**numbers, unit=part.number, unit0=part.number - 1)
            layer = self.parts.get(path)
            if layer is not None:
                layer = layer.format(convolutions=len(part.unit.convolutions))
        if layer is None:
            raise InputError(f"{self.library} has no layer for {part.name}'s {variable}; build the network without it")
        return f"{prefix}{layer}{self.separator}{self.variables.get(variable, variable)}"

    def check(self, model: keras.Model) -> None:
        """Raise InputError if a network would compute something else than the library's with the same weights."""
        units = [(part, part.unit) for part in parts(model) if part.unit is not None]
        for stage, stride in enumerate(STRIDE_UNITS[self.stride_in], start=1):
            strides = [_stride(unit) for part, unit in units if part.stage == stage]
            expected = [1] * len(strides)
            if expected:
                expected[0] *= stride.get("strides", 1)
                expected[-1] *= stride.get("last_strides", 1)
            if strides != expected:
                raise InputError(
                    f"stage{stage} of {model.name} has its stride in another unit than {self.library}; build it with "
                    f"stride_in={self.stride_in!r}"
                )
        for part, unit in units:
            config = ResidualUnit.get_config(unit)  # subclasses omit the arguments that their names imply
            if type(get_shortcut(config["shortcut"])) is IdentityShortcut:
                config["shortcut"] = "identity"
            self._check_unit(part.name, config)
            if unit.preactivation == "shared" and unit.built and not unit.changes_shape and unit.placement.first:
                raise InputError(
                    f"the identity shortcut of {part.name} receives the pre-activation, but that of {self.library} "
                    "receives x: the weights would load, but the outputs would differ; build the network with "
                    "profile='timm', or with profile='pytorch_cifar' if it has no batch norm before the pooling"
                )

    def _check_unit(self, name: str, config: dict[str, Any]) -> None:
        for argument, value in self.requires.items():
            if config[argument] != value:
                raise InputError(
                    f"{name} has {argument}={config[argument]!r}, but the units of {self.library} have {value!r}; "
                    f"build the network with {argument}={value!r}"
                )


def _stride(unit: ResidualUnit) -> int:
    """Return a unit's stride, or the stride that dilation replaces: the weights are the same in both networks."""
    before, after = unit.dilation
    return unit.strides * after // before


def _weights(part: Part) -> Iterator[tuple[str, Any]]:
    """Yield a part's weights by name, except random states and the unit's arguments, which other libraries lack."""
    arguments = {name for names in variable_arguments(part.unit).values() for name in names}
    for name, value in part.weights().items():
        if name not in arguments and not is_random_state(name):
            yield name, value


Transpose = Callable[[np.ndarray, int], np.ndarray]
"""Converts another library's array to a given rank, with this package's order of axes."""


def weights_by_foreign_name(model: keras.Model, naming: Naming) -> dict[str, np.ndarray]:
    """Return all weights of a network by another library's names."""
    naming.check(model)
    found = {}
    for part in parts(model):
        for name, value in _weights(part):
            found[naming.foreign(part, name)] = keras.ops.convert_to_numpy(value)
    return found


def take_weights(model: keras.Model, naming: Naming, arrays: Arrays, transpose: Transpose, source: str) -> None:
    """Set all weights of a network from arrays with another library's names.

    Args:
        model: a network of this package.
        naming: the library's names.
        arrays: arrays by the library's names; the dense layer's are ignored if the network has none.
        transpose: see `Transpose`.
        source: the origin of the arrays, for error messages.

    Raises:
        InputError: weights that are missing, extra, not finite or of another shape, or a network that would compute
            something else. The model is unchanged.
    """
    naming.check(model)
    assignments, unused = [], set(arrays)
    for part in parts(model):
        values = {}
        for name, value in _weights(part):
            foreign = naming.foreign(part, name)
            if foreign not in arrays:
                raise InputError(
                    f"{source} lacks {foreign}, the {name} of {part.name}; build the network that was saved"
                )
            array = transpose(arrays[foreign], len(value.shape))
            values[name] = _fitting(array, value, f"{foreign} ({part.name}'s {name})")
            unused.discard(foreign)
        assignments.append((part.assign, values))
    if not any(layer.name == "logits" for layer in model.layers):
        unused -= {name for name in unused if name.startswith(naming.top["logits"] + naming.separator)}
    if unused:
        shown = ", ".join(sorted(unused)[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
        raise InputError(f"{source} has {shown}, which {model.name} lacks; build the network that was saved")
    for assign, values in assignments:
        assign(values)


def _fitting(array: np.ndarray, value: Any, what: str) -> np.ndarray:
    if array.shape != tuple(value.shape):
        raise InputError(
            f"{what} has shape {array.shape}, but the network's has {tuple(value.shape)}; build the network with the "
            "same widths, classes and input channels"
        )
    return cast_checked(array, value.dtype, what)
