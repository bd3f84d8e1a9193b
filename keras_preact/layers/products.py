"""Multiply-adds: how many products a layer, or one call in a graph, takes for one image or sequence.

Convolutions, dense layers, attention and recurrences are counted; additions, biases, normalizations, activations and
pooling are not. A layer that has matrices and is unknown here is an error, never 0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.graph import Call, calls, graph_of, keras_name

Shape = Sequence[Any]


class UnknownProducts(InputError):
    """A layer that has matrices, and nothing says how often they are used."""

    def __init__(self, operation: Any) -> None:
        self.kind = type(operation).__name__
        super().__init__(
            f"the multiply-adds of {operation.name} ({self.kind}) are unknown; give its class a method "
            "multiply_adds(input_shape)"
        )


class OpenSize(InputError):
    """A layer called on a tensor of no fixed size."""

    def __init__(self) -> None:
        super().__init__("multiply-adds need a fixed image size or length; build the network with an input_shape")


def convolution_multiply_adds(conv: keras.layers.Layer, input_shape: Shape) -> int:
    """Return the multiply-adds of a convolution on one image: kernel size × output values (biases not counted).

    >>> conv = keras.layers.Conv2D(16, 3, padding="same")
    >>> conv.build((None, 32, 32, 3))
    >>> convolution_multiply_adds(conv, (None, 32, 32, 3)) == 9 * 3 * 16 * 32 * 32
    True
    """
    return math.prod(conv.kernel.shape) * _pixels(conv, conv.compute_output_shape((1, *input_shape[1:])))


def sequence_multiply_adds(layers: Sequence[keras.layers.Layer], input_shape: Shape) -> int:
    """Return the multiply-adds, on one image or sequence, of the products in `layers`, called in order."""
    total, shape = 0, tuple(input_shape)
    for layer in layers:
        total += layer_products(layer, shape)
        shape = layer.compute_output_shape(shape)
    return total


def layer_products(layer: keras.layers.Layer, *shapes: Shape) -> int:
    """Return the multiply-adds of one built layer on one image or sequence; 0 for a layer without a product.

    Args:
        layer: with a method `multiply_adds(input_shape)`, or one of Keras's.
        *shapes: of what it is called on. For attention: query, value and, if it differs from that, key.

    Raises:
        InputError: a layer with matrices that is neither, or an open size.

    >>> lstm = keras.layers.Bidirectional(keras.layers.LSTM(8))
    >>> lstm.build((None, 10, 4))
    >>> layer_products(lstm, (None, 10, 4)) == 2 * 10 * 4 * 8 * (4 + 8)
    True
    """
    if hasattr(layer, "multiply_adds"):
        rule: Callable[..., int] | None = type(layer).multiply_adds
        shapes = shapes[:1]  # what follows the images or sequences is a mask, or a shortcut's residual
    elif graph_of(layer) is not None:
        rule = _model
    else:
        rule = next((rule for kinds, rule in _RULES if isinstance(layer, kinds)), None)
    if rule is None:
        if any(len(variable.shape) > 1 for variable in layer.weights):
            raise UnknownProducts(layer)
        return 0
    if rule is not _none and any(None in shape[1:] for shape in shapes):
        raise OpenSize
    return int(rule(layer, *shapes))


def call_products(call: Call) -> int:
    """Return the multiply-adds of one call in the graph of a model, on one image or sequence.

    Raises:
        InputError: as in `layer_products`.
    """
    if not isinstance(call.operation, keras.layers.Layer):
        return _operation(call)
    if isinstance(call.operation, _ATTENTION + (keras.layers.ReversibleEmbedding,)):
        given = inspect.signature(call.operation.call).bind(*call.args, **call.kwargs).arguments
        if isinstance(call.operation, keras.layers.ReversibleEmbedding):
            shape = call.inputs[0].shape
            return math.prod(_sized(shape)) * call.operation.input_dim if given.get("reverse") else 0
        tensors = [given.get(name) for name in ("query", "value", "key")]
        return layer_products(call.operation, *(tensor.shape for tensor in tensors if tensor is not None))
    return layer_products(call.operation, *(tensor.shape for tensor in call.inputs))


# ---- the layers of Keras ------------------------------------------------------------------------------------------


def _sized(shape: Shape) -> list[int]:
    """Return a shape without the batch."""
    if None in shape[1:]:
        raise OpenSize
    return [int(size) for size in shape[1:]]


def _pixels(layer: Any, shape: Shape) -> int:
    """Return the number of places in an image or sequence: all sizes but those of the batch and the channels."""
    axis = 1 if layer.data_format == "channels_first" else len(shape) - 1
    return math.prod(size for number, size in enumerate(shape) if number not in (0, axis))


def _none(layer: Any, *shapes: Shape) -> int:
    return 0


def _model(model: Any, *shapes: Shape) -> int:
    return sum(map(call_products, calls(model, [keras.KerasTensor(shape) for shape in shapes])))


def _transposed(layer: Any, shape: Shape) -> int:
    return math.prod(layer.kernel.shape) * _pixels(layer, shape)


def _separable(layer: Any, shape: Shape) -> int:
    pixels = _pixels(layer, layer.compute_output_shape((1, *shape[1:])))
    return pixels * (math.prod(layer.depthwise_kernel.shape) + math.prod(layer.pointwise_kernel.shape))


def _dense(layer: Any, shape: Shape) -> int:
    return math.prod(shape[1:-1]) * math.prod(layer.kernel.shape)


def _einsum_dense(layer: Any, shape: Shape) -> int:
    return _einsum(layer.equation, (1, *shape[1:]), layer.kernel.shape)


def _einsum(equation: str, *shapes: Shape) -> int:
    """Return the products of an einsum of two arrays: the product of the sizes of all its indices.

    >>> _einsum("...x,xy->...y", (1, 5, 3), (3, 4))
    60
    """
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.replace(" ", "").split("->")[0].split(","), shapes, strict=True):
        before, dots, after = term.partition("...")
        end = len(shape) - len(after)
        sizes |= dict(zip(before, shape, strict=False)) | dict(zip(after, shape[end:], strict=True))
        if dots:
            sizes["..."] = max(sizes.get("...", 1), math.prod(shape[len(before) : end]))
    return math.prod(sizes.values())


def _attention(layer: Any, query: Shape, value: Shape | None = None, key: Shape | None = None) -> int:
    """Return the products of multi-head attention: four projections, the scores, and the weighted sum."""
    value = query if value is None else value
    key = value if key is None else key
    projections = [(layer._query_dense, query), (layer._key_dense, key), (layer._value_dense, value)]
    if isinstance(layer, keras.layers.MultiHeadAttention):
        axes, heads, sizes = layer._attention_axes, layer.num_heads, (layer.key_dim, layer.value_dim)
    else:
        axes, heads, sizes = (1,), layer.num_query_heads, (layer.head_dim, layer.head_dim)
        if getattr(layer, "use_gate", False):
            projections.append((layer._gate_dense, query))
    steps = math.prod(query[1:-1]) * math.prod(key[axis] for axis in axes)
    projections.append((layer._output_dense, (*query[:-1], heads, sizes[1])))
    return steps * heads * sum(sizes) + sum(layer_products(dense, shape) for dense, shape in projections)


def _plain_attention(layer: Any, query: Shape, value: Shape, key: Shape | None = None) -> int:
    return math.prod(query[1:-1]) * value[-2] * (query[-1] + value[-1])


def _dot(layer: Any, one: Shape, other: Shape) -> int:
    axes = layer.axes if isinstance(layer.axes, (tuple, list)) else (layer.axes, layer.axes)
    return math.prod(one[1:]) * math.prod(other[1:]) // int(one[axes[0]])


def _recurrent(layer: Any, shape: Shape) -> int:
    return int(shape[1]) * _cell(layer.cell)


def _cell(cell: Any) -> int:
    """Return the products of one step of a cell."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        return sum(map(_cell, cell.cells))
    if not isinstance(cell, (keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)):
        raise UnknownProducts(cell)
    return math.prod(cell.kernel.shape) + math.prod(cell.recurrent_kernel.shape)


