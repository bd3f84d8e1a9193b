"""Diagrams of networks, of Eqs. (4) and (5), and of Transformer blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from keras_preact.errors import InputError, check_positive, shown
from keras_preact.layers import NORM_PLACEMENTS, SHORTCUTS, ResidualUnit, UnitStack
from keras_preact.layers.graph import Call, calls, graph_of
from keras_preact.layers.stack import units_in
from keras_preact.layers.unit_names import stage_of
from keras_preact.paper import in_words
from keras_preact.plots.base import COLOURS
from keras_preact.plots.boxes import (
    MAX_WIDTH,
    NORMAL,
    PLUS,
    SMALL,
    arrow,
    box,
    canvas,
    line_height,
    panel,
    plus,
    text_width,
    tint,
    wrapped,
    write,
)
from keras_preact.plots.units import Panel, activation_name, draw_units, layer_labels, placement_parts

# ---- networks -----------------------------------------------------------------------------------------------------

NOMINAL = 256
"""Height and width at which a network without a fixed image size is measured."""
_HEIGHT, _WIDTH = 1.5, 0.75
"""Of the largest boxes, in inches."""
_DEPTH, _RISE = 0.35, 0.6
"""Perspective: how far a box reaches to the right, as a share of its height, and how much it rises there."""


@dataclass(frozen=True)
class _Part:
    """A box of `network_figure`.

    Attributes:
        title: its name.
        lines: its description.
        shape: its output (height, width, channels); (1, 1, units) for a vector.
        written: its output shape as text.
        color: of the box.
    """

    title: str
    lines: tuple[str, ...]
    shape: tuple[int, int, int]
    written: str
    color: str

    def text(self, characters: int) -> str:
        """Return the description and the shape, in lines of at most `characters`."""
        return "\n".join(wrapped(line, characters) for line in (*self.lines, self.written))


def network_figure(model: keras.Model) -> Figure:
    """Return a diagram of a residual network: its input, stem, stages and head as boxes in perspective.

    A box is higher for larger feature maps and wider for more channels. The text below it states the output shape
    and, for a stage, the number and kind of its units. Rolled and unrolled networks look the same.

    Args:
        model: a network of this package: a `cifar_resnet` or an ImageNet network.

    Raises:
        InputError: any other model.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> from keras_preact.plots import alt_text
    >>> print(alt_text(network_figure(cifar_resnet(20))).split("; ")[2])
    stage 1: 3 basic units, full pre-activation, output 32 × 32 × 16
    """
    parts = _network_parts(model)
    described = "; ".join(
        f"{part.title}: {', '.join(part.lines)}{', ' if part.lines else ''}output {part.written}" for part in parts
    )
    alt = (
        f"The network {shown(model.name)} from left to right, each part a box that is higher for larger maps and wider "
        f"for more channels: {described}."
    )
    sizes = [(_scaled(part.shape[2], parts, 2) * _WIDTH, _scaled(part.shape[0], parts, 0) * _HEIGHT) for part in parts]
    for characters in (20, 16, 13):  # the widest that fits
        texts = [part.text(characters) for part in parts]
        columns = [
            max(width + _DEPTH * height, text_width(text, SMALL), text_width(part.title, NORMAL, "bold")) + 0.22
            for part, text, (width, height) in zip(parts, texts, sizes, strict=True)
        ]
        if sum(columns) + 0.2 <= MAX_WIDTH:
            break
    below = 0.55 + line_height(SMALL) * (1 + max(text.count("\n") for text in texts))
    center = below + 0.32 + _HEIGHT / 2
    note = "Height and width of a box: square roots of the spatial size and of the number of channels"
    width_of_all = max(sum(columns), text_width(note, SMALL)) + 0.2
    figure = canvas(alt, width_of_all, center + _HEIGHT * (0.5 + _RISE * _DEPTH) + 0.15)
    axes = panel(figure, 0, 0, *figure.get_size_inches())
    write(axes, width_of_all / 2, 0.18, note)
    x, last = (width_of_all - sum(columns)) / 2, 0.0
    for part, text, (width, height), column in zip(parts, texts, sizes, columns, strict=True):
        middle = x + column / 2
        left = middle - (width + _DEPTH * height) / 2
        if last:
            arrow(axes, [(last + 0.05, center), (left - 0.05, center)])
        _cuboid(axes, left, center, width, height, part.color)
        last = left + width + _DEPTH * height / 2
        write(axes, middle, below + 0.1, part.title, NORMAL, weight="bold")
        write(axes, middle, below - 0.12, text)
        x += column
    return figure


def _scaled(size: int, parts: Sequence[_Part], axis: int) -> float:
    """Return a size as a share of the largest, as square root: small boxes remain visible."""
    return max(0.06, math.sqrt(size / max(part.shape[axis] for part in parts)))


def _cuboid(axes: Any, left: float, center: float, width: float, height: float, color: str) -> None:
    """Draw a box in perspective: its front, its top and its right side."""
    across, up = _DEPTH * height, _RISE * _DEPTH * height
    bottom, top, right = center - height / 2, center + height / 2, left + width
    front = [(left, bottom), (right, bottom), (right, top), (left, top)]
    lid = [(left, top), (right, top), (right + across, top + up), (left + across, top + up)]
    side = [(right, bottom), (right, top), (right + across, top + up), (right + across, bottom + up)]
    darkness = 0.4 if color == COLOURS[-1] else 1.0
    for points, strength, gid in ((front, 0.35, "box"), (lid, 0.2, "lid"), (side, 0.5, "side")):
        face: dict[str, Any] = {"facecolor": tint(color, darkness * strength), "edgecolor": color}
        axes.add_patch(Polygon(points, closed=True, linewidth=0.9, joinstyle="round", gid=gid, zorder=3, **face))


def _network_parts(model: Any) -> list[_Part]:
    """Return the boxes of a network.

    Raises:
        InputError: the model has no stages of residual units.
    """
    what = f"{type(model).__name__} {shown(getattr(model, 'name', ''))}".strip()
    if not isinstance(model, keras.Model) or (graph := graph_of(model)) is None:
        raise InputError(f"{what} is not a functional Keras model; pass a network such as cifar_resnet(20)")
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise InputError(f"{what} has several inputs or outputs; pass a network with one of each")
    measured, nominal = _measured(graph)
    stages: dict[str, list[Call]] = {}
    for call in measured:
        if units_in(call.operation):
            _check_unit(call, what)
            stages.setdefault(stage_of(call.name.split("/")[-1]), []).append(call)
    if not stages:
        raise InputError(f"{what} has no residual units; pass a network such as cifar_resnet(20)")
    if unknown := [name for name in stages if not re.fullmatch(r"stage\d+", name)]:
        raise InputError(f"{what} has a unit {shown(unknown[0])} outside of stages; name units like stage1_unit01")
    inside = [call for stage in stages.values() for call in stage]
    first, last = measured.index(inside[0]), measured.index(inside[-1])
    return _parts_in_order(graph.inputs[0], measured[:first], stages, measured[last + 1 :], nominal)


def _check_unit(call: Call, what: str) -> None:
    if not isinstance(_unit_of(call.operation), ResidualUnit):
        raise InputError(f"{what} is a Transformer or has custom units; only networks of ResidualUnit can be drawn")


def _unit_of(layer: Any) -> Any:
    """Return a residual unit, or the first of a stack."""
    if isinstance(layer, UnitStack):
        return layer.own_unit(0)
    return layer


def _parts_in_order(
    x: Any, before: list[Call], stages: dict[str, list[Call]], after: list[Call], nominal: bool
) -> list[_Part]:
    unit = _unit_of(next(iter(stages.values()))[0].operation)
    first = unit.data_format == "channels_first"
    names = [type(call.operation).__name__ for call in before]
    convolution = next((k for k, name in enumerate(names) if "Conv" in name), 0)
    while convolution and "Padding" in names[convolution - 1]:
        convolution -= 1  # the padding of the convolution
    prepared, stem = before[:convolution], before[convolution:]
    sizes = _Sizes(x.shape, first, nominal)
    parts = [_Part("input", (), *sizes(x, is_input=True), COLOURS[-1])]
    if prepared:
        parts.append(_Part("preparation", _labels(prepared), *sizes(prepared[-1].outputs[0]), COLOURS[4]))
    if stem:
        parts.append(_Part("stem", _labels(stem), *sizes(stem[-1].outputs[0]), COLOURS[1]))
    for name, units in stages.items():
        title = f"stage {name.removeprefix('stage')}"
        parts.append(_Part(title, _stage_lines(units), *sizes(units[-1].outputs[0]), COLOURS[0]))
    if after:
        parts.append(_Part("head", _labels(after), *sizes(after[-1].outputs[0]), COLOURS[3]))
    return parts


def _stage_lines(stage: Sequence[Call]) -> tuple[str, ...]:
    """Return the number and kind of a stage's units."""
    units = [_unit_of(call.operation) for call in stage]
    count = sum(units_in(call.operation) for call in stage)
    blocks = " and ".join(dict.fromkeys({"single": "single-layer"}.get(unit.block, unit.block) for unit in units))
    names = {kind: name for name, kind in SHORTCUTS.items()}
    shortcuts = dict.fromkeys(in_words(names.get(type(unit.shortcut), type(unit.shortcut).__name__)) for unit in units)
    placements = dict.fromkeys(in_words(unit.placement.name) for unit in units)
    lines = [f"{count} {blocks} unit{'s' * (count != 1)}", " and ".join(placements)]
    if list(shortcuts) != ["identity"]:
        lines.append(f"shortcut: {' and '.join(shortcuts)}")
    return tuple(lines)


