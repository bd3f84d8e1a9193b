"""The table that `info` prints."""

import keras

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
