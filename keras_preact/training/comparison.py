"""Training several networks alike, into one folder: what `make demo` does."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import keras

from keras_preact.errors import InputError
from keras_preact.plots import draw_curves
from keras_preact.training.distribute import check_devices
from keras_preact.training.runs import METRICS, RunFolder, environment
from keras_preact.training.trainer import Diverged, Interrupted, RunConfig, build_model, check_fits, resume, start

Callbacks = Callable[[str, RunConfig], Sequence[keras.callbacks.Callback]]


def compare(
    configs: dict[str, RunConfig], out: str | Path, callbacks: Callbacks = lambda name, config: ()
) -> RunFolder:
    """Train each configuration into a run folder of its own below `out`, and draw their curves together.

    Args:
        configs: by the name of their subfolder; all on the same data.
        out: the folder; must not exist, or be empty.
        callbacks: makes the Keras callbacks of each run.

    Returns:
        The folder, with `run.json`, `metrics.csv` (a first column `run`), `curves.png`, and a run folder a name.

    Raises:
        InputError: bad configuration, data or folder; nothing is left behind then.
        Interrupted: a signal asked to stop; `resume_comparison` goes on.
    """
    RunFolder.check_free(out)
    dataset = next(iter(configs.values())).load_dataset()
    for config in configs.values():  # refuses what `start` would, before anything is made
        check_devices(config.devices)
        check_fits(config, dataset)
        build_model(config, dataset)
    folder = RunFolder.create(out)
    folder.update_record(
        kind="comparison",
        runs={name: config.to_dict() for name, config in configs.items()},
        environment=environment(),
    )
    return _go_on(folder, callbacks)


def resume_comparison(path: str | Path, callbacks: Callbacks = lambda name, config: ()) -> RunFolder:
    """Go on with a comparison that was stopped: with the run that was going on, then with those that had not begun.

    Args:
        path: the folder that `compare` made.
        callbacks: makes the Keras callbacks of each run.

    Raises:
        InputError: no comparison, or one that is finished.
        Interrupted: a signal asked to stop again.
    """
    folder = RunFolder.open(path)
    record = folder.record()
    if record.get("kind") != "comparison":
        raise InputError(f"{path} holds no comparison; resume a training with `train --resume {path}`")
    if record["status"] == "finished":
        raise InputError(f"{path} is finished; see it with `evaluate {path}`, or compare into another folder")
    return _go_on(folder, callbacks)


def _go_on(folder: RunFolder, callbacks: Callbacks) -> RunFolder:
    """Run what is not finished, and put the results together."""
    configs = {name: RunConfig.from_dict(data) for name, data in folder.record()["runs"].items()}
    folder.update_record(status="running")
    try:
        runs = {
            name: _finished(folder.path / name, config, callbacks(name, config)) for name, config in configs.items()
        }
    except Interrupted as stop:
        folder.update_record(status="interrupted")
        raise Interrupted(stop.signal_number, stop.step, folder.path) from None
    except Diverged:
        folder.update_record(status="diverged")
        raise
    with open(folder.metrics_path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *METRICS])
        for name, run in runs.items():
            with open(run.metrics_path, newline="", encoding="utf-8") as rows:
                writer.writerows([name, *row] for row in list(csv.reader(rows))[1:])
    records = {name: run.record() for name, run in runs.items()}
    unit = next(iter(runs.values())).unit()
    draw_curves({name: run.metrics() for name, run in runs.items()}, folder.curves_path, unit)
    folder.update_record(
        status="finished",
        results={name: record["result"] for name, record in records.items()},
        seconds=round(sum(record["seconds"] for record in records.values()), 1),
    )
    return folder


def _finished(path: Path, config: RunConfig, callbacks: Sequence[keras.callbacks.Callback]) -> RunFolder:
    """Return a run of a comparison, finished: it was, or it goes on, or it begins."""
    run = RunFolder(path)
    if not run.exists():
        return start(config, path, callbacks=callbacks)
    return run if run.record()["status"] == "finished" else resume(path, callbacks=callbacks)


def orders(config: RunConfig) -> dict[str, RunConfig]:
    """Return two copies of a configuration, one for each order: `original` and `full_preactivation`.

    >>> list(orders(RunConfig(options={"depth": 20})))
    ['original', 'full_preactivation']
    """
    return {
        placement: dataclasses.replace(config, options={**config.options, "placement": placement})
        for placement in ("original", "full_preactivation")
    }
