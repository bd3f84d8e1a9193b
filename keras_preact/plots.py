"""Every figure of the command line and the course. The one module that imports matplotlib.

Figures are told apart by shape as well as by colour (the colours of Okabe and Ito, which colour-blind readers can
tell apart), and carry a sentence that says what is to be seen: `alt_text`.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

Rows = Sequence[Mapping[str, float]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def alt_text(figure: Figure) -> str:
    """Return the sentence that says in words what a figure of this module shows."""
    return str(figure.get_label())


def draw(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG or SVG, by the path's suffix, PNG without one; the same bytes wherever it is drawn."""
    path = Path(path)
    kind = path.suffix[1:] or "png"
    with matplotlib.rc_context({"svg.hashsalt": "keras_preact", "svg.fonttype": "path"}):
        about: dict[str, Any] = {"Description": alt_text(figure)}
        about |= {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(path, format=kind, metadata=about)
    return path


def look(number: int) -> dict[str, Any]:
    """Return colour and marker of a series: a pair of its own for each of 49."""
    return {"color": COLOURS[number % 7], "marker": MARKERS[(number + number // 7) % 7]}


def _figure(alt: str, width: float, height: float, title: str = "") -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    figure.set_label(alt)
    if title:
        figure.suptitle(title)
    return figure


# ---- training -----------------------------------------------------------------------------------------------------


def curves_figure(runs: Mapping[str, Rows], unit: str = "%") -> Figure:
    """Return the figure of training and test error against steps, laid out as in the paper: dashed is training.

    Args:
        runs: rows of metrics.csv (keys `step`, `train_error`, `test_error`), by name of the run.
        unit: of the errors. Default percent.

    Example:

    >>> rows = [{"step": step, "train_error": 800 / step, "test_error": 900 / step} for step in (10, 20)]
    >>> figure = curves_figure({"net": rows})
    >>> [line.get_linestyle() for line in figure.axes[0].get_lines()]
    ['--', '-']
    >>> alt_text(figure)
    'Error (%) against training steps, training dashed, test solid. At the end: net 40.0 and 45.0.'
    """
    ends = [
        f"{name} {rows[-1]['train_error']:.1f} and {rows[-1]['test_error']:.1f}" if rows else f"{name} without an epoch"
        for name, rows in runs.items()
    ]
    alt = f"Error ({unit}) against training steps, training dashed, test solid. At the end: {'; '.join(ends)}."
    figure = _figure(alt, 7.0, 4.4)
    axes = figure.add_subplot()
    highest = 0.0
    for number, (name, rows) in enumerate(runs.items()):
        steps = [row["step"] for row in rows]
        train, test = ([row[key] for row in rows] for key in ("train_error", "test_error"))
        style = look(number)
        colour, marker = style["color"], style["marker"] if len(rows) <= 40 else ""
        axes.plot(steps, train, "--", color=colour, linewidth=1.2, alpha=0.8, label=f"{name}, training")
        axes.plot(steps, test, "-", color=colour, linewidth=1.8, marker=marker, markersize=3, label=f"{name}, test")
        highest = max([highest, *train, *test])
    top = min(100.0, highest * 1.05 or 1.0) if unit == "%" else highest * 1.05 or 1.0
    axes.set(xlabel="training steps (mini-batches)", ylabel=f"error ({unit})", ylim=(0, top))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def draw_curves(runs: Mapping[str, Rows], path: str | Path, unit: str = "%") -> Path:
    """Write `curves_figure`; return its path."""
    return draw(curves_figure(runs, unit), path)


# ---- propagation --------------------------------------------------------------------------------------------------


def propagation_figure(forward: Sequence[Any], gradient: Sequence[Any], title: str = "") -> Figure:
    """Return the signal and the gradient by depth: variances of x_l and F(x_l), norms of ∂E/∂x_l and its two terms.

    Args:
        forward: of `keras_preact.analysis.forward_signal`.
        gradient: of `keras_preact.analysis.gradient_signal`.
        title: above the figure.

    Example:

    >>> import numpy as np
    >>> from keras_preact.analysis import forward_signal, gradient_signal
    >>> from keras_preact.models import cifar_resnet
    >>> network, images = cifar_resnet(8), np.random.default_rng(0).normal(size=(4, 32, 32, 3))
    >>> figure = propagation_figure(forward_signal(network, images), gradient_signal(network, images, [0, 1, 2, 3]))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['variance', 'norm']
    """
    first, last = gradient[0].norm, gradient[-1].norm
    alt = (
        f"{title + ': ' if title else ''}by depth, on the left the variance of the signal, from "
        f"{forward[0].x.variance:.3g} at the first unit to {forward[-1].x.variance:.3g} at the last; on the right the "
        f"norm of the gradient, {first:.3g} at the first unit and {last:.3g} after the last."
    )
    figure = _figure(alt, 9.5, 3.8, title)
    left, right = figure.subplots(1, 2)
    units = range(1, len(forward) + 1)
    _lines(left, units, {"x": [e.x.variance for e in forward], "F(x)": [e.residual.variance for e in forward]})
    left.set(xlabel="unit l", ylabel="variance", yscale="log")
    terms = {
        "∂E/∂x_l": [e.norm for e in gradient],
        "direct term": [e.direct for e in gradient],
        "through the weights": [e.through_weights for e in gradient],
    }
    _lines(right, range(1, len(gradient) + 1), terms)
    right.set(xlabel="unit l (the last: after all units)", ylabel="norm", yscale="log")
    for axes in (left, right):
        for number, (before, after) in enumerate(itertools.pairwise(forward), start=2):
            if before.stage != after.stage:
                axes.axvline(number - 0.5, color="0.7", linewidth=0.8, linestyle=":")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def profiles_figure(profiles: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], title: str = "") -> Figure:
    """Return several networks' signal and gradient by depth: variance of x_l, and norm of ∂E/∂x_l over the last one's.

    Args:
        profiles: by name, of `keras_preact.analysis.forward_signal` and `gradient_signal`; of equally many units.
        title: above the figure.
    """
    signals = {name: [entry.x.variance for entry in forward] for name, (forward, _) in profiles.items()}
    last = {name: gradient[-1].norm or math.nan for name, (_, gradient) in profiles.items()}
    gradients = {name: [entry.norm / last[name] for entry in gradient] for name, (_, gradient) in profiles.items()}
    ends = [f"{name} {signals[name][-1] / signals[name][0]:.3g} and {gradients[name][0]:.3g}" for name in profiles]
    alt = (
        f"{title + ': ' if title else ''}by depth, variance of the signal and norm of the gradient. The last unit's "
        f"variance over the first's, and the first unit's gradient over that after the last: {'; '.join(ends)}."
    )
    figure = _figure(alt, 9.5, 4.4, title)
    left, right = figure.subplots(1, 2)
    for axes, series in ((left, signals), (right, gradients)):
        _lines(axes, range(1, len(next(iter(series.values()))) + 1), series)
        axes.grid(alpha=0.3)
    left.set(xlabel="unit l", ylabel="variance of x_l", yscale="log")
    right.set(xlabel="unit l (the last: after all units)", ylabel="‖∂E/∂x_l‖ ÷ ‖∂E/∂x_L‖", yscale="log")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _lines(axes: Any, xs: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    for number, (label, values) in enumerate(series.items()):
        # On a logarithmic axis a zero has no place.
        shown = [value if value > 0 else float("nan") for value in values]
        every = max(1, len(shown) // 20)
        axes.plot(xs, shown, label=label, markevery=every, markersize=3, linewidth=1.2, **look(number))


def gradient_figure(signals: Mapping[str, Sequence[Any]]) -> Figure:
    """Return a heat map of the gradient's norm: a row a network or a moment, a column a unit, on one scale of tens.

    Args:
        signals: of `keras_preact.analysis.gradient_signal`, by name; of networks with equally many units.
    """
    import numpy as np

    norms = np.array([[entry.norm for entry in signal] for signal in signals.values()])
    ratios = [f"{name} {row[0] / (row[-1] or math.nan):.3g}" for name, row in zip(signals, norms, strict=True)]
    alt = (
        f"Heat map of the gradient's norm by unit. The first unit's norm over that after the last: {'; '.join(ratios)}."
    )
    figure = _figure(alt, 8.0, 1.2 + 0.45 * len(signals))
    axes = figure.add_subplot()
    with np.errstate(divide="ignore"):
        edges = (0.5, norms.shape[1] + 0.5, len(norms) - 0.5, -0.5)
        image = axes.imshow(np.log10(norms), aspect="auto", cmap="cividis", interpolation="nearest", extent=edges)
    axes.set_yticks(range(len(signals)), list(signals))
    axes.set_xlabel("unit l (the last: after all units)")
    figure.colorbar(image, label="log₁₀ ‖∂E/∂x_l‖")
    return figure


def lesions_figure(lesions: Sequence[Any]) -> Figure:
    """Return the test error with each unit left out, against that of the whole network.

    Args:
        lesions: of `keras_preact.analysis.leave_out`.
    """
    whole, *rest = lesions
    worst = max(rest, key=lambda lesion: lesion.error)
    alt = (
        f"Test error with each unit left out. Whole network {whole.error:.1f} percent; worst without {worst.unit}, "
        f"{worst.error:.1f} percent."
    )
    figure = _figure(alt, 8.0, 3.4)
    axes = figure.add_subplot()
    for stage in sorted({lesion.stage for lesion in rest}):
        points = [(k, lesion.error) for k, lesion in enumerate(rest, start=1) if lesion.stage == stage]
        axes.plot(*zip(*points, strict=True), linestyle="", label=f"stage {stage}", **look(stage - 1))
    axes.axhline(whole.error, color="0.4", linewidth=1, label="whole network")
    axes.set(xlabel="unit left out", ylabel="test error (%)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


# ---- tables -------------------------------------------------------------------------------------------------------


def table_figure(lines: Sequence[Any], title: str = "") -> Figure:
    """Return a reproduced table as differences from the row that each is compared with: ours and published.

    A dot is a run, a bar the 95 % interval of the difference. An arrow at the right edge is a failure: published as
    failing, or a run of ours that diverged.

    Args:
        lines: of `keras_preact.experiments.lines`.
        title: above the figure.
    """
    run = sum(line.mean is not None for line in lines)
    alt = (
        f"{title + ': ' if title else ''}{run} of {len(lines)} rows run; difference in test error from the first row "
        f"of the same network, in points. {_said_differences(lines)}"
    )
    figure = _figure(alt, 9.0, 1.5 + 0.36 * len(lines))
    axes = figure.add_subplot()
    axes.axvline(0, color="0.5", linewidth=0.8)
    for place, line in enumerate(lines):
        _draw_published(axes, place - 0.16, line)
        _draw_ours(axes, place + 0.16, line)
    if any(line.published_difference is not None for line in lines):
        axes.plot([], [], "D", color=COLOURS[1], fillstyle="none", label="published (the paper's network)")
    axes.plot([], [], "o", color=COLOURS[0], alpha=0.6, label="ours, a run")
    if any(line.difference is not None and line.difference.is_known for line in lines):
        axes.plot([], [], color=COLOURS[0], linewidth=3, label="ours, 95 % interval of the difference")
    axes.set_yticks(range(len(lines)), [textwrap.fill(line.row.title, 60) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel("difference in test error (points); right is worse")
    axes.margins(x=0.08)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _said_differences(lines: Sequence[Any]) -> str:
    said = [f"{line.row.title} {line.difference}" for line in lines if line.difference is not None]
    return f"Ours: {'; '.join(said)}." if said else ""


def _draw_published(axes: Any, place: float, line: Any) -> None:
    apart = 0.0 if line.reference is None and line.row.published is not None else line.published_difference
    if apart is None:
        return
    if math.isinf(apart):
        _arrow(axes, place, "published: fails", COLOURS[1])
    else:
        axes.plot([apart], [place], marker="D", color=COLOURS[1], markersize=6, linestyle="", fillstyle="none")


def _draw_ours(axes: Any, place: float, line: Any) -> None:
    base = (line.reference or line).mean
    if base is None:
        return
    ended = [error - base for error in line.errors if math.isfinite(error)]
    if line.difference is not None and line.difference.is_known and not line.diverged:
        axes.plot([line.difference.low, line.difference.high], [place] * 2, color=COLOURS[0], linewidth=3, alpha=0.7)
    axes.plot(ended, [place] * len(ended), marker="o", markersize=5, color=COLOURS[0], linestyle="", alpha=0.6)
    if line.diverged:
        _arrow(axes, place, line.diverged, COLOURS[0])


def _arrow(axes: Any, place: float, words: str, colour: str) -> None:
    """Write words at the right edge, with an arrow out of the figure."""
    axes.annotate(f"{words} →", (1, place), xycoords=("axes fraction", "data"), color=colour, ha="right", va="center")


def table_curves_figure(runs: Mapping[str, Rows], references: Mapping[str, str], title: str = "") -> Figure:
    """Return the training curves of a table, a panel a row, in front of those of the row that it is compared with.

    As in the paper's Figs. 3 and 6: dashed is training, solid is test. All panels have the same axes.

    Args:
        runs: rows of metrics.csv, by the table's row.
        references: for each row the one that it is compared with; itself, where it is the first of its kind.
        title: above the figure.
    """
    shown = {name: rows for name, rows in runs.items() if references[name] != name} or dict(runs)
    alt = (
        f"{title + ': ' if title else ''}error (%) against training steps, training dashed, test solid, a panel a row; "
        "grey is the row that it is compared with."
    )
    across = max(1, min(len(shown), 3))
    down = max(1, -(-len(shown) // across))
    figure = _figure(alt, max(3.5 * across, 5.0), 1.2 + 2.1 * down, title)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (name, rows) in zip(grid.flat, shown.items(), strict=False):
        for whose, colour in ((runs.get(references[name], []), "0.6"), (rows, COLOURS[0])):
            steps = [row["step"] for row in whose]
            axes.plot(steps, [row["train_error"] for row in whose], "--", color=colour, linewidth=1)
            axes.plot(steps, [row["test_error"] for row in whose], "-", color=colour, linewidth=1.5)
        axes.set_title("\n".join(textwrap.wrap(name, 44)), fontsize=8)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for column in range(len(shown) and across):
        lowest = grid[(len(shown) - 1 - column) // across, column]
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel("training steps (mini-batches)", fontsize=9)
    grid[0, 0].set(xlim=(0, None), ylim=(0, None))
    grid[0, 0].xaxis.set_major_locator(MaxNLocator(4))  # steps of five digits, in panels a third as wide as the page
    handles = [
        Line2D([], [], color=COLOURS[0], label="this row"),
        Line2D([], [], color="0.6", label="compared with"),
        Line2D([], [], color="0.3", linestyle="--", label="training"),
        Line2D([], [], color="0.3", label="test"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.supylabel("error (%)", fontsize=9)
    return figure


# ---- units --------------------------------------------------------------------------------------------------------


def unit_figure(units: Mapping[str, Any]) -> Figure:
    """Return diagrams of residual units, side by side, as in the paper's Fig. 4, drawn from the layers themselves.

    Args:
        units: built `ResidualUnit` layers by title.

    Example:

    >>> from keras_preact.layers import ResidualUnit
    >>> unit = ResidualUnit(8)
    >>> unit.build((None, 16, 16, 8))
    >>> alt_text(unit_figure({"pre-activation": unit})).count("BN")
    2
    """
    rows = {title: _unit_rows(unit) for title, unit in units.items()}
    alt = "Residual units, top to bottom. " + " ".join(
        f"{title}: on the shortcut {', '.join(on_shortcut) or 'nothing'}; before the split "
        f"{', '.join(before) or 'nothing'}; on the branch {', '.join(branch)}; after the addition "
        f"{', '.join(after) or 'nothing'}."
        for title, (before, branch, on_shortcut, after) in rows.items()
    )
    height = max(len(before) + len(branch) + len(after) for before, branch, _, after in rows.values()) + 3
    figure = _figure(alt, 2.1 * len(units), 0.48 * height)
    for axes, (title, parts) in zip(figure.subplots(1, len(units), squeeze=False)[0], rows.items(), strict=True):
        _draw_unit(axes, *parts, height=height)
        axes.set_title(title, fontsize=9)
    return figure


def _unit_rows(unit: Any) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the words for what stands before the split, on the branch, on the shortcut, and after the addition."""
    first = _words(unit.first)
    branch = _words(unit.branch)
    shortcut = _words([*unit.reshape, *([] if unit.shortcut.keeps_identity else [unit.shortcut])])
    before, branch = (first, branch) if unit.shares_preactivation else ([], first + branch)
    return before, branch, shortcut, _words(unit.last)


def _words(layers: Sequence[Any]) -> list[str]:
    words: list[str] = []
    for layer in layers:
        kind = type(layer).__name__
        if kind == "Conv2D":
            words.append(f"{layer.kernel_size[0]}×{layer.kernel_size[1]} conv, {layer.filters}")
        elif kind == "PreActivation":
            words += ["BN", "ReLU"]
        elif kind in ("BatchNorm", "BatchNormalization"):
            words.append("BN")
        elif kind != "ZeroPadding2D":
            words.append({"DropPath": "drop path", "OptionA": "subsample, pad"}.get(kind, kind))
    return words


def _draw_unit(
    axes: Any, before: list[str], branch: list[str], shortcut: list[str], after: list[str], height: int
) -> None:
    middle, side, y = 0.0, -1.0, float(height)
    axes.text(middle, y, "$x_l$", ha="center", va="center")

    def box(x: float, y: float, word: str) -> None:
        patch = FancyBboxPatch((x - 0.42, y - 0.3), 0.84, 0.6, boxstyle="round,pad=0.02", linewidth=0.8)
        patch.set(facecolor="#DCEBF5" if "conv" in word.lower() else "#FBE9D9", edgecolor="0.3")
        axes.add_patch(patch)
        axes.text(x, y, word, ha="center", va="center", fontsize=7)

    def down(x: float, start: float, end: float) -> None:
        axes.annotate("", (x, end), (x, start), arrowprops={"arrowstyle": "-|>", "linewidth": 0.8, "color": "0.3"})

    for word in before:
        down(middle, y - 0.3, y - 0.7)
        y -= 1
        box(middle, y, word)
    split = y - 0.45
    for word in branch:
        down(middle, y - 0.3, y - 0.7)
        y -= 1
        box(middle, y, word)
    down(middle, y - 0.3, y - 0.75)
    y -= 1
    axes.text(middle, y, "⊕", ha="center", va="center", fontsize=13)
    axes.plot([middle, side, side, middle - 0.2], [split, split, y, y], color="0.3", linewidth=0.8)
    for number, word in enumerate(shortcut):
        box(side, (split + y) / 2 + (len(shortcut) - 1) / 2 - number, word)
    for word in after:
        down(middle, y - 0.3, y - 0.7)
        y -= 1
        box(middle, y, word)
    down(middle, y - 0.3, y - 0.75)
    axes.text(middle, y - 1, "$x_{l+1}$", ha="center", va="center")
    axes.set(xlim=(-1.6, 0.7), ylim=(-0.6, height + 0.6))
    axes.axis("off")
