"""Cross-entropy with smoothed labels."""

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.losses import SmoothedCrossEntropy

LOGITS = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
LABELS = np.array([0, 4, 2, 2, 1, 3])


def by_hand(labels, logits, smoothing):
    """The cross-entropy between (1 - ε) onehot + ε / K and softmax(logits)."""
    wanted = (1 - smoothing) * np.eye(logits.shape[-1])[labels] + smoothing / logits.shape[-1]
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -(wanted * log_softmax).sum(-1).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:, None], LABELS.astype("uint8"), LABELS.astype("float32")])
def test_it_is_the_cross_entropy_with_smoothed_labels(smoothing, labels):
    loss = SmoothedCrossEntropy(smoothing)
    assert float(loss(labels, LOGITS)) == pytest.approx(by_hand(LABELS, LOGITS, smoothing), rel=1e-5)


def test_without_smoothing_it_is_kerass_sparse_loss():
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert float(SmoothedCrossEntropy(0.0)(LABELS, LOGITS)) == pytest.approx(float(sparse(LABELS, LOGITS)), rel=1e-6)


def test_labels_of_sequences():
    logits, labels = LOGITS.reshape(2, 3, 5), LABELS.reshape(2, 3)
    assert SmoothedCrossEntropy().call(labels, keras.ops.array(logits)).shape == (2, 3)
    assert float(SmoothedCrossEntropy()(labels, logits)) == pytest.approx(by_hand(LABELS, LOGITS, 0.1), rel=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow has shapes that are unknown")
@pytest.mark.parametrize("shape", [[None], [None, 1]])
def test_the_number_of_classes_may_be_unknown_until_the_step_runs(shape):
    tf, loss = pytest.importorskip("tensorflow"), SmoothedCrossEntropy()
    specs = [tf.TensorSpec(shape, tf.int64), tf.TensorSpec([None, None], tf.float32)]
    step = tf.function(lambda labels, logits: loss(labels, logits), input_signature=specs)
    labels = LABELS.reshape([-1, *shape[1:]])
    assert float(step(labels, LOGITS)) == pytest.approx(by_hand(LABELS, LOGITS, 0.1), rel=1e-5)
    unknown = tf.function(lambda labels, logits: loss(labels, logits), input_signature=[specs[1], specs[1]])
    with pytest.raises(Exception, match=r"labels of shape \(None, None\) may be one-hot; pass class numbers of shape"):
        unknown(LOGITS, LOGITS)


def test_the_smallest_loss_is_at_the_smoothed_probabilities_not_at_certainty():
    def at(probability):
        rest = (1 - probability) / 4
        return float(SmoothedCrossEntropy(0.1)([0], np.log([[probability, *[rest] * 4]]).astype("float32")))

    assert at(0.92) < min(at(0.9), at(0.94), at(0.999))


def test_a_model_trained_with_it_is_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5)])
    model.compile("sgd", SmoothedCrossEntropy(0.2))
    model.fit(np.ones((6, 4), "float32"), LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == model.loss.get_config() and loaded.loss.label_smoothing == 0.2
    np.testing.assert_array_equal(array(loaded(np.ones((1, 4)))), array(model(np.ones((1, 4)))))


@pytest.mark.parametrize("bad", [-0.1, 1, 1.5, float("nan"), "0.1", None, True])
def test_a_smoothing_out_of_range_is_refused(bad):
    with pytest.raises(InputError, match="label_smoothing"):
        SmoothedCrossEntropy(bad)


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_outside_the_classes_is_no_cheap_example(label):
    losses = array(SmoothedCrossEntropy().call([label, 4], keras.ops.array(LOGITS[:2])))
    assert np.isnan(losses[0]) and np.isfinite(losses[1])


def test_one_hot_labels_are_refused():
    with pytest.raises(InputError, match=r"labels of shape \(2, 5\) may be one-hot; pass class numbers"):
        SmoothedCrossEntropy()(np.eye(5)[:2], LOGITS[:2])
