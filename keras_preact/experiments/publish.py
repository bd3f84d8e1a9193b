"""Publish the network of a finished run: its weights, and its entry in the catalogue of trained networks."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.data.bundled import CIFAR10_CLASSES
from keras_preact.data.sequences import SEQUENCES
from keras_preact.errors import InputError
from keras_preact.experiments.store import Run, Store
from keras_preact.files import write_atomically
from keras_preact.models import load_model
from keras_preact.models.cards import card, page
from keras_preact.models.catalogue import Pretrained, catalogue, untrained
from keras_preact.models.saving.named_weights import assign_checked
from keras_preact.models.saving.safetensors import as_arrays, read_safetensors, save_safetensors, tensors_checksum
from keras_preact.training.config import RunConfig
from keras_preact.training.runs import RunFolder

IN_WHEEL = 2**20
"""Size in bytes up to which a weights file is part of the package."""
BATCH = 500
"""Number of test images per call of a network."""
LARGEST = 4_000_000
"""Size in bytes up to which a weights file is part of the repository."""
LICENSES = {
    "cifar10": "CIFAR-10 names no license; its authors ask for a citation: A. Krizhevsky, Learning Multiple Layers of "
    "Features from Tiny Images, 2009",
    "reviews": "MIT (C. J. Hutto, vaderSentiment)",
}
"""Terms of the data sets, by name."""


def publish(run: RunFolder, name: str, root: Path, data_dir: str | None = None) -> Pretrained:
    """Add the network of a finished run to the catalogue, with its weights as float16, and write its card.

    Args:
        run: a finished run on CIFAR-10 or on the film reviews, with its `model.keras`. It must be a stored run.
        name: name of the trained network.
        root: a checkout of the repository.
        data_dir: folder of the data.

    Returns:
        The new entry. Its errors are those of the published weights.

    Raises:
        InputError: the run is not finished or not stored, its data are others, its weights are not those of the stored
            run, or they exceed 4 MB. Nothing is changed.
    """
    config = RunConfig.from_dict(run.training()["config"])
    store = Store([root / "results"])
    if config.dataset not in LICENSES:
        raise InputError(
            f"{run.path} was trained on {config.dataset}; only networks of {', '.join(LICENSES)} are published"
        )
    stored = store.find(config)
    if stored is None:
        raise InputError(f"{run.path} is not among the stored runs; store it first, with keras-preact results --keep")
    model = load_model(run.trained_model(), compile=False)
    digest = stored.record.get("weights", {}).get("sha256")  # older runs have none
    if digest not in (None, tensors_checksum(as_arrays(model, "float16"))):
        raise InputError(f"{run.path} has other weights than the stored run {stored.folder.path}; publish that run")
    small, large = root / "keras_preact" / "weights", root / "weights"
    aside = small / f"{name}.safetensors.new"
    try:
        save_safetensors(model, aside, "float16")
        size = aside.stat().st_size
        if size > LARGEST:
            raise InputError(f"the weights of {run.path} have {size:,} bytes; at most {LARGEST:,} are published")
        about = _described(stored, name, model, store, aside, data_dir or config.data_dir)
        folder, other = (small, large) if size <= IN_WHEEL else (large, small)
        folder.mkdir(exist_ok=True)
        aside.replace(folder / about.file)
    finally:
        aside.unlink(missing_ok=True)
    (other / about.file).unlink(missing_ok=True)  # if the size of published weights has changed
    entries = catalogue() | {name: about}
    text = json.dumps({key: entries[key].to_dict() for key in sorted(entries)}, indent=1, ensure_ascii=False)
    write_atomically(small / "catalogue.json", text + "\n")
    catalogue.cache_clear()
    write_atomically(root / "docs" / "pretrained.md", page())
    return about


def _data(config: RunConfig, data_dir: str | None) -> Any:
    """Return the data of a run; of CIFAR-10 with the names of its classes, which prepared copies may lack."""
    dataset = replace(config, only=None).load_dataset(data_dir)
    if dataset.kind == "images":
        dataset = replace(dataset, class_names=CIFAR10_CLASSES)
    return dataset.only(config.only) if config.only else dataset


def _described(run: Run, name: str, model: keras.Model, store: Store, file: Path, data_dir: str | None) -> Pretrained:
    """Return the catalogue's entry, with the errors of the network that the file's weights make."""
    record, config = run.record, run.config
    size, count = config.image_size, len(config.only or ())
    dataset = _data(config, data_dir)
    about: dict[str, Any] = {
        "network": config.network,
        "options": config.options,
        "dataset": config.dataset + (f"_{size}px" if size else "") + (f"_{count}classes" if count else ""),
        "input_shape": list(model.input_shape[1:]),
        "classes": list(dataset.class_names),
        "vocabulary": len(getattr(dataset, "vocabulary", ())),
        "moments": _moments(model),
        "parameters": record["model"]["trainable_parameters"],
        "run": run.folder.path.name,
        "recipe": {
            "name": config.recipe.name,
            "steps": config.recipe.steps,
            "batch_size": config.recipe.batch_size,
            "seed": config.seed,
            "precision": config.precision,
        },
        "seeds": [other.error for other in store.with_any_seed(config)],
        "core_hours": round(record["cpu_seconds"] / 3600, 2) if "cpu_seconds" in record else None,
        "data_license": LICENSES[config.dataset],
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }
    network = untrained(Pretrained.from_dict(name, {**about, **dict.fromkeys(_MEASURED)}), dtype="float32")
    assign_checked(file.name, network, read_safetensors(file))
    in_package = (
        dataset if config.dataset in SEQUENCES else _data(replace(config, dataset="bundled", data_dir=None), None)
    )
    return Pretrained.from_dict(name, about | _measured(network, dataset, in_package))


_MEASURED = ("test_size", "test_error", "class_errors", "confidence", "calibration_error", "bundled_errors")


def _moments(model: keras.Model) -> list[list[float]] | None:
    """Return mean and standard deviation of the channels, with which a run's model standardizes its images."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):
            mean, variance = (np.ravel(keras.ops.convert_to_numpy(x)) for x in (layer.mean, layer.variance))
            return [[round(float(v), 4) for v in mean], [round(float(v), 4) for v in np.sqrt(variance)]]
    return None


