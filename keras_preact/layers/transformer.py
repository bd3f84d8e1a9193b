"""The residual units of a Transformer: the same h, F and f, with attention and a feed-forward network for F.

An encoder block is two residual units in a row (Vaswani et al. 2017). In the original order, post-norm, the
normalization stands after the addition, where the original ResNet has its ReLU: x' = LN(x + F(x)). In the pre-norm
order it stands at the beginning of F, where the proposed ResNet has it: x' = x + F(LN(x)), and the shortcut is free.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

import keras

from keras_preact.errors import InputError, check_choice, check_positive, check_rate
from keras_preact.layers.attention import SelfAttention, xavier
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.dropout import DropPath, seeded_dropout
from keras_preact.layers.placements import NORM, NORM_PLACEMENTS, RELU, Placement, get_placement, placement_config
from keras_preact.layers.products import sequence_multiply_adds
from keras_preact.layers.projection import ConvShortcut, HighwayGating
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.residual import ResidualLayer, in_order
from keras_preact.layers.shortcuts import ExclusiveGating, Shortcut, ShortcutOnlyGating

SEQUENCE_NORMALIZATIONS = ("layer", "rms", "none")
IMAGE_SHORTCUTS = (ConvShortcut, ExclusiveGating, HighwayGating, ShortcutOnlyGating)
"""They are made of convolutions of images."""


def sequence_normalization(kind: str, epsilon: float = 1e-5, name: str = "norm", dtype: Any = None) -> list[Any]:
    """Return the layers that normalize each step of a sequence by itself: one, or none.

    Args:
        kind: `"layer"` (LayerNorm, Ba et al. 2016), `"rms"` (RMSNorm, Zhang and Sennrich 2019) or `"none"`.
        epsilon: added to the variance, or to the mean square. Default 1e-5.
        name: of the layer.
        dtype: dtype or dtype policy.

    Raises:
        InputError: unknown `kind`.

    Example:

    >>> [type(layer).__name__ for layer in sequence_normalization("rms")]
    ['RMSNormalization']
    """
    check_choice("normalization", kind, SEQUENCE_NORMALIZATIONS)
    layers = {"layer": keras.layers.LayerNormalization, "rms": keras.layers.RMSNormalization}
    return [] if kind == "none" else [layers[kind](epsilon=epsilon, name=name, dtype=dtype)]


def _of_norms(placement: Placement) -> Placement:
    """Return a placement that puts nothing but normalization around F: what stands inside F, F decides itself."""
    if RELU in (*placement.first, *placement.last, *placement.after_addition):
        raise InputError(
            f"the placement {placement.name} has ReLU around F, where a Transformer's has normalization alone; give "
            f"one of {', '.join(NORM_PLACEMENTS)}, or your own without"
        )
    return placement


class Sublayer(ResidualLayer):
    """A residual unit of a Transformer: y = h(x) + F(x), x' = f(y), on sequences.

    Args:
        placement: where the normalization stands: a name of `NORM_PLACEMENTS`, or a `Placement`. Default
            `"pre_norm"`.
        shortcut: h: `"identity"` (default), `"constant_scaling(…)"`, `"scaled_residual(…)"`, `"dropout(…)"`,
            or a `Shortcut` of your own.
        normalization: `"layer"` (default), `"rms"` or `"none"`.
        epsilon: of the normalization. Default 1e-5.
        dropout: of F's output, in training. Default 0.
        drop_path: probability, in training, of leaving out F for a sequence. Default 0.
        use_bias: whether F's products have biases. Default `True`.
        gain: factor on the initial kernels of F (β of DeepNorm). Default 1.
        **kwargs: as in `keras.layers.Layer`.

    Input: (batch, steps, width), float; `mask`: bool (batch, steps). Output: the same shape, in the compute dtype.

    Raises:
        InputError: an unknown name, a number out of its range, a placement with ReLU around F, or a shortcut of
            convolutions.
    """

    variable_arguments: ClassVar[dict[str, tuple[str, ...]]] = {"drop_path": ("drop_path/rate",)}

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
        self.placement = _of_norms(get_placement(placement, NORM_PLACEMENTS))
        made = get_shortcut(shortcut, name="shortcut")
        # Not the layer itself, which Keras would count among the layers inside the unit.
        self._new_shortcut = partial(get_shortcut, shortcut if isinstance(shortcut, str) else made)
        if isinstance(made, IMAGE_SHORTCUTS):
            raise InputError(f"the shortcut {shortcut!r} is made of convolutions of images; choose another one")
        self.normalization = check_choice("normalization", normalization, SEQUENCE_NORMALIZATIONS)
        self.epsilon = float(epsilon)
        self.dropout = check_rate("dropout", dropout)
        self.drop_path = check_rate("drop_path", drop_path)
        self.use_bias = bool(use_bias)
        self.gain = float(gain)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        policy = self.dtype_policy
        self.first = self._norms(self.placement.first, "norm")
        self.branch = [*self._weight_layers(input_shape[-1]), *self._norms(self.placement.last, "norm_last")]
        if self.dropout:
            self.branch.append(seeded_dropout(self.dropout, 3, dtype=policy, name="dropout"))
        if self.drop_path:
            self.branch.append(DropPath(self.drop_path, dtype=policy, name="drop_path"))
        self.shortcut = self._new_shortcut(name="shortcut", dtype=policy)
        self.reshape = []
        self.last = self._norms(self.placement.after_addition, "norm_after_addition")
        shape = input_shape
        for layer in (*self.first, *self.branch):
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        self.shortcut.build(input_shape, input_shape)
        for layer in self.last:
            layer.build(input_shape)
        super().build(input_shape)

    def _norms(self, steps: tuple[str, ...], name: str) -> list[keras.layers.Layer]:
        return (
            sequence_normalization(self.normalization, self.epsilon, name, self.dtype_policy) if NORM in steps else []
        )

    @abstractmethod
    def _weight_layers(self, width: int) -> list[keras.layers.Layer]:
        """Return F without normalization and dropout, from `width` to `width`."""

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.terms(x, mask)[-1]

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of F on one sequence of `input_shape`."""
        return sequence_multiply_adds(self.branch, input_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        (shortcut,) = self._new_shortcut.args
        return {
            **super().get_config(),
            "placement": placement_config(self.placement, NORM_PLACEMENTS),
            "shortcut": keras.saving.serialize_keras_object(shortcut) if isinstance(shortcut, Shortcut) else shortcut,
            "normalization": self.normalization,
            "epsilon": self.epsilon,
            "dropout": self.dropout,
            "drop_path": self.drop_path,
            "use_bias": self.use_bias,
            "gain": self.gain,
        }


@keras.saving.register_keras_serializable(package="keras_preact")
class AttentionUnit(Sublayer):
    """A residual unit whose F is self-attention.

    Args:
        heads: number of heads; divides the width.
        causal: whether a step attends to itself and the steps before it only. Default `False`.
        **kwargs: as in `Sublayer`; `dropout` drops attention weights too.

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
        self.causal = bool(causal)

    def _weight_layers(self, width: int) -> list[keras.layers.Layer]:
        attention = SelfAttention(
            self.heads,
            self.causal,
            self.dropout,
            self.use_bias,
            self.gain,
            dtype=self.dtype_policy,
            name="attention",
        )
        return [attention]

    def residual(self, activated: Any, mask: Any = None) -> Any:
        attention, *rest = self.branch
        return in_order(rest, attention(activated, mask=mask))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": self.heads, "causal": self.causal}


@keras.saving.register_keras_serializable(package="keras_preact")
class FeedForwardUnit(Sublayer):
    """A residual unit whose F is the feed-forward network of each step: Dense, activation, Dense.

    Args:
        feed_forward_dim: width of the hidden layer. Default `None`: 4 × the input's.
        activation: of the hidden layer: the name of a Keras activation. Default `"gelu"`.
        **kwargs: as in `Sublayer`; `dropout` drops values of the hidden layer too.

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
        self.activation = keras.activations.get(activation)

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
        heads: number of heads; divides the width.
        feed_forward_dim: width of the hidden layer. Default `None`: 4 × the input's.
        placement: where the normalization stands: `"pre_norm"` (default), `"post_norm"`, `"sandwich"` (before F and
            after it), `"no_norm"`, or a `Placement`.
        shortcut: h of both units. Default `"identity"`. `"scaled_residual"` with `"no_norm"` is ReZero (and, in
            a Transformer, SkipInit), `"scaled_residual(initial=0.1, per_channel=True)"` with `"pre_norm"` LayerScale;
            `deepnorm` gives the settings of DeepNorm.
        causal: whether a step attends to itself and the steps before it only. Default `False`.
        activation: of the hidden layer. Default `"gelu"`.
        normalization: `"layer"` (default), `"rms"` or `"none"`.
        epsilon: of the normalization. Default 1e-5.
        dropout: of attention weights, of the hidden layer and of each F, in training. Default 0.
        drop_path: probability, in training, of leaving out an F for a sequence. Default 0.
        use_bias: whether the products have biases. Default `True`.
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

    def call(self, x: Any, training: bool | None = None, mask: Any = None) -> Any:
        return self.feed_forward(self.attention(x, training=training, mask=mask), training=training)

    def residual_layers(self) -> dict[str, ResidualLayer]:
        """Return the two residual units that the block is made of, by a suffix for their names."""
        return {"_attention": self.attention, "_feed_forward": self.feed_forward}

    @property
    def keeps_identity(self) -> bool:
        """Whether both units are x' = x + F(x) (Eq. 3)."""
        return self.attention.keeps_identity and self.feed_forward.keeps_identity

    def multiply_adds(self, input_shape: Any) -> int:
        """Return the multiply-adds of the block on one sequence of `input_shape`."""
        return self.attention.multiply_adds(input_shape) + self.feed_forward.multiply_adds(input_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        units = {**self.attention.get_config(), **self.feed_forward.get_config()}
        units.pop("frozen", None)  # numbers of layers in the unit, not in the block
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
    """Return the arguments that make an `EncoderBlock` one of DeepNorm's: LN(αx + F(x)), F's kernels begun at β.

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
