"""The propagation report of one network, as JSON and as an HTML page."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.analysis.chain import Chain
from keras_preact.analysis.gradients import GradientSignal, gradient_signal
from keras_preact.analysis.identity_path import check_identity_path
from keras_preact.analysis.lesions import Lesion, leave_out
from keras_preact.analysis.propagation import (
    DeadFraction,
    ForwardSignal,
    Moments,
    UnrolledSum,
    dead_fraction,
    forward_signal,
    unrolled_sum,
)
from keras_preact.errors import InputError
from keras_preact.files import write_atomically

UNTRAINED = "at initialization"


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The measurements of one network.

    Attributes:
        model: name of the model.
        state: its state of training, in words.
        images: the inputs, in words.
        path: the report of `check_identity_path`, as text.
        forward, gradient, sums, dead, lesions: results of the functions of `keras_preact.analysis`. There are no
            lesions if the network is untrained or was not known to be trained for these images and labels.
    """

    model: str
    state: str
    images: str
    path: str
    forward: list[ForwardSignal]
    gradient: list[GradientSignal]
    sums: list[UnrolledSum]
    dead: list[DeadFraction]
    lesions: list[Lesion]

    @property
    def unrolled_error(self) -> float:
        """The largest ‖x_L − x_l − ΣF‖ / ‖x_L‖ of Eq. (4) within a stage; NaN if one is, or if there is none."""
        return float(np.max([entry.error for entry in self.sums])) if self.sums else math.nan  # `max` would skip NaN

    @property
    def gradient_ratio(self) -> float:
        """‖∂E/∂x_l‖ at the first unit over that at the output of the last; NaN if the latter is 0."""
        return self.gradient[0].norm / (self.gradient[-1].norm or math.nan)

    @property
    def direct_ratio(self) -> float:
        """Norm of the first term of Eq. (5) at the last stage over ‖∂E/∂x_L‖: 1 along an identity path.

        Measured at the stage's first unit that passes x_l on unchanged: Eq. (5) does not cover changes of shape. NaN if
        there is no such unit or the gradient is zero.
        """
        end = self.gradient[-1]
        passing = {entry.unit for entry in self.sums if entry.stage == end.stage}
        directs = (entry.direct for entry in self.gradient if entry.unit in passing)
        return next(directs, math.nan) / (end.norm or math.nan)


def inspect_model(
    model: keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    shown: str,
    state: str = UNTRAINED,
    labelled: bool = True,
) -> Inspection:
    """Measure a network.

    Args:
        model: functional model whose residual units form a chain.
        images: batch of model inputs, for example images (batch, height, width, channels).
        labels: class numbers (batch,).
        shown: the images, in words.
        state: the model's state of training, in words. Default `"at initialization"`.
        labelled: whether the network is known to be trained for these images and labels. If not, no unit is left out:
            its test error might mean nothing. Default `True`.

    Raises:
        InputError: the model has no chain of residual units.
    """
    chain = Chain.of(model)  # first, so that an unsuitable model fails at once
    return Inspection(
        model.name,
        state,
        shown,
        str(check_identity_path(model)),
        forward_signal(chain, images),
        gradient_signal(chain, images, labels),
        unrolled_sum(chain, images),
        dead_fraction(chain, images),
        leave_out(chain, images, labels) if labelled and state != UNTRAINED else [],
    )


def write_inspection(inspection: Inspection, folder: str | Path) -> Path:
    """Write `inspection.json` and `inspection.html`, which contains the figures; return the path of the page."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "inspection.json", _json(dataclasses.asdict(inspection)))
    page = folder / "inspection.html"
    write_atomically(page, _page(inspection))
    return page


def _json(data: dict[str, Any]) -> str:
    """Return an inspection as JSON, one unit per line, with 7 digits: compact at a thousand layers, easy to diff."""
    data = json.loads(json.dumps(data), parse_float=lambda number: float(f"{float(number):.7g}"))
    entries = []
    for key, value in data.items():
        if isinstance(value, list):
            value = "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in value) + "\n ]"
        else:
            value = json.dumps(value, ensure_ascii=False)
        entries.append(f' "{key}": {value}')
    return "{\n" + ",\n".join(entries) + "\n}\n"


def read_inspection(folder: str | Path) -> Inspection:
    """Read the inspection that `write_inspection` wrote to a folder.

    Raises:
        InputError: the folder has no inspection, or it cannot be read.
    """
    path = Path(folder) / "inspection.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        for entry in data["forward"]:
            entry.update(x=Moments(**entry["x"]), residual=Moments(**entry["residual"]))
        for key, kind in _ENTRIES.items():
            data[key] = [kind(**entry) for entry in data[key]]
        return Inspection(**data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} cannot be read as an inspection: {error}; run `keras-preact inspect` again") from None


_ENTRIES: dict[str, Any] = {
    "forward": ForwardSignal,
    "gradient": GradientSignal,
    "sums": UnrolledSum,
    "dead": DeadFraction,
    "lesions": Lesion,
}


def _page(found: Inspection) -> str:
    from keras_preact.plots import gradient_figure, lesions_figure, propagation_figure

    figures = [
        propagation_figure(found.forward, found.gradient),
        gradient_figure({found.model: found.gradient}),
        *([lesions_figure(found.lesions)] if found.lesions else []),
    ]
    dead = max((entry.zeros for entry in found.dead), default=None)
    exception = ", except in the figure with units left out" if found.lesions else ""
    sentences = [
        f"State of the network: {found.state}. Inputs: {found.images}. "
        f"Measured as in training: batch norm, if there is any, used the statistics of this batch{exception}.",
        f"Within a stage, x_L deviates from x_l + ΣF of Eq. (4) by at most {found.unrolled_error:.2g} of its norm."
        if found.sums
        else "No unit passes x on unchanged, so Eq. (4) does not apply.",
        "No unit ends in a ReLU."
        if dead is None
        else f"The ReLU after the addition zeroes up to {100 * dead:.0f} % of a unit's output.",
    ]
    if not found.lesions and found.state != UNTRAINED:
        sentences.append("No units were left out: it is not known whether the network was trained for these labels.")
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
        "identity share",
        "‖∂E/∂x‖",
        "direct term",
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
