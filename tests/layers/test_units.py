"""The residual unit: Eq. (1) to (3), every placement, shortcut and block."""

import keras
import numpy as np
import pytest
from harness import array, check_config, check_layer, check_training

from keras_preact import InputError
from keras_preact.layers import (
    PLACEMENTS,
    SHORTCUTS,
    ConvShortcut,
    DropPath,
    Placement,
    PostActBasicBlock,
    PostActBottleneck,
    PreActBasicBlock,
    PreActBottleneck,
    ResidualUnit,
    UnitStack,
    get_shortcut,
)
from keras_preact.layers.composite import batch_norms
from keras_preact.layers.shortcuts import ExclusiveGating, Shortcut
from keras_preact.layers.units import check_zero_init

X = np.random.default_rng(5).normal(size=(6, 8, 8, 16)).astype("float32")
IDENTITY_AFTER = [name for name, placement in PLACEMENTS.items() if placement.identity_after_addition]


def unit_for(block, **options):
    """A unit that keeps the shape of X."""
    return ResidualUnit(4 if block == "bottleneck" else 16, block=block, **options)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_harness_where_the_shape_is_kept(placement, block):
    check_layer(lambda **more: unit_for(block, placement=placement, **more), X, tolerance=1e-3)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_harness_where_the_shape_changes(placement):
    check_layer(lambda **more: ResidualUnit(24, strides=2, placement=placement, **more), X, tolerance=1e-3)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("options", [{}, {"strides": 2, "filters": 24}, {"strides": 2, "shape_change": "option_a"}])
def test_harness_of_shortcuts(shortcut, options):
    options = {"filters": 16, **options}
    if "gating" in shortcut or shortcut == "highway":
        shortcut = f"{shortcut}(gate_bias=-1)"
    if shortcut == "scaled_residual":  # as it begins, at 0, F has no gradient yet
        shortcut = "scaled_residual(initial=0.5)"
    make = lambda **more: ResidualUnit(**options, shortcut=shortcut, **more)  # noqa: E731
    check_config(make())
    check_training(make(), (X,))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "options",
    [
        {"normalization": "group"},
        {"normalization": "layer"},
        {"normalization": "none"},
        {"drop_path": 0.1},
        {"block": "single"},
        {"block": "bottleneck", "groups": 4, "width_per_group": 64},
        {"dilation": 2},
        {"block": "bottleneck", "strides": 2, "stride_on": "1x1"},
        {"preactivation": "shared"},
        {"preactivation": "none"},
    ],
    ids=str,
)
def test_harness_of_options(options):
    check_layer(lambda **more: ResidualUnit(16, **options, **more), X, tolerance=1e-3)


@pytest.mark.parametrize("layer_type", [PreActBasicBlock, PreActBottleneck, PostActBasicBlock, PostActBottleneck])
def test_harness_of_the_named_units(layer_type):
    check_layer(lambda **more: layer_type(8, strides=2, **more), X, tolerance=1e-3)


# ---- the identity ----------------------------------------------------------------------------------------------------


def zeroed(**options):
    return unit_for(options.pop("block", "basic"), zero_init_residual=True, **options)


@pytest.mark.parametrize("block", ["basic", "bottleneck", "single"])
@pytest.mark.parametrize("placement", IDENTITY_AFTER)
@pytest.mark.parametrize("training", [False, True])
def test_with_zero_residual_the_unit_returns_its_input_to_the_bit(block, placement, training):
    unit = zeroed(block=block, placement=placement)
    np.testing.assert_array_equal(array(unit(X, training=training)), X)
    assert unit.keeps_identity


def test_with_zero_residual_the_original_unit_loses_the_negative_values():
    unit = zeroed(placement="original")
    np.testing.assert_array_equal(array(unit(X)), np.maximum(X, 0))
    assert not unit.keeps_identity


def test_with_zero_residual_norm_after_the_addition_changes_the_signal():
    unit = zeroed(placement="bn_after_addition")
    assert not np.allclose(array(unit(X, training=True)), X)
    assert not unit.keeps_identity


@pytest.mark.parametrize("shortcut", [name for name, kind in SHORTCUTS.items() if not kind.keeps_identity])
def test_no_other_shortcut_keeps_the_identity(shortcut):
    unit = zeroed(shortcut=shortcut)
    assert not np.allclose(array(unit(X, training=True)), X)
    assert not unit.keeps_identity


