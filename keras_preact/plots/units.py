"""Diagrams of residual units, and the panels of the paper's Fig. 4."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from keras_preact.errors import InputError
from keras_preact.layers import (
    PLACEMENTS,
    ConstantScaling,
    ConvShortcut,
    DropoutShortcut,
    ExclusiveGating,
    HighwayGating,
    OptionA,
    Placement,
    PreActivation,
    Projection,
    ResidualLayer,
    ScaledResidual,
    ShortcutOnlyGating,
)
from keras_preact.paper import TABLE_2, in_words
from keras_preact.plots.base import check_some
from keras_preact.plots.boxes import (
    INK,
    MAX_WIDTH,
    NORMAL,
    SMALL,
    Column,
    Parts,
    arrow,
    canvas,
    column,
    draw_unit,
    panel,
    text_width,
    title_height,
    unit_height,
    wrapped,
    write,
)

_WORDS = {"norm": "BN", "relu": "ReLU"}


def unit_figure(units: Mapping[str, Any]) -> Figure:
    """Return diagrams of residual units side by side, as in the paper's Fig. 4, drawn from their layers.

    Data flow from top to bottom. x_l enters the shortcut h on the left and the branch F on the right; their results
    are added, and f maps the sum to x_{l+1} (Eqs. 1 and 2). Boxes are layers, and their colors are kinds of layers.

    Args:
        units: built `ResidualUnit` layers by title.

    Raises:
        InputError: there is no unit, or one is not a residual unit or not built.

    Example:

    >>> from keras_preact.layers import ResidualUnit
    >>> from keras_preact.plots import alt_text
    >>> unit = ResidualUnit(8)
    >>> unit.build((None, 16, 16, 8))
    >>> alt_text(unit_figure({"pre-activation": unit})).count("BN")
    2
    """
    check_some("units", units)
    parts = [(in_words(title), unit_parts(unit)) for title, unit in units.items()]
    alt = "Residual units, top to bottom. " + " ".join(f"{' '.join(title.split())}: {unit}." for title, unit in parts)
    return draw_units(alt, [Panel(wrapped(title, 22), (unit,)) for title, unit in parts])


def placements_figure() -> Figure:
    """Return the panels of the paper's Fig. 4, from `PLACEMENTS`, with the published errors of Table 2 below each.

    The lowest error of each network is bold. Placements that are not in the paper are left out.

    Example:

    >>> from keras_preact.plots import alt_text
    >>> figure = placements_figure()
    >>> len(figure.axes) - 1, alt_text(figure).count("ResNet-110")  # the note at the bottom has axes too
    (5, 5)
    """
    panels, described = [], []
    shown = {name: placement for name, placement in PLACEMENTS.items() if re.fullmatch("[a-z]", placement.figure)}
    lowest = {
        depth: min(error.value for name in shown if (error := TABLE_2[name][depth]).value is not None)
        for depth in TABLE_2["original"]
    }
    for name, placement in shown.items():
        title, unit = f"({placement.figure}) {in_words(name)}", placement_parts(placement)
        errors = {f"ResNet-{depth}: {error} %": error.value == lowest[depth] for depth, error in TABLE_2[name].items()}
        panels.append(Panel(wrapped(title, 20), (unit,), errors))
        published = ", ".join(errors).replace(":", "")
        described.append(f"{title}: {unit}; published test error on CIFAR-10: {published}.")
    alt = f"The panels of the paper's Fig. 4, each a residual unit, top to bottom. {' '.join(described)}"
    note = "Below each panel: published test error on CIFAR-10 (Table 2), the lowest in bold"
    return draw_units(alt, panels, note=note)


# ---- drawing ------------------------------------------------------------------------------------------------------

_IN, _OUT, _NEXT = 0.2, 0.5, 0.25
"""Heights of a panel's input and output, and of the line from one unit to the next."""
_MARGIN, _BETWEEN, _LINE = 0.1, 0.12, 0.18
"""Around a figure, between its panels, and the height of a line of text below them."""


