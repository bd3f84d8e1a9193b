"""Training a network by a recipe into a run folder, and resuming a run."""

from __future__ import annotations

import dataclasses
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from keras_preact.data import feed, original_errors, part_of
from keras_preact.data.splits import ARRAYS
from keras_preact.errors import Diverged, InputError, WriteError, as_command, first_line
from keras_preact.files import written_aside
from keras_preact.layers.graph import is_ours
from keras_preact.models import get_entry
from keras_preact.training.build import build_model, is_mirrored
from keras_preact.training.callbacks import (
    Recorder,
    RunFolderCallback,
    StopRequest,
    Stopwatch,
    as_callbacks,
    handles_signals,
    tensorboard_callbacks,
)
from keras_preact.training.checkpoints import Checkpoint, save_model
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.distribute import (
    all_reduce_max,
    check_devices,
    check_shares,
    collective_errors,
    device_scope,
    is_chief,
    process,
)
from keras_preact.training.evaluation import TEST_BATCH, check_one_source, check_recorded, data_of
from keras_preact.training.parts import Cut, Part, epochs, parts
from keras_preact.training.provenance import environment
from keras_preact.training.recorded import check_recordable
from keras_preact.training.runs import ReadOnlyRunFolder, RunFolder, metrics_summary
from keras_preact.training.sizes import Sizes, check_scales, training_flops


@contextmanager
def _in_training(folder: RunFolder, shared_request: StopRequest | None) -> Iterator[StopRequest]:
    """Handle signals during a run; if it does not finish, record the status "interrupted".

    With a shared request (runs that take turns), the caller handles the signals.
    """
    stop_request = shared_request or StopRequest()
    try:
        with nullcontext() if shared_request else handles_signals(stop_request):
            yield stop_request
    except Diverged:
        raise
    except BaseException as error:
        with suppress(OSError, InputError):  # report the original error
            if folder.record_path.exists() and folder.record().get("status") != "finished":
                if isinstance(error, WriteError):
                    error.run = folder.path
                folder.update_record(status="interrupted")
        raise
    if stop_request.signal_number and not shared_request:  # it came after the last step: pass it on to the caller
        signal.raise_signal(stop_request.signal_number)


def start(
    config: RunConfig,
    out: str | Path,
    dataset: Dataset | None = None,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] = (),
) -> RunFolder:
    """Train a new run into a folder.

    Args:
        config: the run's configuration.
        out: the folder; must not exist, or must be empty.
        dataset: the data, for example from arrays. Default: the data that `config` names. `only` and `image_size` of
            `config` do not change data that you pass: they must fit.
        callbacks: one or more Keras callbacks, for example a progress bar. They should only observe the run: it calls
            `fit` several times, which resets their state, and stopping it early is an error. Weights that they change
            at the end of `fit` are set back.

    Returns:
        The finished run's folder. Of several processes, only the first writes it.

    Raises:
        InputError: bad configuration, data or folder; no folder is created. Or a callback stopped the training before
            the last step; then the run can be resumed.
        RunLocked: (an InputError) another process is training this run.
        Interrupted: a signal asked to stop; the run can be resumed.
        Diverged: the loss or a weight became NaN or infinite.
        WriteError: (an OSError) the disk is full or the folder not writable. Its `run` is the folder to resume.

    Example: two steps on some of the bundled images, in a temporary folder.

    >>> import tempfile
    >>> from keras_preact.training import Recipe, evaluate
    >>> from keras_preact.data import from_arrays
    >>> images, labels = RunConfig().load_dataset().train.batch(np.arange(64))
    >>> data = from_arrays(images, labels, images, labels)
    >>> recipe = Recipe("mine", steps=2, batch_size=32)
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     run = start(RunConfig(options={"depth": 8}, recipe=recipe), f"{runs}/mine", data)
    ...     run.record()["status"], run.metrics()[-1]["step"], sorted(evaluate(run.path, data))
    ('finished', 2.0, ['test_error', 'test_loss'])
    """
    return _run_to_end(starting(config, out, parts, dataset, callbacks))


Training = Generator[int, None, RunFolder]
"""A run that is trained part by part: yields the steps done after each part, and returns the finished folder."""


def _run_to_end(training: Training) -> RunFolder:
    while True:
        try:
            next(training)
        except StopIteration as end:
            return cast(RunFolder, end.value)