def _labels(layers: Sequence[Call]) -> tuple[str, ...]:
    """Return the labels of layers, with a norm and the ReLU after it on one line."""
    labels: list[str] = []
    for call in layers:
        layer = call.operation
        kind = type(layer).__name__
        if kind == "MaxPooling2D":
            labels.append(f"{layer.pool_size[0]}×{layer.pool_size[0]} max pool, /{layer.strides[0]}")
        elif kind == "Dense":
            labels.append(f"dense, {layer.units}")
        elif kind == "Activation":
            labels.append(activation_name(layer).replace("_", " "))
        elif isinstance(layer, keras.layers.Layer):
            labels += [", ".join(found)] if (found := layer_labels([layer])) else []
        else:
            labels.append(kind.lower())
    return tuple(labels)


def _measured(graph: Any) -> tuple[list[Call], bool]:
    """Return the calls of a network, and whether they have nominal sizes because the units accept any."""
    x = graph.inputs[0]
    found = calls(graph)
    if all(size for call in found if units_in(call.operation) for size in call.outputs[0].shape[1:]):
        return found, False
    shape = (x.shape[0], *(size or NOMINAL for size in x.shape[1:]))
    return calls(graph, [keras.KerasTensor(shape, dtype=x.dtype)]), True


class _Sizes:
    """Shapes of images and vectors, also of networks that accept any size.

    Called with a tensor, it returns height, width and channels for the drawing, and the shape as text.
    """

    def __init__(self, input_shape: Sequence[int | None], channels_first: bool, nominal: bool) -> None:
        # A network with preprocessing inside accepts channels-last images in any case.
        self.channels_first = channels_first
        self.input_is_first = channels_first and input_shape[-1] != 3
        self.nominal = nominal
        self.free = [size is None for size in self._ordered(input_shape, self.input_is_first)[:2]]

    def __call__(self, tensor: Any, is_input: bool = False) -> tuple[tuple[int, int, int], str]:
        if len(tensor.shape) != 4:
            units = math.prod(size or 1 for size in tensor.shape[1:])
            return (1, 1, units), f"vector of {units}"
        sizes = self._ordered(tensor.shape, self.input_is_first if is_input else self.channels_first)
        written = [str(size) for size in sizes]
        for axis, letter in enumerate("HW"):
            if sizes[axis] is None:
                written[axis] = letter
            elif self.free[axis] and self.nominal:
                times, share = sizes[axis] // NOMINAL, NOMINAL // sizes[axis]
                written[axis] = f"{times}{letter}" if times > 1 else f"{letter}/{share}" if share > 1 else letter
        height, width, channels = (size or NOMINAL for size in sizes)
        return (height, width, channels), " × ".join(written)

    @staticmethod
    def _ordered(shape: Sequence[Any], channels_first: bool) -> tuple[Any, ...]:
        """Return height, width and channels of images."""
        _, *sizes = shape
        return (sizes[1], sizes[2], sizes[0]) if channels_first else tuple(sizes)


