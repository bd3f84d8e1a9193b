"""The paper's equations hold where they should, fail where they should, and the gradients are the true ones."""

import dataclasses

import keras
import numpy as np
import pytest
from harness import array, disturb

from keras_preact import InputError
from keras_preact.analysis import (
    Chain,
    dead_fraction,
    forward_signal,
    gradient_signal,
    identity_error,
    scaling_factor,
    unrolled_sum,
)
from keras_preact.analysis.differentiation import vjp
from keras_preact.analysis.gradients import _are_scaled_distributions, loss_gradient
from keras_preact.layers import PLACEMENTS, EncoderBlock, ResidualUnit, UnitStack
from keras_preact.models import cifar_resnet, imagenet_resnet, preact_resnet50, roll
from keras_preact.training import RunConfig
from keras_preact.training.build import build_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 16, 16, 3)).astype("float32")
Y = np.arange(6)


def network(depth=20, *arguments, **options):
    return cifar_resnet(depth, *arguments, input_shape=(16, 16, 3), rolled=options.pop("rolled", False), **options)


def values(model):
    return [keras.ops.convert_to_numpy(variable) for variable in model.variables]


# ---- the chain ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rolled", [False, True])
def test_the_chain_computes_what_the_model_computes_and_leaves_it_alone(training, rolled):
    model = network(rolled=rolled)
    disturb(model)
    before = values(model)
    chain, x = Chain.of(model).start(X, training)
    *_, (_, _, last) = chain.passes(x, training)
    output = chain.after(last.output, training)
    for old, new in zip(before, values(model), strict=True):
        np.testing.assert_array_equal(old, new)
    expected = array(model(X, training=training))
    np.testing.assert_allclose(array(output), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert [link.name for link in chain.links][2:5] == ["stage1_unit03", "stage2_unit01", "stage2_unit02"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rolled", [False, True])
def test_the_units_bear_the_names_of_the_models_layers(rolled):
    """Also where the stride stands in the last unit of a stage, and the shape changes twice at its border."""
    network = preact_resnet50(input_shape=(32, 32, 3), profile="keras_applications", rolled=False)
    names = [layer.name for layer in network.layers if isinstance(layer, ResidualUnit)]
    chain = Chain.of(roll(network) if rolled else network)
    assert [link.name for link in chain.links] == names
    assert [link.stage for link in chain.links][:4] == [1, 1, 1, 2]


def test_images_are_seen_as_they_are_also_with_statistics_of_the_batch():
    """A trained network has its augmentation in it."""
    config = RunConfig(options={"depth": 8, "placement": "original"})
    images = config.load_dataset().test.batch(np.arange(6))[0]
    model = build_model(config, config.load_dataset())
    (_, first), (_, again) = (Chain.of(model).start(images, training=True) for _ in range(2))
    np.testing.assert_array_equal(array(first), array(again))
    recipe = dataclasses.replace(config.recipe, augment=False)
    plain = build_model(dataclasses.replace(config, recipe=recipe), config.load_dataset())
    plain.set_weights([v for v, old in zip(model.get_weights(), model.weights, strict=True) if "seed" not in old.path])
    expected = Chain.of(plain).start(images, training=True)[1]
    np.testing.assert_allclose(array(first), array(expected), rtol=1e-5, atol=1e-5)


def softmaxes(logits):
    """Yield the same network with a softmax after its logits, said in every way."""
    layers, ops, x = keras.layers, keras.ops, logits.output
    yield keras.Model(logits.input, layers.Softmax()(x))
    yield keras.Model(logits.input, layers.Activation("softmax")(x))
    yield keras.Model(logits.input, layers.Activation(ops.softmax)(x))
    yield keras.Model(logits.input, ops.softmax(x))
    yield keras.Model(logits.input, layers.Identity()(layers.Softmax()(x)))
    inner = keras.Input(x.shape[1:])
    yield keras.Model(logits.input, keras.Model(inner, layers.Softmax()(inner))(x))
    # What comes last in `layers` is not what makes the output.
    yield keras.Model(logits.input, layers.Softmax(name="first")(x)[:, :])


@pytest.mark.thorough
def test_the_loss_of_a_softmax_is_that_of_its_logits():
    logits = network()
    built = network(classifier_activation="softmax")
    built.set_weights(logits.get_weights())
    expected = gradient_signal(logits, X, Y)
    for model in (built, *softmaxes(logits)):
        for one, other in zip(gradient_signal(model, X, Y), expected, strict=True):
            assert (one.norm, one.direct) == pytest.approx((other.norm, other.direct), rel=1e-3)


def test_the_loss_of_a_log_softmax_is_that_of_its_logits():
    logits = network()
    model = keras.Model(logits.input, keras.ops.log_softmax(logits.output))
    (one, *_), (other, *_) = (gradient_signal(each, X, Y) for each in (model, logits))
    assert one.norm == pytest.approx(other.norm, rel=1e-4)


def test_a_scaled_softmax_has_no_default_loss():
    logits = network()
    ops, x = keras.ops, logits.output
    for outputs, total in ((2 * ops.softmax(x), "2"), (ops.softmax(x) + 1, "11"), (ops.softmax(x) / 3, "0.333")):
        model = keras.Model(logits.input, outputs)
        with pytest.raises(InputError, match=rf"outputs that each sum to {total}, .* pass the training loss"):
            gradient_signal(model, X, Y)
        assert gradient_signal(model, X, Y, loss=lambda labels, y: keras.ops.mean(y**2))[-1].norm > 0


@pytest.mark.parametrize("outputs", [np.ones((4, 3)), np.eye(3) * [[1], [2], [3]], -np.eye(3), np.ones((1, 3))])
def test_other_outputs_with_equal_sums_may_be_logits(outputs):
    """Those of a network that has not learned, of a ReLU, with negative values, or of one image."""
    assert not _are_scaled_distributions(outputs)


def test_a_sigmoid_has_no_default_loss():
    logits = network()
    for last in (keras.layers.Activation("sigmoid"), keras.ops.sigmoid, keras.layers.Dense(3, activation="sigmoid")):
        model = keras.Model(logits.input, last(logits.output))
        with pytest.raises(InputError, match=r"ends in a sigmoid, .* pass the training loss"):
            gradient_signal(model, X, Y % 3)
        assert gradient_signal(model, X, Y, loss=lambda labels, outputs: keras.ops.mean(outputs))[-1].norm > 0


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.eye(10)[:6], "one-hot; pass class numbers"),
        ([0, 1], r"labels have shape \(2,\); pass one label for each output, shape \(6,\)"),
        ([0, 1, 2, 3, 4, 10], r"label 10 is outside \[0, 10\)"),
        ([0, 1, 2, 3, 4, -1], r"label -1 is outside \[0, 10\)"),
        ([0.5] * 6, "are not integers"),
    ],
)
def test_labels_that_are_none_are_refused(labels, words):
    with pytest.raises(InputError, match=words):
        gradient_signal(network(8), X, labels)


