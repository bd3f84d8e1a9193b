"""Boxes, arrows and residual units: the parts of all diagrams. Coordinates are in inches, y upwards."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from keras_preact.plots.base import COLOURS, new_figure

MAX_WIDTH = 10.5
"""Width of the widest diagram in inches."""
SMALL, NORMAL = 8.0, 9.5
"""Font sizes in points."""
INK, PALE = "0.25", "0.94"
BOX_HEIGHT, GAP, PLUS = 0.28, 0.17, 0.09
"""Height of a box with one line, length of an arrow between two boxes, and radius of a plus."""
PAD = 0.08
"""Space between the boxes of h, F or f and the edge of the area that marks them."""
CORNER = 0.07
"""Radius of the round corners of arrows."""
WRAP = 20
"""Longest line in a box, in characters."""

CONVOLUTION, NORM, ACTIVATION, OTHER = "weights", "normalization", "activation", "other"
_EDGES = {CONVOLUTION: COLOURS[0], NORM: COLOURS[4], ACTIVATION: COLOURS[2], OTHER: COLOURS[3]}


def tint(color: str, strength: float = 0.3) -> tuple[float, ...]:
    """Return a color mixed with white, light enough for black text.

    >>> tint("#000000", 0.25)
    (0.75, 0.75, 0.75)
    """
    parts = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return tuple(round(1 - strength * (1 - part), 3) for part in parts)


def kind_of(label: str) -> str:
    """Return the kind of operation in a box, which sets its color.

    >>> [kind_of(label) for label in ("3×3 conv, 16", "dense, 64", "BN", "ReLU", "dropout 0.5")]
    ['weights', 'weights', 'normalization', 'activation', 'other']
    """
    if label in ("self-attention", "MLP") or "conv" in label or label.startswith("dense"):
        return CONVOLUTION
    if label in ("BN", "layer norm", "RMS norm", "group norm"):
        return NORM
    return ACTIVATION if label in ("ReLU", "GELU") or hasattr(keras.activations, label) else OTHER


@functools.cache
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a text in inches: that of its longest line.

    >>> text_width("iii", 8) < text_width("three\\nlines", 8) < text_width("three", 16)
    True
    """
    font = FontProperties(size=size, weight=weight)
    lines = [line for line in text.split("\n") if line.strip()]
    return max((float(TextPath((0, 0), line, prop=font).get_extents().width) / 72 for line in lines), default=0.0)


def wrapped(text: str, characters: int) -> str:
    """Return a text with lines of at most `characters`; its own line breaks are kept.

    >>> wrapped("one two\\nthree", 5)
    'one\\ntwo\\nthree'
    """
    return "\n".join(textwrap.fill(line, characters, break_on_hyphens=False) for line in text.split("\n"))


def canvas(alt: str, width: float, height: float) -> Figure:
    """Return an empty figure for `panel`: the positions are given, so that no layout moves them."""
    figure = new_figure(alt, width, height)
    figure.set_layout_engine("none")
    figure.set_facecolor("white")  # also in a dark style: the ink is black
    return figure


def panel(figure: Figure, left: float, bottom: float, width: float, height: float) -> Any:
    """Return axes without frame that cover a part of a figure; their unit is the inch."""
    across, down = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / down, width / across, height / down))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return axes


def write(axes: Any, x: float, y: float, text: str, size: float = SMALL, **options: Any) -> None:
    """Write the lines of a text, each as one text, centered unless options say otherwise.

    `y` is the middle of the capitals of the first line, so that texts side by side share a baseline.
    """
    if "rotation" not in options:
        options["va"], y = "baseline", y - 0.36 * size / 72
    for number, line in enumerate(text.split("\n")):
        style = {"ha": "center", "va": "center", "color": "black", **options}
        axes.text(x, y - number * line_height(size), line, fontsize=size, **style)


def line_height(size: float) -> float:
    """Return the distance of two lines of text in inches."""
    return 1.25 * size / 72


def box(
    axes: Any, x: float, y: float, label: str, width: float, color: str = "", height: float = 0.0, size: float = SMALL
) -> None:
    """Draw a box with a label around a point, by default in the color of its kind and as high as the label needs."""
    color, text = color or _EDGES[kind_of(label)], wrapped(label, WRAP)
    height = height or box_height(label)
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.05"
    strength = 0.12 if color == COLOURS[-1] else 0.3
    patch = FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=tint(color, strength), edgecolor=color)
    patch.set(linewidth=1.1, zorder=3, gid="box")
    axes.add_patch(patch)
    write(axes, x, y + line_height(size) * text.count("\n") / 2, text, size, zorder=4)


