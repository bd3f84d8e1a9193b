"""The residual units of a Transformer: the same h, F and f, where F is attention or a feed-forward network.

An encoder block is two residual units in a row (Vaswani et al. 2017). The original order, post-norm, normalizes after
the addition, where the original ResNet has its ReLU: x' = LN(x + F(x)). The pre-norm order normalizes at the start of
F, like the proposed ResNet: x' = x + F(LN(x)). Its shortcut path is the identity.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import keras

from keras_preact.errors import InputError, check_choice, check_flag, check_number, check_positive, check_rate
from keras_preact.keras_private import calling
from keras_preact.layers.attention import SelfAttention, check_gain, width_of, xavier
from keras_preact.layers.composite import CompositeLayer, in_order, with_channels
from keras_preact.layers.dropout import DropPath, seeded_dropout
from keras_preact.layers.placements import NORM, NORM_PLACEMENTS, RELU, Placement, get_placement, placement_config
from keras_preact.layers.preactivation import get_activation
from keras_preact.layers.products import sequence_multiply_adds
from keras_preact.layers.projection import ConvShortcut, HighwayGating
from keras_preact.layers.residual import ResidualLayer, check_floating
from keras_preact.layers.shortcuts import ExclusiveGating, Shortcut, ShortcutOnlyGating

SEQUENCE_NORMALIZATIONS = ("layer", "rms", "none")
IMAGE_SHORTCUTS = (ConvShortcut, ExclusiveGating, HighwayGating, ShortcutOnlyGating)
"""Shortcuts made of 2D convolutions, which cannot run on sequences."""


@keras.saving.register_keras_serializable(package="keras_preact")
class RMSNorm(keras.layers.RMSNormalization):
    """Keras's RMSNormalization, which also passes the mask on, as LayerNormalization does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True


def sequence_normalization(kind: str, epsilon: float = 1e-5, name: str = "norm", dtype: Any = None) -> list[Any]:
    """Return the layers that normalize each step of a sequence separately: one, or none.

    Args:
        kind: `"layer"` (LayerNorm, Ba et al. 2016), `"rms"` (RMSNorm, Zhang and Sennrich 2019) or `"none"`.
        epsilon: added to the variance, or to the mean square. Default 1e-5.
        name: of the layer.
        dtype: dtype or dtype policy.

    Raises:
        InputError: unknown `kind`.

    Example:

    >>> [type(layer).__name__ for layer in sequence_normalization("rms")]
    ['RMSNorm']
    """
    check_choice("normalization", kind, SEQUENCE_NORMALIZATIONS)
    layers = {"layer": keras.layers.LayerNormalization, "rms": RMSNorm}
    return [] if kind == "none" else [layers[kind](epsilon=epsilon, name=name, dtype=dtype)]


