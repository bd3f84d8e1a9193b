"""The units of a Transformer, compared with NumPy and PyTorch; masks, stacks, saving, bad input."""

from functools import partial

import keras
import numpy as np
import pytest
from harness import array, assert_equal_stacks, check_layer, disturb

from keras_preact import InputError
from keras_preact.layers import (
    NORM_PLACEMENTS,
    AttentionUnit,
    EncoderBlock,
    FeedForwardUnit,
    PostNormEncoderBlock,
    PreNormEncoderBlock,
    SelfAttention,
    Shortcut,
    UnitStack,
    deepnorm,
)

HEADS, WIDTH = 2, 8


@pytest.fixture
def sequences():
    """Four sequences of six steps, float32."""
    return np.random.default_rng(0).normal(size=(4, 6, WIDTH)).astype("float32")


@pytest.fixture
def mask():
    """Return a mask with padding at the end of two sequences, and a fourth sequence that is all padding."""
    lengths = np.array([6, 4, 1, 0])
    return np.arange(6)[None] < lengths[:, None]


def built(block, x):
    """Return the built block with random changes to all weights, including biases and norms."""
    block.build(x.shape)
    rng = np.random.default_rng(1)
    for variable in block.trainable_variables:
        variable.assign(array(variable) + rng.normal(0, 0.2, variable.shape))
    return block


# ---- outputs ------------------------------------------------------------------------------------------------------


def layer_norm(x, gamma, beta):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta


def rms_norm(x, scale):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale


def attention(x, w, mask, causal):
    """Self-attention in NumPy, head by head and sequence by sequence."""
    q, k, v = np.split(x @ w["attention/qkv/kernel"] + w["attention/qkv/bias"], 3, -1)
    out = np.zeros_like(x)
    size = WIDTH // HEADS
    for b in range(len(x)):
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = q[b, :, part] @ k[b, :, part].T / np.sqrt(size)
            scores[:, ~mask[b]] = -1e30
            if causal:
                scores[np.triu_indices(len(scores), 1)] = -1e30
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[b, :, part] = weights / weights.sum(-1, keepdims=True) @ v[b, :, part]
    return out @ w["attention/output/kernel"] + w["attention/output/bias"]


def feed_forward(x, w):
    hidden = np.maximum(x @ w["dense1/kernel"] + w["dense1/bias"], 0)
    return hidden @ w["dense2/kernel"] + w["dense2/bias"]


