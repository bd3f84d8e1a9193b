"""The depth study: errors by learning rate, errors by depth, and their explanation."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from keras_preact.errors import InputError
from keras_preact.paper import in_words
from keras_preact.plots.base import Rows, check_some, lone_markers, look, new_figure


def orders_figure(runs: Mapping[str, Sequence[Rows]], title: str = "", looks: Sequence[int] | None = None) -> Figure:
    """Return test errors against steps, one color per order: a thin line for each run, a thick one for their mean.

    A dotted line marks 90 %, the error of guessing one of ten classes.

    A run that diverged has fewer rows. The mean then covers the steps that all runs of its order have; the legend
    and the description say where it ends.

    Args:
        runs: rows of metrics.csv of each run, by order.
        title: title of the figure.
        looks: number of each order's color and marker, in the order of `runs`. Default: 0, 1, 2, …

    Raises:
        InputError: there is no order, an order has no run, or the runs of an order have no step in common.

    Example:

    >>> rows = [{"step": step, "test_error": 900 / step} for step in (10, 20)]
    >>> axes = orders_figure({"original": [rows, rows]}).axes[0]
    >>> len(axes.get_lines()), axes.get_legend_handles_labels()[1]
    (4, ['original (n = 2)'])
    """
    check_some("orders", runs)
    common = {order: _errors_by_step(in_words(order), each) for order, each in runs.items()}
    ends = []
    for order, found in common.items():
        *_, (step, errors) = found.items()
        where = f", at step {step:,.0f}, the last with all runs" if _is_partial(found, runs[order]) else ""
        spread = f"{min(errors):.1f} to {max(errors):.1f}, n = {len(errors)}{where}"
        ends.append(f"{in_words(order)} {statistics.mean(errors):.1f} ({spread})")
    alt = f"{title + ': ' if title else ''}test error (%) against training steps. At the end: {'; '.join(ends)}."
    figure = new_figure(alt, 7.0, 4.2, title)
    axes = figure.add_subplot()
    for number, (order, each) in enumerate(runs.items()):
        _draw_order(axes, in_words(order), each, common[order], look(looks[number] if looks else number))
    axes.axhline(90, color="0.5", linewidth=0.8, linestyle=":")
    axes.annotate("random guessing", (0, 90), xytext=(4, 3), textcoords="offset points", fontsize=8, color="0.4")
    axes.set(xlabel="training steps (mini-batches)", ylabel="test error (%)", ylim=(None, 94))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    _legend_below(figure, axes, 2)
    return figure


def _draw_order(
    axes: Any, order: str, runs: Sequence[Rows], common: Mapping[float, Sequence[float]], style: Mapping[str, Any]
) -> None:
    """Draw the runs of an order and their mean over the common steps."""
    is_partial = _is_partial(common, runs)
    for rows in runs:
        errors = [row["test_error"] for row in rows]
        marked = lone_markers(errors, ".") if is_partial or len(rows) > 1 else {}
        axes.plot([row["step"] for row in rows], errors, color=style["color"], linewidth=0.8, alpha=0.45, **marked)
    mean = [statistics.mean(errors) for errors in common.values()]
    until = f", mean to step {max(common):,.0f}" if is_partial else ""
    axes.plot(list(common), mean, label=f"{order} (n = {len(runs)}{until})", linewidth=2.2, markersize=5, **style)


def _is_partial(common: Mapping[float, Any], runs: Sequence[Rows]) -> bool:
    """Return whether a run has steps that are missing from the common ones."""
    return any(len(rows) > len(common) for rows in runs)


def _errors_by_step(order: str, runs: Sequence[Rows]) -> dict[float, list[float]]:
    """Return the test error of each run of an order, by step, for the steps that all runs have.

    Raises:
        InputError: there is no run, or no such step.
    """
    check_some(f"runs of {order}", runs)
    first, *others = ({row["step"]: row["test_error"] for row in rows} for rows in runs)
    found = {
        step: [error, *(other[step] for other in others)]
        for step, error in first.items()
        if all(step in other for other in others)
    }
    if not found:
        raise InputError(f"the runs of {order} have no step in common; pass only runs tested at the same steps")
    return found


def screening_figure(
    errors: Mapping[str, Mapping[tuple[int, float], float]],
    works_below: float,
    warmed_up: Mapping[int, float] | None = None,
    rates: Sequence[float] = (),
) -> Figure:
    """Return a map of test errors for each order, and next to them the largest learning rate that works by depth.

    Rows are learning rates, columns are depths; a cross marks failures. Where a rate that was not run may be the
    largest, none is shown.

    Args:
        errors: test errors (%) by order, depth and learning rate.
        works_below: a learning rate fails from this error (%) on.
        warmed_up: test errors (%) of the original order with the paper's warm-up, by depth.
        rates: all learning rates of the screening, including those that were not run. Default: those in `errors`.

    Raises:
        InputError: there is no order, no depth or no learning rate.

    Example:

    >>> figure = screening_figure({"original": {(20, 0.1): 55.0, (218, 0.1): 86.0}}, 80.0)
    >>> sorted(text.get_text() for text in figure.axes[0].texts)
    ['55', '86 ✕']
    """
    check_some("orders", errors)
    only_warmed_up = warmed_up if warmed_up and "original" in errors else {}  # depths may have been run with it alone
    depths = sorted({depth for cells in errors.values() for depth, _ in cells}.union(only_warmed_up))
    check_some("depths", depths)
    rates = sorted(rates or {rate for cells in errors.values() for _, rate in cells})
    check_some("learning rates", rates)
    largest = {
        order: {
            depth: _largest_working_rate({rate: cells.get((depth, rate)) for rate in rates}, works_below)
            for depth in depths
        }
        for order, cells in errors.items()
    }
    works = [
        f"{in_words(order)}: " + ", ".join(f"{depth} layers {_rate_in_words(rate)}" for depth, rate in found.items())
        for order, found in largest.items()
    ]
    alt = f"Test error by depth and learning rate. The largest learning rate that works: {'; '.join(works)}."
    figure = new_figure(alt, 2.9 * len(errors) + 3.6, 3.4)
    *panels, summary = figure.subplots(1, len(errors) + 1)
    labels = [f"{rate:g}" for rate in rates] + ["0.1, warm-up"] * bool(warmed_up)
    for number, (axes, (order, cells)) in enumerate(zip(panels, errors.items(), strict=True)):
        rows = [{depth: cells[depth, rate] for depth in depths if (depth, rate) in cells} for rate in rates]
        rows += [dict(warmed_up) if order == "original" else {}] if warmed_up else []
        image = _draw_map(axes, rows, depths, works_below)
        axes.set_title(in_words(order), fontsize=10)
        axes.set_yticks(range(len(labels)), labels if number == 0 else [])
        axes.set_xlabel("depth (layers)")
        if order != "original" and warmed_up:
            axes.text(
                0.5, len(rates), "not run", ha="center", va="center", fontsize=8, transform=axes.get_yaxis_transform()
            )
    panels[0].set_ylabel("learning rate")
    figure.colorbar(image, ax=panels, label="test error (%)")
    _draw_largest_rates(summary, largest, rates)
    return figure


def _draw_largest_rates(axes: Any, largest: Mapping[str, Mapping[int, float | None]], rates: Sequence[float]) -> None:
    """Draw the largest learning rate that works against depth, a line per order."""
    for number, (order, by_depth) in enumerate(largest.items()):
        found = {depth: rate or math.nan for depth, rate in by_depth.items() if rate is not None}
        axes.plot(list(found), list(found.values()), label=in_words(order), **look(number))
    axes.set_yscale("log")
    axes.set_yticks(rates, [f"{rate:g}" for rate in rates[:-1]] + [f"≥ {rates[-1]:g}"])  # none larger was tried
    axes.set_title("largest learning rate\nthat works", fontsize=10)
    axes.set_xlabel("depth (layers)")
    _depth_axis(axes, {depth for by_depth in largest.values() for depth in by_depth})
    axes.legend(frameon=False, fontsize=8)


def _largest_working_rate(errors: Mapping[float, float | None], works_below: float) -> float | None:
    """Return the largest learning rate that works, 0 if none does; `None` if a rate that was not run may be larger.

    >>> _largest_working_rate({0.1: 60.0, 0.3: 90.0}, 80.0), _largest_working_rate({0.1: 60.0, 0.3: None}, 80.0)
    (0.1, None)
    """
    for rate in sorted(errors, reverse=True):
        error = errors[rate]
        if error is None or error < works_below:
            return None if error is None else rate
    return 0.0


def _rate_in_words(rate: float | None) -> str:
    return "not all run" if rate is None else f"{rate:g}" if rate else "none"


def _draw_map(axes: Any, rows: Sequence[Mapping[int, float]], depths: Sequence[int], works_below: float) -> Any:
    """Draw a map of errors, with their numbers, by row and depth; return the image."""
    values = [[row.get(depth, math.nan) for depth in depths] for row in rows]
    image = axes.imshow(values, cmap="cividis_r", vmin=50, vmax=90, origin="lower", aspect="auto")
    for position, row in enumerate(rows):
        for depth, error in row.items():
            label = f"{error:.0f}" + ("" if error < works_below else " ✕")  # NaN fails, too
            color = "white" if 72 < error < math.inf else "black"  # the map is blank where the error is infinite
            axes.text(depths.index(depth), position, label, ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    return image


def depth_figure(series: Mapping[str, Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]]]) -> Figure:
    """Return errors and losses after equal steps by depth: one panel per quantity and choice of the learning rate.

    Dots are runs, lines connect their means, and bands span the lowest to the highest run.

    Args:
        series: one number per run, by quantity (rows), choice of the learning rate (columns), order and depth. Without
            any, the figure has one empty panel.

    Raises:
        InputError: the quantities have different numbers of columns, or there is no run at a depth.

    Example:

    >>> runs = {"test error (%)": {"at 0.1": {"original": {20: [30.0, 32.0], 110: [38.0]}}}}
    >>> [line.get_ydata().tolist() for line in depth_figure(runs).axes[0].get_lines()][-1]
    [31.0, 38.0]
    """
    columns = _columns(series)
    _check_runs(series)
    means = [
        f"{quantity}, {choice}, {in_words(order)}: "
        + " to ".join(f"{statistics.mean(points[depth]):.3g} at {depth} layers" for depth in _ends(points))
        for quantity, choices in series.items()
        for choice, orders in choices.items()
        for order, points in orders.items()
    ]
    alt = f"Means of runs at the smallest and the largest depth. {'; '.join(means)}."
    figure = new_figure(alt, 4.6 * max(len(columns), 1), 0.6 + 3.0 * max(len(series), 1))
    grid = figure.subplots(max(len(series), 1), max(len(columns), 1), squeeze=False, sharex=True, sharey="row")
    for panels, (quantity, choices) in zip(grid, series.items(), strict=False):
        for axes, (choice, orders) in zip(panels, choices.items(), strict=False):
            for number, (order, points) in enumerate(orders.items()):
                _draw_band(axes, number, in_words(order), points)
            axes.set_title(choice, fontsize=10)
        panels[0].set_ylabel(quantity)
    _depth_axes(grid, series)
    _legend_below(figure, grid[0, 0], 2)
    return figure


def _columns(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the columns of a grid of panels: those of its first row.

    Raises:
        InputError: another row has a different number of columns.
    """
    columns: list[str] = list(next(iter(rows.values()), {}))
    for name, row in rows.items():
        if len(row) != len(columns):
            first = next(iter(rows))
            raise InputError(f"{name} has {len(row)} columns and {first} has {len(columns)}; pass the same for both")
    return columns


