"""Freezing, re-estimated statistics, other image sizes: what changes and what does not."""

import keras
import numpy as np
import pytest
from harness import array, disturb

from keras_preact import InputError
from keras_preact.data import PerPixelMean
from keras_preact.layers import Shortcut
from keras_preact.models import (
    Classification,
    Patches,
    Tokens,
    cifar_resnet,
    feature_maps,
    fold,
    freeze,
    imagenet_resnet,
    reestimate_statistics,
    resized,
    roll,
    transformer,
    unroll,
    with_preprocessing,
)
from keras_preact.models.trained import require_uint8


def batches(count=3, size=16, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(k, 1 + k, (size, 8, 8, 3)).astype("float32") for k in range(count)]


def weights(model):
    return [keras.ops.convert_to_numpy(v) for v in model.variables]


@pytest.mark.parametrize("rolled", [False, True])
def test_a_frozen_part_stays_as_it_is_through_training_statistics_and_all(rolled):
    network = cifar_resnet(20, input_shape=(8, 8, 3), rolled=rolled)
    frozen = freeze(network, before="stage3")
    assert "stem_conv" in frozen and not any(name.startswith(("stage3", "logits")) for name in frozen)
    before = {layer.name: weights(layer) for layer in network.layers if layer.weights}
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    network.fit(np.concatenate(batches()), np.arange(48) % 10, batch_size=16, verbose=0)
    for layer in network.layers:
        same = [np.array_equal(a, b) for a, b in zip(before.get(layer.name, []), weights(layer), strict=True)]
        assert all(same) if layer.name in frozen else not any(same)


def test_a_frozen_network_computes_in_training_what_it_does_at_inference():
    network = cifar_resnet(8, input_shape=(8, 8, 3))
    reestimate_statistics(network, batches())
    x = batches(1)[0]
    assert np.abs(array(network(x, training=True)) - array(network(x, training=False))).max() > 1e-3
    assert freeze(network) == [layer.name for layer in network.layers]
    assert np.array_equal(array(network(x, training=True)), array(network(x, training=False)))


