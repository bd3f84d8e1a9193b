"""Transformer networks: inputs, heads, both orders, rolled and unrolled, saved, quantized."""

import keras
import numpy as np
import pytest
from harness import array, check_layer, disturb

from keras_preact import InputError
from keras_preact.layers import NORM_PLACEMENTS, PLACEMENTS, Placement, deepnorm
from keras_preact.layers.transformer import SEQUENCE_NORMALIZATIONS
from keras_preact.models import (
    Classification,
    Forecast,
    NextToken,
    Patches,
    Series,
    Tokens,
    fold,
    get_network,
    multiply_adds,
    postnorm_transformer,
    prenorm_transformer,
    roll,
    transformer,
    unroll,
)
from keras_preact.models.summary import summarize
from keras_preact.models.transformer import LastStep, MeanOfSteps, Positions

SMALL = {"depth": 3, "dim": 16, "heads": 2}
TOKENS = np.random.default_rng(0).integers(1, 20, size=(4, 12)).astype("int32")


def pairs():
    return [
        (Tokens(20, 12), Classification(3), TOKENS, (4, 3)),
        (Tokens(20, 12, padded=False), NextToken(20), TOKENS, (4, 12, 20)),
        (Series(12, 5), Forecast(6, 2), np.random.default_rng(0).normal(size=(4, 12, 5)).astype("float32"), (4, 6, 2)),
        (Patches((16, 16, 3), 4), Classification(10), np.ones((4, 16, 16, 3), "float32"), (4, 10)),
    ]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("build", [prenorm_transformer, postnorm_transformer])
@pytest.mark.parametrize(("inputs", "head", "x", "shape"), pairs())
def test_inputs_and_heads(build, inputs, head, x, shape, rolled, tmp_path):
    model = build(inputs, head, rolled=rolled, **SMALL)
    disturb(model)
    y = array(model(x))
    assert y.shape == shape
    assert np.isfinite(y).all()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for mine, saved in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(mine), array(saved))
    rounding = 1e-5 if keras.backend.backend() == "jax" else 0  # XLA may fuse the loop of another model otherwise
    np.testing.assert_allclose(array(again(x)), y, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_heads_are_float32_in_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    model = prenorm_transformer(Tokens(20, 12), **SMALL)
    assert model.output.dtype == "float32"
    assert model.get_layer("encoder_block02").compute_dtype == policy.removeprefix("mixed_")
    assert model.get_layer("avg_pool").compute_dtype == "float32"
    forecast = prenorm_transformer(Series(12, 5), Forecast(6, 2), **SMALL)
    assert forecast.get_layer("last_step").compute_dtype == "float32"


@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
def test_the_final_norm_is_in_its_place(placement):
    names = [layer.name for layer in transformer(placement=placement, **SMALL).layers]
    assert ("final_norm" in names) == (placement in ("pre_norm", "sandwich"))


@pytest.mark.parametrize("head", [Classification(3), NextToken(20), Forecast(2, 1)], ids=["class", "next", "forecast"])
@pytest.mark.parametrize("normalization", SEQUENCE_NORMALIZATIONS)
@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
def test_padding_changes_no_output(placement, normalization, head):
    model = transformer(Tokens(20, 12), head, placement=placement, normalization=normalization, depth=1, dim=8, heads=2)
    padded = TOKENS.copy()
    padded[:, 8:] = 0
    before = array(model(padded))
    embedding = model.get_layer("embedding")
    weights = embedding.get_weights()
    weights[0][0] += 5  # the vector of the padding token
    embedding.set_weights(weights)
    after, texts = array(model(padded)), slice(0, 8) if isinstance(head, NextToken) else slice(None)
    np.testing.assert_allclose(after[:, texts], before[:, texts], rtol=1e-5, atol=1e-6)


def test_padding_does_not_change_the_classification():
    model = prenorm_transformer(Tokens(20, 12), rolled=True, **SMALL)
    short = prenorm_transformer(Tokens(20, 8), rolled=True, **SMALL)
    padded = TOKENS.copy()
    padded[:, 8:] = 0
    for mine, other in zip(short.weights, model.weights, strict=True):
        mine.assign(array(other)[:8] if "positions" in other.path else other)
    np.testing.assert_allclose(array(model(padded)), array(short(TOKENS[:, :8])), rtol=1e-5, atol=1e-6)


def test_an_empty_text_has_finite_logits_and_leaves_the_others_alone():
    model = prenorm_transformer(Tokens(20, 12), Classification(3), **SMALL)
    disturb(model)
    texts = TOKENS.copy()
    texts[1, 5:], texts[2] = 0, 0
    logits = array(model(texts))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[[0, 1, 3]], array(model(texts[[0, 1, 3]])), rtol=1e-5, atol=1e-6)


