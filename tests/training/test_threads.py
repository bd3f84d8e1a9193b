"""The number of threads per operation: the rule, and that it is applied before TensorFlow starts."""

import json
import os
import subprocess
import sys

import keras
import pytest

from keras_preact.training import RunConfig, RunFolder, choose_threads, get_recipe, has_idle_cores
from keras_preact.training.provenance import environment
from keras_preact.training.threads import VARIABLE, threads_for, usable_cores

TENSORFLOW = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a setting of TensorFlow")


def chosen(code, **variables):
    """Run code in a new process, in which TensorFlow has not started."""
    settings = {key: value for key, value in os.environ.items() if key != VARIABLE} | variables
    start = "import os; from keras_preact.training import *; from keras_preact.training.provenance import environment\n"
    command = [sys.executable, "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=settings).stdout.split()


@pytest.mark.parametrize(
    ("batch", "side", "cores", "threads"),
    [(8, 32, 2, 1), (64, 16, 2, 1), (128, 16, 2, 2), (32, 32, 2, 2), (128, 32, 4, 4), (128, 32, 64, 10), (1, 8, 8, 1)],
)
def test_a_thread_needs_enough_activations(batch, side, cores, threads):
    assert threads_for(batch * side**2 * 16, cores) == threads


@pytest.mark.parametrize(
    "wrong", [{"widen_factor": float("nan")}, {"widen_factor": float("inf")}, {"widen_factor": "2"}, {"deep": 20}]
)
def test_options_that_the_network_will_refuse_choose_nothing(wrong):
    assert choose_threads(RunConfig(options=wrong)) is None


@TENSORFLOW
def test_small_batches_run_one_thread_per_operation_and_the_run_records_it():
    """Large batches, networks that were not measured, and options that `build_model` will refuse change nothing."""
    code = (
        "import dataclasses, keras\n"
        "small = RunConfig(recipe=dataclasses.replace(get_recipe('short'), batch_size=4))\n"
        "large = RunConfig(recipe=dataclasses.replace(get_recipe('short'), batch_size=4096))\n"
        "for config in (large, RunConfig(network='preact_resnet18'), RunConfig(options={'deep': 20}), small):\n"
        "    print(choose_threads(config), environment()['threads_per_operation'])\n"
        "keras.ops.zeros(1)\n"
        "print(choose_threads(small), environment()['threads_per_operation'])\n"
    )
    cores = str(usable_cores())
    chosen_first = "1" if usable_cores() > 1 else "None"
    assert chosen(code) == [*["None", cores] * 3, chosen_first, "1", chosen_first, "1"]


@pytest.mark.thorough
@TENSORFLOW
@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("auto", usable_cores())])
def test_the_users_choice_is_respected(given, threads):
    """TensorFlow ignores a value that is not a number."""
    small = "RunConfig(recipe=get_recipe('demo'), image_size=8)"
    code = f"print(choose_threads({small}), environment()['threads_per_operation'])"
    assert chosen(code, **{VARIABLE: given}) == ["None", str(threads)]


@TENSORFLOW
def test_a_program_that_has_started_tensorflow_is_left_alone():
    keras.ops.zeros(1)
    before = environment()["threads_per_operation"]
    small = RunConfig(recipe=get_recipe("demo"), image_size=8)
    if before != 1:
        assert choose_threads(small) is None
    assert environment()["threads_per_operation"] == before


@TENSORFLOW
@pytest.mark.thorough
def test_the_command_chooses_before_it_loads_the_data_and_again_when_it_resumes(tmp_path):
    settings = {key: value for key, value in os.environ.items() if key != VARIABLE}
    command = [sys.executable, "-m", "keras_preact", "train"]
    new = ["--depth", "8", "--batch-size", "4", "--steps", "2", "--out", "run"]
    subprocess.run([*command, *new], cwd=tmp_path, env=settings, check=True, capture_output=True)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["environment"]["threads_per_operation"] == 1
    RunFolder(tmp_path / "run").update_record(status="interrupted", result=None)
    subprocess.run([*command, "--resume", "run"], cwd=tmp_path, env=settings, check=True, capture_output=True)
    assert RunFolder(tmp_path / "run").record()["resumed"][0]["threads_per_operation"] == 1


@pytest.mark.parametrize(("threads", "cores", "idle"), [(1, 2, True), (1, 1, False), (2, 3, False), (None, 8, False)])
def test_cores_are_idle_if_a_second_run_would_fit_beside_the_first(monkeypatch, threads, cores, idle):
    monkeypatch.setattr("keras_preact.training.threads.threads_per_operation", lambda: threads)
    monkeypatch.setattr("keras_preact.training.threads.usable_cores", lambda: cores)
    assert has_idle_cores() is idle