def _convolutional_recurrent(layer: Any, shape: Shape) -> int:
    output = layer.compute_output_shape((1, *shape[1:]))
    output = output[0] if layer.return_state else output
    values = math.prod(output[2:] if layer.return_sequences else output[1:])
    kernels = math.prod(layer.cell.kernel.shape) + math.prod(layer.cell.recurrent_kernel.shape)
    return int(shape[1]) * kernels * values // int(layer.cell.filters)


def _both_ways(layer: Any, shape: Shape) -> int:
    return layer_products(layer.forward_layer, shape) + layer_products(layer.backward_layer, shape)


def _at_each_step(layer: Any, shape: Shape) -> int:
    return int(shape[1]) * layer_products(layer.layer, (shape[0], *shape[2:]))


def _wrapped(layer: Any, *shapes: Shape) -> int:
    return layer_products(layer.layer, *shapes)


_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
_L = keras.layers
_RULES: tuple[tuple[Any, Callable[..., int]], ...] = (
    ((_L.Conv1D, _L.Conv2D, _L.Conv3D, _L.DepthwiseConv1D, _L.DepthwiseConv2D), convolution_multiply_adds),
    ((_L.Conv1DTranspose, _L.Conv2DTranspose, _L.Conv3DTranspose), _transposed),
    ((_L.SeparableConv1D, _L.SeparableConv2D), _separable),
    (_L.Dense, _dense),
    (_L.EinsumDense, _einsum_dense),
    (_ATTENTION, _attention),
    (_L.Attention, _plain_attention),  # AdditiveAttention is one
    (_L.Dot, _dot),
    ((_L.ConvLSTM1D, _L.ConvLSTM2D, _L.ConvLSTM3D), _convolutional_recurrent),
    (_L.Bidirectional, _both_ways),
    (_L.RNN, _recurrent),  # SimpleRNN, LSTM and GRU are
    (_L.TimeDistributed, _at_each_step),
    (_L.SpectralNormalization, _wrapped),
    # Their variables of two dimensions or more are looked up, or meet each value once.
    ((_L.BatchNormalization, _L.GroupNormalization, _L.LayerNormalization, _L.RMSNormalization), _none),
    ((_L.Normalization, _L.PReLU, _L.Embedding), _none),
)


