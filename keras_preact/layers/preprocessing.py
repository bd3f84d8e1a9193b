"""The paper's preprocessing as layers: it runs on the device on uint8 batches and is saved with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.errors import InputError, check_count, check_number, check_rate
from keras_preact.layers.preactivation import check_data_format


@keras.saving.register_keras_serializable(package="keras_preact")
class PerPixelMean(keras.layers.Layer):
    """(x − mean) / scale, with one mean per pixel and channel.

    Args:
        scale: divisor. Default 255, which maps pixels from 0 to 255 into [-1, 1]. In training, a batch norm after the
            first convolution cancels it.
        **kwargs: as in `keras.layers.Layer`.

    Input: (batch, height, width, channels), uint8 or float. Output: the same shape, in the compute dtype. The mean
    is a non-trainable weight, zero until `adapt` or `set_mean` sets it.

    Raises:
        InputError: `scale` is 0 or not a finite number.

    Example:

    >>> layer = PerPixelMean()
    >>> images = np.stack([np.full((4, 4, 3), 0, "uint8"), np.full((4, 4, 3), 255, "uint8")])
    >>> layer.adapt(images)
    >>> keras.ops.convert_to_numpy(layer(images))[:, 0, 0, 0].tolist()
    [-0.5, 0.5]
    """

    def __init__(self, scale: float = 255.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = check_number("scale", scale)
        if not self.scale:
            raise InputError("scale is 0, but pixels are divided by it; use 255 or another number")

    def build(self, input_shape: Any) -> None:
        self.mean = self.add_weight(
            shape=tuple(input_shape[1:]),
            initializer="zeros",
            dtype="float32",
            trainable=False,
            autocast=False,
            name="mean",
        )
        super().build(input_shape)

    def adapt(self, images: Any) -> None:
        """Set the mean to that of the images, an array (n, height, width, channels)."""
        self.set_mean(np.asarray(images).mean(0, dtype=np.float64))

    def set_mean(self, mean: np.ndarray) -> None:
        """Set the mean, an array (height, width, channels), such as `load_dataset("bundled").train.mean()`."""
        if not self.built:
            self.build((None, *mean.shape))
        self.mean.assign(mean.astype(np.float32))

    def call(self, x: Any) -> Any:
        difference = ops.cast(x, "float32") - ops.convert_to_tensor(self.mean)
        return ops.cast(difference / self.scale, self.compute_dtype)

    def multiply_adds(self, input_shape: Any) -> int:
        return 0  # like normalization layers, for `models.summary.multiply_adds`

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_preact")
class PadCropFlip(keras.layers.Layer):
    """In training: pad with zeros, crop at random to the original size, flip left to right with probability ½.

    This is the paper's augmentation, drawn independently for each image. Put it after the mean subtraction: the zeros
    then equal the mean, as in the authors' code, instead of black. At inference the layer does nothing.

    Args:
        padding: pixels added on each side, an int; or a float below 1, their share of the image's shorter side, for
            images of several sizes. Default 4.
        seed: seed of the random draws. As for Keras's dropout, `model.save` stores the seed and not how far the draws
            have come; the checkpoints of a run store both. Default: random; `keras.utils.set_random_seed` fixes it.
        data_format: `"channels_last"` or `"channels_first"`. Default: Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Input and output: images (batch, height, width, channels), in the compute dtype.

    Raises:
        InputError: an argument is out of range.

    Example:

    >>> x = np.arange(16.0, dtype="float32").reshape(1, 4, 4, 1)
    >>> layer = PadCropFlip(padding=1, seed=0)
    >>> bool((keras.ops.convert_to_numpy(layer(x)) == x).all()), tuple(layer(x, training=True).shape)
    (True, (1, 4, 4, 1))
    """

    def __init__(
        self, padding: float = 4, seed: int | None = None, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.padding = check_rate("padding", padding) if isinstance(padding, float) else check_count("padding", padding)
        self.seed = seed
        self.data_format = check_data_format(data_format)
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, x: Any, training: bool | None = None) -> Any:
        x = ops.cast(x, self.compute_dtype)  # Keras does not cast integers
        if not training:
            return x
        if self.data_format == "channels_first":
            return ops.transpose(self._augment(ops.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2))
        return self._augment(x)

    def _augment(self, x: Any) -> Any:
        """Gather the pixels of all crops from the padded images at once."""
        height, width, channels = ops.shape(x)[1:]
        pad = self.padding if isinstance(self.padding, int) else self._pixels(x.shape[1:3])
        batch = ops.shape(x)[0]
        # Each replica draws for the global batch and uses its own rows: the result is the same as on one device.
        replica, replicas = _replica()
        begin, end = replica * batch, (replica + 1) * batch
        offsets = keras.random.randint((2, replicas * batch), 0, 2 * pad + 1, seed=self.generator)[:, begin:end]
        flips = keras.random.randint((replicas * batch, 1), 0, 2, seed=self.generator)[begin:end]
        # int32: the default depends on `floatx`, and int16 would overflow.
        columns = ops.expand_dims(ops.arange(width, dtype="int32"), 0)
        columns = columns + flips * (width - 1 - 2 * columns) + offsets[1][:, None]
        rows = ops.expand_dims(ops.arange(height, dtype="int32"), 0) + offsets[0][:, None]
        padded_height, padded_width = height + 2 * pad, width + 2 * pad
        images = ops.expand_dims(ops.arange(batch, dtype="int32"), 1) * padded_height
        positions = (images + rows)[:, :, None] * padded_width + columns[:, None, :]
        padded = ops.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)])
        return ops.take(ops.reshape(padded, (-1, channels)), positions, axis=0)

    def _pixels(self, size: Sequence[int | None]) -> int:
        known = [length for length in size if length is not None]
        if len(known) < 2:
            raise InputError(
                f"{self.name} pads a share of the image's size, which is unknown here; pass padding as whole pixels, "
                "or set the size of the images"
            )
        return round(self.padding * min(known))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "padding": self.padding, "seed": self.seed, "data_format": self.data_format}


def _replica() -> tuple[Any, int]:
    """Return the index of this replica and the number of replicas: (0, 1) on one device.

    Only under TensorFlow's strategies does a layer see less than the global batch.
    """
    if keras.backend.backend() != "tensorflow":
        return 0, 1
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or not tf.distribute.has_strategy():
        return 0, 1
    return context.replica_id_in_sync_group, context.num_replicas_in_sync
