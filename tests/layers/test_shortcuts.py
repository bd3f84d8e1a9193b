"""Table 1: the six shortcuts, one that came later, and what changes the shape."""

import keras
import numpy as np
import pytest
from harness import array, check_layer

from keras_preact import InputError
from keras_preact.layers import (
    SHORTCUTS,
    ConstantScaling,
    ConvShortcut,
    DropoutShortcut,
    ExclusiveGating,
    IdentityShortcut,
    OptionA,
    Projection,
    ScaledResidual,
    Shortcut,
    ShortcutOnlyGating,
    get_shortcut,
)

RNG = np.random.default_rng(4)
X = RNG.normal(size=(8, 6, 6, 4)).astype("float32")
F = RNG.normal(size=(8, 6, 6, 4)).astype("float32")
WITH_WEIGHTS = ("exclusive_gating", "shortcut_only_gating", "conv", "scaled_residual")


@pytest.mark.parametrize("name", SHORTCUTS)
def test_harness(name):
    options = {"gate_bias": -1.0} if "gating" in name else {}
    check_layer(lambda **more: SHORTCUTS[name](**options, **more), (X, F), trainable=name in WITH_WEIGHTS)


def test_identity_is_the_sum_to_the_bit():
    np.testing.assert_array_equal(array(IdentityShortcut()(X, F)), X + F)


@pytest.mark.parametrize(("shortcut", "residual"), [(0.5, 0.5), (0.5, 1.0), (0.0, 1.0)])
def test_constant_scaling(shortcut, residual):
    y = array(ConstantScaling(shortcut, residual)(X, F))
    np.testing.assert_allclose(y, shortcut * X + residual * F, rtol=1e-6, atol=1e-6)


def test_a_scaled_residual_begins_as_the_identity_and_scales_f_alone():
    np.testing.assert_array_equal(array(ScaledResidual()(X, F)), X)
    by_channel = ScaledResidual(initial=0.1, per_channel=True)
    by_channel.build(X.shape, F.shape)
    by_channel.alpha.assign(np.arange(4.0))
    np.testing.assert_allclose(array(by_channel(X, F)), X + np.arange(4.0) * F, rtol=1e-6, atol=1e-6)
    check_layer(lambda **more: ScaledResidual(initial=0.1, per_channel=True, **more), (X, F))


def gate_of(layer):
    kernel, bias = (array(weight) for weight in layer.weights)
    return 1 / (1 + np.exp(-(X @ kernel[0, 0] + bias)))


def test_exclusive_gating_is_its_equation():
    layer = ExclusiveGating(gate_bias=-1)
    y = array(layer(X, F))
    g = gate_of(layer)
    np.testing.assert_allclose(y, (1 - g) * X + g * F, rtol=1e-4, atol=1e-5)


def test_shortcut_only_gating_is_its_equation():
    layer = ShortcutOnlyGating(gate_bias=-1)
    y = array(layer(X, F))
    np.testing.assert_allclose(y, (1 - gate_of(layer)) * X + F, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [0.0, -6.0])
def test_gates_start_at_the_sigmoid_of_their_bias(bias):
    layer = ShortcutOnlyGating(gate_bias=bias)
    y = array(layer(np.zeros_like(X) + 1e-30, F))
    np.testing.assert_allclose(y, F, atol=1e-6)
    assert array(layer.gate.bias).tolist() == [bias] * 4


def test_dropout_keeps_the_expectation_and_leaves_the_residual_alone():
    layer = DropoutShortcut(rate=0.5, seed=7)
    ones = np.ones((64, 16, 16, 4), "float32")
    y = array(layer(ones, 10 * ones, training=True))
    assert set(np.unique(y)) == {10.0, 12.0}
    assert abs(y.mean() - 11) < 0.02
    np.testing.assert_array_equal(array(layer(X, F, training=False)), X + F)


def test_conv_shortcut_is_a_matrix_on_each_pixel():
    layer = ConvShortcut()
    y = array(layer(X, F))
    np.testing.assert_allclose(y, X @ array(layer.weights[0])[0, 0] + F, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer_type", [Projection, OptionA])
def test_shape_changes_pass_the_harness(layer_type):
    check_layer(lambda **more: layer_type(6, strides=2, **more), X, trainable=layer_type is Projection)


@pytest.mark.parametrize("normalize", ["batch", "group", "none"])
def test_projection_with_normalization(normalize):
    check_layer(lambda **more: Projection(8, strides=2, normalize=normalize, **more), X)


def test_option_a_takes_every_second_pixel_and_pads_channels_with_zeros():
    y = array(OptionA(6, strides=2)(X))
    np.testing.assert_array_equal(y[..., :4], X[:, ::2, ::2])
    assert not y[..., 4:].any()


def test_option_a_cannot_drop_channels():
    with pytest.raises(InputError, match="from 4 to 3; use shape_change='projection'"):
        OptionA(3)(X)


def test_get_shortcut_reads_arguments():
    layer = get_shortcut("constant_scaling(shortcut=0.25, residual=1)", name="h")
    assert (layer.shortcut, layer.residual, layer.name) == (0.25, 1.0, "h")


def test_get_shortcut_copies_a_layer():
    original = ExclusiveGating(gate_bias=-3)
    copy = get_shortcut(original, dtype="mixed_bfloat16")
    assert copy is not original
    assert (copy.gate_bias, copy.compute_dtype) == (-3.0, "bfloat16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("identiti", "did you mean 'identity'"),
        ("exclusive_gating(bias=-6)", "does not take these arguments"),
        ("exclusive_gating(-6)", "write a name or name\\(key=number\\)"),
        ("exclusive_gating(gate_bias=", "write a name or name\\(key=number\\)"),
        ("__import__('os').system('true')", "write a name or name\\(key=number\\)"),
        ("exclusive_gating(gate_bias=__import__('os'))", "write a name or name\\(key=number\\)"),
        ("dropout(rate=1.5)", "rate is 1.5"),
    ],
)
def test_get_shortcut_refuses_with_a_sentence(text, message):
    with pytest.raises(InputError, match=message):
        get_shortcut(text)


def test_a_shortcut_of_ones_own_works_in_a_unit():
    from keras_preact.layers import ResidualUnit

    @keras.saving.register_keras_serializable(package="tests")
    class Negated(Shortcut):
        def call(self, x, residual):
            return residual - x

    unit = ResidualUnit(4, shortcut=Negated(), zero_init_residual=True)
    np.testing.assert_array_equal(array(unit(X)), -X)
