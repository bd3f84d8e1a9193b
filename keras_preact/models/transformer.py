"""Pre-norm and post-norm Transformer encoders for tokens, time series or image patches, with one of three heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_flag, check_model_name, check_positive, check_rate
from keras_preact.keras_private import layers_inside
from keras_preact.layers.dropout import seeded_dropout
from keras_preact.layers.placements import NORM, NORM_PLACEMENTS, get_placement
from keras_preact.layers.transformer import EncoderBlock, sequence_normalization
from keras_preact.models.options import network_shortcut, variant_of
from keras_preact.models.resnet import (
    check_float_tensor,
    check_input_tensor,
    drop_path_rates,
    equal_units,
    source_inputs,
    with_policy,
)

EMBEDDING_DEVIATION = 0.02
"""Standard deviation of the initial embeddings of tokens and positions, as in BERT and GPT-2."""


# ---- inputs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tokens:
    """Sequences of token IDs, int32 (batch, length). ID 0 is padding, which attention masks out.

    Attributes:
        vocabulary: number of token IDs, including 0. Default 256.
        length: number of tokens per sequence. Default 128.
        padded: whether ID 0 is padding. Default `True`; `False` makes it an ordinary token.

    Example:

    >>> transformer(Tokens(vocabulary=100, length=12), Classification(3), depth=1, dim=8, heads=2).input_shape
    (None, 12)
    """

    vocabulary: int = 256
    length: int = 128
    padded: bool = True

    def tensor(self) -> Any:
        """Return the model's input."""
        return keras.Input((check_positive("length", self.length),), dtype="int32", name="tokens")

    def embed(self, x: Any, dim: int, dtype: Any) -> Any:
        """Return one vector per token."""
        return keras.layers.Embedding(
            check_positive("vocabulary", self.vocabulary),
            dim,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=EMBEDDING_DEVIATION),
            mask_zero=check_flag("padded", self.padded),
            dtype=dtype,
            name="embedding",
        )(x)


@dataclass(frozen=True)
class Series:
    """Time series, float (batch, length, features).

    Attributes:
        length: number of time steps. Default 96.
        features: number of values per step. Default 1.

    Example:

    >>> transformer(Series(length=12, features=3), Classification(2), depth=1, dim=8, heads=2).input_shape
    (None, 12, 3)
    """

    length: int = 96
    features: int = 1

    def tensor(self) -> Any:
        """Return the model's input."""
        shape = (check_positive("length", self.length), check_positive("features", self.features))
        return keras.Input(shape, name="series")

    def embed(self, x: Any, dim: int, dtype: Any) -> Any:
        """Return one vector per step."""
        return keras.layers.Dense(dim, dtype=dtype, name="embedding")(x)


