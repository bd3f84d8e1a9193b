"""Training a network by a recipe, into a run folder; resuming it; evaluating it."""

from __future__ import annotations

import dataclasses
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from keras_preact.data import (
    SequenceDataset,
    as_input_errors,
    baselines,
    feed,
    part_of,
)
from keras_preact.errors import Diverged, InputError, WriteError, as_command
from keras_preact.files import written_aside
from keras_preact.models import (
    TRANSFORMERS,
)
from keras_preact.training.build import build_model, is_mirrored
from keras_preact.training.callbacks import Recorder, StopRequest, handles_signals, tensorboard_callbacks
from keras_preact.training.checkpoints import Checkpoint, save_model
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.distribute import (
    all_reduce_max,
    check_devices,
    check_shares,
    collective_errors,
    is_chief,
    on_devices,
    process,
)
from keras_preact.training.evaluation import TEST_BATCH, check_recorded, data_of
from keras_preact.training.provenance import environment
from keras_preact.training.runs import ReadOnlyRunFolder, RunFolder, described


@contextmanager
def _in_training(folder: RunFolder, asked: StopRequest | None) -> Iterator[StopRequest]:
    """Handle signals while a run is trained and finished, and have its record say so if it stops before its end.

    Where others train in turns with it, they share the request to stop, and who started them handles the signals.
    """
    is_shared, asked = asked is not None, asked or StopRequest()
    try:
        with nullcontext() if is_shared else handles_signals(asked):
            yield asked
    except Diverged:
        raise
    except BaseException as error:
        with suppress(OSError, InputError):  # the fault itself is what is told
            if folder.record_path.exists():
                if isinstance(error, WriteError):
                    error.run = folder.path
                folder.update_record(status="interrupted")
        raise
    if asked.signal_number and not is_shared:  # it came after the last step: whoever runs other runs is told
        signal.raise_signal(asked.signal_number)


