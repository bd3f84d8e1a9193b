"""The same analysis on Transformers, where a block is two residual units."""

import keras
import numpy as np
import pytest
from harness import array, disturb

from keras_preact.analysis import (
    Chain,
    check_identity_path,
    forward_signal,
    gradient_signal,
    identity_error,
    inspect_model,
    leave_out,
    path_lengths,
    scaling_factor,
    swap,
    unrolled_sum,
    write_inspection,
)
from keras_preact.analysis.gradients import loss_gradient
from keras_preact.analysis.lesions import _each_left_out
from keras_preact.layers import AttentionUnit, deepnorm
from keras_preact.models import Classification, NextToken, Tokens, transformer

RNG = np.random.default_rng(0)
X = RNG.integers(1, 20, size=(6, 12)).astype("int32")
X[1, 5:] = 0
X[2, 1:] = 0
Y = np.arange(6) % 3
UNITS = [f"encoder_block{block}_{unit}" for block in ("01", "02") for unit in ("attention", "feed_forward")]


def network(placement="pre_norm", head=None, **options):
    options = {"depth": 2, "dim": 16, "heads": 2, "rolled": False, **options}
    model = transformer(Tokens(20, 12), head or Classification(3), placement=placement, **options)
    disturb(model)
    return model


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("placement", ["pre_norm", "post_norm"])
def test_the_chain_computes_what_the_model_computes_padding_and_all(placement, rolled):
    model = network(placement, rolled=rolled)
    chain, x = Chain.of(model).start(X)
    *_, (_, _, last) = chain.passes(x)
    np.testing.assert_allclose(array(chain.after(last.output)), array(model(X)), rtol=1e-5, atol=1e-6)
    assert [link.name for link in chain.links] == UNITS
    np.testing.assert_array_equal(np.asarray(chain.links[0].mask), X != 0)


@pytest.mark.parametrize(("dtype", "arguments"), [("mixed_bfloat16", {}), ("float32", {"training": None})])
def test_a_mask_counts_if_the_first_unit_casts_its_input_or_is_called_with_a_keyword(dtype, arguments):
    """Keras then records the call without the mask, which the tensor still has."""
    tokens = keras.Input((12,), dtype="int32")
    x = keras.layers.Embedding(20, 16, mask_zero=True)(tokens)
    x = AttentionUnit(2, dtype=dtype)(x, **arguments)
    model = keras.Model(tokens, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(x)))
    chain, _ = Chain.of(model).start(X)
    np.testing.assert_array_equal(np.asarray(chain.links[0].mask), X != 0)


@pytest.mark.parametrize("shortcut", ["identity", "scaled_residual(initial=0.5)"])
@pytest.mark.parametrize("placement", ["pre_norm", "sandwich", "no_norm"])
def test_eq_4_holds_without_a_norm_after_the_addition(placement, shortcut):
    assert max(entry.error for entry in unrolled_sum(network(placement, shortcut=shortcut), X)) < 1e-6
    assert unrolled_sum(network("post_norm"), X)[0].error > 0.1


def test_the_direct_gradient_comes_back_unchanged_in_pre_norm_alone():
    pre, post = (gradient_signal(network(placement), X, Y) for placement in ("pre_norm", "post_norm"))
    assert [entry.unit for entry in pre] == [*UNITS, "output"]
    assert {entry.direct for entry in pre} == {pre[-1].norm}
    assert post[0].direct != pytest.approx(post[-1].norm, rel=1e-2)


def test_the_gradient_is_that_of_the_whole_model():
    """Against Keras's own gradient of the embedding's output, by a small step along it."""
    model = network()
    signal = gradient_signal(model, X, Y)
    chain, x = Chain.of(model).start(X, True)
    passes = list(chain.passes(x, True))
    gradient = loss_gradient(chain, passes[-1][2].output, Y, True)
    for link, unit_input, _ in reversed(passes):
        gradient = link.gradient(unit_input, gradient, True)

    def loss(x):
        *_, (_, _, last) = chain.passes(x, True)
        losses = keras.ops.sparse_categorical_crossentropy(Y, chain.after(last.output, True), from_logits=True)
        return float(keras.ops.mean(losses))

    direction = array(gradient) / signal[0].norm
    step = 1e-2
    slope = (loss(array(x) + step * direction) - loss(array(x) - step * direction)) / (2 * step)
    assert slope == pytest.approx(signal[0].norm, rel=2e-2)


