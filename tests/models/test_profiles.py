"""Profiles: each computes the function of its code base, with as many parameters."""

import keras
import numpy as np
import pytest

from keras_preact import InputError, paper
from keras_preact.layers import PLACEMENTS, ResidualUnit
from keras_preact.models import cifar_resnet, get_network, imagenet_resnet
from keras_preact.models.profiles import PAPER, PROFILES, conventions, differences


def trainable(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def kernels_with_bias(model):
    names = {variable.path for variable in model.weights}
    return {name for name in names if name.endswith("bias") and "logits" not in name}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [20, 164])
@pytest.mark.parametrize("placement", ["full_preactivation", "original"])
def test_the_papers_profile_is_the_default(depth, placement):
    default, named = (cifar_resnet(depth, placement, rolled=False, **given) for given in ({}, {"profile": "paper"}))
    assert trainable(default) == trainable(named)
    assert [layer.get_config() for layer in default.layers] == [layer.get_config() for layer in named.layers]


def test_parameters_of_cifar_profiles():
    torch, authors = cifar_resnet(110, profile="fb_resnet_torch"), cifar_resnet(164, profile="resnet_1k_layers")
    assert trainable(torch) == paper.PARAMETERS_OPTION_A["cifar10", 110, "full_preactivation"]
    assert trainable(authors) == paper.PARAMETERS["cifar10", 164, "full_preactivation"]


