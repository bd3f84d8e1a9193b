"""Exercises of notebook 08."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_number,
    expect_several,
    is_close,
    refuse_mistakes,
)
from keras_preact.models.profiles import PROFILES

STRIDES = (4, 8, 16, 32)
"""Input pixels per pixel of each stage's feature map, without dilation."""


@exercise("08.1")
def saved_by_the_early_stride(answer: Any) -> str:
    function = expect_function(answer)
    for channels, filters, size in ((256, 128, 56), (1024, 512, 14), (96, 10, 40)):
        found = expect_number(function(channels, filters, size))
        first = channels * filters * size**2
        call = f"with {channels} channels, {filters} filters and {size} pixels"
        faults = {
            f"{call} you return the whole cost of the first convolution, but part of it remains.": first,
            f"{call} you return what remains of the first convolution, not what is saved.": first / 4,
            f"{call} you return half of the first convolution's cost; a stride halves the height and the width.": first
            / 2,
            f"{call} you also count the 3×3 convolution; it has the same outputs in both cases.": 0.75
            * (first + 9 * filters**2 * size**2),
        }
        refuse_mistakes(found, faults)
        if not is_close(found, 0.75 * first):
            raise Wrong(f"{call} it returns {found:,.0f}, not {0.75 * first:,.0f}.")
    return (
        "Three quarters of the first convolution. In a ResNet-50 it is the same number in stages 2 to 4, because "
        "channels and filters double where the size halves."
    )


@exercise("08.2")
def heights_of_maps(answer: Any) -> str:
    function = expect_function(answer)
    for size, output_stride in ((224, 32), (224, 8), (512, 16)):
        returned = expect_several(function(size, output_stride), 4, "return a list of four heights, one per stage.")
        heights = [expect_number(height) for height in returned]
        expected = [size / min(stride, output_stride) for stride in STRIDES]
        if heights == [size / stride for stride in STRIDES] != expected:
            raise Wrong(f"with an output stride of {output_stride} no map is smaller than {size // output_stride}.")
        if heights == [2 * height for height in expected]:
            raise Wrong("the stem divides by 4: the convolution by 2, then the pooling by 2.")
        if heights == [size / output_stride] * 4 != expected:
            raise Wrong("the first stages do not change: only strides beyond the output stride are removed.")
        if heights != expected:
            raise Wrong(f"for {size} pixels and an output stride of {output_stride} it returns {list(returned)}.")
    return "4, 8, 16, 32, but no more than the output stride: dilation replaces the strides beyond it."


@exercise("08.3")
def from_torch_to_keras(answer: Any) -> str:
    function = expect_function(answer)
    torch: Any = PROFILES["paper"].imagenet.inputs  # type: ignore[union-attr]
    keras: Any = PROFILES["keras_applications"].imagenet_original.inputs  # type: ignore[union-attr]
    mean, deviation, subtracted = (np.array(v) for v in (torch.mean, torch.deviation, keras.mean))
    pixels = np.random.default_rng(0).uniform(0, 255, (2, 4, 4, 3))
    prepared = (pixels - mean) / deviation
    found = expect_array(function(prepared.copy()), prepared.shape)
    faults = {
        "the channels are still RGB; Keras's ResNet50 was trained on BGR.": pixels - subtracted[::-1],
        "you subtract Keras's means from the wrong channels: they are in the order B, G, R.": pixels[..., ::-1]
        - subtracted[::-1],
        "the channels are still RGB, and Keras's means are in the order B, G, R.": pixels - subtracted,
        "you reverse the channels but keep the old normalization; first undo it.": prepared[..., ::-1],
        "these are pixels from 0 to 255; Keras's means must be subtracted.": pixels[..., ::-1],
        "undo the division by the deviations, too.": (prepared + mean)[..., ::-1] - subtracted,
    }
    refuse_mistakes(found, faults, 1e-3)
    if not is_close(found, pixels[..., ::-1] - subtracted, 1e-3):
        raise Wrong(f"a pixel {_rounded(prepared[0, 0, 0])} becomes {_rounded(found[0, 0, 0])}.")
    return "The same picture, prepared for the other weights. No shape and no error message tells the two apart."


def _rounded(pixel: Any) -> str:
    return "(" + ", ".join(f"{value:.2f}" for value in pixel) + ")"
