"""The paper's ImageNet networks: four stages at a quarter to a thirty-second of the image's size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.convolutions import WeightLayer
from keras_preact.layers.placements import get_placement
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
"""Block and units a stage, by depth."""

STEMS = {
    "7x7": Stem(WeightLayer(64, 7, strides=2), max_pool=True),
    # For images of 32 to 64 pixels: the ResNet-18 that many call "for CIFAR" begins like this.
    "3x3": Stem(WeightLayer(64, 3)),
}

STRIDE_UNITS: dict[str, list[dict[str, int]]] = {
    "first": [{}, *[{"strides": 2}] * 3],
    "last": [*[{"last_strides": 2}] * 3, {}],
}
"""Which unit of each stage halves the image."""


def imagenet_resnet(
    depth: int = 50,
    placement: Any = "full_preactivation",
    shortcut: Any = "identity",
    classes: int = 1000,
    input_shape: Sequence[int | None] | None = None,
    rolled: bool | None = False,
    *,
    remat: bool | str = False,
    stem: str = "7x7",
    profile: str = "paper",
    shape_change: str | None = None,
    stride_on: str | None = None,
    stride_in: str | None = None,
    groups: int = 1,
    width_per_group: int = 64,
    normalization: str = "batch",
    momentum: float | None = None,
    epsilon: float | None = None,
    kernel_initializer: Any = None,
    biases: str | None = None,
    drop_path: float = 0.0,
    zero_init_residual: bool = False,
    output_stride: int | None = None,
    include_top: bool = True,
    weights: str | Path | None = None,
    input_tensor: Any = None,
    pooling: str | None = None,
    classifier_activation: Any = None,
    data_format: str | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> keras.Model:
    """A residual network of the paper's ImageNet experiments (section 5, Table 5).

    A 7×7 convolution with stride 2, batch norm, ReLU and max-pooling; four stages of units with 64, 128, 256 and
    512 filters; in pre-activation networks one more batch norm and ReLU; global average pooling; one dense layer.
    The stem's activation stands before the pooling, so that the first unit gets an activated input.

    Args:
        depth: 18, 34 (basic blocks), 50, 101, 152 or 200 (bottlenecks). Default 50.
        placement: a name of `PLACEMENTS` or a `Placement`. Default `"full_preactivation"`.
        shortcut: a name of `SHORTCUTS` or a `Shortcut`. Default `"identity"`.
        classes: number of classes. Default 1000.
        input_shape: (height, width, channels); default (224, 224, 3), or sizes left open without top.
        stem: `"7x7"` (default), or `"3x3"` with neither stride nor pooling, for small images.
        profile: whose network, where code bases differ: a name of `PROFILES`, which decides all that is left `None`.
            Default `"paper"`.
        stride_in: `"first"` (the paper): the first unit of stages 2 to 4 has the stride; or `"last"`: the last unit
            of stages 1 to 3, as in keras.applications' ResNet50V2, which saves a seventh of the multiply-adds.
        output_stride: 32 (default with the 7×7 stem), 16, 8 or 4: input pixels a pixel of the last map; the later
            stages are dilated for it. With the 3×3 stem 8 (default), 4, 2 or 1.
        rolled, remat, shape_change, stride_on, groups, width_per_group, normalization, momentum, epsilon,
        kernel_initializer, biases, drop_path, zero_init_residual, include_top, weights, input_tensor, pooling,
        classifier_activation, data_format, dtype, name: as in `cifar_resnet`.

    Returns:
        A functional `keras.Model`. Input: float images (batch, height, width, channels), best of about zero mean.
        Output: logits (batch, classes), float32.

    Raises:
        InputError: an unknown depth or name, a number out of its range, or `output_stride` with `stride_in="last"`.

    Example:

    >>> model = imagenet_resnet(18, classes=10, input_shape=(64, 64, 3))
    >>> model.name, tuple(model.output.shape)
    ('resnet18_full_preactivation', (None, 10))
    """
    if depth not in UNITS:
        raise InputError(f"there is no ImageNet network of depth {depth}; choose one of {', '.join(map(str, UNITS))}")
    block, repeats = UNITS[depth]
    first = STEMS[check_choice("stem", stem, STEMS)]
    chosen = conventions(profile, "imagenet", get_placement(placement))
    strides = STRIDE_UNITS[check_choice("stride_in", stride_in or chosen.stride_in, STRIDE_UNITS)]
    if strides is STRIDE_UNITS["last"] and output_stride is not None:
        raise InputError('output_stride replaces strides of first units; give stride_in="first" with it')
    stages = [Stage(filters, n, **stride) for filters, n, stride in zip(FILTERS, repeats, strides, strict=True)]
    stem_stride = 4 if first.max_pool else 1
    network = Network(
        name=name or f"resnet{depth}_{getattr(placement, 'name', placement)}",
        stem=first,
        stages=tuple(stages) if output_stride is None else dilate(stages, output_stride, stem_stride),
        unit={
            "block": block,
            "placement": placement,
            "shortcut": shortcut,
            "groups": groups,
            "width_per_group": width_per_group,
            "normalization": normalization,
            "zero_init_residual": zero_init_residual,
            "data_format": data_format,
            **chosen.unit_options(
                shape_change=shape_change,
                stride_on=stride_on,
                momentum=momentum,
                epsilon=epsilon,
                kernel_initializer=kernel_initializer,
                biases=biases,
            ),
        },
        conventions=chosen,
        drop_path=drop_path,
        rolled=rolled,
        remat=remat,
    )
    return build_network(
        network,
        input_shape=input_shape,
        default_size=224,
        include_top=include_top,
        weights=weights,
        input_tensor=input_tensor,
        pooling=pooling,
        classes=classes,
        classifier_activation=classifier_activation,
        dtype=dtype,
    )


def preact_resnet18(**options: Any) -> keras.Model:
    """Pre-activation ResNet-18; options as in `imagenet_resnet`, without `depth` and `placement`.

    >>> network = preact_resnet18(classes=10, input_shape=(64, 64, 3))
    >>> network.name, network.output_shape
    ('resnet18_full_preactivation', (None, 10))
    """
    return imagenet_resnet(18, "full_preactivation", **options)


def preact_resnet34(**options: Any) -> keras.Model:
    """Pre-activation ResNet-34; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(34, "full_preactivation", **options)


