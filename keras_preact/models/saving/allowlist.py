"""Allowlists and size limits for the configuration of an untrusted `.keras` file."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from inspect import isfunction
from typing import Any

import keras

from keras_preact.keras_private import defining_module, objects_by_name, public_symbol

LAYER, OPERATION, MODEL = "layer", "operation", "model"

LAYERS = """
Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention AugMix
AutoContrast Average AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Bidirectional
CategoryEncoding CenterCrop Concatenate ContrastLimitedAdaptiveHistogramEqualization Conv1D Conv1DTranspose Conv2D
Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D Cropping3D CutMix Dense
DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization Flatten GRU GRUCell
GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D
GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention HashedCrossing Hashing Identity
InputLayer IntegerLookup LSTM LSTMCell LayerNormalization LeakyReLU Masking MaxNumBoundingBoxes MaxPooling1D
MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp MultiHeadAttention Multiply Normalization PReLU Permute
Pipeline RMSNormalization RNN RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast
RandomCrop RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert
RandomPerspective RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation
RandomZoom ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D
SeparableConv2D SimpleRNN SimpleRNNCell Softmax Solarization SpatialDropout1D SpatialDropout2D SpatialDropout3D
SpectralNormalization StackedRNNCells StringLookup Subtract TextVectorization TimeDistributed UnitNormalization
UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
"""Keras's layers, except those that contain code or a path to code: Lambda, TFSMLayer, JaxLayer, …"""
SCHEDULES = "CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay PiecewiseConstantDecay PolynomialDecay"
QUANTIZERS = "AbsMaxQuantizer Float8QuantizationConfig Int4QuantizationConfig Int8QuantizationConfig"
POLICIES = "DTypePolicy DTypePolicyMap FloatDTypePolicy QuantizedDTypePolicy QuantizedFloat8DTypePolicy"
OPERATIONS = {
    "numpy": """
Absolute Add All Amax Amin Any Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Argmax Argmin Argsort Average
BroadcastTo Ceil Clip Concatenate Cos Cosh Cumprod Cumsum Diagonal Diff Divide Dot Einsum Equal Exp Exp2 ExpandDims
Expm1 Flip Floor FloorDivide FullLike GetItem Greater GreaterEqual Isfinite Isinf Isnan Less LessEqual Log Log10 Log1p
Log2 Logaddexp LogicalAnd LogicalNot LogicalOr LogicalXor Matmul Max Maximum Mean Median Min Minimum Mod Moveaxis
Multiply NanToNum Negative NotEqual OnesLike Outer Pad Power Prod Ravel Reciprocal Repeat Reshape Roll Round Sign Sin
Sinh Sort Split Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Take TakeAlongAxis Tan Tanh Tensordot Tile
Transpose Tril Triu TrueDivide Var Vdot Where ZerosLike
""",
    "nn": """
AdaptiveAveragePool AdaptiveMaxPool AveragePool BatchNorm Celu Conv ConvTranspose DepthToSpace DepthwiseConv
DotProductAttention Elu Gelu Glu HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax
MaxPool Moments MultiHot Normalize OneHot RMSNorm Relu Relu6 Selu SeparableConv Sigmoid Silu SoftShrink Softmax
Softplus Softsign SpaceToDepth SparsePlus SparseSigmoid Sparsemax Squareplus TanhShrink Threshold
""",
    "core": "Cast Slice StopGradient Unstack",
    "math": "Erf Erfinv Logsumexp Rsqrt SegmentReduction TopK",
    "image": "CropImages ExtractPatches PadImages RGBToGrayscale RGBToHSV HSVToRGB Resize",
    "linalg": "Norm",
}
"""Operations of `keras.ops`, by their module in `keras.src.ops`."""
APPLICATIONS = {"convnext": "LayerScale StochasticDepth", "inception_resnet_v2": "CustomScaleLayer"}
"""Layers of `keras.applications`, by module."""
BY_NAME = {
    **{kind: f"{kind}s" for kind in ("activation", "initializer", "regularizer", "constraint")},
    "loss": "losses",
    "metric": "metrics",
    "optimizer": "optimizers",
}
"""Kinds that a configuration may also give as a plain name, for example `"relu"`, and their modules in `keras`."""
POSITIONS = {
    **dict.fromkeys(("cell", "cells", "layer", "forward_layer", "backward_layer", "unit", "shortcut"), (LAYER, MODEL)),
    "layers": (LAYER, MODEL, OPERATION),
    **dict.fromkeys(("dtype", "default_policy", "policy_map"), ("policy",)),
    "learning_rate": ("schedule",),
    **dict.fromkeys(("optimizer", "inner_optimizer"), ("optimizer",)),
    "loss": ("loss",),
    "fn": ("loss", "metric"),
    **dict.fromkeys(("metrics", "weighted_metrics"), ("metric", "loss")),
    **dict.fromkeys(("quantization_config", "weight_quantizer", "activation_quantizer"), ("quantizer",)),
    "seed": ("seed generator",),
    **dict.fromkeys(("value", "scale", "offset", "mask_value"), ("array",)),
}
"""The kinds of objects that an argument accepts, by its name. All others are numbers, strings and lists."""
SUFFIXES = {
    "activation": ("activation", LAYER),
    **{kind: (kind,) for kind in ("initializer", "regularizer", "constraint")},
}
"""The same by the last word of an argument's name, for example of `kernel_initializer`."""
INHERITED = {"loss", "metrics", "weighted_metrics", "policy_map"}
"""Arguments that may be dictionaries whose keys are the names of outputs or layers, not of arguments."""
OBJECT_KEYS = {"module", "class_name", "config", "registered_name"}
OBJECT_KEYS |= {"build_config", "compile_config", "shared_object_id"}
GRAPH_KEYS = {"name", "inbound_nodes"}
COMPILE_KEYS = {"optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"}
COMPILE_KEYS |= {"run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss"}
METRIC_NAMES = {"accuracy", "acc", "crossentropy", "ce"}
"""Metric names that Keras resolves by the loss."""
ARRAY_DTYPES = {f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)} | {"bool", "bfloat16"}
MAX_DEPTH = 100
"""The deepest nesting of a configuration."""
SIZE_LIMIT = 1 << 20
"""The largest integer in a file of up to 1 MB, such as the length of a vocabulary; in a larger file, its size."""
ARGUMENT_LIMITS = {"num_oov_indices": 10_000, "num": 1000, "indices_or_sections": 1000}
"""Smaller limits for arguments that set the size of a table or the number of outputs."""
SAFE_PATTERN = re.compile(r"[^*+?{|]*(\.\*)?")
"""Regular expressions without backtracking: no alternatives or repetitions, except a final `.*`."""
UNBOUNDED = {"seed", "salt", "boundaries", "ema_overwrite_frequency"}
UNBOUNDED |= {"decay_steps", "first_decay_steps", "warmup_steps"}
"""Integer arguments that allocate nothing."""
TORCH_OPTIMIZERS = re.compile(r"keras\.src\.backend\.torch\.optimizers\.torch_[a-z]+")
MAX_SEQUENTIAL_LAYERS = 100
"""The most layers of a Sequential model. Keras rebuilds the model after each layer, so the cost is quadratic."""
MAX_CALLS = 300
"""The most objects that a small file may create, counting repeated ones."""
LOOKUPS = {"StringLookup", "IntegerLookup", "TextVectorization"}
"""Layers that may read a vocabulary from a file."""