def box_height(label: str) -> float:
    return BOX_HEIGHT + line_height(SMALL) * wrapped(label, WRAP).count("\n")


def box_width(labels: Iterable[str], least: float = 0.8) -> float:
    """Return the width that boxes with these labels need."""
    return max([least, *(text_width(wrapped(label, WRAP), SMALL) + 0.17 for label in labels)])


def area(axes: Any, left: float, bottom: float, right: float, top: float) -> None:
    """Shade the area of h, F or f behind its boxes."""
    style = "round,pad=0,rounding_size=0.08"
    patch = FancyBboxPatch((left, bottom), right - left, top - bottom, boxstyle=style, gid="area")
    patch.set(facecolor=PALE, edgecolor="0.75", linewidth=0.7, zorder=1)
    axes.add_patch(patch)


def plus(axes: Any, x: float, y: float) -> None:
    """Draw the addition: a circle with a plus."""
    axes.add_patch(Circle((x, y), PLUS, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=3, gid="plus"))
    arm = 0.6 * PLUS
    axes.plot([x - arm, x + arm], [y, y], color=INK, linewidth=1.2, zorder=4)
    axes.plot([x, x], [y - arm, y + arm], color=INK, linewidth=1.2, zorder=4)


def arrow(axes: Any, points: Sequence[tuple[float, float]], **options: Any) -> None:
    """Draw a line through points with round corners and an arrowhead at its end."""
    vertices, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        vertices += [_towards(corner, before), corner, _towards(corner, after)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    path = Path([*vertices, points[-1]], [*codes, Path.LINETO])
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 8, "linewidth": 1.1, "color": INK, "zorder": 2}
    axes.add_patch(FancyArrowPatch(path=path, joinstyle="miter", capstyle="butt", gid="arrow", **{**style, **options}))