@pytest.mark.parametrize(
    ("placement", "shortcut", "words"),
    [
        ("relu_before_addition", "identity", "branches of relu_before_addition end in ReLU"),
        ("original", "scaled_residual(per_channel=True)", "zero_init_residual and α = 0"),
    ],
)
def test_a_zero_branch_that_no_gradient_reaches_is_refused(placement, shortcut, words):
    with pytest.raises(InputError, match=words):
        check_zero_init(PLACEMENTS[placement], get_shortcut(shortcut))


def test_other_zero_branches_are_not_refused():
    check_zero_init(PLACEMENTS["original"], get_shortcut("scaled_residual(initial=0.1)"))
    check_zero_init(PLACEMENTS["full_preactivation"], get_shortcut("exclusive_gating"))


def test_the_sum_is_the_sum_of_its_parts():
    """Eq. (1): the public parts of the unit, put together by hand, are the unit."""
    for placement in PLACEMENTS:
        unit = ResidualUnit(16, placement=placement)
        expected = unit(X)
        y = X + array(unit.residual(unit.preactivate(X)))
        np.testing.assert_allclose(array(unit.after_addition(y)), array(expected), rtol=1e-5, atol=1e-5)


def test_a_unit_that_changes_the_shape_shares_its_preactivation_with_the_shortcut():
    """The special case of the authors' code: the projection reads ReLU(BN(x)), not x."""
    unit = ResidualUnit(32, strides=2, zero_init_residual=True)
    y = array(unit(X))
    kernel = array(unit.projection[0].conv.kernel)[0, 0]
    expected = np.maximum(X / np.sqrt(1 + 1e-5), 0)[:, ::2, ::2] @ kernel
    assert unit.shares_preactivation
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_where_the_first_norm_and_relu_are():
    activated = np.maximum(X / np.sqrt(1 + 1e-5), 0)
    for where, expected in (("branch", X), ("shared", activated), ("none", X)):
        unit = zeroed(preactivation=where)
        np.testing.assert_allclose(array(unit(X)), expected, rtol=1e-5, atol=1e-6)
        assert bool(unit.preact) == (where != "none")


def test_the_original_projection_ends_in_batch_norm_and_the_preactivated_does_not():
    def norms(placement):
        unit = ResidualUnit(32, strides=2, placement=placement)
        unit.build(X.shape)
        return len(unit.projection[0].norm)

    assert (norms("original"), norms("full_preactivation")) == (1, 0)


@pytest.mark.parametrize("shortcut", ["constant_scaling", "dropout", "exclusive_gating"])
def test_variants_act_after_what_changes_the_shape(shortcut):
    unit = ResidualUnit(32, strides=2, shortcut=shortcut, shape_change="option_a")
    unit.build(X.shape)
    assert [type(layer).__name__ for layer in unit.projection] == ["OptionA"]
    assert type(unit.shortcut) is SHORTCUTS[shortcut]


@pytest.mark.parametrize("shortcut", ["conv", "highway"])
def test_shortcuts_with_convolutions_change_the_shape_by_themselves(shortcut):
    unit = ResidualUnit(32, strides=2, shortcut=shortcut)
    unit.build(X.shape)
    assert unit.projection == []


@pytest.mark.parametrize(
    ("shortcut", "argument", "value"),
    [
        ("conv(use_bias=True)", "use_bias", True),
        ("highway(use_bias=True)", "use_bias", True),
        ("conv(kernel_initializer='zeros')", "kernel_initializer", "zeros"),
        ("conv(normalize='group')", "normalize", "group"),
    ],
)
def test_a_shortcut_keeps_the_arguments_that_it_was_given(shortcut, argument, value):
    unit = ResidualUnit(32, strides=2, placement="original", shortcut=shortcut, momentum=0.8)
    unit.build(X.shape)
    assert getattr(unit.shortcut, argument) == value
    assert (unit.shortcut.strides, unit.shortcut.momentum, unit.shortcut.name) == (2, 0.8, "shortcut")


# Of each argument that a shortcut takes from its unit: the default elsewhere, another value, a unit that differs.
UNIT_VALUES = {
    "normalize": ("none", "group", {"normalization": "batch"}, "batch"),
    "use_bias": (False, True, {"biases": "all"}, True),
    "momentum": (0.9, 0.7, {"momentum": 0.8}, 0.8),
    "epsilon": (1e-5, 1e-4, {"epsilon": 1e-3}, 1e-3),
    "kernel_initializer": ("he_by_fan_out", "ones", {"kernel_initializer": "zeros"}, "zeros"),
}


