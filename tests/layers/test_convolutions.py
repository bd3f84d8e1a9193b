"""Convolutions: how they begin, what they cost, and where a strided one looks."""

import re
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.layers import ResidualUnit, UnitStack
from keras_preact.layers.convolutions import Conv2D, WeightLayer, check_kernel_initializer
from keras_preact.layers.native import inside_loop


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


@pytest.mark.sampled(12)
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("strides, dilation", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("size", [1, 2, 3, (3, 1)])
@pytest.mark.parametrize("context", [nullcontext, inside_loop])
def test_a_convolution_is_that_of_keras(context, size, strides, dilation, padding):
    """Outputs and the weights after a step, whatever the windows; images of odd width."""
    options = {"strides": strides, "dilation_rate": dilation, "padding": padding, "activation": "tanh"}
    x = np.random.default_rng(0).normal(size=(4, 8, 7, 16)).astype("float32")
    ours, reference = (
        keras.Sequential([keras.Input(x.shape[1:]), layer(16, size, **options)])
        for layer in (Conv2D, keras.layers.Conv2D)
    )
    ours.set_weights(reference.get_weights())
    np.testing.assert_allclose(array(ours(x)), array(reference(x)), atol=1e-5)
    for model in (ours, reference):
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
        with context():
            model.train_on_batch(x, np.ones(model(x).shape, "float32"))
    for trained, expected in zip(ours.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(trained, expected, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="reads what XLA compiles")
def test_xla_has_a_fast_convolution_for_every_gradient_in_a_loop():
    """On CPUs, XLA computes convolutions with another order of dimensions many times as slowly."""
    import jax

    stack = UnitStack(ResidualUnit(4), repeats=3, rolled=True)
    stack.build((2, 6, 5, 4))
    trainable = [variable.value for variable in stack.trainable_variables]
    state = [variable.value for variable in stack.non_trainable_variables]

    def loss(values, x):
        return (stack.stateless_call(values, state, x, training=True)[0] ** 2).sum()

    x = np.random.default_rng(0).normal(size=(2, 6, 5, 4)).astype("float32")
    compiled = jax.jit(jax.grad(loss)).lower(trainable, x).compile().as_text()
    found = re.findall(r"dim_labels=(\S+?)[,\s]", compiled)
    assert len(found) >= 6 and set(found) == {"b01f_01io->b01f"}
    # A gradient penalty has gradients too.
    penalty = jax.grad(lambda values: sum((g**2).sum() for g in jax.grad(loss)(values, x)))(trainable)
    assert all(np.isfinite(array(value)).all() for value in penalty) and any(array(value).any() for value in penalty)


@pytest.mark.parametrize("options", [{"groups": 2}, {"data_format": "channels_first"}], ids=str)
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow has neither on processors")
def test_grouped_convolutions_and_images_channels_first_too(options):
    x = np.random.default_rng(0).normal(size=(2, 6, 6, 6)).astype("float32")
    ours, reference = (layer(8, 3, padding="same", **options) for layer in (Conv2D, keras.layers.Conv2D))
    ours.build(x.shape)
    reference.build(x.shape)
    ours.set_weights(reference.get_weights())
    np.testing.assert_allclose(array(ours(x)), array(reference(x)), atol=1e-5)


on_torch = pytest.mark.skipif(keras.backend.backend() != "torch", reason="a layer of Keras's on PyTorch is at fault")


def image_shapes(operation, layer):
    """Return the shapes of the images that PyTorch's operation gets when the layer is called."""
    import torch

    x = torch.zeros((16, 16, 16, 32))
    layer(x)
    with torch.profiler.profile(record_shapes=True) as profile:
        layer(x)
    shapes = (event.input_shapes[0] for event in profile.events() if event.name == operation)
    return [shape for shape in shapes if len(shape) == 4 and shape[0] == 16]


@on_torch
def test_images_channels_last_are_not_copied():
    assert not image_shapes("aten::copy_", Conv2D(64, 3, padding="same"))
    assert image_shapes("aten::copy_", keras.layers.Conv2D(64, 3, padding="same"))  # else Keras needs no help any more


@on_torch
def test_pytorch_sees_no_strided_windows_of_one_pixel():
    """In their gradient oneDNN writes past its memory."""
    shapes = [image_shapes("aten::conv2d", layer(4, 1, strides=2)) for layer in (Conv2D, keras.layers.Conv2D)]
    assert shapes == [[[16, 32, 8, 8]], [[16, 32, 16, 16]]]


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

    with pytest.raises(InputError, match=r"initializer Ours cannot be copied for each convolution; register it with @"):
        check_kernel_initializer(Ours())
