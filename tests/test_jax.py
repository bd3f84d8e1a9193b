"""The same tests on JAX, where TensorFlow is not installed: in another process that hides it."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("jax")
pytestmark = pytest.mark.skipif(keras.backend.backend() == "jax", reason="this is that other process")


def run_on_jax(*arguments, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "KERAS_PREACT_TESTS_HIDE_TENSORFLOW": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'pytest'}"]
    done = subprocess.run(
        [*command, "-rs", "-m", "not slow", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.thorough
def test_tensorflow_is_hidden_there(tmp_path):
    """Else the tests below would show nothing: a test that needs TensorFlow is skipped there."""
    printed = run_on_jax("tests/data", tmp_path=tmp_path)
    assert "could not import 'tensorflow_datasets'" in printed


@pytest.mark.thorough
def test_layers(tmp_path):
    files = ["tests/layers/test_shortcuts.py", "tests/layers/test_preactivation.py", "tests/layers/test_placements.py"]
    run_on_jax(*files, "tests/layers/test_convolutions.py", tmp_path=tmp_path)
    run_on_jax("tests/layers/test_units.py", "-k", "not harness", tmp_path=tmp_path)
    run_on_jax("tests/layers/test_stack.py", "-k", "closed_form or from_units or frozen", tmp_path=tmp_path)
    chosen = "numpy or past_output or padding or travel or (rolled_equals and pre_norm)"
    run_on_jax("tests/layers/test_transformer.py", "-k", chosen, tmp_path=tmp_path)


@pytest.mark.thorough
def test_models(tmp_path):
    chosen = "says_what_differs or unit_is_a_layer"
    run_on_jax("tests/models/saving/test_hdf5.py", "tests/models/test_rolling.py", "-k", chosen, tmp_path=tmp_path)


@pytest.mark.thorough
def test_analysis(tmp_path):
    chosen = "of_the_whole_model or comes_back_unchanged or sum_of_residuals or scaled_shortcuts or paths"
    run_on_jax("tests/analysis", "-k", chosen, tmp_path=tmp_path)


@pytest.mark.thorough
def test_training_and_resuming(tmp_path):
    chosen = "what_a_run_leaves or equal_to_the_bit or mixed_precision or everything_comes_back or decay"
    run_on_jax("tests/training", "-k", chosen, tmp_path=tmp_path)


@pytest.mark.slow
def test_everything_that_does_not_need_tensorflow(tmp_path):
    folders = ["tests/layers", "tests/models", "tests/data", "tests/training", "tests/analysis", "tests/experiments"]
    run_on_jax(*folders, "-m", "not slow", tmp_path=tmp_path)
