"""The weights of a network by name. The names do not depend on whether its stages are rolled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_preact.keras_private import layers_inside
from keras_preact.layers.functional import named_variables
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, units_in
from keras_preact.models.stored import Variable, cast_finite, check_equal_variables


@dataclass(frozen=True)
class Weight:
    """A weight of a network: a variable, or one unit's slice of a stacked variable.

    Attributes:
        variable: the variable.
        unit: index of the unit in a stacked variable; `None` if the variable is not stacked.
    """

    variable: keras.Variable
    unit: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return tuple(self.variable.shape)[self.unit is not None :]

    def value(self) -> np.ndarray:
        """Return the weight's value."""
        value = self.variable if self.unit is None else self.variable[self.unit]
        return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(value, "float32")))


def named_weights(model: keras.Model) -> dict[str, Weight]:
    """Return the weights of a model, trainable or not, by their paths in the unrolled network.

    Random states are left out: they are integers and not part of the learned function.

    >>> from keras_preact.models import cifar_resnet
    >>> rolled, unrolled = (named_weights(cifar_resnet(14, rolled=rolled)) for rolled in (True, False))
    >>> rolled.keys() == unrolled.keys(), list(rolled)[0], rolled["stage1_unit02/conv1/kernel"].shape
    (True, 'stem_conv/kernel', (3, 3, 16, 16))
    """
    found: dict[str, Weight] = {}
    units = _unit_paths(model)
    for path, layer in _layers(model):
        if isinstance(layer, UnitStack):
            for k, unit in enumerate(units[path]):
                found |= {f"{unit}{name}": Weight(*place) for name, place in layer.unit_variables(k).items()}
        else:
            found |= {f"{path}{name}": Weight(variable) for name, variable in named_variables(layer).items()}
    return {name: weight for name, weight in found.items() if keras.backend.is_float_dtype(weight.variable.dtype)}


def assign(model: keras.Model, weights: Mapping[str, Weight], values: Mapping[str, Any]) -> None:
    """Set all weights of a model; a stacked variable is assigned once, with the values of all its units.

    Args:
        model: the model.
        weights: all its weights, from `named_weights`.
        values: arrays of the weights' shapes, by the same names.
    """
    stacked: dict[int, tuple[keras.Variable, np.ndarray]] = {}
    for name, weight in weights.items():
        value, variable = np.asarray(values[name]).astype("float32"), weight.variable
        if weight.unit is None:
            variable.assign(value)
        else:
            stacked.setdefault(id(variable), (variable, np.empty(tuple(variable.shape), "float32")))
            stacked[id(variable)][1][weight.unit] = value
    for variable, whole in stacked.values():
        variable.assign(whole)
    for layer in layers_inside(model):
        if hasattr(layer, "finalize_state"):  # keras.layers.Normalization computes with copies of its weights
            layer.finalize_state()


def _layers(model: keras.Model, path: str = "") -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yield the layers of a model and of nested models, with their paths, which end in a slash."""
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        yield path, model  # a subclassed model
        return
    for layer in model.layers:
        below = f"{path}{layer.name}/"
        if isinstance(layer, keras.Model):
            yield from _layers(layer, below)
        else:
            yield below, layer


def _unit_paths(model: keras.Model) -> dict[str, list[str]]:
    """Return, for each stack or unit, the paths of its units in the unrolled network.

    Units are numbered by stage, as in the builders and `unroll`.
    """
    found: dict[str, list[str]] = {}
    count = Counter[str]()
    for path, layer in _layers(model):
        stage = _stage(path)
        before = count[stage]
        count[stage] += layer.repeats if isinstance(layer, UnitStack) else units_in(layer)
        if isinstance(layer, UnitStack):
            word = "unit" if issubclass(layer.unit_type, ResidualLayer) else "block"
            found[path] = [f"{stage}_{word}{number:02d}/" for number in range(before + 1, count[stage] + 1)]
        elif units_in(layer):
            found[path] = [path]
    return found


def _stage(path: str) -> str:
    """Return the path of a unit or a stack up to its stage's name.

    >>> _stage("backbone_1/stage2_unit07/")
    'backbone_1/stage2'
    """
    above, slash, name = path.rstrip("/").rpartition("/")
    return f"{above}{slash}{name.split('_')[0]}"


def assign_checked(source: str, model: keras.Model, values: Mapping[str, np.ndarray]) -> None:
    """Set the weights of a model to the values of a file. If an error is raised, the model is unchanged.

    Args:
        source: name of the file, for error messages.
        model: the network.
        values: arrays by the names of `named_weights`.

    Raises:
        InputError: names or shapes differ from the model's, or a value is not finite in its variable's dtype.
    """
    weights = named_weights(model)
    wanted = {name: Variable(name, weight.shape, weight) for name, weight in weights.items()}
    found = {name: Variable(name, tuple(value.shape), value) for name, value in sorted(values.items())}
    check_equal_variables(source, model, wanted, found)
    for name, weight in weights.items():
        cast_finite(values[name], weight.variable.dtype, f"{name} in {source}")
    assign(model, weights, values)