# ---- Eqs. (4) and (5) ---------------------------------------------------------------------------------------------

MAX_TERMS = len(COLOURS) - 1
"""Most units of `terms_figure`: each has a color, and black is the main path."""


def terms_figure(units: int = 3) -> Figure:
    """Return Eqs. (4) and (5) as pictures: the signal is a sum, and the gradient has a direct term.

    Above, a straight line leads from x_l to x_L. Each unit's branch leaves it and returns to it, and the sum below has
    each term in the color of its branch. Underneath, the gradient of the loss E flows back along the same line.

    Args:
        units: number of units between x_l and x_L, at most 6. Default 3.

    Raises:
        InputError: `units` is not an integer from 1 to 6.

    Example:

    >>> from keras_preact.plots import alt_text
    >>> alt_text(terms_figure(2)).split(": ")[1].split(". ")[0]
    'x_L = x_l + F(x_l) + F(x_{l+1})'
    """
    if check_positive("units", units) > MAX_TERMS:
        raise InputError(f"units is {units}; at most {MAX_TERMS} have distinct colors")
    names = ["x_l", *(f"x_{{l+{k}}}" for k in range(1, units))]
    alt = (
        f"Two diagrams. Forward, Eq. (4): x_L = x_l + {' + '.join(f'F({name})' for name in names)}. A straight line "
        f"leads from x_l to x_L; the branch of each unit ({units} in all) leaves it and returns to it in an addition. "
        "Backward, Eq. (5): ∂E/∂x_l = ∂E/∂x_L (1 + ∂/∂x_l of the sum of all F). The 1 is the same straight line, "
        "walked backward: it carries ∂E/∂x_L to x_l unchanged. The branches, dashed, carry the second term."
    )
    pitch = min(1.9, (MAX_WIDTH - 2.6) / units)
    start, width, height = 1.35, 2.6 + pitch * units, 4.9
    figure = canvas(alt, width, height)
    axes = panel(figure, 0, 0, width, height)
    at = _Line(
        start, start + pitch * units + 0.25, tuple(start + pitch * (k + 0.5) + 0.05 for k in range(units)), pitch
    )
    _draw_forward(axes, names, at)
    _draw_backward(axes, names, at)
    return figure