def test_the_mean_of_steps_is_kerass_where_there_is_one():
    x = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")
    for mask in (None, np.arange(5) < np.array([[5], [3], [1]])):
        expected = keras.layers.GlobalAveragePooling1D(data_format="channels_last")(x, mask=mask)
        np.testing.assert_allclose(array(MeanOfSteps()(x, mask=mask)), array(expected), rtol=1e-6)


def test_a_language_model_does_not_see_the_future():
    model = postnorm_transformer(Tokens(20, 12, padded=False), NextToken(20), rolled=True, **SMALL)
    changed = TOKENS.copy()
    changed[:, 7] = (changed[:, 7] + 1) % 20
    before, after = array(model(TOKENS)), array(model(changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(axis=-1).all()


def test_roll_and_unroll_compute_the_same():
    model = prenorm_transformer(Tokens(20, 12), Classification(3), rolled=False, **SMALL)
    disturb(model)
    padded = TOKENS.copy()
    padded[1, 5:] = 0
    rolled = roll(model)
    assert [layer.name for layer in rolled.layers if "encoder" in layer.name] == ["encoder_stack"]
    back = unroll(rolled)
    assert [layer.name for layer in back.layers] == [layer.name for layer in model.layers]
    for other in (rolled, back):
        np.testing.assert_allclose(array(other(padded)), array(model(padded)), rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [deepnorm(3), {"placement": "no_norm", "shortcut": "scaled_residual"}])
def test_trains(options):
    """In a few steps it learns to detect a token."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 20, size=(256, 12)).astype("int32")
    y = (x == 7).any(1).astype("int32")
    model = transformer(Tokens(20, 12), Classification(2), **SMALL, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
    history = model.fit(x, y, epochs=12, batch_size=64, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]


def test_counts():
    """By hand: four projections, two attention products, two feed-forward layers, and the head."""
    model = transformer(Series(10, 3), Forecast(2, 1), depth=2, dim=8, heads=2, rolled=True)
    block = 10 * 8 * 8 * 4 + 2 * 10 * 10 * 8 + 2 * 10 * 8 * 32
    assert multiply_adds(model) == 10 * 3 * 8 + 2 * block + 8 * 2
    unrolled = transformer(Series(10, 3), Forecast(2, 1), depth=2, dim=8, heads=2, rolled=False)
    assert multiply_adds(unrolled) == multiply_adds(model)
    parameters = 3 * 8 + 8 + 10 * 8 + 2 * (4 * 64 + 4 * 8 + 2 * 8 * 32 + 32 + 8 + 4 * 8) + 2 * 8 + 8 * 2 + 2
    assert model.count_params() == parameters
    assert summarize(model).rows[-1].parameters == parameters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": Placement("pre/post", "mine", first=("norm",))}, "pass a string without /"),
        ({"inputs": Patches(), "input_tensor": keras.Input((64, 64, 3))}, r"\(64, 64, 3\), and Patches describes \(32"),
        ({"input_tensor": keras.Input((None,), dtype="int32")}, r"has the shape \(None,\), and Tokens describes"),
    ],
)
def test_inputs_and_names_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        transformer(**SMALL, **options)


@pytest.mark.parametrize(("layer", "trainable"), [(MeanOfSteps, False), (LastStep, False), (Positions, True)])
def test_harness(layer, trainable):
    steps = np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")
    check_layer(layer, steps, trainable=trainable, channels_first=False)


def test_hyphens_are_underscores():
    assert get_network("prenorm-transformer") is prenorm_transformer


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: transformer(depth=0), "depth is 0"),
        (lambda: transformer(depth=0, name="mine"), "depth is 0"),
        (lambda: transformer(dim=10, heads=4), "4 heads do not divide a width of 10"),
        (lambda: transformer(Patches((32, 32, 3), 5)), "patches of 5 pixels do not divide"),
        (lambda: transformer(Patches((None, None, 3))), "height is None; it must be an integer of at least 1"),
        (lambda: transformer(Patches(8, 4)), r"image_shape is 8; pass \(height, width, channels\)"),
        (lambda: transformer(Patches((32, 32))), r"image_shape is \(32, 32\); pass \(height, width, channels\)"),
        (lambda: transformer(Series(0, 1)), "length is 0"),
        (lambda: transformer(Tokens(padded="False")), "padded is 'False'; it must be True or False"),
        (lambda: transformer(head=Classification(0)), "classes is 0"),
        (lambda: transformer(input_tensor=np.ones((1, 128))), "input_tensor must be a Keras tensor"),
        (lambda: transformer(epsilon=-1), "epsilon is -1"),
        (lambda: transformer(drop_path=1.5), "drop_path is 1.5"),
        (lambda: transformer(placement="original"), "unknown placement 'original'"),
        (lambda: transformer(placement=PLACEMENTS["original"]), "the placement original has ReLU around F"),
    ],
)
def test_bad_input(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


# ---- quantization ----------------------------------------------------------------------------------------------------


def quantizable(**options):
    return transformer(Series(10, 3), Forecast(2, 1), depth=2, dim=8, heads=2, **options)


@pytest.mark.thorough
def test_a_rolled_network_is_not_quantized_in_part_without_a_word():
    """Keras would quantize the head but not the blocks."""
    with pytest.raises(InputError, match=r"encoder_stack runs one unit.*load the network again, and unroll it"):
        quantizable(rolled=True).quantize("int8")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_an_unrolled_network_is_quantized_and_says_that_it_cannot_be_saved_so(mode, tmp_path):
    model = unroll(quantizable(rolled=True))
    x = np.random.default_rng(0).normal(size=(4, 10, 3)).astype("float32")
    before = model.predict(x, verbose=0)
    model.quantize(mode)
    kernel = model.get_layer("encoder_block01").attention.branch[0].qkv.kernel
    assert keras.backend.standardize_dtype(kernel.dtype) == "int8"
    assert 0 < np.abs(model.predict(x, verbose=0) - before).max() < (0.1 if mode == "int8" else 1)
    for copy in (lambda: model.save(tmp_path / "model.keras"), lambda: keras.models.clone_model(model)):
        with pytest.raises(InputError, match=r"save the network before you quantize it"):
            copy()
    with pytest.raises(InputError, match=r"save the network before you quantize it"):
        fold(model)
    # The weights alone can be saved, and loaded into a network that is quantized in the same way.
    other = unroll(quantizable(rolled=True))
    other.quantize(mode)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("inputs", [Patches((8, 8, 3), 4), Series(8, 3)])
def test_integer_images_are_refused(inputs):
    shape = tuple(inputs.tensor().shape[1:])
    with pytest.raises(InputError, match="input_tensor is uint8; convert it first, for example with Rescaling"):
        transformer(inputs, depth=1, dim=8, heads=2, input_tensor=keras.Input(shape, dtype="uint8"))


def test_unknown_activations_are_refused():
    with pytest.raises(InputError, match="activation is 'foo'; pass a Keras activation such as 'relu'"):
        transformer(depth=1, dim=8, heads=2, activation="foo")