def start(
    config: RunConfig,
    out: str | Path,
    dataset: Dataset | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> RunFolder:
    """Train from the beginning into a new run folder.

    Args:
        config: of the run.
        out: the folder; must not exist, or be empty.
        dataset: the data, where they come from arrays; default: what `config` names.
        callbacks: further Keras callbacks (progress bars, …), that watch: what state they have begins anew with each
            call of `fit`, of which a run has several.

    Returns:
        The finished run's folder. Of several processes, only the first writes it.

    Raises:
        InputError: bad configuration, data or folder, nothing is left behind then; or a callback has stopped the
            training before its last step, and the folder can be resumed.
        RunLocked: (an InputError) another process is training this run.
        Interrupted: a signal asked to stop; the folder can be resumed.

    Example: two steps on some of the bundled images, into a folder that is thrown away.

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
    return _ended(starting(config, out, parts, dataset, callbacks))


Training = Generator[int, None, RunFolder]
"""A run that is trained part by part: yields the number of steps done after each, and returns the finished folder."""


def _ended(training: Training) -> RunFolder:
    """Train to the end."""
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
    callbacks: Sequence[keras.callbacks.Callback] = (),
    asked: StopRequest | None = None,
) -> Training:
    """Do what `start` does, part by part.

    Args:
        config, out, dataset, callbacks: as in `start`.
        cut: `parts` or `epochs`.
        asked: the request to stop that several trainings share; default: signals are handled here.
    """
    with collective_errors():
        _folder_class().check_free(out)
        check_devices(config.devices)  # before data are loaded for a training that cannot be
        if dataset is None:
            dataset = config.load_dataset()
        elif config.dataset not in ("folder", dataset.name):  # the record is not to name data that it was not
            config = dataclasses.replace(config, dataset=dataset.name, data_dir=None)
        if config.sync_batch_norm and is_mirrored(config) and config.network not in TRANSFORMERS:
            # A loop does not exchange statistics between devices.
            config = dataclasses.replace(config, options={"rolled": False, **config.options})
        check_fits(config, dataset)
    with ExitStack() as hold:
        with on_devices(config.devices):
            model = build_model(config, dataset)
            with collective_errors():
                folder = _folder_class().create(out)
                hold.enter_context(folder.held())
            asked = hold.enter_context(_in_training(folder, asked))
            folder.update_record(**_first_record(config, dataset, model))
            seconds = yield from _fit(config, folder, dataset, model, callbacks, asked, cut)
        return _finish(folder, model, seconds)


def check_fits(config: RunConfig, dataset: Dataset) -> None:
    """Raise InputError where a batch is larger than the data, or cannot be shared among the devices."""
    dataset.train.steps_per_epoch(config.recipe.batch_size)
    check_shares(config.devices, config.recipe.batch_size, len(dataset.test))


def _first_record(config: RunConfig, dataset: Dataset, model: keras.Model) -> dict[str, Any]:
    """Return what run.json says of a run before its first step."""
    return {
        "kind": "training",
        "status": "running",
        "config": config.to_dict(),
        "data": {"name": dataset.name, **_facts(dataset), "sha256": dataset.fingerprint()},
        "model": {
            "name": model.name,
            **_profile(config),
            "trainable_parameters": int(sum(np.prod(v.shape) for v in model.trainable_variables)),
        },
        "environment": environment(),
        "step": 0,
        "steps": config.recipe.steps,
        "seconds": 0.0,
    }


def _profile(config: RunConfig) -> dict[str, str]:
    """Return whose network it is, where networks differ by that."""
    return {} if config.network in TRANSFORMERS else {"profile": config.options.get("profile", "paper")}


def _folder_class() -> type[RunFolder]:
    return RunFolder if is_chief() else ReadOnlyRunFolder


def _facts(dataset: Dataset) -> dict[str, Any]:
    if isinstance(dataset, SequenceDataset):
        return {
            "task": dataset.task,
            "shape": list(dataset.train.signature[0][0]),
            "target_shape": list(dataset.train.signature[1][0]),
            "vocabulary": len(dataset.vocabulary),
            "train_sequences": len(dataset.train),
            "test_sequences": len(dataset.test),
            "unit": dataset.unit,
            "baselines": baselines(dataset),
        }
    return {
        "classes": dataset.classes,
        **({"skipped": list(dataset.skipped)} if dataset.skipped else {}),
        "image_shape": list(dataset.image_shape),
        "train_images": len(dataset.train),
        "test_images": len(dataset.test),
    }


def resume(
    path: str | Path,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> RunFolder:
    """Go on with a run from its newest checkpoint, as if it had never stopped.

    `run.json` keeps what each part ran on: `environment` the first, `resumed` those after it, with their first steps.

    Args:
        path: the run folder; of several processes, all read it, so it stands where all of them can.
        dataset: the data, where they came from arrays.
        data_dir: where the data are now, if they have moved.
        callbacks: further Keras callbacks.

    Raises:
        InputError: no such run, a run that is finished, one whose checkpoints are gone, or other data than it began
            with.
        RunLocked: (an InputError) another process is training it.
        Interrupted: a signal asked to stop again.

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
    return _ended(resuming(path, parts, dataset, data_dir, callbacks))


def resuming(
    path: str | Path,
    cut: Cut,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    asked: StopRequest | None = None,
) -> Training:
    """Do what `resume` does, part by part; `cut` and `asked` as in `starting`."""
    with ExitStack() as hold:
        with collective_errors():
            folder = _folder_class().open(path)
            _check_unfinished(folder)
            hold.enter_context(folder.held())
            record = _check_unfinished(folder)  # as it is now that nobody else writes it
            config = RunConfig.from_dict(record["config"])
            dataset = data_of(folder, data_dir) if dataset is None else check_recorded(dataset, folder)
        with on_devices(config.devices):
            model = build_model(config, dataset)
            checkpoint = Checkpoint(folder.checkpoints_path, model)
            step = _restored(checkpoint, record, folder.path)
            rows = checkpoint.notes.get("metrics", [])
            # It may be another machine now, or another version of all this.
            resumed = [*record.get("resumed", []), {"step": step, **environment()}]
            _say_other_onednn(folder, resumed[-2] if len(resumed) > 1 else record.get("environment", {}), resumed[-1])
            asked = hold.enter_context(_in_training(folder, asked))
            folder.update_record(status="running", diverged=None, resumed=resumed, metrics=described(rows))
            folder.write_metrics(rows)  # those of the epochs after the step come again
            seconds = yield from _fit(
                config, folder, dataset, model, callbacks, asked, cut, step, record["seconds"], rows
            )
        return _finish(folder, model, seconds)


def _say_other_onednn(folder: RunFolder, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warn where a part of a run computes with oneDNN and the part before it did not, or vice versa."""
    if {before.get("onednn"), now.get("onednn")} == {True, False}:
        warnings.warn(
            f"{folder.path} was trained with oneDNN {'on' if before['onednn'] else 'off'} and goes on with it "
            f"{'on' if now['onednn'] else 'off'}: results differ in their last bits; to go on as before, set "
            f"TF_ENABLE_ONEDNN_OPTS={int(before['onednn'])} before TensorFlow is imported",
            stacklevel=3,
        )


def _check_unfinished(folder: RunFolder) -> dict[str, Any]:
    """Return the record of a run, if it is a training that can go on."""
    record, path = folder.training("data", "step", "seconds"), folder.path
    if record["status"] == "finished":
        raise InputError(f"{path} is finished; {as_command('evaluate', path)} shows it; train into another folder")
    return record


def _fit(
    config: RunConfig,
    folder: RunFolder,
    dataset: Dataset,
    model: keras.Model,
    callbacks: Sequence[keras.callbacks.Callback],
    asked: StopRequest,
    cut: Cut,
    step: int = 0,
    seconds: float = 0.0,
    rows: Sequence[dict[str, float]] = (),
) -> Generator[int, None, float]:
    """Train from `step` on, to the end; return the seconds that the run took, those before included."""
    order = dataset.train.train_batches(config.recipe.batch_size, config.seed)
    examples = (lambda s: order.indices(s).tolist()) if hasattr(order, "indices") else (lambda s: [])
    recorder = Recorder(folder, asked, step, config.recipe, seconds, rows, examples)
    recorder.set_model(model)
    steps_per_epoch = dataset.train.steps_per_epoch(config.recipe.batch_size)
    if step % steps_per_epoch:
        recorder.keep_metrics()
    watchers = [*callbacks, recorder, *tensorboard_callbacks(folder)]
    test_batch = max(TEST_BATCH // config.devices, 1) * config.devices
    try:
        for part in cut(step, config.recipe.steps, steps_per_epoch):
            batches = dataset.train.train_batches(config.recipe.batch_size, config.seed, part.first_step)
            tests = dataset.test.test_batches(test_batch)
            with as_input_errors(batches, tests):
                model.fit(
                    feed(part_of(batches, *process())),
                    initial_epoch=part.first_epoch,
                    epochs=part.last_epoch,
                    steps_per_epoch=part.steps_per_epoch,
                    validation_data=feed(part_of(tests, *process())),
                    callbacks=watchers,
                    shuffle=False,  # the order is the batches' own
                    verbose=0,
                )
            with recorder.pause():
                yield recorder.step
    except Diverged as fault:
        seconds = round(recorder.seconds, 1)
        folder.update_record(
            status="diverged", diverged={"step": fault.step, "examples": fault.examples}, seconds=seconds
        )
        raise
    except (RuntimeError, ValueError) as error:
        if process()[1] == 1 or isinstance(error, InputError):
            raise
        raise InputError(
            f"the training broke off, as it does when another of its processes ends ({str(error).splitlines()[0]}); "
            f"start all of them again with {as_command('train --resume', folder.path)}"
        ) from error
    return recorder.seconds


def _restored(checkpoint: Checkpoint, record: dict[str, Any], path: Path) -> int:
    """Restore the newest checkpoint, of all processes the same and of the recorded configuration; return its step.

    Args:
        checkpoint: of the run.
        record: its run.json, which is written after each checkpoint.
        path: the run folder.
    """
    with collective_errors():
        step = checkpoint.restore()
        if record["step"] and not step:
            raise InputError(
                f"{path} was trained for {record['step']:,} steps, but {checkpoint.folder.name}/ in it holds no "
                "checkpoint; restore that folder, or start a new run"
            )
        _check_configuration(checkpoint, record["config"])
    if all_reduce_max(step) != -all_reduce_max(-step):
        raise InputError("the processes see different checkpoints; resume in a run folder that all of them share")
    return step


def _check_configuration(checkpoint: Checkpoint, config: dict[str, Any]) -> None:
    """Refuse to go on with another configuration than the one that the checkpoint was trained with."""
    if not checkpoint.files():
        return
    trained_with = checkpoint.notes.get("record", {}).get("config", {})
    if changed := [key for key in {**config, **trained_with} if config.get(key) != trained_with.get(key)]:
        raise InputError(
            f"the configuration in run.json is not the one that {checkpoint.folder} was trained with: "
            f"{', '.join(changed)} changed; delete run.json and resume, which restores it, or start a new run"
        )


@dataclass(frozen=True)
class Part:
    """Epochs of equal length: one call of `fit`."""

    first_step: int
    first_epoch: int
    last_epoch: int
    steps_per_epoch: int


def parts(step: int, steps: int, steps_per_epoch: int) -> list[Part]:
    """Cut what is left of a run into calls of `fit`: the rest of an epoch, whole epochs, the beginning of one.

    >>> parts(25, 62, 20)  # doctest: +NORMALIZE_WHITESPACE
    [Part(first_step=25, first_epoch=1, last_epoch=2, steps_per_epoch=15),
     Part(first_step=40, first_epoch=2, last_epoch=3, steps_per_epoch=20),
     Part(first_step=60, first_epoch=3, last_epoch=4, steps_per_epoch=2)]
    """
    cut: list[Part] = []
    while step < steps:
        epoch = step // steps_per_epoch
        end = min((epoch + 1) * steps_per_epoch, steps)
        if step % steps_per_epoch == 0 and end < steps:
            last = steps // steps_per_epoch
            cut.append(Part(step, epoch, last, steps_per_epoch))
            step = last * steps_per_epoch
        else:
            cut.append(Part(step, epoch, epoch + 1, end - step))
            step = end
    return cut


def epochs(step: int, steps: int, steps_per_epoch: int) -> list[Part]:
    """Cut what is left of a run into its epochs.

    >>> [(part.first_step, part.steps_per_epoch) for part in epochs(25, 62, 20)]
    [(25, 15), (40, 20), (60, 2)]
    """
    return [
        Part(part.first_step + k * part.steps_per_epoch, epoch, epoch + 1, part.steps_per_epoch)
        for part in parts(step, steps, steps_per_epoch)
        for k, epoch in enumerate(range(part.first_epoch, part.last_epoch))
    ]


Cut = Callable[[int, int, int], list[Part]]


def _finish(folder: RunFolder, model: keras.Model, seconds: float) -> RunFolder:
    """Save the model, draw the curves, write the result: of the last epoch, as the paper reports it."""
    if not is_chief():
        return folder
    path = folder.model_path
    with written_aside(path, path.with_name("model.partial.keras")) as aside:  # Keras wants its ending
        save_model(model, aside)
    rows = folder.metrics()
    folder.write_curves({model.name: rows}, folder.unit())
    last = rows[-1]
    result = {key: last[key] for key in ("train_loss", "train_error", "test_loss", "test_error")}
    folder.update_record(status="finished", result=result, seconds=round(seconds, 1))
    return folder