def test_labels_of_keras_datasets_lose_their_last_axis():
    model = network(8)
    assert gradient_signal(model, X, Y[:, None]) == gradient_signal(model, X, Y)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 8, 8, 3), r"expects inputs of shape \(batch, 16, 16, 3\), not \(2, 8, 8, 3\)"),
        ((2, 16, 16, 4), r"expects inputs of shape \(batch, 16, 16, 3\), not \(2, 16, 16, 4\)"),
        ((16, 16, 3), r"expects inputs of shape \(batch, 16, 16, 3\), not \(16, 16, 3\)"),
        ((0, 16, 16, 3), "the batch is empty; pass at least one input"),
    ],
)
def test_inputs_of_another_shape_are_refused(shape, words):
    with pytest.raises(InputError, match=words):
        forward_signal(network(8), np.zeros(shape, "float32"))


def test_a_network_of_any_size_accepts_every_size():
    model = cifar_resnet(8, input_shape=(None, None, 3))
    assert [len(forward_signal(model, np.ones((2, size, size, 3)))) for size in (8, 16)] == [3, 3]


def test_a_network_of_one_score_needs_its_loss():
    """The cross-entropy of one class is 0, and so is its gradient."""
    binary = cifar_resnet(8, classes=1, input_shape=X.shape[1:])
    for labels in (np.zeros((len(X), 1), int), np.zeros(len(X), int)):
        with pytest.raises(InputError, match="one output, not a score for each class; use one with two"):
            gradient_signal(binary, X, labels)


