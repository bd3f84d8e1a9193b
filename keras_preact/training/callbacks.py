"""What watches a run: the recorder of metrics and checkpoints, signals, TensorBoard."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import Diverged, InputError, Interrupted, is_installed
from keras_preact.files import writing
from keras_preact.keras_private import open_both_writers
from keras_preact.training.checkpoints import Checkpoint
from keras_preact.training.distribute import (
    all_reduce_max,
    is_chief,
)
from keras_preact.training.recipe import Recipe
from keras_preact.training.runs import RunFolder, described
from keras_preact.training.tasks import errors


class StopRequest:
    """Signal handler: remembers the signal that asked the run to stop. The second one ends the program at once."""

    signal_number = 0

    def __call__(self, signal_number: int, frame: Any) -> None:
        if self.signal_number:
            raise KeyboardInterrupt
        self.signal_number = signal_number


class Recorder(keras.callbacks.Callback):
    """Counts steps, writes metrics and checkpoints, and stops cleanly on a signal or on divergence.

    Args:
        asked: whether a signal has asked to stop.
        recipe: of the run: its steps, its learning rate.
        rows: of the metrics, so far.
        examples: of a step: the indices of its batch, or nothing where the data have no order.
    """

    def __init__(
        self,
        folder: RunFolder,
        asked: StopRequest,
        step: int,
        recipe: Recipe,
        seconds: float,
        rows: Sequence[dict[str, float]],
        examples: Callable[[int], Sequence[int]],
    ) -> None:
        super().__init__()
        self.folder = folder
        self.asked = asked
        self.examples = examples
        self.step = step
        self.steps = recipe.steps
        self.learning_rate = recipe.schedule.to_keras(recipe.steps)
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
        train_error, test_error = errors(logs)
        row = {
            "epoch": epoch + 1,
            "step": self.step,
            "learning_rate": keras.ops.convert_to_numpy(self.learning_rate(self.step - 1)),  # of the epoch's last step
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
        asked = all_reduce_max(self.asked.signal_number)
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
        # ReLU can mask NaN: the loss stays finite while weights are lost.
        if lost := self.checkpoint.first_not_finite():
            raise self._diverged(f"the weight {lost} is not finite")
        facts = {"step": self.step, "seconds": round(self.seconds, 1), "metrics": described(self.rows)}
        if is_chief():
            # So a run goes on although its other files are lost, and never with another configuration.
            notes = {"record": {**self.folder.record(), **facts}, "metrics": self.rows}
            self.checkpoint.save(self.step, notes)
        self.folder.update_record(**facts)

    def _diverged(self, what: str) -> Diverged:
        return Diverged(what, self.step, self.examples(self.step - 1), self.folder.path, self.checkpoint.last_step())


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


def tensorboard_callbacks(folder: RunFolder) -> list[keras.callbacks.Callback]:
    """Return Keras's TensorBoard callback; none where TensorFlow and TensorBoard, which write its files, are not."""
    if not all(map(is_installed, ("tensorflow", "tensorboard"))) or not is_chief():
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
