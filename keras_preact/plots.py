"""Every figure of the command line and the course. The one module that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, float]]


def curves_figure(runs: Mapping[str, Rows]) -> Figure:
    """Return the figure of training and test error against steps, laid out as in the paper: dashed is training.

    Args:
        runs: rows of metrics.csv (keys `step`, `train_error`, `test_error`, in percent), by name of the run.

    Example:

    >>> rows = [{"step": step, "train_error": 800 / step, "test_error": 900 / step} for step in (10, 20)]
    >>> [line.get_linestyle() for line in curves_figure({"net": rows}).axes[0].get_lines()]
    ['--', '-']
    """
    figure = Figure(figsize=(7.0, 4.4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    highest = 0.0
    for number, (name, rows) in enumerate(runs.items()):
        steps = [row["step"] for row in rows]
        train, test = ([row[key] for row in rows] for key in ("train_error", "test_error"))
        marker = "." if len(rows) <= 40 else None
        axes.plot(steps, train, "--", color=f"C{number}", linewidth=1.2, alpha=0.8, label=f"{name}, training")
        axes.plot(steps, test, "-", color=f"C{number}", linewidth=1.8, marker=marker, label=f"{name}, test")
        highest = max([highest, *train, *test])
    axes.set(xlabel="training steps (mini-batches)", ylabel="error (%)", ylim=(0, min(100.0, highest * 1.05 or 1.0)))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def draw_curves(runs: Mapping[str, Rows], path: str | Path) -> Path:
    """Write `curves_figure` as a PNG file; return its path."""
    curves_figure(runs).savefig(path, format="png", metadata={"Software": None})
    return Path(path)