@dataclass(frozen=True)
class Panel:
    """Units, one below the other.

    Attributes:
        title: above the units.
        units: from top to bottom.
        below: lines of text below the units; a line is bold if its value is true.
    """

    title: str
    units: tuple[Parts, ...]
    below: Mapping[str, bool] = field(default_factory=dict)

    @property
    def column(self) -> Column:
        return column(self.units)

    @property
    def width(self) -> float:
        texts = [text_width(text, NORMAL, "bold") for text in (self.title, *self.below)]
        return max(self.column.width, *texts) + _BETWEEN

    @property
    def height(self) -> float:
        """Height of the units with their symbols."""
        return _IN + sum(map(unit_height, self.units)) + _NEXT * (len(self.units) - 1) + _OUT


def draw_units(alt: str, panels: Sequence[Panel], note: str = "") -> Figure:
    """Return a figure of panels side by side, in several rows if they do not fit in one, with a note at the bottom."""
    rows: list[list[Panel]] = [[]]
    for each in panels:
        if rows[-1] and sum(other.width for other in [*rows[-1], each]) + 2 * _MARGIN > MAX_WIDTH:
            rows.append([])
        rows[-1].append(each)
    widest = max(sum(each.width for each in row) for row in rows)
    width = max(widest, text_width(note, SMALL)) + 2 * _MARGIN
    heights = [_row_height(row) for row in rows]
    bottom = sum(heights) + _MARGIN * (len(rows) + 1) + (_LINE + _MARGIN) * bool(note)
    figure = canvas(alt, width, bottom)
    if note:
        write(panel(figure, 0, 0, width, _LINE + _MARGIN), width / 2, _MARGIN + _LINE / 2, note)
    for row, height in zip(rows, heights, strict=True):
        bottom -= height + _MARGIN
        left = (width - sum(each.width for each in row)) / 2
        for each in row:
            axes = panel(figure, left, bottom, each.width, height)
            _draw_panel(axes, each, height - max(title_height(other.title) for other in row))
            left += each.width
    return figure


def _row_height(row: Sequence[Panel]) -> float:
    titles, drawings, lines = (
        max(height)
        for height in zip(*((title_height(each.title), each.height, len(each.below)) for each in row), strict=True)
    )
    return titles + drawings + _LINE * lines + (0.08 if lines else 0.0)


def _draw_panel(axes: Any, shown: Panel, top: float) -> None:
    at, middle = shown.column, shown.width / 2
    left = middle - at.width / 2
    x, y = left + at.middle, top - _IN
    write(axes, middle, top + title_height(shown.title) - 0.08, shown.title, NORMAL, weight="bold")
    write(axes, x, top - 0.08, "$x_l$", NORMAL)
    for number, unit in enumerate(shown.units, start=1):
        y = draw_unit(axes, left, y, at, unit)
        if not unit.after:
            write(axes, x + 0.07, y - 0.12, "$f$ = identity", ha="left")
        if number < len(shown.units):
            axes.plot([x, x], [y, y - _NEXT], color=INK, linewidth=1.1, zorder=2)
            y -= _NEXT
    arrow(axes, [(x, y), (x, y - 0.3)])
    write(axes, x, y - 0.4, f"$x_{{l+{len(shown.units)}}}$", NORMAL)
    for number, (text, is_bold) in enumerate(reversed(list(shown.below.items()))):
        write(axes, middle, _LINE * (number + 0.5), text, NORMAL - 0.5, weight="bold" if is_bold else "normal")


# ---- from layers to labels ----------------------------------------------------------------------------------------


def placement_parts(
    placement: Placement, weights: Sequence[str] = ("conv", "conv"), words: Mapping[str, str] = _WORDS
) -> Parts:
    """Return the parts of a unit with these weight layers, where nothing is on the shortcut.

    >>> placement_parts(PLACEMENTS["original"]).branch
    ('conv', 'BN', 'ReLU', 'conv', 'BN')
    """
    branch = [words[step] for step in placement.first]
    for number, weight in enumerate(weights):
        branch += [weight, *(words[s] for s in (placement.last if number == len(weights) - 1 else placement.between))]
    return Parts(branch=tuple(branch), after=tuple(words[step] for step in placement.after_addition))


