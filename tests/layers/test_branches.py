"""The residual branch: an order of layers read from a placement."""

from functools import partial

import pytest
from harness import array

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, ResidualUnit, normalization
from keras_preact.layers.branches import residual_branch, weight_layers
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.units import check_zero_init


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
    with pytest.raises(InputError, match="require block='bottleneck'"):
        weight_layers("basic", 64, groups=2)


@pytest.mark.parametrize("normalization", ["batch", "none"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_zero_branch_is_zero_with_and_without_normalization(placement, normalization, images):
    unit = ResidualUnit(16, placement=placement, normalization=normalization, zero_init_residual=True)
    unit.build(images.shape)
    assert not array(unit.residual(unit.preactivate(images))).any()


@pytest.mark.parametrize(
    ("placement", "shortcut", "words"),
    [
        ("relu_before_addition", "identity", "branches of relu_before_addition end in ReLU"),
        ("original", "scaled_residual(per_channel=True)", "zero_init_residual and α = 0"),
    ],
)
def test_a_zero_branch_that_no_gradient_reaches_is_refused(placement, shortcut, words):
    with pytest.raises(InputError, match=words):
        check_zero_init(PLACEMENTS[placement], get_shortcut(shortcut))


def test_other_zero_branches_are_not_refused():
    check_zero_init(PLACEMENTS["original"], get_shortcut("scaled_residual(initial=0.1)"))
    check_zero_init(PLACEMENTS["full_preactivation"], get_shortcut("exclusive_gating"))


def test_an_unknown_block_is_refused():
    with pytest.raises(InputError, match="known: basic, bottleneck, single"):
        weight_layers("botleneck", 64)
