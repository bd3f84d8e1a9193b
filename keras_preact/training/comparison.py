"""Training several networks side by side into one folder, as `make demo` does."""

from __future__ import annotations

import csv
import dataclasses
import io
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path, PureWindowsPath
from typing import Any

import keras

from keras_preact.errors import Diverged, InputError, Interrupted, WriteError, as_command
from keras_preact.files import PARTIAL, write_atomically
from keras_preact.training.build import build_model
from keras_preact.training.callbacks import StopRequest, as_callbacks, handles_signals
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.distribute import check_devices
from keras_preact.training.evaluation import check_one_source, data_of
from keras_preact.training.parts import epochs
from keras_preact.training.provenance import environment
from keras_preact.training.runs import METRICS, RunFolder
from keras_preact.training.trainer import Training, check_fits, resuming, starting, unrolled_if_synchronized, with_data

Callbacks = Callable[[str, RunConfig], Sequence[keras.callbacks.Callback]]


def compare(
    configs: dict[str, RunConfig],
    out: str | Path,
    callbacks: Callbacks = lambda name, config: (),
    dataset: Dataset | None = None,
    together: bool = False,
) -> RunFolder:
    """Train several configurations epoch by epoch, and draw their curves together.

    You can watch the runs side by side. Each run is the same as with `start`. If one diverges, the others go on; its
    record says at which step it ended.

    Args:
        configs: configurations by the name of their subfolder, such as "original"; all on the same data, image size and
            classes.
        out: the folder; must not exist, or must be empty.
        callbacks: a function of (name, configuration) that returns new Keras callbacks for a run. Default: none.
        dataset: the data of all runs, as in `start`. Default: those that the configurations name.
        together: train an epoch of all runs at the same time, each in a thread of its own, instead of in turns. This is
            faster if one run leaves cores idle (`has_idle_cores`), and needs the memory of all runs. The records then
            have no `cpu_seconds`, which cannot be told apart in one process, and `seconds` of the comparison are those
            of the longest run. Device scopes and other settings of the calling thread do not reach the runs. A second
            Ctrl-C takes effect after the current step. On one device only. Default `False`.

    Returns:
        The folder, with `run.json`, `metrics.csv` (first column `run`), `curves.png`, and one run folder per name.

    Raises:
        InputError: no or bad configurations, different data, bad data or folder, `together` on several devices; no
            folder is created.
        Diverged: every run diverged.
        Interrupted: a signal asked to stop; continue with `resume_comparison`.
    """
    if not configs:
        raise InputError("there are no configurations to compare; pass at least one")
    _check_callbacks(callbacks)
    RunFolder.check_free(out)
    for name in configs:
        _check_name(name, RunFolder(out))
    first = next(iter(configs.values()))
    for name, config in configs.items():
        check_devices(config.devices)  # before loading the data
        if together and config.devices > 1:
            raise InputError(f"{name} is trained on {config.devices} devices; train such runs in turns, together=False")
        if different := [key for key in _DATA if getattr(config, key) != getattr(first, key)]:
            raise InputError(
                f"{name} has a different {different[0]} from {next(iter(configs))}; a comparison needs the same data"
            )
    _, data = with_data(first, dataset)
    named, models = {}, {}
    for name, given in configs.items():  # raise the errors of `start` before creating the folder
        config = named[name] = with_data(given, data)[0]
        check_fits(config, data)
        model = build_model(unrolled_if_synchronized(config), data)
        if config.devices == 1:  # on several devices, the weights are created where the run is trained
            models[name] = model
    about = environment()  # takes a moment, so before the folder is taken
    folder = RunFolder.create(out)
    with folder.held():
        folder.update_record(
            kind="comparison",
            status="running",
            together=together,
            runs={name: config.to_dict() for name, config in named.items()},
            environment=about,
        )
        return _train(folder, callbacks, data, models)


