"""What int8 costs and saves: trained networks as LiteRT files, in float32 and in int8, on the whole test set.

python -m benchmarks.int8 --data-dir DIR --out results/benchmarks/2-cores-int8
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine
from keras_preact.experiments.report import markdown_table
from keras_preact.files import write_atomically

NETWORKS = ("resnet14x2-preact-cifar10", "resnet110-original-cifar10-16px", "resnet110-preact-cifar10-16px")
DTYPES = ("float32", "int8")
BATCH, ROUNDS = 16, 5


def measured(name: str, data_dir: str | None) -> dict[str, Any]:
    """Return test error, size, predictions that change, and seconds of CPU time per batch, by dtype."""
    from keras_preact.data import load_dataset
    from keras_preact.interop import export_model
    from keras_preact.interop.exports import FORMATS
    from keras_preact.models import pretrained
    from keras_preact.models.catalogue import catalogue

    data = load_dataset("cifar10", data_dir, image_size=catalogue()[name].input_shape[0])
    images, labels = data.test.batch(np.arange(len(data.test)))
    network, found, runs, predictions = pretrained(name, dtype="float32"), {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            path = Path(folder, f"{dtype}.tflite")
            export_model(network, path, dtype)
            runs[dtype] = FORMATS[".tflite"].open(path)
            predictions[dtype] = _predictions(runs[dtype], images)
            error = 100 * float(np.mean(predictions[dtype] != labels))
            found[dtype] = {"test_error": round(error, 2), "bytes": path.stat().st_size}
        for dtype, seconds in _seconds(runs, images[:BATCH]).items():
            found[dtype]["cpu_seconds"] = seconds
    changed = int(np.sum(predictions["float32"] != predictions["int8"]))
    return {"images": len(images), "changed": changed, **found}


def _predictions(run: Callable[[np.ndarray], np.ndarray], images: np.ndarray) -> np.ndarray:
    return np.concatenate([run(images[k : k + 250]).argmax(-1) for k in range(0, len(images), 250)])


def _seconds(runs: dict[str, Callable[[np.ndarray], np.ndarray]], batch: np.ndarray) -> dict[str, float]:
    """Return the median CPU time of a batch, measured in turns."""
    times: dict[str, list[float]] = {dtype: [] for dtype in runs}
    for _ in range(ROUNDS):
        for dtype, run in runs.items():
            run(batch)
            start = time.process_time()
            for _ in range(10):
                run(batch)
            times[dtype].append((time.process_time() - start) / 10)
    return {dtype: statistics.median(each) for dtype, each in times.items()}


def report(results: dict[str, Any]) -> str:
    """Return the measurements as a page."""
    lines = [
        "# LiteRT in int8",
        "",
        machine(results["environment"]),
        "",
        "Weights in int8 with one scale per filter; activations are quantized as the network runs. Errors on the whole "
        f"test set of CIFAR-10. The speed is the ratio of CPU times of a batch of {BATCH}, medians of {ROUNDS} "
        "interleaved rounds.",
        "",
    ]
    heads = ["network", "test error, float32 (%)", "int8 (%)", "predictions that change (%)"]
    heads += ["size, int8 ÷ float32", "speed, int8 ÷ float32"]
    rows = []
    for name, row in results["networks"].items():
        plain, small = row["float32"], row["int8"]
        numbers = [plain["test_error"], small["test_error"], 100 * row["changed"] / row["images"]]
        numbers += [small["bytes"] / plain["bytes"], plain["cpu_seconds"] / small["cpu_seconds"]]
        rows.append([name, *(f"{number:.2f}" for number in numbers)])
    return "\n".join([*lines, markdown_table(heads, rows)])


def main() -> None:
    """Measure and write int8.json and README.md."""
    from keras_preact.training.provenance import environment

    parser = argparse.ArgumentParser(prog="benchmarks.int8", description="Measure LiteRT in float32 and int8.")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets with CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks-int8"), help="default: %(default)s")
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "networks": {}}
    options.out.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        results["networks"][name] = measured(name, options.data_dir)
        write_atomically(options.out / "int8.json", json.dumps(results, indent=1) + "\n")
    write_atomically(options.out / "README.md", report(results))


if __name__ == "__main__":
    main()
