"""Exercises of notebook 12."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_preact.course.exercise import (
    Wrong,
    exercise,
    expect_array,
    expect_function,
    expect_several,
    is_close,
    refuse_mistakes,
)
from keras_preact.models import cifar_resnet


@exercise("12.1")
def freezing(answer: Any) -> str:
    function = expect_function(answer)
    for stage in ("stage2", "stage3"):
        network = cifar_resnet(8)
        function(network, stage)
        layers = [layer for layer in network.layers if layer.weights]
        frozen = [layer.name for layer in layers if not layer.trainable]
        first = next(position for position, layer in enumerate(layers) if layer.name.startswith(stage))
        if not frozen:
            raise Wrong("nothing is frozen: set the attribute `trainable` of the layers.")
        if len(frozen) == len(layers):
            raise Wrong("everything is frozen, even the classifier.")
        for position, layer in enumerate(layers):
            if position < first and layer.trainable:
                raise Wrong(f"{layer.name} comes before {stage} but is still trained.")
            if position >= first and not layer.trainable:
                raise Wrong(f"{layer.name} does not come before {stage} but is frozen.")
    return "Frozen batch norms run in inference mode: their statistics are frozen too."


@exercise("12.2")
def nearest_class_mean(answer: Any) -> str:
    function = expect_function(answer)
    # Unbalanced classes with a spread, so that sums, single neighbors and dot products decide otherwise.
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [3, 8, 20])
    centers = np.array([[4.0, 0, 0, 1], [0, 2.0, 0, 1], [0, 0, 1.0, 1]])
    features, new = (centers[classes] + random.normal(0, 0.9, (len(classes), 4)) for classes in (labels, labels[::-1]))
    shuffled = random.permutation(len(labels))
    found = expect_array(function(features[shuffled], labels[shuffled], new.copy()), (len(new),))
    means, sums = (np.stack([combine(features[labels == k], 0) for k in range(3)]) for combine in (np.mean, np.sum))
    distances = ((new[:, None] - means) ** 2).sum(-1)
    faults = {
        "you compare with the sums of the classes; the classes differ in size, so divide by it.": (
            (new[:, None] - sums) ** 2
        )
        .sum(-1)
        .argmin(1),
        "that is the label of the nearest single image; compare with the mean of each class.": labels[
            ((new[:, None] - features) ** 2).sum(-1).argmin(1)
        ],
        "you take the class with the largest distance.": distances.argmax(1),
        "you compare dot products with the means; a long mean then attracts everything. Use distances.": (
            new @ means.T
        ).argmax(1),
    }
    refuse_mistakes(found, faults)
    wrong = int(np.sum(found != distances.argmin(1)))
    if wrong:
        raise Wrong(f"{wrong} of {len(new)} labels are not those of the nearest mean.")
    return "No training at all: with very few images it keeps up with a trained classifier."


@exercise("12.3")
def folding_before_a_dense_layer(answer: Any) -> str:
    function = expect_function(answer)
    random = np.random.default_rng(0)
    kernel, bias = random.normal(size=(3, 3)), random.normal(size=3)
    gamma, variance = random.uniform(0.5, 1.5, 3), random.uniform(0.5, 1.5, 3)
    beta, mean, epsilon = random.normal(size=3), random.normal(size=3), 0.1
    returned = function(kernel.copy(), bias, gamma, beta, mean, variance, epsilon)
    returned = expect_several(returned, 2, "return two arrays, the new kernel and the new bias.")
    found, offset = expect_array(returned[0], (3, 3)), expect_array(returned[1], (3,))
    scale = gamma / np.sqrt(variance + epsilon)
    refuse_mistakes(
        found,
        {
            "you scale the outputs; that folds a norm that comes after the layer.": kernel * scale,
            "epsilon is missing.": kernel * (gamma / np.sqrt(variance))[:, None],
            "divide by the standard deviation, not by the variance.": kernel * (gamma / (variance + epsilon))[:, None],
            "the kernel is unchanged.": kernel,
        },
    )
    if not is_close(found, kernel * scale[:, None]):
        raise Wrong("the kernel is wrong: row i must be scaled by gamma / √(variance + epsilon) of input i.")
    shift = beta - mean * scale
    refuse_mistakes(
        offset,
        {
            "the old bias is missing.": shift @ kernel,
            "the bias is unchanged, but the norm's offset passes through the kernel.": bias,
            "the offset must pass through the old kernel, which does not contain the scale.": bias
            + shift @ (kernel * scale[:, None]),
            "add the norm's offset after multiplying it by the kernel.": bias + shift,
        },
    )
    if not is_close(offset, bias + shift @ kernel):
        raise Wrong("the kernel is right, but the bias is not.")
    return (
        "With a ReLU between the norm and the layer this is impossible: the first norm of a pre-activation unit stays."
    )