def starting(
    config: RunConfig,
    out: str | Path,
    cut: Cut,
    dataset: Dataset | None = None,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] = (),
    stop_request: StopRequest | None = None,
    model: keras.Model | None = None,
    counts_cpu: bool = True,
) -> Training:
    """Train a new run part by part.

    Args:
        config, out, dataset, callbacks: as in `start`.
        cut: `parts` or `epochs`.
        stop_request: shared by several runs; the caller handles signals. Default: signals are handled here.
        model: the run's model from `build_model`, for a run on one device. Default: it is built here.
        counts_cpu: whether to record `cpu_seconds`, those of the whole process.
    """
    with collective_errors():
        callbacks = as_callbacks(callbacks)
        _folder_class().check_free(out)
        check_devices(config.devices)  # before loading data
        config, dataset = with_data(config, dataset)
        config = unrolled_if_synchronized(config)
        check_fits(config, dataset)
    scope = device_scope(config.devices)
    with ExitStack() as stack:
        with scope():
            model = build_model(config, dataset) if model is None else model
        with collective_errors():
            folder = _folder_class().create(out)
            stack.enter_context(folder.held())
        stop_request = stack.enter_context(_in_training(folder, stop_request))
        first = _first_record(config, dataset, model)  # takes a moment, which is not training time
        stopwatch = Stopwatch(counts_cpu=counts_cpu)
        folder.update_record(**first, **stopwatch.times)
        run = _Run(config, folder, dataset, model, callbacks, stop_request, scope)
        yield from run.train(cut, stopwatch)
        return run.finish()


def with_data(config: RunConfig, dataset: Dataset | None) -> tuple[RunConfig, Dataset]:
    """Return a configuration that names its data, and the data: those passed, or else those that it names."""
    if dataset is None:
        return config, config.load_dataset()
    config.check_selection(dataset)
    actual = dataset.name if dataset.source == ARRAYS else dataset.source
    if config.dataset != actual:
        config = dataclasses.replace(config, dataset=actual, data_dir=None)
    return dataclasses.replace(config, **getattr(dataset, "selection", {})), dataset  # sequences have none


def unrolled_if_synchronized(config: RunConfig) -> RunConfig:
    """Return the configuration, unrolled if its devices synchronize batch norms, which rolled stacks cannot."""
    if config.sync_batch_norm and is_mirrored(config) and get_entry(config.network).has_batch_norm:
        return dataclasses.replace(config, options={"rolled": False, **config.options})
    return config


def check_fits(config: RunConfig, dataset: Dataset) -> None:
    """Raise InputError if the recipe does not fit the data, a batch cannot be shared equally among the devices, or
    `run.json` cannot hold the configuration or the description of the data.
    """
    config.check_recordable()
    check_recordable("data set's", _about(dataset))
    dataset.train.steps_per_epoch(config.recipe.batch_size)
    if config.recipe.scales_images:
        check_scales(config.recipe, dataset)
    check_shares(config.devices, config.recipe.batch_size, len(dataset.test))


def _about(dataset: Dataset) -> dict[str, Any]:
    """Return what run.json says about the data, without their fingerprint."""
    return {"name": dataset.name, "source": dataset.source, **dataset.facts()}


def _first_record(config: RunConfig, dataset: Dataset, model: keras.Model) -> dict[str, Any]:
    """Return the contents of run.json before the first step."""
    return {
        "kind": "training",
        "status": "running",
        "config": config.to_dict(),
        "data": {**_about(dataset), "sha256": dataset.fingerprint()},
        "model": {
            "name": model.name,
            **get_entry(config.network).facts(config.options),
            "trainable_parameters": int(sum(np.prod(v.shape) for v in model.trainable_variables)),
        },
        "training_flops": training_flops(config.recipe, dataset, model),
        "environment": environment(),
        "step": 0,
        "steps": config.recipe.steps,
    }


def _folder_class() -> type[RunFolder]:
    return RunFolder if is_chief() else ReadOnlyRunFolder


def resume(
    path: str | Path,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] = (),
) -> RunFolder:
    """Resume a run from its newest checkpoint, as if it had never stopped.

    `run.json` records the environment of each part: the first in `environment`, the others in `resumed`, with the steps
    at which they started.

    Args:
        path: the run folder. If several processes train the run, all must be able to read it.
        dataset: the data, if the run was trained on arrays.
        data_dir: the data's current folder, if it has moved.
        callbacks: Keras callbacks, as in `start`. Those of earlier parts of the run are not stored: pass them again.

    Returns:
        The finished run's folder.

    Raises:
        InputError: there is no such run, it is finished, its checkpoints are missing, the data have changed, or
            `dataset` and `data_dir` are both passed.
        RunLocked: (an InputError) another process is training the run.
        Interrupted: a signal asked to stop again.
        Diverged: the loss or a weight became NaN or infinite.

    Example: Ctrl-C after the first of two steps.

    >>> import signal, tempfile
    >>> from keras_preact.training import Interrupted, Recipe
    >>> from keras_preact.data import from_arrays
    >>> images, labels = RunConfig().load_dataset().train.batch(np.arange(64))
    >>> data = from_arrays(images, labels, images, labels)
    >>> config = RunConfig(options={"depth": 8}, recipe=Recipe("mine", steps=2, batch_size=32))
    >>> ctrl_c = lambda batch, logs: signal.raise_signal(signal.SIGINT)
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     try:
    ...         start(config, f"{runs}/mine", data, [keras.callbacks.LambdaCallback(on_train_batch_end=ctrl_c)])
    ...     except Interrupted as stop:
    ...         stop.step, resume(stop.path, data).record()["status"]
    (1, 'finished')
    """
    return _run_to_end(resuming(path, parts, dataset, data_dir, callbacks))