def _towards(start: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Return the point near `start` on the way to `end`, where a round corner begins."""
    (x, y), (x2, y2) = start, end
    length = max(abs(x2 - x), abs(y2 - y), 1e-9)
    step = min(CORNER, length / 2) / length
    return x + step * (x2 - x), y + step * (y2 - y)


# ---- residual units -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The labels of a residual unit's boxes.

    Attributes:
        before: before the split.
        branch: in F.
        shortcut: in h.
        scale: what multiplies F.
        after: in f.
    """

    before: tuple[str, ...] = ()
    branch: tuple[str, ...] = ()
    shortcut: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        scaled = f"; times F {', '.join(self.scale)}" if self.scale else ""
        return (
            f"on the shortcut {', '.join(self.shortcut) or 'nothing'}; before the split "
            f"{', '.join(self.before) or 'nothing'}; on the branch {', '.join(self.branch)}{scaled}; "
            f"after the addition {', '.join(self.after) or 'nothing'}"
        )


@dataclass(frozen=True)
class Column:
    """The horizontal positions of units, one below the other, relative to the left edge of the drawing.

    Attributes:
        box: width of a box on the branch.
        side_box: width of a box on the shortcut; 0 if there is none.
    """

    box: float
    side_box: float

    @property
    def side(self) -> float:
        """Position of the shortcut."""
        return self.side_box / 2 + PAD + 0.2 if self.side_box else 0.22

    @property
    def middle(self) -> float:
        """Position of the branch."""
        return self.side + (self.side_box / 2 + PAD if self.side_box else 0) + 0.12 + PAD + self.box / 2

    @property
    def edge(self) -> float:
        """Right edge of F and f, which have room for a letter."""
        return self.middle + self.box / 2 + 0.24

    @property
    def width(self) -> float:
        return self.edge + 0.02


def column(units: Sequence[Parts]) -> Column:
    """Return the positions that fit all units."""
    side = [label for unit in units for label in unit.shortcut]
    middle = [label for unit in units for label in (*unit.before, *unit.branch, *unit.scale, *unit.after)]
    return Column(box_width(middle), box_width(side, 0.6) if side else 0.0)


def row_height(labels: Sequence[str]) -> float:
    """Return the height of boxes, one below the other, with an arrow before each."""
    return sum(GAP + box_height(label) for label in labels)


_TO_SPLIT, _TO_BRANCH, _TO_PLUS, _TO_AFTER = 0.13, 0.05, GAP + PAD, PAD


def _branch_height(parts: Parts) -> float:
    """Return the height from the split to the center of the plus, where the shortcut's boxes fit too."""
    branch = _TO_BRANCH + PAD + row_height(parts.branch) + row_height(parts.scale) + _TO_PLUS + PLUS
    branch += PAD * bool(parts.scale)
    shortcut = row_height(parts.shortcut) + 2 * PAD + 2 * GAP + 0.2
    return max(branch, shortcut)


def unit_height(parts: Parts) -> float:
    """Return the height of `draw_unit`."""
    after = _TO_AFTER + row_height(parts.after) + PAD if parts.after else 0.0
    return row_height(parts.before) + _TO_SPLIT + _branch_height(parts) + PLUS + after


def draw_unit(axes: Any, left: float, top: float, at: Column, parts: Parts) -> float:
    """Draw a residual unit from its input at `top` downwards; return the position below its last part.

    The areas of h, F and f are shaded and named; an h without boxes of its own is named too.
    """
    x, side, edge = left + at.middle, left + at.side, left + at.edge
    left_edge = x - at.box / 2 - PAD
    y = _boxes(axes, x, top, parts.before, at.box)
    split, end = y - _TO_SPLIT, y - _TO_SPLIT - _branch_height(parts)
    # F, between the split and the addition
    first = split - _TO_BRANCH - PAD
    arrow(axes, [(x, y), (x, first - GAP)])
    y = _boxes(axes, x, first, parts.branch, at.box, line=False)
    area(axes, left_edge, y - PAD, edge, first - GAP + PAD)
    write(axes, edge - 0.12, (y + first - GAP) / 2, "$F$", NORMAL)
    y = _boxes(axes, x, y - PAD * bool(parts.scale), parts.scale, at.box, start=PAD * bool(parts.scale))
    arrow(axes, [(x, y), (x, end + PLUS)])
    plus(axes, x, end)
    # h, from the split to the addition
    axes.plot([x], [split], ".", color=INK, markersize=5, zorder=3)
    _draw_shortcut(axes, side, split, end, x, at, parts)
    y = end - PLUS
    if parts.after:
        top_of_f = y - GAP - _TO_AFTER
        y = _boxes(axes, x, y - _TO_AFTER, parts.after, at.box, start=_TO_AFTER)
        area(axes, left_edge, y - PAD, edge, top_of_f + PAD)
        write(axes, edge - 0.12, (y + top_of_f) / 2, "$f$", NORMAL)
    return y - (PAD if parts.after else 0.0)


def _draw_shortcut(axes: Any, side: float, split: float, end: float, x: float, at: Column, parts: Parts) -> None:
    tip, labels = (x - PLUS, end), parts.shortcut
    if not labels:
        arrow(axes, [(x, split), (side, split), (side, end), tip])
        name = f"$h$ = {', '.join(parts.before) or 'identity'}"  # a shared pre-activation belongs to h
        write(axes, side - 0.1, (split + end) / 2, name, rotation=90)
        return
    height = row_height(labels) - GAP
    y = (split + end + height) / 2
    arrow(axes, [(x, split), (side, split), (side, y)])
    reach = at.side_box / 2 + PAD
    area(axes, side - reach - 0.17, y - height - PAD, side + reach, y + PAD)
    write(axes, side - reach - 0.06, y - height / 2, "$h$", NORMAL)
    y = _boxes(axes, side, y + GAP, labels, at.side_box, line=False)
    arrow(axes, [(side, y), (side, end), tip])


def _boxes(
    axes: Any, x: float, y: float, labels: Sequence[str], width: float, line: bool = True, start: float = 0.0
) -> float:
    """Draw boxes, one below the other, each after an arrow; return the position below the last.

    Args:
        axes: the panel.
        x: center of the boxes.
        y: start of the first arrow.
        labels: of the boxes.
        width: of the boxes.
        line: whether the first box has an arrow.
        start: how far above `y` the first arrow starts.
    """
    for number, label in enumerate(labels):
        height = box_height(label)
        if line or number:
            arrow(axes, [(x, y + (0.0 if number else start)), (x, y - GAP)])
        box(axes, x, y - GAP - height / 2, label, width)
        y -= GAP + height
    return y


def title_height(title: str) -> float:
    """Return the height of a title with the space below it."""
    return line_height(NORMAL) * (title.count("\n") + 1) + 0.08 if title else 0.0
