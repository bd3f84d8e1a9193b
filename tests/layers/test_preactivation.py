"""Batch norm, fused and not, and the other normalizations."""

import keras
import numpy as np
import pytest
from harness import array, check_layer

from keras_preact import InputError
from keras_preact.layers import BatchNorm, PreActivation, normalization
from keras_preact.layers.native import FUSED_BATCH_NORM

X = np.random.default_rng(3).normal(loc=0.5, scale=2.0, size=(6, 5, 7, 4)).astype("float32")


def with_axis(layer_type, **options):
    def make(data_format="channels_last", **more):
        return layer_type(axis=1 if data_format == "channels_first" else -1, **options, **more)

    return make


@pytest.mark.parametrize("layer_type", [BatchNorm, PreActivation])
@pytest.mark.parametrize("fused", [None, False])
def test_harness(layer_type, fused):
    check_layer(with_axis(layer_type, fused=fused), X)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("training", [False, True])
def test_equals_kerass_batch_normalization(dtype, axis, training):
    """Outputs and moving statistics, the biased variance included."""
    ours = BatchNorm(axis=axis, dtype=dtype)
    reference = keras.layers.BatchNormalization(axis=axis, momentum=0.9, epsilon=1e-5, dtype="float32")
    x = X.astype("float16").astype("float32")  # what all dtypes but bfloat16 represent exactly
    got, expected = array(ours(x, training=training)), array(reference(x, training=training))
    tolerance = {"float32": 1e-5, "mixed_float16": 5e-3, "mixed_bfloat16": 4e-2}[dtype]
    np.testing.assert_allclose(got, expected, atol=tolerance, rtol=tolerance)
    for a, b in zip(ours.weights, reference.weights, strict=True):
        np.testing.assert_allclose(array(a), array(b), atol=max(1e-6, tolerance / 10), rtol=tolerance)


def test_moving_statistics_have_the_closed_form_with_momentum_one_half():
    layer = BatchNorm(momentum=0.5)
    for _ in range(2):
        layer(X, training=True)
    mean, variance = X.mean((0, 1, 2)), X.var((0, 1, 2))
    np.testing.assert_allclose(array(layer.moving_mean), 0.75 * mean, rtol=1e-5)
    np.testing.assert_allclose(array(layer.moving_variance), 0.25 + 0.75 * variance, rtol=1e-5)


def test_moving_statistics_are_averaged_over_devices():
    layer = BatchNorm()
    layer.build(X.shape)
    assert layer.moving_mean.aggregation == layer.moving_variance.aggregation == "mean"


def test_gradients_equal_those_of_the_unfused_path():
    """One step of SGD through either path gives the same weights below it."""
    weights = []
    for fused in (None, False):
        keras.utils.set_random_seed(1)
        inputs = keras.Input(X.shape[1:])
        model = keras.Model(inputs, PreActivation(fused=fused)(keras.layers.Conv2D(4, 3)(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.train_on_batch(X, np.ones((len(X), *model.output.shape[1:])))
        weights.append(model.get_weights())
    for fused, reference in zip(*weights, strict=True):
        np.testing.assert_allclose(fused, reference, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(keras.backend.backend() not in FUSED_BATCH_NORM, reason="this backend has no fused batch norm")
def test_the_fused_operation_runs_where_it_can_and_nowhere_else(monkeypatch):
    backend, calls = keras.backend.backend(), []
    fused = FUSED_BATCH_NORM[backend]
    monkeypatch.setitem(FUSED_BATCH_NORM, backend, lambda *args, **kwargs: calls.append(1) or fused(*args, **kwargs))

    def runs(x=X, mask=None, **options):
        calls.clear()
        BatchNorm(**options)(x, mask=mask)
        return bool(calls)

    for options in ({}, {"axis": 1}, {"axis": 3}, {"dtype": "mixed_float16"}, {"dtype": "mixed_bfloat16"}):
        assert runs(**options), options
    others = [{"fused": False}, {"axis": 2}, {"dtype": "float64"}, {"dtype": "float16"}]
    if backend == "tensorflow":  # Keras refuses it elsewhere
        others.append({"synchronized": True})
    for options in others:
        assert not runs(**options), options
    assert not runs(X.reshape(-1, 4)) and not runs(mask=np.ones(X.shape[:3], "bool"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_policy_of_half_precision_alone_trains(dtype):
    model = keras.Sequential([keras.Input(X.shape[1:]), PreActivation(dtype=dtype)])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.train_on_batch(X, np.ones_like(X))
    assert all(np.isfinite(array(variable)).all() for variable in model.variables)
    assert array(model.layers[0].moving_mean).any()


def test_a_frozen_layer_uses_and_keeps_its_moving_statistics():
    layer = BatchNorm()
    layer.build(X.shape)
    layer.trainable = False
    np.testing.assert_allclose(array(layer(X, training=True)), X / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert not array(layer.moving_mean).any()


@pytest.mark.parametrize("options", [{"scale": False}, {"center": False}])
def test_without_scale_or_offset(options):
    layer, reference = BatchNorm(**options), BatchNorm(fused=False, **options)
    assert len(layer(X, training=True).shape) == 4
    np.testing.assert_allclose(array(layer(X, training=True)), array(reference(X, training=True)), atol=1e-5)
    assert len(layer.trainable_weights) == 1


def test_other_ranks_take_the_parents_path():
    x = X.reshape(-1, 4)
    np.testing.assert_allclose(array(BatchNorm()(x, training=True)).mean(0), 0, atol=1e-5)


def test_constants_are_the_papers():
    layer = BatchNorm()
    assert (layer.momentum, layer.epsilon) == (0.9, 1e-5)


@pytest.mark.parametrize("kind", ["group", "layer"])
def test_normalizations_without_batch_do_not_mix_images(kind):
    (layer,) = normalization(kind, 4)
    np.testing.assert_allclose(array(layer(X))[:1], array(layer(X[:1])), atol=1e-5)


def test_group_and_layer_normalization_differ_in_their_groups():
    cases = (("group", 48), ("group", 64), ("layer", 48))
    assert [normalization(kind, channels)[0].groups for kind, channels in cases] == [16, 32, 1]
    assert all(normalization(kind, 4)[0].center for kind in ("batch", "group"))


def test_an_unknown_normalization_is_refused():
    with pytest.raises(InputError, match="known: batch, group, layer, none"):
        normalization("instance", 4)


def test_unknown_activations_are_refused():
    with pytest.raises(InputError, match="activation is 'foo'; pass a Keras activation such as 'relu'"):
        PreActivation(activation="foo")