def resuming(
    path: str | Path,
    cut: Cut,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] = (),
    stop_request: StopRequest | None = None,
    model: keras.Model | None = None,
) -> Training:
    """Resume a run part by part; arguments as in `resume` and `starting`."""
    with ExitStack() as stack:
        with collective_errors():
            callbacks = as_callbacks(callbacks)
            check_one_source(dataset, data_dir)
            folder = _folder_class().open(path)
            _check_unfinished(folder)
            stack.enter_context(folder.held())
            record = _check_unfinished(folder)  # another process may have changed it before the lock
            config = RunConfig.from_dict(record["config"])
            dataset = data_of(folder, data_dir) if dataset is None else check_recorded(dataset, folder)
        scope = device_scope(config.devices)
        with scope():
            model = build_model(config, dataset) if model is None else model
            checkpoint = Checkpoint(folder.checkpoints_path, model)
            step = _restore(checkpoint, record, folder.path)
        rows = checkpoint.notes.get("metrics", [])
        # The machine or the versions may have changed.
        resumed = [*record.get("resumed", []), {"step": step, **environment()}]
        previous = resumed[-2] if len(resumed) > 1 else record.get("environment", {})
        _warn_if_onednn_changed(folder, previous, resumed[-1])
        stop_request = stack.enter_context(_in_training(folder, stop_request))
        summary = metrics_summary(rows)
        folder.update_record(status="running", step=step, diverged=None, resumed=resumed, metrics=summary)
        folder.write_metrics(rows)  # without the epochs after the checkpoint, which will be trained again
        run = _Run(config, folder, dataset, model, callbacks, stop_request, scope)
        # The times at the checkpoint: after it, the run may have gone on until it was killed or diverged.
        times = checkpoint.notes.get("record", record) if step else None
        yield from run.train(cut, Stopwatch(times, "cpu_seconds" in record), step, rows)
        return run.finish()


def _warn_if_onednn_changed(folder: RunFolder, previous: dict[str, Any], now: dict[str, Any]) -> None:
    """Warn if oneDNN is now on and was off in the previous part of the run, or vice versa."""
    if {previous.get("onednn"), now.get("onednn")} == {True, False}:
        before, after = ("on", "off") if previous["onednn"] else ("off", "on")
        warnings.warn(
            f"oneDNN was {before} when {folder.path} was trained and is {after} now, which changes the last bits of "
            f"results; to resume with the same setting, set TF_ENABLE_ONEDNN_OPTS={int(previous['onednn'])} before "
            "TensorFlow is imported",
            stacklevel=3,
        )


def _check_unfinished(folder: RunFolder) -> dict[str, Any]:
    """Return the record of a training run that is not finished."""
    record, path = folder.training("data", "step", "seconds"), folder.path
    if record["status"] == "finished":
        view = f"view it with {as_command('evaluate', path)}, or " if folder.model_path.exists() else ""
        raise InputError(f"{path} is finished; {view}use another folder")
    return record


