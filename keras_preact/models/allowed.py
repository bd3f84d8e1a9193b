"""What a saved model may name: classes by position, sizes, and the limits of an untrusted file."""

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
"""Keras's layers without those that contain code or a path to some: Lambda, TFSMLayer, JaxLayer, …"""
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
"""Operations on arrays, by their module in `keras.src.ops`: a graph of `keras.ops` consists of them."""
APPLICATIONS = {"convnext": "LayerScale StochasticDepth", "inception_resnet_v2": "CustomScaleLayer"}
"""Layers of `keras.applications`, by their module there."""
BY_NAME = {
    **{kind: f"{kind}s" for kind in ("activation", "initializer", "regularizer", "constraint")},
    "loss": "losses",
    "metric": "metrics",
    "optimizer": "optimizers",
}
"""Kinds that Keras also finds by a name alone, and its module of each."""
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
"""The kinds of objects that an argument may be given as, by its name; other arguments are numbers, words and lists."""
SUFFIXES = {
    "activation": ("activation", LAYER),
    **{kind: (kind,) for kind in ("initializer", "regularizer", "constraint")},
}
"""The same for arguments with several names, for example `kernel_initializer`."""
INHERITED = {"loss", "metrics", "weighted_metrics", "policy_map"}
"""Arguments that may be a dictionary: the names in it are those of outputs or layers."""
OBJECT = {"module", "class_name", "config", "registered_name", "build_config", "compile_config", "shared_object_id"}
IN_A_GRAPH = {"name", "inbound_nodes"}
COMPILE = {"optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"}
COMPILE |= {"run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss"}
METRIC_NAMES = {"accuracy", "acc", "crossentropy", "ce"}
"""Names of metrics that Keras chooses by the loss."""
ARRAY_DTYPES = {f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)} | {"bool", "bfloat16"}
DEEPEST = 100
MOST = 1 << 20
"""The largest integer of a small file: a size that no weights stand for, as the length of a vocabulary."""
SMALL = {"num_oov_indices": 10_000, "num": 1000, "indices_or_sections": 1000}
"""The largest of arguments that tables, or outputs of a layer, are made by."""
PATTERN = re.compile(r"[^*+?{|]*(\.\*)?")
"""Regular expressions that layers' paths are compared with in one pass: no choices, except where one ends in `.*`."""
UNBOUNDED = {
    "seed",
    "salt",
    "decay_steps",
    "first_decay_steps",
    "warmup_steps",
    "boundaries",
    "ema_overwrite_frequency",
}
"""Arguments that nothing is made of."""
PYTORCHS_OPTIMIZERS = re.compile(r"keras\.src\.backend\.torch\.optimizers\.torch_[a-z]+")
LONGEST = 100
"""The most layers of a Sequential model: Keras builds it again after each."""
CALLS = 300
"""The most objects that a small file may be built of, where it repeats some."""
LOOKUPS = {"StringLookup", "IntegerLookup", "TextVectorization"}


@dataclass(frozen=True)
class Known:
    """An object that a configuration may ask for, and its kind."""

    found: Any
    kind: str


@functools.cache
def known() -> dict[tuple[str, str], Known]:
    """Return what of Keras a configuration may ask for, by module and name as they are written in files."""
    table: dict[tuple[str, str], Known] = {}

    def add(kind: str, names: str, *modules: str) -> None:
        for module in modules:
            for name in names.split():
                found = public_symbol(f"{module}.{name}")
                if found is not None:  # a release of Keras without it
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
    # What has no public name is written with the module that defines it.
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
    """Return the objects of a kind by the names that Keras finds them by; none of kinds that have no such names."""
    if kind not in BY_NAME:
        return {}
    listed = objects_by_name(BY_NAME[kind])
    base = getattr(getattr(keras, BY_NAME[kind]), kind.capitalize(), ())  # activations are functions only
    return {name: found for name, found in listed.items() if isfunction(found) or issubclass(found, base)}
