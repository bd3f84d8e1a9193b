"""Exercises of notebook 08."""

from __future__ import annotations

from typing import Any

from keras_preact.course.exercise import Wrong, exercise, expect_function, expect_number
from keras_preact.models import cifar_resnet

STRIDES = (4, 8, 16, 32)
"""Input pixels a pixel of each stage's map, without dilation."""


@exercise("08.1")
def units_of_resnet_200(answer: Any) -> str:
    number = expect_number(answer)
    if number == 99:
        raise Wrong("99 would be units of two convolutions; a bottleneck has three.")
    if 66 < number < 67:
        raise Wrong("two layers are in no unit: the first convolution and the classifier.")
    if number != 66:
        raise Wrong(f"{number:g} units of three convolutions, and two layers more, are {3 * number + 2:g} layers.")
    return "3 + 24 + 36 + 3: the second and third stage have nearly all of them."


@exercise("08.2")
def heights_of_maps(answer: Any) -> str:
    function = expect_function(answer)
    for size, output_stride in ((224, 32), (224, 8), (512, 16)):
        given = function(size, output_stride)
        if not isinstance(given, (list, tuple)) or len(given) != 4:
            raise Wrong("return four heights, one a stage, as a list.")
        heights = [expect_number(height) for height in given]
        expected = [size / min(stride, output_stride) for stride in STRIDES]
        if heights == [size / stride for stride in STRIDES] != expected:
            raise Wrong(f"with an output stride of {output_stride} no map is smaller than {size // output_stride}.")
        if heights == [2 * height for height in expected]:
            raise Wrong("the stem divides by 4: the convolution by 2, and the pooling by 2 again.")
        if heights == [size / output_stride] * 4 != expected:
            raise Wrong("the first stages are as they were: only strides beyond the output stride are taken out.")
        if heights != expected:
            raise Wrong(f"for {size} pixels and an output stride of {output_stride} it gives {list(given)}.")
    return "4, 8, 16, 32, and from the output stride on no further: dilation takes the place of the strides."


@exercise("08.3")
def freezing(answer: Any) -> str:
    function = expect_function(answer)
    for stage in ("stage2", "stage3"):
        network = cifar_resnet(8)
        function(network, stage)
        layers = [layer for layer in network.layers if layer.weights]
        frozen = [layer.name for layer in layers if not layer.trainable]
        first = next(place for place, layer in enumerate(layers) if layer.name.startswith(stage))
        if not frozen:
            raise Wrong("nothing is frozen: set `trainable` of the layers to False.")
        if len(frozen) == len(layers):
            raise Wrong("everything is frozen, the classifier too.")
        for place, layer in enumerate(layers):
            if place < first and layer.trainable:
                raise Wrong(f"{layer.name} stands before {stage} and is still trained.")
            if place >= first and not layer.trainable:
                raise Wrong(f"{layer.name} does not stand before {stage}, and is frozen.")
    return "Its batch norms run in inference mode now: their statistics are frozen too."
