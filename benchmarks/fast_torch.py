"""Time to accuracy in plain PyTorch: the network and the recipe of `keras-preact reproduce fast`, written for PyTorch.

python -m benchmarks.fast_torch --data-dir DIR --seeds 3 --out results/benchmarks/2-cores-fast-torch

The batches, the sizes of the images, the learning rates, the decay and the loss are those of the recipe `fast`. The
network is compiled, computes in bfloat16 and is channels_last, as in the comparison "throughput".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import machine, read_series
from benchmarks.subjects import torch_cifar
from keras_preact.data import ImageDataset, load_dataset
from keras_preact.data.batches import TestBatches, TrainBatches
from keras_preact.experiments.report import markdown_table
from keras_preact.experiments.statistics import mean_and_deviation
from keras_preact.files import write_atomically
from keras_preact.training import FastRecipe, get_recipe

DEPTH, WIDTH, UNITS_PER_STAGE = 14, 2, 2
TEST_BATCH = 500


def network() -> Any:
    """Return the untrained network, with initial values drawn as in this package."""
    from torch import nn

    model = torch_cifar("basic", UNITS_PER_STAGE, WIDTH)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return model


def optimizer(model: Any, recipe: FastRecipe) -> Any:
    """Return SGD in which only kernels decay."""
    import torch

    kernels = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": kernels, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.0, momentum=recipe.momentum, nesterov=recipe.nesterov)


def augmented(images: Any, padding: int, generator: Any) -> Any:
    """Pad images (n, channels, height, width) with zeros, crop each at random to its size, flip half of them."""
    import torch

    n, _, height, width = images.shape
    offsets = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator)
    flips = torch.randint(0, 2, (n, 1), generator=generator)
    columns = torch.arange(width)
    columns = columns + flips * (width - 1 - 2 * columns) + offsets[0]
    rows = torch.arange(height) + offsets[1]
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    # With indices on both sides of a slice, the channels come last: the memory layout that the network computes in.
    picked = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


@dataclass
class Run:
    """A training run, epoch by epoch.

    Attributes:
        recipe: the recipe.
        dataset: CIFAR images at full size.
        seed: of the initial values, the order of the batches and the augmentation.
        compiles: whether to use torch.compile. Default `True`.
    """

    recipe: FastRecipe
    dataset: ImageDataset
    seed: int
    compiles: bool = True

    def __post_init__(self) -> None:
        import torch

        torch.manual_seed(self.seed)
        self._generator = torch.Generator().manual_seed(self.seed)
        self.model = network()
        self._run = torch.compile(self.model, dynamic=False) if self.compiles else self.model
        self._optimizer = optimizer(self.model, self.recipe)
        rate = self.recipe.schedule.to_keras(self.recipe.steps)
        self.rates = [float(rate(step)) for step in range(self.recipe.steps)]
        mean, deviation = self.dataset.train.channel_moments()
        self._mean, self._deviation = (torch.tensor(x, dtype=torch.float32).view(3, 1, 1) for x in (mean, deviation))

    def test_errors(self) -> list[float]:
        """Train to the end; return the test error (%) after each epoch, as the runs of this package measure it."""
        steps_per_epoch = self.dataset.train.steps_per_epoch(self.recipe.batch_size)
        epochs, errors = self.recipe.epochs(steps_per_epoch), []
        images, scale = self.dataset, 1.0
        for epoch in range(epochs):
            if (new_scale := self.recipe.image_scale(epoch, epochs)) != scale:
                images, scale = self.dataset.at_scale(new_scale), new_scale
            first = epoch * steps_per_epoch
            last = min(first + steps_per_epoch, self.recipe.steps)
            batches = TrainBatches(images.train, self.recipe.batch_size, self.seed)
            for step in range(first, last):
                self._train(*batches[step], self.rates[step])
            errors.append(self._test_error(images))
        return errors

    def _train(self, images: np.ndarray, labels: np.ndarray, rate: float) -> None:
        import torch

        self.model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        padding = round(self.recipe.crop_padding(self.dataset.image_shape) * images.shape[1])
        x = augmented(self._standardized(images), padding, self._generator)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self._run(x).float()
        smoothing = self.recipe.label_smoothing
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels).long(), label_smoothing=smoothing)
        loss.backward()
        self._optimizer.step()

    def _test_error(self, images: ImageDataset) -> float:
        import torch

        self.model.eval()
        wrong = 0
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            batches = TestBatches(images.test, TEST_BATCH)
            for x, labels in (batches[k] for k in range(len(batches))):
                predicted = self._run(self._standardized(x)).float().numpy().argmax(-1)
                wrong += int(np.sum(predicted != labels.ravel()))
        return 100 * wrong / len(images.test)

    def _standardized(self, images: np.ndarray) -> Any:
        import torch

        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        return (pixels - self._mean) / self._deviation


def measured(seed: int, dataset: ImageDataset) -> dict[str, Any]:
    """Return the test errors and the seconds of a run, with the time to compile."""
    recipe = get_recipe("fast")
    assert isinstance(recipe, FastRecipe)
    run = Run(recipe, dataset, seed)
    start, cpu_start = time.perf_counter(), time.process_time()
    errors = run.test_errors()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "test_error": errors[-1],
        "test_errors": errors,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def report(results: dict[str, Any]) -> str:
    """Return the measurements as a page."""
    runs = results["runs"].values()
    errors = [run["test_error"] for run in runs]
    minutes = statistics.median(run["cpu_seconds"] for run in runs) / 60
    lines = [
        "# The recipe `fast` in PyTorch",
        "",
        machine(results["environment"]),
        "",
        f"A ResNet-{DEPTH} with {WIDTH} times the usual filters in plain PyTorch: compiled, bfloat16, channels_last. "
        "Batches, sizes of the images, learning rates, decay, loss and initial values are those of "
        "`keras-preact reproduce fast`. Both test after each epoch.",
        "",
        f"Test error after the last epoch: {mean_and_deviation(errors)} % (n = {len(errors)}). Median cost: "
        f"{minutes:.1f} core-minutes.",
        "",
    ]
    rows = [
        [seed, f"{run['test_error']:.2f}", f"{run['cpu_seconds'] / 60:.1f}", f"{run['seconds'] / 60:.1f}"]
        for seed, run in results["runs"].items()
    ]
    return "\n".join([*lines, markdown_table(["seed", "test error (%)", "core-minutes", "minutes"], rows)])


def main() -> None:
    """Run the seeds that the results lack; write fast.json and README.md after each."""
    from keras_preact.training.provenance import environment

    parser = argparse.ArgumentParser(prog="benchmarks.fast_torch", description="Train the recipe fast in PyTorch.")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets with CIFAR-10")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs (default: 3)")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks-fast-torch"), help="default: %(default)s")
    options = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # in this process, whose CPU time is measured
    file = options.out / "fast.json"
    results = read_series(file, parser, environment(), "runs")
    options.out.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset("cifar10", options.data_dir)
    for seed in range(options.seeds):
        if str(seed) not in results["runs"]:
            results["runs"][str(seed)] = measured(seed, dataset)
            write_atomically(file, json.dumps(results, indent=1) + "\n")
            write_atomically(options.out / "README.md", report(results))


if __name__ == "__main__":
    main()