@dataclass(frozen=True)
class _Run:
    """One run: its configuration, folder, data and model. Call `train`, then `finish`."""

    config: RunConfig
    folder: RunFolder
    dataset: Dataset
    model: keras.Model
    callbacks: Sequence[keras.callbacks.Callback]
    stop_request: StopRequest
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Opens the scope of the run's devices."""

    def train(
        self, cut: Cut, stopwatch: Stopwatch, step: int = 0, rows: Sequence[dict[str, float]] = ()
    ) -> Generator[int, None, None]:
        """Train from `step` to the end, one call of `fit` after the other; yield the steps done after each."""
        recipe = self.config.recipe
        recorder = self._recorder(step, stopwatch, rows)
        for callback in self.callbacks:
            if isinstance(callback, RunFolderCallback):
                callback.run_folder = self.folder
        # The recorder comes last: it raises to stop the run, and callbacks after it would miss the epoch.
        callbacks = [*self.callbacks, *tensorboard_callbacks(self.folder), recorder]
        steps_per_epoch, sizes = self.dataset.train.steps_per_epoch(recipe.batch_size), Sizes(self.dataset)
        if step % steps_per_epoch:
            recorder.preserve_metrics()
        if recipe.scales_images:  # the size of the images changes between calls of `fit`
            cut = epochs
        with self._recorded_end(stopwatch):
            for part in cut(step, recipe.steps, steps_per_epoch):
                scale = recipe.image_scale(part.first_epoch, recipe.epochs(steps_per_epoch))
                with self.scope():
                    self._fit(part, sizes.at(scale, self.model), callbacks)
                    recorder.set_back()
                if recorder.step != part.last_step:
                    raise InputError(
                        f"Keras ended an epoch after step {recorder.step:,} instead of {part.last_step:,}; unset "
                        "KERAS_MAX_EPOCHS and KERAS_MAX_STEPS_PER_EPOCH, and start the run again in another folder"
                    )
                with stopwatch.pause():
                    yield recorder.step
        self.folder.update_record(**stopwatch.times)

    def _recorder(self, step: int, stopwatch: Stopwatch, rows: Sequence[dict[str, float]]) -> Recorder:
        recipe = self.config.recipe
        order = self.dataset.train.train_batches(recipe.batch_size, self.config.seed)
        examples = (lambda s: order.indices(s).tolist()) if hasattr(order, "indices") else (lambda s: [])
        foreign = any(not is_ours(type(each)) for each in self.callbacks)
        recorder = Recorder(self.folder, self.stop_request, step, recipe, stopwatch, rows, examples, foreign)
        recorder.set_model(self.model)
        return recorder

    def _fit(self, part: Part, scaled: Dataset, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Call `fit` once, on the data at the size of its epochs."""
        config = self.config
        test_batch = max(TEST_BATCH // config.devices, 1) * config.devices
        batches = scaled.train.train_batches(config.recipe.batch_size, config.seed, part.first_step)
        tests = scaled.test.test_batches(test_batch)
        with original_errors(batches, tests):
            self.model.fit(
                feed(part_of(batches, *process())),
                initial_epoch=part.first_epoch,
                epochs=part.last_epoch,
                steps_per_epoch=part.steps_per_epoch,
                validation_data=feed(part_of(tests, *process())),
                callbacks=list(callbacks),
                shuffle=False,  # `batches` defines the order
                verbose=0,
            )

    @contextmanager
    def _recorded_end(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Record a divergence, and name the probable cause if one of several processes fails."""
        try:
            yield
        except Diverged as error:
            diverged = {"step": error.step, "examples": error.examples}
            self.folder.update_record(status="diverged", diverged=diverged, **stopwatch.times)
            raise
        except (RuntimeError, ValueError) as error:
            if process()[1] == 1 or isinstance(error, InputError):
                raise
            raise InputError(
                f"training failed, probably because another of its processes ended ({first_line(error)}); "
                f"restart all of them with {as_command('train --resume', self.folder.path)}"
            ) from error

    def finish(self) -> RunFolder:
        """Save the model, record the result (that of the last epoch, as in the paper), and draw the curves."""
        folder = self.folder
        if not is_chief():
            return folder
        path = folder.model_path
        with written_aside(path, path.with_name("model.partial.keras")) as aside:  # Keras requires the suffix .keras
            save_model(self.model, aside)
        rows = folder.metrics()
        last = rows[-1]
        result = {key: last[key] for key in ("train_loss", "train_error", "test_loss", "test_error")}
        folder.update_record(status="finished", result=result)
        folder.write_curves({self.model.name: rows}, folder.unit())  # last: a fault in drawing must not cost the run
        return folder


def _restore(checkpoint: Checkpoint, record: dict[str, Any], path: Path) -> int:
    """Restore the newest checkpoint and return its step.

    Raises:
        InputError: the checkpoints are missing, their configuration differs from that in `record`, or the processes
            see different checkpoints.
    """
    with collective_errors():
        step = checkpoint.restore()
        if record["step"] and not step:
            raise InputError(
                f"{path} was trained for {record['step']:,} steps, but its folder {checkpoint.folder.name}/ contains "
                "no checkpoint; restore that folder, or start a new run"
            )
        config, trained_with = record["config"], checkpoint.notes.get("record", {}).get("config", {})
        changed = [key for key in {**config, **trained_with} if config.get(key) != trained_with.get(key)]
        if changed and checkpoint.files():
            raise InputError(
                f"the configuration in run.json differs from that of {checkpoint.folder} in {', '.join(changed)}; "
                "delete run.json and resume, which restores it, or start a new run"
            )
    if all_reduce_max(step) != -all_reduce_max(-step):
        raise InputError("the processes see different checkpoints; resume in a run folder that all of them share")
    return step
