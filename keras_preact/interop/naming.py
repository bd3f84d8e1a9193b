"""The same network under other names: whose layer is which, and what a kernel looks like there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.layers.functional import named_variables
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.shortcuts import IdentityShortcut
from keras_preact.layers.stack import UnitStack, units_in
from keras_preact.layers.units import ResidualUnit
from keras_preact.models.imagenet import STRIDE_UNITS
from keras_preact.models.stored import finite

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Part:
    """One unit, or one layer outside the units, of a network of this package.

    Attributes:
        name: of the layer or, in a stack too, of the unit: `stage2_unit07`.
        unit: the unit, or one equal to it but for its weights; `None` for a layer outside the units.
        stage, number: of the unit, from 1; 0 for a layer outside the units.
        weights: returns values by name, `{"conv1/kernel": tensor, …}`.
        assign: sets values by name.
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
        InputError: the model is not one that this package's builders made.

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
        raise InputError(f"{model.name} has no residual units of this package; build it with imagenet_resnet or others")


def _stage_of(model: keras.Model, layer: keras.layers.Layer) -> int:
    named = re.match(r"stage(\d+)_", layer.name)
    if named is None:
        raise InputError(f"{model.name} is no network of this package's builders: its unit {layer.name} has no stage")
    return int(named[1])


def _access(layer: keras.layers.Layer, k: int) -> tuple[Callable[[], dict[str, Any]], Callable[[Arrays], None]]:
    """Return functions that get and set the weights of unit k of a stack, or of a layer that is no stack."""
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
        library: its name in a sentence.
        unit: prefix of a unit's layers, with `{stage}`, `{unit}` from 1 and `{stage0}`, `{unit0}` from 0.
        parts: this package's names of a unit's layers: theirs. `{convolutions}` is the number of them.
        top: this package's names of the layers outside the units: theirs.
        variables: this package's names of variables: theirs.
        separator: between layer and variable.
        requires: arguments of the units that the weights are right for only so.
        stride_in: which unit of a stage halves the image there; a name of `STRIDE_UNITS`.
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
        """Return their name for a variable of a part, by its name here: `conv1/kernel` → `layer1.0.conv1.weight`.

        Raises:
            InputError: their networks have no such layer.
        """
        if part.unit is None:
            layer, prefix = self.top.get(part.name), ""
        else:
            own, variable = variable.rsplit("/", 1)
            numbers = {"stage": part.stage, "stage0": part.stage - 1, "stage1": part.stage + 1}
            prefix = self.unit.format(**numbers, unit=part.number, unit0=part.number - 1)
            layer = self.parts.get(own)
            if layer is not None:
                layer = layer.format(convolutions=len(part.unit.convolutions))
        if layer is None:
            raise InputError(f"{self.library} has no layer for {part.name}'s {variable}; build the network without it")
        return f"{prefix}{layer}{self.separator}{self.variables.get(variable, variable)}"

    def check(self, model: keras.Model) -> None:
        """Raise InputError where a network computes something else than theirs with the same weights."""
        units = [(part, part.unit) for part in parts(model) if part.unit is not None]
        for stage, stride in enumerate(STRIDE_UNITS[self.stride_in], start=1):
            strides = [_stride(unit) for part, unit in units if part.stage == stage]
            expected = [1] * len(strides)
            if expected:
                expected[0] *= stride.get("strides", 1)
                expected[-1] *= stride.get("last_strides", 1)
            if strides != expected:
                raise InputError(
                    f"stage{stage} of {model.name} strides elsewhere than in {self.library}; build the network with "
                    f"stride_in={self.stride_in!r}"
                )
        for part, unit in units:
            config = ResidualUnit.get_config(unit)  # of a named unit too, with what its name says
            if type(get_shortcut(config["shortcut"])) is IdentityShortcut:
                config["shortcut"] = "identity"
            self._check_unit(part.name, config)
            if unit.preactivation == "shared" and unit.built and not unit.changes_shape and unit.placement.first:
                raise InputError(
                    f"the identity shortcut of {part.name} is given the pre-activation, in {self.library} x itself: "
                    "the weights would fit and mean something else; build the network with profile='timm'"
                )

    def _check_unit(self, name: str, config: dict[str, Any]) -> None:
        for argument, value in self.requires.items():
            if config[argument] != value:
                raise InputError(
                    f"{name} has {argument}={config[argument]!r}, and the units of {self.library} have {value!r}: "
                    f"the weights would fit and mean something else; build the network with {argument}={value!r}"
                )


def _stride(unit: ResidualUnit) -> int:
    """Return a unit's stride, or the one that dilation stands for: between them a dilated network computes the same."""
    before, after = unit.dilation
    return unit.strides * after // before


def _weights(part: Part) -> Iterator[tuple[str, Any]]:
    """Yield a part's weights by name, without what no other library keeps: the unit's own arguments, random states."""
    arguments = {name for names in getattr(part.unit, "variable_arguments", {}).values() for name in names}
    for name, value in part.weights().items():
        if name not in arguments and "seed_generator" not in name:
            yield name, value


Transpose = Callable[[np.ndarray, int], np.ndarray]
"""Brings a weight of theirs into the order of axes, and to the rank, that it has here."""


def weights_by_foreign_name(model: keras.Model, naming: Naming) -> dict[str, np.ndarray]:
    """Return all weights of a network by the names that another library gives them."""
    naming.check(model)
    found = {}
    for part in parts(model):
        for name, value in _weights(part):
            found[naming.foreign(part, name)] = keras.ops.convert_to_numpy(value)
    return found


def take_weights(model: keras.Model, naming: Naming, theirs: Arrays, transpose: Transpose, source: str) -> None:
    """Set all weights of a network to those that another library names; all of them, or none.

    Args:
        model: of this package.
        naming: of the library.
        theirs: arrays by their names; more than those of the network only where the network has no dense layer.
        transpose: see `Transpose`.
        source: what to call where they are from, in errors.

    Raises:
        InputError: weights that are missing, too many, not finite or of another shape, or a network that computes
            something else; it is as it was then.
    """
    naming.check(model)
    assignments, left = [], set(theirs)
    for part in parts(model):
        values = {}
        for name, value in _weights(part):
            foreign = naming.foreign(part, name)
            if foreign not in theirs:
                raise InputError(
                    f"{source} lacks {foreign}, the {name} of {part.name}; build the network that it was saved from"
                )
            array = transpose(theirs[foreign], len(value.shape))
            values[name] = _fitting(array, value, f"{foreign} ({part.name}'s {name})")
            left.discard(foreign)
        assignments.append((part.assign, values))
    if not any(layer.name == "logits" for layer in model.layers):
        left -= {name for name in left if name.startswith(naming.top["logits"] + naming.separator)}
    if left:
        shown = ", ".join(sorted(left)[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        raise InputError(f"{source} has {shown} beyond the weights of {model.name}; build the network that it is from")
    for assign, values in assignments:
        assign(values)


def _fitting(array: np.ndarray, value: Any, what: str) -> np.ndarray:
    if array.shape != tuple(value.shape):
        raise InputError(
            f"{what} is {array.shape}, and the network's is {tuple(value.shape)}; build it with the same widths, "
            "classes and input channels"
        )
    return finite(array, value.dtype, what)