@dataclass(frozen=True)
class Patches:
    """Images, float (batch, height, width, channels), cut into square patches (Vision Transformer).

    Attributes:
        image_shape: (height, width, channels). Default CIFAR's.
        size: height and width of a patch in pixels; must divide those of the image. Default 4.

    Example:

    >>> vision = transformer(Patches((32, 32, 3), size=8), Classification(10), depth=1, dim=8, heads=2)
    >>> vision.get_layer("patches").output.shape
    (None, 16, 8)
    """

    image_shape: tuple[int, int, int] = (32, 32, 3)
    size: int = 4

    def tensor(self) -> Any:
        """Return the model's input."""
        return keras.Input(self._shape(), name="images")

    def embed(self, x: Any, dim: int, dtype: Any) -> Any:
        """Return one vector per patch, row by row."""
        height, width, _ = self._shape()
        size = check_positive("patch size", self.size)
        if height % size or width % size:
            raise InputError(f"patches of {size} pixels do not divide images of {height}×{width}; choose a divisor")
        x = keras.layers.Conv2D(dim, size, strides=size, data_format="channels_last", dtype=dtype, name="embedding")(x)
        return keras.layers.Reshape((height // size * (width // size), dim), dtype=dtype, name="patches")(x)

    def _shape(self) -> tuple[int, ...]:
        if not isinstance(self.image_shape, Sequence) or len(self.image_shape) != 3:
            raise InputError(f"image_shape is {self.image_shape}; pass (height, width, channels)")
        return tuple(map(check_positive, ("height", "width", "channels"), self.image_shape))


# ---- heads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classification:
    """Logits for a whole sequence, from the mean of its steps without padding: (batch, classes), float32.

    Attributes:
        classes: number of classes. Default 2.

    Example:

    >>> transformer(Tokens(100, 12), Classification(3), depth=1, dim=8, heads=2).output_shape
    (None, 3)
    """

    classes: int = 2
    causal = False

    def __call__(self, x: Any) -> Any:
        x = MeanOfSteps(dtype="float32", name="avg_pool")(x)
        return keras.layers.Dense(check_positive("classes", self.classes), dtype="float32", name="logits")(x)


@dataclass(frozen=True)
class Forecast:
    """Forecast of the next values, computed from the last step: (batch, horizon, targets), float32.

    Attributes:
        horizon: number of time steps to forecast. Default 24.
        targets: number of values per step. Default 1.

    Example:

    >>> transformer(Series(12, 3), Forecast(horizon=4), depth=1, dim=8, heads=2).output_shape
    (None, 4, 1)
    """

    horizon: int = 24
    targets: int = 1
    causal = False

    def __call__(self, x: Any) -> Any:
        shape = (check_positive("horizon", self.horizon), check_positive("targets", self.targets))
        x = LastStep(dtype="float32", name="last_step")(x)
        x = keras.layers.Dense(shape[0] * shape[1], dtype="float32", name="values")(x)
        return keras.layers.Reshape(shape, dtype="float32", name="forecast")(x)


@dataclass(frozen=True)
class NextToken:
    """Logits of the next token at every step: (batch, length, vocabulary), float32.

    Attention is causal: a step sees only itself and earlier steps.

    Attributes:
        vocabulary: number of tokens. Default 256.

    Example:

    >>> transformer(Tokens(100, 12, padded=False), NextToken(100), depth=1, dim=8, heads=2).output_shape
    (None, 12, 100)
    """

    vocabulary: int = 256
    causal = True

    def __call__(self, x: Any) -> Any:
        return keras.layers.Dense(check_positive("vocabulary", self.vocabulary), dtype="float32", name="logits")(x)


Inputs = Tokens | Series | Patches
Head = Classification | Forecast | NextToken


@keras.saving.register_keras_serializable(package="keras_preact")
class MeanOfSteps(keras.layers.Layer):
    """The mean over the steps of a sequence, without padding: (batch, steps, width) → (batch, width).

    Like `keras.layers.GlobalAveragePooling1D`, but a sequence of only padding has mean 0, not 0 / 0.

    >>> import numpy as np
    >>> x, mask = np.arange(8.0).reshape(2, 2, 2), np.array([[True, False], [False, False]])
    >>> keras.ops.convert_to_numpy(MeanOfSteps()(x, mask=mask)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x: Any, mask: Any = None) -> Any:
        if mask is None:
            return ops.mean(x, axis=1)
        is_step = ops.cast(mask, "bool")[..., None]
        steps = ops.sum(ops.cast(is_step, x.dtype), axis=1)
        return ops.sum(ops.where(is_step, x, 0), axis=1) / ops.maximum(steps, 1)

    def compute_mask(self, x: Any, mask: Any = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], input_shape[2])


@keras.saving.register_keras_serializable(package="keras_preact")
class LastStep(keras.layers.Layer):
    """The last step of a sequence that is not padding: (batch, steps, width) → (batch, width).

    >>> import numpy as np
    >>> x, mask = np.arange(6.0).reshape(1, 3, 2), np.array([[True, True, False]])
    >>> [keras.ops.convert_to_numpy(LastStep()(x, mask=each)).tolist() for each in (None, mask)]
    [[[4.0, 5.0]], [[2.0, 3.0]]]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x: Any, mask: Any = None) -> Any:
        if mask is None:
            return x[:, -1]
        steps = ops.where(ops.cast(mask, "bool"), ops.arange(x.shape[1], dtype="int32"), 0)
        return ops.squeeze(ops.take_along_axis(x, ops.max(steps, axis=1)[:, None, None], axis=1), 1)

    def compute_mask(self, x: Any, mask: Any = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], input_shape[2])


