"""Every public layer under the checks that Keras runs on its own layers: `run_layer_test`."""

import inspect

import keras
import pytest
from keras.src.testing import TestCase

from keras_preact import layers

IMAGES = (2, 8, 8, 16)
SEQUENCES = (2, 5, 8)

OF_IMAGES = {
    "BatchNorm": [{}, {"axis": 1}, {"fused": False}, {"center": False, "scale": False}],
    "PreActivation": [{}, {"activation": "gelu"}],
    "DropPath": [{"rate": 0.5}],
    "PerPixelMean": [{}],
    "PadCropFlip": [{"padding": 2}, {"data_format": "channels_first"}],
    "Projection": [{"filters": 32, "strides": 2, "normalize": "batch", "use_bias": True}],
    "OptionA": [{"filters": 32, "strides": 2}],
    "PreActBasicBlock": [{"filters": 16}, {"filters": 32, "strides": 2}],
    "PreActBottleneck": [{"filters": 4}, {"filters": 8, "strides": 2}],
    "PostActBasicBlock": [{"filters": 16}, {"filters": 32, "strides": 2}],
    "PostActBottleneck": [{"filters": 4}, {"filters": 8, "strides": 2}],
    "ResidualUnit": [
        *({"filters": 16, "placement": placement} for placement in layers.PLACEMENTS),
        *({"filters": 16, "shortcut": shortcut} for shortcut in layers.SHORTCUTS),
        {"filters": 32, "strides": 2, "shape_change": "option_a", "drop_path": 0.5},
        {"filters": 8, "data_format": "channels_first"},
        {"filters": 16, "normalization": "group", "biases": "all", "zero_init_residual": True},
    ],
    "UnitStack": [
        {"unit": layers.PreActBasicBlock(16), "repeats": 3, "rolled": False},
        {"unit": layers.PreActBasicBlock(16), "repeats": 3, "rolled": True},
        {"unit": layers.PreActBasicBlock(16), "repeats": 3, "rolled": True, "remat": True},
    ],
}
OF_SEQUENCES = {
    "SelfAttention": [{"heads": 2, "causal": True, "dropout": 0.5}],
    "AttentionUnit": [{"heads": 2}],
    "FeedForwardUnit": [{}],
    "EncoderBlock": [{"heads": 2, "dropout": 0.5, "drop_path": 0.5}, {"heads": 2, "normalization": "rms"}],
    "PreNormEncoderBlock": [{"heads": 2}],
    "PostNormEncoderBlock": [{"heads": 2}],
}
OF_INPUT_AND_RESIDUAL = {
    "IdentityShortcut": [{}],
    "ConstantScaling": [{}],
    "ScaledResidual": [{}, {"per_channel": True}],
    "ConvShortcut": [{}],
    "DropoutShortcut": [{}],
    "ExclusiveGating": [{}],
    "ShortcutOnlyGating": [{}],
    "HighwayGating": [{}],
}
ABSTRACT = {"Shortcut", "ResidualLayer"}
KINDS = (OF_IMAGES, OF_SEQUENCES, OF_INPUT_AND_RESIDUAL)


def cases(kind):
    return [
        pytest.param(name, options, id=f"{name}-{k}") for name, all in kind.items() for k, options in enumerate(all)
    ]


def check(name, options, **arguments):
    TestCase("run_layer_test").run_layer_test(
        getattr(layers, name), options, **arguments, expected_output_dtype="float32"
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name, options", cases(OF_IMAGES))
def test_layers_of_images(name, options):
    shape = (2, 4, 4, 32) if options.get("strides") == 2 else IMAGES
    # TensorFlow has no float16 convolution of images channels first on processors.
    has_float16 = keras.backend.backend() != "tensorflow" or options.get("data_format") != "channels_first"
    check(name, options, input_shape=IMAGES, expected_output_shape=shape, run_mixed_precision_check=has_float16)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name, options", cases(OF_SEQUENCES))
def test_layers_of_sequences(name, options):
    check(name, options, input_shape=SEQUENCES, expected_output_shape=SEQUENCES, supports_masking=True)


@pytest.mark.parametrize("name, options", cases(OF_INPUT_AND_RESIDUAL))
def test_shortcuts(name, options):
    """Keras's training step hands a layer one argument; units train with every shortcut above."""
    shapes = {"x_shape": IMAGES, "residual_shape": IMAGES}
    check(name, options, input_shape=shapes, expected_output_shape=IMAGES, run_training_check=False)


def test_every_public_layer_is_checked():
    public = {name for name in layers.__all__ if inspect.isclass(getattr(layers, name))}
    public = {name for name in public if issubclass(getattr(layers, name), keras.layers.Layer)}
    assert public - ABSTRACT == {name for kind in KINDS for name in kind}
