"""The residual branch: an order of layers read from a placement."""

from functools import partial

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, normalization
from keras_preact.layers.branches import WeightLayer, residual_branch, sequence_multiply_adds, weight_layers


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
    with pytest.raises(InputError, match="belong to the bottleneck"):
        weight_layers("basic", 64, groups=2)


def test_a_strided_convolution_is_centred_on_the_pixels_that_a_strided_shortcut_reads():
    """With a kernel that is 1 in its centre alone, the strided 3×3 convolution is x[::2, ::2]."""
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 1)).astype("float32")
    layers = WeightLayer(1, 3, strides=2).layers("conv", "channels_last", None)
    y = x
    for layer in layers:
        layer.build(y.shape)
        if isinstance(layer, keras.layers.Conv2D):
            kernel = np.zeros((3, 3, 1, 1), "float32")
            kernel[1, 1] = 1
            layer.set_weights([kernel])
        y = layer(y)
    np.testing.assert_array_equal(array(y), x[:, ::2, ::2])


def test_he_initialization_by_fan_out():
    """Standard deviation √(2 / (9 · 64)) of a 3×3 convolution to 64 channels, and values beyond two of them."""
    (conv,) = WeightLayer(64, 3).layers("conv", "channels_last", None)
    conv.build((None, 8, 8, 64))
    kernel = array(conv.kernel)
    deviation = np.sqrt(2 / (9 * 64))
    assert abs(kernel.std() / deviation - 1) < 0.02
    assert (np.abs(kernel) > 2.5 * deviation).any()


def test_multiply_adds_of_a_sequence():
    layers = [keras.layers.Conv2D(16, 3, padding="same"), keras.layers.Flatten(), keras.layers.Dense(10)]
    keras.Sequential([keras.Input((8, 8, 4)), *layers])
    assert sequence_multiply_adds(layers, (None, 8, 8, 4)) == 9 * 4 * 16 * 64 + 1024 * 10


def test_an_unknown_block_is_refused():
    with pytest.raises(InputError, match="known: basic, bottleneck, single"):
        weight_layers("botleneck", 64)