def test_what_is_padding_has_no_gradient_on_others():
    model = network("post_norm")
    chain, x = Chain.of(model).start(X)
    passes = list(chain.passes(x))
    gradient = loss_gradient(chain, passes[-1][2].output, Y, False)
    for link, unit_input, _ in reversed(passes):
        gradient = link.gradient(unit_input, gradient)
    gradient = array(gradient)
    assert not gradient[X == 0].any()
    assert np.abs(gradient[X != 0]).max() > 0


def test_the_signal_is_that_of_the_words_whatever_stands_for_padding():
    model = network()
    before = forward_signal(model, X)
    x = array(Chain.of(model).start(X, True)[1])
    assert before[0].x.variance == pytest.approx(x[X != 0].var(), rel=1e-5)
    assert before[0].x.norm == pytest.approx(np.sqrt((x[X != 0] ** 2).sum() / 6), rel=1e-5)
    vectors = model.get_layer("embedding").embeddings
    vectors.assign(np.concatenate([array(vectors)[:1] + 100, array(vectors)[1:]]))
    for old, new in zip(before, forward_signal(model, X), strict=True):
        assert (new.x.variance, new.residual.norm) == pytest.approx((old.x.variance, old.residual.norm), rel=1e-5)
        assert new.identity_share == pytest.approx(old.identity_share, rel=1e-5)


def test_eq_4_and_eq_7_leave_out_padding():
    """The results are those of the words alone, in sequences without padding."""
    words = np.where(X[:1] == 0, 1, X[:1])[:, :7]
    padded = np.concatenate([words, np.zeros((1, 5), "int32")], axis=1)
    long, short = (
        transformer(Tokens(20, steps), Classification(3), depth=2, dim=16, heads=2, placement="post_norm")
        for steps in (12, 7)
    )
    disturb(long)
    for ours, theirs in zip(short.weights, long.weights, strict=True):
        ours.assign(theirs if ours.shape == theirs.shape else array(theirs)[:7])  # the embeddings of positions
    for measure, fields in ((unrolled_sum, ["error"]), (scaling_factor, ["forward", "backward"])):
        for entry, alone in zip(measure(long, padded), measure(short, words), strict=True):
            for field in fields:
                assert getattr(entry, field) == pytest.approx(getattr(alone, field), rel=1e-4)


def test_post_norm_without_a_norm_keeps_the_identity_and_the_linter_agrees():
    model = network("post_norm", normalization="none")
    assert check_identity_path(model).is_clear
    assert all(link.unit.keeps_identity for link in Chain.of(model).links)


def test_signal_lesions_swaps_and_paths():
    model = network()
    signal = forward_signal(model, X)
    assert [entry.unit for entry in signal] == UNITS
    assert all(0 < entry.identity_share < 1 for entry in signal)
    assert [lesion.unit for lesion in leave_out(model, X, Y)] == ["none", *UNITS]
    assert swap(model, X, Y, swaps=[0])[0].order_kept == 1
    assert sum(entry.share for entry in path_lengths(model, X, Y, samples=2)) == pytest.approx(1)


def test_a_language_model_too():
    model = network(head=NextToken(20))
    signal = gradient_signal(model, X[:1], RNG.integers(0, 20, size=(1, 12)))
    assert all(entry.norm > 0 for entry in signal)


