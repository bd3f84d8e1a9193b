"""Multiply-adds of layers, compared with formulas and with TensorFlow's count of floating-point operations."""

import math

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_preact import InputError
from keras_preact.layers import PreActivation, PreNormEncoderBlock
from keras_preact.layers.products import layer_multiply_adds, sequence_multiply_adds
from keras_preact.models import cifar_resnet, imagenet_resnet, multiply_adds


def test_multiply_adds_of_a_sequence_of_layers():
    row = [layers.Conv2D(16, 3, padding="same"), PreActivation(), layers.Flatten(), layers.Dense(10)]
    keras.Sequential([keras.Input((8, 8, 4)), *row])
    assert sequence_multiply_adds(row, (None, 8, 8, 4)) == 9 * 4 * 16 * 64 + 1024 * 10


def one_layer(layer, *shapes):
    inputs = [keras.Input(shape) for shape in shapes]
    return keras.Model(inputs, layer(*inputs))


IMAGE, SEQUENCE, VOLUME = (8, 6, 4), (10, 4), (5, 6, 7, 2)
BY_HAND = {
    "Conv1D": (layers.Conv1D(3, 5, padding="same"), [SEQUENCE], 10 * 5 * 4 * 3),
    "Conv2D": (layers.Conv2D(3, 3), [IMAGE], 6 * 4 * 9 * 4 * 3),
    "Conv2D, strided, grouped": (layers.Conv2D(6, 3, 2, "same", groups=2), [IMAGE], 4 * 3 * 9 * 2 * 6),
    "Conv2D, dilated": (layers.Conv2D(3, 3, padding="same", dilation_rate=2), [IMAGE], 48 * 9 * 4 * 3),
    "Conv3D": (layers.Conv3D(3, 2), [VOLUME], 4 * 5 * 6 * 8 * 2 * 3),
    "Conv1DTranspose": (layers.Conv1DTranspose(3, 4, 2, "same"), [SEQUENCE], 10 * 4 * 4 * 3),
    "Conv2DTranspose": (layers.Conv2DTranspose(3, 3, 2, "same"), [IMAGE], 48 * 9 * 4 * 3),
    "Conv3DTranspose": (layers.Conv3DTranspose(3, 2), [VOLUME], 210 * 8 * 2 * 3),
    "DepthwiseConv1D": (layers.DepthwiseConv1D(3, padding="same"), [SEQUENCE], 10 * 3 * 4),
    "DepthwiseConv2D": (layers.DepthwiseConv2D(3, depth_multiplier=2), [IMAGE], 6 * 4 * 9 * 8),
    "SeparableConv1D": (layers.SeparableConv1D(5, 3, padding="same"), [SEQUENCE], 10 * (3 * 4 + 4 * 5)),
    "SeparableConv2D": (layers.SeparableConv2D(5, 3, 2, "same"), [IMAGE], 12 * (9 * 4 + 4 * 5)),
    "Dense": (layers.Dense(3), [SEQUENCE], 10 * 4 * 3),
    "EinsumDense": (layers.EinsumDense("abc,cde->abde", (None, 2, 5)), [SEQUENCE], 10 * 4 * 2 * 5),
    "EinsumDense with dots": (layers.EinsumDense("...x,xy->...y", 5), [IMAGE], 48 * 4 * 5),
    "MultiHeadAttention": (
        layers.MultiHeadAttention(2, 3, value_dim=5),
        [SEQUENCE, (7, 4)],
        (10 + 7) * 4 * 6 + 7 * 4 * 10 + 10 * 7 * 2 * (3 + 5) + 10 * 10 * 4,
    ),
    "MultiHeadAttention, one axis": (
        layers.MultiHeadAttention(1, 3, attention_axes=(2,)),
        [IMAGE, IMAGE],
        4 * 48 * 4 * 3 + 8 * 6 * 6 * 2 * 3,
    ),
    "GroupQueryAttention": (
        layers.GroupQueryAttention(3, 4, 2),
        [SEQUENCE, SEQUENCE],
        10 * 4 * (12 + 6 + 6 + 12) + 2 * 100 * 12,
    ),
    "SimpleRNN": (layers.SimpleRNN(5), [SEQUENCE], 10 * 5 * (4 + 5)),
    "GRU": (layers.GRU(5, return_sequences=True), [SEQUENCE], 10 * 3 * 5 * (4 + 5)),
    "LSTM, backwards too": (layers.Bidirectional(layers.LSTM(5)), [SEQUENCE], 2 * 10 * 4 * 5 * (4 + 5)),
    "RNN of two cells": (
        layers.RNN([layers.GRUCell(5), layers.SimpleRNNCell(3)]),
        [SEQUENCE],
        10 * (3 * 5 * 9 + 3 * 8),
    ),
    "ConvLSTM1D": (layers.ConvLSTM1D(3, 3, padding="same"), [(6, 10, 4)], 6 * 10 * 3 * 4 * 3 * (4 + 3)),
    "TimeDistributed": (layers.TimeDistributed(layers.Conv2D(3, 3)), [(5, *IMAGE)], 5 * 24 * 9 * 4 * 3),
    "SpectralNormalization": (layers.SpectralNormalization(layers.Dense(3)), [SEQUENCE], 10 * 4 * 3),
    "Embedding": (layers.Embedding(100, 8), [(10,)], 0),
    "LayerNormalization": (layers.LayerNormalization(axis=(1, 2, 3)), [IMAGE], 0),
    "PReLU": (layers.PReLU(), [IMAGE], 0),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_multiply_adds_of_keras_layers(kind):
    layer, shapes, expected = BY_HAND[kind]
    assert multiply_adds(one_layer(layer, *shapes)) == expected


def test_products_of_two_tensors_and_of_operations():
    x, y, kernel = keras.Input((10, 4)), keras.Input((7, 4)), np.ones((4, 3), "float32")
    for product, expected in (
        (layers.Dot(2)([x, y]), 10 * 7 * 4),
        (layers.Attention()([x, y]), 2 * 10 * 7 * 4),
        (x @ kernel, 10 * 4 * 3),
        (ops.matmul(x, ops.transpose(y, (0, 2, 1))), 10 * 7 * 4),
        (ops.tensordot(x, kernel, axes=1), 10 * 4 * 3),
        (ops.einsum("bic,bjc->bij", x, y), 10 * 7 * 4),
    ):
        assert multiply_adds(keras.Model([x, y], product)) == expected
    image = keras.Input(IMAGE)
    assert multiply_adds(keras.Model(image, ops.conv(image, np.ones((3, 3, 4, 2), "float32")))) == 24 * 9 * 4 * 2


def test_an_unknown_layer_with_matrices_is_an_error():
    class Custom(layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

        def call(self, x):
            return x @ self.kernel

        def compute_output_shape(self, shape):
            return shape

    class Known(Custom):
        def multiply_adds(self, shape):
            return math.prod(shape[1:]) * shape[-1]

    with pytest.raises(InputError, match=r"the multiply-adds of custom.* \(Custom\) are unknown; give its"):
        multiply_adds(one_layer(Custom(), SEQUENCE))
    with pytest.raises(InputError, match="Custom"):
        multiply_adds(one_layer(layers.TimeDistributed(Custom()), (3, *SEQUENCE)))
    assert multiply_adds(one_layer(Known(), SEQUENCE)) == 10 * 4 * 4


def test_unknown_operations_are_errors():
    x, square = keras.Input((6, 8)), keras.Input((4, 4))
    found = [ops.vdot(x, x), ops.inner(x, x), ops.fft((x, x))[0], ops.linalg.inv(square), ops.linalg.svd(square)[0]]
    found += [ops.linalg.solve(square, square), ops.map(lambda y: y @ ops.transpose(y), x)]
    if keras.backend.backend() != "jax":  # there Keras 3.15 cannot put a condition into a graph
        found.append(ops.cond(ops.all(x > 0), lambda: x @ np.ones((8, 8), "float32"), lambda: x))
    for operation in found:
        with pytest.raises(InputError, match="are unknown"):
            multiply_adds(keras.Model([x, square], operation))


def test_every_call_counts_also_inside_other_models():
    backbone = cifar_resnet(8, include_top=False, pooling="avg")
    inputs = keras.Input((32, 32, 3))
    head = layers.Dense(10, name="head")
    alone = multiply_adds(cifar_resnet(8)) - 640
    assert multiply_adds(keras.Model(inputs, head(backbone(inputs)))) == alone + 640
    twice = backbone(inputs) + backbone(layers.ReLU()(inputs))
    assert multiply_adds(keras.Model(inputs, head(twice))) == 2 * alone + 640
    frames = keras.Input((5, 32, 32, 3))
    assert multiply_adds(keras.Model(frames, layers.TimeDistributed(backbone)(frames))) == 5 * alone
    assert multiply_adds(keras.Sequential([inputs, backbone, head])) == alone + 640
    dense = layers.Dense(4)
    vector = keras.Input((4,))
    assert multiply_adds(keras.Model(vector, dense(dense(dense(vector))))) == 3 * 16


def test_a_dictionary_of_inputs_reaches_the_right_layers():
    a, b = keras.Input((4,), name="a"), keras.Input((8,), name="b")
    inner = keras.Model([b, a], layers.Dense(3)(b) + layers.Dense(3)(a))
    assert multiply_adds(keras.Model([a, b], inner({"a": a, "b": b}))) == 12 * 3


def tensorflow_count(model):
    """Return half of the floating-point operations that TensorFlow's profiler counts in convolutions and products."""
    tf = pytest.importorskip("tensorflow")
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2_as_graph

    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow counts the graphs of its own backend only")
    specs = [tf.TensorSpec((1, *x.shape[1:]), x.dtype) for x in model.inputs]
    whole = tf.function(lambda *x: model(list(x) if len(x) > 1 else x[0], training=False))
    # Keras compiles a grouped convolution as a separate XLA function. The profiler counts only the graph itself, so
    # functions are inlined.
    tf.config.run_functions_eagerly(True)
    try:
        function = whole.get_concrete_function(*specs)
    finally:
        tf.config.run_functions_eagerly(False)
    _, graph_def = convert_variables_to_constants_v2_as_graph(function)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
        options = {**options, "output": "none", "account_type_regexes": [".*Conv.*", ".*MatMul.*", ".*Einsum.*"]}
        profile = tf.compat.v1.profiler.profile(graph, options=options)
    return profile.total_float_ops // 2


def small_transformer():
    x = inputs = keras.Input((12, 16))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 8)(y, y)
        x = x + layers.Dense(16)(layers.Dense(64, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


SMALL = {"weights": None, "input_shape": (64, 64, 3), "classes": 10}
NETWORKS = {
    "ours": lambda: cifar_resnet(8),
    "ours, bottlenecks": lambda: imagenet_resnet(50, input_shape=(64, 64, 3), classes=10),
    "Transformer": small_transformer,
    "ResNet50V2": lambda: keras.applications.ResNet50V2(**SMALL),
    "MobileNet": lambda: keras.applications.MobileNet(**SMALL),
    "MobileNetV2": lambda: keras.applications.MobileNetV2(**SMALL),
    "MobileNetV3Small": lambda: keras.applications.MobileNetV3Small(**SMALL),
    "EfficientNetB0": lambda: keras.applications.EfficientNetB0(**SMALL),
    "DenseNet121": lambda: keras.applications.DenseNet121(**SMALL),
    "VGG16": lambda: keras.applications.VGG16(**SMALL),
    "ConvNeXtTiny": lambda: keras.applications.ConvNeXtTiny(**SMALL),
    "Xception": lambda: keras.applications.Xception(**{**SMALL, "input_shape": (96, 96, 3)}),
}


def slow_unless(quick):
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]


@pytest.mark.parametrize("name", slow_unless({"ours", "Transformer"}))
def test_tensorflow_counts_as_many(name):
    model = NETWORKS[name]()
    # TensorFlow does not count the einsums in attention: the scores and the weighted sums of two blocks.
    attention = 2 * 2 * 12 * 12 * 16 if name == "Transformer" else 0
    assert multiply_adds(model) == tensorflow_count(model) + attention


def test_a_unit_is_counted_by_its_own_method():
    model = cifar_resnet(8, rolled=True)
    unit = model.get_layer("stage1_unit01")
    assert layer_multiply_adds(unit, (None, 32, 32, 16)) == 2 * 9 * 16 * 16 * 32 * 32


def test_a_mask_does_not_count():
    x, mask = keras.Input((6, 8)), keras.Input((6,), dtype="bool")
    block = PreNormEncoderBlock(heads=2)
    with_mask, without = keras.Model([x, mask], block(x, mask=mask)), keras.Model(x, block(x))
    assert multiply_adds(with_mask) == multiply_adds(without) > 0