def reference(block, x, mask, causal, placement, norm=layer_norm):
    """Return the block's output, computed in NumPy in float64: x + F(LN(x)), or LN(x + F(x))."""
    weights = {v.path.removeprefix(block.path + "/"): array(v).astype("float64") for v in block.weights}
    x = x.astype("float64")
    for unit in ("attention", "feed_forward"):
        w = {name.removeprefix(f"{unit}/"): value for name, value in weights.items() if name.startswith(f"{unit}/")}
        where = {"pre_norm": "norm/", "post_norm": "norm_after_addition/"}[placement]
        normalize = [value for name, value in w.items() if name.startswith(where)]
        f = (
            (lambda x, w=w: attention(x, w, mask, causal))
            if unit == "attention"
            else (lambda x, w=w: feed_forward(x, w))
        )
        x = x + f(norm(x, *normalize)) if placement == "pre_norm" else norm(x + f(x), *normalize)
    return x


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("placement", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_equals_numpy(placement, causal, dropout, sequences, mask):
    mask = mask.copy()
    mask[3, 0] = True  # attention over padding alone is undefined
    block = EncoderBlock(HEADS, 16, placement=placement, causal=causal, activation="relu", dropout=dropout)
    built(block, sequences)
    expected = reference(block, sequences, mask, causal, placement)
    np.testing.assert_allclose(array(block(sequences, mask=mask)), expected, rtol=1e-4, atol=1e-5)


def test_rms_norm_equals_numpy(sequences, mask):
    block = built(EncoderBlock(HEADS, 16, normalization="rms", activation="relu"), sequences)
    everything = np.ones_like(mask)
    expected = reference(block, sequences, everything, False, "pre_norm", rms_norm)
    np.testing.assert_allclose(array(block(sequences)), expected, rtol=1e-4, atol=1e-5)


def test_separate_operations_equal_the_fused_one(mask):
    attention = SelfAttention(HEADS)
    query, key, value = (np.random.default_rng(k).normal(size=(4, 6, HEADS, 4)).astype("float32") for k in range(3))
    some = keras.ops.convert_to_tensor(mask[:3])[:, None, None, :]  # over padding alone, attention is undefined
    parts = [keras.ops.convert_to_tensor(part[:3]) for part in (query, key, value)]
    expected = keras.ops.dot_product_attention(*parts, mask=some)
    np.testing.assert_allclose(array(attention._attend(*parts, some, False)), array(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_with_a_mask_too_causal_attention_does_not_see_the_future(backend, sequences, mask, monkeypatch):
    """Keras 3.12 on PyTorch ignores `is_causal` if there is a mask, so the mask must be causal."""
    original = keras.ops.dot_product_attention

    def attend(*arguments, mask=None, is_causal=False):
        return original(*arguments, mask=mask, is_causal=is_causal and mask is None)

    monkeypatch.setattr(keras.ops, "dot_product_attention", attend)
    attention = SelfAttention(HEADS, causal=True)
    attention.build(sequences.shape)
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)  # decides whether attention is fused
    changed = sequences.copy()
    changed[:, 4:] += 1
    for padding in (None, mask, mask[:, ::-1]):
        before, after = (array(attention(x, mask=padding)) for x in (sequences, changed))
        assert np.isfinite(before).all()
        is_step = np.ones((4, 4), bool) if padding is None else padding[:, :4]  # over padding alone it is undefined
        np.testing.assert_array_equal(before[:, :4][is_step], after[:, :4][is_step])


def test_dropout_drops(sequences):
    attention = SelfAttention(HEADS, dropout=0.5)
    once, again = (array(attention(sequences, training=True)) for _ in range(2))
    assert np.abs(once - again).max() > 1e-3
    np.testing.assert_array_equal(array(attention(sequences)), array(attention(sequences)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_equals_pytorch(norm_first, sequences, mask):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, 16, dropout=0.0, activation="relu", batch_first=True, norm_first=norm_first
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    block = (PreNormEncoderBlock if norm_first else PostNormEncoderBlock)(HEADS, 16, activation="relu")
    block.build(sequences.shape)
    state = {name: value.detach().numpy() for name, value in theirs.named_parameters()}
    for variable in block.weights:
        variable.assign(state[TORCH_NAMES[variable.path.removeprefix(f"{block.path}/")]].T)
    some = mask[:3]  # PyTorch returns NaN for a sequence of padding
    expected = theirs(torch.tensor(sequences[:3]), src_key_padding_mask=torch.tensor(~some)).detach().numpy()
    np.testing.assert_allclose(array(block(sequences[:3], mask=some))[some], expected[some], rtol=1e-5, atol=1e-5)


TORCH_NAMES = {
    f"{unit}/{mine}/{kind}": f"{theirs}{'_' if 'in_proj' in theirs else '.'}{torch_kind}"
    for unit, mine, theirs in (
        ("attention", "attention/qkv", "self_attn.in_proj"),
        ("attention", "attention/output", "self_attn.out_proj"),
        ("attention", "norm", "norm1"),
        ("attention", "norm_after_addition", "norm1"),
        ("feed_forward", "dense1", "linear1"),
        ("feed_forward", "dense2", "linear2"),
        ("feed_forward", "norm", "norm2"),
        ("feed_forward", "norm_after_addition", "norm2"),
    )
    for kind, torch_kind in (("kernel", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias"))
}


# ---- masks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_changed_future_changes_no_past_output(rolled, training, sequences):
    stack = UnitStack(PreNormEncoderBlock(HEADS, causal=True), 3, rolled=rolled)
    changed = sequences.copy()
    changed[:, 4:] += 1.0
    before, after = (array(stack(x, training=training)) for x in (sequences, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).min() > 0


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("remat", [False, True])
def test_padding_changes_nothing(rolled, remat, sequences, mask):
    stack = UnitStack(PostNormEncoderBlock(HEADS), 3, rolled=rolled, remat=remat)
    changed = np.where(mask[..., None], sequences, 100.0).astype("float32")
    before, after = (array(stack(x, training=True, mask=mask)) for x in (sequences, changed))
    np.testing.assert_array_equal(before[mask], after[mask])
    shorter = array(stack(sequences[1:2, :4], training=True))
    np.testing.assert_allclose(before[1:2, :4], shorter, rtol=1e-5, atol=1e-5)


def test_masks_travel_through_layers(sequences):
    tokens = np.array([[3, 1, 2, 0], [1, 0, 0, 0]])
    embedding = keras.layers.Embedding(4, WIDTH, mask_zero=True)
    stack = UnitStack(PreNormEncoderBlock(HEADS), 2, rolled=True)
    inputs = keras.Input((4,), dtype="int32")
    model = keras.Model(inputs, stack(embedding(inputs)))
    expected = array(stack(array(embedding(tokens)), mask=tokens != 0))
    np.testing.assert_allclose(array(model(tokens)), expected, rtol=1e-6, atol=1e-6)
    without = array(stack(array(embedding(tokens))))
    assert np.abs(expected - without).max() > 1e-3


# ---- h, F and f ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
@pytest.mark.parametrize("unit", [lambda **k: AttentionUnit(HEADS, **k), lambda **k: FeedForwardUnit(**k)])
def test_with_f_0_the_unit_returns_x_if_its_path_is_the_identity(placement, unit, sequences):
    unit = unit(placement=placement)
    unit.build(sequences.shape)
    y = array(unit.after_addition(unit.add(sequences, np.zeros_like(sequences))))
    assert unit.keeps_identity == (placement != "post_norm")
    assert np.array_equal(y, sequences) == unit.keeps_identity


def test_gain_scales_values_output_and_feed_forward_but_not_queries_and_keys():
    x = np.zeros((1, 4, 64), "float32")
    deviations = {}
    for gain in (1.0, 0.5):
        block = EncoderBlock(HEADS, gain=gain)
        block.build(x.shape)
        w = {v.path.removeprefix(block.path + "/"): array(v).std() for v in block.weights if "kernel" in v.path}
        qkv = array(block.attention.branch[0].qkv.kernel)
        w["query and key"], w["value"] = qkv[:, :128].std(), qkv[:, 128:].std()
        deviations[gain] = w
    ratios = {name: deviations[0.5][name] / deviations[1.0][name] for name in deviations[1.0]}
    expected = dict.fromkeys(("value", "attention/attention/output/kernel", "feed_forward/dense1/kernel"), 0.5)
    for name, ratio in {"query and key": 1.0, "feed_forward/dense2/kernel": 0.5, **expected}.items():
        assert ratios[name] == pytest.approx(ratio, abs=0.05), name


def test_xavier_by_query_key_and_value():
    block = EncoderBlock(HEADS)
    block.build((None, 4, 64))
    bound = np.sqrt(6 / 128)
    for part in np.split(array(block.attention.branch[0].qkv.kernel), 3, axis=1):
        assert 0.95 * bound < np.abs(part).max() <= bound


def test_deepnorm_is_a_scaled_shortcut_before_the_norm(sequences):
    block = built(EncoderBlock(HEADS, **deepnorm(8)), sequences)
    unit = block.feed_forward
    f = array(unit.residual(sequences))
    expected = layer_norm(2.0 * sequences + f, *(array(v) for v in unit.postact[0].weights))
    np.testing.assert_allclose(array(unit(sequences)), expected, rtol=1e-4, atol=1e-5)


# ---- configuration, saving, stacks --------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
def test_harness(placement, sequences):
    def make(**kwargs):
        return EncoderBlock(HEADS, placement=placement, dropout=0.1, drop_path=0.1, name="block", **kwargs)

    check_layer(make, sequences, channels_first=False)


@pytest.mark.parametrize("part", [SelfAttention, AttentionUnit, partial(FeedForwardUnit, 16)])
def test_harness_of_the_parts_of_a_block(part, sequences):
    heads = {} if isinstance(part, partial) else {"heads": HEADS}
    check_layer(partial(part, **heads), sequences, channels_first=False)


@pytest.mark.parametrize("shortcut", ["constant_scaling", "scaled_residual(initial=0.1, per_channel=True)"])
def test_harness_of_named_blocks(shortcut, sequences):
    check_layer(lambda **k: PreNormEncoderBlock(HEADS, shortcut=shortcut, **k), sequences, channels_first=False)
    check_layer(lambda **k: PostNormEncoderBlock(HEADS, shortcut=shortcut, **k), sequences, channels_first=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
@pytest.mark.parametrize("remat", [False, True])
def test_rolled_equals_unrolled(placement, remat, sequences):
    stacks = [
        UnitStack(EncoderBlock(HEADS, placement=placement, causal=True), 4, rolled=rolled, remat=remat)
        for rolled in (True, False)
    ]
    for stack in stacks:
        stack.build(sequences.shape)
    for k in range(4):
        stacks[1].set_unit_weights(k, stacks[0].unit_weights(k))
    assert_equal_stacks(*stacks, sequences, 1e-4)


def test_drop_path_varies_in_both_units_of_a_rolled_block():
    stack = UnitStack(EncoderBlock(HEADS, drop_path=0.4), 3, rolled=True, vary={"drop_path": [0.0, 0.2, 0.4]})
    stack.build((None, 6, WIDTH))
    for unit in ("attention", "feed_forward"):
        rates = [float(stack.unit_weights(k)[f"{unit}/drop_path/rate"]) for k in range(3)]
        np.testing.assert_allclose(rates, [0.0, 0.2, 0.4])


def test_saved_stacks_are_equal_to_the_bit(tmp_path, sequences):
    inputs = keras.Input(sequences.shape[1:])
    model = keras.Model(inputs, UnitStack(PostNormEncoderBlock(HEADS), 3, rolled=True)(inputs))
    disturb(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(loaded(sequences)), array(model(sequences)))


@pytest.mark.parametrize("rolled", [True, False])
def test_frozen_blocks_stay_frozen_when_they_are_saved_and_loaded(rolled, tmp_path, sequences):
    inputs = keras.Input(sequences.shape[1:])
    blocks = UnitStack(EncoderBlock(HEADS), 2, rolled=rolled, trainable=False)(inputs)
    block = EncoderBlock(HEADS, name="block", trainable=False)(blocks)
    model = keras.Model(inputs, keras.layers.Dense(1, name="logits")(block))
    model.save(tmp_path / "model.keras")
    for network in (model, keras.models.load_model(tmp_path / "model.keras")):
        assert [variable.path for variable in network.trainable_variables] == ["logits/kernel", "logits/bias"]


@pytest.mark.parametrize("rolled", [True, False])
def test_a_custom_shortcut(rolled, sequences):
    class Half(Shortcut):
        def call(self, x, residual):
            return x / 2

    stack = UnitStack(EncoderBlock(HEADS, shortcut=Half()), 3, rolled=rolled)
    np.testing.assert_allclose(array(stack(sequences)), sequences / 2**6, rtol=1e-6)


# ---- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EncoderBlock(3).build((None, 6, 8)), "3 heads do not divide a width of 8"),
        (lambda: SelfAttention(2).build((None, 8)), "attention expects sequences"),
        (lambda: EncoderBlock(0), "heads is 0"),
        (lambda: EncoderBlock(2, placement="prenorm"), "did you mean 'pre_norm'"),
        (lambda: EncoderBlock(2, shortcut="exclusive_gating"), "made of convolutions"),
        (lambda: EncoderBlock(2, normalization="batch"), "unknown normalization 'batch'"),
        (lambda: EncoderBlock(2, dropout=1.0), "dropout is 1.0"),
        (lambda: deepnorm(0), "depth is 0"),
        (lambda: EncoderBlock(2, gain=float("nan")), "gain is nan"),
        (lambda: EncoderBlock(2, causal="False"), "causal is 'False'; it must be True or False"),
        (lambda: SelfAttention(2, causal="False"), "causal is 'False'"),
        (lambda: SelfAttention(2, use_bias="False"), "use_bias is 'False'"),
        (lambda: FeedForwardUnit(use_bias="False"), "use_bias is 'False'"),
        (lambda: SelfAttention(2, gain=0.0), "gain is 0.0; it must be greater than 0"),
        (lambda: FeedForwardUnit(gain=-1.0), "gain is -1.0"),
        (lambda: SelfAttention(2)(keras.Input((4, None))), "attention expects sequences .* of a known width"),
        (lambda: FeedForwardUnit(name="ffn")(np.ones((2, 8), "float32")), "ffn expects sequences"),
        (lambda: EncoderBlock(2)(np.ones((2, 8), "float32")), "attention expects sequences"),
    ],
)
def test_bad_input(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize("unit", [AttentionUnit(2, dropout=0.5, drop_path=0.3), FeedForwardUnit(dropout=0.5)])
def test_dropout_acts_in_a_stateless_call(unit):
    x = np.random.default_rng(0).normal(size=(4, 5, 8)).astype("float32")
    unit.build(x.shape)
    values = [[v.value for v in vs] for vs in (unit.trainable_variables, unit.non_trainable_variables)]
    outputs = [array(unit.stateless_call(*values, x, training=training)[0]) for training in (True, False)]
    assert not np.allclose(*outputs)
    np.testing.assert_allclose(outputs[1], array(unit(x)), rtol=1e-5, atol=1e-5)


def test_an_activation_with_weights_is_built_trained_and_saved(tmp_path):
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, EncoderBlock(2, activation=keras.layers.PReLU(), name="block")(inputs))
    slopes = [v for v in model.trainable_variables if "p_re_lu" in v.path]
    assert len(slopes) == 1
    slopes[0].assign(np.full(slopes[0].shape, 0.3, "float32"))
    model.save(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    np.testing.assert_array_equal(array(keras.models.load_model(tmp_path / "model.keras")(x)), array(model(x)))


def test_saving_a_block_with_adapters_says_that_they_are_merged(tmp_path):
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, EncoderBlock(2, name="block")(inputs))
    dense = model.get_layer("block").feed_forward.branch[0]
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.ones(dense.lora_kernel_b.shape, "float32"))
    with pytest.warns(UserWarning, match="has adapters .* merged into the kernels, and enable_lora adds new ones"):
        model.save(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(array(loaded(x)), array(model(x)), rtol=1e-5, atol=1e-5)
