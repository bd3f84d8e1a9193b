"""Two networks into one folder, as the demonstration does it."""

import csv

import pytest

from keras_preact import InputError
from keras_preact.training import CosineSchedule, Recipe, RunConfig, compare, orders, resume_comparison


def test_both_orders_on_the_bundled_images(tmp_path):
    recipe = Recipe("test", steps=3, batch_size=8, schedule=CosineSchedule(0.05, 1))
    folder = compare(orders(RunConfig(options={"depth": 8}, recipe=recipe)), tmp_path / "run")
    record = folder.record()
    assert (record["kind"], record["status"]) == ("comparison", "finished")
    assert list(record["results"]) == ["original", "full_preactivation"]
    assert {"versions", "commit", "hardware"} <= set(record["environment"])
    assert record["seconds"] > 0
    with open(folder.metrics_path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["original", "full_preactivation"]
    assert folder.curves_path.read_bytes()[:4] == b"\x89PNG"
    for name in record["results"]:
        assert (folder.path / name / "model.keras").is_file()
    with pytest.raises(InputError, match="exists already"):
        compare(orders(RunConfig(recipe=recipe)), tmp_path / "run")
    with pytest.raises(InputError, match="is finished"):
        resume_comparison(tmp_path / "run")


def test_what_cannot_be_built_leaves_nothing_behind(tmp_path):
    configs = orders(RunConfig(options={"depth": 8}))
    configs["full_preactivation"] = RunConfig(options={"depth": 21})
    with pytest.raises(InputError, match="nearest depths that are"):
        compare(configs, tmp_path / "run")
    assert not (tmp_path / "run").exists()
