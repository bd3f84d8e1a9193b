"""The sizes of a run's images, which may grow, as in a `FastRecipe`, and what a training at these sizes costs."""

from __future__ import annotations

from typing import cast

import keras

from keras_preact.data import ImageDataset
from keras_preact.errors import InputError
from keras_preact.layers.products import layer_multiply_adds
from keras_preact.models.summary import multiply_adds
from keras_preact.training.config import Dataset
from keras_preact.training.recipe import ONE_SIZE, Recipe


def check_scales(recipe: Recipe, dataset: Dataset) -> None:
    """Raise InputError if the data are no images, or too small for the recipe's smallest size."""
    if not isinstance(dataset, ImageDataset):
        raise InputError(f"the recipe {recipe.name} trains image networks; choose another for {dataset.name}")
    if recipe.inputs in ONE_SIZE and set(scales_of(recipe, dataset)) != {1.0}:
        raise InputError(
            f"the recipe {recipe.name} changes the size of the images, for which inputs={recipe.inputs!r} is not "
            "possible; use inputs='per_channel' or 'per_image'"
        )
    dataset.size_at(min(scales_of(recipe, dataset)))


def scales_of(recipe: Recipe, dataset: Dataset) -> list[float]:
    """Return the size of the images in each epoch, as a share of their full size."""
    epochs = recipe.epochs(dataset.train.steps_per_epoch(recipe.batch_size))
    return [recipe.image_scale(epoch, epochs) for epoch in range(epochs)]


class Sizes:
    """The data of a run at the sizes of its epochs.

    Args:
        dataset: the data at full size.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = self._current = dataset
        self._scale = 1.0

    def at(self, scale: float, model: keras.Model) -> Dataset:
        """Return the data at this scale, and prepare the model for images of another size than in the last epoch."""
        if scale != self._scale:
            images = cast(ImageDataset, self._dataset)  # only recipes for images scale them
            self._current, self._scale = images.at_scale(scale), scale
            # TensorFlow would trace a step for images of any size, which is slower.
            model.make_train_function(force=True)
            model.make_test_function(force=True)
        return self._current


def training_flops(recipe: Recipe, dataset: Dataset, model: keras.Model) -> float | None:
    """Return the floating-point operations of a run's matrix products and convolutions; `None` if a layer is unknown.

    A multiply-add counts as two operations, and the backward pass as two forward passes.
    """
    steps_per_epoch = dataset.train.steps_per_epoch(recipe.batch_size)
    scales = scales_of(recipe, dataset)
    steps = [min(steps_per_epoch, recipe.steps - epoch * steps_per_epoch) for epoch in range(len(scales))]
    try:
        per_example = {scale: _multiply_adds(model, dataset, scale) for scale in set(scales)}
    except InputError:
        return None
    return 6.0 * recipe.batch_size * sum(n * per_example[scale] for n, scale in zip(steps, scales, strict=True))


def _multiply_adds(model: keras.Model, dataset: Dataset, scale: float) -> int:
    if scale == 1 or not isinstance(dataset, ImageDataset):
        return multiply_adds(model)
    size = dataset.size_at(scale)
    return layer_multiply_adds(model, (None, size, size, dataset.image_shape[-1]))