@pytest.mark.parametrize("rolled", [False, True])
def test_statistics_are_the_means_over_the_batches(rolled):
    network = cifar_resnet(20, input_shape=(8, 8, 3), rolled=rolled)
    before = [array(v) for v in network.trainable_variables]
    shown = batches()
    assert reestimate_statistics(network, iter(shown)) == len(shown)
    stem = keras.Model(network.input, network.get_layer("stem_conv").output)
    maps = [array(stem(x)) for x in shown]  # the first batch norm of a pre-activation network sees these
    norms = [n for n in network._flatten_layers() if isinstance(n, keras.layers.BatchNormalization)]
    (norm,) = (n for n in norms if n.moving_mean.path == "stage1_unit01/norm1/moving_mean")
    mean = np.mean([m.mean((0, 1, 2)) for m in maps], 0)
    variance = np.mean([m.var((0, 1, 2)) for m in maps], 0)
    np.testing.assert_allclose(norm.moving_mean, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, variance, rtol=1e-4)
    assert all(n.momentum == 0.9 for n in norms)
    assert all(np.array_equal(a, array(b)) for a, b in zip(before, network.trainable_variables, strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("before", [0.5, np.nan, np.inf])
def test_statistics_do_not_depend_on_what_they_were(before, rolled):
    one, other = (cifar_resnet(14, input_shape=(8, 8, 3), rolled=rolled) for _ in range(2))
    other.set_weights(one.get_weights())
    for variable in other.non_trainable_variables:
        if "moving" in variable.path:
            variable.assign(variable * 0 + before)
    for network in (one, other):
        reestimate_statistics(network, batches())
    for a, b in zip(weights(one), weights(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("remat", [False, True])
def test_statistics_of_a_rolled_network_are_those_of_the_same_network_unrolled(remat):
    rolled = cifar_resnet(20, input_shape=(8, 8, 3), rolled=True, remat=remat)
    unrolled = unroll(rolled)
    reestimate_statistics(rolled, batches(seed=7))  # what the statistics were does not matter
    for network in (rolled, unrolled):
        reestimate_statistics(network, batches())
    for a, b in zip(weights(unroll(rolled)), weights(unrolled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_statistics_of_a_frozen_stack_stay_as_they_are():
    network = cifar_resnet(20, input_shape=(8, 8, 3), rolled=True)
    freeze(network, before="stage3")
    before = weights(network.get_layer("stage1_stack"))
    reestimate_statistics(network, batches())
    for a, b in zip(before, weights(network.get_layer("stage1_stack")), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rolled", [True, False])
def test_frozen_units_stay_frozen_when_they_are_saved_loaded_and_cloned(rolled, tmp_path):
    network = cifar_resnet(20, "original", "highway", input_shape=(8, 8, 3), rolled=rolled)
    freeze(network, before="stage3")
    network.save(tmp_path / "frozen.keras")
    expected = [variable.path for variable in network.trainable_variables]
    for copy in (keras.models.load_model(tmp_path / "frozen.keras"), keras.models.clone_model(network)):
        assert [variable.path for variable in copy.trainable_variables] == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("profile", ["paper", "keras_applications"])
def test_another_size_has_the_same_weights_and_the_function_of_a_network_built_for_it(profile):
    network = imagenet_resnet(50, input_shape=(64, 64, 3), classes=5, profile=profile)
    larger, built = resized(network, 96), imagenet_resnet(50, input_shape=(96, 96, 3), classes=5, profile=profile)
    built.set_weights(network.get_weights())
    x = np.random.default_rng(0).normal(size=(2, 96, 96, 3)).astype("float32")
    np.testing.assert_allclose(array(larger(x)), array(built(x)), rtol=1e-5, atol=1e-5)
    assert network.input_shape == (None, 64, 64, 3)


def test_another_size_of_images_whose_channels_come_first():
    network = cifar_resnet(8, data_format="channels_first")
    assert resized(network, 48).input_shape == (None, 3, 48, 48)


def test_networks_of_patches_or_of_tokens_have_no_other_size():
    small = {"depth": 1, "dim": 8, "heads": 2}
    with pytest.raises(InputError, match="a layer that depends on the image size"):
        resized(transformer(Patches((16, 16, 3)), Classification(3), **small), 32)
    with pytest.raises(InputError, match=r"input of shape \(None, 12\), not an image"):
        resized(transformer(Tokens(100, 12), Classification(3), **small), 32)


def test_a_mean_of_all_pixels_goes_along_and_one_of_each_pixel_does_not():
    def with_mean(mean):
        inputs = keras.Input((8, 8, 3), dtype="uint8")
        layer = PerPixelMean()
        network = cifar_resnet(8, input_tensor=layer(inputs))
        layer.mean.assign(mean)
        return network

    one = np.broadcast_to(np.float32([120, 110, 100]), (8, 8, 3))
    larger = resized(with_mean(one), 12)
    np.testing.assert_array_equal(larger.layers[1].mean, np.broadcast_to(one[:1, :1], (12, 12, 3)))
    with pytest.raises(InputError, match="differs from pixel to pixel"):
        resized(with_mean(np.arange(192, dtype="float32").reshape(8, 8, 3)), 12)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda network: freeze(network, before="stage9"), "no layer's name starts with 'stage9'"),
        (lambda network: reestimate_statistics(network, []), "batches is empty"),
        (lambda network: reestimate_statistics(network, batches()) if freeze(network) else None, "no trainable batch"),
        (
            lambda _: reestimate_statistics(keras.Sequential([keras.layers.BatchNormalization()]), batches()),
            "has batch norms without statistics yet; call it on a batch first",
        ),
        (lambda network: reestimate_statistics(network, (batches()[0], np.arange(16))), "batches is a tuple"),
        (lambda network: resized(network, 0), "size is 0"),
    ],
)
def test_what_cannot_be_done_is_refused(act, words):
    with pytest.raises(InputError, match=words):
        act(cifar_resnet(8, input_shape=(8, 8, 3)))


def test_statistics_are_estimated_on_what_fit_takes():
    network = cifar_resnet(8, input_shape=(8, 8, 3))
    copy = keras.models.clone_model(network)
    copy.set_weights(network.get_weights())
    reestimate_statistics(network, batches())
    assert reestimate_statistics(copy, [(images, np.arange(len(images))) for images in batches()]) == 3
    for one, other in zip(weights(network), weights(copy), strict=True):
        np.testing.assert_array_equal(one, other)


def test_statistics_of_a_model_of_several_inputs():
    """A list of its inputs is no pair of inputs and labels."""
    left, right = keras.Input((4,)), keras.Input((4,))
    x = [np.full((8, 4), value, "float32") for value in (1.0, 3.0)]
    for batch in (x, (x, np.zeros(8)), [x, np.zeros(8)]):
        norm = keras.layers.BatchNormalization()
        model = keras.Model([left, right], norm(left + right))
        assert reestimate_statistics(model, [batch]) == 1
        np.testing.assert_allclose(array(norm.moving_mean), 4)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="no convolution on the CPU")
def test_channels_first_inside_another_model():
    inner = cifar_resnet(8, input_shape=(3, 8, 8), data_format="channels_first")
    outer = keras.Sequential([keras.Input((3, 8, 8)), inner])
    assert resized(outer, 16).input_shape == (None, 3, 16, 16)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="no convolution on the CPU")
def test_channels_first_after_a_permutation_of_the_axes():
    inner = cifar_resnet(8, input_shape=(3, 8, 8), data_format="channels_first")
    outer = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Permute((3, 1, 2)), inner])
    larger, x = resized(outer, 16), np.concatenate(batches(1))
    assert larger.input_shape == (None, 16, 16, 3)
    np.testing.assert_array_equal(array(resized(larger, 8)(x)), array(outer(x)))


