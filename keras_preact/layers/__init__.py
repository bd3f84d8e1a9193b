"""The bricks: Keras layers for h, F and f, and the residual units made of them."""

from keras_preact.layers.branches import DropPath
from keras_preact.layers.composite import freeze_batch_norms
from keras_preact.layers.placements import NORM_PLACEMENTS, PLACEMENTS, Placement, get_placement
from keras_preact.layers.preactivation import BatchNorm, PreActivation, normalization
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import (
    SHORTCUTS,
    ConstantScaling,
    ConvShortcut,
    DropoutShortcut,
    ExclusiveGating,
    HighwayGating,
    IdentityShortcut,
    OptionA,
    Projection,
    ScaledResidual,
    Shortcut,
    ShortcutOnlyGating,
    get_shortcut,
)
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.transformer import (
    AttentionUnit,
    EncoderBlock,
    FeedForwardUnit,
    PostNormEncoderBlock,
    PreNormEncoderBlock,
    SelfAttention,
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
