"""Multi-head self-attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_flag, check_number, check_positive, check_rate
from keras_preact.layers.composite import CompositeLayer, with_channels
from keras_preact.layers.dropout import seeded_dropout


@keras.saving.register_keras_serializable(package="keras_preact")
class SelfAttention(CompositeLayer):
    """Multi-head self-attention: softmax(QKᵀ/√k) V by heads, and a projection (Vaswani et al. 2017).

    One matrix product computes query, key and value. Attention is `keras.ops.dot_product_attention` where that is a
    fused operation: on JAX and PyTorch, unless attention weights are dropped.

    Args:
        heads: number of heads; must divide the width of the input.
        causal: whether a step attends only to itself and earlier steps. Default `False`.
        dropout: fraction of attention weights dropped in training. Default 0.
        use_bias: whether the two dense layers have biases. Default `True`.
        gain: factor on the initial kernels of V and of the output (β of DeepNorm). Default 1.
        **kwargs: as in `keras.layers.Layer`.

    Input: sequences (batch, steps, width), float. `mask`: bool (batch, steps), `False` at padding, which no step
    attends to. Output: (batch, steps, width), in the compute dtype.

    Raises:
        InputError: a number is out of range, the heads do not divide the width, or the input has a different rank or an
            unknown width.

    Example: only without `causal` does the last step change earlier ones.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype("float32")
    >>> changed = x.copy()
    >>> changed[:, 4] += 1
    >>> for attention in (SelfAttention(2), SelfAttention(2, causal=True)):
    ...     y, other = (keras.ops.convert_to_numpy(attention(inputs))[:, :4] for inputs in (x, changed))
    ...     print(bool((y == other).all()))
    False
    True
    """

    def __init__(
        self,
        heads: int,
        causal: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        gain: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heads = check_positive("heads", heads)
        self.causal = check_flag("causal", causal)
        self.dropout = check_rate("dropout", dropout)
        self.use_bias = check_flag("use_bias", use_bias)
        self.gain = check_gain(gain)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        width = width_of("attention", input_shape)
        if width % self.heads:
            raise InputError(f"{self.heads} heads do not divide a width of {width}; choose a divisor")
        shared = {"use_bias": self.use_bias, "dtype": self.dtype_policy}
        self.qkv = keras.layers.Dense(
            3 * width, kernel_initializer=SideBySide((1.0, 1.0, self.gain)), name="qkv", **shared
        )
        self.output_projection = keras.layers.Dense(
            width, kernel_initializer=xavier(self.gain), name="output", **shared
        )
        self.qkv.build(input_shape)
        self.output_projection.build(input_shape)
        if self.dropout:
            self.dropout_layer = seeded_dropout(self.dropout, 4, dtype=self.dtype_policy, name="dropout")
        super().build(input_shape)
        self.input_spec = with_channels(input_shape)

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        batch, steps, width = ops.shape(x)
        by_head = (batch, steps, self.heads, width // self.heads)
        # Split, not indexed: the gradient of an index fills a whole array with zeros.
        query, key, value = (ops.reshape(part, by_head) for part in ops.split(self.qkv(x), 3, axis=-1))
        is_fused = not (self.dropout and training) and keras.backend.backend() != "tensorflow"
        if mask is not None:
            mask = ops.cast(mask, "bool")[:, None, None, :]  # broadcast over heads and queries
        # Keras 3.12 on PyTorch ignores `is_causal` if there is a mask.
        if self.causal and not (is_fused and mask is None):
            earlier = ops.tril(ops.ones((steps, steps), "bool"))[None, None]
            mask = earlier if mask is None else ops.logical_and(mask, earlier)
        if is_fused:
            is_causal = self.causal and mask is None
            attended = ops.dot_product_attention(query, key, value, mask=mask, is_causal=is_causal)
        else:
            attended = self._attend(query, key, value, mask, training)
        return self.output_projection(ops.reshape(attended, (batch, steps, width)))

    def _attend(self, query: Any, key: Any, value: Any, mask: Any, training: bool | None) -> Any:
        """Attention in separate operations: fused ones have no dropout, and TensorFlow has no fused one."""
        scores = ops.einsum("bqhd,bkhd->bhqk", query * query.shape[-1] ** -0.5, key)
        if mask is not None:
            # Far below any score, but finite in float16.
            scores = ops.where(mask, scores, ops.cast(-3e4, scores.dtype))
        weights = ops.softmax(scores)
        if self.dropout:
            weights = self.dropout_layer(weights, training=training)
        return ops.einsum("bhqk,bkhd->bqhd", weights, value)

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds on one sequence: the four projections, QKᵀ, and the weights times V."""
        _, steps, width = input_shape
        return 4 * steps * width * width + 2 * steps * steps * width

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "heads": self.heads,
            "causal": self.causal,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "gain": self.gain,
        }


def width_of(layer: str, input_shape: Any) -> int:
    """Return the width of sequences.

    Args:
        layer: the layer in words, for the error message.
        input_shape: (batch, steps, width).

    Raises:
        InputError: the shape has a different rank or an unknown width.

    >>> width_of("attention", (None, 5, 8))
    8
    """
    if len(input_shape) != 3 or input_shape[-1] is None:
        raise InputError(
            f"{layer} expects sequences (batch, steps, width) of a known width, not shape {tuple(input_shape)}"
        )
    return int(input_shape[-1])


def check_gain(gain: float) -> float:
    """Return the factor on initial kernels if it is a number above 0.

    Raises:
        InputError: it is not. With 0, neither V nor the output would have a gradient.

    >>> check_gain(0.5)
    0.5
    """
    if check_number("gain", gain, 0) ** 2 == 0:  # `xavier` squares it
        raise InputError(f"gain is {gain!r}; it must be greater than 0")
    return float(gain)


def xavier(gain: float = 1.0) -> dict[str, Any]:
    """Return the configuration of Glorot's uniform initializer, as in the original Transformer, times `gain`."""
    return {
        "class_name": "VarianceScaling",
        "config": {"scale": gain**2, "mode": "fan_avg", "distribution": "uniform"},
    }


@keras.saving.register_keras_serializable(package="keras_preact")
class SideBySide(keras.initializers.Initializer):
    """Kernels side by side in one matrix, each initialized separately: Glorot's bounds depend on a kernel's shape.

    Args:
        gains: one factor per kernel.

    >>> kernel = SideBySide((1.0, 0.0))((4, 8))
    >>> tuple(kernel.shape), float(keras.ops.max(keras.ops.abs(kernel[:, 4:])))
    ((4, 8), 0.0)
    """

    def __init__(self, gains: tuple[float, ...]) -> None:
        self.gains = tuple(gains)

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        kernel_shape = (shape[0], shape[1] // len(self.gains))
        kernels = [keras.initializers.get(xavier())(kernel_shape, dtype=dtype) * gain for gain in self.gains]
        return ops.concatenate(kernels, axis=1)

    def get_config(self) -> dict[str, Any]:
        return {"gains": self.gains}
