"""Reproduced tables: differences, and training curves."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from keras_preact.plots.base import COLOURS, Rows, check_some, lone_markers, new_figure


def table_figure(lines: Sequence[Any], title: str = "") -> Figure:
    """Return a reproduced table as differences from each row's reference row: ours and published.

    Dots are runs, bars are 95 % intervals of the difference. An arrow at the right edge is a failure: a published
    one, or our runs that diverged. The name of a row includes the network that was run if its depth is not the paper's.

    Args:
        lines: result of `keras_preact.experiments.lines`.
        title: title of the figure.

    Raises:
        InputError: there is no row.

    Example: without any run, only the published differences are drawn.

    >>> from keras_preact.experiments import BUDGETS, EXPERIMENTS, Store, lines
    >>> from keras_preact.plots import alt_text
    >>> figure = table_figure(lines(EXPERIMENTS["table2"], BUDGETS["paper"], Store([])), "Table 2")
    >>> alt_text(figure).split(";")[0]
    'Table 2: 0 of 10 rows run'
    """
    check_some("rows", lines)
    run = sum(line.mean is not None for line in lines)
    alt = (
        f"{title + ': ' if title else ''}{run} of {len(lines)} rows run; difference in test error from the first row "
        f"of the same network, in points. {_differences_in_words(lines)}"
    )
    figure = new_figure(alt, 9.0, 1.5 + 0.36 * len(lines))
    axes = figure.add_subplot()
    axes.axvline(0, color="0.5", linewidth=0.8)
    has_published = any(line.published_difference is not None for line in lines)
    for position, line in enumerate(lines):
        if has_published:
            _draw_published(axes, position - 0.16, line)
        _draw_ours(axes, position + 0.16, line)
    if has_published:
        axes.plot([], [], "D", color=COLOURS[1], fillstyle="none", label="published (the paper's network)")
    axes.plot([], [], "o", color=COLOURS[0], alpha=0.6, label="ours, each run")
    if any(line.difference is not None and line.difference.is_known for line in lines):
        axes.plot([], [], color=COLOURS[0], linewidth=3, label="ours, 95 % interval of the difference")
    axes.set_yticks(range(len(lines)), [textwrap.fill(line.label, 60) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel("difference in test error (percentage points); right is worse")
    axes.margins(x=0.08)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _differences_in_words(lines: Sequence[Any]) -> str:
    """Return our smallest and our largest difference in words; the table next to the figure has all of them."""
    known = sorted((line for line in lines if line.difference is not None), key=lambda line: line.difference.mean)
    ends = [known[0], known[-1]] if len(known) > 2 else known
    return f"Ours: {'; '.join(f'{line.label} {line.difference}' for line in ends)}." if ends else ""


def _draw_published(axes: Any, y: float, line: Any) -> None:
    difference = 0.0 if line.reference is None and line.row.published is not None else line.published_difference
    if difference is None:
        return
    if math.isinf(difference):
        _arrow(axes, y, "published: fails", COLOURS[1])
    else:
        axes.plot([difference], [y], marker="D", color=COLOURS[1], markersize=6, linestyle="", fillstyle="none")


def _draw_ours(axes: Any, y: float, line: Any) -> None:
    base = (line.reference or line).mean
    if base is None:
        return
    differences = [error - base for error in line.errors if math.isfinite(error)]
    if line.difference is not None and line.difference.is_known and not line.diverged:
        axes.plot([line.difference.low, line.difference.high], [y] * 2, color=COLOURS[0], linewidth=3, alpha=0.7)
    axes.plot(differences, [y] * len(differences), marker="o", markersize=5, color=COLOURS[0], linestyle="", alpha=0.6)
    if line.diverged:
        _arrow(axes, y, line.diverged, COLOURS[0])


def _arrow(axes: Any, y: float, text: str, color: str) -> None:
    """Write a text at the right edge, with an arrow that points out of the figure."""
    axes.annotate(f"{text} →", (1, y), xycoords=("axes fraction", "data"), color=color, ha="right", va="center")


def table_curves_figure(runs: Mapping[str, Rows], references: Mapping[str, str], title: str = "") -> Figure:
    """Return the training curves of a table, one panel per row, in front of those of its reference row.

    As in the paper's Figs. 3 and 6, training is dashed and test is solid. All panels have the same axes.

    Args:
        runs: rows of metrics.csv of one run, by row of the table. Without any, the figure has one empty panel.
        references: the reference row of each row; a row without one refers to itself.
        title: title of the figure.

    Example:

    >>> rows = [{"step": step, "train_error": 800 / step, "test_error": 900 / step} for step in (10, 20)]
    >>> figure = table_curves_figure({"original": rows, "gated": rows}, {"original": "original", "gated": "original"})
    >>> [axes.get_title() for axes in figure.axes]
    ['gated']
    """
    shown = {name: rows for name, rows in runs.items() if references.get(name, name) != name} or dict(runs)
    alt = (
        f"{title + ': ' if title else ''}error (%) against training steps, training dashed, test solid, one panel per "
        "row, of its first run; gray is the first run of the reference row."
    )
    across = max(1, min(len(shown), 3))
    down = max(1, -(-len(shown) // across))
    figure = new_figure(alt, max(3.5 * across, 5.0), 1.2 + 2.1 * down, title)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (name, rows) in zip(grid.flat, shown.items(), strict=False):
        for run, color in ((runs.get(references.get(name, name), []), "0.6"), (rows, COLOURS[0])):
            steps = [row["step"] for row in run]
            for key, style, width in (("train_error", "--", 1.0), ("test_error", "-", 1.5)):
                errors = [row[key] for row in run]
                marked = {"markersize": 3, **lone_markers(errors, "o")}
                axes.plot(steps, errors, style, color=color, linewidth=width, **marked)
        axes.set_title("\n".join(textwrap.wrap(name, 44)), fontsize=8)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for column in range(len(shown) and across):
        lowest = grid[(len(shown) - 1 - column) // across, column]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel("training steps (mini-batches)", fontsize=9)
    grid[0, 0].set(xlim=(0, None), ylim=(0, None))
    grid[0, 0].xaxis.set_major_locator(MaxNLocator(4))  # five-digit steps
    handles = [
        Line2D([], [], color=COLOURS[0], label="this row, first run"),
        Line2D([], [], color="0.6", label="reference row, first run"),
        Line2D([], [], color="0.3", linestyle="--", label="training"),
        Line2D([], [], color="0.3", label="test"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.supylabel("error (%)", fontsize=9)
    return figure