@dataclass(frozen=True)
class _Line:
    """The main path of `terms_figure`: its ends, the centers of its units, and the distance of two units."""

    start: float
    end: float
    middles: tuple[float, ...]
    pitch: float

    @property
    def reach(self) -> float:
        """Half the distance from where a branch leaves the line to where it returns."""
        return 0.36 * self.pitch

    @property
    def box(self) -> float:
        """Width of a box."""
        return min(0.85, 1.4 * self.reach)


_UP = 0.6
"""Height of the branches above the line."""


def _draw_forward(axes: Any, names: Sequence[str], at: _Line) -> None:
    line, sum_at = 3.6, 2.92
    write(axes, 0.15, 4.72, "Forward, Eq. (4): the signal is a sum", 10, ha="left", weight="bold")
    write(axes, at.start - 0.12, line, "$x_l$", 11, ha="right")
    arrow(axes, [(at.start, line), (at.end, line)], color="black", linewidth=2.6, mutation_scale=14)
    write(axes, at.end + 0.1, line, "$x_L$", 11, ha="left")
    write(axes, at.end + 0.1, line - 0.26, f"$L = l + {len(names)}$", ha="left")
    write(axes, at.start - 0.55, sum_at, r"$x_L \;=$", 11, ha="right")
    _chip(axes, at.start - 0.25, sum_at, "$x_l$", COLOURS[-1], 0.4)
    edge = at.start - 0.05
    for number, (name, x) in enumerate(zip(names, at.middles, strict=True)):
        color, leave, back, up = COLOURS[number], x - at.reach, x + at.reach, line + _UP
        path = [(leave, line), (leave, up), (back, up), (back, line + PLUS)]
        arrow(axes, path, color=color, linewidth=1.6)
        axes.plot([leave], [line], "o", color=color, markersize=5, zorder=3)
        plus(axes, back, line)
        _chip(axes, x, up, f"$F({name})$", color, at.box)
        if number:
            write(axes, leave - 0.06, line - 0.22, f"${name}$", NORMAL)
        _chip(axes, x, sum_at, f"$F({name})$", color, at.box)
        write(axes, (edge + x - at.box / 2) / 2, sum_at, "+", 11)
        edge = x + at.box / 2


