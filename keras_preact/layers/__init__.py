"""The bricks: Keras layers for h, F and f, and the residual unit made of them."""

from keras_preact.layers.branches import DropPath
from keras_preact.layers.placements import PLACEMENTS, Placement, get_placement
from keras_preact.layers.preactivation import BatchNorm, PreActivation, normalization
from keras_preact.layers.shortcuts import (
    SHORTCUTS,
    ConstantScaling,
    ConvShortcut,
    DropoutShortcut,
    ExclusiveGating,
    IdentityShortcut,
    OptionA,
    Projection,
    ScaledResidual,
    Shortcut,
    ShortcutOnlyGating,
    get_shortcut,
)
from keras_preact.layers.stack import UnitStack
from keras_preact.layers.units import (
    PostActBasicBlock,
    PostActBottleneck,
    PreActBasicBlock,
    PreActBottleneck,
    ResidualUnit,
)

__all__ = [
    "PLACEMENTS",
    "SHORTCUTS",
    "BatchNorm",
    "ConstantScaling",
    "ConvShortcut",
    "DropPath",
    "DropoutShortcut",
    "ExclusiveGating",
    "IdentityShortcut",
    "OptionA",
    "Placement",
    "PostActBasicBlock",
    "PostActBottleneck",
    "PreActBasicBlock",
    "PreActBottleneck",
    "PreActivation",
    "Projection",
    "ResidualUnit",
    "ScaledResidual",
    "Shortcut",
    "ShortcutOnlyGating",
    "UnitStack",
    "get_placement",
    "get_shortcut",
    "normalization",
]
