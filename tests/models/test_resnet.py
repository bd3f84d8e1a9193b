"""Options of all networks: top, pooling, feature maps, dilation."""

import keras
import numpy as np
import pytest
from harness import array, disturb, write_weights

from keras_preact import InputError
from keras_preact.layers import Placement, ResidualUnit
from keras_preact.layers.composite import batch_norms
from keras_preact.models import cifar_resnet, feature_maps, imagenet_resnet, multiply_adds
from keras_preact.models.resnet import Stage, dilate

X = np.random.default_rng(6).normal(size=(2, 32, 32, 3)).astype("float32")


def small(**options):
    return cifar_resnet(8, **options)


@pytest.mark.parametrize(("placement", "count"), [("original", 9), ("full_preactivation", 7)])
def test_options_of_the_layers_reach_stem_units_and_head(placement, count):
    model = small(placement=placement, momentum=0.7, epsilon=1e-3, kernel_initializer="ones")
    assert [(norm.momentum, norm.epsilon) for norm in batch_norms(model)] == [(0.7, 1e-3)] * count
    kernels = [v for v in model.weights if v.path.endswith("kernel") and "logits" not in v.path]
    assert len(kernels) == 9 and all((array(kernel) == 1).all() for kernel in kernels)


def test_without_top():
    whole = small(include_top=False)
    maps = array(whole(X))
    assert maps.shape == (2, 8, 8, 64)
    for pooling, expected in (("avg", maps.mean((1, 2))), ("max", maps.max((1, 2)))):
        pooled = small(include_top=False, pooling=pooling)
        pooled.set_weights(whole.get_weights())
        np.testing.assert_allclose(array(pooled(X)), expected, rtol=1e-4, atol=1e-4)


def test_what_is_no_shape_is_refused():
    with pytest.raises(InputError, match="input_shape is 32; pass"):
        cifar_resnet(8, input_shape=32)


def test_numpy_integers_are_sizes():
    assert cifar_resnet(8, input_shape=tuple(np.array([8, 8, 3]))).input_shape == (None, 8, 8, 3)


def test_the_name_of_a_custom_placement_must_be_one_of_a_model():
    placement = Placement("bn/relu", "BN, ReLU", first=("norm", "relu"))
    with pytest.raises(InputError, match="name is 'resnet8_bn/relu'; pass a string without /"):
        cifar_resnet(8, placement)
    assert cifar_resnet(8, placement, name="mine").name == "mine"


def test_without_top_the_image_size_is_open():
    model = small(include_top=False)
    assert model.input_shape == (None, None, None, 3)
    assert tuple(model(X[:, :24]).shape) == (2, 6, 8, 64)


def test_classifier_activation():
    y = array(small(classifier_activation="softmax")(X))
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
    assert small().layers[-1].name == small(classifier_activation="linear").layers[-1].name == "logits"


