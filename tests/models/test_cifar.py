"""The CIFAR networks: depth, exact counts with their arithmetic, special cases of the first and last unit."""

import math

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError, paper
from keras_preact.experiments import EXPERIMENTS
from keras_preact.layers import PLACEMENTS, ResidualUnit, UnitStack
from keras_preact.layers.stack import units_in
from keras_preact.models import cifar_resnet, cifar_units, imagenet_resnet, multiply_adds

WIDTHS = (16, 32, 64)


def trainable(model):
    return sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)


def basic_count(n, classes=10, projection=True):
    """Pre-activation, 6n+2: 3×3 kernels, 1×1 projections, two parameters per channel in each norm, the dense layer."""
    kernels = 9 * 3 * 16 + sum(2 * n * 9 * w * w for w in WIDTHS) - 9 * 16 * 32 - 9 * 32 * 64
    projections = (16 * 32 + 32 * 64) if projection else 0
    norms = 2 * (sum(2 * n * w for w in WIDTHS) - 16 - 32) + 2 * 64
    return kernels + projections + norms + (64 + 1) * classes


def bottleneck_count(n, classes=10):
    """Pre-activation, 9n+2: a unit of width w has 4w input channels, but the first of a stage has the previous ones."""
    inputs = {16: 16, 32: 4 * 16, 64: 4 * 32}
    kernels, norms = 9 * 3 * 16, 2 * 4 * 64
    for w, first in inputs.items():
        kernels += n * (9 * w * w + w * 4 * w) + first * w + (n - 1) * 4 * w * w + first * 4 * w
        norms += 2 * (n * 2 * w + first + (n - 1) * 4 * w)
    return kernels + norms + (4 * 64 + 1) * classes


CLASSES = {"cifar10": 10, "cifar100": 100}
PUBLISHED = {key: count for key, count in paper.PARAMETERS.items() if key[0] in CLASSES}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("key", [key for key in PUBLISHED if key[1] < 1001 or key[0] == "cifar10"])
def test_trainable_parameters_are_the_published_ones(key):
    dataset, depth, placement = key
    assert trainable(cifar_resnet(depth, placement, classes=CLASSES[dataset], rolled=depth > 164)) == PUBLISHED[key]


@pytest.mark.parametrize("key", paper.PARAMETERS_OPTION_A)
def test_trainable_parameters_without_projections(key):
    model = cifar_resnet(key[1], key[2], shape_change="option_a")
    assert trainable(model) == paper.PARAMETERS_OPTION_A[key]


def test_the_counts_are_those_of_the_arithmetic():
    assert trainable(cifar_resnet(20)) == basic_count(3)
    full = {key[:2]: count for key, count in PUBLISHED.items() if key[2] == "full_preactivation"}
    assert basic_count(18) == full["cifar10", 110]
    assert basic_count(18, projection=False) == paper.PARAMETERS_OPTION_A["cifar10", 110, "full_preactivation"]
    for depth, n in ((164, 18), (1001, 111)):
        for dataset, classes in CLASSES.items():
            assert bottleneck_count(n, classes=classes) == full[dataset, depth]


def test_units_of_one_layer():
    """3n+2 layers: the first rows of Table 3."""
    assert cifar_units(110, block="single") == ("single", 36)
    model = cifar_resnet(14, block="single")
    assert sum(units_in(layer) for layer in model.layers) == 12
    with pytest.raises(InputError, match=r"depth 21 is not 3n\+2; the nearest depths that are: 20, 23"):
        cifar_units(21, block="single")
    with pytest.raises(InputError, match="pass bottleneck or block, not both"):
        cifar_units(20, bottleneck=False, block="basic")