def _measured(network: keras.Model, dataset: Any, in_package: Any) -> dict[str, Any]:
    """Measure the errors on the test data of the run and on those that come with the package."""
    logits, labels = _predicted(network, dataset)
    of_bundled, true = _predicted(network, in_package)
    wrong = logits.argmax(-1) != labels
    return {
        "test_size": len(labels),
        "test_error": round(float(100 * wrong.mean()), 2),
        "class_errors": [round(float(100 * wrong[labels == label].mean()), 2) for label in range(logits.shape[-1])],
        "confidence": round(float(100 * softmax(logits).max(-1).mean()), 2),
        "calibration_error": round(calibration_error(logits, labels), 2),
        "bundled_errors": int((of_bundled.argmax(-1) != true).sum()),
    }


def _predicted(network: keras.Model, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of all test data, and their labels."""
    pairs = list(_batches(dataset))
    logits = [network.predict_on_batch(inputs) for inputs, _ in pairs]
    return np.concatenate(logits), np.concatenate([labels for _, labels in pairs])


def _batches(dataset: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, len(dataset.test), BATCH):
        yield dataset.test.batch(np.arange(first, min(first + BATCH, len(dataset.test))))


def calibration_error(logits: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error in percent: Σ (share of a bin) · |accuracy − confidence|.

    The bins have equal widths (Guo et al. 2017, On Calibration of Modern Neural Networks).

    >>> round(calibration_error(np.log([[0.75, 0.25]] * 4), np.array([0, 0, 0, 1])), 6)
    0.0
    """
    confidence = softmax(logits).max(-1)
    gap = (logits.argmax(-1) == labels) - confidence
    of_bin = np.minimum((confidence * bins).astype(int), bins - 1)
    return float(100 * sum(abs(gap[of_bin == k].sum()) for k in range(bins)) / len(labels))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes, in the last axis.

    >>> softmax(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    """
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def main() -> None:
    """Run `python -m keras_preact.experiments.publish RUN NAME`."""
    parser = argparse.ArgumentParser(description="Add the network of a finished run to the catalogue.")
    parser.add_argument("run", type=Path, help="run folder, which `keras-preact results --keep` has stored")
    parser.add_argument("name", help="name of the trained network")
    parser.add_argument("--data-dir", help="folder of the data")
    options = parser.parse_args()
    try:
        about = publish(RunFolder.open(options.run), options.name, Path(), options.data_dir)
    except InputError as error:
        sys.exit(f"error: {error}")
    print(card(about))


if __name__ == "__main__":
    main()
