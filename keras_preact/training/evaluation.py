"""Measuring the test error of a finished run, on its own or other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from keras_preact.data import feed, original_errors
from keras_preact.data.load import is_bundled
from keras_preact.data.sequences import SequenceDataset
from keras_preact.data.splits import ARRAYS, check_image_size
from keras_preact.errors import InputError, MissingPackage, shown
from keras_preact.models import load_model, resized
from keras_preact.training.config import Dataset, RunConfig, check_dataset
from keras_preact.training.device import compiles_with_xla
from keras_preact.training.runs import RunFolder
from keras_preact.training.tasks import TASKS

TEST_BATCH = 250


def data_of(folder: RunFolder, data_dir: str | None = None) -> Dataset:
    """Load the data that a run was trained and tested on.

    Args:
        folder: the run folder.
        data_dir: the data's current folder, if it has moved.

    Raises:
        InputError: the data are missing or differ from the recorded ones, or the run was trained on arrays.
    """
    record = folder.training("data")
    config = RunConfig.from_dict(record["config"])
    if record["data"].get("source") == ARRAYS:
        raise InputError(f"{folder.path} was trained on arrays; pass them again in Python, with dataset=")
    if data_dir is not None and is_bundled(config.dataset):
        raise InputError(
            f"the data of {folder.path} ({config.dataset}) come with the package; leave out data_dir (--data-dir)"
        )
    try:
        dataset = config.load_dataset(data_dir)
    except MissingPackage:
        raise  # another folder would not help
    except InputError as error:
        raise InputError(f"{error}; pass the current folder of the run's data as data_dir (--data-dir)") from None
    return check_recorded(dataset, folder)


def check_one_source(dataset: Dataset | None, data_dir: str | None) -> None:
    """Raise InputError if data were passed together with a folder to load them from."""
    if dataset is not None and data_dir is not None:
        raise InputError(
            "dataset and data_dir were both passed; pass the data, or the folder from which the run's own are loaded"
        )


def check_recorded(dataset: Dataset, folder: RunFolder) -> Dataset:
    """Return the data if their fingerprint is the recorded one.

    Raises:
        InputError: it is not.
    """
    recorded = folder.training("data")["data"]
    if check_dataset(dataset).fingerprint() != recorded.get("sha256"):
        raise InputError(
            f"the data differ from those that {folder.path} started with ({recorded.get('name')}); use the same data, "
            "or start a new run"
        )
    return dataset


def _check_fits(dataset: Dataset, model: keras.Model, recorded: dict[str, Any]) -> None:
    """Raise InputError if a model cannot be tested on this data set; `recorded` describes the data of its run."""
    expected, outputs = tuple(model.input_shape[1:]), tuple(model.output_shape[1:])
    (shape, _), (targets, _) = dataset.train.signature
    if shape != expected:
        raise InputError(
            f"the {dataset.kind} of {dataset.name} have shape {shape}; use data of the run's shape, {expected}"
        )
    if dataset.task != (trained_for := recorded.get("task", dataset.task)):
        raise InputError(f"{dataset.name} is for {dataset.task}, but the run's network was trained for {trained_for}")
    if dataset.task == "forecast" and tuple(targets) != outputs:
        raise InputError(
            f"the targets of {dataset.name} have shape {tuple(targets)}; use data of the run's horizon and targets, "
            f"{outputs}"
        )
    if dataset.task == "classification" and dataset.classes > outputs[-1]:
        raise InputError(
            f"{dataset.name} has {dataset.classes} classes, but the run's network has {outputs[-1]}; use data with at "
            f"most {outputs[-1]}"
        )
    _check_meaning(dataset, recorded)


def _check_meaning(dataset: Dataset, recorded: dict[str, Any]) -> None:
    """Raise InputError if labels or tokens mean something else than in training, as far as the run recorded it."""
    trained, names = recorded.get("class_names") or [], list(dataset.class_names)
    are_numbers = [str(number) for number in range(len(names))] == names or (trained and trained[0] == "0")
    if trained and names != trained[: len(names)] and not are_numbers:
        raise InputError(
            f"the classes of {dataset.name} are {shown(', '.join(names))}, but the run's network was trained on "
            f"{shown(', '.join(trained))}; use data with the same classes in the same order, or the first of them"
        )
    known = recorded.get("vocabulary_sha256")
    if isinstance(dataset, SequenceDataset) and known not in (None, dataset.vocabulary_sha256):
        raise InputError(f"{dataset.name} has a different vocabulary from the run's data; use the run's vocabulary")


def evaluate(
    path: str | Path,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    image_size: int | None = None,
    short_side: int | None = None,
) -> dict[str, float]:
    """Measure the test loss and test error of a run's saved model.

    Args:
        path: the run folder.
        dataset: the data to test on. Default: those of the run.
        data_dir: the current folder of the run's data, if it has moved.
        image_size: height and width of the test images in pixels; for example 320 for a network trained on 224. Images
            read from files are cropped to it; images in memory are reduced to it by area averaging. The network is
            `resized` to it. Default: as in training.
        short_side: length to which the short side of each image read from a file is scaled before the crop, in pixels.
            Default: in the same proportion to the crop as in the run's own test images.

    Returns:
        `test_loss`, and `test_error` in percent; of a forecast, the mean absolute error in the data's unit.

    Raises:
        InputError: there is no such run; it has no trained model yet; its data are missing or have changed; `dataset`
            and `data_dir` are both passed; the data have another shape, task or horizon, other classes or another
            vocabulary; or the images or the network cannot be resized.
    """
    folder = RunFolder.open(path)
    file = folder.trained_model()
    record = folder.training("data")
    check_one_source(dataset, data_dir)
    dataset = data_of(folder, data_dir) if dataset is None else check_dataset(dataset)
    model = load_model(file, compile=False)
    _check_fits(dataset, model, record["data"])
    test = dataset.test
    if image_size is not None or short_side is not None:
        size = model.input_shape[1] if image_size is None else check_image_size(image_size)
        test = test.at(size, short_side)
        model = resized(model, size)
    task = TASKS[dataset.task]
    loss = RunConfig.from_dict(record["config"]).recipe.loss(task)
    model.compile(loss=loss, metrics=[task.metric()], jit_compile=compiles_with_xla())
    batches = test.test_batches(TEST_BATCH)
    with original_errors(batches):
        test_loss, metric = model.evaluate(feed(batches), verbose=0)
    return {"test_loss": float(test_loss), "test_error": task.error(float(metric))}
