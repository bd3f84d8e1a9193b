"""Convolutions: how they begin, what they cost, and where a strided one looks."""

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.layers.convolutions import WeightLayer, check_kernel_initializer


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


def test_an_initializer_that_cannot_be_copied_is_refused():
    class Ours(keras.initializers.Zeros):
        pass

    with pytest.raises(InputError, match=r"initializer Ours has to be copied for each convolution; register it with @"):
        check_kernel_initializer(Ours())
