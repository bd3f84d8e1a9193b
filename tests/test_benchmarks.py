"""The benchmarks compare like with like, and say what they measured."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks.subjects import plain_network
from keras_preact.models import cifar_resnet

ROOT = Path(__file__).parents[1]


def sizes(model):
    return sorted(int(np.prod(variable.shape)) for variable in model.trainable_variables)


@pytest.mark.parametrize("depth", [20, 164])
def test_the_plain_network_is_the_same_network(depth):
    plain, ours = plain_network(depth), cifar_resnet(depth, rolled=False)
    assert sizes(plain) == sizes(ours)
    assert sum(sizes(plain)) == {20: 272_282, 164: 1_703_258}[depth]


def test_it_lists_its_comparisons():
    command = [sys.executable, "-m", "benchmarks", "--list", "--only", "start"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    assert listed[:2] == ["start 20", "start 56"]
    assert listed[5] == "start 1001"


def test_workers_answer_and_the_table_says_ratios(tmp_path):
    size = {"depth": 8, "batch": 2}
    comparison = bench.Comparison("start 8", (bench.Subject("ours", "cifar", size),), restarts=True, images=2)
    values = bench.measure(comparison, rounds=1)
    assert set(values["ours"]) == {"first_step", "step", "peak_gib", "imports_gib"}
    assert all(value > 0 for row in values["ours"].values() for value in row)
    made_up = {"ours": {"step": [1.0, 2.0, 9.0]}, "theirs": {"step": [4.0, 5.0, 3.0]}}
    entry = {"rounds": 3, "images": 8, "values": made_up}
    hardware = {"cores": 2, "processor": "P", "memory_gib": 1, "accelerators": []}
    environment = {"hardware": hardware, "versions": {"keras": "3"}, "commit": None}
    text = bench.table({"environment": environment, "comparisons": {"step": entry}})
    assert "| ours | 2 | 1.00 | 4 |" in text
    assert "| theirs | 4 | 2.00 | 2 |" in text


def test_results_on_record_are_whole():
    for path in ROOT.glob("results/benchmarks*/bench.json"):
        results = json.loads(path.read_text())
        assert bench.table(results) == (path.parent / "README.md").read_text()