@pytest.mark.parametrize("stride_in", ["first", "last"])
def test_a_stage_is_what_the_network_calls_so_wherever_its_stride_is(stride_in):
    model = imagenet_resnet(18, input_shape=(32, 32, 3), classes=10, stride_in=stride_in)
    found = forward_signal(model, RNG.normal(size=(2, 32, 32, 3)).astype("float32"))
    assert [entry.stage for entry in found] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_pixels_from_0_to_1_are_refused_by_a_network_of_uint8():
    """It would cast them to 0, and everything measured would be of black images."""
    config = RunConfig(options={"depth": 8})
    model = build_model(config, config.load_dataset())
    images, labels = config.load_dataset().test.batch(np.arange(4))
    integers = "int32" if keras.backend.backend() == "jax" else "int64"  # JAX has no 64 bits by default
    for given in (images / 255, (images / 255).astype("float16"), images.astype("int64")):
        for analysis in (forward_signal, lambda *inputs: gradient_signal(*inputs, labels)):
            with pytest.raises(InputError, match=rf"expects uint8 images, not (float\d\d|{integers}); pass pixels"):
                analysis(model, given)
    assert len(gradient_signal(model, images, labels)) == 4


def test_a_model_that_is_no_chain_of_units_is_refused():
    inputs = keras.Input((4,))
    plain = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    with pytest.raises(InputError, match="has no residual units of this package"):
        Chain.of(plain)
    with pytest.raises(InputError, match="has no input shape yet; begin it with"):
        forward_signal(keras.Sequential([ResidualUnit(4)]), X)
    inputs = keras.Input((8, 8, 4))
    between = ResidualUnit(4)(keras.layers.ReLU()(ResidualUnit(4)(inputs)))
    with pytest.raises(InputError, match="there are layers between"):
        Chain.of(keras.Model(inputs, between))


# ---- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="JAX has no float64 unless it is told to, before anything; Keras computes PyTorch's batch norms in float32",
)
def test_gradients_are_those_of_finite_differences():
    """In float64, along random directions at several units: the definition of a derivative."""
    model = network(14, dtype="float64", include_top=False, pooling="avg")
    disturb(model)
    images = X.astype("float64")
    chain, start = Chain.of(model).start(images, True)
    passes = list(chain.passes(start, True))

    def loss(labels, output):
        return keras.ops.sum(keras.ops.square(output), axis=1)

    def loss_from(k, x):
        for link in chain.links[k:]:
            x = link(x, True)
        return float(keras.ops.mean(loss(Y, chain.after(x, True))))

    signal = gradient_signal(model, images, Y, loss=loss)
    gradient = loss_gradient(chain, passes[-1][2].output, Y, True, loss)
    for k in reversed(range(6)):
        link, x, _ = passes[k]
        gradient = link.gradient(x, gradient, True)
        direction = np.random.default_rng(k).normal(size=x.shape)
        there = keras.ops.convert_to_numpy(x)
        ahead, behind = (loss_from(k, there + sign * 1e-6 * direction) for sign in (1, -1))
        expected = np.vdot(keras.ops.convert_to_numpy(gradient), direction)
        assert (ahead - behind) / 2e-6 == pytest.approx(expected, rel=1e-3)
        assert signal[k].norm == pytest.approx(np.linalg.norm(keras.ops.convert_to_numpy(gradient)), rel=1e-9)


def test_float16_keeps_gradients_below_its_smallest_number():
    """As those of a trained network are, over many images: a loss that is small stands for both."""

    def loss(labels, logits):
        return 1e-6 * keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    model, half = network(8), network(8, dtype="mixed_float16")
    half.set_weights(model.get_weights())
    for expected, found in zip(*(gradient_signal(each, X, Y, loss=loss) for each in (model, half)), strict=True):
        assert (found.norm, found.direct) == pytest.approx((expected.norm, expected.direct), rel=0.02)


