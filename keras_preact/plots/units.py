"""Diagrams of residual units."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from keras_preact.paper import in_words
from keras_preact.plots.base import new_figure


def unit_figure(units: Mapping[str, Any]) -> Figure:
    """Return diagrams of residual units side by side, as in the paper's Fig. 4, drawn from their layers.

    Args:
        units: built `ResidualUnit` layers by title.

    Example:

    >>> from keras_preact.layers import ResidualUnit
    >>> from keras_preact.plots import alt_text
    >>> unit = ResidualUnit(8)
    >>> unit.build((None, 16, 16, 8))
    >>> alt_text(unit_figure({"pre-activation": unit})).count("BN")
    2
    """
    rows = {in_words(title): _unit_rows(unit) for title, unit in units.items()}
    alt = "Residual units, top to bottom. " + " ".join(
        f"{title}: on the shortcut {', '.join(on_shortcut) or 'nothing'}; before the split "
        f"{', '.join(before) or 'nothing'}; on the branch {', '.join(branch)}; after the addition "
        f"{', '.join(after) or 'nothing'}."
        for title, (before, branch, on_shortcut, after) in rows.items()
    )
    height = max(len(before) + len(branch) + len(after) for before, branch, _, after in rows.values()) + 3
    figure = new_figure(alt, 2.1 * len(units), 0.48 * height)
    for axes, (title, parts) in zip(figure.subplots(1, len(units), squeeze=False)[0], rows.items(), strict=True):
        _draw_unit(axes, *parts, height=height)
        axes.set_title("\n".join(textwrap.fill(line, 20) for line in title.split("\n")), fontsize=9)
    return figure


def _unit_rows(unit: Any) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the labels before the split, on the branch, on the shortcut, and after the addition."""
    first = _labels(unit.preact)
    branch = _labels(unit.branch)
    shortcut = _labels([*unit.projection, *([] if unit.shortcut.keeps_identity else [unit.shortcut])])
    before, branch = (first, branch) if unit.shares_preactivation else ([], first + branch)
    return before, branch, shortcut, _labels(unit.postact)


def _labels(layers: Sequence[Any]) -> list[str]:
    labels: list[str] = []
    for layer in layers:
        kind = type(layer).__name__
        if kind == "Conv2D":
            labels.append(f"{layer.kernel_size[0]}×{layer.kernel_size[1]} conv, {layer.filters}")
        elif kind == "PreActivation":
            labels += ["BN", "ReLU"]
        elif kind in ("BatchNorm", "BatchNormalization"):
            labels.append("BN")
        elif kind != "ZeroPadding2D":
            spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
            labels.append({"ReLU": "ReLU", "OptionA": "subsample, pad"}.get(kind, spaced))
    return labels


def _draw_unit(
    axes: Any, before: list[str], branch: list[str], shortcut: list[str], after: list[str], height: int
) -> None:
    middle, side, y = 0.0, -1.0, float(height)
    axes.text(middle, y, "$x_l$", ha="center", va="center")

    def box(x: float, y: float, label: str) -> None:
        patch = FancyBboxPatch((x - 0.42, y - 0.3), 0.84, 0.6, boxstyle="round,pad=0.02", linewidth=0.8)
        patch.set(facecolor="#DCEBF5" if "conv" in label.lower() else "#FBE9D9", edgecolor="0.3")
        axes.add_patch(patch)
        axes.text(x, y, textwrap.fill(label, 15), ha="center", va="center", fontsize=7)

    def down(x: float, start: float, end: float) -> None:
        axes.annotate("", (x, end), (x, start), arrowprops={"arrowstyle": "-|>", "linewidth": 0.8, "color": "0.3"})

    for label in before:
        down(middle, y - 0.3, y - 0.7)
        y -= 1
        box(middle, y, label)
    split = y - 0.45
    for label in branch:
        down(middle, y - 0.3, y - 0.7)
        y -= 1
        box(middle, y, label)
    down(middle, y - 0.3, y - 0.75)
    y -= 1
    axes.text(middle, y, "⊕", ha="center", va="center", fontsize=13)
    axes.plot([middle, side, side, middle - 0.2], [split, split, y, y], color="0.3", linewidth=0.8)
    for number, label in enumerate(shortcut):
        box(side, (split + y) / 2 + (len(shortcut) - 1) / 2 - number, label)
    for label in after:
        down(middle, y - 0.3, y - 0.7)
        y -= 1
        box(middle, y, label)
    down(middle, y - 0.3, y - 0.75)
    axes.text(middle, y - 1, "$x_{l+1}$", ha="center", va="center")
    axes.set(xlim=(-1.6, 0.7), ylim=(-0.6, height + 0.6))
    axes.axis("off")
