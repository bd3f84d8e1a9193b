"""Training several networks alike, into one folder: what `make demo` does."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import keras

from keras_preact.plots import draw_curves
from keras_preact.training.runs import METRICS, RunFolder, environment
from keras_preact.training.trainer import RunConfig, start


def compare(
    configs: dict[str, RunConfig],
    out: str | Path,
    callbacks: Callable[[str, RunConfig], Sequence[keras.callbacks.Callback]] = lambda name, config: (),
) -> RunFolder:
    """Train each configuration into a run folder of its own below `out`, and draw their curves together.

    Args:
        configs: by the name of their subfolder; all on the same data.
        out: the folder; must not exist, or be empty.
        callbacks: makes the Keras callbacks of each run.

    Returns:
        The folder, with `run.json`, `metrics.csv` (a first column `run`), `curves.png`, and a run folder a name.

    Raises:
        InputError: bad configuration, data or folder.
    """
    dataset = next(iter(configs.values())).load_dataset()
    folder = RunFolder.create(out)
    folder.update_record(
        kind="comparison",
        status="running",
        runs={name: config.to_dict() for name, config in configs.items()},
        environment=environment(),
    )
    runs = {
        name: start(config, folder.path / name, dataset=dataset, callbacks=callbacks(name, config))
        for name, config in configs.items()
    }
    with open(folder.metrics_path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *METRICS])
        for name, run in runs.items():
            with open(run.metrics_path, newline="", encoding="utf-8") as rows:
                writer.writerows([name, *row] for row in list(csv.reader(rows))[1:])
    draw_curves({name: run.metrics() for name, run in runs.items()}, folder.curves_path)
    records = {name: run.record() for name, run in runs.items()}
    folder.update_record(
        status="finished",
        results={name: record["result"] for name, record in records.items()},
        seconds=round(sum(record["seconds"] for record in records.values()), 1),
    )
    return folder


def orders(config: RunConfig) -> dict[str, RunConfig]:
    """Return two copies of a configuration, one for each order: `original` and `full_preactivation`.

    >>> list(orders(RunConfig(options={"depth": 20})))
    ['original', 'full_preactivation']
    """
    return {
        placement: dataclasses.replace(config, options={**config.options, "placement": placement})
        for placement in ("original", "full_preactivation")
    }