@pytest.mark.parametrize("kind", ["conv", "highway"])
@pytest.mark.parametrize("argument", UNIT_VALUES)
def test_a_shortcut_keeps_what_it_was_given_and_takes_the_rest_from_its_unit(kind, argument):
    """Also where it was given the default; as text, as a layer, and after saving."""
    default, other, options, of_the_unit = UNIT_VALUES[argument]
    for given, expected in (({argument: default}, default), ({argument: other}, other), ({}, of_the_unit)):
        text = f"{kind}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        for shortcut in (text, SHORTCUTS[kind](**given)):
            unit = ResidualUnit(32, strides=2, placement="original", shortcut=shortcut, **options)
            for each in (unit, ResidualUnit.from_config(unit.get_config())):
                each.build(X.shape)
                assert getattr(each.shortcut.projection, argument) == expected, (shortcut, given)
                assert each.shortcut.strides == 2


@pytest.mark.parametrize("kind", ["conv", "highway"])
@pytest.mark.parametrize(
    ("placement", "normalize", "bias"),
    [("original", None, False), ("original", "none", True), ("full_preactivation", None, True)]
    + [("full_preactivation", "batch", False)],
)
def test_unnormalized_biases_depend_on_the_norm_that_the_shortcut_has(kind, placement, normalize, bias):
    shortcut = SHORTCUTS[kind](normalize=normalize)
    unit = ResidualUnit(32, strides=2, placement=placement, shortcut=shortcut, biases="unnormalized")
    unit.build(X.shape)
    assert unit.shortcut.projection.use_bias == bias


def test_strides_given_to_a_shortcut_must_be_the_units():
    with pytest.raises(InputError, match="strides=2 and its unit has strides=1; leave out the shortcut's"):
        ResidualUnit(32, shortcut="conv(strides=2)").build(X.shape)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "mixed_bfloat16"])
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX needs a setting at startup for float64")
def test_drop_path_draws_in_every_dtype(dtype):
    x = keras.ops.ones((64, 2, 2, 4), keras.DTypePolicy(dtype).compute_dtype)
    y = array(keras.ops.cast(DropPath(0.5, dtype=dtype)(x, training=True), "float32"))
    assert set(np.unique(y)) == {0.0, 2.0}


def test_drop_path_leaves_the_branch_out_for_whole_images_and_keeps_the_expectation():
    unit = ResidualUnit(16, drop_path=0.25, normalization="none")
    x = np.repeat(X[:1], 512, axis=0)
    f = array(unit(x, training=False)) - x
    dropped = array(unit(x, training=True)) - x
    ratio = (dropped * f).sum((1, 2, 3)) / (f * f).sum((1, 2, 3))
    assert set(np.round(ratio.astype("float64"), 2)) == {0.0, 1.33}
    assert 0.65 < (ratio > 1).mean() < 0.85


def test_momentum_and_epsilon_reach_every_batch_norm():
    unit = ResidualUnit(32, strides=2, placement="original", momentum=0.7, epsilon=1e-3)
    unit.build(X.shape)
    assert {(norm.momentum, norm.epsilon) for norm in batch_norms(unit)} == {(0.7, 1e-3)}
    assert (ResidualUnit(16).momentum, ResidualUnit(16).epsilon) == (0.9, 1e-5)  # the paper's


def test_multiply_adds_of_a_unit_that_changes_the_shape_before_a_gate():
    unit = ResidualUnit(32, strides=2, shortcut="exclusive_gating")
    unit.build(X.shape)
    kernels = 9 * 16 * 32 + 9 * 32 * 32 + 16 * 32 + 32 * 32  # two 3×3, the projection, the gate: all at 4×4 pixels
    assert unit.multiply_adds(X.shape) == 16 * kernels


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_a_placement_of_ones_own_is_saved_whole():
    own = Placement("own", "mine", first=("relu",), last=("norm",))
    unit = ResidualUnit(16, placement=own)
    assert ResidualUnit.from_config(unit.get_config()).placement == own