@pytest.mark.parametrize("rolled", [False, True])
def test_along_identity_shortcuts_the_gradient_comes_back_unchanged(rolled):
    """Eq. (5): the direct term is ∂E/∂x_L itself, to the bit, at every unit of a stage."""
    model = network(26, rolled=rolled)
    disturb(model)
    signal = gradient_signal(model, X, Y)
    assert signal[-1].unit == "output" and signal[-1].through_weights == 0
    for stage in (1, 2, 3):
        entries = [entry for entry in signal if entry.stage == stage]
        direct = {entry.direct for entry in entries if entry.unit.endswith(("02", "03", "04"))}
        assert len(direct) == 1
    assert direct == {signal[-1].norm}
    assert all(entry.through_weights > 0 for entry in signal[:-1])


def test_with_the_weights_at_zero_only_the_direct_term_is_left():
    model = network(14, zero_init_residual=True)
    signal = {entry.unit: entry for entry in gradient_signal(model, X, Y)}
    inner = signal["stage3_unit02"]
    assert inner.norm == inner.direct == signal["output"].norm
    assert inner.through_weights == 0 and inner.cosine == pytest.approx(1, abs=1e-12)


def test_a_relu_after_the_addition_holds_part_of_the_direct_term_back():
    model = network(20, "original")
    signal = {entry.unit: entry for entry in gradient_signal(model, X, Y)}
    assert signal["stage3_unit02"].direct < 0.99 * signal["output"].norm


@pytest.mark.thorough
def test_rolled_and_written_out_give_the_same_signals():
    model = network(26)
    disturb(model)
    flat, rolled = (gradient_signal(each, X, Y) for each in (model, roll(model)))
    assert [entry.unit for entry in flat] == [entry.unit for entry in rolled]
    np.testing.assert_allclose([e.norm for e in flat], [e.norm for e in rolled], rtol=1e-4)
    flat, rolled = (forward_signal(each, X) for each in (model, roll(model)))
    np.testing.assert_allclose([e.x.variance for e in flat], [e.x.variance for e in rolled], rtol=1e-4)


def test_vjp_of_what_does_not_depend_on_x_is_zero():
    x = keras.ops.ones((3,))
    assert array(vjp(lambda x: keras.ops.zeros((2,)), x, keras.ops.ones((2,)))).tolist() == [0, 0, 0]


# ---- forward ------------------------------------------------------------------------------------------------------


def test_forward_moments_are_those_of_the_activations():
    model = network(8)
    disturb(model)
    signal = forward_signal(model, X, training=False)
    x = array(keras.Model(model.input, model.get_layer("stage2_unit01").input)(X)).astype("float64")
    assert signal[1].x.mean == pytest.approx(x.mean(), rel=1e-5)
    assert signal[1].x.variance == pytest.approx(x.var(), rel=1e-5)
    assert signal[1].x.norm == pytest.approx(np.sqrt((x**2).sum((1, 2, 3)).mean()), rel=1e-5)


def test_the_variance_grows_with_depth_in_pre_activation_nets():
    """Each unit adds F of about the same size: without weights that hold it back, the sum of a stage grows."""
    variances = [entry.x.variance for entry in forward_signal(network(32), X) if entry.stage == 1][1:]
    assert variances == sorted(variances) and variances[-1] > 1.5 * variances[0]


def test_the_identity_share_is_that_of_the_norms():
    signal = forward_signal(network(8, shortcut="constant_scaling(shortcut=0, residual=1)"), X)
    assert signal[0].identity_share == 0
    entry = forward_signal(network(14), X)[1]
    assert entry.identity_share == pytest.approx(entry.x.norm / (entry.x.norm + entry.residual.norm), rel=1e-4)


# ---- Eq. (4), (7), (8) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_sum_of_residuals_holds_where_f_is_the_identity_and_nowhere_else(placement):
    model = network(20, placement)
    disturb(model)
    errors = [entry.error for entry in unrolled_sum(model, X)]
    # Nine units, of which two change the shape; the first activates x before the split, if it has something to do it.
    assert len(errors) == 7 - bool(PLACEMENTS[placement].first)
    if PLACEMENTS[placement].identity_after_addition:
        assert max(errors) < 1e-6
    else:
        assert max(errors) > 1e-2


WIDE = "float32" if keras.backend.backend() == "jax" else "float64"


