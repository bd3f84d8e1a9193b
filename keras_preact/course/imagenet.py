"""Exercises of notebook 08."""

from __future__ import annotations

from typing import Any

from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number
from keras_preact.models import cifar_resnet

STRIDES = (4, 8, 16, 32)
"""Input pixels per pixel of each stage's feature map, without dilation."""


@exercise("08.1")
def units_of_resnet_200(answer: Any) -> str:
    number = expect_number(answer)
    if number == 99:
        raise Wrong("99 would be units of two convolutions; a bottleneck has three.")
    if 66 < number < 67:
        raise Wrong("two layers belong to no unit: the first convolution and the classifier.")
    if number != 66:
        raise Wrong(f"{number:g} units of three convolutions and two more layers make {3 * number + 2:g} layers.")
    return "3 + 24 + 36 + 3: nearly all are in the second and third stages."


@exercise("08.2")
def heights_of_maps(answer: Any) -> str:
    function = expect_function(answer)
    for size, output_stride in ((224, 32), (224, 8), (512, 16)):
        returned = function(size, output_stride)
        if not isinstance(returned, (list, tuple)) or len(returned) != 4:
            raise Wrong("return a list of four heights, one per stage.")
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
def freezing(answer: Any) -> str:
    function = expect_function(answer)
    for stage in ("stage2", "stage3"):
        network = cifar_resnet(8)
        function(network, stage)
        layers = [layer for layer in network.layers if layer.weights]
        frozen = [layer.name for layer in layers if not layer.trainable]
        first = next(position for position, layer in enumerate(layers) if layer.name.startswith(stage))
        if not frozen:
            raise Wrong("nothing is frozen: set `trainable` of the layers to False.")
        if len(frozen) == len(layers):
            raise Wrong("everything is frozen, even the classifier.")
        for position, layer in enumerate(layers):
            if position < first and layer.trainable:
                raise Wrong(f"{layer.name} comes before {stage} but is still trained.")
            if position >= first and not layer.trainable:
                raise Wrong(f"{layer.name} does not come before {stage} but is frozen.")
    return "Frozen batch norms run in inference mode: their statistics are frozen too."
