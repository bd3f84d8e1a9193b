"""The residual branch: an order of layers read from a placement."""

from functools import partial

import numpy as np
import pytest
from harness import array, check_layer

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, ResidualUnit, normalization
from keras_preact.layers.branches import ConstantPadding2D, residual_branch, weight_layers


def kinds(placement, block="basic"):
    normalize = partial(normalization, "batch", dtype=None)
    layers = residual_branch(weight_layers(block, 16), PLACEMENTS[placement], normalize, data_format="channels_last")
    return " ".join(type(layer).__name__ for layer in layers)


def test_the_order_of_each_placement():
    """What Fig. 4 shows between the pre-activation (not part of the branch's list) and the addition."""
    assert kinds("original") == "Conv2D PreActivation Conv2D BatchNorm"
    assert kinds("bn_after_addition") == "Conv2D PreActivation Conv2D"
    assert kinds("relu_before_addition") == "Conv2D PreActivation Conv2D PreActivation"
    assert kinds("relu_only_preactivation") == "Conv2D PreActivation Conv2D BatchNorm"
    assert kinds("full_preactivation") == "Conv2D PreActivation Conv2D"
    assert kinds("bn_only_preactivation") == "Conv2D PreActivation Conv2D"
    assert kinds("full_preactivation", "bottleneck") == "Conv2D PreActivation Conv2D PreActivation Conv2D"


def test_where_the_stride_stands():
    def strides(place):
        return [layer.strides for layer in weight_layers("bottleneck", 64, strides=2, stride_on=place)]

    assert strides("1x1") == [2, 1, 1]
    assert strides("3x3") == [1, 2, 1]
    assert [layer.strides for layer in weight_layers("basic", 64, strides=2)] == [2, 1]


def test_groups_and_width():
    """ResNeXt-50 (32×4d) and wide ResNet-50-2, as torchvision and the seeds count them."""
    assert [layer.filters for layer in weight_layers("bottleneck", 64, groups=32, width_per_group=4)] == [128, 128, 256]
    assert [layer.filters for layer in weight_layers("bottleneck", 64, width_per_group=128)] == [128, 128, 256]
    for options in ({"groups": 2}, {"width_per_group": 32}):
        with pytest.raises(InputError, match="require block='bottleneck'"):
            weight_layers("basic", 64, **options)


@pytest.mark.parametrize(
    ("block", "place", "dilations"),
    [
        ("single", "3x3", [2]),
        ("basic", "3x3", [2, 4]),
        ("bottleneck", "3x3", [1, 2, 1]),
        ("bottleneck", "1x1", [1, 4, 1]),
    ],
)
def test_the_dilations_before_and_after_the_stride(block, place, dilations):
    assert [layer.dilation for layer in weight_layers(block, 16, stride_on=place, dilation=(2, 4))] == dilations


@pytest.mark.parametrize("place", ["1x1", "3x3"])
def test_the_groups_are_those_of_the_3x3_convolution(place):
    assert [layer.groups for layer in weight_layers("bottleneck", 16, groups=4, stride_on=place)] == [1, 4, 1]


@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_zero_branch_is_zero_with_and_without_normalization(placement, normalization, images):
    unit = ResidualUnit(16, placement=placement, normalization=normalization, zero_init_residual=True)
    unit.build(images.shape)
    assert not array(unit.residual(unit.preactivate(images))).any()
    kernels = [array(layer.kernel) for layer in unit.branch if hasattr(layer, "kernel")]
    assert len(kernels) == 2 and kernels[0].any()  # a zero kernel before another one would never train


def test_an_unknown_block_is_refused():
    with pytest.raises(InputError, match="known: basic, bottleneck, single"):
        weight_layers("botleneck", 64)


def test_constant_padding_pads_height_and_width(images):
    check_layer(lambda **more: ConstantPadding2D(1, -1.0, **more), images, trainable=False)
    np.testing.assert_array_equal(array(ConstantPadding2D(2)(images)), np.pad(images, [(0, 0), (2, 2), (2, 2), (0, 0)]))
