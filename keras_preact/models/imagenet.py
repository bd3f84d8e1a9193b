"""The paper's ImageNet networks: four stages at 1/4 to 1/32 of the image size."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.convolutions import WeightLayer
from keras_preact.layers.placements import get_placement
from keras_preact.models.options import NetworkOptions, variant_of, with_network_options
from keras_preact.models.profiles import conventions
from keras_preact.models.resnet import Network, Stage, Stem, build_network, dilate

FILTERS = (64, 128, 256, 512)
UNITS: dict[int, tuple[str, tuple[int, int, int, int]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
    200: ("bottleneck", (3, 24, 36, 3)),
}
"""Block and units per stage, by depth."""

STEMS = {
    "7x7": Stem(WeightLayer(64, 7, strides=2), max_pool=True),
    # For images of 32 to 64 pixels, as in the widespread "ResNet-18 for CIFAR".
    "3x3": Stem(WeightLayer(64, 3)),
}

STRIDE_UNITS: dict[str, list[dict[str, int]]] = {
    "first": [{}, *[{"strides": 2}] * 3],
    "last": [*[{"last_strides": 2}] * 3, {}],
}
"""Strides of each stage, by the unit that halves the image."""


@with_network_options
def imagenet_resnet(
    depth: int = 50,
    placement: Any = "full_preactivation",
    shortcut: Any = "identity",
    classes: int = 1000,
    input_shape: Sequence[int | None] | None = None,
    rolled: bool | None = False,
    *,
    stem: str = "7x7",
    stride_in: str | None = None,
    output_stride: int | None = None,
    **options: Any,
) -> keras.Model:
    """A residual network of the paper's ImageNet experiments (section 5, Table 5).

    A stem of a 7×7 convolution with stride 2, batch norm, ReLU and max-pooling, then four stages of units with 64,
    128, 256 and 512 filters. Pre-activation networks end with one more batch norm and ReLU. Global average pooling
    and a dense layer follow. The stem has activated the first unit's input, so this unit starts without activation.

    Args:
        depth: 18, 34 (basic blocks), 50, 101, 152 or 200 (bottlenecks). Default 50.
        placement: a name in `PLACEMENTS` or a `Placement`. Default `"full_preactivation"`.
        shortcut: a name in `SHORTCUTS` or a `Shortcut`. Default `"identity"`.
        classes: number of classes. Default 1000.
        input_shape: (height, width, channels), or (channels, height, width) with `data_format="channels_first"`.
            Default (224, 224, 3); with `include_top=False`, three channels and any height and width.
        rolled: as in `cifar_resnet`.
        stem: `"7x7"` (default), or `"3x3"` without stride or pooling, for small images.
        stride_in: the units with stride 2: `"first"` (the paper), the first of stages 2 to 4; or `"last"`, the last of
            stages 1 to 3, as in keras.applications' ResNet50V2, which saves a seventh of the multiply-adds. Default
            `None`: as in the profile.
        output_stride: input pixels per pixel of the last feature map: 32 (default with the 7×7 stem), 16, 8 or 4; 8
            (default with the 3×3 stem), 4, 2 or 1. Below the default, dilation replaces strides.
        **options: those of every residual network; see `NetworkOptions`.

    Returns:
        A functional `keras.Model`. Input: float images (batch, height, width, channels), ideally zero-mean. Output:
        logits (batch, classes), float32.

    Raises:
        InputError: the depth or a name is unknown, a number is out of range, or an `output_stride` below the default is
            combined with `stride_in="last"`.

    Example:

    >>> model = imagenet_resnet(18, classes=10, input_shape=(64, 64, 3))
    >>> model.name, tuple(model.output.shape)
    ('resnet18_full_preactivation', (None, 10))
    """
    if not isinstance(depth, numbers.Integral) or depth not in UNITS:  # 18.0 equals 18, but would be in the name
        raise InputError(f"there is no ImageNet network of depth {depth!r}; choose one of {', '.join(map(str, UNITS))}")
    block, repeats = UNITS[depth]
    first = STEMS[check_choice("stem", stem, STEMS)]
    common = NetworkOptions(**options)
    placement = get_placement(placement)
    chosen = conventions(common.profile, "imagenet", placement)
    strides = STRIDE_UNITS[check_choice("stride_in", stride_in or chosen.stride_in, STRIDE_UNITS)]
    stages = [Stage(filters, n, **stride) for filters, n, stride in zip(FILTERS, repeats, strides, strict=True)]
    stem_stride = 4 if first.max_pool else 1
    if output_stride not in (None, 8 * stem_stride):
        if strides is STRIDE_UNITS["last"]:
            raise InputError('a smaller output_stride needs the strides in first units; pass stride_in="first"')
        stages = dilate(stages, output_stride, stem_stride)
    unit = {"block": block, "placement": placement, "shortcut": shortcut}
    network = Network.of(depth, first, stages, chosen, common, rolled, **unit)
    return build_network(network, common, input_shape=input_shape, default_size=224, classes=classes)


_variant = variant_of(imagenet_resnet, "depth", "placement")


@_variant
def preact_resnet18(**options: Any) -> keras.Model:
    """Pre-activation ResNet-18; options as in `imagenet_resnet`, without `depth` and `placement`.

    >>> network = preact_resnet18(classes=10, input_shape=(64, 64, 3))
    >>> network.name, network.output_shape
    ('resnet18_full_preactivation', (None, 10))
    """
    return imagenet_resnet(18, "full_preactivation", **options)


@_variant
def preact_resnet34(**options: Any) -> keras.Model:
    """Pre-activation ResNet-34; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(34, "full_preactivation", **options)


@_variant
def preact_resnet50(**options: Any) -> keras.Model:
    """Pre-activation ResNet-50; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(50, "full_preactivation", **options)


@_variant
def preact_resnet101(**options: Any) -> keras.Model:
    """Pre-activation ResNet-101; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(101, "full_preactivation", **options)


@_variant
def preact_resnet152(**options: Any) -> keras.Model:
    """Pre-activation ResNet-152; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(152, "full_preactivation", **options)


@_variant
def preact_resnet200(**options: Any) -> keras.Model:
    """Pre-activation ResNet-200; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(200, "full_preactivation", **options)


@_variant
def postact_resnet18(**options: Any) -> keras.Model:
    """Original ResNet-18; options as in `imagenet_resnet`, without `depth` and `placement`.

    >>> postact_resnet18(include_top=False, pooling="avg").output_shape
    (None, 512)
    """
    return imagenet_resnet(18, "original", **options)


@_variant
def postact_resnet34(**options: Any) -> keras.Model:
    """Original ResNet-34; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(34, "original", **options)


@_variant
def postact_resnet50(**options: Any) -> keras.Model:
    """Original ResNet-50; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(50, "original", **options)


@_variant
def postact_resnet101(**options: Any) -> keras.Model:
    """Original ResNet-101; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(101, "original", **options)


@_variant
def postact_resnet152(**options: Any) -> keras.Model:
    """Original ResNet-152; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(152, "original", **options)


@_variant
def postact_resnet200(**options: Any) -> keras.Model:
    """Original ResNet-200; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(200, "original", **options)
