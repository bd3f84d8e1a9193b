"""The ImageNet networks: exact counts, both orders, the special case of the stem."""

import inspect
import re

import keras
import numpy as np
import pytest

from keras_preact import InputError, models, paper
from keras_preact.layers import PLACEMENTS, ResidualUnit
from keras_preact.models import imagenet_resnet, multiply_adds
from keras_preact.models.imagenet import UNITS

MULTIPLY_ADDS_OF_RESNET50 = 4_089_184_256


def trainable(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def count(depth):
    """Pre-activation: kernels and norms of stem, units and head, projections, the dense layer."""
    block, repeats = UNITS[depth]
    channels, expansion = 64, 1 if block == "basic" else 4
    total = 49 * 3 * 64 + 2 * 64
    for number, (width, n) in enumerate(zip((64, 128, 256, 512), repeats, strict=True)):
        for k in range(n):
            if block == "basic":
                kernels = 9 * channels * width + 9 * width * width
                norms = 2 * channels + 2 * width
            else:
                kernels = channels * width + 9 * width * width + 4 * width * width
                norms = 2 * channels + 4 * width
            if (number, k) == (0, 0):
                norms -= 2 * channels  # the stem has activated its input already
            projection = channels * width * expansion if k == 0 and channels != width * expansion else 0
            total += kernels + norms + projection
            channels = width * expansion
    return total + 2 * channels + (channels + 1) * 1000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", UNITS)
def test_trainable_parameters(depth):
    model = imagenet_resnet(depth)
    assert trainable(model) == count(depth) == paper.PARAMETERS["imagenet", depth, "full_preactivation"]


def test_the_factories_are_the_networks_of_their_names():
    for depth in UNITS:
        for order, placement in (("preact", "full_preactivation"), ("postact", "original")):
            source = inspect.getsource(getattr(models, f"{order}_resnet{depth}")).replace("'", '"')
            assert f'return imagenet_resnet({depth}, "{placement}", **options)' in source
    assert models.postact_resnet18(input_shape=(64, 64, 3)).name == "resnet18_original"


def test_original_resnet50_has_torchvisions_count():
    """25,557,032 parameters; the batch norms have other widths than in pre-activation networks."""
    assert trainable(imagenet_resnet(50, "original")) == 25_557_032


def test_multiply_adds_of_resnet50():
    """4.1 G, as published; with the stride on the first 1×1 convolution 3.8 G."""
    assert multiply_adds(imagenet_resnet(50)) == MULTIPLY_ADDS_OF_RESNET50
    assert multiply_adds(imagenet_resnet(50, stride_on="1x1")) == pytest.approx(3.86e9, rel=0.01)


def test_with_the_stride_in_the_last_unit_the_arithmetic_is_that_of_keras_applications():
    ours = imagenet_resnet(50, stride_in="last")
    theirs = keras.applications.ResNet50V2(weights=None, classifier_activation=None)
    assert multiply_adds(ours) == multiply_adds(theirs) < 0.86 * MULTIPLY_ADDS_OF_RESNET50
    for stage in range(1, 5):
        last = [layer for layer in ours.layers if layer.name.startswith(f"stage{stage}")][-1]
        add = [layer for layer in theirs.layers if layer.name.startswith(f"conv{stage + 1}") and "out" in layer.name]
        assert last.output.shape == add[-1].output.shape
    # A strided unit adds F to every second pixel of its unchanged input.
    unit = ours.get_layer("stage2_unit04")
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 512)).astype("float32")
    unit.branch[-1].kernel.assign(np.zeros(unit.branch[-1].kernel.shape))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(unit(x)), x[:, ::2, ::2])


def test_drop_path_also_grows_through_strided_last_units():
    model = imagenet_resnet(18, stride_in="last", drop_path=0.7, include_top=False, input_shape=(32, 32, 3))
    rates = [layer.drop_path for layer in model.layers if isinstance(layer, ResidualUnit)]
    np.testing.assert_allclose(rates, np.linspace(0, 0.7, 8))


def test_a_stride_is_in_the_first_or_the_last_unit():
    with pytest.raises(InputError, match="stride_in"):
        imagenet_resnet(18, stride_in="middle")


def test_the_stem_activates_before_the_pooling_and_the_first_unit_does_not_again():
    model = imagenet_resnet(18, input_shape=(64, 64, 3))
    names = [layer.name for layer in model.layers]
    assert names[1:8] == [
        "stem_conv_pad", "stem_conv", "stem_norm", "stem_pool_pad", "stem_pool", "stage1_unit01", "stage1_unit02",
    ]  # fmt: skip
    assert model.get_layer("stage1_unit01").preact == []


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_builds(placement):
    model = imagenet_resnet(18, placement, classes=7, input_shape=(64, 64, 3))
    assert model.output.shape == (None, 7)


def test_resnext_and_wide():
    """ResNeXt-50 32×4d: 25.0 M, Wide ResNet-50-2: 68.9 M, as torchvision counts the original order."""
    assert trainable(imagenet_resnet(50, "original", groups=32, width_per_group=4)) == 25_028_904
    assert trainable(imagenet_resnet(50, "original", width_per_group=128)) == 68_883_240


def test_the_small_stem_keeps_the_resolution():
    model = imagenet_resnet(18, stem="3x3", classes=10, input_shape=(32, 32, 3))
    assert model.get_layer("stage4_unit02").output.shape == (None, 4, 4, 512)


@pytest.mark.parametrize("depth", [20, 18.0, "18", [18]])
def test_an_unknown_depth_is_refused(depth):
    named = re.escape(f"of depth {depth!r}; choose one of 18, 34, 50, 101, 152, 200")
    with pytest.raises(InputError, match=named):
        imagenet_resnet(depth)