def resume_comparison(
    path: str | Path,
    callbacks: Callbacks = lambda name, config: (),
    dataset: Dataset | None = None,
    data_dir: str | None = None,
) -> RunFolder:
    """Continue a comparison that was stopped, together or in turns, as it began.

    Args:
        path: the folder that `compare` created.
        callbacks: as in `compare`.
        dataset: the data, if the runs were trained on arrays.
        data_dir: the data's current folder, if it has moved.

    Returns:
        The folder, as in `compare`.

    Raises:
        InputError: the folder contains no comparison, or one that is finished or in which every run diverged; the data
            are missing or have changed; or `dataset` and `data_dir` are both passed.
        RunLocked: (an InputError) another process is training the comparison.
        Diverged: every run diverged.
        Interrupted: a signal asked to stop again.
    """
    _check_callbacks(callbacks)
    check_one_source(dataset, data_dir)
    folder = RunFolder.open(path)
    record = folder.record()
    if record.get("kind") != "comparison":
        raise InputError(
            f"{path} contains no comparison; resume a single run with {as_command('train --resume', path)}"
        )
    if record.get("status") == "finished":  # absent if a kill prevented the second record of an older version
        raise InputError(f"{path} is finished; view it with {as_command('evaluate', path)}, or use another folder")
    if record.get("status") == "diverged":
        raise InputError(f"every run in {path} diverged; start again in another folder, with a lower learning rate")
    with folder.held():
        return _train(folder, callbacks, _data(folder, data_dir) if dataset is None else dataset, {})


def _data(folder: RunFolder, data_dir: str | None) -> Dataset:
    """Load the data of a comparison. Before a first run has recorded them, they can only be those that it names."""
    configs = folder.record()["runs"]
    started = [run for name in configs if (run := RunFolder(folder.path / name)).exists()]
    if started:
        return data_of(started[0], data_dir)
    return RunConfig.from_dict(next(iter(configs.values()))).load_dataset(data_dir)


def _check_name(name: object, folder: RunFolder) -> None:
    """Raise InputError unless a run of a comparison can have this name: that of a new folder in its folder."""
    is_one_part = isinstance(name, str) and name.isprintable() and PureWindowsPath(name).name == name
    if not is_one_part or name in ("", "..") or str(name).lower() in folder.own_names() or PARTIAL in str(name):
        raise InputError(
            f"a run of a comparison cannot be named {name!r}; use the name of a subfolder, such as 'original', other "
            f"than {', '.join(sorted(folder.own_names()))}"
        )


def _check_callbacks(callbacks: object) -> None:
    if not callable(callbacks):
        raise InputError("callbacks of a comparison must be a function of a run's name and configuration; pass one")


_DATA = ("dataset", "data_dir", "image_size", "only", "skip_corrupt")
"""Fields of a `RunConfig` that choose the data."""


def _train(folder: RunFolder, callbacks: Callbacks, dataset: Dataset, models: Mapping[str, keras.Model]) -> RunFolder:
    """Train the unfinished runs of a locked folder, and write the results of all."""
    record = folder.record()
    configs = {name: RunConfig.from_dict(data) for name, data in record["runs"].items()}
    together = record.get("together", False)  # earlier versions took turns
    folder.update_record(status="running")
    stop_request = StopRequest()
    try:
        with handles_signals(stop_request):
            runs = _train_by_epochs(folder, configs, callbacks, dataset, models, stop_request, together)
            _write_results(folder, runs, together)
    except BaseException as error:
        with suppress(OSError, InputError):  # report the original error
            folder.update_record(status="diverged" if isinstance(error, Diverged) else "interrupted")
        if isinstance(error, Interrupted):
            raise Interrupted(error.signal_number, error.step, folder.path) from None
        if isinstance(error, WriteError):
            error.run = folder.path
        raise
    if stop_request.signal_number:  # it came after the last step: pass it on to the caller
        signal.raise_signal(stop_request.signal_number)
    return folder


def _write_results(folder: RunFolder, runs: dict[str, RunFolder], together: bool) -> None:
    """Write the metrics, curves and results of all runs."""
    finished = [name for name, run in runs.items() if run.record()["status"] == "finished"]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["run", *METRICS])
    for name, run in runs.items():
        if not run.metrics_path.exists():  # it diverged in its first epoch
            continue
        with open(run.metrics_path, newline="", encoding="utf-8") as lines:
            writer.writerows([name, *row] for row in list(csv.reader(lines))[1:])
    write_atomically(folder.metrics_path, table.getvalue())
    records = {name: run.record() for name, run in runs.items()}
    unit = next(iter(runs.values())).unit()
    curves = {name: rows for name, run in runs.items() if (rows := run.metrics())}
    folder.write_curves(curves, unit)
    seconds = [record["seconds"] for record in records.values()]
    folder.update_record(
        status="finished" if finished else "diverged",
        results={name: records[name]["result"] for name in finished},
        seconds=round(max(seconds) if together else sum(seconds), 1),
    )


