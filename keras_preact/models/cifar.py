"""The paper's CIFAR networks: three stages of n units at 32², 16² and 8² pixels."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice, check_number
from keras_preact.layers.convolutions import WeightLayer
from keras_preact.layers.placements import get_placement
from keras_preact.models.profiles import conventions
from keras_preact.models.resnet import Network, Stage, Stem, build_network, dilate

FILTERS = (16, 32, 64)
LAYERS_PER_UNIT = {"single": 1, "basic": 2, "bottleneck": 3}
FIRST_BOTTLENECK_DEPTH = 164
"""From this depth on, a depth that is both 6n+2 and 9n+2 means bottlenecks, as in the paper's tables."""


def cifar_units(depth: int, bottleneck: bool | None = None, block: str | None = None) -> tuple[str, int]:
    """Return the block and the number n of units a stage of the CIFAR network with `depth` weight layers.

    Args:
        depth: 6n+2 with basic blocks, 9n+2 with bottlenecks.
        bottleneck: which of the two. Default `None`: as in the paper: basic blocks below a depth of 164, bottlenecks
            from there on, and always the one that fits where only one does.
        block: the block by its name: `"single"` (one layer a unit: 3n+2), `"basic"` or `"bottleneck"`.

    Raises:
        InputError: no such n; the message names the nearest depths.

    Example:

    >>> cifar_units(110), cifar_units(164), cifar_units(1001)
    (('basic', 18), ('bottleneck', 18), ('bottleneck', 111))
    >>> cifar_units(21)
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: depth 21 is not 6n+2 or 9n+2; the nearest depths that are: 20, 26
    """
    if isinstance(depth, bool) or not isinstance(depth, numbers.Real) or not math.isfinite(depth):
        raise InputError(f"depth is {depth!r}; give an integer such as 20 or 110")
    allowed = _allowed_blocks(bottleneck, block)
    fitting = [block for block in allowed if _fits(depth, block)]
    if not fitting:
        formulas = " or ".join(f"{3 * LAYERS_PER_UNIT[block]}n+2" for block in allowed)
        near = sorted(_nearest(depth, allowed))
        raise InputError(f"depth {depth} is not {formulas}; the nearest depths that are: {', '.join(map(str, near))}")
    block = fitting[-1] if depth >= FIRST_BOTTLENECK_DEPTH else fitting[0]
    return block, int((depth - 2) // (3 * LAYERS_PER_UNIT[block]))


def _allowed_blocks(bottleneck: bool | None, block: str | None) -> tuple[str, ...]:
    if block is not None:
        if bottleneck is not None:
            raise InputError("give bottleneck or block, not both: they name the same thing")
        return (check_choice("block", block, LAYERS_PER_UNIT),)
    allowed = {None: ("basic", "bottleneck"), False: ("basic",), True: ("bottleneck",)}
    if bottleneck not in allowed:
        raise InputError(f"bottleneck is {bottleneck!r}; give True, False, or None to choose by the depth")
    return allowed[bottleneck]


def _fits(depth: int, block: str) -> bool:
    step = 3 * LAYERS_PER_UNIT[block]
    whole = isinstance(depth, numbers.Integral) and not isinstance(depth, bool)
    return whole and depth >= step + 2 and (depth - 2) % step == 0


def _nearest(depth: int, blocks: Sequence[str]) -> set[int]:
    """Return the largest fitting depth below `depth` and the smallest above it."""
    steps = [3 * LAYERS_PER_UNIT[block] for block in blocks]
    depths = {step * max(n + int((depth - 2) // step), 1) + 2 for step in steps for n in (-1, 0, 1)}
    below = [d for d in depths if d < depth]
    above = [d for d in depths if d > depth]
    return {*([max(below)] if below else []), *([min(above)] if above else [])}


def cifar_resnet(
    depth: int = 110,
    placement: Any = "full_preactivation",
    shortcut: Any = "identity",
    bottleneck: bool | None = None,
    classes: int = 10,
    input_shape: Sequence[int | None] | None = None,
    rolled: bool | None = False,
    *,
    block: str | None = None,
    remat: bool | str = False,
    widen_factor: float = 1,
    profile: str = "paper",
    shape_change: str | None = None,
    stride_on: str | None = None,
    groups: int = 1,
    width_per_group: int = 64,
    normalization: str = "batch",
    momentum: float | None = None,
    epsilon: float | None = None,
    kernel_initializer: Any = None,
    biases: str | None = None,
    drop_path: float = 0.0,
    zero_init_residual: bool = False,
    output_stride: int = 4,
    include_top: bool = True,
    weights: str | Path | None = None,
    input_tensor: Any = None,
    pooling: str | None = None,
    classifier_activation: Any = None,
    data_format: str | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> keras.Model:
    """The residual network of the paper's CIFAR experiments (section 3 to 5, appendix).

    A 3×3 convolution to 16 channels; three stages of n units with 16, 32 and 64 filters (4 × as many channels in
    bottlenecks), the first unit of the second and third with stride 2; the last activation; global average
    pooling; one dense layer to the logits.

    Args:
        depth: number of weight layers: 6n+2 with basic blocks (20, 32, 44, 56, 110, …), 9n+2 with bottlenecks
            (164, 1001, …). Default 110.
        placement: where the activations stand: a name of `PLACEMENTS` (Table 2) or a `Placement`. Default
            `"full_preactivation"`, the paper's proposal; `"original"` is the ResNet of 2015.
        shortcut: h: a name of `SHORTCUTS` (Table 1) or a `Shortcut`. Default `"identity"`.
        bottleneck: default `None`: as in the paper, by the depth (see `cifar_units`).
        block: the block by its name, in place of `bottleneck`: `"basic"`, `"bottleneck"`, or `"single"`: one 3×3
            convolution a unit (depth 3n+2; the first rows of Table 3).
        classes: number of classes. Default 10.
        input_shape: (height, width, channels) of the images; default (32, 32, 3), or sizes left open without top.
        rolled: `False` (default) makes each unit a layer of its own, `stage2_unit07`. `True` makes the units of a
            stage after its first one layer, `stage2_stack`, which runs one unit in a loop over stacked weights (see
            `UnitStack`): a deep network then starts several times sooner. `None` does so where `default_rolled` says
            that it pays, which depends on the backend and on the length of the stage; runs are trained with that.
            Weights files fit all forms.
        remat: what these units compute again in the backward pass, to save memory: `"none"` (default), `"unit"`
            or `"segment"`; see `UnitStack`.
        widen_factor: multiplies the filters of the stages, not the first convolution's (wide residual networks); what
            is left of a filter is cut off. Default 1.
        profile: whose network, where code bases differ: a name of `PROFILES`, which decides all that is left `None`
            below, and a few things more. Default `"paper"`.
        shape_change: where a unit changes the shape: `"projection"` (the paper) or `"option_a"`.
        stride_on: convolution of a bottleneck that strides: `"3x3"` (the paper's profile) or `"1x1"`.
        groups, width_per_group: of the bottlenecks (ResNeXt); see `ResidualUnit`.
        normalization: `"batch"` (default), `"group"`, `"layer"` or `"none"`.
        momentum, epsilon: of the normalization; 0.9 and 1e-5 in the paper's profile.
        kernel_initializer, biases: of the convolutions; see `ResidualUnit`.
        drop_path: probability of leaving out the last unit's branch in training; it grows linearly from 0 at the
            first unit (stochastic depth). Default 0.
        zero_init_residual: start every branch at F = 0. Default `False`.
        output_stride: 4 (default), 2 or 1: input pixels a pixel of the last map; below 4 by dilation.
        include_top: whether pooling and dense layer end the network. Default `True`.
        weights: `None` (default; random) or the path of a weights file of this network.
        input_tensor: a Keras tensor to build on, instead of a new input.
        pooling: `None`, `"avg"` or `"max"`, without top.
        classifier_activation: of the dense layer. Default `None`: the model ends in logits.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        dtype: dtype or dtype policy of the layers; default Keras's setting. Logits are float32 always.
        name: of the model; default for example `"resnet110_full_preactivation"`.

    Returns:
        A functional `keras.Model`. Input: float images (batch, height, width, channels), best of about zero mean.
        Output: logits (batch, classes), float32. Units are named `stage2_unit07`; rolled,
        those of a stage after its first are one layer, `stage2_stack`.

    Raises:
        InputError: a depth that is not 6n+2 or 9n+2, an unknown name, a number out of its range.

    Example:

    >>> model = cifar_resnet(depth=20)
    >>> model.name, tuple(model.output.shape)
    ('resnet20_full_preactivation', (None, 10))
    >>> model.get_layer("stage2_unit01").changes_shape
    True
    """
    block, n = cifar_units(depth, bottleneck, block)
    chosen = conventions(profile, "cifar", get_placement(placement))
    check_number("widen_factor", widen_factor, 1 / FILTERS[0])
    strides = (1, 2, 2)
    stages = [Stage(int(filters * widen_factor), n, stride) for filters, stride in zip(FILTERS, strides, strict=True)]
    network = Network(
        name=name or f"resnet{depth}_{getattr(placement, 'name', placement)}",
        stem=Stem(WeightLayer(FILTERS[0], 3)),
        stages=dilate(stages, output_stride, stem_stride=1),
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
        default_size=32,
        include_top=include_top,
        weights=weights,
        input_tensor=input_tensor,
        pooling=pooling,
        classes=classes,
        classifier_activation=classifier_activation,
        dtype=dtype,
    )