@pytest.mark.parametrize(
    ("layer_type", "block", "placement"),
    [
        (PreActBasicBlock, "basic", "full_preactivation"),
        (PreActBottleneck, "bottleneck", "full_preactivation"),
        (PostActBasicBlock, "basic", "original"),
        (PostActBottleneck, "bottleneck", "original"),
    ],
)
def test_named_units_are_the_general_unit(layer_type, block, placement):
    unit = layer_type(8)
    assert (unit.block, unit.placement) == (block, PLACEMENTS[placement])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": 0}, "filters is 0"),
        ({"filters": 16, "strides": 1.5}, "strides is 1.5"),
        ({"filters": 16, "placement": "pre"}, "unknown placement 'pre'"),
        ({"filters": 16, "shortcut": "none"}, "unknown shortcut 'none'"),
        ({"filters": 16, "block": "wide"}, "unknown block 'wide'"),
        ({"filters": 16, "shape_change": "b"}, "known: projection, option_a"),
        ({"filters": 16, "preactivation": "both"}, "known: branch, shared, none"),
        ({"filters": 16, "drop_path": 1.0}, "drop_path is 1.0"),
        ({"filters": 16, "normalization": "instance"}, "unknown normalization 'instance'"),
        ({"filters": 16, "zero_init_residual": "False"}, "zero_init_residual is 'False'; it must be True or False"),
        ({"filters": 16, "groups": 2}, "require block='bottleneck'"),
        ({"filters": 16, "strides": 2, "dilation": 2}, r"strides=2 and dilation=2; .* dilation=\(1, 2\)"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(options, message):
    with pytest.raises(InputError, match=message):
        ResidualUnit(**options)


def test_an_input_that_is_no_image_is_refused():
    with pytest.raises(InputError, match="expects images"):
        ResidualUnit(16)(np.ones((2, 16), "float32"))


@pytest.mark.parametrize("normalization", ["batch", "group", "none"])
def test_an_unknown_number_of_channels_is_refused(normalization):
    with pytest.raises(InputError, match=r"unit expects a known number of channels, not shape \(None, 8, 8, None\)"):
        ResidualUnit(16, normalization=normalization, name="unit")(keras.Input((8, 8, None)))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_images_of_whole_numbers_are_refused(dtype):
    with pytest.raises(InputError, match=f"unit expects floating-point input, not {dtype}; cast it"):
        ResidualUnit(16, name="unit")(np.ones((2, 8, 8, 16), dtype))


def test_a_stride_on_the_first_convolution_leaves_the_second_to_be_dilated():
    unit = ResidualUnit(4, block="bottleneck", strides=2, dilation=2, stride_on="1x1")
    assert array(unit(X)).shape == (6, 4, 4, 16)


def test_what_depends_on_the_shape_is_asked_of_a_built_unit():
    unit = ResidualUnit(16, name="unit")
    with pytest.raises(InputError, match="unit is not built; call it"):
        assert unit.keeps_identity
    unit(X)
    assert unit.keeps_identity


@pytest.mark.parametrize("training", [True, False])
def test_training_is_that_of_the_call_also_where_keras_makes_no_context(training, images):
    """`stateless_call` and a subclass's `super().call` run `call` without `__call__`."""

    class Fixed(ResidualUnit):
        def call(self, x, training=None):
            return super().call(x, training=not training)

    unit, fixed = ResidualUnit(16, drop_path=0.5), Fixed(16, drop_path=0.5)
    for layer, expected in ((unit, training), (fixed, not training)):
        layer.build(images.shape)
        values = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]
        _, state = layer.stateless_call(*values, images, training=training)
        means = [k for k, v in enumerate(layer.non_trainable_variables) if "moving_mean" in v.path]
        assert means and all((array(state[k]) != 0).any() == expected for k in means)
        before = array(layer.branch[1].moving_mean)
        y = array(layer(images, training=training))
        assert (array(layer.branch[1].moving_mean) != before).any() == expected
        assert y.shape == images.shape


@pytest.mark.parametrize("seed", [1, 0, keras.random.SeedGenerator(1)], ids=["1", "0", "generator"])
def test_a_seed_that_would_make_all_kernels_equal_is_refused(seed):
    with pytest.raises(InputError, match="seed of HeNormal would begin again in each convolution"):
        ResidualUnit(4, kernel_initializer={"class_name": "HeNormal", "config": {"seed": seed}})
    with pytest.raises(InputError, match="seed of HeNormal would begin again in each convolution"):
        ResidualUnit(16, kernel_initializer=keras.initializers.HeNormal(seed=seed))
    shortcut = ConvShortcut(kernel_initializer=keras.initializers.HeNormal(seed=seed))  # it has one kernel
    with pytest.raises(InputError, match="seed of HeNormal would begin again in each convolution"):
        ResidualUnit(16, shortcut=shortcut)  # a network or a stack has many


