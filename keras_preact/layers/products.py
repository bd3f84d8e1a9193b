"""Multiply-adds of a layer, or of one call in a graph, for one image or sequence.

Convolutions, dense layers, attention and recurrent layers count; additions, biases, normalizations, activations and
pooling do not. An unknown layer with weight matrices raises an error instead of counting as 0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import attention_axes, parts_of_attention
from keras_preact.layers.graph import Call, calls, graph_of, keras_name

Shape = Sequence[Any]


class UnknownMultiplyAdds(InputError):
    """A layer or operation with unknown multiply-adds."""

    def __init__(self, operation: Any) -> None:
        self.kind = type(operation).__name__
        super().__init__(
            f"the multiply-adds of {operation.name} ({self.kind}) are unknown; give its class a method "
            "multiply_adds(input_shape)"
        )


class UnknownSize(InputError):
    """A layer called on a tensor without a fixed size."""

    def __init__(self) -> None:
        super().__init__("multiply-adds need a fixed image size or length; build the network with an input_shape")


def convolution_multiply_adds(conv: keras.layers.Layer, input_shape: Shape) -> int:
    """Return the multiply-adds of a built convolution on one image: weights of the kernel × output pixels.

    >>> conv = keras.layers.Conv2D(16, 3, padding="same")
    >>> conv.build((None, 32, 32, 3))
    >>> convolution_multiply_adds(conv, (None, 32, 32, 3)) == 9 * 3 * 16 * 32 * 32
    True
    """
    return math.prod(conv.kernel.shape) * _pixels(conv, conv.compute_output_shape((1, *input_shape[1:])))


def sequence_multiply_adds(layers: Sequence[keras.layers.Layer], input_shape: Shape) -> int:
    """Return the multiply-adds of `layers`, called in order, on one image or sequence."""
    total, shape = 0, tuple(input_shape)
    for layer in layers:
        total += layer_multiply_adds(layer, shape)
        shape = layer.compute_output_shape(shape)
    return total


def layer_multiply_adds(layer: keras.layers.Layer, *shapes: Shape) -> int:
    """Return the multiply-adds of one built layer on one image or sequence; 0 for a layer that does not multiply.

    Args:
        layer: a Keras layer, or any layer with a method `multiply_adds(input_shape)`.
        *shapes: of its inputs. For attention: query, value and, if it differs from the value, key.

    Raises:
        InputError: any other layer with weight matrices, or an unknown image size or length.

    >>> lstm = keras.layers.Bidirectional(keras.layers.LSTM(8))
    >>> lstm.build((None, 10, 4))
    >>> layer_multiply_adds(lstm, (None, 10, 4)) == 2 * 10 * 4 * 8 * (4 + 8)
    True
    """
    if hasattr(layer, "multiply_adds"):
        rule: Callable[..., int] | None = type(layer).multiply_adds
        shapes = shapes[:1]  # any further input is a mask, or a shortcut's residual
    elif graph_of(layer) is not None:
        rule = _model
    else:
        rule = next((rule for kinds, rule in _RULES if isinstance(layer, kinds)), None)
    if rule is None:
        if any(len(variable.shape) > 1 for variable in layer.weights):
            raise UnknownMultiplyAdds(layer)
        return 0
    if rule is not _none and any(None in shape[1:] for shape in shapes):
        raise UnknownSize
    return int(rule(layer, *shapes))


def call_multiply_adds(call: Call) -> int:
    """Return the multiply-adds of one call in the graph of a model, on one image or sequence.

    Raises:
        InputError: as in `layer_multiply_adds`.
    """
    if not isinstance(call.operation, keras.layers.Layer):
        return _operation(call)
    if isinstance(call.operation, _ATTENTION + (keras.layers.ReversibleEmbedding,)):
        arguments = inspect.signature(call.operation.call).bind(*call.args, **call.kwargs).arguments
        if isinstance(call.operation, keras.layers.ReversibleEmbedding):
            if not arguments.get("reverse"):
                return 0
            if None in (shape := call.inputs[0].shape[1:]):
                raise UnknownSize
            return math.prod(shape) * call.operation.input_dim
        tensors = [arguments.get(name) for name in ("query", "value", "key")]
        return layer_multiply_adds(call.operation, *(tensor.shape for tensor in tensors if tensor is not None))
    return layer_multiply_adds(call.operation, *(tensor.shape for tensor in call.inputs))


# ---- Keras layers -------------------------------------------------------------------------------------------------


def _pixels(layer: Any, shape: Shape) -> int:
    """Return the number of positions in an image or sequence: the product of all axes but batch and channels."""
    axis = 1 if layer.data_format == "channels_first" else len(shape) - 1
    return math.prod(size for number, size in enumerate(shape) if number not in (0, axis))


def _none(layer: Any, *shapes: Shape) -> int:
    return 0


def _model(model: Any, *shapes: Shape) -> int:
    return sum(map(call_multiply_adds, calls(model, [keras.KerasTensor(shape) for shape in shapes])))


def _conv_transpose(layer: Any, shape: Shape) -> int:
    return math.prod(layer.kernel.shape) * _pixels(layer, shape)


def _separable(layer: Any, shape: Shape) -> int:
    pixels = _pixels(layer, layer.compute_output_shape((1, *shape[1:])))
    return pixels * (math.prod(layer.depthwise_kernel.shape) + math.prod(layer.pointwise_kernel.shape))


def _dense(layer: Any, shape: Shape) -> int:
    return math.prod(shape[1:-1]) * math.prod(layer.kernel.shape)


def _einsum_dense(layer: Any, shape: Shape) -> int:
    return _einsum(layer.equation, (1, *shape[1:]), layer.kernel.shape)


def _einsum(equation: str, *shapes: Shape) -> int:
    """Return the multiply-adds of an einsum of two arrays: the product of the sizes of all its indices.

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
    """Return the multiply-adds of multi-head attention: four projections, the scores, and the weighted sum."""
    value = query if value is None else value
    key = value if key is None else key
    parts = parts_of_attention(layer)
    projections = [(parts["query"], query), (parts["key"], key), (parts["value"], value)]
    if isinstance(layer, keras.layers.MultiHeadAttention):
        axes, heads, sizes = attention_axes(layer), layer.num_heads, (layer.key_dim, layer.value_dim)
    else:
        axes, heads, sizes = (1,), layer.num_query_heads, (layer.head_dim, layer.head_dim)
        if "gate" in parts:
            projections.append((parts["gate"], query))
    steps = math.prod(query[1:-1]) * math.prod(key[axis] for axis in axes)
    projections.append((parts["output"], (*query[:-1], heads, sizes[1])))
    return steps * heads * sum(sizes) + sum(layer_multiply_adds(dense, shape) for dense, shape in projections)


