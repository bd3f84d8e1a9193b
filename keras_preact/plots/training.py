"""Training curves: errors against steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from keras_preact.plots.base import Rows, draw, lone_markers, look, named_in_words, new_figure


def curves_figure(runs: Mapping[str, Rows], unit: str = "%") -> Figure:
    """Return training and test error against steps; as in the paper, training is dashed.

    NaN and infinite errors, as in a run that diverged, leave gaps; the finite errors set the limits of the axes.
    Without any, the axes are empty.

    Args:
        runs: rows of metrics.csv (keys `step`, `train_error`, `test_error`), by label in the legend.
        unit: unit of the errors. Default `"%"`.

    Example:

    >>> from keras_preact.plots import alt_text
    >>> rows = [{"step": step, "train_error": 800 / step, "test_error": 900 / step} for step in (10, 20)]
    >>> figure = curves_figure({"net": rows})
    >>> [line.get_linestyle() for line in figure.axes[0].get_lines()]
    ['--', '-']
    >>> alt_text(figure)
    'Error (%) against training steps, training dashed, test solid. At the end: net 40.0 and 45.0.'
    """
    runs = named_in_words(runs)
    ends = [
        f"{name} {rows[-1]['train_error']:.1f} and {rows[-1]['test_error']:.1f}" if rows else f"{name}: no epoch"
        for name, rows in runs.items()
    ]
    alt = f"Error ({unit}) against training steps, training dashed, test solid. At the end: {'; '.join(ends)}."
    figure = new_figure(alt, 7.0, 4.4)
    axes = figure.add_subplot()
    highest = 0.0
    for number, (name, rows) in enumerate(runs.items()):
        steps = [row["step"] for row in rows]
        train, test = ([row[key] for row in rows] for key in ("train_error", "test_error"))
        color, marker = look(number).values()
        both = {"color": color, "markersize": 3}
        dashed = {**both, "linewidth": 1.2, "alpha": 0.8, **lone_markers(train, marker)}
        solid = {**both, "linewidth": 1.8, **({"marker": marker} if len(rows) <= 40 else lone_markers(test, marker))}
        axes.plot(steps, train, "--", label=f"{name}, training", **dashed)
        axes.plot(steps, test, "-", label=f"{name}, test", **solid)
        highest = max([highest, *filter(math.isfinite, [*train, *test])])
    top = min(100.0, highest * 1.05 or 1.0) if unit == "%" else highest * 1.05 or 1.0
    axes.set(xlabel="training steps (mini-batches)", ylabel=f"error ({unit})", ylim=(0, top))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    if runs:
        axes.legend(frameon=False)
    return figure


@style.context("default")  # the program's own style may need LaTeX, or colors that these do not fit
def draw_curves(runs: Mapping[str, Rows], path: str | Path, unit: str = "%") -> Path:
    """Write `curves_figure` to a file, in Matplotlib's default style; return its path.

    Raises:
        InputError: the path has a suffix other than .png and .svg; nothing is written.
        WriteError: the system refused to write the file.
    """
    return draw(curves_figure(runs, unit), path)