@dataclass(frozen=True)
class Known:
    """An object that a configuration may name, and its kind."""

    found: Any
    kind: str


@functools.cache
def known() -> dict[tuple[str, str], Known]:
    """Return Keras's allowed classes and operations, by module and name as Keras writes them to files."""
    table: dict[tuple[str, str], Known] = {}

    def add(kind: str, names: str, *modules: str) -> None:
        for module in modules:
            for name in names.split():
                found = public_symbol(f"{module}.{name}")
                if found is not None:  # absent in some releases of Keras
                    table[module, name] = Known(found, kind)

    add(LAYER, LAYERS, "keras.layers")
    add(MODEL, "Model Sequential", "keras", "keras.models")
    add("schedule", SCHEDULES, "keras.optimizers.schedules")
    add("quantizer", QUANTIZERS, "keras.quantizers")
    add("policy", POLICIES, "keras", "keras.dtype_policies")
    add("seed generator", "SeedGenerator", "keras.random")
    for kind, part in BY_NAME.items():
        for found in set(named(kind).values()):
            add(kind, found.__name__, f"keras.{part}")
    add("optimizer", "LossScaleOptimizer", "keras.optimizers")
    # Keras writes objects without a public name with the module that defines them.
    private = [
        ("models.functional", MODEL, "Functional"),
        *(("applications." + part, LAYER, names) for part, names in APPLICATIONS.items()),
    ]
    private += [("ops." + part, OPERATION, names) for part, names in OPERATIONS.items()]
    for part, kind, names in private:
        module = defining_module(part)
        for name in names.split():
            if hasattr(module, name):
                table[module.__name__, name] = Known(getattr(module, name), kind)
    return table


@functools.cache
def named(kind: str) -> dict[str, Any]:
    """Return the objects of a kind by the names under which Keras finds them; empty for kinds outside `BY_NAME`."""
    if kind not in BY_NAME:
        return {}
    listed = objects_by_name(BY_NAME[kind])
    base = getattr(getattr(keras, BY_NAME[kind]), kind.capitalize(), ())  # activations have no base class
    return {name: found for name, found in listed.items() if isfunction(found) or issubclass(found, base)}