def basic_multiply_adds(n):
    """Pre-activation, 6n+2, with projections on 32×32 images: the size of each kernel times its output pixels."""
    first = 9 * 3 * 16 * 32**2
    stages = sum(2 * n * 9 * w * w * (512 // w) ** 2 for w in WIDTHS)
    narrower = 9 * 16 * 32 * 16**2 + 9 * 32 * 64 * 8**2  # the first convolution of stages 2 and 3 reads half the width
    projections = 16 * 32 * 16**2 + 32 * 64 * 8**2
    return first + stages - narrower + projections + 640


def bottleneck_multiply_adds(n, stride_on):
    """Pre-activation, 9n+2: 1×1 from c channels, 3×3, 1×1 to 4w; the first unit of a stage has a stride."""
    total, channels = 9 * 3 * 16 * 32**2 + 4 * 64 * 10, 16
    for w in WIDTHS:
        pixels, before = (512 // w) ** 2, (512 // w) ** 2 * (1 if w == 16 else 4)
        first = pixels if stride_on == "1x1" else before
        total += first * channels * w + pixels * (9 * w * w + 4 * w * w + channels * 4 * w)
        total += (n - 1) * pixels * (4 * w * w + 9 * w * w + 4 * w * w)
        channels = 4 * w
    return total


@pytest.mark.parametrize("depth", [20, 110])
def test_multiply_adds(depth):
    n = (depth - 2) // 6
    assert multiply_adds(cifar_resnet(depth)) == basic_multiply_adds(n)
    projections = 16 * 32 * 16**2 + 32 * 64 * 8**2
    assert multiply_adds(cifar_resnet(depth, profile="fb_resnet_torch")) == basic_multiply_adds(n) - projections


@pytest.mark.parametrize("depth", [164, 1001])
@pytest.mark.parametrize(("profile", "stride_on"), [("paper", "3x3"), ("resnet_1k_layers", "1x1")])
def test_multiply_adds_of_bottlenecks(depth, profile, stride_on):
    network = cifar_resnet(depth, profile=profile, rolled=True)
    assert multiply_adds(network) == bottleneck_multiply_adds((depth - 2) // 9, stride_on)


def test_names_of_units_and_model():
    model = cifar_resnet(20, "original")
    assert model.name == "resnet20_original"
    units = [layer.name for layer in model.layers if isinstance(layer, ResidualUnit)]
    assert units == [f"stage{s}_unit{k:02d}" for s in (1, 2, 3) for k in (1, 2, 3)]


def test_first_and_last_unit_of_the_preactivation_network():
    """conv1 has no activation: norm and ReLU come before the split of the first unit, and again after the last unit."""
    model = cifar_resnet(20)
    names = [layer.name for layer in model.layers]
    assert names[1:3] == ["stem_conv", "stage1_unit01"]
    assert names[-3:] == ["head_norm", "avg_pool", "logits"]
    assert [unit.shares_preactivation for unit in model.layers if isinstance(unit, ResidualUnit)] == (
        [True, False, False] + [True, False, False] * 2
    )


def test_the_original_network_has_its_activation_in_the_stem_and_none_in_the_head():
    names = [layer.name for layer in cifar_resnet(20, "original").layers]
    assert names[1:4] == ["stem_conv", "stem_norm", "stage1_unit01"]
    assert names[-2:] == ["avg_pool", "logits"]


def test_eq4_the_last_sum_is_the_first_plus_all_residuals_of_its_stage():
    """Eq. (4): x_L = x_l + Σ F(x_i), for the equal units of a stage."""
    model = cifar_resnet(32)
    units = [model.get_layer(f"stage2_unit{k:02d}") for k in range(2, 6)]
    probe = keras.Model(model.input, [units[0].input, *[unit.output for unit in units]])
    sums = [array(y) for y in probe(np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype("float32"))]
    residuals = [array(u.residual(u.preactivate(x))) for u, x in zip(units, sums[:-1], strict=True)]
    np.testing.assert_allclose(sums[-1], sums[0] + np.sum(residuals, axis=0), rtol=1e-5, atol=1e-5)
    assert all(unit.keeps_identity for unit in units)


def test_eq4_fails_for_the_original():
    model = cifar_resnet(32, "original")
    unit = model.get_layer("stage2_unit02")
    x, y = (array(t) for t in keras.Model(model.input, [unit.input, unit.output])(np.ones((2, 32, 32, 3), "float32")))
    assert not np.allclose(y, x + array(unit.residual(unit.preactivate(x))), atol=1e-3)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_takes_a_training_step(placement):
    model = cifar_resnet(8, placement, classes=3, input_shape=(16, 16, 3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 16, 16, 3)), np.arange(12) % 3
    losses = [float(model.train_on_batch(x, y)) for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_logits_are_float32_under_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    model = cifar_resnet(8, input_shape=(16, 16, 3))
    assert model.get_layer("stage1_unit01").compute_dtype == policy.removeprefix("mixed_")
    assert model.output.dtype == "float32"
    assert cifar_resnet(8, input_shape=(16, 16, 3), classifier_activation="softmax").output.dtype == "float32"
    assert all(variable.dtype == "float32" for variable in model.trainable_variables)


def test_channels_first_is_the_same_network():
    last = cifar_resnet(8, input_shape=(16, 16, 3))
    first = cifar_resnet(8, input_shape=(3, 16, 16), data_format="channels_first")
    assert cifar_resnet(8, data_format="channels_first").input_shape == (None, 3, 32, 32)
    first.set_weights(last.get_weights())
    x = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    np.testing.assert_allclose(array(first(x.transpose(0, 3, 1, 2))), array(last(x)), rtol=1e-3, atol=1e-4)


def test_widths_of_wide_and_grouped_networks():
    wide = cifar_resnet(14, widen_factor=2)
    assert [wide.get_layer(f"stage{s}_unit01").output.shape[-1] for s in (1, 2, 3)] == [32, 64, 128]
    grouped = cifar_resnet(11, groups=4, width_per_group=32)
    assert grouped.get_layer("stage1_unit01").convolutions[1].groups == 4


def test_a_fractional_widening_narrows_the_stages_and_leaves_the_stem():
    narrow = cifar_resnet(14, widen_factor=0.875)
    assert [narrow.get_layer(f"stage{s}_unit01").output.shape[-1] for s in (1, 2, 3)] == [14, 28, 56]
    assert narrow.get_layer("stage1_unit01").changes_shape
    for factor in (0, 0.01, -1, "2", float("nan")):
        with pytest.raises(InputError, match="widen_factor is"):
            cifar_resnet(14, widen_factor=factor)


@pytest.mark.thorough
def test_the_critics_highway_network_has_their_parameters_and_the_matched_one_not_more_than_the_residual_network():
    theirs = next(entry for entry in paper.REPRODUCTIONS if entry.network.startswith("Highway"))
    rows = {row.name: row.options for row in EXPERIMENTS["extensions"].rows}
    assert trainable(cifar_resnet(110, **rows["highway-critics"])) == theirs.parameters
    matched = trainable(cifar_resnet(110, **rows["highway-critics-matched"]))
    assert 0.97 < matched / PUBLISHED["cifar10", 110, "full_preactivation"] <= 1


def test_a_drop_path_outside_its_range_is_named_as_given():
    with pytest.raises(InputError, match=r"drop_path is 2"):
        cifar_resnet(8, drop_path=2)


def test_drop_path_grows_linearly_from_zero():
    model = cifar_resnet(20, drop_path=0.4)
    rates = [layer.drop_path for layer in model.layers if isinstance(layer, ResidualUnit)]
    np.testing.assert_allclose(rates, np.linspace(0, 0.4, 9))


@pytest.mark.parametrize(
    ("depth", "bottleneck", "expected"),
    [
        (8, None, ("basic", 1)),
        (110, None, ("basic", 18)),
        (11, None, ("bottleneck", 1)),
        (164, None, ("bottleneck", 18)),
        (164, False, ("basic", 27)),
        (1001, None, ("bottleneck", 111)),
        (20, True, ("bottleneck", 2)),
    ],
)
def test_block_and_number_of_units(depth, bottleneck, expected):
    assert cifar_units(depth, bottleneck) == expected


@pytest.mark.parametrize(
    ("depth", "bottleneck", "message"),
    [
        (21, None, "not 6n\\+2 or 9n\\+2; the nearest depths that are: 20, 26"),
        (100, False, "not 6n\\+2; the nearest depths that are: 98, 104"),
        (100, True, "not 9n\\+2; the nearest depths that are: 92, 101"),
        (2, None, "the nearest depths that are: 8"),
        (-5, None, "the nearest depths that are: 8"),
        (20.5, None, "depth is 20.5; pass an integer such as 20 or 110"),
        (20.0, None, "depth is 20.0; pass an integer such as 20 or 110"),
        ("20", None, "depth is '20'; pass an integer such as 20 or 110"),
        (math.nan, None, "depth is nan; pass an integer"),
    ],
)
def test_a_depth_that_does_not_fit_names_the_nearest_that_do(depth, bottleneck, message):
    with pytest.raises(InputError, match=message):
        cifar_units(depth, bottleneck)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "classes is 0"),
        ({"name": "a/b"}, "name is 'a/b'; pass a string without /"),
        ({"name": 3}, "name is 3; pass a string"),
        ({"input_shape": (32, 32)}, "pass \\(height, width, channels\\)"),
        ({"input_shape": (3, 32, 32)}, "looks like the other data format"),
        ({"input_shape": (4, 32, 32)}, "looks like the other data format"),
        ({"input_shape": (32, 32, 3), "data_format": "channels_first"}, r"pass \(channels, height, width\)"),
        ({"input_shape": (4, 4, 3)}, "at least 8 pixels"),
        ({"input_shape": (32, 32, None)}, "number of channels must be known"),
        ({"pooling": "mean", "include_top": False}, "known: avg, max"),
        (
            {"weights": "imagenet"},
            "imagenet is not a weights file; pass the path of a file .* or the data set of trained weights",
        ),
        ({"weights": 5}, "weights is 5; pass the path"),
        ({"output_stride": 3}, "choose one of 1, 2, 4"),
        ({"include_top": "False"}, "include_top is 'False'; it must be True or False"),
        ({"zero_init_residual": "False"}, "zero_init_residual is 'False'"),
        ({"rolled": "yes"}, "rolled is 'yes'; it must be True or False"),
        ({"classifier_activation": "sfotmax"}, "classifier_activation is 'sfotmax'; pass"),
        ({"data_format": "channel_last"}, "did you mean 'channels_last'"),
        ({"remat": "all"}, "known: none, unit, segment"),
        ({"bottleneck": True, "depth": 11, "width_per_group": 0}, "width_per_group is 0"),
        ({"bottleneck": True, "depth": 11, "width_per_group": 1}, "makes a bottleneck of 16 filters 0 channels wide"),
        ({"normalization": "batchnorm"}, "unknown normalization"),
        ({"input_tensor": np.ones((1, 32, 32, 3))}, "must be a Keras tensor"),
        ({"input_tensor": keras.Input((32, 32, 3), dtype="uint8")}, "input_tensor is uint8; convert it first"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(options, message):
    with pytest.raises(InputError, match=message):
        cifar_resnet(**{"depth": 8, **options})


@pytest.mark.parametrize("build", [cifar_resnet, imagenet_resnet])
def test_a_placement_in_a_dictionary_gives_the_network_its_name(build):
    depth = 8 if build is cifar_resnet else 18
    network = build(depth, {"name": "mine", "figure": "x"}, include_top=False)
    assert network.name == f"resnet{depth}_mine"


def test_whole_numbers_of_numpy_are_whole_numbers():
    labels = np.array([[0], [3]])
    model = cifar_resnet(np.int64(8), classes=labels.max() + 1, input_shape=(8, 8, 3))
    assert model.output_shape == (None, 4)
    assert UnitStack(ResidualUnit(4), np.int32(2)).repeats == 2
