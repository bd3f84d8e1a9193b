"""The table that `info` prints."""

import math

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


def test_a_backbone_inside_another_model_has_its_stages():
    inputs = keras.Input((32, 32, 3))
    backbone = cifar_resnet(8, include_top=False, pooling="avg")
    model = keras.Model(inputs, keras.layers.Dense(10)(backbone(inputs) + backbone(-inputs)))
    *rows, total = summarize(model).rows
    assert [row.name for row in rows] == ["stem", "stage1", "stage2", "stage3", "head"]
    assert [row.units for row in rows[1:4]] == [2, 2, 2]
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    assert sum(row.parameters for row in rows) == total.parameters == parameters
    assert total.multiply_adds == f"{multiply_adds(model) / 1e6:,.2f} M"


def test_what_is_not_counted_is_named():
    class Custom(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

        def call(self, x):
            return x @ self.kernel

    inputs = keras.Input((1000,))
    summary = summarize(keras.Sequential([inputs, keras.layers.Dense(1000), Custom()]))
    assert summary.rows[-1].multiply_adds == "1.00 M + ?" and summary.uncounted == ("Custom",)
    open_size = keras.Input((None, None, 3))
    assert summarize(keras.Model(open_size, keras.layers.Conv2D(4, 3)(open_size))).rows[-1].multiply_adds == "-"


def test_models_of_every_kind_of_graph():
    """A Sequential model, and a model of two inputs and outputs that calls it twice."""
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten()])
    summary = summarize(model)
    assert (summary.title, summary.rows[-1].output) == (f"{model.name}, images of 8 × 8 × 3", "144")
    one, other = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    two = keras.Model([one, other], [keras.layers.Add()([model(one), model(other)]), model(one)])
    assert summarize(two).rows[-1].output == "144, 144"


def test_a_model_without_shapes_is_refused():
    with pytest.raises(InputError, match="is not built; call it"):
        summarize(keras.Sequential([keras.layers.Dense(2)]))
