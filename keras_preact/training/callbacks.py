"""Callbacks of a run: the recorder of metrics and checkpoints, signal handling, TensorBoard."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import Diverged, InputError, Interrupted, is_installed, shown
from keras_preact.files import writing
from keras_preact.keras_private import last_learning_rate, open_both_writers
from keras_preact.training.checkpoints import Checkpoint
from keras_preact.training.distribute import all_reduce_max, is_chief
from keras_preact.training.recipe import Recipe
from keras_preact.training.runs import RunFolder, metrics_summary
from keras_preact.training.tasks import errors


class StopRequest:
    """Signal handler that remembers the first signal. Another Ctrl-C ends the program at once.

    Other signals may come twice without meaning more: a closing terminal sends SIGHUP itself, and its shell passes on
    another.
    """

    signal_number = 0

    def __call__(self, signal_number: int, frame: Any) -> None:
        if self.signal_number and signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = self.signal_number or signal_number


class Stopwatch:
    """Measures the training time of a run, across its parts.

    Args:
        record: contents of run.json, whose times are continued. Default: start at 0.
        counts_cpu: whether a new run counts `cpu_seconds`, those of the whole process.
    """

    def __init__(self, record: Mapping[str, Any] | None = None, counts_cpu: bool = True) -> None:
        before = record or {"seconds": 0.0, **({"cpu_seconds": 0.0} if counts_cpu else {})}
        # Not counted in the first part by an earlier version, or if other runs shared the process.
        self._counts_cpu = "cpu_seconds" in before
        self._start = time.perf_counter() - before["seconds"]
        self._cpu_start = time.process_time() - before.get("cpu_seconds", 0.0)

    @property
    def times(self) -> dict[str, float]:
        """The training time: `seconds` of wall clock, and `cpu_seconds`, summed over the cores."""
        seconds = round(time.perf_counter() - self._start, 1)
        cpu_seconds = round(time.process_time() - self._cpu_start, 1)
        return {"seconds": seconds, **({"cpu_seconds": cpu_seconds} if self._counts_cpu else {})}

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time spent in this block, in which another run may be trained."""
        paused, cpu_paused = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._start += time.perf_counter() - paused
            self._cpu_start += time.process_time() - cpu_paused


