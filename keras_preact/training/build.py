"""The model of a run: preprocessing, network, optimizer, loss and metric, compiled."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_preact.data import ImageDataset, ImageSplit, PadCropFlip, PerPixelMean, SequenceDataset
from keras_preact.errors import InputError, first_line
from keras_preact.models import (
    Classification,
    Forecast,
    NextToken,
    Series,
    Tokens,
    get_entry,
)
from keras_preact.models.resnet import with_policy
from keras_preact.models.trained import accept_any_size, require_uint8
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.device import (
    check_precision,
    compiles_with_xla,
    make_deterministic,
    precision_policy,
    seeded,
)
from keras_preact.training.distribute import synchronize
from keras_preact.training.tasks import TASKS


def build_model(config: RunConfig, dataset: Dataset) -> keras.Model:
    """Build and compile the model of a run: raw data in, logits or a forecast out.

    Preprocessing (mean, augmentation, standardization) is part of the model, as layers. The seed in `config`
    determines the weights; the program's own random generators go on as before.

    Args:
        config: the run's configuration.
        dataset: supplies the shapes, the number of classes, and the mean.

    Returns:
        A compiled `keras.Model`. Input: (batch, height, width, channels), uint8, or sequences as in the data set.
        Output: (batch, classes), (batch, length, vocabulary) or (batch, horizon, targets), float32.

    Raises:
        InputError: the network does not accept these options or data.

    Example:

    >>> config = RunConfig(options={"depth": 8})
    >>> model = build_model(config, config.load_dataset())
    >>> model.input.dtype, model.output_shape
    ('uint8', (None, 10))
    """
    check_precision(config.precision)
    if config.deterministic:
        make_deterministic()
    task = TASKS[dataset.task]
    with seeded(config.seed), precision_policy(config.precision):
        model = _MODELS[dataset.kind](config, dataset)
        if config.sync_batch_norm and is_mirrored(config):
            synchronize(model)
        optimizer = config.recipe.optimizer()
        _check_optimizer(optimizer)
        model.compile(
            _with_loss_scale(optimizer, model),
            config.recipe.loss(task),
            metrics=[task.metric()],
            jit_compile=compiles_with_xla() and not is_mirrored(config),
        )
        _build_state(model, dataset)
    return model


_DECIDED_BY_RUNS = {
    *("inputs", "input_tensor", "input_shape", "classes", "head", "include_top", "pooling", "classifier_activation"),
    "dtype",
}
"""Arguments of networks that follow from the data, the task and the precision."""


def _network_options(config: RunConfig) -> dict[str, Any]:
    """Return the network's arguments. By default, runs roll long stages if that is faster on the backend.

    Raises:
        InputError: the network has no such options.
    """
    if unknown := sorted(config.options.keys() - get_entry(config.network).options):
        raise InputError(f"{config.network} does not accept these options: {', '.join(unknown)}; leave them out")
    if decided := sorted(config.options.keys() & _DECIDED_BY_RUNS):
        raise InputError(
            f"a run chooses {', '.join(decided)} itself, from its data and its precision; leave these options out"
        )
    return {"rolled": None, **config.options}


def _check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Refuse an optimizer that a run cannot resume exactly, or whose model could not be saved after the last step."""
    if getattr(optimizer, "inner_optimizer", optimizer).use_ema:
        # Keras replaces the weights by their average at the end of `fit`, which a run calls several times.
        raise InputError("a run cannot average its weights; create the recipe's optimizer without use_ema=True")
    try:
        keras.saving.serialize_keras_object(optimizer)
    except NotImplementedError as error:
        raise InputError(
            f"the optimizer cannot be saved ({first_line(error)}); define get_config in its class or its schedule"
        ) from None