# ---- operations ---------------------------------------------------------------------------------------------------

_UNKNOWN = {
    *("CDist", "Corrcoef", "Correlate", "Inner", "Kron", "SeparableConv", "Vdot"),
    # Functions that may hold anything.
    *("AssociativeScan", "Cond", "ForiLoop", "Map", "Scan", "Switch", "VectorizedMap", "WhileLoop"),
    *("Cholesky", "CholeskyInverse", "Det", "Eig", "Eigh", "Inv", "Logdet", "Lstsq", "LuFactor", "MatrixRank", "Pinv"),
    *("Qr", "SVD", "Slogdet", "Solve", "SolveTriangular"),
    *("FFT", "FFT2", "IFFT2", "RFFT", "IRFFT", "STFT", "ISTFT"),
    *("ElasticTransform", "GaussianBlur", "SSIM", "SobelEdges"),
}


def _operation(call: Call) -> int:
    """Return the products of `keras.ops` in a graph, one of whose arguments may be a variable or an array."""
    name = keras_name(call.operation)
    if name in _UNKNOWN:
        raise UnknownProducts(call.operation)
    if name not in ("Matmul", "Einsum", "Dot", "Tensordot", "Conv", "DepthwiseConv", "ConvTranspose",
                    "DotProductAttention"):  # fmt: skip
        return 0
    shapes = [tuple(leaf.shape) for leaf in keras.tree.flatten((call.args, call.kwargs)) if hasattr(leaf, "shape")]
    # The batch counts once, at the beginning of those that have one.
    one, other, output = ((1, *s[1:]) if s and s[0] is None else s for s in (*shapes[:2], call.outputs[0].shape))
    if any(None in shape for shape in (one, other, output)):
        raise OpenSize
    if name == "Einsum":
        if len(shapes) != 2:
            raise UnknownProducts(call.operation)
        return _einsum(call.operation.subscripts, one, other)
    if name == "DotProductAttention":
        return 2 * math.prod(one) * other[1]
    if name == "Matmul":
        return math.prod(output) * one[-1]
    if name in ("Dot", "Tensordot"):
        contracted = math.isqrt(math.prod(one) * math.prod(other) // math.prod(output))
        return math.prod(output) * contracted
    axes = -2 if name == "DepthwiseConv" else -1
    return math.prod(one if name == "ConvTranspose" else output) * math.prod(other[:axes])
