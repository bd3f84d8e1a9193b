"""Preprocessing as part of a network: from uint8 images of any size to the pixels that its weights were trained on."""

from __future__ import annotations

from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.graph import check_model
from keras_preact.layers.units import ResidualUnit
from keras_preact.models.profiles import Preprocessing, conventions
from keras_preact.models.resnet import with_policy
from keras_preact.models.trained import require_uint8


def with_preprocessing(network: keras.Model, preprocessing: str | Preprocessing = "paper") -> keras.Model:
    """Return a network that accepts uint8 images, and resizes, crops and normalizes them itself.

    Args:
        network: an ImageNet network of this package for square images, usually with weights of another code base.
        preprocessing: profile of the code base that trained the weights: `"paper"` (default; also torchvision's),
            `"timm"`, `"keras_applications"`, …; or a `Preprocessing`.

    Returns:
        A functional model that contains `network` and has the same outputs. Input: uint8 RGB images (batch, height,
        width, 3) of any size, the same for all images of a batch; other dtypes are refused. If the input size of
        `network` differs from `Preprocessing.crop`, the size before the crop changes in proportion.

    Raises:
        InputError: the network has no fixed, square image size; or a profile is passed that is unknown, has no ImageNet
            networks or no fixed preprocessing, or the network has no residual units.

    Example:

    >>> from keras_preact.models import imagenet_resnet
    >>> network = imagenet_resnet(18, "original", input_shape=(64, 64, 3), classes=10)
    >>> with_preprocessing(network).input_shape
    (None, None, None, 3)
    """
    check_model(network)
    if isinstance(preprocessing, str):
        preprocessing = _of_profile(network, preprocessing)
    shape = network.input_shape[1:]
    if len(shape) != 3 or 3 not in (shape[0], shape[-1]):
        raise InputError(f"the input of {network.name} has the shape {shape}; build the network for RGB images")
    channels_first = shape[0] == 3
    size = shape[1]
    if size is None or shape[1 if channels_first else 0] != shape[2 if channels_first else 1]:
        raise InputError(f"the input of {network.name} has the shape {shape}; build the network for square images")
    images = keras.Input((None, None, 3), dtype="uint8", name="images")
    x = _prepared(images, preprocessing, size)
    if channels_first:
        x = keras.layers.Permute((3, 1, 2), dtype="float32", name="channels_first")(x)
    model = keras.Model(images, network(x), name=network.name)
    return require_uint8(with_policy(model, network.dtype_policy))


def _prepared(images: Any, preprocessing: Preprocessing, size: int) -> Any:
    """Return the images as float32: resized, cropped to `size` pixels, and normalized."""
    float32: Any = {"dtype": "float32", "data_format": "channels_last"}
    square = round(size * preprocessing.resize / preprocessing.crop)
    x = keras.layers.Rescaling(1.0, dtype="float32", name="as_float")(images)
    # The center of the short side's square is the center of the image.
    options = {"interpolation": preprocessing.interpolation, "crop_to_aspect_ratio": True, "antialias": True}
    x = keras.layers.Resizing(square, square, name="resize", **options, **float32)(x)
    if preprocessing.interpolation == "bicubic":
        x = keras.layers.ReLU(max_value=255.0, dtype="float32", name="clip")(x)  # bicubic interpolation overshoots
    before = round((square - size) / 2)
    crop = ((before, square - size - before),) * 2
    x = keras.layers.Cropping2D(crop, name="crop", **float32)(x)
    if preprocessing.bgr:
        x = keras.ops.flip(x, axis=-1)
    moments = {"mean": preprocessing.mean, "variance": [value**2 for value in preprocessing.deviation]}
    return keras.layers.Normalization(**moments, dtype="float32", name="normalization")(x)


def _of_profile(network: keras.Model, profile: str) -> Preprocessing:
    units = [layer for layer in network.layers if isinstance(layer, ResidualUnit)]
    if not units:
        raise InputError(f"{network.name} has no residual units; pass a Preprocessing instead of a profile")
    found = conventions(profile, "imagenet", units[0].placement).inputs
    if isinstance(found, str):
        raise InputError(f"the preprocessing of {profile} depends on the data; pass a Preprocessing")
    return found