@keras.saving.register_keras_serializable(package="keras_preact")
class Positions(keras.layers.Layer):
    """Add a learned position embedding to each step.

    Input and output: (batch, steps, width); the number of steps is fixed.

    >>> import numpy as np
    >>> tuple(Positions()(np.zeros((2, 5, 8), "float32")).shape)
    (2, 5, 8)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        normal = keras.initializers.RandomNormal(stddev=EMBEDDING_DEVIATION)
        self.positions = self.add_weight(shape=input_shape[1:], initializer=normal, name="positions")
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        return x + ops.convert_to_tensor(self.positions)

    def multiply_adds(self, input_shape: Any) -> int:
        """Return 0: the layer only adds."""
        return 0

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


# ---- networks -----------------------------------------------------------------------------------------------------


def transformer(
    inputs: Inputs | None = None,
    head: Head | None = None,
    *,
    depth: int = 6,
    dim: int = 128,
    heads: int = 4,
    feed_forward_dim: int | None = None,
    placement: Any = "pre_norm",
    shortcut: Any = "identity",
    activation: Any = "gelu",
    normalization: str = "layer",
    epsilon: float = 1e-5,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    gain: float = 1.0,
    rolled: bool | None = False,
    remat: bool | str = False,
    input_tensor: Any = None,
    dtype: Any = None,
    name: str | None = None,
) -> keras.Model:
    """A Transformer encoder: embedding, positions, equal blocks, and a head.

    Pre-norm and sandwich blocks are followed by a final normalization.

    Args:
        inputs: `Tokens`, `Series` or `Patches`. Default `Tokens()`: sequences of 128 tokens from a vocabulary of 256.
        head: `Classification`, `Forecast` or `NextToken` (causal blocks). Default `Classification()`: two classes.
        depth: number of blocks. Default 6.
        dim: width of the residual stream. Default 128.
        heads: number of attention heads; must divide `dim`. Default 4.
        feed_forward_dim: width of the hidden layer of the feed-forward networks. Default 4 × `dim`.
        placement: `"pre_norm"` (default), `"post_norm"`, `"sandwich"`, `"no_norm"`, or a `Placement`.
        shortcut, activation, normalization, epsilon, gain: of the blocks; see `EncoderBlock`.
        dropout: rate in the blocks and after the positions are added. Default 0.
        drop_path: probability of dropping the last block's branches in training (stochastic depth). It grows linearly
            from 0 at the first block. Default 0.
        rolled: `False` (default) makes each block a layer, `encoder_block01`, …. `True` makes all blocks one layer,
            `encoder_stack`, which loops over stacked weights. `None` chooses by the backend and `depth` (see
            `default_rolled`).
        remat: activation checkpointing of the blocks; see `UnitStack`.
        input_tensor: a Keras tensor to build on, instead of a new input.
        dtype: dtype or dtype policy of the layers. Default: Keras's setting. Heads are always float32.
        name: of the model. Default: for example `"transformer6_pre_norm"`.

    Returns:
        A functional `keras.Model`; see `inputs` and `head` for its input and output.

    Raises:
        InputError: a number is out of range, a name is unknown, or `heads` does not divide `dim`.

    Example:

    >>> model = transformer(Series(length=48, features=3), Forecast(horizon=12), depth=2, dim=16)
    >>> model.name, tuple(model.output.shape)
    ('transformer2_pre_norm', (None, 12, 1))
    """
    inputs, head = inputs or Tokens(), head or Classification()
    placement = get_placement(placement, NORM_PLACEMENTS)
    network_shortcut(shortcut)
    if input_tensor is not None:
        _check_fits(input_tensor, inputs)
    check_positive("depth", depth)
    name = name or f"transformer{depth}_{placement.name}"
    check_model_name(name)
    start = inputs.tensor() if input_tensor is None else input_tensor
    x = Positions(dtype=dtype, name="positions")(inputs.embed(start, check_positive("dim", dim), dtype))
    if check_rate("dropout", dropout):
        x = seeded_dropout(dropout, 3, dtype=dtype, name="embedding_dropout")(x)
    block = partial(
        EncoderBlock,
        heads,
        feed_forward_dim,
        placement=placement,
        shortcut=shortcut,
        causal=head.causal,
        activation=activation,
        normalization=normalization,
        epsilon=epsilon,
        dropout=dropout,
        gain=gain,
        dtype=dtype,
    )
    x = equal_units(
        block,
        drop_path_rates(drop_path, depth),
        x,
        rolled=rolled,
        remat=remat,
        stack="encoder_stack",
        names=[f"encoder_block{k:02d}" for k in range(1, depth + 1)],
    )
    if NORM in placement.head:
        for layer in sequence_normalization(normalization, epsilon, "final_norm", dtype):
            x = layer(x)
    model = keras.Model(source_inputs(start), head(x), name=name)
    return with_policy(model, dtype)


def vocabulary_of(model: keras.Model) -> int:
    """Return the number of tokens that every embedding in a model accepts; without one, the default of `Tokens`."""
    sizes = [layer.input_dim for layer in layers_inside(model) if isinstance(layer, keras.layers.Embedding)]
    return min(sizes, default=Tokens.vocabulary)


def _check_fits(input_tensor: Any, inputs: Inputs) -> None:
    check = check_input_tensor if isinstance(inputs, Tokens) else check_float_tensor
    check(input_tensor)
    found, expected = tuple(input_tensor.shape[1:]), tuple(inputs.tensor().shape[1:])
    is_fixed_length = isinstance(inputs, Tokens) and len(found) == 1 and None not in found
    if found != expected and not is_fixed_length:
        raise InputError(
            f"an input of {input_tensor.name} has the shape {found}, and {type(inputs).__name__} describes {expected}; "
            "make them equal"
        )


@variant_of(transformer, "placement")
def prenorm_transformer(inputs: Inputs | None = None, head: Head | None = None, **options: Any) -> keras.Model:
    """A pre-norm Transformer encoder, x' = x + F(LN(x)), with one more normalization before the head.

    Arguments, result and errors as in `transformer`, without `placement`.

    >>> model = prenorm_transformer(depth=2, dim=16, rolled=False)
    >>> [layer.name for layer in model.layers]  # doctest: +NORMALIZE_WHITESPACE
    ['tokens', 'embedding', 'positions', 'encoder_block01', 'encoder_block02', 'final_norm', 'avg_pool', 'logits']
    """
    return transformer(inputs, head, placement="pre_norm", **options)


@variant_of(transformer, "placement")
def postnorm_transformer(inputs: Inputs | None = None, head: Head | None = None, **options: Any) -> keras.Model:
    """A post-norm Transformer encoder, the original order: x' = LN(x + F(x)).

    Arguments, result and errors as in `transformer`, without `placement`.

    >>> model = postnorm_transformer(depth=2, dim=16, rolled=False)
    >>> model.get_layer("encoder_block02").keeps_identity
    False
    """
    return transformer(inputs, head, placement="post_norm", **options)
