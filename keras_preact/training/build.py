"""The model of a run: preprocessing, network, optimizer, loss and metric, compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np

from keras_preact.data import (
    ImageDataset,
    ImageSplit,
    PadCropFlip,
    PerPixelMean,
    SequenceDataset,
)
from keras_preact.errors import InputError
from keras_preact.models import (
    TRANSFORMERS,
    Classification,
    Forecast,
    NextToken,
    Patches,
    Series,
    Tokens,
    get_network,
    options_of,
)
from keras_preact.models.resnet import with_policy
from keras_preact.models.trained import refuse_other_pixels
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.device import check_precision, compiles_with_xla, make_deterministic, precision_policy
from keras_preact.training.distribute import (
    synchronize,
)
from keras_preact.training.tasks import TASKS


def build_model(config: RunConfig, dataset: Dataset) -> keras.Model:
    """Build and compile the model of a run: the data as they are in, logits or a forecast out.

    What is done to the data first (mean, augmentation, standardization) are layers of it.

    Args:
        config: of the run.
        dataset: gives shapes, classes, and the mean.

    Returns:
        A compiled `keras.Model`: input (batch, height, width, channels) uint8, or sequences as the data set has them;
        output (batch, classes), (batch, length, vocabulary) or (batch, horizon, targets), float32.

    Raises:
        InputError: the network does not take these options or data.

    Example:

    >>> config = RunConfig(options={"depth": 8})
    >>> model = build_model(config, config.load_dataset())
    >>> model.input.dtype, model.output_shape
    ('uint8', (None, 10))
    """
    check_precision(config.precision)
    if config.deterministic:
        make_deterministic()
    keras.utils.set_random_seed(config.seed)
    task = TASKS[dataset.task]
    with precision_policy(config.precision):
        model = _of_sequences(config, dataset) if isinstance(dataset, SequenceDataset) else _of_images(config, dataset)
        if config.sync_batch_norm and is_mirrored(config):
            synchronize(model)
        model.compile(
            _scaled(config.recipe.optimizer(), model),
            task.loss(),
            metrics=[task.metric()],
            jit_compile=compiles_with_xla() and not is_mirrored(config),
        )
        _build_state(model, dataset)
    return model


def _check_options(config: RunConfig) -> None:
    """Refuse options that the network does not have."""
    known = options_of(config.network) | ({"patch"} if config.network in TRANSFORMERS else set())
    if unknown := sorted(set(config.options) - known):
        raise InputError(f"{config.network} does not take these options: {', '.join(unknown)}; leave them out")


def _scaled(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> keras.optimizers.Optimizer:
    """Return the optimizer, below a loss scale where the model computes in float16.

    Keras's `compile` would do so too, but saves the optimizer without it: whoever loads the model trains on unscaled.
    """
    is_half = model.dtype_policy.name == "mixed_float16"
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer") if is_half else optimizer


def is_mirrored(config: RunConfig) -> bool:
    """Whether TensorFlow trains on several devices: XLA does not get along with that and a loss scale."""
    return config.devices > 1 and keras.backend.backend() == "tensorflow"


def _network_options(config: RunConfig) -> dict[str, Any]:
    """Return the network's arguments: a run trains whatever form of long stages is faster on its backend."""
    return {"rolled": None, **config.options}


def _of_images(config: RunConfig, dataset: ImageDataset) -> keras.Model:
    _check_options(config)
    images = keras.Input(dataset.image_shape, dtype="uint8", name="images")
    x = _prepared(images, config, dataset.train)
    network, options = get_network(config.network), _network_options(config)
    if config.network in TRANSFORMERS:
        inputs = Patches(dataset.image_shape, options.pop("patch", Patches.size))
        return refuse_other_pixels(network(inputs, Classification(dataset.classes), input_tensor=x, **options))
    options.setdefault("data_format", "channels_last")  # the data's, whatever Keras is set to
    return refuse_other_pixels(network(input_tensor=x, classes=dataset.classes, **options))


def _prepared(images: Any, config: RunConfig, train: ImageSplit) -> Any:
    """Return images as the recipe has them come to the network: their pixels scaled, padded, cropped and flipped."""
    # The data's format, whatever Keras is set to.
    options: dict[str, Any] = {"seed": config.seed, "data_format": "channels_last", "name": "augmentation"}
    augmented = PadCropFlip(config.recipe.padding, **options) if config.recipe.augment else lambda x: x
    if config.recipe.inputs == "per_image":  # of what is left by the crop, its black border included
        pixels = keras.layers.Rescaling(1.0, dtype="float32", name="pixels")(images)
        standardize = {"center": False, "scale": False, "epsilon": 1e-3, "dtype": "float32"}
        return keras.layers.LayerNormalization((1, 2, 3), **standardize, name="standardization")(augmented(pixels))
    if config.recipe.inputs == "per_channel":
        mean, deviation = train.channel_moments()
        moments = {"mean": mean.tolist(), "variance": np.square(deviation).tolist()}
        return augmented(keras.layers.Normalization(**moments, dtype="float32", name="standardization")(images))
    centred = PerPixelMean(name="per_pixel_mean")  # of 0, until it is adapted
    x = augmented(centred(images))
    if config.recipe.inputs == "per_pixel_mean":
        centred.adapt(train)
    return x


def _of_sequences(config: RunConfig, dataset: SequenceDataset) -> keras.Model:
    if config.network not in TRANSFORMERS:
        known = ", ".join(TRANSFORMERS)
        raise InputError(f"{config.network} takes images, and {dataset.name} has sequences; take one of {known}")
    _check_options(config)
    network = get_network(config.network)
    if dataset.task == "forecast":
        return _forecaster(partial(network, **_network_options(config)), dataset)
    padded = dataset.task == "classification"
    inputs = Tokens(len(dataset.vocabulary), dataset.length, padded)
    head = Classification(dataset.classes) if padded else NextToken(len(dataset.vocabulary))
    return network(inputs, head, **_network_options(config))


def _forecaster(network: Any, dataset: SequenceDataset) -> keras.Model:
    """Return the network between a standardization of its inputs and the opposite of one of its outputs."""
    past, future = dataset.train.sequences, dataset.train.labels
    mean, variance = past.mean((0, 1), dtype="float64").tolist(), past.var((0, 1), dtype="float64").tolist()
    inputs = Series(dataset.length, past.shape[-1])
    series = inputs.tensor()
    x = keras.layers.Normalization(mean=mean, variance=variance, dtype="float32", name="standardization")(series)
    inner = network(inputs, Forecast(*future.shape[1:]), input_tensor=x)
    scale, offset = float(future.std()), float(future.mean())
    outputs = keras.layers.Rescaling(scale, offset, dtype="float32", name="units")(inner.output)
    return with_policy(keras.Model(series, outputs, name=inner.name), inner.dtype_policy)


def _build_state(model: keras.Model, dataset: Dataset) -> None:
    """Make the variables of optimizer and metrics, which Keras leaves to the first step: checkpoints hold them."""
    model.optimizer.build(model.trainable_variables)
    shape, dtype = dataset.train.signature[1]
    labels, outputs = keras.ops.zeros((1, *shape), dtype), keras.ops.zeros((1, *model.output_shape[1:]))
    model.compute_loss(y=labels, y_pred=outputs)
    model.compute_metrics(None, labels, outputs)
    model.reset_metrics()
