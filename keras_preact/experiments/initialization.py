"""The gradient of a Transformer's last weights against depth before training: Xiong et al. 2020, Theorem 1.

The setting is that of the theorem: one head, W^Q = W^K = 0, Glorot initialization, ReLU. The untrained network predicts
the next character of film reviews.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.analysis.differentiation import vjp
from keras_preact.data import bundled_characters
from keras_preact.errors import InputError, Stopped, check_positive
from keras_preact.models import NextToken, Tokens, transformer
from keras_preact.training.callbacks import handles_signals
from keras_preact.training.device import seeded
from keras_preact.training.provenance import environment
from keras_preact.training.runs import RunFolder

NORM_ORDERS = ("post_norm", "pre_norm")


@dataclass(frozen=True)
class InitialGradients:
    """Gradient norms of one order.

    Attributes:
        order: `"pre_norm"` or `"post_norm"`.
        norms: ‖∂E/∂W‖ of the last block's second feed-forward kernel by depth, one per seed.
        exponent: s in norm ∝ depth^s, fitted by least squares on logarithms.
        standard_error: standard error of the exponent.
    """

    order: str
    norms: dict[int, list[float]]
    exponent: float
    standard_error: float


def initial_gradients(
    order: str, depths: Sequence[int] = (6, 12, 24, 48), seeds: int = 5, dim: int = 64, batch: int = 8
) -> InitialGradients:
    """Measure the gradient norms of untrained networks and fit their dependence on depth.

    Args:
        order: `"pre_norm"` or `"post_norm"`.
        depths: numbers of blocks, at least three different ones.
        seeds: networks per depth.
        dim: width.
        batch: number of sequences of 128 characters in the loss.

    Raises:
        InputError: fewer than three different depths; the fit would have no standard error.
    """
    if len(set(depths)) < 3:
        raise InputError(f"the depths are {tuple(depths)}; a fit needs at least three different ones")
    check_positive("seeds", seeds)
    data = bundled_characters()
    tokens, labels = data.train.batch(np.arange(batch))
    norms: dict[int, list[float]] = {depth: [] for depth in depths}
    for depth in depths:
        for seed in range(seeds):
            with seeded(seed):
                model = _theorem_model(order, depth, dim, len(data.vocabulary), data.length)
                norms[depth].append(_gradient_norm(model, _last_kernel(model, depth), tokens, labels))
    exponent, error = slope([(math.log(d), math.log(norm)) for d, values in norms.items() for norm in values])
    return InitialGradients(order, norms, exponent, error)


def _theorem_model(order: str, depth: int, dim: int, vocabulary: int, length: int) -> keras.Model:
    model = transformer(
        Tokens(vocabulary, length, padded=False),
        NextToken(vocabulary),
        depth=depth,
        dim=dim,
        heads=1,
        feed_forward_dim=dim,
        placement=order,
        activation="relu",
        rolled=False,
    )
    for number in range(1, depth + 1):
        kernel = model.get_layer(f"encoder_block{number:02d}").attention.branch[0].qkv.kernel
        values = np.array(ops.convert_to_numpy(kernel))
        values[:, : 2 * dim] = 0
        kernel.assign(values)
    return model


def _last_kernel(model: keras.Model, depth: int) -> keras.Variable:
    return model.get_layer(f"encoder_block{depth:02d}").feed_forward.branch[-1].kernel


def _gradient_norm(model: keras.Model, variable: keras.Variable, x: Any, y: Any) -> float:
    def loss(value: Any) -> Any:
        with keras.StatelessScope() as scope:
            scope.add_update((variable, value))
            return ops.mean(ops.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True))

    gradient = vjp(loss, ops.convert_to_tensor(variable.value), ops.ones(()))
    return float(np.linalg.norm(ops.convert_to_numpy(gradient)))


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of the least-squares line through the points, and its standard error.

    >>> slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)])
    (2.0, 0.0)
    """
    x, y = np.array(points).T
    spread = ((x - x.mean()) ** 2).sum()
    found = ((x - x.mean()) * (y - y.mean())).sum() / spread
    residuals = y - y.mean() - found * (x - x.mean())
    return float(found), float(math.sqrt((residuals**2).sum() / (len(x) - 2) / spread))


def _stop(number: int, frame: Any) -> None:
    raise Stopped(number)


def record_initial_gradients(
    out: Path, say: Callable[[str], Any] = lambda text: None, **options: Any
) -> list[InitialGradients]:
    """Measure both orders and write the results into run.json in a new folder.

    If it does not finish, the status there is "interrupted".

    Args:
        out: the new folder.
        say: called with a line of text before each measurement.
        **options: arguments of `initial_gradients`.

    Raises:
        InputError: the folder exists and is not empty.
    """
    folder = RunFolder.create(out)
    folder.update_record(kind="initialization", status="running", environment=environment())
    found = []
    try:
        with handles_signals(_stop):  # the command's own handler leaves no time for the record
            for order in NORM_ORDERS:
                say(f"measuring {order.replace('_', '-')}")
                found.append(initial_gradients(order, **options))
    except BaseException:
        with suppress(OSError, InputError):  # report the original error
            folder.update_record(status="interrupted")
        raise
    folder.update_record(status="finished", result=[asdict(entry) for entry in found])
    return found
