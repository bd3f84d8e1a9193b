"""Training several networks alike and in turns, into one folder: what `make demo` does."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import keras

from keras_preact.errors import Diverged, InputError, Interrupted, WriteError, as_command
from keras_preact.files import writing
from keras_preact.training.build import build_model
from keras_preact.training.callbacks import StopRequest, handles_signals
from keras_preact.training.config import RunConfig
from keras_preact.training.distribute import check_devices
from keras_preact.training.provenance import environment
from keras_preact.training.runs import METRICS, RunFolder
from keras_preact.training.trainer import check_fits, epochs, resuming, starting

Callbacks = Callable[[str, RunConfig], Sequence[keras.callbacks.Callback]]


def compare(
    configs: dict[str, RunConfig], out: str | Path, callbacks: Callbacks = lambda name, config: ()
) -> RunFolder:
    """Train several configurations in turns, an epoch each, and draw their curves together.

    Each run is what `start` makes of its configuration; they only take turns, so that they can be watched side by side.

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
    """Go on with a comparison that was stopped, the run with the fewest steps first.

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
        raise InputError(f"{path} holds no comparison; resume a training with {as_command('train --resume', path)}")
    if record["status"] == "finished":
        raise InputError(f"{path} is finished; {as_command('evaluate', path)} shows it; compare into another folder")
    return _go_on(folder, callbacks)


def _go_on(folder: RunFolder, callbacks: Callbacks) -> RunFolder:
    """Run what is not finished, and put the results together."""
    configs = {name: RunConfig.from_dict(data) for name, data in folder.record()["runs"].items()}
    with folder.held():
        folder.update_record(status="running")
        try:
            _put_together(folder, _in_turns(folder, configs, callbacks))
        except BaseException as error:
            with suppress(OSError):
                folder.update_record(status="diverged" if isinstance(error, Diverged) else "interrupted")
            if isinstance(error, Interrupted):
                raise Interrupted(error.signal_number, error.step, folder.path) from None
            if isinstance(error, WriteError):
                error.run = folder.path
            raise
    return folder


def _put_together(folder: RunFolder, runs: dict[str, RunFolder]) -> None:
    """Write the metrics of all runs into one file, draw their curves together, and write their results."""
    with writing(folder.metrics_path), open(folder.metrics_path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *METRICS])
        for name, run in runs.items():
            with open(run.metrics_path, newline="", encoding="utf-8") as rows:
                writer.writerows([name, *row] for row in list(csv.reader(rows))[1:])
    records = {name: run.record() for name, run in runs.items()}
    unit = next(iter(runs.values())).unit()
    folder.write_curves({in_words(name): run.metrics() for name, run in runs.items()}, unit)
    folder.update_record(
        status="finished",
        results={name: record["result"] for name, record in records.items()},
        seconds=round(sum(record["seconds"] for record in records.values()), 1),
    )


def _in_turns(folder: RunFolder, configs: Mapping[str, RunConfig], callbacks: Callbacks) -> dict[str, RunFolder]:
    """Train an epoch of the run with the fewest steps until all are finished; return their folders."""
    runs = {name: RunFolder(folder.path / name) for name in configs}
    begun = {name: run.record() if run.exists() else {} for name, run in runs.items()}
    steps = {name: record.get("step", 0) for name, record in begun.items() if record.get("status") != "finished"}
    asked = StopRequest()
    with handles_signals(asked), ExitStack() as left:
        trainings = {}
        for name in steps:
            watching, path = callbacks(name, configs[name]), runs[name].path
            trainings[name] = (
                resuming(path, epochs, callbacks=watching, asked=asked)
                if begun[name]
                else starting(configs[name], path, epochs, callbacks=watching, asked=asked)
            )
            left.callback(trainings[name].close)  # where another ends with an error: its record says interrupted
        while steps:
            name = min(steps, key=lambda name: steps[name])
            try:
                steps[name] = next(trainings[name])
            except StopIteration as end:
                runs[name] = end.value
                del steps[name]
    return runs


def in_words(name: str) -> str:
    """Return what figures and tables call a run of a comparison.

    >>> in_words("full_preactivation")
    'full pre-activation'
    """
    return name.replace("_", " ").replace("preactivation", "pre-activation")


def orders(config: RunConfig) -> dict[str, RunConfig]:
    """Return two copies of a configuration, one for each order: `original` and `full_preactivation`.

    >>> list(orders(RunConfig(options={"depth": 20})))
    ['original', 'full_preactivation']
    """
    return {
        placement: dataclasses.replace(config, options={**config.options, "placement": placement})
        for placement in ("original", "full_preactivation")
    }
