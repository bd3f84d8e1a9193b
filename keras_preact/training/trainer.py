"""Training a network by a recipe, into a run folder; resuming it; evaluating it."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from keras_preact.data import (
    ImageDataset,
    ImageSplit,
    PadCropFlip,
    PerPixelMean,
    SequenceDataset,
    as_input_errors,
    baselines,
    feed,
    load_dataset,
    part_of,
)
from keras_preact.data.sequences import SEQUENCES
from keras_preact.errors import InputError, WriteError, as_command, check_positive
from keras_preact.models import (
    TRANSFORMERS,
    Classification,
    Forecast,
    NextToken,
    Patches,
    Series,
    Tokens,
    get_network,
    load_model,
    options_of,
    resized,
)
from keras_preact.models.resnet import with_policy
from keras_preact.models.trained import refuse_other_pixels
from keras_preact.training.checkpoints import Checkpoint, save_model
from keras_preact.training.device import check_precision, compiles_with_xla, make_deterministic, precision_policy
from keras_preact.training.distribute import (
    check_devices,
    check_shares,
    greatest,
    is_first,
    on_devices,
    process,
    synchronize,
    together,
)
from keras_preact.training.recipe import Recipe, get_recipe
from keras_preact.training.runs import Onlooker, RunFolder, described, environment, writing, written_aside
from keras_preact.training.tasks import TASKS, errors

TEST_BATCH = 250
Dataset = ImageDataset | SequenceDataset


class Interrupted(Exception):
    """Training was asked to stop; the state is saved, and the run can be resumed.

    Attributes:
        signal_number: of the signal that asked.
        step: steps done.
        path: the run's folder.
    """

    def __init__(self, signal_number: int, step: int, path: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name} after step {step}; go on with {as_command('train --resume', path)}")
        self.signal_number = signal_number
        self.step = step
        self.path = path


class Diverged(Exception):
    """The loss, or a weight, is no number any more, or infinite; the run has ended there, and its record says so.

    (An overflow of float16's *gradients* is none of this: the loss scale skips such a step, and the loss stays finite.)

    Attributes:
        step: after which it was seen.
        examples: indices of that step's batch in the training data, where they have an order.
        path: the run's folder.
        kept: the step after which the state in it was kept, or `None`.
    """

    def __init__(self, what: str, step: int, examples: Sequence[int], path: Path, kept: int | None) -> None:
        shown = ", ".join(map(str, examples[:8])) + (", …" if len(examples) > 8 else "")
        good = "no state was kept before it" if kept is None else f"the state after step {kept} is kept"
        batch = f", of the training examples {shown}" if examples else ""
        super().__init__(
            f"{what} at step {step}{batch}; {good} in {path}; lower the learning rate, or look at these examples"
        )
        self.step = step
        self.examples = list(examples)
        self.path = path
        self.kept = kept


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run; `run.json` holds it whole.

    Attributes:
        network: a name of `keras_preact.models.NETWORKS`. Default `"cifar_resnet"`.
        options: arguments of the network, as plain data (`depth`, `placement`, `shortcut`, …).
        dataset: as in `load_dataset`: `"bundled"`, `"folder"`, or a tensorflow-datasets name.
        data_dir: where the data are; `None` for the default of each kind.
        image_size: height and width of the images in pixels, for example 16 to average CIFAR's down; default their
            own, where they have one.
        only: names of the classes to train on; default: all.
        skip_corrupt: whether images of a folder that cannot be read are left out, and counted. Default `False`.
        recipe: how to train.
        precision: `"float32"` (default), `"mixed_float16"` or `"mixed_bfloat16"`; `default_precision` says which is
            fastest here.
        seed: of initialization, data order and augmentation. Default 0.
        deterministic: whether the run gives the same weights to the bit each time on one machine; see
            `make_deterministic`. Default `False`.
        devices: of this machine that share each batch; see `on_devices`. Default 1.
        sync_batch_norm: whether, with several devices on TensorFlow, batch norms take their statistics over the whole
            batch; on JAX they always do. Default `False`: over the share of each device.

    Example:

    >>> config = RunConfig(options={"depth": 20})
    >>> RunConfig.from_dict(config.to_dict()) == config
    True
    """

    network: str = "cifar_resnet"
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "bundled"
    data_dir: str | None = None
    image_size: int | None = None
    only: tuple[str, ...] | None = None
    skip_corrupt: bool = False
    recipe: Recipe = field(default_factory=lambda: get_recipe("demo"))
    precision: str = "float32"
    seed: int = 0
    deterministic: bool = False
    devices: int = 1
    sync_batch_norm: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise InputError(f"the seed is {self.seed!r}; give a whole number from 0 to {2**32 - 1}")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, for `run.json`."""
        return {**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, "recipe": self.recipe.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunConfig:
        """Return the configuration that `to_dict` wrote.

        Raises:
            InputError: data that `to_dict` never wrote.
        """
        try:
            only = None if data.get("only") is None else tuple(data["only"])
            return cls(**{**data, "only": only, "recipe": Recipe.from_dict(data["recipe"])})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InputError(f"a recorded configuration cannot be read ({error}); restore its run.json") from None

    def load_dataset(self, data_dir: str | None = None) -> Dataset:
        """Return the run's data.

        Args:
            data_dir: where they are now, if they have moved.

        Raises:
            InputError: as in `keras_preact.data.load_dataset`; `only` with sequences.
        """
        dataset = load_dataset(self.dataset, data_dir or self.data_dir, self.image_size, self.skip_corrupt)
        if self.only is None:
            return dataset
        if isinstance(dataset, SequenceDataset):
            raise InputError(f"{self.dataset} has sequences, not images; leave out --only")
        return dataset.only(self.only)

    @property
    def label(self) -> str:
        """A short name: the network, its depth and its placement."""
        parts = [self.options.get("depth", ""), self.options.get("placement", "")]
        return "-".join([self.network, *(str(part) for part in parts if part)])


def build_model(config: RunConfig, dataset: Dataset) -> keras.Model:
    """Build and compile the model of a run: the data as they are in, logits or a forecast out.

    What is done to the data first (mean, augmentation, standardization) are layers of it.

    Args:
        config: of the run.
        dataset: gives shapes, classes, and the mean.

    Returns:
        A compiled `keras.Model`: input (batch, height, width, channels) uint8, or sequences as the data set has them;
        output (batch, classes), (batch, length, vocabulary) or (batch, horizon, targets), float32.

    Raises:
        InputError: the network does not take these options or data.

    Example:

    >>> config = RunConfig(options={"depth": 8})
    >>> model = build_model(config, config.load_dataset())
    >>> model.input.dtype, model.output_shape
    ('uint8', (None, 10))
    """
    check_precision(config.precision)
    if config.deterministic:
        make_deterministic()
    keras.utils.set_random_seed(config.seed)
    task = TASKS[dataset.task]
    with precision_policy(config.precision):
        model = _of_sequences(config, dataset) if isinstance(dataset, SequenceDataset) else _of_images(config, dataset)
        if config.sync_batch_norm and _is_mirrored(config):
            synchronize(model)
        model.compile(
            _scaled(config.recipe.optimizer(), model),
            task.loss(),
            metrics=[task.metric()],
            jit_compile=compiles_with_xla() and not _is_mirrored(config),
        )
        _build_state(model, dataset)
    return model


def _check_options(config: RunConfig) -> None:
    """Refuse options that the network does not have."""
    known = options_of(config.network) | ({"patch"} if config.network in TRANSFORMERS else set())
    if unknown := sorted(set(config.options) - known):
        raise InputError(f"{config.network} does not take these options: {', '.join(unknown)}; leave them out")


def _scaled(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> keras.optimizers.Optimizer:
    """Return the optimizer, below a loss scale where the model computes in float16.

    Keras's `compile` would do so too, but saves the optimizer without it: whoever loads the model trains on unscaled.
    """
    is_half = model.dtype_policy.name == "mixed_float16"
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer") if is_half else optimizer


def _is_mirrored(config: RunConfig) -> bool:
    """Whether TensorFlow trains on several devices: XLA does not get along with that and a loss scale."""
    return config.devices > 1 and keras.backend.backend() == "tensorflow"


def _network_options(config: RunConfig) -> dict[str, Any]:
    """Return the network's arguments: a run trains whatever form of long stages is faster on its backend."""
    return {"rolled": None, **config.options}


def _of_images(config: RunConfig, dataset: ImageDataset) -> keras.Model:
    _check_options(config)
    images = keras.Input(dataset.image_shape, dtype="uint8", name="images")
    x = _prepared(images, config, dataset.train)
    network, options = get_network(config.network), _network_options(config)
    if config.network in TRANSFORMERS:
        inputs = Patches(dataset.image_shape, options.pop("patch", Patches.size))
        return refuse_other_pixels(network(inputs, Classification(dataset.classes), input_tensor=x, **options))
    options.setdefault("data_format", "channels_last")  # the data's, whatever Keras is set to
    return refuse_other_pixels(network(input_tensor=x, classes=dataset.classes, **options))


def _prepared(images: Any, config: RunConfig, train: ImageSplit) -> Any:
    """Return images as the recipe has them come to the network: their pixels scaled, padded, cropped and flipped."""
    # The data's format, whatever Keras is set to.
    options: dict[str, Any] = {"seed": config.seed, "data_format": "channels_last", "name": "augmentation"}
    augmented = PadCropFlip(config.recipe.padding, **options) if config.recipe.augment else lambda x: x
    if config.recipe.inputs == "per_image":  # of what is left by the crop, its black border included
        pixels = keras.layers.Rescaling(1.0, dtype="float32", name="pixels")(images)
        standardize = {"center": False, "scale": False, "epsilon": 1e-3, "dtype": "float32"}
        return keras.layers.LayerNormalization((1, 2, 3), **standardize, name="standardization")(augmented(pixels))
    if config.recipe.inputs == "per_channel":
        mean, deviation = train.channel_moments()
        moments = {"mean": mean.tolist(), "variance": np.square(deviation).tolist()}
        return augmented(keras.layers.Normalization(**moments, dtype="float32", name="standardization")(images))
    centred = PerPixelMean(name="per_pixel_mean")  # of 0, until it is adapted
    x = augmented(centred(images))
    if config.recipe.inputs == "per_pixel_mean":
        centred.adapt(train)
    return x


def _of_sequences(config: RunConfig, dataset: SequenceDataset) -> keras.Model:
    if config.network not in TRANSFORMERS:
        known = ", ".join(TRANSFORMERS)
        raise InputError(f"{config.network} takes images, and {dataset.name} has sequences; take one of {known}")
    _check_options(config)
    network = get_network(config.network)
    if dataset.task == "forecast":
        return _forecaster(partial(network, **_network_options(config)), dataset)
    padded = dataset.task == "classification"
    inputs = Tokens(len(dataset.vocabulary), dataset.length, padded)
    head = Classification(dataset.classes) if padded else NextToken(len(dataset.vocabulary))
    return network(inputs, head, **_network_options(config))


def _forecaster(network: Any, dataset: SequenceDataset) -> keras.Model:
    """Return the network between a standardization of its inputs and the opposite of one of its outputs."""
    past, future = dataset.train.sequences, dataset.train.labels
    mean, variance = past.mean((0, 1), dtype="float64").tolist(), past.var((0, 1), dtype="float64").tolist()
    inputs = Series(dataset.length, past.shape[-1])
    series = inputs.tensor()
    x = keras.layers.Normalization(mean=mean, variance=variance, dtype="float32", name="standardization")(series)
    inner = network(inputs, Forecast(*future.shape[1:]), input_tensor=x)
    scale, offset = float(future.std()), float(future.mean())
    outputs = keras.layers.Rescaling(scale, offset, dtype="float32", name="units")(inner.output)
    return with_policy(keras.Model(series, outputs, name=inner.name), inner.dtype_policy)


def _build_state(model: keras.Model, dataset: Dataset) -> None:
    """Make the variables of optimizer and metrics, which Keras leaves to the first step: checkpoints hold them."""
    model.optimizer.build(model.trainable_variables)
    shape, dtype = dataset.train.signature[1]
    labels, outputs = keras.ops.zeros((1, *shape), dtype), keras.ops.zeros((1, *model.output_shape[1:]))
    model.compute_loss(y=labels, y_pred=outputs)
    model.compute_metrics(None, labels, outputs)
    model.reset_metrics()


# ---- what watches a run -------------------------------------------------------------------------------------------


class StopRequest:
    """Signal handler: remembers the signal that asked the run to stop. The second one ends the program at once."""

    signal_number = 0

    def __call__(self, signal_number: int, frame: Any) -> None:
        if self.signal_number:
            raise KeyboardInterrupt
        self.signal_number = signal_number


class _Recorder(keras.callbacks.Callback):
    """Counts steps, writes metrics and checkpoints, and stops cleanly on a signal or on divergence.

    Args:
        asked: whether a signal has asked to stop.
        steps: of the whole run.
        rows: of the metrics, so far.
        examples: of a step: the indices of its batch, or nothing where the data have no order.
    """

    def __init__(
        self,
        folder: RunFolder,
        asked: StopRequest,
        step: int,
        steps: int,
        seconds: float,
        rows: Sequence[dict[str, float]],
        examples: Callable[[int], Sequence[int]],
    ) -> None:
        super().__init__()
        self.folder = folder
        self.asked = asked
        self.examples = examples
        self.step = step
        self.steps = steps
        self.rows = list(rows)
        self._began = time.perf_counter() - seconds
        self._metrics_to_restore: list[Any] | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time inside out of the run's: another is trained in it."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._began += time.perf_counter() - began

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder.checkpoints_path, self.model)  # the folder may have been renamed

    def keep_metrics(self) -> None:
        """Remember the running means of an epoch that is taken up in its middle: `fit` is about to reset them."""
        self._metrics_to_restore = [keras.ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._metrics_to_restore is not None:
            for variable, value in zip(self.model.metrics_variables, self._metrics_to_restore, strict=True):
                variable.assign(value)
            self._metrics_to_restore = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        # A running mean of the epoch: the first step that is not finite makes it so. Keras has it on the host already.
        if not math.isfinite(logs["loss"]):
            raise self._diverged(f"the loss is {logs['loss']}")
        is_last = batch + 1 == self.params["steps"]  # then the epoch is tested and written down first
        if not is_last:
            self._stop_if_asked(save=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # The rate of the epoch's last step: the schedule is asked for the step before the counter's.
        schedule = _inner(self.model.optimizer)._learning_rate
        rate = schedule(self.step - 1) if callable(schedule) else schedule
        train_error, test_error = errors(logs)
        row = {
            "epoch": epoch + 1,
            "step": self.step,
            "learning_rate": keras.ops.convert_to_numpy(rate),
            "train_loss": logs["loss"],
            "train_error": train_error,
            "test_loss": logs["val_loss"],
            "test_error": test_error,
            "seconds": round(self.seconds, 1),
        }
        self.rows.append({key: float(value) for key, value in row.items()})
        self.folder.write_metrics(self.rows)
        self._save()
        self._stop_if_asked(save=False)

    def _stop_if_asked(self, save: bool) -> None:
        """End the training where a signal to any of the processes asked for it, or a callback before this one."""
        asked = greatest(self.asked.signal_number)
        by_callback = self.model.stop_training and self.step < self.steps
        if save and (asked or by_callback):
            self._save()
        if asked:
            raise Interrupted(asked, self.step, self.folder.path)
        if by_callback:  # `fit` would end, and the next part of the run begin
            raise InputError(
                f"a callback stopped the training after step {self.step:,} of {self.steps:,}, which is no whole run; "
                f"resume {self.folder.path} without it, or start one of fewer steps"
            )

    def _save(self) -> None:
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # during fit the state is outside the model
        # ReLU makes 0 of what is no number: the loss can look well while weights are lost.
        if lost := self.checkpoint.first_not_finite():
            raise self._diverged(f"the weight {lost} is not finite")
        facts = {"step": self.step, "seconds": round(self.seconds, 1), "metrics": described(self.rows)}
        if is_first():
            # So a run goes on although its other files are lost, and never with another configuration.
            notes = {"record": {**self.folder.record(), **facts}, "metrics": self.rows}
            self.checkpoint.save(self.step, notes)
        self.folder.update_record(**facts)

    def _diverged(self, what: str) -> Diverged:
        return Diverged(what, self.step, self.examples(self.step - 1), self.folder.path, self.checkpoint.last_step())


def _inner(optimizer: Any) -> Any:
    """Return the optimizer below a loss scale (mixed_float16), or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _stopping_signals() -> list[int]:
    """Return the signals that ask a run to stop: Ctrl-C, a scheduler's, a closed terminal's."""
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    if hang_up is None or signal.getsignal(hang_up) == signal.SIG_IGN:  # under nohup a run goes on
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hang_up]


@contextmanager
def handles_signals(handler: Any) -> Iterator[None]:
    """Route the signals that ask to stop to `handler`; elsewhere than in the main thread, leave them alone."""
    numbers = _stopping_signals()
    try:
        before = [signal.signal(number, handler) for number in numbers]
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


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


# ---- the run ------------------------------------------------------------------------------------------------------


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
        Taken: (an InputError) another process is training this run.
        Interrupted: a signal asked to stop; the folder can be resumed.

    Example: two steps on some of the bundled images, into a folder that is thrown away.

    >>> import tempfile
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
    with together():
        _folder_class().check_free(out)
        check_devices(config.devices)  # before data are loaded for a training that cannot be
        if dataset is None:
            dataset = config.load_dataset()
        elif config.dataset not in ("folder", dataset.name):  # the record is not to name data that it was not
            config = dataclasses.replace(config, dataset=dataset.name, data_dir=None)
        if config.sync_batch_norm and _is_mirrored(config) and config.network not in TRANSFORMERS:
            # A loop does not exchange statistics between devices.
            config = dataclasses.replace(config, options={"rolled": False, **config.options})
        check_fits(config, dataset)
    with ExitStack() as hold:
        with on_devices(config.devices):
            model = build_model(config, dataset)
            with together():
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
    return RunFolder if is_first() else Onlooker


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
        Taken: (an InputError) another process is training it.
        Interrupted: a signal asked to stop again.

    Example: Ctrl-C after the first of two steps.

    >>> import tempfile
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
        with together():
            folder = _folder_class().open(path)
            _check_unfinished(folder)
            hold.enter_context(folder.held())
            record = _check_unfinished(folder)  # as it is now that nobody else writes it
            config = RunConfig.from_dict(record["config"])
            dataset = data_of(folder, data_dir) if dataset is None else _as_recorded(dataset, folder)
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


def data_of(folder: RunFolder, data_dir: str | None = None) -> Dataset:
    """Return the data that a run was trained and tested on.

    Args:
        folder: of the run.
        data_dir: where they are now, if they have moved.

    Raises:
        InputError: they are not there, or are others: those of a run that was given arrays cannot be found by name.
    """
    config = RunConfig.from_dict(folder.training()["config"])
    if data_dir is not None and (config.dataset == "bundled" or config.dataset in SEQUENCES):
        raise InputError(f"the data of {folder.path}, {config.dataset}, come with the package; leave out --data-dir")
    try:
        dataset = config.load_dataset(data_dir)
    except InputError as error:
        raise InputError(
            f"{error}; name the folder where they are now (--data-dir) or, if the run was given arrays, give them "
            "again (dataset=)"
        ) from None
    return _as_recorded(dataset, folder)


def _as_recorded(dataset: Dataset, folder: RunFolder) -> Dataset:
    """Return the data if they are those of the run's record."""
    recorded = folder.training("data")["data"]
    if dataset.fingerprint() != recorded.get("sha256"):
        raise InputError(
            f"the data are not those that {folder.path} began with ({recorded.get('name')}); give the same data, or "
            "start a new run"
        )
    return dataset


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
    recorder = _Recorder(folder, asked, step, config.recipe.steps, seconds, rows, examples)
    recorder.set_model(model)
    steps_per_epoch = dataset.train.steps_per_epoch(config.recipe.batch_size)
    if step % steps_per_epoch:
        recorder.keep_metrics()
    watchers = [*callbacks, recorder, *_tensorboard(folder)]
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
    with together():
        step = checkpoint.restore()
        if record["step"] and not step:
            raise InputError(
                f"{path} was trained for {record['step']:,} steps, but {checkpoint.folder.name}/ in it holds no "
                "checkpoint; restore that folder, or start a new run"
            )
        _check_configuration(checkpoint, record["config"])
    if greatest(step) != -greatest(-step):
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


def _tensorboard(folder: RunFolder) -> list[keras.callbacks.Callback]:
    """Return Keras's TensorBoard callback; none where TensorFlow and TensorBoard, which write its files, are not."""
    if not all(map(importlib.util.find_spec, ("tensorflow", "tensorboard"))) or not is_first():
        return []
    return [_TensorBoard(folder)]


class _TensorBoard(keras.callbacks.TensorBoard):
    """Keras's callback, in a folder that may be renamed and on a disk that may be full.

    It opens both of its files before the first step: opened by name later, they could be in a new folder of the old
    name.
    """

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(str(folder.tensorboard_path), write_graph=False)
        self._folder = folder

    def set_model(self, model: keras.Model) -> None:
        self.log_dir = str(self._folder.tensorboard_path)
        super().set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_train_begin(logs)
            self._val_writer  # noqa: B018

    def on_test_end(self, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_test_end(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_train_end(logs)


def _finish(folder: RunFolder, model: keras.Model, seconds: float) -> RunFolder:
    """Save the model, draw the curves, write the result: of the last epoch, as the paper reports it."""
    from keras_preact.plots import draw_curves

    if not is_first():
        return folder
    path = folder.model_path
    with written_aside(path, path.with_name("model.partial.keras")) as aside:  # Keras wants its ending
        save_model(model, aside)
    rows = folder.metrics()
    with writing(folder.curves_path):
        draw_curves({model.name: rows}, folder.curves_path, folder.unit())
    last = rows[-1]
    result = {key: last[key] for key in ("train_loss", "train_error", "test_loss", "test_error")}
    folder.update_record(status="finished", result=result, seconds=round(seconds, 1))
    return folder


def evaluate(
    path: str | Path,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    image_size: int | None = None,
    short_side: int | None = None,
) -> dict[str, float]:
    """Return the test loss and test error (percent) of a run's saved model, measured now.

    Args:
        path: the run folder.
        dataset: other data to measure on; default: those of the run.
        data_dir: where the run's data are now, if they have moved.
        image_size: pixels of the square that is cut out of each test image, as 320 for a network that was trained on
            224; default: as in training. The network is `resized` for it.
        short_side: pixels to which an image's short side is brought before that; default: in the proportion of the
            run's own test images.

    Raises:
        InputError: no such run, no model in it yet, other data than the run's where none were given, data of another
            shape or with other classes, or another size where images or network have but one.
    """
    folder = RunFolder.open(path)
    file = folder.trained_model()
    dataset = dataset or data_of(folder, data_dir)
    model = load_model(file, compile=False)
    expected, classes = tuple(model.input_shape[1:]), model.output_shape[-1]
    what = "sequences" if isinstance(dataset, SequenceDataset) else "images"
    if (shape := dataset.train.signature[0][0]) != expected:
        raise InputError(f"the {what} of {dataset.name} are {shape}, the run's are {expected}")
    if dataset.task == "classification" and dataset.classes > classes:
        raise InputError(f"{dataset.name} has {dataset.classes} classes, the run's network tells {classes} apart")
    test = dataset.test
    if image_size is not None or short_side is not None:
        if not isinstance(test, ImageSplit):
            raise InputError(f"{dataset.name} has sequences, not images; leave out the image size")
        size = expected[0] if image_size is None else check_positive("the image size", image_size)
        test = test.at(size, short_side)
        model = resized(model, size)
    task = TASKS[dataset.task]
    model.compile(loss=task.loss(), metrics=[task.metric()], jit_compile=compiles_with_xla())
    batches = test.test_batches(TEST_BATCH)
    with as_input_errors(batches):
        loss, metric = model.evaluate(feed(batches), verbose=0)
    return {"test_loss": float(loss), "test_error": task.error(float(metric))}
