"""Output that several commands share: progress bars, and runs trained side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_preact.console import ProgressBar, SideBySide, console, say, show, table
from keras_preact.paper import in_words
from keras_preact.training import RunConfig, RunFolder
from keras_preact.training.distribute import is_chief


def side_by_side(configs: dict[str, Any]) -> Any:
    """Return the display for the runs of a comparison."""
    return SideBySide(
        {name: in_words(name) for name in configs}, sum(config.recipe.steps for config in configs.values())
    )


def say_comparison(folder: Any) -> None:
    """Print the results of networks trained in the same way."""
    runs = {name: folder.open(folder.path / name) for name in folder.record()["runs"]}
    records = {name: run.record() for name, run in runs.items()}
    rows = [[in_words(name), *_errors(record), f"{record['seconds']:.0f}"] for name, record in records.items()]
    first, record = next(iter(runs.values())), next(iter(records.values()))
    data, depth = record["data"], record["config"]["options"].get("depth")
    unit, kind = first.unit(), "sequences" if "task" in data else "images"
    layers = "" if depth is None else f"{depth} layers"
    heads = [layers, f"training error {unit}", f"test error {unit}", "seconds"]
    title = f"{data['name']}: {data[f'train_{kind}']:,} training {kind}, {data[f'test_{kind}']:,} test {kind}"
    console.print()
    show(table(heads, rows, title=title))
    files = [path.name for path in (folder.curves_path, folder.metrics_path, folder.record_path) if path.exists()]
    say(f"\nFiles in {folder.path}: {', '.join(files)}, and a model.keras for each trained network.")


def _errors(record: dict[str, Any]) -> list[str]:
    """Return the training and the test error of a run that has ended, as text."""
    if "diverged" in record:
        return ["", f"diverged at step {record['diverged']['step']}"]
    return [f"{record['result'][key]:.1f}" for key in ("train_error", "test_error")]


def progress(name: str, config: Any) -> list[Any]:
    if not is_chief():
        return []
    return [ProgressBar(name, config.recipe.steps, config.recipe.batch_size)]


def progress_of_run(path: Path) -> list[Any]:
    return progress(path.name, RunConfig.from_dict(RunFolder.open(path).training()["config"]))
