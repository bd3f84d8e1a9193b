"""Estimates of what runs cost on this machine: a few steps of each network are timed."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_preact.data import feed, from_arrays
from keras_preact.data.load import is_bundled
from keras_preact.experiments.runner import Job
from keras_preact.training.build import build_model
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.distribute import device_scope
from keras_preact.training.evaluation import TEST_BATCH
from keras_preact.training.sizes import Sizes

ROUNDS = 4
"""Timed steps; one more before them compiles."""

SETS: dict[str, tuple[tuple[int, int, int], int, int, int]] = {
    "cifar10": ((32, 32, 3), 10, 50_000, 10_000),
    "cifar100": ((32, 32, 3), 100, 50_000, 10_000),
    "imagenet2012": ((224, 224, 3), 1000, 1_281_167, 50_000),
}
"""Image shape and numbers of classes, training and test images. Timing uses noise, so the data need not be here."""


class _Clock(keras.callbacks.Callback):
    """Measures the duration of each training step and of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[float] = []
        self.tests: list[float] = []
        self._began = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float(logs["loss"])  # waits for the device
        self.steps.append(time.perf_counter() - self._began)

    def on_test_begin(self, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self.tests.append(time.perf_counter() - self._began)


def seconds_of(config: RunConfig) -> float:
    """Return how long a run would take here, in seconds: its steps, and a test after each epoch. Writes nothing.

    One-time costs (reading the data, compiling, drawing) are not included.

    Args:
        config: configuration of the run. CIFAR and ImageNet data are not needed.
    """
    dataset, images, tested = _dataset_to_time(config)
    recipe = config.recipe
    epochs = recipe.epochs(images // recipe.batch_size)
    seconds = 0.0
    sizes = Sizes(dataset)
    with device_scope(config.devices)():
        model = build_model(config, dataset)
        for scale, count in Counter(recipe.image_scale(epoch, epochs) for epoch in range(epochs)).items():
            step, test = _timed(model, sizes.at(scale, model), config)
            seconds += count / epochs * recipe.steps * step + count * test * tested / len(dataset.test)
    return seconds


def _timed(model: keras.Model, dataset: Dataset, config: RunConfig) -> tuple[float, float]:
    """Return the seconds of a training step, and of a test on the data's test examples."""
    clock = _Clock()
    model.fit(
        feed(dataset.train.train_batches(config.recipe.batch_size, config.seed)),
        epochs=1 + ROUNDS,
        steps_per_epoch=1,
        validation_data=feed(dataset.test.test_batches(TEST_BATCH)),
        callbacks=[clock],
        shuffle=False,
        verbose=0,
    )
    return statistics.median(clock.steps[1:]), statistics.median(clock.tests[1:])


def _dataset_to_time(config: RunConfig) -> tuple[Dataset, int, int]:
    """Return data to time a run on, and the numbers of training and test examples of the run's own data."""
    if is_bundled(config.dataset):
        dataset = config.load_dataset()
        return dataset, len(dataset.train), len(dataset.test)
    (height, width, channels), classes, images, tested = SETS[config.dataset]
    shape = (config.image_size or height, config.image_size or width, channels)
    rng = np.random.default_rng(0)

    def noise(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (count, *shape), "uint8"), np.arange(count) % classes

    count = max(config.recipe.batch_size, classes)
    names = tuple(map(str, range(classes)))
    return from_arrays(*noise(count), *noise(TEST_BATCH), names, config.dataset), images, tested


def costs(jobs: Sequence[Job], say: Callable[[str], Any] = lambda text: None) -> list[float | None]:
    """Return how long each run would take here, in seconds; `None` for finished runs.

    Runs that differ only in seed or learning rate are timed once.

    Args:
        jobs: result of `plan`.
        say: called with a line of text before each timing.
    """
    timed: dict[tuple[str, str], float] = {}
    result: list[float | None] = []
    for job in jobs:
        if job.run is not None:
            result.append(None)
            continue
        key = job.timing
        if key not in timed:
            say(f"timing {job.row.title} …")
            timed[key] = seconds_of(job.config)
            gc.collect()
        result.append(timed[key])
    return result