def test_a_network_in_a_network_is_resized_with_it():
    backbone = cifar_resnet(8, include_top=False, input_shape=(8, 8, 3), pooling="avg")
    outer = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Rescaling(2.0), backbone, keras.layers.Dense(2)])
    inputs = keras.Input((8, 8, 3))
    for network in (outer, keras.Model(inputs, keras.layers.Dense(2)(backbone(keras.layers.ReLU()(inputs))))):
        larger = resized(network, 12)
        assert larger.input_shape == (None, 12, 12, 3)
        x = np.concatenate(batches(1))
        small = keras.ops.convert_to_numpy(resized(larger, 8)(x))
        np.testing.assert_array_equal(small, keras.ops.convert_to_numpy(network(x)))


def test_adapted_normalization_is_resized_with_the_network():
    normalization, x = keras.layers.Normalization(), np.concatenate(batches())
    normalization.adapt(x)
    network = cifar_resnet(8, input_tensor=normalization(keras.Input((8, 8, 3))))
    nested = keras.Sequential([keras.Input((8, 8, 3)), network])
    for model in (network, nested):
        np.testing.assert_array_equal(array(resized(resized(model, 12), 8)(x)), array(model(x)))


def test_a_head_on_vectors_and_unregistered_classes_are_resized():
    class Same(Shortcut):
        def call(self, x, residual):
            return x + residual

    backbone = cifar_resnet(8, shortcut=Same(), include_top=False, input_shape=(8, 8, 3), pooling="avg")
    head = keras.Sequential([keras.Input((64,)), keras.layers.Dense(2)])
    inputs = keras.Input((8, 8, 3))
    network = keras.Model(inputs, head(backbone(inputs)))
    larger, x = resized(network, 12), np.concatenate(batches(1))
    assert larger.input_shape == (None, 12, 12, 3)
    np.testing.assert_array_equal(array(resized(larger, 8)(x)), array(network(x)))


