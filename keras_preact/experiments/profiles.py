"""The sections of the page of results on measurements without training."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_preact import paper
from keras_preact.analysis import read_inspection
from keras_preact.experiments.report import drawn, escaped, link_to, markdown_table
from keras_preact.paper import in_words
from keras_preact.training.runs import RunFolder


def initialization(run: RunFolder, record: dict[str, Any], results: Path) -> str:
    """Return the gradient norms of untrained Transformers as Markdown."""
    found = record["result"]
    depths = list(found[0]["norms"])
    heads = ["order", *(f"{depth} blocks" for depth in depths), "exponent of depth", "bound"]
    rows = []
    for entry in found:
        norms = [f"{statistics.median(entry['norms'][depth]):.3g}" for depth in depths]
        fit = f"{entry['exponent']:.2f} ± {entry['standard_error']:.2f}"
        bound = f"{paper.INITIAL_GRADIENT_EXPONENTS[entry['order']]:g}"
        rows.append([entry["order"].replace("_", "-"), *norms, fit, bound])
    text = (
        "Gradient norm of the last feed-forward kernel before training, in the setting of Theorem 1 of Xiong et al. "
        "2020: one head, with W^Q = W^K = 0. Norms are medians over seeds. The exponent s is fitted to norm ∝ blocks^s "
        "and given with its standard error. The bound is the exponent of the theorem's upper bound: norms may fall "
        "faster. "
        f"Measurements: {link_to(run, results)}."
    )
    return "\n".join(["## Transformers before training", "", text, "", markdown_table(heads, rows)])


def profiles(runs: Sequence[RunFolder], results: Path) -> list[str]:
    """Return the stored inspections as Markdown: a table, and a figure for each number of units."""
    from keras_preact.plots import profiles_figure

    if not runs:
        return []
    found = [read_inspection(run.path) for run in runs]
    # Older inspections have no entry: they used float32.
    precisions = [run.record()["config"].get("precision", "float32") for run in runs]
    rows = []
    for run, entry, precision in zip(runs, found, precisions, strict=True):
        x = entry.forward[0].x.variance, entry.forward[-1].x.variance
        numbers = [f"{x[0]:.3g} → {x[1]:.3g}", f"{entry.unrolled_error:.2g}"]
        numbers += [f"{entry.gradient_ratio:.3g}", f"{entry.direct_ratio:.3g}"]
        what = map(escaped, (f"{entry.model}, {precision}", entry.state, entry.images))
        rows.append([link_to(run, results), *what, *numbers])
    table = markdown_table(PROFILE_COLUMNS, rows)
    parts = ["\n".join(["## Signal and gradient, unit by unit", "", _PROFILES, "", table])]
    titles = [f"{in_words(entry.model)}, {entry.state}" for entry in found]
    counts = Counter(titles)
    titles = [
        title if counts[title] == 1 else f"{title} ({run.path.relative_to(results).as_posix()})"
        for title, run in zip(titles, runs, strict=True)
    ]
    for count in sorted({len(entry.forward) for entry in found}):
        same = {
            title: (entry.forward, entry.gradient)
            for title, entry in zip(titles, found, strict=True)
            if len(entry.forward) == count
        }
        parts.append(drawn(profiles_figure(same, f"{count} units"), results, f"profiles-{count}-units"))
    return parts


PROFILE_COLUMNS = (
    "run",
    "network",
    "state",
    "inputs",
    "variance of x",
    "Eq. (4)",
    "∂E/∂x, first ÷ last",
    "direct ÷ ∂E/∂x_L",
)

_PROFILES = (
    "Measured by `keras-preact inspect`, with the batch's statistics. The columns:\n\n"
    "* variance of x: the variance of the signal x_l at the first and at the last unit;\n"
    "* Eq. (4): the largest ‖x_L − x_l − ΣF‖ / ‖x_L‖ within a stage. It is zero up to rounding if shortcuts and f are "
    "identities; bfloat16 rounds sums to 8 bits;\n"
    "* ∂E/∂x, first ÷ last: the norm of the gradient at the first unit, divided by that after the last;\n"
    "* direct ÷ ∂E/∂x_L: the norm of the gradient that flows along the shortcuts alone, Eq. (5), divided by that of "
    "the whole gradient, in the last stage. It is 1 if all of it arrives."
)
