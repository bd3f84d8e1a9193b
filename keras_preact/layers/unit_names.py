"""Names of residual units: `stage2_unit07`, also for units in a stack, which are no layers of the network."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import keras

from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, units_in


def stage_of(path: str) -> str:
    """Return the name or path of a unit or a stack up to its stage's name.

    >>> stage_of("stage2_unit07"), stage_of("backbone_1/stage2_stack/")
    ('stage2', 'backbone_1/stage2')
    """
    above, slash, name = path.rstrip("/").rpartition("/")
    return f"{above}{slash}{name.split('_')[0]}"


def unit_names(layers: Iterable[tuple[str, keras.layers.Layer]]) -> dict[str, list[str]]:
    """Return the names of the units in the unrolled network, for each stack or unit.

    Units are numbered by stage: after `stage2_unit01`, a stack of three units has the numbers 2 to 4. Numbers that
    another layer has in its name are left out.

    Args:
        layers: names or paths, and layers, in the order of the network. Layers without units are left out.

    >>> from keras_preact.layers import ResidualUnit
    >>> unit = ResidualUnit(16)
    >>> unit_names([("stage2_unit01", unit), ("stage2_stack", UnitStack(unit, 2, rolled=False))])
    {'stage2_unit01': ['stage2_unit01'], 'stage2_stack': ['stage2_unit02', 'stage2_unit03']}
    """
    found: dict[str, list[str]] = {}
    count = Counter[str]()
    layers = list(layers)
    taken = {path.rstrip("/") for path, _ in layers}
    for path, layer in layers:
        stage, units = stage_of(path), units_in(layer)
        if isinstance(layer, UnitStack):
            units = layer.repeats
            word = "unit" if issubclass(layer.unit_type, ResidualLayer) else "block"
            names = (f"{stage}_{word}{number:02d}" for number in itertools.count(count[stage] + 1))
            found[path] = list(itertools.islice((name for name in names if name not in taken), units))
            taken.update(found[path])
        elif units:
            found[path] = [path]
        count[stage] += units
    return found
