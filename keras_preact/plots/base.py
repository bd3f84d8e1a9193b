"""Colors, markers, labels, files and descriptions of all figures.

The colors are those of Okabe and Ito, which color-blind readers can distinguish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from keras_preact.errors import InputError, check_choice, missing_package
from keras_preact.files import written_aside
from keras_preact.paper import in_words

try:
    import matplotlib
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise missing_package("plotting", ["matplotlib"]) from None

Rows = Sequence[Mapping[str, float]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def alt_text(figure: Figure) -> str:
    """Return the description of a figure of this package, one or two sentences."""
    return str(figure.get_label())


def draw(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG or SVG, by the path's suffix (default PNG), with the same bytes on every machine.

    Raises:
        InputError: the path has another suffix; nothing is written.
        WriteError: the system refused to write the file; an older file of this name is unchanged.
    """
    path = Path(path)
    kind = check_choice("image format", path.suffix[1:].lower() or "png", ("png", "svg"))
    with matplotlib.rc_context({"svg.hashsalt": "keras_preact", "svg.fonttype": "path"}):
        metadata: dict[str, Any] = {"Description": alt_text(figure)}
        metadata |= {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        with written_aside(path) as aside:
            figure.savefig(aside, format=kind, metadata=metadata, facecolor=figure.get_facecolor())
    return path


def check_some(what: str, values: Sized) -> None:
    """Raise InputError if there is nothing to draw.

    >>> check_some("runs", [])
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: there are no runs to draw; pass at least one
    """
    if len(values) == 0:
        raise InputError(f"there are no {what} to draw; pass at least one")


def lone_markers(values: Sequence[float], marker: Any) -> dict[str, Any]:
    """Return the options of a line that mark each finite value without a finite neighbor: no segment shows it.

    >>> lone_markers([50.0, math.nan, 60.0, 55.0], "o"), lone_markers([60.0, 55.0], "o")
    ({'marker': 'o', 'markevery': [0]}, {'marker': '', 'markevery': None})
    """
    finite = [False, *map(math.isfinite, values), False]
    lone = [k for k in range(len(values)) if finite[k + 1] and not finite[k] and not finite[k + 2]]
    return {"marker": marker if lone else "", "markevery": lone or None}


def named_in_words(series: Mapping[str, Any]) -> dict[str, Any]:
    """Return series by their names in words; by the names as they are if two would read alike."""
    words = {in_words(name): value for name, value in series.items()}
    return words if len(words) == len(series) else dict(series)


def look(number: int) -> dict[str, Any]:
    """Return color and marker of a series; the first 49 pairs are distinct."""
    return {"color": COLOURS[number % 7], "marker": MARKERS[(number + number // 7) % 7]}


def new_figure(alt: str, width: float, height: float, title: str = "") -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    figure.set_label(alt)
    if title:
        figure.suptitle(title)
    return figure