class Sublayer(ResidualLayer):
    """A residual unit of a Transformer: y = h(x) + F(x), x' = f(y), on sequences.

    Args:
        placement: where the normalization comes: a name of `NORM_PLACEMENTS`, or a `Placement` without ReLU around F.
            Default `"pre_norm"`.
        shortcut: h: `"identity"` (default), `"constant_scaling(…)"`, `"scaled_residual(…)"`, `"dropout(…)"`,
            or a custom `Shortcut`.
        normalization: `"layer"` (default), `"rms"` or `"none"`.
        epsilon: of the normalization. Default 1e-5.
        dropout: rate of dropout on F's output, in training. Default 0.
        drop_path: probability of dropping F for a sequence, in training. Default 0.
        use_bias: whether F's dense layers have biases. Default `True`.
        gain: factor on the initial kernels of F, except those of queries and keys (β of DeepNorm). Default 1.
        **kwargs: as in `keras.layers.Layer`.

    Input: (batch, steps, width), float; `mask`: bool (batch, steps), `False` at padding. Output: the same shape, in the
    compute dtype.

    Raises:
        InputError: an unknown name, a number out of range, a placement with ReLU around F, a shortcut with
            convolutions, or an input of a different rank or unknown width.
    """

    def __init__(
        self,
        *,
        placement: str | Placement | dict[str, Any] = "pre_norm",
        shortcut: str | Shortcut | dict[str, Any] = "identity",
        normalization: str = "layer",
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        use_bias: bool = True,
        gain: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.placement = get_placement(placement, NORM_PLACEMENTS)
        if RELU in (*self.placement.first, *self.placement.last, *self.placement.after_addition):
            raise InputError(
                f"the placement {self.placement.name} has ReLU around F, but a Transformer only normalizes there; use "
                f"one of {', '.join(NORM_PLACEMENTS)}, or a custom placement without ReLU"
            )
        if isinstance(self._set_shortcut(shortcut), IMAGE_SHORTCUTS):
            raise InputError(f"the shortcut {shortcut!r} is made of convolutions and needs images; use another one")
        self.normalization = check_choice("normalization", normalization, SEQUENCE_NORMALIZATIONS)
        self.epsilon = check_number("epsilon", epsilon, 0)
        self.dropout = check_rate("dropout", dropout)
        self.drop_path = check_rate("drop_path", drop_path)
        self.use_bias = check_flag("use_bias", use_bias)
        self.gain = check_gain(gain)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        policy, width = self.dtype_policy, width_of(self.name, input_shape)
        self.preact = self._norms(self.placement.first, "norm")
        self.branch = [*self._weight_layers(width), *self._norms(self.placement.last, "norm_last")]
        if self.dropout:
            self.branch.append(seeded_dropout(self.dropout, 3, dtype=policy, name="dropout"))
        if self.drop_path:
            self.branch.append(DropPath(self.drop_path, dtype=policy, name="drop_path"))
        self.shortcut = self._new_shortcut(name="shortcut", dtype=policy)
        self.projection = []
        self.postact = self._norms(self.placement.after_addition, "norm_after_addition")
        super().build(input_shape)

    def _norms(self, steps: tuple[str, ...], name: str) -> list[keras.layers.Layer]:
        return (
            sequence_normalization(self.normalization, self.epsilon, name, self.dtype_policy) if NORM in steps else []
        )

    @abstractmethod
    def _weight_layers(self, width: int) -> list[keras.layers.Layer]:
        """Return F without normalization and dropout, from `width` to `width`."""

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        with calling(training):
            return self.terms(x, mask)[-1]

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of F and of the shortcut on one sequence of `input_shape`."""
        return sequence_multiply_adds(self.branch, input_shape) + self.shortcut.multiply_adds(input_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "placement": placement_config(self.placement, NORM_PLACEMENTS),
            "normalization": self.normalization,
            "epsilon": self.epsilon,
            "dropout": self.dropout,
            "drop_path": self.drop_path,
            "use_bias": self.use_bias,
            "gain": self.gain,
        }


@keras.saving.register_keras_serializable(package="keras_preact")
class AttentionUnit(Sublayer):
    """A residual unit with self-attention as F.

    Args:
        heads: number of heads; must divide the width.
        causal: whether a step attends only to itself and earlier steps. Default `False`.
        **kwargs: as in `Sublayer`; `dropout` also drops attention weights.

    Input and output: (batch, steps, width).

    Example: with F scaled by 0, the unit returns its input.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    >>> bool((keras.ops.convert_to_numpy(AttentionUnit(2, shortcut="scaled_residual")(x)) == x).all())
    True
    """

    def __init__(self, heads: int, causal: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = check_positive("heads", heads)
        self.causal = check_flag("causal", causal)

    def _weight_layers(self, width: int) -> list[keras.layers.Layer]:
        options = {"dtype": self.dtype_policy, "name": "attention"}
        return [SelfAttention(self.heads, self.causal, self.dropout, self.use_bias, self.gain, **options)]

    def residual(self, activated: Any, mask: Any = None) -> Any:
        attention, *rest = self.branch
        return in_order(rest, attention(activated, mask=mask))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": self.heads, "causal": self.causal}


@keras.saving.register_keras_serializable(package="keras_preact")
class FeedForwardUnit(Sublayer):
    """A residual unit with a feed-forward network, the same at each step, as F: Dense, activation, Dense.

    Args:
        feed_forward_dim: width of the hidden layer. Default `None`: 4 × the input's.
        activation: of the hidden layer: any Keras activation, for example `"relu"`. Default `"gelu"`.
        **kwargs: as in `Sublayer`; `dropout` also drops values of the hidden layer.

    Input and output: (batch, steps, width).

    Example:

    >>> import numpy as np
    >>> unit = FeedForwardUnit()
    >>> tuple(unit(np.ones((2, 5, 8), "float32")).shape), tuple(unit.branch[0].kernel.shape)
    ((2, 5, 8), (8, 32))
    """

    def __init__(self, feed_forward_dim: int | None = None, activation: Any = "gelu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.feed_forward_dim = (
            None if feed_forward_dim is None else check_positive("feed_forward_dim", feed_forward_dim)
        )
        self.activation = get_activation("activation", activation)

    def _weight_layers(self, width: int) -> list[keras.layers.Layer]:
        shared = {"use_bias": self.use_bias, "kernel_initializer": xavier(self.gain), "dtype": self.dtype_policy}
        hidden = keras.layers.Dense(
            self.feed_forward_dim or 4 * width, activation=self.activation, name="dense1", **shared
        )
        projection = keras.layers.Dense(width, name="dense2", **shared)
        if not self.dropout:
            return [hidden, projection]
        return [hidden, seeded_dropout(self.dropout, 3, dtype=self.dtype_policy, name="dropout_hidden"), projection]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "feed_forward_dim": self.feed_forward_dim,
            "activation": keras.activations.serialize(self.activation),
        }


@keras.saving.register_keras_serializable(package="keras_preact")
class EncoderBlock(CompositeLayer):
    """An encoder block of a Transformer: an `AttentionUnit`, then a `FeedForwardUnit`.

    Args:
        heads: number of heads; must divide the width.
        feed_forward_dim: width of the hidden layer. Default `None`: 4 × the input's.
        placement: where the normalization comes: `"pre_norm"` (default), `"post_norm"`, `"sandwich"` (before and
            after F), `"no_norm"`, or a `Placement`.
        shortcut: h of both units. Default `"identity"`. `"scaled_residual"` with `"no_norm"` is ReZero;
            `"scaled_residual(initial=0.1, per_channel=True)"` with `"pre_norm"` is LayerScale; `deepnorm` returns the
            settings of DeepNorm.
        causal: whether a step attends only to itself and earlier steps. Default `False`.
        activation: of the hidden layer. Default `"gelu"`.
        normalization: `"layer"` (default), `"rms"` or `"none"`.
        epsilon: of the normalization. Default 1e-5.
        dropout: rate of dropout on attention weights, on the hidden layer and on each F, in training. Default 0.
        drop_path: probability of dropping an F for a sequence, in training. Default 0.
        use_bias: whether the dense layers have biases. Default `True`.
        gain: factor on the initial kernels of V, of the attention's output and of the feed-forward network (β of
            DeepNorm). Default 1.
        **kwargs: as in `keras.layers.Layer`.

    Input: (batch, steps, width), float; `mask`: bool (batch, steps), `False` at padding. Output: the same shape, in
    the compute dtype.

    Raises:
        InputError: see `Sublayer`.

    Example:

    >>> import numpy as np
    >>> block = EncoderBlock(heads=2, **deepnorm(depth=18))
    >>> tuple(block(np.ones((2, 5, 8), "float32")).shape), round(block.gain, 3)
    ((2, 5, 8), 0.289)
    """

    variable_arguments: ClassVar[dict[str, tuple[str, ...]]] = {
        "drop_path": ("attention/drop_path/rate", "feed_forward/drop_path/rate")
    }

    def __init__(
        self,
        heads: int,
        feed_forward_dim: int | None = None,
        *,
        placement: str | Placement | dict[str, Any] = "pre_norm",
        shortcut: str | Shortcut | dict[str, Any] = "identity",
        causal: bool = False,
        activation: Any = "gelu",
        normalization: str = "layer",
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        use_bias: bool = True,
        gain: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        shared: dict[str, Any] = {
            "placement": placement,
            "shortcut": shortcut,
            "normalization": normalization,
            "epsilon": epsilon,
            "dropout": dropout,
            "drop_path": drop_path,
            "use_bias": use_bias,
            "gain": gain,
            "dtype": self.dtype_policy,
        }
        self.attention = AttentionUnit(heads, causal, name="attention", **shared)
        self.feed_forward = FeedForwardUnit(feed_forward_dim, activation, name="feed_forward", **shared)
        self.gain = self.attention.gain
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        self.attention.build(input_shape)
        self.feed_forward.build(input_shape)
        super().build(input_shape)
        self.input_spec = with_channels(input_shape)

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.feed_forward(self.attention(x, training=training, mask=mask), training=training)

    def residual_layers(self) -> dict[str, ResidualLayer]:
        """Return the block's two residual units, each by the suffix for its name."""
        return {"_attention": self.attention, "_feed_forward": self.feed_forward}

    @property
    def keeps_identity(self) -> bool:
        """Whether both units are x' = x + F(x) (Eq. 3)."""
        return self.attention.keeps_identity and self.feed_forward.keeps_identity

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of the block on one sequence of `input_shape`."""
        return self.attention.multiply_adds(input_shape) + self.feed_forward.multiply_adds(input_shape)

    def compute_output_spec(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        check_floating(self.name, x)
        return super().compute_output_spec(x, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        units = {**self.attention.get_config(), **self.feed_forward.get_config()}
        units.pop("frozen", None)  # indices of layers in a unit, not in the block
        return {**units, **super().get_config()}


class _NamedBlock(EncoderBlock):
    """An encoder block with the placement fixed by its class."""

    fixed: ClassVar[dict[str, Any]]

    def __init__(self, heads: int, feed_forward_dim: int | None = None, **kwargs: Any) -> None:
        super().__init__(heads, feed_forward_dim, **self.fixed, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().get_config().items() if key not in self.fixed}


@keras.saving.register_keras_serializable(package="keras_preact")
class PreNormEncoderBlock(_NamedBlock):
    """An encoder block in the pre-norm order: x' = x + F(LN(x)), for attention and for the feed-forward network.

    Arguments, shapes and errors as in `EncoderBlock`, without `placement`.

    >>> block = PreNormEncoderBlock(heads=2)
    >>> block.build((None, 5, 8))
    >>> block.keeps_identity
    True
    """

    fixed: ClassVar[dict[str, Any]] = {"placement": "pre_norm"}


@keras.saving.register_keras_serializable(package="keras_preact")
class PostNormEncoderBlock(_NamedBlock):
    """An encoder block in the original order: x' = LN(x + F(x)), for attention and for the feed-forward network.

    Arguments, shapes and errors as in `EncoderBlock`, without `placement`.

    >>> import numpy as np
    >>> y = keras.ops.convert_to_numpy(PostNormEncoderBlock(heads=2)(np.random.default_rng(0).normal(size=(1, 5, 8))))
    >>> bool(abs(y.mean(-1)).max() < 1e-6)
    True
    """

    fixed: ClassVar[dict[str, Any]] = {"placement": "post_norm"}


def deepnorm(depth: int) -> dict[str, Any]:
    """Return the arguments of an `EncoderBlock` with DeepNorm: LN(αx + F(x)), with β as the gain of F's kernels.

    Args:
        depth: N, the number of blocks of the encoder: α = (2N)^¼, β = (8N)^−¼ (Wang et al. 2022).

    Example:

    >>> deepnorm(depth=8)["shortcut"]
    'constant_scaling(shortcut=2.0, residual=1.0)'
    """
    alpha, beta = (2 * check_positive("depth", depth)) ** 0.25, (8 * depth) ** -0.25
    return {
        "placement": "post_norm",
        "shortcut": f"constant_scaling(shortcut={alpha!r}, residual=1.0)",
        "gain": beta,
    }