def preact_resnet50(**options: Any) -> keras.Model:
    """Pre-activation ResNet-50; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(50, "full_preactivation", **options)


def preact_resnet101(**options: Any) -> keras.Model:
    """Pre-activation ResNet-101; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(101, "full_preactivation", **options)


def preact_resnet152(**options: Any) -> keras.Model:
    """Pre-activation ResNet-152; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(152, "full_preactivation", **options)


def preact_resnet200(**options: Any) -> keras.Model:
    """Pre-activation ResNet-200; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(200, "full_preactivation", **options)


def postact_resnet18(**options: Any) -> keras.Model:
    """Original ResNet-18; options as in `imagenet_resnet`, without `depth` and `placement`.

    >>> postact_resnet18(include_top=False, pooling="avg").output_shape
    (None, 512)
    """
    return imagenet_resnet(18, "original", **options)


def postact_resnet34(**options: Any) -> keras.Model:
    """Original ResNet-34; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(34, "original", **options)


def postact_resnet50(**options: Any) -> keras.Model:
    """Original ResNet-50; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(50, "original", **options)


def postact_resnet101(**options: Any) -> keras.Model:
    """Original ResNet-101; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(101, "original", **options)


def postact_resnet152(**options: Any) -> keras.Model:
    """Original ResNet-152; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(152, "original", **options)


def postact_resnet200(**options: Any) -> keras.Model:
    """Original ResNet-200; options as in `imagenet_resnet`, without `depth` and `placement`."""
    return imagenet_resnet(200, "original", **options)