def scaled(factor, units, dtype=WIDE):
    """A row of small units with h = λx; in float64, where there is one: 1.1 to the power of 1000 is beyond float32."""
    shortcut = f"constant_scaling(shortcut={factor}, residual=1)"
    unit = ResidualUnit(2, block="single", dtype=dtype, shortcut=shortcut)
    inputs = keras.Input((4, 4, 2), dtype=dtype)
    x = UnitStack(unit, units, rolled=True)(inputs)
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D(dtype=dtype)(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("factor", [0.9, 0.99, 1.0, 1.01, 1.1])
def test_scaled_shortcuts_multiply_signal_and_gradient(factor):
    """Eq. (7), (8): Πλ_i, forward and backward."""
    units, tolerance = 100, {"float64": 1e-9, "float32": 1e-3}[WIDE]
    entries = scaling_factor(scaled(factor, units), RNG.normal(size=(2, 4, 4, 2)))
    for k, entry in enumerate(entries):
        assert entry.forward_predicted == pytest.approx(factor ** (k + 1), rel=1e-12)
        assert entry.forward == pytest.approx(entry.forward_predicted, rel=tolerance)
        assert entry.backward == pytest.approx(factor ** (units - k), rel=tolerance)
        assert entry.backward_predicted == pytest.approx(factor ** (units - k), rel=1e-12)


def test_identity_shortcuts_have_the_factor_one():
    for entry in scaling_factor(network(14), X):
        assert entry.forward_predicted == entry.backward_predicted == 1
        assert (entry.forward, entry.backward) == pytest.approx((1, 1), rel=1e-5)


def test_a_gated_shortcut_has_no_constant_factor():
    with pytest.raises(InputError, match="not a constant scaling"):
        scaling_factor(network(14, shortcut="exclusive_gating"), X)


# ---- units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_identity_error_is_zero_where_nothing_follows_the_addition(placement):
    unit = ResidualUnit(8, placement=placement)
    unit.build((None, 8, 8, 8))
    assert (identity_error(unit) == 0) == PLACEMENTS[placement].identity_after_addition


def test_the_identity_error_of_units_that_have_none():
    with pytest.raises(InputError, match="is not built yet"):
        identity_error(ResidualUnit(8))
    for layer in (EncoderBlock(2, 8), UnitStack(ResidualUnit(8), 2)):
        with pytest.raises(InputError, match="is not a single residual unit; pass a ResidualUnit"):
            identity_error(layer)
    unit = ResidualUnit(8, strides=2)
    unit.build((None, 8, 8, 8))
    with pytest.raises(InputError, match="changes the shape"):
        identity_error(unit)
    halved = ResidualUnit(8, shortcut="constant_scaling")
    halved.build((None, 8, 8, 8))
    assert identity_error(halved) == pytest.approx(0.5)
    dropped = ResidualUnit(8, shortcut="dropout(rate=0.5)")  # the identity at inference only
    dropped.build((None, 8, 8, 8))
    assert identity_error(dropped) > 0.5


def test_the_identity_error_is_that_of_the_given_input():
    original = ResidualUnit(8, placement="original")
    original.build((None, 8, 8, 8))
    assert identity_error(original, np.ones((1, 8, 8, 8), "float32")) == 0 < identity_error(original)


def test_dead_fractions_count_zeros():
    model = network(14, "original")
    entries = dead_fraction(model, X, training=False)
    assert len(entries) == 6
    output = array(keras.Model(model.input, model.get_layer("stage1_unit02").output)(X))
    assert entries[1].zeros == pytest.approx((output == 0).mean())
    kill = model.get_layer("stage3_unit02").branch[-1]
    kill.beta.assign(np.repeat([-1e6, 1e6], 32))
    last = dead_fraction(model, X)[-1]
    assert (last.zeros, last.channels) == (0.5, 0.5)
    assert len(dead_fraction(network(8, "bn_after_addition"), X)) == 3


def test_all_measurements_use_the_batchs_statistics_unless_told_otherwise():
    """Moving averages mean nothing before training; so says the module."""
    model = network(14, "original")
    for measure in (dead_fraction, forward_signal, unrolled_sum, scaling_factor):
        assert measure(model, X) == measure(model, X, training=True) != measure(model, X, training=False)
