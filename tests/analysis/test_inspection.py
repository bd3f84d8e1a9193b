"""The report of a network holds what was measured, and nothing of this machine."""

import dataclasses
import json
import math

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.analysis import dead_fraction, forward_signal, inspect_model, read_inspection, write_inspection
from keras_preact.models import cifar_resnet
from keras_preact.plots import profiles_figure

X = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
Y = np.arange(4)


@pytest.mark.parametrize("placement", ["full_preactivation", "original"])
def test_the_report_holds_what_was_measured(placement, tmp_path):
    model = cifar_resnet(8, placement, input_shape=(16, 16, 3))
    found = inspect_model(model, X, Y, "4 images of noise", "as found")
    page = write_inspection(found, str(tmp_path / "report"))
    data = json.loads((tmp_path / "report" / "inspection.json").read_text())
    signal = forward_signal(model, X)
    assert found.dead == dead_fraction(model, X)  # by the batch's statistics, as the page says
    assert data["forward"][1]["x"]["variance"] == pytest.approx(signal[1].x.variance)
    assert [entry["unit"] for entry in data["gradient"]][-1] == "output"
    text = page.read_text()
    assert text.count("<img alt=") == 3 and "4 images of noise" in text
    assert ("nothing on the identity path" in text) == (placement == "full_preactivation")
    assert ("No unit ends in a ReLU" in text) == (placement == "full_preactivation")
    assert str(tmp_path) not in text
    again = read_inspection(tmp_path / "report")
    assert (again.model, again.state) == (model.name, "as found")
    assert again.forward[0].x.norm == pytest.approx(found.forward[0].x.norm, rel=1e-6)
    assert [entry.error for entry in again.lesions] == pytest.approx([entry.error for entry in found.lesions])


def test_no_units_are_left_out_of_an_untrained_network(tmp_path):
    """Its errors are those of guessing, whatever is left out."""
    found = inspect_model(cifar_resnet(8, input_shape=(16, 16, 3)), X, Y, "noise")
    assert found.state == "at initialization" and found.lesions == []
    text = write_inspection(found, tmp_path / "report").read_text()
    assert text.count("<img alt=") == 2 and "left out" not in text
    assert inspect_model(cifar_resnet(8, input_shape=(16, 16, 3)), X, Y, "noise", "trained", False).lesions == []
    assert read_inspection(tmp_path / "report").lesions == []


def test_ratios_of_an_inspection_are_those_of_the_paper():
    """Eq. (5): along an identity path the direct term of the gradient is ∂E/∂x_L itself; ReLUs on it take some away."""
    inspections = [
        inspect_model(cifar_resnet(20, placement, input_shape=(16, 16, 3)), X, Y, "noise")
        for placement in ("full_preactivation", "original")
    ]
    assert inspections[0].direct_ratio == 1 and inspections[1].direct_ratio < 0.9
    assert inspections[0].unrolled_error < 1e-6 and inspections[1].unrolled_error > 0.1


def test_where_every_unit_changes_the_shape_nothing_is_said_of_the_path(tmp_path):
    """With one unit a stage; and logits that do not depend on the input have no gradient."""
    model = cifar_resnet(8, "original", input_shape=(16, 16, 3))
    model.get_layer("logits").kernel.assign(np.zeros((64, 10)))
    found = inspect_model(model, X, Y, "noise")
    found = dataclasses.replace(found, sums=[entry for entry in found.sums if entry.stage == 3])
    assert all(map(math.isnan, (found.direct_ratio, found.unrolled_error, found.gradient_ratio)))
    text = write_inspection(found, tmp_path / "report").read_text()
    assert "No unit passes x on" in text and "deviates" not in text
    profiles_figure({"net": (found.forward, found.gradient)})


def test_an_inspection_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read as an inspection"):
        read_inspection(tmp_path)
    (tmp_path / "inspection.json").write_text('{"forward": [{"x": {}}]}')
    with pytest.raises(InputError, match="run `keras-preact inspect` again"):
        read_inspection(tmp_path)


def test_nothing_is_written_for_a_model_without_units(tmp_path):
    import keras

    inputs = keras.Input((4,))
    with pytest.raises(InputError, match="has no residual units"):
        inspect_model(keras.Model(inputs, keras.layers.Dense(2)(inputs)), X, Y, "")


def test_a_nan_in_any_stage_is_not_hidden_by_the_others():
    network = cifar_resnet(20, input_shape=X.shape[1:])
    kernel = network.get_layer("stage3_unit02").branch[-1].kernel
    kernel.assign(kernel * float("nan"))
    assert math.isnan(inspect_model(network, X, Y, "noise").unrolled_error)
