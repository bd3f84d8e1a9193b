"""Residual units f(h(x) + F(x)) as Keras layers, and their parts: shortcuts h, branches F and activations f."""

from keras_preact.layers.attention import SelfAttention
from keras_preact.layers.composite import freeze_batch_norms
from keras_preact.layers.dropout import DropPath
from keras_preact.layers.placements import NORM_PLACEMENTS, PLACEMENTS, Placement, get_placement
from keras_preact.layers.preactivation import BatchNorm, PreActivation, normalization
from keras_preact.layers.preprocessing import PadCropFlip, PerPixelMean
from keras_preact.layers.projection import ConvShortcut, HighwayGating, OptionA, Projection
from keras_preact.layers.registry import SHORTCUTS, get_shortcut
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import (
    ConstantScaling,
    DropoutShortcut,
    ExclusiveGating,
    IdentityShortcut,
    ScaledResidual,
    Shortcut,
    ShortcutOnlyGating,
)
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.transformer import (
    AttentionUnit,
    EncoderBlock,
    FeedForwardUnit,
    PostNormEncoderBlock,
    PreNormEncoderBlock,
    deepnorm,
    sequence_normalization,
)
from keras_preact.layers.units import (
    PostActBasicBlock,
    PostActBottleneck,
    PreActBasicBlock,
    PreActBottleneck,
    ResidualUnit,
)

__all__ = [
    "NORM_PLACEMENTS",
    "PLACEMENTS",
    "SHORTCUTS",
    "AttentionUnit",
    "BatchNorm",
    "ConstantScaling",
    "ConvShortcut",
    "DropPath",
    "DropoutShortcut",
    "EncoderBlock",
    "ExclusiveGating",
    "FeedForwardUnit",
    "HighwayGating",
    "IdentityShortcut",
    "OptionA",
    "PadCropFlip",
    "PerPixelMean",
    "Placement",
    "PostActBasicBlock",
    "PostActBottleneck",
    "PostNormEncoderBlock",
    "PreActBasicBlock",
    "PreActBottleneck",
    "PreActivation",
    "PreNormEncoderBlock",
    "Projection",
    "ResidualLayer",
    "ResidualUnit",
    "ScaledResidual",
    "SelfAttention",
    "Shortcut",
    "ShortcutOnlyGating",
    "UnitStack",
    "deepnorm",
    "freeze_batch_norms",
    "get_placement",
    "get_shortcut",
    "normalization",
    "sequence_normalization",
]
