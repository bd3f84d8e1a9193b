"""The report of a network holds what was measured, and nothing of this machine."""

import json

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.analysis import forward_signal, inspect_model, write_inspection
from keras_preact.models import cifar_resnet

X = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
Y = np.arange(4)


@pytest.mark.parametrize("placement", ["full_preactivation", "original"])
def test_the_report_holds_what_was_measured(placement, tmp_path):
    model = cifar_resnet(8, placement, input_shape=(16, 16, 3))
    page = write_inspection(inspect_model(model, X, Y, "4 images of noise"), tmp_path / "report")
    data = json.loads((tmp_path / "report" / "inspection.json").read_text())
    signal = forward_signal(model, X)
    assert data["forward"][1]["x"]["variance"] == pytest.approx(signal[1].x.variance)
    assert [entry["unit"] for entry in data["gradient"]][-1] == "output"
    text = page.read_text()
    assert text.count("<img alt=") == 3 and "4 images of noise" in text
    assert ("nothing on the identity path" in text) == (placement == "full_preactivation")
    assert ("No unit ends in a ReLU" in text) == (placement == "full_preactivation")
    assert str(tmp_path) not in text


def test_nothing_is_written_for_a_model_without_units(tmp_path):
    import keras

    inputs = keras.Input((4,))
    with pytest.raises(InputError, match="has no residual units"):
        inspect_model(keras.Model(inputs, keras.layers.Dense(2)(inputs)), X, Y, "")