@pytest.mark.parametrize(
    "depth", [50, pytest.param(101, marks=pytest.mark.slow), pytest.param(152, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("version", ["", "V2"])
def test_keras_applications_layer_by_layer(depth, version):
    """The same number of weights, of the same shapes, in the same units."""
    theirs = getattr(keras.applications, f"ResNet{depth}{version}")(weights=None)
    placement = "full_preactivation" if version else "original"
    ours = imagenet_resnet(depth, placement, profile="keras_applications", rolled=False)
    assert ours.count_params() == theirs.count_params()
    assert trainable(ours) == trainable(theirs)
    for stage in range(1, 5):
        units = [layer for layer in ours.layers if layer.name.startswith(f"stage{stage}_")]
        for number, unit in enumerate(units, start=1):
            prefix = f"conv{stage + 1}_block{number}_"
            blocks = [layer for layer in theirs.layers if layer.name.startswith(prefix)]
            assert shapes([unit]) == shapes(blocks), prefix
            assert tuple(unit.output.shape) == tuple(theirs.get_layer(f"{prefix}out").output.shape)


def shapes(layers):
    return sorted(tuple(variable.shape) for layer in layers for variable in layer.variables)


def test_convolutions_without_a_following_norm_have_biases():
    model = imagenet_resnet(50, profile="keras_applications", include_top=False, input_shape=(64, 64, 3))
    first = {"stem_conv/bias", "stage1_unit01/conv3/bias", "stage1_unit01/projection/conv/bias"}
    assert first < kernels_with_bias(model)
    assert len(kernels_with_bias(model)) == 1 + 16 + 4  # the stem, each unit's last, the projections
    original = imagenet_resnet(50, "original", biases="unnormalized", include_top=False, input_shape=(64, 64, 3))
    assert kernels_with_bias(original) == set()  # a norm follows each


def test_without_normalization_every_convolution_has_its_bias():
    unit = ResidualUnit(8, normalization="none", biases="unnormalized")
    unit.build((None, 8, 8, 8))
    assert {variable.path.split("/")[-2] for variable in unit.weights if "bias" in variable.path} == {"conv1", "conv2"}
    network = cifar_resnet(8, "original", normalization="none", biases="unnormalized")
    paths = {variable.path for variable in network.weights}
    kernels = {path for path in paths if path.endswith("kernel")}
    assert "stem_conv/kernel" in kernels and {path.replace("kernel", "bias") for path in kernels} < paths


def test_initial_kernels_are_the_profiles():
    """Glorot's uniform kernels are bounded; He's normal kernels are wider and unbounded."""
    model = imagenet_resnet(18, profile="keras_applications", include_top=False, input_shape=(64, 64, 3))
    kernel = keras.ops.convert_to_numpy(model.get_layer("stage4_unit02").branch[0].kernel)
    bound = np.sqrt(6 / (9 * 512 + 9 * 512))
    assert np.abs(kernel).max() < bound * 1.0001
    assert np.isclose(kernel.std(), bound / np.sqrt(3), rtol=0.01)
    unit = ResidualUnit(512)
    unit.build((None, 8, 8, 512))
    assert np.isclose(keras.ops.convert_to_numpy(unit.branch[0].kernel).std(), np.sqrt(2 / (9 * 512)), rtol=0.01)


def test_an_initializer_object_draws_new_values_for_each_kernel():
    unit = ResidualUnit(8, kernel_initializer=keras.initializers.HeNormal())
    unit.build((None, 8, 8, 8))
    kernels = [variable for variable in unit.weights if variable.path.endswith("kernel")]
    assert not np.array_equal(*(keras.ops.convert_to_numpy(kernel) for kernel in kernels))
    assert ResidualUnit.from_config(unit.get_config()).kernel_initializer == unit.kernel_initializer


def test_timms_pooling_ignores_the_border():
    """Its stem has no activation: zero padding would turn a negative border into zeros."""
    model = imagenet_resnet(18, profile="timm", include_top=False, input_shape=(32, 32, 3))
    to_pool = keras.Model(model.input, model.get_layer("stem_pool").output)
    kernel = model.get_layer("stem_conv").kernel
    kernel.assign(-keras.ops.abs(kernel))
    pooled = to_pool.predict(np.ones((1, 32, 32, 3), "float32"), verbose=0)
    assert (pooled < 0).all()


@pytest.mark.thorough
def test_saved_and_loaded_with_a_profile(tmp_path):
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    for profile in ("timm", "keras_applications", "pytorch_cifar"):
        model = imagenet_resnet(18, profile=profile, classes=4, input_shape=(32, 32, 3))
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert np.array_equal(model.predict(images, verbose=0), loaded.predict(images, verbose=0))


def test_what_is_given_wins_over_the_profile():
    model = imagenet_resnet(50, profile="keras_applications", stride_in="first", biases="none", input_shape=(64, 64, 3))
    assert kernels_with_bias(model) == set()
    assert model.get_layer("stage2_unit01").strides == 2
    assert model.get_layer("stage2_unit01").epsilon == 1.001e-5


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_builds_what_it_says_it_has(name):
    for family, network in (("cifar", "cifar_resnet"), ("imagenet", "preact_resnet18")):
        options = {"depth": 8} if family == "cifar" else {"input_shape": (32, 32, 3)}
        if getattr(PROFILES[name], family) is None:
            with pytest.raises(InputError, match=f"{name} has no"):
                get_network(network)(profile=name, **options)
        else:
            assert get_network(network)(profile=name, **options).count_params() > 0


def test_pytorchs_kernels_begin_uniformly_by_fan_in():
    kernel = imagenet_resnet(18, profile="pytorch_cifar", input_shape=(32, 32, 3)).get_layer("stage3_unit02").branch
    weights = np.array(next(layer for layer in kernel if layer.name == "conv1").kernel)
    bound = 1 / np.sqrt(np.prod(weights.shape[:3]))
    assert 0.99 * bound < np.abs(weights).max() <= bound
    assert abs(weights.std() - bound / np.sqrt(3)) < 0.01 * bound


def test_differences_are_found_both_ways():
    keras_v2 = conventions("keras_applications", "imagenet", PLACEMENTS["full_preactivation"])
    assert differences(PAPER, PAPER) == []
    forth, back = differences(PAPER, keras_v2), differences(keras_v2, PAPER)
    assert [(description, b, a) for description, a, b in forth] == back
    assert len(forth) == 7
    with pytest.raises(InputError, match="unknown profile 'tim'"):
        imagenet_resnet(18, profile="tim")


@pytest.mark.parametrize("options", [{"biases": "some"}, {"kernel_initializer": "he_by_fan_in_or_out"}])
def test_unknown_choices_are_refused(options):
    with pytest.raises(InputError):
        cifar_resnet(8, **options)