def unit_parts(unit: Any) -> Parts:
    """Return the parts of a built unit.

    Raises:
        InputError: it is not a residual unit, or not built.
    """
    if not isinstance(unit, ResidualLayer):
        raise InputError(f"only residual units can be drawn, not {type(unit).__name__}; pass a ResidualUnit")
    if not unit.built:
        raise InputError(f"{unit.name} is not built; call it, or build it for an input shape, first")
    first, branch = layer_labels(unit.preact), layer_labels(unit.branch)
    before, branch = (first, branch) if unit.shares_preactivation else ([], first + branch)
    on_shortcut, on_branch = _shortcut_labels(unit.shortcut)
    shortcut = [*layer_labels(unit.projection), *on_shortcut]
    return Parts(tuple(before), tuple(branch), tuple(shortcut), tuple(on_branch), tuple(layer_labels(unit.postact)))


def _shortcut_labels(shortcut: Any) -> tuple[list[str], list[str]]:
    """Return the labels on the shortcut, and those of what multiplies F."""
    if isinstance(shortcut, ConstantScaling):
        return [f"× {shortcut.shortcut:g}"], [f"× {shortcut.residual:g}"] * (shortcut.residual != 1)
    if isinstance(shortcut, ExclusiveGating | HighwayGating):
        projection = layer_labels([p] if (p := getattr(shortcut, "projection", None)) else [])
        return [*projection, "× (1 − g(x))"], ["× g(x)"]
    if isinstance(shortcut, ShortcutOnlyGating):
        return ["× (1 − g(x))"], []
    if isinstance(shortcut, ConvShortcut):
        return layer_labels([shortcut.projection]), []
    if isinstance(shortcut, DropoutShortcut):
        return [f"dropout {shortcut.rate:g}"], []
    if isinstance(shortcut, ScaledResidual):
        return [], ["× α"]
    return ([] if shortcut.keeps_identity else [_name(shortcut)]), []


def activation_name(layer: Any) -> str:
    """Return the name of a layer's activation, a function or an object, in Keras's spelling."""
    return str(getattr(layer.activation, "__name__", type(layer.activation).__name__))


def layer_labels(layers: Sequence[Any]) -> list[str]:
    """Return the labels of layers, without those that only pad.

    >>> import keras
    >>> layer_labels([keras.layers.ZeroPadding2D(), keras.layers.Conv2D(16, 3, 2), PreActivation()])
    ['3×3 conv, 16, /2', 'BN', 'ReLU']
    """
    labels: list[str] = []
    for layer in layers:
        kind = type(layer).__name__
        if kind == "Conv2D":
            stride = f", /{layer.strides[0]}" * (layer.strides[0] != 1)
            labels.append(f"{layer.kernel_size[0]}×{layer.kernel_size[1]} conv, {layer.filters}{stride}")
        elif isinstance(layer, Projection):
            labels += layer_labels([layer.conv, *layer.norm])
        elif isinstance(layer, OptionA):
            labels.append("subsample, pad")
        elif isinstance(layer, PreActivation):
            activation = activation_name(layer)
            labels += ["BN", _ACTIVATIONS.get(activation, activation)]
        elif kind == "GroupNormalization":
            labels.append("layer norm" if layer.groups == 1 else "group norm")
        elif kind == "Dense":
            activation = activation_name(layer)
            labels += [f"dense, {layer.units}", *(_ACTIVATIONS.get(activation, activation),) * (activation != "linear")]
        elif "Padding" not in kind:
            labels.append(_KINDS.get(kind) or _name(layer))
    return labels


_ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU"}
_KINDS = {
    "BatchNorm": "BN",
    "BatchNormalization": "BN",
    "LayerNormalization": "layer norm",
    "RMSNormalization": "RMS norm",
    "RMSNorm": "RMS norm",
    "ReLU": "ReLU",
    "SelfAttention": "self-attention",
    "GlobalAveragePooling2D": "global average pool",
    "GlobalMaxPooling2D": "global max pool",
}


def _name(layer: Any) -> str:
    """Return the class of a layer in words.

    >>> _name(DropoutShortcut())
    'dropout shortcut'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(layer).__name__.rstrip("123D")).lower()
