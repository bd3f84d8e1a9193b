"""`keras-preact inspect`."""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np

from keras_preact.analysis import Chain, inspect_model, write_inspection
from keras_preact.cli.networks import as_known, model_to_inspect, network_options, saved
from keras_preact.cli.options import RUNS
from keras_preact.console import say
from keras_preact.data import bundled_cifar10
from keras_preact.errors import InputError, check_installed
from keras_preact.models import Tokens
from keras_preact.training import (
    RunConfig,
    RunFolder,
    next_free_folder,
)
from keras_preact.training.evaluation import data_of
from keras_preact.training.provenance import environment


def run(options: argparse.Namespace) -> None:
    check_installed("a report", "matplotlib")
    if options.images < 1:
        raise InputError(f"--images is {options.images}; give at least 1")
    if options.out is not None:
        RunFolder.check_free(options.out)
    options.model = as_known(options.model)
    about = environment()
    keras.utils.set_random_seed(0)  # an untrained network is the same one each time
    model = model_to_inspect(options)
    images, labels, shown = _images_for(model, options)
    config, state = _origin(options)
    config.setdefault("precision", Chain.of(model).links[0].unit.dtype_policy.name)
    found = inspect_model(model, images, labels, shown, state)
    folder = RunFolder.create(options.out or next_free_folder(RUNS, "inspection"))
    page = write_inspection(found, folder.path)
    folder.update_record(kind="inspection", status="finished", environment=about, config=config)
    say(f"{found.path}\nThe report is in {page}.")


def _origin(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what a model to inspect was made of, and how far it is trained, in words."""
    path = saved(options.model)
    if path is None:
        return {"network": options.model, "options": network_options(options.model, options)}, "at initialization"
    if not path.is_dir():
        return {"file": path.name}, f"as saved in {path.name}"
    config = RunConfig.from_dict(RunFolder.open(path).training()["config"])
    trained = f"trained for {config.recipe.steps:,} steps of {config.recipe.batch_size} on {config.dataset}"
    return {**config.to_dict(), "data_dir": None}, trained


def _images_for(model: Any, options: argparse.Namespace) -> tuple[Any, Any, str]:
    """Return images and labels to show a model: of its run, or the bundled ones, or where those do not fit noise."""
    shape, classes, count = tuple(model.input_shape[1:]), model.output_shape[-1], options.images
    path = saved(options.model)
    if path is not None and path.is_dir():
        data = data_of(RunFolder.open(path), options.data_dir)
        if data.task == "forecast":
            raise InputError(f"{options.model} forecasts numbers; inspect tells classes apart: take a classification")
        images, labels = map(np.asarray, next(iter(data.test.test_batches(count))))
        what = "images" if len(shape) == 3 else "sequences"
        return images, labels, f"{len(labels)} test {what} of {data.name}"
    if len(shape) == 1:
        tokens = np.random.default_rng(0).integers(1, Tokens.vocabulary, size=(count, *shape)).astype("int32")
        return tokens, np.arange(count) % classes, f"{count} sequences of random tokens, and labels at random"
    if None in shape:
        raise InputError(f"the network takes images of any size {shape}; build and save it for one size")
    if shape == (32, 32, 3) and classes == 10:
        images, labels = bundled_cifar10().test.batch(np.arange(min(count, 1000)))
        if model.inputs[0].dtype == "uint8":
            return images, labels, f"{len(labels)} bundled test images"
        standard = (images.astype("float32") - images.mean()) / images.std()
        return standard, labels, f"{len(labels)} bundled test images, standardized"
    noise = np.random.default_rng(0).normal(size=(count, *shape)).astype("float32")
    return noise, np.arange(count) % classes, f"{count} images of normal noise, and labels at random"