def _draw_backward(axes: Any, names: Sequence[str], at: _Line) -> None:
    line, sum_at = 1.28, 0.62
    write(axes, 0.15, 2.38, "Backward, Eq. (5): one term of the gradient is direct", 10, ha="left", weight="bold")
    write(axes, at.start - 0.12, line, r"$\partial E\,/\,\partial x_l$", 11, ha="right")
    arrow(axes, [(at.end, line), (at.start, line)], color="black", linewidth=2.6, mutation_scale=14)
    write(axes, at.end + 0.1, line, r"$\partial E\,/\,\partial x_L$", 11, ha="left")
    for number, (name, x) in enumerate(zip(names, at.middles, strict=True)):
        color, leave, back, up = COLOURS[number], x + at.reach, x - at.reach, line + _UP
        path = [(leave, line), (leave, up), (back, up), (back, line + 0.02)]
        arrow(axes, path, color=color, linewidth=1.4, linestyle=(0, (3, 2)))
        _chip(axes, x, up, f"$F({name})$", color, at.box)
    write(axes, (at.start + at.end) / 2, line - 0.2, "direct term: unchanged")
    pieces = [
        (r"$\dfrac{\partial E}{\partial x_l}$", "", 0.5),
        ("=", "", 0.3),
        (r"$\dfrac{\partial E}{\partial x_L}$", "", 0.5),
        ("(", "", 0.16),
        ("1", "direct term", 0.55),
        ("+", "", 0.3),
        (r"$\dfrac{\partial}{\partial x_l}\,\sum_{i=l}^{L-1} F(x_i)$", "through the branches", 1.2),
        (")", "", 0.16),
    ]
    x = (at.start + at.end - sum(width for _, _, width in pieces)) / 2
    for text, name, width in pieces:
        if text == "1":
            _chip(axes, x + width / 2, sum_at, text, COLOURS[-1], 0.34)
        elif text in "()":
            write(axes, x + width / 2, sum_at - 0.02, text, 20)
        else:
            write(axes, x + width / 2, sum_at, text, 11)
        if name:
            write(axes, x + width / 2, 0.16, name)
        x += width


def _chip(axes: Any, x: float, y: float, text: str, color: str, width: float) -> None:
    """Draw a term of a sum in the color of its path."""
    box(axes, x, y, text, width, color, height=0.32, size=NORMAL)


# ---- Transformers -------------------------------------------------------------------------------------------------

_SUBLAYERS = ("self-attention", "MLP")


def blocks_figure() -> Figure:
    """Return an encoder block of a Transformer in post-norm and in pre-norm order, drawn from `NORM_PLACEMENTS`.

    A block is two residual units, one of self-attention and one of an MLP. In the pre-norm order the shortcuts lead
    from the block's input to its output through additions alone. In the post-norm order, f is a layer norm on this
    path.

    Example:

    >>> from keras_preact.plots import alt_text
    >>> alt_text(blocks_figure()).count("layer norm")
    4
    """
    words = {"norm": "layer norm"}
    panels = [
        Panel(
            in_words(order).replace(" ", "-"),
            tuple(placement_parts(NORM_PLACEMENTS[order], [layer], words) for layer in _SUBLAYERS),
        )
        for order in ("post_norm", "pre_norm")
    ]
    alt = "An encoder block of a Transformer, two residual units, top to bottom. " + " ".join(
        f"{each.title}: first {each.units[0]}; then {each.units[1]}." for each in panels
    )
    return draw_units(alt, panels)