def test_input_tensor():
    inputs = keras.Input((32, 32, 3), name="raw")
    model = small(input_tensor=keras.layers.Rescaling(2.0)(inputs))
    plain = small()
    plain.set_weights(model.get_weights())
    assert model.input is inputs
    np.testing.assert_allclose(array(model(X)), array(plain(2 * X)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ending", [".weights.h5", ".safetensors"])
def test_weights_files_load_after_layers_that_have_weights(ending, tmp_path):
    saved = small(include_top=False, input_shape=(32, 32, 3))
    disturb(saved)
    path = write_weights(saved, tmp_path / f"saved{ending}")
    inputs = keras.Input((32, 32, 3))
    statistics = keras.layers.Normalization()
    statistics.adapt(2 * X + 1)
    expected = array(saved(statistics(X)))
    model = small(include_top=False, weights=path, input_tensor=statistics(inputs))
    np.testing.assert_allclose(array(model(X)), expected, rtol=1e-4)
    again = keras.models.clone_model(model)
    again.set_weights(model.get_weights())
    again.get_layer(statistics.name).finalize_state()
    np.testing.assert_allclose(array(again(X)), expected, rtol=1e-4)
    assert feature_maps(model)(X)["stage1"].shape == (2, 32, 32, 16)


def test_feature_maps_have_the_networks_weights():
    model = imagenet_resnet(18, include_top=False)
    assert list(feature_maps(model, "stage2").output) == ["stage2"]
    maps = feature_maps(model, ["stage2", "stage4"])
    shapes = {name: tuple(y.shape) for name, y in maps(np.ones((1, 64, 64, 3), "float32")).items()}
    assert shapes == {"stage2": (1, 8, 8, 128), "stage4": (1, 2, 2, 512)}
    assert maps.get_layer("stage1_unit01") is model.get_layer("stage1_unit01")
    with pytest.raises(InputError, match="unknown stage 'stage5'"):
        feature_maps(model, ["stage5"])
    outer = keras.Sequential([keras.Input((64, 64, 3)), model], name="outer")
    with pytest.raises(InputError, match=rf"outer has no stages of residual units; .* get_layer\('{model.name}'\)"):
        feature_maps(outer)


@pytest.mark.parametrize("placement", ["full_preactivation", "original"])
@pytest.mark.parametrize("block", [{"depth": 14, "bottleneck": False}, {"depth": 11, "bottleneck": True}])
@pytest.mark.parametrize("stride_on", ["1x1", "3x3"])
def test_the_dilated_network_is_the_strided_one_and_what_lies_between(placement, block, stride_on):
    """Every fourth pixel of the dilated network's map is a pixel of the strided network's, from the same weights."""
    options = {**block, "placement": placement, "stride_on": stride_on, "include_top": False}
    strided = cifar_resnet(input_shape=(32, 32, 3), **options)
    dilated = cifar_resnet(input_shape=(32, 32, 3), output_stride=1, **options)
    dilated.set_weights(strided.get_weights())
    between, expected = array(dilated(X)), array(strided(X))
    assert between.shape == (2, 32, 32, expected.shape[-1])
    np.testing.assert_allclose(between[:, ::4, ::4], expected, rtol=1e-3, atol=1e-3)


def test_output_strides_of_the_imagenet_networks():
    for output_stride, size in ((32, 2), (16, 4), (8, 8), (4, 16)):
        model = imagenet_resnet(18, output_stride=output_stride, include_top=False, input_shape=(64, 64, 3))
        assert model.output.shape[1:3] == (size, size)
    with pytest.raises(InputError, match="no output stride of 2; choose one of 4, 8, 16, 32"):
        imagenet_resnet(18, output_stride=2)


def test_the_default_output_stride_may_be_named_wherever_the_strides_are():
    for stem, default in (("7x7", 32), ("3x3", 8)):
        options = {"stem": stem, "stride_in": "last", "include_top": False}
        named, default_network = (imagenet_resnet(18, **options, output_stride=n) for n in (default, None))
        assert [layer.get_config() for layer in named.layers[1:]] == [
            layer.get_config() for layer in default_network.layers[1:]
        ]
        with pytest.raises(InputError, match="a smaller output_stride needs the strides in first units"):
            imagenet_resnet(18, **options, output_stride=default // 2)


def test_dilation_doubles_after_each_stride_that_is_taken_away():
    stages = dilate([Stage(1, 2), Stage(1, 2, 2), Stage(1, 2, 2), Stage(1, 2, 2)], output_stride=8, stem_stride=4)
    assert [(s.strides, s.first_dilation, s.dilation) for s in stages] == [(1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 2, 4)]


def test_multiply_adds_need_a_size():
    with pytest.raises(InputError, match="fixed image size"):
        multiply_adds(small(include_top=False))


def test_zero_init_residual_starts_every_branch_at_zero():
    model = small(zero_init_residual=True)
    for unit in (layer for layer in model.layers if isinstance(layer, ResidualUnit)):
        x = np.random.default_rng(0).normal(size=(2, *unit.input.shape[1:])).astype("float32")
        assert not array(unit.residual(unit.preactivate(x))).any()


def test_a_zero_init_that_no_gradient_reaches_is_refused():
    with pytest.raises(InputError, match="branches of relu_before_addition end in ReLU"):
        small(placement="relu_before_addition", zero_init_residual=True)


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "count"), [("full_preactivation", 10_327_706), ("original", 10_328_602)])
def test_depth_1001_comes_back_from_its_configuration(placement, count):
    """333 units are 333 nodes of the graph; restoring them must not recurse as deep as the network."""
    model = cifar_resnet(1001, placement)
    again = keras.Model.from_config(model.get_config())
    assert sum(int(np.prod(variable.shape)) for variable in again.trainable_variables) == count


def test_weights_may_leave_out_the_layers_before_the_input_tensor(tmp_path):
    normalization = keras.layers.Normalization(name="standardization")
    normalization.adapt(3 * X)
    build = lambda **options: small(input_tensor=normalization(keras.Input((32, 32, 3))), **options)  # noqa: E731
    whole, own = build(), small()
    for model, name in ((whole, "whole.weights.h5"), (own, "own.weights.h5"), (own, "own.safetensors")):
        path = write_weights(model, tmp_path / name)
        expected = model.get_layer("stem_conv").get_weights()[0]
        loaded = build(weights=path)
        np.testing.assert_array_equal(loaded.get_layer("stem_conv").get_weights()[0], expected)
        np.testing.assert_allclose(array(loaded.layers[1](3 * X)).std(), 1, rtol=1e-3)
    with pytest.raises(InputError, match=r"own\.weights\.h5 lacks"):
        build(widen_factor=2, weights=tmp_path / "own.weights.h5")


def test_feature_maps_keep_the_loss_scale_of_mixed_precision():
    maps = feature_maps(small(dtype="mixed_float16"))
    maps.compile("sgd", "mse")
    assert isinstance(maps.optimizer, keras.optimizers.LossScaleOptimizer)