class Recorder(keras.callbacks.Callback):
    """Counts steps, writes metrics and checkpoints, and stops cleanly on a signal or on divergence.

    Args:
        folder: the run's folder.
        stop_request: holds the signal that asked the run to stop, if any.
        step: steps done so far.
        recipe: supplies the number of steps.
        stopwatch: measures the training time.
        rows: rows of metrics so far.
        examples: maps a step to the example indices of its batch; to an empty list if the data have no order.
        has_foreign_callbacks: whether callbacks of the program, which may change the weights, take part in the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        stop_request: StopRequest,
        step: int,
        recipe: Recipe,
        stopwatch: Stopwatch,
        rows: Sequence[dict[str, float]],
        examples: Callable[[int], Sequence[int]],
        has_foreign_callbacks: bool = False,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.stop_request = stop_request
        self.examples = examples
        self.step = step
        self.steps = recipe.steps
        self.rows = list(rows)
        self.stopwatch = stopwatch
        self.has_foreign_callbacks = has_foreign_callbacks
        self._at_end_of_epoch: list[Any] = []
        self._metrics_to_restore: list[Any] | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder.checkpoints_path, self.model)  # the folder may have been renamed

    def preserve_metrics(self) -> None:
        """Save the running means of a run resumed within an epoch: `fit` resets them when it starts."""
        self._metrics_to_restore = [keras.ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._metrics_to_restore is not None:
            for variable, value in zip(self.model.metrics_variables, self._metrics_to_restore, strict=True):
                variable.assign(value)
            self._metrics_to_restore = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        # This is a running mean over the epoch, so one non-finite step makes it non-finite. It is already on the host.
        if not math.isfinite(logs["loss"]):
            raise self._diverged(f"the loss is {logs['loss']}")
        is_last = batch + 1 == self.params["steps"]
        if not is_last:  # after the last batch, `on_epoch_end` saves and stops
            self._stop_if_requested(save=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        train_error, test_error = errors(logs)
        row = {
            "epoch": epoch + 1,
            "step": self.step,
            "learning_rate": last_learning_rate(self.model.optimizer),
            "train_loss": logs["loss"],
            "train_error": train_error,
            "test_loss": logs["val_loss"],
            "test_error": test_error,
            "seconds": self.stopwatch.times["seconds"],
        }
        self.rows.append({key: float(value) for key, value in row.items()})
        self._save()
        if self.has_foreign_callbacks:
            self._at_end_of_epoch = [keras.ops.convert_to_numpy(v) for v in self.checkpoint.variables()]
        self._stop_if_requested(save=False)

    def set_back(self) -> None:
        """Set the variables to their values at the end of the epoch, those of the recorded error.

        At the end of `fit`, a callback may change the weights, as EarlyStopping restores its best ones.
        """
        if self.has_foreign_callbacks:
            for variable, value in zip(self.checkpoint.variables(), self._at_end_of_epoch, strict=True):
                variable.assign(value)

    def _stop_if_requested(self, save: bool) -> None:
        """Stop if a process received a signal or an earlier callback set `stop_training`."""
        signal_number = all_reduce_max(self.stop_request.signal_number)
        by_callback = self.model.stop_training and self.step < self.steps
        if save and (signal_number or by_callback):
            self._save()
        if signal_number:
            raise Interrupted(signal_number, self.step, self.folder.path)
        if by_callback:  # otherwise only this call of `fit` would end, and the next would start
            raise InputError(
                f"a callback stopped the training after step {self.step:,} of {self.steps:,}, before the run was "
                f"complete; resume {self.folder.path} without that callback, or start a run of fewer steps"
            )

    def _save(self) -> None:
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # during `fit`, JAX's state lives outside the model
        # ReLU can mask NaN, so the loss may stay finite when a weight does not.
        if weight := self.checkpoint.first_not_finite():
            raise self._diverged(f"the weight {weight} is not finite")
        facts = {"step": self.step, **self.stopwatch.times, "metrics": metrics_summary(self.rows)}
        if is_chief():
            # With these notes a run can resume when its other files are lost, and only with its own configuration.
            notes = {"record": {**self.folder.record(), **facts}, "metrics": self.rows}
            self.checkpoint.save(self.step, notes)
        self.folder.write_metrics(self.rows)  # before the record, which says how many rows there are
        self.folder.update_record(**facts)

    def _diverged(self, what: str) -> Diverged:
        return Diverged(what, self.step, self.examples(self.step - 1), self.folder.path, self.checkpoint.last_step())


def _stopping_signals() -> list[int]:
    """Return the signals that ask a run to stop: from Ctrl-C, a scheduler, or a closed terminal."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32":
        return [*numbers, signal.SIGBREAK]  # Ctrl-Break, and how a parent process asks a run to stop
    # What is ignored stays ignored: SIGHUP under nohup, SIGINT in a script's background job.
    return [number for number in (*numbers, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def handles_signals(handler: Any) -> Iterator[None]:
    """Route the signals that ask a run to stop to `handler`. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler of C code, in an embedded Python, is `None` and could not be restored.
    numbers = [number for number in _stopping_signals() if signal.getsignal(number) is not None]
    previous = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, previous_handler in zip(numbers, previous, strict=True):
            signal.signal(number, previous_handler)


class RunFolderCallback(keras.callbacks.Callback):
    """A callback that writes into the run folder.

    Attributes:
        run_folder: set by the trainer before the first step; its path follows a renamed folder.
    """

    run_folder: RunFolder


def as_callbacks(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Return one or more Keras callbacks as a list.

    Raises:
        InputError: something else is among them.
    """
    several = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in several:
        if not isinstance(callback, keras.callbacks.Callback):
            raise InputError(f"{shown(repr(callback))} is not a callback; pass instances of keras.callbacks.Callback")
    return several


def tensorboard_callbacks(folder: RunFolder) -> list[keras.callbacks.Callback]:
    """Return Keras's TensorBoard callback in the process that writes, if TensorFlow and TensorBoard are installed."""
    if is_chief() and is_installed("tensorflow") and is_installed("tensorboard"):
        return [_TensorBoard(folder)]
    return []


class _TensorBoard(keras.callbacks.TensorBoard):
    """Keras's callback, for a folder that may be renamed and a disk that may be full.

    It opens both of its files before the first step. Opened later, by path, they could land in a new folder with the
    old name.
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
            open_both_writers(self)

    def on_test_end(self, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_test_end(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_epoch_end(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        with writing(Path(self.log_dir)):
            super().on_train_end(logs)
