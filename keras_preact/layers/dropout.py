"""Dropout with a seed of its own, and stochastic depth."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_preact.errors import check_rate


def seeded_dropout(rate: float, rank: int, seed: int | None = None, **options: Any) -> keras.layers.Dropout:
    """Return Keras's `Dropout` of tensors of that rank, whose draws follow from its own seed on every backend.

    With PyTorch, Keras draws from a generator of the whole process if there is neither a seed nor a noise shape: a
    run that is resumed would draw other values.

    >>> seeded_dropout(0.1, rank=3, name="dropout").noise_shape
    (None, None, None)
    """
    return keras.layers.Dropout(rate, noise_shape=(None,) * rank, seed=seed, **options)


@keras.saving.register_keras_serializable(package="keras_preact")
class DropPath(keras.layers.Layer):
    """Leave out F for whole images at random in training (stochastic depth, Huang et al. 2016).

    Where F stays it is divided by the probability of staying, so that its expectation is the same in inference.

    Args:
        rate: probability of leaving F out, from 0 up to, but not including, 1. Kept as a variable (`rate`), so
            that the units of a rolled stack can differ in it and a callback can change it.
        seed: of the random draws; `None` takes Keras's.
        **kwargs: as in `keras.layers.Layer`.

    Input and output: (batch, …), any rank.

    Raises:
        InputError: a rate out of its range.

    Example:

    >>> import numpy as np
    >>> y = keras.ops.convert_to_numpy(DropPath(0.5, seed=0)(np.ones((1000, 2, 2, 1), "float32"), training=True))
    >>> sorted(set(y.ravel().tolist())), abs(float(y.mean()) - 1) < 0.1
    ([0.0, 2.0], True)
    """

    def __init__(self, rate: float = 0.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial_rate = check_rate("drop_path", rate)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        constant = keras.initializers.Constant(self.initial_rate)
        self.rate = self.add_weight(shape=(), initializer=constant, trainable=False, autocast=False, name="rate")
        super().build(input_shape)

    def call(self, residual: Any, training: bool | None = None) -> Any:
        if not training:
            return residual
        keep = 1.0 - ops.convert_to_tensor(self.rate)
        shape = (ops.shape(residual)[0], *(1 for _ in residual.shape[1:]))
        stays = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator) < keep
        return residual * ops.cast(ops.where(stays, 1.0 / keep, 0.0), residual.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.initial_rate, "seed": self.seed}
