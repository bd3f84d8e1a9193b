"""`keras-preact info`."""

from __future__ import annotations

import argparse
import contextlib
import textwrap
from dataclasses import replace
from typing import Any

from keras_preact.cli.networks import as_known, model_to_inspect, new_network, saved, trained
from keras_preact.cli.options import option
from keras_preact.console import say, show, table
from keras_preact.errors import InputError
from keras_preact.layers import ResidualUnit
from keras_preact.layers.placements import get_placement
from keras_preact.models import NETWORKS, Pretrained, get_entry, pretrained
from keras_preact.models.cards import facts, limits
from keras_preact.models.profiles import Conventions, conventions, differences
from keras_preact.models.registry import ResNetEntry
from keras_preact.models.saving.loading import without_values
from keras_preact.models.summary import summarize


def run(options: argparse.Namespace) -> None:
    given = [
        option(key, value)
        for key, value in vars(options).items()
        if key not in ("command", "debug") and value is not None
    ]
    if options.model is not None:
        _describe(options)
    elif given:
        raise InputError(f"{given[0]} needs the name of a network, for example keras-preact info cifar_resnet")
    else:
        _list_names()


def _list_names() -> None:
    """Print the names that the command knows."""
    say("Networks:")
    for name, builder in NETWORKS.items():
        what = (builder.__doc__ or "").splitlines()[0].split(";")[0].removesuffix(".")
        say(f"  {name:21} {what[0].lower()}{what[1:]}")
    say("\nTrained networks, with their test errors:")
    for about in pretrained():
        say(f"  {about.name:33} {about.test_error:5.2f} % on {about.dataset}")
    say("\n`keras-preact info NAME` describes one of them.")


def _describe(options: argparse.Namespace) -> None:
    options.model = as_known(options.model)
    about = trained(options.model)
    with contextlib.nullcontext() if saved(options.model) or about else without_values():
        summary = summarize(model_to_inspect(options))
    say(summary.title)
    rows = [[row.name, str(row.units), row.output, f"{row.parameters:,}", row.multiply_adds] for row in summary.rows]
    show(table(["", "units", "output", "parameters", "multiply-adds"], rows))
    if summary.uncounted:
        say(f"Multiply-adds not counted (+ ?): {', '.join(summary.uncounted)}.")
    if about is not None:
        _print_card(about)
    elif (entry := _resnet(options.model)) is not None and entry.family == "imagenet":
        say(f"Test images: {_conventions(entry, options, options.profile or 'paper').inputs}.")
    if options.against is not None:
        _compare_profiles(options, summary.rows[-1])


def _print_card(about: Pretrained) -> None:
    """Print the card of a trained network; docs/pretrained.md has it as a table."""
    say("")
    for says, value in facts(about).items():
        say(textwrap.fill(f"{says:20} {value}", 100, subsequent_indent=" " * 21))
    say(f"\n{textwrap.fill(limits(about), 100)}")


def _resnet(name: str) -> ResNetEntry | None:
    """Return the entry of a residual network, or `None` if the name is another network's or a path."""
    entry = get_entry(name) if name in NETWORKS else None
    return entry if isinstance(entry, ResNetEntry) else None


def _conventions(entry: ResNetEntry, options: argparse.Namespace, profile: str) -> Conventions:
    placement = get_placement(entry.fixed.get("placement") or options.placement or "full_preactivation")
    return conventions(profile, entry.family, placement)


def _compare_profiles(options: argparse.Namespace, total: Any) -> None:
    """Print how the network of `--against` differs from the one described above."""
    entry = _resnet(options.model)
    if entry is None:
        raise InputError(
            f"--against needs the name of a residual network, for example preact_resnet50, not {options.model}"
        )
    profiles = [options.profile or "paper", options.against]
    with without_values():
        model = new_network(argparse.Namespace(**{**vars(options), "profile": options.against}))
    other = summarize(model).rows[-1]
    one, another = (_conventions(entry, options, name) for name in profiles)
    unit = next(layer for layer in model.layers if isinstance(layer, ResidualUnit))
    same = {  # choices of a profile that make no difference in these two networks
        "shape_change": options.shape_change is not None,
        "stride_on": unit.block != "bottleneck",
        "first_preactivation": not unit.placement.first or unit.changes_shape,
    }
    another = replace(another, **{name: getattr(one, name) for name, is_same in same.items() if is_same})
    rows = [
        [says, *("\n".join(textwrap.wrap(str(value), 24)) for value in values)]
        for says, *values in differences(one, another)
    ]
    rows.append(["trainable parameters", f"{total.parameters:,}", f"{other.parameters:,}"])
    rows.append(["multiply-adds", total.multiply_adds, other.multiply_adds])
    say("")
    show(table(["what differs", *profiles], rows))
