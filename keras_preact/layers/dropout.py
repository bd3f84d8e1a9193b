"""Dropout with its own seed, and stochastic depth."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
from keras import ops

from keras_preact.errors import check_rate


def seeded_dropout(rate: float, rank: int, seed: int | None = None, **options: Any) -> keras.layers.Dropout:
    """Return a Keras `Dropout` for tensors of this rank that uses its own seed generator on every backend.

    With neither a seed nor a noise shape, Keras on PyTorch draws from the global generator, and a resumed run would
    draw different values.

    >>> seeded_dropout(0.1, rank=3, name="dropout").noise_shape
    (None, None, None)
    """
    return keras.layers.Dropout(rate, noise_shape=(None,) * rank, seed=seed, **options)


@keras.saving.register_keras_serializable(package="keras_preact")
class DropPath(keras.layers.Layer):
    """Set the residual branch F to 0 for whole examples at random in training (stochastic depth, Huang et al. 2016).

    For the other examples, F is divided by 1 − `rate`, so that its expectation is the same as at inference.

    Args:
        rate: probability of dropping F, in [0, 1). Default 0. It is stored in a variable, so that the units of a
            rolled stack can have different rates and a callback can change them. The rate is not a weight:
            `keras_preact.models.load_weights` leaves it as it is. Keras's own `load_weights` restores the saved one.
        seed: of the random draws. Default `None`: chosen by Keras.
        **kwargs: as in `keras.layers.Layer`.

    Input and output: (batch, …), any rank.

    Raises:
        InputError: `rate` is out of range.

    Example:

    >>> import numpy as np
    >>> y = keras.ops.convert_to_numpy(DropPath(0.5, seed=0)(np.ones((1000, 2, 2, 1), "float32"), training=True))
    >>> sorted(set(y.ravel().tolist())), abs(float(y.mean()) - 1) < 0.1
    ([0.0, 2.0], True)
    """

    variable_arguments: ClassVar[dict[str, tuple[str, ...]]] = {"rate": ("rate",)}

    def __init__(self, rate: float = 0.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial_rate = check_rate("drop_path", rate)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        constant = keras.initializers.Constant(self.initial_rate)
        settings = {"dtype": "float32", "trainable": False, "autocast": False}
        self.rate = self.add_weight(shape=(), initializer=constant, **settings, name="rate")
        super().build(input_shape)

    def call(self, residual: Any, training: bool | None = None) -> Any:
        residual = ops.cast(residual, self.compute_dtype)  # Keras casts only floating-point inputs
        if not training:
            return residual
        keep_probability = 1.0 - ops.convert_to_tensor(self.rate)
        shape = (ops.shape(residual)[0], *(1 for _ in residual.shape[1:]))
        keep = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator) < keep_probability
        return residual * ops.cast(ops.where(keep, 1.0 / keep_probability, 0.0), residual.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.initial_rate, "seed": self.seed}