def test_deepnorm_scales_the_shortcut():
    model = network(**deepnorm(2))
    scaled = network("pre_norm", shortcut="constant_scaling(shortcut=0.9, residual=1)")
    factors = scaling_factor(scaled, X)
    assert factors[0].backward == pytest.approx(0.9**4, rel=1e-4)
    assert "scaled shortcut: the factor is 1.41421" in str(check_identity_path(model))


@pytest.mark.parametrize("rolled", [False, True])
def test_the_linter_passes_pre_norm_and_names_the_norm_of_post_norm(rolled):
    assert check_identity_path(network("pre_norm", rolled=rolled)).is_clear
    found = check_identity_path(network("post_norm", rolled=rolled))
    first = found.units[0]
    assert first.unit == ("encoder_stack_attention" if rolled else "encoder_block01_attention")
    assert first.faults == ("after the addition: LayerNormalization; f is not the identity",)
    assert all(unit.faults for unit in found.units)


def test_the_linter_reads_others_transformers():
    """Written with Keras's own layers, in both orders."""

    def build(pre_norm):
        x = inputs = keras.Input((12, 16))
        for _ in range(2):
            attention = keras.layers.MultiHeadAttention(2, 8)
            dense = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(16)])
            for branch in (lambda y, a=attention: a(y, y), dense):
                norm = keras.layers.LayerNormalization()
                x = keras.layers.Add()([x, branch(norm(x))]) if pre_norm else norm(keras.layers.Add()([x, branch(x)]))
        return keras.Model(inputs, x)

    assert check_identity_path(build(pre_norm=True)).is_clear
    faults = [fault for unit in check_identity_path(build(pre_norm=False)).units for fault in unit.faults]
    assert len(faults) == 3 and all("LayerNormalization; f is not the identity" in fault for fault in faults)


def test_identity_error():
    units = {placement: AttentionUnit(2, placement=placement) for placement in ("pre_norm", "post_norm")}
    for unit in units.values():
        unit.build((None, 6, 8))
    assert identity_error(units["pre_norm"]) == 0
    assert identity_error(units["post_norm"]) > 0.01


def test_units_left_out_in_one_batch_keep_the_padding_of_their_sequences():
    chain, x = Chain.of(network()).start(X)
    passes = list(chain.passes(x))
    count = len(passes)
    outputs = chain.for_copies(count).after(_each_left_out(passes, range(count)))
    for left_out, found in zip(chain.links, np.split(array(outputs), count), strict=True):
        x = passes[0][1]
        for link in chain.links:
            residual = link.terms(x).residual
            x = link.along_shortcut(x, 0 * residual if link is left_out else residual)
        np.testing.assert_allclose(found, array(chain.after(x)), rtol=1e-4, atol=1e-4)


def test_padding_counts_neither_in_the_loss_nor_in_the_error_of_the_next_token():
    model = network(head=NextToken())
    labels = RNG.integers(0, 20, X.shape)
    others = np.where(X == 0, (labels + 1) % 20, labels)
    for function in (gradient_signal, path_lengths, leave_out):
        assert function(model, X, labels) == function(model, X, others)
    errors = np.argmax(array(model(X)), -1) != labels
    assert leave_out(model, X, labels)[0].error == pytest.approx(100 * errors[X != 0].mean())

    # A step along the gradient at the output changes Keras's own masked loss as much as it says.
    chain, x = Chain.of(model).start(X)
    *_, (_, _, last) = chain.passes(x)
    gradient = array(loss_gradient(chain, last.output, labels, False))

    def loss(x):
        mean = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return float(mean(labels, chain.after(x), sample_weight=(X != 0) * (X.size / (X != 0).sum())))

    step = 1e-2 * gradient / np.linalg.norm(gradient)
    slope = (loss(array(last.output) + step) - loss(array(last.output) - step)) / 2e-2
    assert slope == pytest.approx(np.linalg.norm(gradient), rel=1e-2)


def test_inspection(tmp_path):
    page = write_inspection(inspect_model(network(), X, Y, "six sequences"), tmp_path).read_text()
    assert "block02_feed_forward" in page and "nothing on the identity path" in page