def _with_loss_scale(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> keras.optimizers.Optimizer:
    """Wrap the optimizer in a loss scale if the model computes in float16.

    Keras's `compile` would do this too, but saves the bare optimizer: a loaded model would train without a loss scale.
    """
    if model.dtype_policy.name != "mixed_float16" or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


def is_mirrored(config: RunConfig) -> bool:
    """Whether TensorFlow trains on several devices. XLA is incompatible with that and a loss scale."""
    return config.devices > 1 and keras.backend.backend() == "tensorflow"


def _image_model(config: RunConfig, dataset: ImageDataset) -> keras.Model:
    options = _network_options(config)
    images = keras.Input(dataset.image_shape, dtype="uint8", name="images")
    x = _preprocess(images, config, dataset.train)
    model = require_uint8(get_entry(config.network).on_images(x, dataset.classes, options))
    if config.recipe.scales_images:
        accept_any_size(model)
    return model


def _preprocess(images: Any, config: RunConfig, train: ImageSplit) -> Any:
    """Scale, pad, crop and flip images as the recipe says."""
    options: dict[str, Any] = {"seed": config.seed, "data_format": "channels_last", "name": "augmentation"}
    augmented = (
        PadCropFlip(config.recipe.crop_padding(train.image_shape), **options) if config.recipe.augment else lambda x: x
    )
    if config.recipe.inputs == "per_image":  # after the crop, including its black border
        pixels = keras.layers.Rescaling(1.0, dtype="float32", name="pixels")(images)
        standardize = {"center": False, "scale": False, "epsilon": 1e-3, "dtype": "float32"}
        return keras.layers.LayerNormalization((1, 2, 3), **standardize, name="standardization")(augmented(pixels))
    if config.recipe.inputs == "per_channel":
        mean, deviation = train.channel_moments()
        moments = {"mean": mean.tolist(), "variance": np.square(deviation).tolist()}
        return augmented(keras.layers.Normalization(**moments, dtype="float32", name="standardization")(images))
    subtract_mean = PerPixelMean(name="per_pixel_mean")  # the mean is 0 until `adapt`
    x = augmented(subtract_mean(images))
    if config.recipe.inputs == "per_pixel_mean":
        subtract_mean.set_mean(train.mean())
    return x


def _sequence_model(config: RunConfig, dataset: SequenceDataset) -> keras.Model:
    network, options = get_entry(config.network).on_sequences, _network_options(config)
    if dataset.task == "forecast":
        return _forecast_model(network, dataset, options)
    padded = dataset.task == "classification"
    inputs = Tokens(len(dataset.vocabulary), dataset.length, padded)
    head = Classification(dataset.classes) if padded else NextToken(len(dataset.vocabulary))
    return network(inputs, head, options)


def _forecast_model(network: Any, dataset: SequenceDataset, options: dict[str, Any]) -> keras.Model:
    """Standardize the inputs, apply the network, and scale its outputs back to the data's unit."""
    past, future = dataset.train.sequences, dataset.train.labels
    mean, variance = past.mean((0, 1), dtype="float64").tolist(), past.var((0, 1), dtype="float64").tolist()
    inputs = Series(dataset.length, past.shape[-1])
    series = inputs.tensor()
    x = keras.layers.Normalization(mean=mean, variance=variance, dtype="float32", name="standardization")(series)
    inner = network(inputs, Forecast(*future.shape[1:]), {"input_tensor": x, **options})
    scale, offset = float(future.std()), float(future.mean())
    outputs = keras.layers.Rescaling(scale, offset, dtype="float32", name="units")(inner.output)
    return with_policy(keras.Model(series, outputs, name=inner.name), inner.dtype_policy)


_MODELS: dict[str, Any] = {"images": _image_model, "sequences": _sequence_model}


def _build_state(model: keras.Model, dataset: Dataset) -> None:
    """Create the variables of optimizer and metrics now: checkpoints hold them, and Keras waits for the first step."""
    model.optimizer.build(model.trainable_variables)
    shape, dtype = dataset.train.signature[1]
    labels, outputs = keras.ops.zeros((1, *shape), dtype), keras.ops.zeros((1, *model.output_shape[1:]))
    model.compute_loss(y=labels, y_pred=outputs)
    model.compute_metrics(None, labels, outputs)
    model.reset_metrics()
