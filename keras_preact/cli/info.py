"""`keras-preact info`."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from keras_preact.cli.networks import as_known, model_to_inspect, new_network, saved, trained
from keras_preact.console import console, say, table
from keras_preact.errors import InputError
from keras_preact.layers.placements import get_placement
from keras_preact.models import NETWORKS, get_entry
from keras_preact.models.cards import card
from keras_preact.models.loading import without_values
from keras_preact.models.profiles import conventions, differences
from keras_preact.models.registry import ResNetEntry
from keras_preact.models.summary import summarize


def run(options: argparse.Namespace) -> None:
    options.model = as_known(options.model)
    about = trained(options.model)
    with contextlib.nullcontext() if saved(options.model) or about else without_values():
        summary = summarize(model_to_inspect(options))
    say(summary.title)
    rows = [[row.name, str(row.units), row.output, f"{row.parameters:,}", row.multiply_adds] for row in summary.rows]
    console.print(table(["", "units", "output", "parameters", "multiply-adds"], rows))
    if summary.uncounted:
        say(f"Multiply-adds not counted (+ ?): {', '.join(summary.uncounted)}.")
    if about is not None:
        say(f"\n{card(about)}")
    if options.against is not None:
        _compare_profiles(options, summary.rows[-1])


def _compare_profiles(options: argparse.Namespace, total: Any) -> None:
    """Print how the network of `--against` differs from the one described above."""
    entry = get_entry(options.model) if options.model in NETWORKS else None
    if not isinstance(entry, ResNetEntry):
        raise InputError(
            f"--against needs the name of a residual network, for example preact_resnet50, not {options.model}"
        )
    profiles = [options.profile or "paper", options.against]
    with without_values():
        model = new_network(argparse.Namespace(**{**vars(options), "profile": options.against}))
    other = summarize(model).rows[-1]
    placement = get_placement(entry.fixed.get("placement") or options.placement or "full_preactivation")
    rows = [
        [says, str(one), str(another)]
        for says, one, another in differences(*(conventions(name, entry.family, placement) for name in profiles))
    ]
    rows.append(["trainable parameters", f"{total.parameters:,}", f"{other.parameters:,}"])
    rows.append(["multiply-adds", total.multiply_adds, other.multiply_adds])
    say("")
    console.print(table(["what differs", *profiles], rows))
