"""The programs in examples/ run as their users run them, with few steps, and reach what they promise."""

import importlib.util
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import keras
import nbformat
import numpy as np
import pytest
from PIL import Image

from keras_preact.course import validate
from keras_preact.data import load_dataset
from keras_preact.models import cifar_resnet

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *arguments):
    environment = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_lists_every_example():
    listed = set(re.findall(r"\(([\w./-]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    assert {name for name in listed if name.endswith(".py")} == programs
    assert all((EXAMPLES / name).exists() for name in listed)


@pytest.mark.thorough
def test_transfer_learns_the_classes_of_a_folder(tmp_path):
    images, labels = load_dataset("bundled").train.batch(np.arange(1000))
    for label, name in ((0, "airplanes"), (3, "cats é"), (8, "ships")):  # an accent: paths are not always ASCII
        (tmp_path / "my images" / name).mkdir(parents=True)
        for k, image in enumerate(images[labels == label][:60]):
            Image.fromarray(image).save(tmp_path / "my images" / name / f"{k}.png")
    printed = run("transfer.py", tmp_path / "my images", "--epochs", 8)
    accuracy = float(re.search(r"validation accuracy ([\d.]+)% on 3 classes: airplanes, cats é, ships", printed)[1])
    assert accuracy > 60  # guessing: 33


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the program uses tf.data")
def test_transfer_trains_only_the_new_layer():
    network = load("transfer").build(classes=3)
    assert [weight.path for weight in network.trainable_variables] == ["classes/kernel", "classes/bias"]
    assert network.output_shape == (None, 3) and network.inputs[0].dtype == "uint8"


@pytest.mark.thorough
def test_segmentation_finds_the_discs():
    printed = run("segmentation.py", "--steps", 60)
    assert float(re.search(r"new images: ([\d.]+)", printed)[1]) > 0.5


def test_segmentation_has_a_logit_per_pixel_and_uses_every_stage():
    network = load("segmentation").build(size=32)
    assert network.output_shape == (None, 32, 32, 1)
    assert {f"stage{k}_lateral" for k in (1, 2, 3)} <= {layer.name for layer in network.layers}


@pytest.mark.thorough
def test_keras_applications_is_replaced_with_equal_logits():
    printed = run("replace_keras_applications.py")
    assert float(re.search(r"logits: (\S+) of", printed)[1]) < 1e-4
    assert "16 residual units, and nothing on the identity path" in printed


@pytest.mark.thorough
def test_custom_units_are_analyzed_and_trained():
    lines = dict(line.split("  ", 1) for line in run("custom_unit.py", "--steps", 12).splitlines())
    found = {name: re.search(r"(\d+) of 27; .*steps: ([\d.]+)", line) for name, line in lines.items()}
    assert {name: int(match[1]) for name, match in found.items()} == {
        "full pre-activation": 27,
        "leaky shortcut": 0,
        "norm at the end": 27,
    }
    assert all(float(match[2]) < 4 for match in found.values())


@pytest.mark.parametrize("steps", [3, 70])
def test_custom_units_train_as_many_steps_as_they_print(steps, monkeypatch, capsys):
    example, trained = load("custom_unit"), []

    def fit(network, images, labels, batch_size, verbose):
        trained.append(-(-len(images) // batch_size))
        return types.SimpleNamespace(history={"loss": [0.0]})

    monkeypatch.setattr(example, "NETWORKS", {"small": {}})
    monkeypatch.setattr(example, "cifar_resnet", lambda depth, **options: cifar_resnet(8, **options))
    monkeypatch.setattr(keras.Model, "fit", fit)
    monkeypatch.setattr(sys, "argv", ["custom_unit.py", "--steps", str(steps)])
    example.main()
    assert trained == [steps] and f"mean loss of {steps} steps" in capsys.readouterr().out


@pytest.mark.thorough
class TestNotebooks:
    """`examples/notebook-ci` and the command that its workflow runs."""

    NOTEBOOK = EXAMPLES / "notebook-ci" / "notebooks" / "identity.ipynb"

    def test_the_example_is_valid(self):
        assert validate.main([str(self.NOTEBOOK)]) == 0

    def test_a_changed_output_is_noticed(self, tmp_path):
        notebook = nbformat.read(self.NOTEBOOK, as_version=4)
        cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs)
        cell.outputs[0].text = "something else\n"
        nbformat.write(notebook, tmp_path / "changed.ipynb")
        assert validate.main([str(tmp_path / "changed.ipynb")]) == 1

    def test_a_missing_path_is_named(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            validate.main(["no-such-folder"])
        assert stopped.value.code == 2
        assert "no-such-folder does not exist; name notebooks" in capsys.readouterr().err

    def test_the_workflow_calls_the_action_of_this_repository(self):
        workflow = (EXAMPLES / "notebook-ci" / ".github" / "workflows" / "notebooks.yml").read_text(encoding="utf-8")
        assert "uses: keras-preact/keras_preact@main" in workflow and "notebooks: notebooks" in workflow

    def test_several_jobs_need_xdist_and_never_split_a_notebook(self):
        command = validate.command(["a", "b"], jobs=4, timeout=7)
        assert command[-2:] == ["a", "b"] and command[command.index("--dist") + 1] == "loadscope"
        assert command[command.index("--nbval-cell-timeout") + 1] == "7"
        assert "--dist" not in validate.command(["a"], jobs=1)
