"""Training tasks: their loss, and the error that is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras


@dataclass(frozen=True)
class Task:
    """The loss, metric and reported error of a kind of training.

    Attributes:
        loss: a function that returns the Keras loss.
        metric_name: name of the metric in Keras's logs.
        metric_class: Keras class of the metric.
        error: a function from the metric's value to the error.
    """

    loss: Callable[[], keras.losses.Loss]
    metric_name: str
    metric_class: type[keras.metrics.Metric]
    error: Callable[[float], float]

    def metric(self) -> keras.metrics.Metric:
        """Return a new Keras metric."""
        return self.metric_class(name=self.metric_name)


def _error_percent(accuracy: float) -> float:
    return 100 * (1 - accuracy)


_CROSS_ENTROPY = Task(
    partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True),
    "accuracy",
    keras.metrics.SparseCategoricalAccuracy,
    _error_percent,
)

TASKS: dict[str, Task] = {
    "classification": _CROSS_ENTROPY,
    "next_token": _CROSS_ENTROPY,  # Keras's loss and metric average over positions too
    "forecast": Task(keras.losses.MeanAbsoluteError, "mean_absolute_error", keras.metrics.MeanAbsoluteError, float),
}
"""Tasks by the `task` of a data set. The error is in %; of a forecast, the mean absolute error in the data's unit."""


def errors(logs: Mapping[str, Any]) -> tuple[float, float]:
    """Return training and test error from Keras's logs at the end of an epoch.

    >>> errors({"loss": 2.0, "accuracy": 0.75, "val_accuracy": 0.5})
    (25.0, 50.0)
    """
    task = _task(logs)
    return training_error(logs), task.error(float(logs[f"val_{task.metric_name}"]))


def training_error(logs: Mapping[str, Any]) -> float:
    """Return the training error from Keras's logs at the end of a step or an epoch.

    >>> training_error({"loss": 2.0, "accuracy": 0.75})
    25.0
    """
    task = _task(logs)
    return task.error(float(logs[task.metric_name]))


def _task(logs: Mapping[str, Any]) -> Task:
    return next(task for task in TASKS.values() if task.metric_name in logs)