def _train_by_epochs(
    folder: RunFolder,
    configs: Mapping[str, RunConfig],
    callbacks: Callbacks,
    dataset: Dataset,
    models: Mapping[str, keras.Model],
    stop_request: StopRequest,
    together: bool,
) -> dict[str, RunFolder]:
    """Train the run with the fewest steps for an epoch, or all together, until all have ended; return their folders.

    `models` has the models of new runs that were built already.

    Raises:
        Diverged: every run diverged.
    """
    runs = {name: RunFolder(folder.path / name) for name in configs}
    records = {name: run.record() if run.exists() else {} for name, run in runs.items()}
    diverged = {name for name, record in records.items() if record.get("status") == "diverged"}
    steps = {
        name: record.get("step", 0)
        for name, record in records.items()
        if record.get("status") != "finished" and name not in diverged
    }
    chosen = {name: as_callbacks(callbacks(name, configs[name])) for name in steps}
    if together:
        _check_separate(chosen)
    with ExitStack() as stack:
        trainings: dict[str, Training] = {}
        for name in steps:
            model = models.get(name)
            if together and model is None:
                model = build_model(configs[name], dataset)  # here, because threads share the random state
            options: Any = {"callbacks": chosen[name], "stop_request": stop_request, "model": model}
            if records[name]:
                trainings[name] = resuming(runs[name].path, epochs, dataset, **options)
            else:
                options["counts_cpu"] = not together
                trainings[name] = starting(configs[name], runs[name].path, epochs, dataset, **options)
            stack.callback(_close, trainings[name])  # if another run fails, this one's record says "interrupted"
        threads = stack.enter_context(ThreadPoolExecutor(len(configs))) if together else None
        while steps:
            at_end = [name for name in steps if steps[name] == configs[name].recipe.steps]
            if threads and not at_end:
                ends = _train_together({name: trainings[name] for name in steps}, threads, stop_request)
            else:  # a run that ends draws its curves, which matplotlib cannot do in two threads
                name = min(at_end or steps, key=lambda name: steps[name])
                ends = {name: _train_epoch(trainings[name])}
            for name, end in ends.items():
                if isinstance(end, int):
                    steps[name] = end
                    continue
                del steps[name]
                if isinstance(end, RunFolder):
                    runs[name] = end
                else:
                    diverged.add(name)
                    if len(diverged) == len(runs):
                        raise end
    return runs


End = int | RunFolder | Diverged
"""The steps of a run after an epoch; its folder if it has ended, or how it diverged."""


def _train_epoch(training: Training) -> End:
    try:
        return next(training)
    except StopIteration as end:
        return end.value
    except Diverged as end:
        return end


def _train_together(trainings: Mapping[str, Training], threads: Executor, stop_request: StopRequest) -> dict[str, End]:
    """Train an epoch of each run in a thread of its own. If one fails, the others stop after their next step."""
    futures = {name: threads.submit(_train_epoch, training) for name, training in trainings.items()}
    while wait(futures.values(), timeout=0.1).not_done:  # between two waits, this thread handles signals
        if any(future.done() and future.exception() for future in futures.values()):
            stop_request.signal_number = stop_request.signal_number or signal.SIGTERM
    faults = [fault for future in futures.values() if (fault := future.exception())]
    if faults:
        raise next((fault for fault in faults if not isinstance(fault, Interrupted)), faults[0])
    return {name: future.result() for name, future in futures.items()}


def _close(training: Training) -> None:
    with suppress(ValueError):  # its thread has not ended, and will stop after its step
        training.close()


def _check_separate(callbacks: Mapping[str, Sequence[keras.callbacks.Callback]]) -> None:
    """Raise InputError if runs in different threads share a callback, which belongs to one model at a time."""
    seen: set[int] = set()
    for several in callbacks.values():
        for callback in several:
            if id(callback) in seen:
                raise InputError(
                    f"a {type(callback).__name__} is the callback of two runs that train at the same time; create one "
                    "for each run"
                )
        seen.update(map(id, several))


def orders(config: RunConfig) -> dict[str, RunConfig]:
    """Return two copies of a configuration, with the placements `original` and `full_preactivation`.

    >>> list(orders(RunConfig(options={"depth": 20})))
    ['original', 'full_preactivation']
    """
    return {
        placement: dataclasses.replace(config, options={**config.options, "placement": placement})
        for placement in ("original", "full_preactivation")
    }
