"""`keras-preact train`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from keras_preact.cli.display import progress, progress_of_run, say_comparison, side_by_side
from keras_preact.cli.networks import network_options
from keras_preact.cli.options import RUNS, option
from keras_preact.console import say, show, table
from keras_preact.errors import InputError, as_command, check_positive
from keras_preact.experiments.probe import PROPAGATION, PropagationProbe
from keras_preact.models import get_entry
from keras_preact.training import (
    RunConfig,
    RunFolder,
    choose_threads,
    default_precision,
    get_recipe,
    resume,
    resume_comparison,
    start,
)
from keras_preact.training.distribute import collective_errors, is_chief, join
from keras_preact.training.runs import in_free_folder


def run(options: argparse.Namespace) -> None:
    join()
    folder = _start(options) if options.resume is None else _resume(options)
    if folder is not None and is_chief():
        _report(folder)


def _start(options: argparse.Namespace) -> Any:
    with collective_errors():
        if options.out is not None and is_chief():
            RunFolder.check_free(options.out)  # before loading the data
        config, dataset = _config(options)
    if skipped := getattr(dataset, "skipped", ()):
        shown = ", ".join(skipped[:5]) + (", …" if len(skipped) > 5 else "")
        say(f"Skipped images that cannot be read: {len(skipped)} ({shown}).")
    return _started(config, dataset, options.out)


def _resume(options: argparse.Namespace) -> Any:
    """Resume a run and return its folder; `None` after a comparison, whose results are printed here."""
    with collective_errors():
        _refuse_changes(options)
        several = RunFolder.open(options.resume).record().get("kind") == "comparison"
        if not several:
            watchers = progress_of_run(options.resume)
            config = RunConfig.from_dict(RunFolder.open(options.resume).training()["config"])
            if (options.resume / PROPAGATION).exists():  # `reproduce` has started it, and measures it
                watchers.append(PropagationProbe(config))
            choose_threads(config)
    if not several:
        return resume(options.resume, data_dir=options.data_dir, callbacks=watchers)
    say_comparison(_resumed_comparison(options.resume, options.data_dir))
    return None


def _report(folder: Any) -> None:
    record = folder.record()
    result = record["result"]
    unit = folder.unit()
    columns = ["", f"training error {unit}", f"test error {unit}", "seconds"]
    row = [record["model"]["name"], *(f"{result[k]:.2f}" for k in ("train_error", "test_error"))]
    show(table(columns, [[*row, f"{record['seconds']:.0f}"]]))
    for rule, error in record["data"].get("baselines", {}).items():
        say(f"{rule}: test error {error:.2f} {unit}")
    say(f"The run is in {folder.path}; measure its test error again with {as_command('evaluate', folder.path)}.")


def _resumed_comparison(path: Path, data_dir: str | None) -> Any:
    record = RunFolder.open(path).record()
    configs = {name: RunConfig.from_dict(data) for name, data in record["runs"].items()}
    choose_threads(next(iter(configs.values())))
    with side_by_side(configs) as display:
        for name in configs:
            run = RunFolder(path / name)
            rows: list[dict[str, float]] = []
            with contextlib.suppress(InputError):  # the checkpoint has them too
                rows = run.metrics()
            display.resume(name, rows, run.record().get("step", 0) if run.exists() else 0)
        return resume_comparison(path, lambda name, _: [display.callback(name)], data_dir=data_dir)


def _started(config: Any, dataset: Any, out: Path | None) -> Any:
    """Train into `out` or the next free folder."""
    return in_free_folder(
        out, RUNS, config.label, lambda free: start(config, free, dataset, progress(config.label, config))
    )


def _config(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the configuration and the data set that the options describe; `--epochs` needs the size of the data."""
    network = (options.model or "cifar_resnet").replace("-", "_")
    entry = get_entry(network)  # an unknown name is the first error reported
    if options.epochs is not None:
        check_positive("--epochs", options.epochs)
    name = options.dataset or entry.default_dataset
    recipe = get_recipe(options.recipe or entry.default_recipe(name))
    if options.batch_size is not None:
        recipe = dataclasses.replace(recipe, batch_size=options.batch_size)
    if options.learning_rate is not None:
        rates = {"learning_rate": options.learning_rate}
        if (warmup := getattr(recipe.schedule, "warmup_learning_rate", None)) is not None:
            rates["warmup_learning_rate"] = min(warmup, options.learning_rate)
        recipe = dataclasses.replace(recipe, schedule=dataclasses.replace(recipe.schedule, **rates))
    config = RunConfig(
        network=network,
        options=network_options(network, options),
        dataset=name,
        data_dir=options.data_dir,
        image_size=options.image_size,
        only=None if options.only is None else tuple(options.only),
        skip_corrupt=bool(options.skip_corrupt),
        recipe=recipe,
        precision=options.precision or default_precision(),
        seed=options.seed or 0,
        deterministic=bool(options.deterministic),
        devices=1 if options.distribute is None else options.distribute,
        sync_batch_norm=bool(options.sync_batch_norm),
    )
    choose_threads(config)
    dataset = config.load_dataset()
    steps = options.steps
    if options.epochs is not None:
        steps = options.epochs * dataset.train.steps_per_epoch(recipe.batch_size)
    if steps is not None:
        config = dataclasses.replace(config, recipe=recipe.with_steps(steps))
    return config, dataset


def _refuse_changes(options: argparse.Namespace) -> None:
    """Reject options that would change the configuration of a resumed run."""
    allowed = {"command", "debug", "resume", "out", "data_dir"}
    for key, value in vars(options).items():
        if key not in allowed and value is not None:
            raise InputError(f"a resumed run keeps its configuration; leave out {option(key, value)}")
