"""`keras-preact demo`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from keras_preact.cli.display import say_comparison, side_by_side
from keras_preact.cli.options import RUNS
from keras_preact.console import say
from keras_preact.experiments.tables import DEMO_DEPTH, PAPERS_RATE, TUNED_ORIGINAL
from keras_preact.paper import in_words
from keras_preact.training import (
    RunConfig,
    RunFolder,
    choose_threads,
    compare,
    default_precision,
    get_recipe,
    has_idle_cores,
    orders,
)
from keras_preact.training.runs import in_free_folder


def run(options: argparse.Namespace) -> None:
    recipe = get_recipe("demo")
    recipe = recipe if options.steps is None else recipe.with_steps(options.steps)
    schedule = dataclasses.replace(recipe.schedule, learning_rate=options.learning_rate)
    config = RunConfig(
        options={"depth": options.depth, "bottleneck": False},
        image_size=16,
        recipe=dataclasses.replace(recipe, schedule=schedule),
        precision=options.precision or default_precision(),
        seed=options.seed,
    )
    choose_threads(config)
    folder = _compared(orders(config), options.out)
    say_comparison(folder)
    say(_finding(folder, options.depth, options.learning_rate))
    rate, error = TUNED_ORIGINAL
    if (options.depth, options.learning_rate, options.steps) == (DEMO_DEPTH, PAPERS_RATE, None):
        say(
            f"{PAPERS_RATE:g} is the paper's rate. Tuning helps the original order: at {rate:g}, the best of five "
            f"rates, a stored run reached a test error of {error:g} %."
        )
    other_depth = (
        "--depth 20    the shallow control" if options.depth > 56 else f"--depth {DEMO_DEPTH}    the deep network"
    )
    say(
        "Try next:\n"
        f"  keras-preact demo {other_depth}\n"
        f"  keras-preact demo --learning-rate {rate:g}    the original order at its best rate\n"
        "  keras-preact inspect cifar_resnet --depth 218 --basic --placement original"
    )


def _compared(configs: dict[str, RunConfig], out: Path | None) -> RunFolder:
    """Train into `out` or the next free folder."""
    with side_by_side(configs) as display:
        return in_free_folder(
            out,
            RUNS,
            "demo",
            lambda free: compare(configs, free, lambda name, _: [display.callback(name)], together=has_idle_cores()),
        )


def _finding(folder: Any, depth: int, rate: float) -> str:
    """Return a sentence that says what the demo's figure shows."""
    records = {name: folder.open(folder.path / name).record() for name in ("original", "full_preactivation")}
    for name, record in records.items():
        if "diverged" in record:
            return (
                f"At {depth} layers and learning rate {rate:g}, the {in_words(name)} network diverged at step "
                f"{record['diverged']['step']}: its loss or a weight became NaN or infinite."
            )
    original, full = (record["result"]["test_error"] for record in records.values())
    steps = records["original"]["steps"]
    if abs(original - full) < 5:
        return (
            f"At {depth} layers and learning rate {rate:g}, the order hardly matters: after {steps:,} steps the test "
            f"error is {original:.1f} % in the original order and {full:.1f} % in full pre-activation."
        )
    first, second = ("full pre-activation", "the original order")[:: 1 if full < original else -1]
    low, high = sorted((original, full))
    return (
        f"At {depth} layers and learning rate {rate:g}, {first} reaches a test error of {low:.1f} % after {steps:,} "
        f"steps, and {second} {high:.1f} %: {high - low:.1f} points more."
    )
