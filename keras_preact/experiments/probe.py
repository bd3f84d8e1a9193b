"""Measurements during training that explain it: signal, gradient and dead channels by depth, at three moments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.analysis import Chain, GradientSignal, dead_fraction, forward_signal, gradient_signal
from keras_preact.data import load_dataset
from keras_preact.errors import InputError
from keras_preact.files import write_atomically
from keras_preact.training.callbacks import RunFolderCallback
from keras_preact.training.config import RunConfig

PROPAGATION = "propagation.json"
"""Name of the file in a run folder."""
EARLY_STEP = 50
IMAGES = 128
DATASETS = ("bundled", "cifar10")
"""Data sets with the classes of the bundled test images, on which the probe measures."""


class PropagationProbe(RunFolderCallback):
    """Measures a network before its first step, after step 50 and after the last, and writes into the run folder.

    Each measurement is an entry of `propagation.json`, taken on one batch of bundled test images with the batch's
    statistics: `step`, and by unit `stage`, `variance` of x_l, `gradient` ‖∂E/∂x_l‖, `direct` (see `direct_shares`)
    and `dead` (the share of channels that the ReLU after the addition sets to zero for every image; empty if there is
    no such ReLU). Measuring changes neither weights nor random state.

    Args:
        config: configuration of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self._last = config.recipe.steps
        self._image_size = config.image_size
        self._step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        # Not the optimizer's `iterations`: in float16, it does not count the steps that a loss scale skips.
        self._step = self.run_folder.record().get("step", 0)
        self._measure_if_due()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        self._measure_if_due()

    def _measure_if_due(self) -> None:
        if self._step not in (0, EARLY_STEP, self._last):
            return
        folder = self.run_folder.path
        found = read_propagation(folder)
        if self._step in [entry["step"] for entry in found]:
            return
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()  # during fit, Keras keeps the state outside the model
        data = load_dataset("bundled", image_size=self._image_size).test
        images, labels = data.batch(np.arange(IMAGES))
        found.append({"step": self._step, **propagation(self.model, images, labels)})
        lines = ",\n".join(json.dumps(entry) for entry in found)
        write_atomically(folder / PROPAGATION, f"[\n{lines}\n]\n")


def propagation(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> dict[str, list[float]]:
    """Return the measurements of `PropagationProbe`, by unit, with four digits.

    Args:
        model: a functional model of consecutive residual units.
        images: inputs of the model (batch, height, width, channels).
        labels: class numbers (batch,).

    Example: identity shortcuts preserve the direct term.

    >>> from keras_preact.models import cifar_resnet
    >>> images, labels = np.random.default_rng(0).normal(size=(8, 32, 32, 3)), np.arange(8)
    >>> propagation(cifar_resnet(14), images, labels)["direct"][-1]
    1.0
    """
    chain = Chain.of(model)
    forward, gradient = forward_signal(chain, images), gradient_signal(chain, images, labels)
    found: dict[str, Sequence[float]] = {
        "stage": [entry.stage for entry in forward],
        "variance": [entry.x.variance for entry in forward],
        "gradient": [entry.norm for entry in gradient],
        "direct": direct_shares(gradient),
        "dead": [entry.channels for entry in dead_fraction(chain, images)],
    }
    return {key: [float(f"{value:.4g}") for value in values] for key, values in found.items()}


def direct_shares(gradient: Sequence[GradientSignal]) -> list[float]:
    """Return the norm of the first term of Eq. (5) at every unit, divided by that of ∂E/∂x_L at the end of its stage.

    It is 1 along identity shortcuts with nothing after the addition. In a unit that changes the shape it includes the
    projection.

    Args:
        gradient: result of `gradient_signal`.
    """
    shares, end = [], gradient[-1]
    for before, after in zip(gradient[-2::-1], gradient[:0:-1], strict=True):
        if before.stage != after.stage:
            end = after  # its input is the last output of the previous stage
        shares.append(before.direct / end.norm if end.norm else 0.0)
    return shares[::-1]


def read_propagation(folder: str | Path) -> list[dict[str, Any]]:
    """Return the measurements that `PropagationProbe` wrote, in order of time; an empty list if there are none.

    Args:
        folder: run folder.

    Raises:
        InputError: the file is damaged.

    Example: `step` is the number of steps before the measurement.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, PROPAGATION).write_text('[{"step": 0, "variance": [1.0, 2.0]}]', encoding="utf-8")
    ...     read_propagation(folder)
    [{'step': 0, 'variance': [1.0, 2.0]}]
    """
    path = Path(folder) / PROPAGATION
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it from a copy, or remove it") from None


def at_moments(found: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return measurements by moment, as far as they exist: `"before"`, `"early"` (after step 50) and `"end"`.

    >>> list(at_moments([{"step": 0}, {"step": 50}, {"step": 124}]))
    ['before', 'early', 'end']
    """
    names = {0: "before", EARLY_STEP: "early"}
    return {names.get(entry["step"], "end"): entry for entry in found}