def _check_runs(series: Mapping[str, Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]]]) -> None:
    for orders in (orders for choices in series.values() for orders in choices.values()):
        for order, points in orders.items():
            for depth, runs in points.items():
                check_some(f"runs of {in_words(order)} at {depth} layers", runs)


def _ends(points: Mapping[int, Any]) -> list[int]:
    """Return the smallest and the largest depth; a single depth once."""
    return sorted({min(points), max(points)}) if points else []


def _draw_band(axes: Any, number: int, label: str, points: Mapping[int, Sequence[float]]) -> None:
    depths, style = sorted(points), look(number)
    for depth in depths:
        axes.plot([depth] * len(points[depth]), points[depth], ".", color=style["color"], markersize=4, alpha=0.6)
    low, high = ([edge(points[depth]) for depth in depths] for edge in (min, max))
    axes.fill_between(depths, low, high, color=style["color"], alpha=0.15, linewidth=0)
    means = [statistics.mean(points[depth]) for depth in depths]
    axes.plot(depths, means, label=label, linewidth=1.6, markersize=5, **style)


def mechanism_figure(found: Mapping[str, Mapping[str, Mapping[str, Mapping[int, float]]]]) -> Figure:
    """Return the explanation of a gap by depth: one row per quantity, column per moment of training, line per order.

    Args:
        found: numbers by quantity, moment, order and depth. Without any, the figure has one empty panel.

    Raises:
        InputError: the quantities have different numbers of columns.

    Example:

    >>> moments = {"before": {"original": {20: 0.5, 110: 0.001}}, "end": {"original": {20: 0.4, 110: 0.1}}}
    >>> figure = mechanism_figure({"direct term": moments})
    >>> [(axes.get_title(), axes.get_yscale()) for axes in figure.axes]
    [('before', 'log'), ('end', 'log')]
    """
    moments = _columns(found)
    ends_in_words = []
    for quantity, by_moment in found.items():
        last = next((moment for moment in reversed(moments) if by_moment.get(moment)), "")
        for order, points in by_moment.get(last, {}).items():
            ends = " to ".join(f"{points[depth]:.2g} at {depth} layers" for depth in _ends(points))
            ends_in_words.append(f"{quantity}, {last}, {in_words(order)}: {ends}")
    alt = f"Values at the smallest and the largest depth. {'; '.join(ends_in_words)}."
    figure = new_figure(alt, 3.4 * max(len(moments), 1), 0.6 + 2.5 * max(len(found), 1))
    grid = figure.subplots(max(len(found), 1), max(len(moments), 1), squeeze=False, sharex=True, sharey="row")
    # An order has the same color in all panels, although diverged runs have no value at the end.
    panels_of = [orders for by_moment in found.values() for orders in by_moment.values()]
    numbers = {order: number for number, order in enumerate(dict.fromkeys(itertools.chain(*panels_of)))}
    for row, (panels, (quantity, by_moment)) in enumerate(zip(grid, found.items(), strict=False)):
        for axes, (moment, orders) in zip(panels, by_moment.items(), strict=False):
            for order, points in orders.items():
                depths = sorted(points)
                values = [points[depth] for depth in depths]
                axes.plot(depths, values, label=in_words(order), linewidth=1.4, markersize=4, **look(numbers[order]))
            if row == 0:
                axes.set_title(moment, fontsize=10)
        points_of = [points for orders in by_moment.values() for points in orders.values()]
        values = [value for points in points_of for value in points.values() if math.isfinite(value)]
        if values and min(values) > 0 and max(values) > 20 * min(values):
            panels[0].set_yscale("log")
        if values and not any(values):
            panels[0].set_ylim(-0.05, 1)  # a share that is 0 everywhere: Matplotlib would zoom in on nothing
        panels[0].set_ylabel(quantity.replace(", ", ",\n"), fontsize=9)
    _depth_axes(grid, found)
    _legend_below(figure, max(grid.flat, key=lambda axes: len(axes.get_lines())), 4)
    return figure


def _depth_axes(grid: Any, points: Mapping[str, Mapping[str, Mapping[str, Mapping[int, Any]]]]) -> None:
    """Give all panels one axis, with the depths of every panel: panels of a column share their ticks."""
    depths = {depth for row in points.values() for panel in row.values() for line in panel.values() for depth in line}
    for axes in grid.flat:
        _depth_axis(axes, depths)
    for axes in grid[-1]:
        axes.set_xlabel("depth (layers)")


def _depth_axis(axes: Any, depths: set[int]) -> None:
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(sorted(depths), [str(depth) for depth in sorted(depths)])
    axes.grid(alpha=0.3)


def _legend_below(figure: Figure, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
