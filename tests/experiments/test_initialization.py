"""Gradient norms before training: the fit is a fit, and the record says what was measured."""

import json
import signal

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.experiments import initial_gradients, keep, record_initial_gradients, write_results
from keras_preact.experiments.initialization import slope
from keras_preact.training import RunFolder

SMALL = {"depths": (2, 4, 8), "seeds": 2, "dim": 16, "batch": 8}


def test_the_slope_and_its_error_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    y = 3 - 0.5 * x + 0.1 * rng.normal(size=20)
    found, error = slope(list(zip(x, y, strict=True)))
    (expected, _), covariance = np.polyfit(x, y, 1, cov="unscaled")
    residual = y - np.polyval(np.polyfit(x, y, 1), x)
    assert found == pytest.approx(expected)
    assert error == pytest.approx(np.sqrt(covariance[0, 0] * (residual**2).sum() / 18))


@pytest.mark.thorough
def test_pre_norm_gradients_fall_with_depth_and_post_norm_s_do_not():
    exponents = {order: initial_gradients(order, **SMALL).exponent for order in ("pre_norm", "post_norm")}
    assert exponents["pre_norm"] < -0.15 and exponents["pre_norm"] < exponents["post_norm"] - 0.2


@pytest.mark.thorough
def test_it_is_the_gradient_by_finite_differences():
    from keras_preact.data import bundled_characters
    from keras_preact.experiments import initialization as module

    data = bundled_characters()
    x, y = data.train.batch(np.arange(2))
    model = module._theorem_model("pre_norm", 2, 16, len(data.vocabulary), data.length)
    kernel = module._last_kernel(model, 2)
    norm = module._gradient_norm(model, kernel, x, y)
    values = np.array(keras.ops.convert_to_numpy(kernel))  # a copy, on every backend
    rng, step, slopes = np.random.default_rng(0), 1e-2, []

    def loss(weights):
        kernel.assign(weights)
        logits = keras.ops.convert_to_numpy(model(x)).astype("float64")
        correct = np.take_along_axis(logits, y[..., None], -1)[..., 0]
        return float(np.mean(np.log(np.exp(logits).sum(-1)) - correct))

    directions = rng.normal(size=(60, *values.shape))
    for direction in directions:
        slopes.append((loss(values + step * direction) - loss(values - step * direction)) / (2 * step))
    # A gradient's slope along random unit normal directions has its norm for a standard deviation.
    assert np.sqrt(np.mean(np.square(slopes))) == pytest.approx(norm, rel=0.3)


@pytest.mark.thorough
def test_the_record_and_the_page(tmp_path):
    found = record_initial_gradients(tmp_path / "results" / "init", **SMALL)
    record = json.loads((tmp_path / "results/init/run.json").read_text())
    assert record["kind"] == "initialization" and record["status"] == "finished"
    assert [entry["order"] for entry in record["result"]] == [entry.order for entry in found]
    page = write_results(tmp_path / "results").read_text()
    assert f"{found[1].exponent:.2f} ± {found[1].standard_error:.2f} | -0.5 |" in page
    with pytest.raises(InputError, match="exists"):
        record_initial_gradients(tmp_path / "results" / "init", **SMALL)


def test_a_measurement_that_stops_is_interrupted_and_not_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "keras_preact.experiments.initialization.initial_gradients",
        lambda order, **options: signal.raise_signal(signal.SIGTERM),
    )
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)  # the command's own ends the process at once
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped by SIGTERM") as stop:
            record_initial_gradients(tmp_path / "init")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.value.signal_number == signal.SIGTERM  # of the command's exit status
    assert json.loads((tmp_path / "init/run.json").read_text())["status"] == "interrupted"
    assert "Transformers before training" not in write_results(tmp_path).read_text()
    with pytest.raises(InputError, match="measure it again"):
        keep(RunFolder(tmp_path / "init"), tmp_path / "results")


def test_two_depths_have_no_error_of_a_fit():
    with pytest.raises(InputError, match="at least three different ones"):
        initial_gradients("pre_norm", depths=(2, 4, 4))
