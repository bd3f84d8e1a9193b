"""The paper's CIFAR networks: three stages of n units at 32², 16² and 8² pixels."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Sequence
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice, check_number
from keras_preact.layers.convolutions import WeightLayer
from keras_preact.layers.placements import get_placement
from keras_preact.models.options import NetworkOptions, with_network_options
from keras_preact.models.profiles import conventions
from keras_preact.models.resnet import Network, Stage, Stem, build_network, dilate

FILTERS = (16, 32, 64)
LAYERS_PER_UNIT = {"single": 1, "basic": 2, "bottleneck": 3}
FIRST_BOTTLENECK_DEPTH = 164
"""From here on, depths that are both 6n+2 and 9n+2 use bottlenecks, as in the paper's tables."""


def cifar_units(depth: int, bottleneck: bool | None = None, block: str | None = None) -> tuple[str, int]:
    """Return the block and n, the number of units per stage, of the CIFAR network with `depth` weight layers.

    Args:
        depth: 6n+2 with basic blocks, 9n+2 with bottlenecks, 3n+2 with single layers.
        bottleneck: whether to use bottlenecks instead of basic blocks. Default `None`: whichever fits the depth. If
            both fit, basic blocks below a depth of 164 and bottlenecks from 164 on, as in the paper.
        block: the name of the block, instead of `bottleneck`: `"single"` (one layer per unit), `"basic"` or
            `"bottleneck"`.

    Raises:
        InputError: the depth does not fit; the message names the nearest depths that do.

    Example:

    >>> cifar_units(110), cifar_units(164), cifar_units(1001)
    (('basic', 18), ('bottleneck', 18), ('bottleneck', 111))
    >>> cifar_units(21)
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: depth 21 is not 6n+2 or 9n+2; the nearest depths that are: 20, 26
    """
    if isinstance(depth, bool) or not isinstance(depth, numbers.Integral):
        raise InputError(f"depth is {depth!r}; pass an integer such as 20 or 110")
    steps = {name: 3 * LAYERS_PER_UNIT[name] for name in _allowed_blocks(bottleneck, block)}
    fitting = [name for name, step in steps.items() if _fits(depth, step)]
    if not fitting:
        formulas = " or ".join(f"{step}n+2" for step in steps.values())
        nearest = ", ".join(map(str, _nearest(depth, steps.values())))
        raise InputError(f"depth {depth} is not {formulas}; the nearest depths that are: {nearest}")
    block = fitting[-1] if depth >= FIRST_BOTTLENECK_DEPTH else fitting[0]
    return block, int((depth - 2) // steps[block])


def _allowed_blocks(bottleneck: bool | None, block: str | None) -> tuple[str, ...]:
    if block is not None:
        if bottleneck is not None:
            raise InputError("pass bottleneck or block, not both")
        return (check_choice("block", block, LAYERS_PER_UNIT),)
    allowed = {None: ("basic", "bottleneck"), False: ("basic",), True: ("bottleneck",)}
    if bottleneck not in allowed:
        raise InputError(f"bottleneck is {bottleneck!r}; pass True, False, or None to choose by the depth")
    return allowed[bottleneck]


def _fits(depth: int, step: int) -> bool:
    return depth >= step + 2 and (depth - 2) % step == 0


def _nearest(depth: int, steps: Collection[int]) -> list[int]:
    """Return the largest fitting depth below `depth`, if any, and the smallest above it."""
    depths = sorted(step * max(n + (depth - 2) // step, 1) + 2 for step in steps for n in (-1, 0, 1))
    return [*[d for d in depths if d < depth][-1:], *[d for d in depths if d > depth][:1]]


@with_network_options
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
    widen_factor: float = 1,
    output_stride: int = 4,
    **options: Any,
) -> keras.Model:
    """The residual network of the paper's CIFAR experiments (sections 3 to 5 and appendix).

    A 3×3 convolution with 16 filters, then three stages of n units with 16, 32 and 64 filters (4 × as many output
    channels in bottlenecks). The first unit of stages 2 and 3 has stride 2. Pre-activation networks end with one more
    batch norm and ReLU. Global average pooling and a dense layer follow.

    Args:
        depth: number of weight layers: 6n+2 with basic blocks (20, 32, 44, 56, 110, …), 9n+2 with bottlenecks
            (164, 1001, …). Default 110.
        placement: the order of activations: a name in `PLACEMENTS` (Table 2) or a `Placement`. Default
            `"full_preactivation"`, the paper's proposal; `"original"` is the ResNet of 2015.
        shortcut: h: a name in `SHORTCUTS` (Table 1) or a `Shortcut`. Default `"identity"`.
        bottleneck: whether to use bottlenecks. Default `None`: as in the paper, by the depth (see `cifar_units`).
        block: the name of the block, instead of `bottleneck`: `"basic"`, `"bottleneck"` or `"single"` (one 3×3
            convolution per unit, depth 3n+2; the first rows of Table 3).
        classes: number of classes. Default 10.
        input_shape: (height, width, channels) of the images, or (channels, height, width) with
            `data_format="channels_first"`. Default (32, 32, 3); with `include_top=False`, three channels and any height
            and width.
        rolled: `False` (default): each unit is a layer, such as `stage2_unit07`. `True`: all units of a stage but the
            first are one layer, such as `stage2_stack`, which loops over stacked weights. On TensorFlow and JAX,
            training of deep networks then starts sooner. `None`: as `UnitStack` decides by the backend and the number
            of units; training runs use it. `keras_preact.models.load_weights` loads the weights files of rolled and
            unrolled networks into either; Keras's own `load_weights` does not.
        widen_factor: multiplies the filters of the stages, not those of the first convolution (wide residual
            networks). Fractional filters are rounded down. Default 1.
        output_stride: input pixels per pixel of the last feature map: 4 (default), 2 or 1. Below 4, dilation replaces
            strides.
        **options: those of every residual network; see `NetworkOptions`.

    Returns:
        A functional `keras.Model`. Input: float images (batch, height, width, channels), ideally zero-mean. Output:
        logits (batch, classes), float32; with `include_top=False`, the last feature map or, with `pooling`, one vector
        (batch, channels) per image, in the compute dtype.

    Raises:
        InputError: the depth does not fit the block (6n+2, 9n+2 or 3n+2), a name is unknown, a number is out of range,
            or `weights` do not fit the network.

    Example:

    >>> model = cifar_resnet(depth=20)
    >>> model.name, tuple(model.output.shape)
    ('resnet20_full_preactivation', (None, 10))
    >>> model.get_layer("stage2_unit01").changes_shape
    True
    """
    block, n = cifar_units(depth, bottleneck, block)
    common = NetworkOptions(**options)
    placement = get_placement(placement)
    chosen = conventions(common.profile, "cifar", placement)
    check_number("widen_factor", widen_factor, 1 / FILTERS[0], 1000)
    strides = (1, 2, 2)
    stages = [Stage(int(filters * widen_factor), n, stride) for filters, stride in zip(FILTERS, strides, strict=True)]
    stages = dilate(stages, output_stride, stem_stride=1)
    unit = {"block": block, "placement": placement, "shortcut": shortcut}
    network = Network.of(depth, Stem(WeightLayer(FILTERS[0], 3)), stages, chosen, common, rolled, **unit)
    return build_network(network, common, input_shape=input_shape, default_size=32, classes=classes)
