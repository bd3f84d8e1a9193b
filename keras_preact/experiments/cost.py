"""What runs would cost on this machine: some steps of each network, timed."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_preact.data import feed, from_arrays
from keras_preact.data.sequences import SEQUENCES
from keras_preact.experiments.runner import Job
from keras_preact.experiments.store import identity
from keras_preact.training.build import build_model
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.distribute import on_devices
from keras_preact.training.evaluation import TEST_BATCH
from keras_preact.training.recipe import StepSchedule

ROUNDS = 4
"""Steps that are timed, after one that is not: it compiles."""

SETS: dict[str, tuple[tuple[int, int, int], int, int, int]] = {
    "cifar10": ((32, 32, 3), 10, 50_000, 10_000),
    "cifar100": ((32, 32, 3), 100, 50_000, 10_000),
    "imagenet2012": ((224, 224, 3), 1000, 1_281_167, 50_000),
}
"""Image shape, classes, training and test images of sets that may not be here: noise stands in for their images."""


class _Clock(keras.callbacks.Callback):
    """Notes when each training step, and each test, has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[float] = []
        self.tests: list[float] = []
        self._began = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        float(logs["loss"])  # the device has ended then
        self.steps.append(time.perf_counter() - self._began)

    def on_test_begin(self, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self.tests.append(time.perf_counter() - self._began)


def seconds_of(config: RunConfig) -> float:
    """Return how long a run would take here, in seconds: its steps, and a test after each epoch. Nothing is written.

    What a run does but once (reading the data, compiling, drawing) is left out.

    Args:
        config: of the run; CIFAR and ImageNet need not be there.
    """
    dataset, images, tested = _stand_in(config)
    recipe = config.recipe
    clock = _Clock()
    with on_devices(config.devices):
        model = build_model(config, dataset)
        model.fit(
            feed(dataset.train.train_batches(recipe.batch_size, config.seed)),
            epochs=1 + ROUNDS,
            steps_per_epoch=1,
            validation_data=feed(dataset.test.test_batches(TEST_BATCH)),
            callbacks=[clock],
            shuffle=False,
            verbose=0,
        )
    step, test = statistics.median(clock.steps[1:]), statistics.median(clock.tests[1:])
    epochs = -(-recipe.steps // (images // recipe.batch_size))
    return recipe.steps * step + epochs * test * tested / len(dataset.test)


def _stand_in(config: RunConfig) -> tuple[Dataset, int, int]:
    """Return data to time a run on, and how many training and test examples its own have."""
    if config.dataset in ("bundled", *SEQUENCES):
        dataset = config.load_dataset()
        return dataset, len(dataset.train), len(dataset.test)
    (height, width, channels), classes, images, tested = SETS[config.dataset]
    shape = (config.image_size or height, config.image_size or width, channels)
    rng = np.random.default_rng(0)

    def some(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(0, 256, (count, *shape), "uint8"), np.arange(count) % classes

    count = max(config.recipe.batch_size, classes)
    return from_arrays(*some(count), *some(TEST_BATCH), tuple(map(str, range(classes))), config.dataset), images, tested


def costs(jobs: Sequence[Job], say: Callable[[str], Any] = lambda text: None) -> list[float | None]:
    """Return how long each run would take here, in seconds; `None` for those that are finished.

    Runs that differ only in their seed or learning rate are timed once.

    Args:
        jobs: of `plan`.
        say: is told what is being timed.
    """
    timed: dict[tuple[str, str], float] = {}
    found: list[float | None] = []
    for job in jobs:
        if job.run is not None:
            found.append(None)
            continue
        key = _what_takes_time(job.config)
        if key not in timed:
            say(f"timing {job.row.title} …")
            timed[key] = seconds_of(job.config)
            keras.backend.clear_session()
            gc.collect()
        found.append(timed[key])
    return found


def _what_takes_time(config: RunConfig) -> tuple[str, str]:
    """Return what the time of a run depends on: all of it but the seed and the learning rates."""
    recipe = dataclasses.replace(config.recipe, schedule=StepSchedule())
    return identity(dataclasses.replace(config, recipe=recipe), with_seed=False), config.precision
