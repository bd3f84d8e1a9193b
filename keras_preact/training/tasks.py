"""What a network is trained for: its loss, and the one error that is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras


@dataclass(frozen=True)
class Task:
    """A kind of training.

    Attributes:
        loss: makes the Keras loss.
        metric_name: in Keras's logs, of the metric that the error is read from.
        metric_class: of that metric.
        error: the error as a function of the metric's value.
    """

    loss: Callable[[], keras.losses.Loss]
    metric_name: str
    metric_class: type[keras.metrics.Metric]
    error: Callable[[float], float]

    def metric(self) -> keras.metrics.Metric:
        """Make the Keras metric that the error is read from."""
        return self.metric_class(name=self.metric_name)


def _percent_wrong(accuracy: float) -> float:
    return 100 * (1 - accuracy)


_CLASSES = Task(
    partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True),
    "accuracy",
    keras.metrics.SparseCategoricalAccuracy,
    _percent_wrong,
)

TASKS: dict[str, Task] = {
    "classification": _CLASSES,
    # A class a step: Keras's loss and metric take the mean over steps too.
    "next_token": _CLASSES,
    "forecast": Task(keras.losses.MeanAbsoluteError, "mean_absolute_error", keras.metrics.MeanAbsoluteError, float),
}
"""By the `task` of a data set. The error is in %, that of a forecast the mean absolute error in the data's unit."""


def errors(logs: Mapping[str, Any]) -> tuple[float, float]:
    """Return training and test error, given the logs that Keras gives at the end of an epoch.

    >>> errors({"loss": 2.0, "accuracy": 0.75, "val_accuracy": 0.5})
    (25.0, 50.0)
    """
    task = _task_of(logs)
    return training_error(logs), task.error(float(logs[f"val_{task.metric_name}"]))


def training_error(logs: Mapping[str, Any]) -> float:
    """Return the training error, given the logs that Keras gives at the end of a step or of an epoch.

    >>> training_error({"loss": 2.0, "accuracy": 0.75})
    25.0
    """
    task = _task_of(logs)
    return task.error(float(logs[task.metric_name]))


def _task_of(logs: Mapping[str, Any]) -> Task:
    return next(task for task in TASKS.values() if task.metric_name in logs)
