"""Measuring the test error of a finished run again, on its own data or on others."""

from __future__ import annotations

from pathlib import Path

from keras_preact.data import (
    ImageSplit,
    SequenceDataset,
    as_input_errors,
    feed,
)
from keras_preact.data.sequences import SEQUENCES
from keras_preact.errors import InputError, check_positive
from keras_preact.models import (
    load_model,
    resized,
)
from keras_preact.training.config import Dataset, RunConfig
from keras_preact.training.device import compiles_with_xla
from keras_preact.training.runs import RunFolder
from keras_preact.training.tasks import TASKS

TEST_BATCH = 250


def data_of(folder: RunFolder, data_dir: str | None = None) -> Dataset:
    """Return the data that a run was trained and tested on.

    Args:
        folder: of the run.
        data_dir: where they are now, if they have moved.

    Raises:
        InputError: they are not there, or are others: those of a run that was given arrays cannot be found by name.
    """
    config = RunConfig.from_dict(folder.training()["config"])
    if data_dir is not None and (config.dataset == "bundled" or config.dataset in SEQUENCES):
        raise InputError(f"the data of {folder.path}, {config.dataset}, come with the package; leave out --data-dir")
    try:
        dataset = config.load_dataset(data_dir)
    except InputError as error:
        raise InputError(
            f"{error}; name the folder where they are now (--data-dir) or, if the run was given arrays, give them "
            "again (dataset=)"
        ) from None
    return check_recorded(dataset, folder)


def check_recorded(dataset: Dataset, folder: RunFolder) -> Dataset:
    """Return the data if they are those of the run's record."""
    recorded = folder.training("data")["data"]
    if dataset.fingerprint() != recorded.get("sha256"):
        raise InputError(
            f"the data are not those that {folder.path} began with ({recorded.get('name')}); give the same data, or "
            "start a new run"
        )
    return dataset


def evaluate(
    path: str | Path,
    dataset: Dataset | None = None,
    data_dir: str | None = None,
    image_size: int | None = None,
    short_side: int | None = None,
) -> dict[str, float]:
    """Return the test loss and test error (percent) of a run's saved model, measured now.

    Args:
        path: the run folder.
        dataset: other data to measure on; default: those of the run.
        data_dir: where the run's data are now, if they have moved.
        image_size: pixels of the square that is cut out of each test image, as 320 for a network that was trained on
            224; default: as in training. The network is `resized` for it.
        short_side: pixels to which an image's short side is brought before that; default: in the proportion of the
            run's own test images.

    Raises:
        InputError: no such run, no model in it yet, other data than the run's where none were given, data of another
            shape or with other classes, or another size where images or network have but one.
    """
    folder = RunFolder.open(path)
    file = folder.trained_model()
    dataset = dataset or data_of(folder, data_dir)
    model = load_model(file, compile=False)
    expected, classes = tuple(model.input_shape[1:]), model.output_shape[-1]
    what = "sequences" if isinstance(dataset, SequenceDataset) else "images"
    if (shape := dataset.train.signature[0][0]) != expected:
        raise InputError(f"the {what} of {dataset.name} are {shape}, the run's are {expected}")
    if dataset.task == "classification" and dataset.classes > classes:
        raise InputError(f"{dataset.name} has {dataset.classes} classes, the run's network tells {classes} apart")
    test = dataset.test
    if image_size is not None or short_side is not None:
        if not isinstance(test, ImageSplit):
            raise InputError(f"{dataset.name} has sequences, not images; leave out the image size")
        size = expected[0] if image_size is None else check_positive("the image size", image_size)
        test = test.at(size, short_side)
        model = resized(model, size)
    task = TASKS[dataset.task]
    model.compile(loss=task.loss(), metrics=[task.metric()], jit_compile=compiles_with_xla())
    batches = test.test_batches(TEST_BATCH)
    with as_input_errors(batches):
        loss, metric = model.evaluate(feed(batches), verbose=0)
    return {"test_loss": float(loss), "test_error": task.error(float(metric))}
