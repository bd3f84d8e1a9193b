"""The table that `info` prints."""

import keras
import pytest

from keras_preact import InputError
from keras_preact.models import cifar_resnet, imagenet_resnet, multiply_adds
from keras_preact.models.summary import summarize


def test_rows_add_up_to_the_total():
    model = imagenet_resnet(18, input_shape=(64, 64, 3), classes=10)
    *rows, total = summarize(model).rows
    assert [row.name for row in rows] == ["stem", "stage1", "stage2", "stage3", "stage4", "head"]
    assert [row.units for row in rows[1:5]] == [2, 2, 2, 2]
    assert sum(row.parameters for row in rows) == total.parameters
    assert total.multiply_adds == f"{multiply_adds(model) / 1e6:,.2f} M"


def test_open_sizes_are_question_marks():
    rows = summarize(cifar_resnet(8, include_top=False)).rows
    assert (rows[0].output, rows[-1].multiply_adds) == ("? × ? × 16", "-")


def test_a_network_that_is_not_ours():
    inputs = keras.Input((8, 8, 3))
    rows = summarize(keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs))).rows
    assert [row.name for row in rows] == ["stem", "total"]


def test_models_of_every_kind_of_graph():
    """A Sequential model, and several inputs and outputs of a layer that is called twice."""
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten()])
    summary = summarize(model)
    assert (summary.title, summary.rows[-1].output) == (f"{model.name}, images of 8 × 8 × 3", "144")
    one, other = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    two = keras.Model([one, other], [keras.layers.Add()([model(one), model(other)]), model(one)])
    assert summarize(two).rows[-1].output == "144, 144"


def test_a_model_without_shapes_is_refused():
    with pytest.raises(InputError, match="has no shapes yet"):
        summarize(keras.Sequential([keras.layers.Dense(2)]))
