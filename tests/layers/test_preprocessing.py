"""The paper's preprocessing, as layers."""

import keras
import numpy as np
import pytest
from harness import array, check_config, check_data_formats, check_policy, check_saving

from keras_preact import InputError
from keras_preact.data import ArraySplit
from keras_preact.layers import PadCropFlip, PerPixelMean

X = np.random.default_rng(8).normal(size=(64, 6, 5, 3)).astype("float32")


def test_per_pixel_mean_is_zero_at_each_pixel_over_the_training_images():
    images = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3)).astype("uint8")
    layer = PerPixelMean()
    layer.adapt(images)
    np.testing.assert_allclose(array(layer(images)).mean(0), 0, atol=1e-6)
    again = PerPixelMean()
    again.set_mean(ArraySplit(images, np.zeros(50, int)).mean())
    np.testing.assert_allclose(array(again.mean), images.mean(0), rtol=1e-6)


def test_per_pixel_mean_subtracts_in_float32():
    """In float16, 255 − 254.9 would be 0 or 0.125."""
    layer = PerPixelMean(scale=1.0, dtype="mixed_float16")
    layer.adapt(np.full((1, 2, 2, 1), 254.9))
    y = layer(np.full((1, 2, 2, 1), 255, "uint8"))
    assert keras.backend.standardize_dtype(y.dtype) == "float16"
    np.testing.assert_allclose(array(y), 0.1, atol=1e-3)


@pytest.mark.parametrize("make", [PerPixelMean, PadCropFlip])
def test_harness(make):
    check_config(make())
    check_saving(make(), (X,))
    for policy in ("float32", "mixed_float16", "mixed_bfloat16"):
        check_policy(make(dtype=policy), (X.astype("float32"),), policy)


def test_both_data_formats_agree_at_inference_and_in_training():
    check_data_formats(PadCropFlip, (X,), 0)
    last, first = PadCropFlip(seed=3), PadCropFlip(seed=3, data_format="channels_first")
    y = array(first(X.transpose(0, 3, 1, 2), training=True)).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(y, array(last(X, training=True)))


def test_every_output_is_a_possible_crop_of_the_padded_image():
    y = array(PadCropFlip(padding=2, seed=1)(X, training=True))
    padded = np.pad(X, [(0, 0), (2, 2), (2, 2), (0, 0)])
    found = set()
    for image, source in zip(y, padded, strict=True):
        matches = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (1, -1)
            if np.array_equal(image, source[top : top + 6, left : left + 5][:, ::flip])
        ]
        assert matches
        found.add(matches[0])
    assert len(found) > 30  # 64 draws from 50 possibilities
    assert {flip for *_, flip in found} == {1, -1}


@pytest.mark.parametrize(("padding", "pixels"), [(0.25, 2), (0.125, 1), (0.0, 0)])
def test_a_padding_below_1_is_a_share_of_the_shorter_side(padding, pixels):
    x = np.random.default_rng(2).normal(size=(32, 8, 12, 3)).astype("float32")
    share, fixed = PadCropFlip(padding, seed=1), PadCropFlip(pixels, seed=1)
    np.testing.assert_array_equal(array(share(x, training=True)), array(fixed(x, training=True)))
    small = x[:, ::2, ::2]
    fixed = PadCropFlip(round(pixels / 2), seed=2)
    np.testing.assert_array_equal(
        array(PadCropFlip(padding, seed=2)(small, training=True)), array(fixed(small, training=True))
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"padding": -1}, "padding"),
        ({"padding": 1.5}, "padding"),
        ({"padding": -0.1}, "padding"),
        ({"padding": "4"}, "padding"),
        ({"data_format": "channels_middle"}, "data format"),
    ],
)
def test_arguments_out_of_range_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        PadCropFlip(**options)


def test_draws_are_uniform():
    layer = PadCropFlip(padding=1, seed=2)
    x = np.broadcast_to(np.arange(1.0, 10).reshape(1, 3, 3, 1), (6000, 3, 3, 1)).astype("float32")
    center = array(layer(x, training=True))[:, 1, 1, 0]
    values, counts = np.unique(center, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(1, 10))
    np.testing.assert_allclose(counts / 6000, 1 / 9, atol=0.02)


def test_inference_changes_neither_the_images_nor_the_seed_state():
    layer = PadCropFlip(seed=0)
    state = array(layer.generator.state)
    np.testing.assert_array_equal(array(layer(X)), X)
    np.testing.assert_array_equal(array(layer.generator.state), state)
    first, second = array(layer(X, training=True)), array(layer(X, training=True))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(array(PadCropFlip(seed=0)(X, training=True)), first)


def test_runs_inside_a_compiled_model():
    inputs = keras.Input((6, 5, 3), dtype="uint8")
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(PadCropFlip(seed=0)(PerPixelMean()(inputs))))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    history = model.fit(X.astype("uint8"), np.zeros((64, 1)), batch_size=16, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0])


def test_integers_become_floats_as_the_spec_says():
    layer, pixels = PadCropFlip(padding=1, seed=0), X.astype("uint8")
    for training in (False, True):
        assert keras.backend.standardize_dtype(layer(pixels, training=training).dtype) == "float32"


@pytest.mark.parametrize("floatx", ["float16", "bfloat16", "float64"])
def test_every_image_stays_in_its_place_whatever_the_default_float(floatx):
    """With 16 bits, the rows of the 1,024th image of 32×32 pixels would be counted beyond the largest integer."""
    images = np.broadcast_to(np.arange(1100.0).reshape(-1, 1, 1, 1), (1100, 32, 32, 1)).astype("float32")
    before = keras.config.floatx()
    keras.config.set_floatx(floatx)
    try:
        augmented = array(PadCropFlip(0, seed=0, dtype="float32")(images, training=True))
    finally:
        keras.config.set_floatx(before)
    np.testing.assert_array_equal(augmented, images)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="elsewhere, arrays have sizes when a model trains")
def test_images_whose_size_is_unknown_until_they_come():
    import tensorflow as tf

    def in_graph(layer):
        images = tf.TensorSpec((None, None, None, 3))
        return tf.function(lambda x: layer(x, training=True), input_signature=[images], autograph=False)(X)

    known, unknown = (PadCropFlip(padding=2, seed=1) for _ in range(2))
    np.testing.assert_array_equal(array(in_graph(unknown)), array(known(X, training=True)))
    with pytest.raises(InputError, match="whole pixels"):
        in_graph(PadCropFlip(padding=0.125))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "mixed_bfloat16"])
def test_the_mean_is_float32_under_every_policy(dtype):
    mean = np.random.default_rng(0).uniform(0, 255, (4, 4, 3))
    layer = PerPixelMean(dtype=dtype)
    layer.set_mean(mean)
    np.testing.assert_array_equal(array(layer.mean), mean.astype("float32"))
    y = array(keras.ops.cast(layer(np.zeros((1, 4, 4, 3), "uint8")), "float32"))
    np.testing.assert_allclose(y[0], -mean / 255, rtol=1e-2)


@pytest.mark.parametrize("scale", [0, float("nan"), "255"])
def test_a_scale_that_cannot_divide_is_refused(scale):
    with pytest.raises(InputError, match="scale"):
        PerPixelMean(scale=scale)