@keras.saving.register_keras_serializable(package="tests")
class Squeezed(ResidualUnit):
    """Scales F by a Dense layer that waits for its first call."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.squeeze = keras.layers.Dense(16, name="squeeze")

    def residual(self, activated, mask=None):
        return self.squeeze(super().residual(activated, mask))


def test_a_layer_of_a_subclass_that_waits_for_its_first_call_has_the_path_of_the_unit(images):
    unit = Squeezed(16, name="unit")
    unit.build(images.shape)
    assert {v.path for v in unit.squeeze.variables} == {"unit/squeeze/kernel", "unit/squeeze/bias"}
    stack = UnitStack(Squeezed(16), 2, rolled=True)
    stack.build(images.shape)
    again = UnitStack.from_units([stack.unit(k) for k in range(2)], rolled=False)
    np.testing.assert_allclose(array(again(images)), array(stack(images)), rtol=1e-4, atol=1e-4)


def test_drop_path_scales_integers_too():
    y = array(DropPath(0.3, seed=0)(np.full((100, 1), 100, "int32"), training=True))
    assert y.dtype == "float32" and sorted(set(y.ravel().round(1).tolist())) == pytest.approx([0, 142.9], abs=0.1)


class Pooled(Shortcut):
    def call(self, x, residual):
        return keras.ops.mean(x + residual, axis=(1, 2))


def test_a_custom_shortcut_must_return_the_residuals_shape():
    inputs = keras.Input((8, 8, 4))
    model = keras.Model(inputs, ResidualUnit(4, shortcut=Pooled())(inputs))
    with pytest.raises(InputError, match=r"Pooled returns shape \(1, 4\), but the residual has \(1, 8, 8, 4\); return"):
        model(np.ones((1, 8, 8, 4), "float32"))


class Forgetful(Shortcut):
    def call(self, x, residual):
        keras.ops.add(x, residual)


def test_a_custom_shortcut_that_returns_nothing_is_named():
    with pytest.raises(InputError, match="Forgetful returns None; return a tensor of the residual's shape"):
        ResidualUnit(4, shortcut=Forgetful())(np.ones((1, 8, 8, 4), "float32"))


class Opaque(Shortcut):
    """Adds in NumPy, so that TensorFlow does not know even the rank of the result."""

    def call(self, x, residual):
        import tensorflow as tf

        return tf.numpy_function(lambda a, b: a + b, [x, residual], tf.float32)

    def compute_output_spec(self, x, residual):
        return keras.KerasTensor(residual.shape, residual.dtype)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a function of TensorFlow")
def test_a_custom_shortcut_of_unknown_rank_is_accepted():
    import tensorflow as tf

    unit = ResidualUnit(4, shortcut=Opaque())
    x = np.ones((1, 8, 8, 4), "float32")
    expected = array(unit(x))
    np.testing.assert_allclose(array(tf.function(lambda x: unit(x))(x)), expected, rtol=1e-5)


class Dynamic(Shortcut):
    """Returns the residual's shape, which the graph knows only in part."""

    def call(self, x, residual):
        return keras.ops.reshape(x + residual, keras.ops.shape(residual))


def test_a_custom_shortcut_may_return_sizes_that_are_unknown():
    x = np.ones((1, 8, 8, 4), "float32")
    for size in (8, None):
        inputs = keras.Input((size, size, 4))
        model = keras.Model(inputs, ResidualUnit(4, shortcut=Dynamic())(inputs))
        assert array(model(x)).shape == x.shape


@pytest.mark.parametrize(
    ("shortcut", "words"),
    [
        (ExclusiveGating, r"pass a name or a Shortcut layer, for example ExclusiveGating\(\)"),
        (None, "the shortcut is None; pass a name"),
        (keras.layers.Add(), "a Shortcut layer$"),
    ],
)
def test_what_is_no_shortcut_is_refused(shortcut, words):
    with pytest.raises(InputError, match=words):
        ResidualUnit(4, shortcut=shortcut)
