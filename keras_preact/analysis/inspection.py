"""The propagation report of one network: everything that the analysis says of it, as JSON and as a page."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.analysis.chain import Chain
from keras_preact.analysis.identity_path import check_identity_path
from keras_preact.analysis.lesions import leave_out
from keras_preact.analysis.propagation import dead_fraction, forward_signal, gradient_signal, unrolled_sum


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What was found of a network.

    Attributes:
        model: its name.
        images: what it was shown, in words.
        path: the report of the identity linter, in words.
        forward, gradient, sums, dead, lesions: entries of the functions of `keras_preact.analysis`.
    """

    model: str
    images: str
    path: str
    forward: list[Any]
    gradient: list[Any]
    sums: list[Any]
    dead: list[Any]
    lesions: list[Any]


def inspect_model(model: keras.Model, images: np.ndarray, labels: np.ndarray, shown: str) -> Inspection:
    """Measure a network.

    Args:
        model: a functional model whose residual units follow one another.
        images: as the model takes them (batch, height, width, channels).
        labels: class numbers (batch,).
        shown: what the images are, in words.

    Raises:
        InputError: a model without such units.
    """
    Chain.of(model)  # refuses a model that cannot be taken apart, before anything is computed
    return Inspection(
        model.name,
        shown,
        str(check_identity_path(model)),
        forward_signal(model, images),
        gradient_signal(model, images, labels),
        unrolled_sum(model, images),
        dead_fraction(model, images),
        leave_out(model, images, labels),
    )


def write_inspection(inspection: Inspection, folder: Path) -> Path:
    """Write `inspection.json` and `inspection.html`, which holds its figures; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = dataclasses.asdict(inspection)
    (folder / "inspection.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page = folder / "inspection.html"
    page.write_text(_page(inspection), encoding="utf-8")
    return page


def _page(found: Inspection) -> str:
    from keras_preact import plots

    figures = [
        plots.propagation_figure(found.forward, found.gradient),
        plots.gradient_figure({found.model: found.gradient}),
        plots.lesions_figure(found.lesions),
    ]
    worst = max((entry.error for entry in found.sums), default=0.0)
    dead = max((entry.zeros for entry in found.dead), default=None)
    sentences = [
        f"Shown to the network: {found.images}. Batch norm used their statistics, except where units are left out.",
        f"Eq. (4), x_L = x_l + ΣF, holds within each stage but for {worst:.2g} of ‖x_L‖ at most.",
        "No unit ends in a ReLU."
        if dead is None
        else f"The ReLU after the addition sets up to {100 * dead:.0f} % of a unit's output to zero.",
    ]
    body = [f"<h1>{html.escape(found.model)}</h1>", *(f"<p>{html.escape(text)}</p>" for text in sentences)]
    body += ["<h2>The identity path</h2>", f"<pre>{html.escape(found.path)}</pre>", "<h2>Signal and gradient</h2>"]
    body += [_image(figure) for figure in figures]
    body += ["<h2>Unit by unit</h2>", _table(found)]
    style = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}img{max-width:100%}"
    style += "td,th{padding:.15em .6em;text-align:right}td:first-child,th:first-child{text-align:left}"
    head = f'<meta charset="utf-8"><title>{html.escape(found.model)}</title><style>{style}</style>'
    return "\n".join(["<!doctype html>", f'<html lang="en"><head>{head}</head><body>', *body, "</body></html>", ""])


def _image(figure: Any) -> str:
    from keras_preact.plots import alt_text

    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{html.escape(alt_text(figure))}" src="data:image/png;base64,{data}">'


def _table(found: Inspection) -> str:
    heads = (
        "unit",
        "‖x‖",
        "var x",
        "‖F‖",
        "var F",
        "share of identity",
        "‖∂E/∂x‖",
        "direct",
        "through weights",
        "cosine",
    )
    rows = [
        (
            signal.unit,
            *(f"{v:.3g}" for v in (signal.x.norm, signal.x.variance, signal.residual.norm, signal.residual.variance)),
            f"{signal.identity_share:.3f}",
            *(f"{v:.3g}" for v in (gradient.norm, gradient.direct, gradient.through_weights)),
            "" if gradient.cosine is None else f"{gradient.cosine:.3f}",
        )
        for signal, gradient in zip(found.forward, found.gradient, strict=False)  # the gradient has one entry more
    ]
    lines = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"
