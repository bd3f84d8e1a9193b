"""Units left out and swapped, and paths counted."""

import keras
import numpy as np
import pytest
from harness import disturb
from keras import ops

from keras_preact import InputError
from keras_preact.analysis import Chain, gradient_signal, leave_out, lesions, path_lengths, swap
from keras_preact.analysis.lesions import _each_left_out
from keras_preact.analysis.lesions import _run as run
from keras_preact.analysis.propagation import as_float64
from keras_preact.models import cifar_resnet

RNG = np.random.default_rng(1)
X = RNG.normal(size=(8, 16, 16, 3)).astype("float32")
Y = np.arange(8)


def network(depth=14, *arguments, **options):
    return cifar_resnet(depth, *arguments, input_shape=(16, 16, 3), **options)


def test_leaving_out_a_unit_whose_branch_is_zero_changes_nothing():
    model = network(zero_init_residual=True)
    labels = np.argmax(model.predict(X, verbose=0), 1)
    labels[0] = (labels[0] + 1) % 10
    assert [lesion.error for lesion in leave_out(model, X, labels)] == [12.5] * 7


def test_leaving_out_a_unit_is_leaving_out_its_branch():
    model = network()
    disturb(model)
    kernel = model.get_layer("stage2_unit02").branch[-1].kernel
    kernel.assign(0 * kernel)
    labels = np.argmax(model.predict(X, verbose=0), 1)
    errors = {lesion.unit: lesion.error for lesion in leave_out(model, X, labels)}
    assert errors["none"] == errors["stage2_unit02"] == 0


def test_units_left_out_in_one_batch_are_left_out_each():
    model = network(20)
    disturb(model)
    chain, x = Chain.of(model).start(X)
    passes = list(chain.passes(x))
    group = range(2, 6)
    found = np.split(as_float64(_each_left_out(passes, group)), len(group))
    for place, output in zip(group, found, strict=True):
        link, x, terms = passes[place]
        x = link.along_shortcut(x, ops.zeros_like(terms.residual))
        for link in chain.links[place + 1 :]:
            x = link(x)
        np.testing.assert_allclose(output, as_float64(x), rtol=1e-4, atol=1e-4)
    assert np.abs(found[0] - found[1]).max() > 0.01


def test_groups_of_lesions_follow_each_other(monkeypatch):
    model = network(20)
    disturb(model)
    expected = leave_out(model, X, Y)
    monkeypatch.setattr(lesions, "_LESIONS_AT_ONCE", 4)
    assert leave_out(model, X, Y) == expected and len(expected) == 10


def test_labels_in_a_column_are_taken_and_others_refused():
    model, labels = network(), np.arange(len(X)) % 3
    errors = [[lesion.error for lesion in leave_out(model, X, given)] for given in (labels, labels[:, None])]
    assert errors[0] == errors[1]
    with pytest.raises(InputError, match=r"the labels have shape .*; pass one label for each output"):
        leave_out(model, X, labels[:-1])
    with pytest.raises(InputError, match=r"label 10 is outside \[0, 10\); pass class numbers from 0 to 9"):
        leave_out(model, X, labels + 8)
    with pytest.raises(InputError, match="has one output, not a score for each class"):
        leave_out(cifar_resnet(8, classes=1, input_shape=X.shape[1:]), X, labels % 2)


def test_swaps_keep_to_units_of_one_shape(monkeypatch):
    orders = []
    monkeypatch.setattr(lesions, "_run", lambda links, x: orders.append([link.name for link in links]) or run(links, x))
    model = network(26)
    disturb(model)
    labels = np.argmax(model.predict(X, verbose=0), 1)
    swapped = swap(model, X, labels, swaps=[0, 1, 20])
    assert swapped[0].error == 0 and swapped[0].order_kept == 1
    assert swapped[1].order_kept < 1
    assert orders[1] != orders[0] == sorted(orders[1])
    with pytest.raises(InputError, match="no two units of equal shape"):
        swap(network(8), X, Y)


def test_kendalls_tau_counts_pairs_within_a_stage():
    assert lesions._kendall_tau([1, 0, 2, 3], [[0, 1, 2], [3]]) == pytest.approx(1 / 3)
    assert lesions._kendall_tau([2, 1, 0], [[0, 1, 2]]) == -1


@pytest.mark.parametrize(
    "measure", [lambda: path_lengths(network(8), X, Y, samples=0), lambda: swap(network(14), X, Y, [-1])]
)
def test_bad_numbers_of_paths_and_swaps_are_refused(measure):
    with pytest.raises(InputError, match=r"is (0|-1); it must be an integer of at least"):
        measure()


def test_paths_are_counted_by_the_binomial_distribution():
    lengths = path_lengths(network(), X, Y, samples=2)
    assert [entry.length for entry in lengths] == list(range(7))
    np.testing.assert_allclose([64 * entry.paths for entry in lengths], [1, 6, 15, 20, 15, 6, 1])
    assert sum(entry.share for entry in lengths) == pytest.approx(1)


def test_the_paths_sum_to_the_gradient():
    """With one unit there are two paths, and F is all but linear in the gradient: direct + through F = whole."""
    from keras_preact.analysis.chain import Chain
    from keras_preact.analysis.gradients import loss_gradient
    from keras_preact.analysis.propagation import as_float64

    model = network(8)
    disturb(model)
    chain, start = Chain.of(model).start(X, True)
    passes = list(chain.passes(start, True))
    upstream = loss_gradient(chain, passes[-1][2].output, Y, True)
    link, x, terms = passes[-1]
    parts = [as_float64(back(x, terms, upstream, True)) for back in (link.direct_gradient, link.branch_gradient)]
    np.testing.assert_allclose(sum(parts), as_float64(link.gradient(x, upstream, True)), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_where_the_loss_has_no_gradient_no_path_has_a_share(dtype):
    model = network(8, dtype=dtype)
    model.get_layer("logits").kernel.assign(ops.zeros((64, 10)))
    assert [entry.share for entry in path_lengths(model, X, Y, samples=1)] == [0, 0, 0, 0]


def test_paths_of_a_network_without_a_default_loss_need_one():
    model = network(8)
    model = keras.Model(model.input, ops.sigmoid(model.output))
    with pytest.raises(InputError, match="pass the training loss to `gradient_signal` or `path_lengths` as loss="):
        path_lengths(model, X, Y, samples=1)
    lengths = path_lengths(model, X, Y, samples=1, loss=lambda labels, outputs: ops.mean(outputs))
    assert sum(entry.share for entry in lengths) == pytest.approx(1)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_without_residuals_the_shortest_path_carries_the_whole_gradient(dtype):
    model = network(8, zero_init_residual=True, dtype=dtype)
    lengths = path_lengths(model, X, Y, samples=1)
    assert lengths[0].share == 1
    assert lengths[0].norm == pytest.approx(gradient_signal(model, X, Y)[0].norm, rel=1e-2)