def _dot_product_attention(layer: Any, query: Shape, value: Shape, key: Shape | None = None) -> int:
    return math.prod(query[1:-1]) * value[-2] * (query[-1] + value[-1])


def _dot(layer: Any, left: Shape, right: Shape) -> int:
    axes = layer.axes if isinstance(layer.axes, (tuple, list)) else (layer.axes, layer.axes)
    return math.prod(left[1:]) * math.prod(right[1:]) // int(left[axes[0]])


def _recurrent(layer: Any, shape: Shape) -> int:
    return int(shape[1]) * _cell(layer.cell)


def _cell(cell: Any) -> int:
    """Return the multiply-adds of one step of a recurrent cell."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        return sum(map(_cell, cell.cells))
    if not isinstance(cell, (keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)):
        raise UnknownMultiplyAdds(cell)
    return math.prod(cell.kernel.shape) + math.prod(cell.recurrent_kernel.shape)


def _convolutional_recurrent(layer: Any, shape: Shape) -> int:
    output = layer.compute_output_shape((1, *shape[1:]))
    output = output[0] if layer.return_state else output
    values = math.prod(output[2:] if layer.return_sequences else output[1:])
    kernels = math.prod(layer.cell.kernel.shape) + math.prod(layer.cell.recurrent_kernel.shape)
    return int(shape[1]) * kernels * values // int(layer.cell.filters)


def _bidirectional(layer: Any, shape: Shape) -> int:
    return layer_multiply_adds(layer.forward_layer, shape) + layer_multiply_adds(layer.backward_layer, shape)


def _time_distributed(layer: Any, shape: Shape) -> int:
    return int(shape[1]) * layer_multiply_adds(layer.layer, (shape[0], *shape[2:]))


def _wrapper(layer: Any, *shapes: Shape) -> int:
    return layer_multiply_adds(layer.layer, *shapes)


_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
_L = keras.layers
_RULES: tuple[tuple[Any, Callable[..., int]], ...] = (
    ((_L.Conv1D, _L.Conv2D, _L.Conv3D, _L.DepthwiseConv1D, _L.DepthwiseConv2D), convolution_multiply_adds),
    ((_L.Conv1DTranspose, _L.Conv2DTranspose, _L.Conv3DTranspose), _conv_transpose),
    ((_L.SeparableConv1D, _L.SeparableConv2D), _separable),
    (_L.Dense, _dense),
    (_L.EinsumDense, _einsum_dense),
    (_ATTENTION, _attention),
    (_L.Attention, _dot_product_attention),  # and its subclass AdditiveAttention
    (_L.Dot, _dot),
    ((_L.ConvLSTM1D, _L.ConvLSTM2D, _L.ConvLSTM3D), _convolutional_recurrent),
    (_L.Bidirectional, _bidirectional),
    (_L.RNN, _recurrent),  # and its subclasses SimpleRNN, LSTM and GRU
    (_L.TimeDistributed, _time_distributed),
    (_L.SpectralNormalization, _wrapper),
    # Lookups and elementwise operations, although their weights may have two or more axes.
    ((_L.BatchNormalization, _L.GroupNormalization, _L.LayerNormalization, _L.RMSNormalization), _none),
    ((_L.Normalization, _L.PReLU, _L.Embedding), _none),
)


# ---- operations ---------------------------------------------------------------------------------------------------

_UNKNOWN = {
    *("CDist", "Corrcoef", "Correlate", "Inner", "Kron", "SeparableConv", "Vdot"),
    # These call functions that may contain anything.
    *("AssociativeScan", "Cond", "ForiLoop", "Map", "Scan", "Switch", "VectorizedMap", "WhileLoop"),
    *("Cholesky", "CholeskyInverse", "Det", "Eig", "Eigh", "Inv", "Logdet", "Lstsq", "LuFactor", "MatrixRank", "Pinv"),
    *("Qr", "SVD", "Slogdet", "Solve", "SolveTriangular"),
    *("FFT", "FFT2", "IFFT2", "RFFT", "IRFFT", "STFT", "ISTFT"),
    *("ElasticTransform", "GaussianBlur", "SSIM", "SobelEdges"),
}


def _operation(call: Call) -> int:
    """Return the multiply-adds of a call of `keras.ops`, whose arguments may include variables and arrays."""
    name = keras_name(call.operation)
    if name in _UNKNOWN:
        raise UnknownMultiplyAdds(call.operation)
    if name not in ("Matmul", "Einsum", "Dot", "Tensordot", "Conv", "DepthwiseConv", "ConvTranspose",
                    "DotProductAttention"):  # fmt: skip
        return 0
    shapes = [tuple(leaf.shape) for leaf in keras.tree.flatten((call.args, call.kwargs)) if hasattr(leaf, "shape")]
    # A first axis of unknown size is the batch, which counts as 1.
    left, right, output = ((1, *s[1:]) if s and s[0] is None else s for s in (*shapes[:2], call.outputs[0].shape))
    if any(None in shape for shape in (left, right, output)):
        raise UnknownSize
    if name == "Einsum":
        if len(shapes) != 2:
            raise UnknownMultiplyAdds(call.operation)
        return _einsum(call.operation.subscripts, left, right)
    if name == "DotProductAttention":
        return 2 * math.prod(left) * right[1]
    if name == "Matmul":
        return math.prod(output) * left[-1]
    if name in ("Dot", "Tensordot"):
        contracted = math.isqrt(math.prod(left) * math.prod(right) // math.prod(output))
        return math.prod(output) * contracted
    axes = -2 if name == "DepthwiseConv" else -1
    return math.prod(left if name == "ConvTranspose" else output) * math.prod(right[:axes])
