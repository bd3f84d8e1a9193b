"""What all figures share: colours, markers, files, and the sentence that says in words what is to be seen.

Figures are told apart by shape as well as by colour (the colours of Okabe and Ito, which colour-blind readers can
tell apart), and carry a sentence that says what is to be seen: `alt_text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_preact.errors import missing_package

try:
    import matplotlib
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise missing_package("plotting", ["matplotlib"]) from None

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


def new_figure(alt: str, width: float, height: float, title: str = "") -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    figure.set_label(alt)
    if title:
        figure.suptitle(title)
    return figure
