"""The six shortcuts of Table 1, two that are not in it, and changes of shape."""

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
    HighwayGating,
    IdentityShortcut,
    OptionA,
    Projection,
    ResidualUnit,
    ScaledResidual,
    Shortcut,
    ShortcutOnlyGating,
    get_shortcut,
)

RNG = np.random.default_rng(4)
X = RNG.normal(size=(8, 6, 6, 4)).astype("float32")
F = RNG.normal(size=(8, 6, 6, 4)).astype("float32")
WITH_WEIGHTS = ("exclusive_gating", "shortcut_only_gating", "conv", "scaled_residual", "highway")


@pytest.mark.parametrize("name", SHORTCUTS)
def test_harness(name):
    options = {"gate_bias": -1.0} if "gating" in name or name == "highway" else {}
    check_layer(lambda **more: SHORTCUTS[name](**options, **more), (X, F), trainable=name in WITH_WEIGHTS)


DEFAULTS = {
    "constant_scaling": {"shortcut": 0.5, "residual": 0.5},
    "exclusive_gating": {"gate_bias": -6.0},
    "shortcut_only_gating": {"gate_bias": -6.0},
    "dropout": {"rate": 0.5, "seed": None},
    "scaled_residual": {"initial": 0.0, "per_channel": False},
    "highway": {"gate_bias": -6.0},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    assert DEFAULTS[name].items() <= SHORTCUTS[name]().get_config().items()


def test_which_shortcuts_keep_the_identity_and_which_change_the_shape():
    assert [name for name, kind in SHORTCUTS.items() if kind.keeps_identity] == ["identity", "scaled_residual"]
    assert [name for name, kind in SHORTCUTS.items() if kind.changes_shape] == ["conv", "highway"]


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


def test_one_alpha_per_channel_of_a_sequence():
    layer = ScaledResidual(initial=2.0, per_channel=True, data_format="channels_first")
    np.testing.assert_allclose(array(layer(X[:, 0], F[:, 0])), X[:, 0] + 2 * F[:, 0], rtol=1e-6, atol=1e-6)
    assert tuple(layer.alpha.shape) == (4,)


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
    layer = ExclusiveGating(gate_bias=bias)
    y = array(layer(np.zeros_like(X), F))
    np.testing.assert_allclose(y, F / (1 + np.exp(-bias)), rtol=1e-4, atol=1e-6)
    assert array(layer.gate.bias).tolist() == [bias] * 4


def same_3x3(x, kernel, strides=1):
    """Return a zero-padded 3×3 convolution, computed as a sum of nine matrix products."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    windows = [(i, j, padded[:, i : i + height : strides, j : j + width : strides]) for i in range(3) for j in range(3)]
    return sum(window @ kernel[i, j] for i, j, window in windows)


@pytest.mark.parametrize("strides", [1, 2])
def test_highway_gating_is_its_equation_and_its_gate_reads_the_units_own_input(strides):
    layer = HighwayGating(gate_bias=-1, strides=strides)
    residual = F if strides == 1 else RNG.normal(size=(8, 3, 3, 6)).astype("float32")
    y = array(layer(X, residual))
    by_name = {weight.path.split("/", 1)[-1]: array(weight) for weight in layer.weights}
    first, second = (next(w for name, w in by_name.items() if f"conv{k}/kernel" in name) for k in (1, 2))
    gate = 1 / (1 + np.exp(1 - same_3x3(np.maximum(same_3x3(X, first, strides), 0), second)))
    h = X if strides == 1 else X[:, ::2, ::2] @ array(layer.projection.conv.kernel)[0, 0]
    np.testing.assert_allclose(y, (1 - gate) * h + gate * residual, rtol=1e-3, atol=1e-3)
    assert (layer.projection is None) == (strides == 1)


def test_highway_gates_start_at_the_sigmoid_of_their_bias_with_every_normalization():
    for normalize in ("batch", "group", "none"):
        layer = HighwayGating(gate_bias=-3, normalize=normalize)
        y = array(layer(np.zeros_like(X), np.ones_like(X), training=True))
        np.testing.assert_allclose(y, 1 / (1 + np.exp(3)), rtol=1e-5)
        check_layer(lambda n=normalize, **more: HighwayGating(gate_bias=-1, normalize=n, **more), (X, F))


def test_highway_multiply_adds_are_those_of_the_gate_and_the_projection():
    for strides, pixels, projection in ((1, 36, 0), (2, 9, 9 * 4 * 4)):
        layer = HighwayGating(strides=strides)
        layer.build(X.shape, (8, 6 // strides, 6 // strides, 4))
        assert layer.multiply_adds((None, 6, 6, 4)) == 2 * 9 * 4 * 4 * pixels + projection


def test_dropout_keeps_the_expectation_and_leaves_the_residual_alone():
    ones = np.ones((64, 16, 16, 4), "float32")
    y, again = (array(DropoutShortcut(rate=0.2, seed=7)(ones, 10 * ones, training=True)) for _ in range(2))
    assert set(np.unique(y.round(3)).tolist()) == {10.0, 11.25}
    assert abs(y.mean() - 11) < 0.02
    np.testing.assert_array_equal(again, y)  # one seed, one draw
    np.testing.assert_array_equal(array(DropoutShortcut(rate=0.2)(X, F, training=False)), X + F)


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


@pytest.mark.parametrize("layer", [Projection, OptionA])
def test_sizes_that_are_not_integers_are_refused(layer):
    for arguments in ((16, 1.5), (0, 1), ("8", 1)):
        with pytest.raises(InputError, match=r"filters is|strides is"):
            layer(*arguments)


@pytest.mark.parametrize("layer", [Projection, OptionA])
def test_layers_that_change_the_shape_need_a_known_number_of_channels(layer):
    with pytest.raises(InputError, match="expects a known number of channels"):
        layer(16)(keras.Input((8, 8, None)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Projection(4, normalize="instance"), "unknown normalization 'instance'"),
        (lambda: Projection(4, use_bias="False"), "use_bias is 'False'; it must be True or False"),
        (lambda: ConvShortcut(use_bias="False"), "use_bias is 'False'"),
        (lambda: ScaledResidual(per_channel=1), "per_channel is 1"),
    ],
)
def test_arguments_of_another_kind_are_refused_by_the_constructor(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_get_shortcut_reads_arguments():
    layer = get_shortcut("constant_scaling(shortcut=0.25, residual=1)", name="h")
    assert (layer.shortcut, layer.residual, layer.name) == (0.25, 1.0, "h")


def test_get_shortcut_copies_a_layer():
    original = ExclusiveGating(gate_bias=-3)
    copy = get_shortcut(original, dtype="mixed_bfloat16")
    assert copy is not original
    assert (copy.gate_bias, copy.compute_dtype) == (-3.0, "bfloat16")


def test_a_custom_shortcut_that_changes_the_shape_receives_the_arguments_that_it_accepts():
    from keras_preact.layers import ResidualUnit

    class Pooled(Shortcut):
        changes_shape = True

        def __init__(self, strides=1, **kwargs):
            super().__init__(**kwargs)
            self.strides = strides

        def call(self, x, residual):
            return keras.ops.max_pool(x, self.strides, self.strides) + residual

    unit = ResidualUnit(4, strides=2, placement="original", shortcut=Pooled(), preactivation="none")
    assert tuple(unit(X).shape) == (8, 3, 3, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("identiti", "did you mean 'identity'"),
        ("exclusive_gating(bias=-6)", "has invalid arguments: .*'bias'.*; exclusive_gating accepts gate_bias$"),
        ("highway(bias=-6)", "; highway accepts gate_bias, strides, "),
        ("identity(rate=0.5)", "; identity accepts none$"),
        ("exclusive_gating(-6)", "write a name or name\\(key=number\\)"),
        ("exclusive_gating(gate_bias=", "write a name or name\\(key=number\\)"),
        ("__import__('os').system('true')", "write a name or name\\(key=number\\)"),
        ("exclusive_gating(gate_bias=__import__('os'))", "write a name or name\\(key=number\\)"),
        ("dropout(rate=1.5)", "rate is 1.5"),
        ("conv(normalize='batc')", "unknown normalization 'batc'"),
        ("conv(strides=0)", "the shortcut's strides is 0"),
        ("constant_scaling(shortcut=1e999)", "constant_scaling's shortcut is inf; it must be a finite number$"),
        ("constant_scaling(residual='a')", "constant_scaling's residual is 'a'"),
        ("highway(gate_bias=-1e999)", "gate_bias is -inf"),
        ("exclusive_gating(gate_bias=True)", "gate_bias is True"),
        ("scaled_residual(initial=1e39)", "initial is 1e\\+39"),
    ],
)
def test_get_shortcut_rejects_invalid_text(text, message):
    with pytest.raises(InputError, match=message):
        get_shortcut(text)


def test_text_cannot_set_arguments_of_the_unit():
    with pytest.raises(InputError, match="the unit sets dtype; conv accepts strides, "):
        get_shortcut("conv(dtype='float32')", dtype="mixed_bfloat16")


def test_a_custom_shortcut_whose_copy_would_lose_an_argument_is_refused():
    from keras_preact.layers import ResidualUnit

    class Forgets(Shortcut):
        def __init__(self, *, factor=0.5, **kwargs):
            super().__init__(**kwargs)
            self.factor = factor

        def call(self, x, residual):
            return self.factor * x + residual

    class Damped(Forgets):
        def get_config(self):
            return {**super().get_config(), "factor": self.factor}

    for kind in (Forgets, type("Inherits", (Forgets,), {})):
        with pytest.raises(InputError, match=f"{kind.__name__} lacks factor, .*; return factor from get_config"):
            ResidualUnit(4, shortcut=kind(factor=0.25))
    unit = ResidualUnit(4, shortcut=Damped(factor=0.25), zero_init_residual=True)
    np.testing.assert_array_equal(array(unit(X)), 0.25 * X)


def test_a_custom_shortcut_that_cannot_be_copied_is_refused():
    from keras_preact.layers import ResidualUnit

    class Half(Shortcut):
        def __init__(self):
            super().__init__()

        def call(self, x, residual):
            return x / 2 + residual

    with pytest.raises(InputError, match=r"Half cannot be copied .* let its constructor accept \*\*kwargs"):
        ResidualUnit(4, shortcut=Half())


def test_a_seed_would_make_the_kernels_of_a_gate_equal():
    with pytest.raises(InputError, match="all kernels of one shape would be equal"):
        HighwayGating(kernel_initializer=keras.initializers.HeNormal(seed=1))


def test_a_custom_shortcut_works_in_a_unit():
    from keras_preact.layers import ResidualUnit

    @keras.saving.register_keras_serializable(package="tests")
    class Negated(Shortcut):
        def call(self, x, residual):
            return residual - x

    unit = ResidualUnit(4, shortcut=Negated(), zero_init_residual=True)
    np.testing.assert_array_equal(array(unit(X)), -X)


def test_a_shortcut_with_a_layer_that_waits_for_its_first_call(images):
    @keras.saving.register_keras_serializable(package="tests")
    class Softened(Shortcut):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.soften = keras.layers.PReLU(shared_axes=[1, 2], name="soften")

        def call(self, x, residual):
            return self.soften(x) + residual

    unit = ResidualUnit(16, shortcut=Softened())
    unit.build(images.shape)
    assert [v.path for v in unit.trainable_variables if "soften" in v.path] == [f"{unit.name}/shortcut/soften/alpha"]