def test_a_network_that_resizes_its_images_is_not_resized():
    network = imagenet_resnet(18, input_shape=(64, 64, 3), classes=3)
    with pytest.raises(InputError, match="itself, in its layer resize; call `resized` on the network inside"):
        resized(with_preprocessing(network), 96)


def test_resized_keeps_the_loss_scale_whatever_the_policy_is_now():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        network = cifar_resnet(8)
    finally:
        keras.config.set_dtype_policy("float32")
    larger = resized(network, 16)
    larger.compile("sgd", "mse")
    assert isinstance(larger.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.thorough
def test_a_copy_of_a_network_that_takes_pixels_as_they_are_refuses_others():
    images = keras.Input((8, 8, 3), dtype="uint8")
    network = cifar_resnet(26, input_tensor=keras.layers.Rescaling(1 / 255)(images))
    ones = np.ones((2, 8, 8, 3))
    copies = (roll, fold, feature_maps, lambda model: unroll(roll(model)))
    for copy in copies:
        assert copy(network).predict(ones, verbose=0) is not None  # without the check, other dtypes are accepted
    require_uint8(network)
    for copy in copies:
        copy(network).predict(ones.astype("uint8"), verbose=0)
        with pytest.raises(ValueError, match="expected dtype=uint8, found dtype=float"):
            copy(network).predict(ones, verbose=0)


def test_inputs_of_several_dtypes_may_come_by_name():
    """In any order: sorted by name, the ages would come before the pixels."""
    pixels, age = keras.Input((4,), dtype="uint8", name="pixels"), keras.Input((1,), name="age")
    joined = keras.layers.Concatenate()([keras.layers.Rescaling(1 / 255)(pixels), age])
    images, years = np.ones((2, 4), "uint8"), np.ones((2, 1), "float32")
    for inputs in ([pixels, age], {"pixels": pixels, "age": age}):
        model = require_uint8(keras.Model(inputs, keras.layers.Dense(2)(joined)))
        model.compile("sgd", "mse")
        model.fit({"pixels": images, "age": years}, np.zeros((2, 2)), verbose=0)
        assert model.predict({"age": years, "pixels": images}, verbose=0).shape == (2, 2)
        with pytest.raises(ValueError, match="expected dtype=uint8, found dtype=float"):
            model.predict({"pixels": images / 255, "age": years}, verbose=0)


def test_a_sequential_model_refuses_other_pixels_too():
    inputs = keras.Input((2,), dtype="uint8")
    model = require_uint8(keras.Sequential([inputs, keras.layers.Rescaling(1 / 255)]))
    assert model.predict(np.ones((1, 2), "uint8"), verbose=0).shape == (1, 2)
    with pytest.raises(ValueError, match="expected dtype=uint8, found dtype=float"):
        model.predict(np.ones((1, 2)), verbose=0)


@pytest.mark.parametrize("rolled", [False, True])
def test_statistics_are_as_before_if_a_batch_is_refused(rolled):
    network = cifar_resnet(14, input_shape=(8, 8, 3), rolled=rolled)
    disturb(network)
    before = [array(variable) for variable in network.weights]
    images = np.zeros((4, 8, 8, 3), "float32")
    with pytest.raises(InputError, match="batches is a single array, which could be one batch; pass a list"):
        reestimate_statistics(network, images)
    with pytest.raises(InputError, match="batches is 5; pass a list of batches or a data set"):
        reestimate_statistics(network, 5)
    with pytest.raises(Exception, match=r"incompatible|shape|channels"):
        reestimate_statistics(network, [images, np.zeros((4, 8, 8, 5), "float32")])
    assert all(np.array_equal(a, array(b)) for a, b in zip(before, network.weights, strict=True))
