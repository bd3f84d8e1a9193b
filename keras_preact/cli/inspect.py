"""`keras-preact inspect`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_preact.analysis import Chain, inspect_model, write_inspection
from keras_preact.analysis.inspection import UNTRAINED
from keras_preact.cli.networks import as_known, model_to_inspect, network_options, saved, trained
from keras_preact.cli.options import RUNS, option
from keras_preact.console import say
from keras_preact.data import bundled_cifar10, load_dataset
from keras_preact.data.bundled import CIFAR10_CLASSES
from keras_preact.data.splits import SMALLEST_IMAGE
from keras_preact.errors import InputError, check_installed, check_positive
from keras_preact.models.rewiring import check_functional
from keras_preact.models.transformer import vocabulary_of
from keras_preact.training import RunConfig, RunFolder, next_free_folder
from keras_preact.training.device import seeded
from keras_preact.training.evaluation import data_of
from keras_preact.training.provenance import environment


def run(options: argparse.Namespace) -> None:
    check_installed("a report", "matplotlib")
    check_positive("--images", options.images)
    if options.out is not None:
        RunFolder.check_free(options.out)
    options.model = as_known(options.model)
    about = environment()
    with seeded(0):  # the same untrained network every time
        model = model_to_inspect(options)
    check_functional(model, "inspected")
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        counts = f"{len(model.inputs)} and {len(model.outputs)}"
        raise InputError(f"{options.model} must have one input and one output, not {counts}; save a part that has")
    chain = Chain.of(model)
    images, labels, shown = _images_for(model, options)
    _check_classifies(model, chain.activation, options.model)
    config, state = _origin(options)
    config.setdefault("precision", chain.links[0].unit.dtype_policy.name)
    found = inspect_model(model, images, labels, shown, state, _has_own_data(options.model))
    folder = RunFolder.create(options.out or next_free_folder(RUNS, "inspection"))
    page = write_inspection(found, folder.path)
    folder.update_record(kind="inspection", status="finished", environment=about, config=config)
    say(f"{found.path}\nThe report is in {page}.")


def _check_classifies(model: Any, activation: str, name: str) -> None:
    """Raise InputError unless a network has a score for each class, which `inspect` needs for its loss."""
    *outputs, classes = model.output_shape[1:]
    fault = ""
    if outputs and len(model.input_shape) > 2:  # networks of tokens may have scores for each token
        fault = f"outputs of shape {tuple(model.output_shape)}, not a score for each class"
    elif classes == 1:
        fault = "a single output, not a score for each class"
    elif "sigmoid" in activation:
        fault = f"a {activation} at its end, not logits or a softmax"
    if fault:
        raise InputError(f"{name} has {fault}; inspect a classifier with at least two exclusive classes")


def _origin(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the configuration of a model to inspect, and how it was trained, in words."""
    path, about = saved(options.model), trained(options.model)
    if about is not None:
        return {"network": about.network, "options": about.options}, f"trained: {about.name}"
    if path is None:
        return {"network": options.model, "options": network_options(options.model, options)}, UNTRAINED
    if not path.is_dir():
        return {"file": path.name}, f"as saved in {path.name}"
    config = RunConfig.from_dict(RunFolder.open(path).training()["config"])
    told = f"trained for {config.recipe.steps:,} steps of {config.recipe.batch_size} on {config.dataset}"
    return {**config.to_dict(), "data_dir": None}, told


def _has_own_data(model: str) -> bool:
    """Return whether a model is inspected on its own test data: that of a run, or of a trained network by name."""
    path = saved(model)
    return trained(model) is not None or (path is not None and path.is_dir())


def _images_for(model: Any, options: argparse.Namespace) -> tuple[Any, Any, str]:
    """Return inputs and labels for a model, and their description: from its run, bundled images, or else noise."""
    shape, classes, count = tuple(model.input_shape[1:]), model.output_shape[-1], options.images
    path = saved(options.model)
    if path is not None and path.is_dir():
        data = data_of(RunFolder.open(path), options.data_dir)
        if data.task == "forecast":
            raise InputError(f"{options.model} forecasts numbers; inspect needs a network that predicts classes")
        images, labels = map(np.asarray, next(iter(data.test.test_batches(count))))
        what = "images" if len(shape) == 3 else "sequences"
        return images, labels, f"{len(labels)} test {what} of {data.name}"
    if options.data_dir is not None:
        raise InputError(f"{options.model} is not a run, so it has no data of its own; leave out {option('data_dir')}")
    if None in shape:
        what = "images of any size" if len(shape) == 3 else "sequences of any length"
        raise InputError(f"the network accepts {what}; build and save it for a fixed {what.split()[-1]}")
    about = trained(options.model)
    if about is not None and about.vocabulary:
        test = load_dataset(about.dataset).test
        tokens, labels = test.batch(np.arange(min(count, len(test))))
        return tokens, labels, f"{len(labels)} test sequences of {about.dataset}"
    if len(shape) == 1:
        tokens = np.random.default_rng(0).integers(1, vocabulary_of(model), size=(count, *shape))
        outputs = (count, *model.output_shape[1:-1])  # a label for each sequence, or for each token
        labels = np.arange(math.prod(outputs)).reshape(outputs) % classes
        return tokens.astype("int32"), labels, f"{count} sequences of random tokens with arbitrary labels"
    names = CIFAR10_CLASSES if about is None else about.classes
    return _images(shape, names if len(names) == classes else (), classes, count, model.inputs[0].dtype == "uint8")


def _images(
    shape: tuple[int, ...], names: Sequence[str], classes: int, count: int, pixels: bool
) -> tuple[np.ndarray, np.ndarray, str]:
    """Return bundled test images where they fit, or else noise: uint8 `pixels`, or standardized."""
    arbitrary, size = np.arange(count) % classes, shape[0]
    known = bool(names) and set(names) <= set(CIFAR10_CLASSES)
    if shape == (size, size, 3) and SMALLEST_IMAGE <= size <= 32 and (pixels or (size == 32 and known)):
        data = bundled_cifar10()
        test = (data.only(names) if known else data).test.at(size)
        images, labels = test.batch(np.arange(min(count, len(test))))
        if not known:
            return images, arbitrary[: len(images)], f"{len(images)} bundled test images with arbitrary labels"
        if pixels:
            return images, labels, f"{len(labels)} bundled test images"
        standard = ((images - images.mean()) / images.std()).astype("float32")
        return standard, labels, f"{len(labels)} bundled test images, standardized"
    rng = np.random.default_rng(0)
    if pixels:
        noise = rng.integers(0, 256, size=(count, *shape)).astype("uint8")
        return noise, arbitrary, f"{count} images of random pixels with arbitrary labels"
    noise = rng.normal(size=(count, *shape)).astype("float32")
    what = "images" if len(shape) == 3 else "sequences"
    return noise, arbitrary, f"{count} {what} of Gaussian noise with arbitrary labels"
