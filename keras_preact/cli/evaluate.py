"""`keras-preact evaluate`."""

from __future__ import annotations

import argparse

from keras_preact.console import show, table
from keras_preact.errors import InputError, as_command
from keras_preact.training import RunFolder, evaluate


def run(options: argparse.Namespace) -> None:
    folder = RunFolder.open(options.folder)
    record = folder.record()
    is_comparison = record.get("kind") == "comparison"
    if is_comparison and record.get("status") in ("running", "interrupted"):
        resume = as_command("train --resume", folder.path)
        raise InputError(f"{folder.path} is not finished; finish it first with {resume}")
    names = list(record["runs"]) if is_comparison else [""]
    rows, unit = [], ""
    for name in names:
        run = folder.open(folder.path / name)
        if name and "diverged" in run.record():
            continue  # it has no trained network
        measured = evaluate(
            run.path, data_dir=options.data_dir, image_size=options.image_size, short_side=options.short_side
        )
        recorded = run.record()["result"]["test_error"]
        unit = run.unit()
        rows.append([run.record()["model"]["name"], f"{measured['test_error']:.2f}", f"{recorded:.2f}"])
    if not rows:
        raise InputError(f"every run of {folder.path} diverged; train again with a lower learning rate")
    show(table(["", f"test error {unit}, now", "when trained"], rows))
