"""The single-file network in examples/: it is short, it stands alone, it learns, and it is the package's network."""

import ast
import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_preact.data import load_dataset
from keras_preact.models import cifar_resnet

FILE = Path(__file__).parents[1] / "examples" / "preact.py"


@pytest.fixture(scope="module")
def preact():
    spec = importlib.util.spec_from_file_location("preact", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """Return an .npz file with the bundled images."""
    data, arrays = load_dataset("bundled"), {}
    for name, split in (("train", data.train), ("test", data.test)):
        arrays[f"x_{name}"], arrays[f"y_{name}"] = split.batch(np.arange(0, len(split), 5))
    path = tmp_path_factory.mktemp("data") / "bundled.npz"
    np.savez(path, **arrays)
    return path


def test_it_is_short_and_imports_nothing_of_the_package():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    tree = ast.walk(ast.parse(text))
    imports = [node for node in tree if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert modules == {"argparse", "keras", "numpy"}


def by_name_and_shape(model):
    """Return the variables of a model by their last name and shape; those that share both, in the order of layers."""
    found = {}
    for variable in model.weights:
        found.setdefault((variable.path.split("/")[-1], tuple(variable.shape)), []).append(variable)
    return found


@pytest.mark.parametrize("depth", [8, 20])
def test_it_computes_what_cifar_resnet_computes(preact, depth):
    ours, theirs = preact.resnet(depth), cifar_resnet(depth)
    pairs = [by_name_and_shape(model) for model in (ours, theirs)]
    assert pairs[0].keys() == pairs[1].keys()
    rng = np.random.default_rng(0)
    for (name, shape), variables in pairs[0].items():
        for a, b in zip(variables, pairs[1][name, shape], strict=True):
            value = rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else 0.1 * rng.normal(size=shape)
            a.assign(value)
            b.assign(value)
    images = rng.normal(size=(4, 32, 32, 3)).astype("float32")
    for training in (False, True):
        first, second = (np.array(model(images, training=training)) for model in (ours, theirs))
        assert np.abs(first - second).max() < 1e-5 * np.abs(second).max()


def test_it_learns(preact, bundled):
    images, labels, _, _ = preact.load(bundled)
    model = preact.compiled(preact.resnet(8), steps=30, rate=0.03)
    losses = preact.train(model, images, labels, steps=30, batch_size=64, report=10)
    assert losses[-1] < losses[0] - 0.05


def test_the_rate_and_the_decay_are_those_of_the_paper(preact):
    rates = preact.schedule(64_000)
    steps = {0: 0.01, 399: 0.01, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001}
    assert {step: pytest.approx(float(rates(step))) for step in steps} == steps
    weight = keras.Variable([2.0])
    preact.SGD(0.5).apply([keras.ops.array([1.0])], [weight])
    assert float(weight[0]) == pytest.approx(2 - 0.5 * (1 + 1e-4 * 2), abs=1e-7)


def test_crops_and_flips_come_from_the_padded_image(preact):
    image = np.arange(1.0, 17.0, dtype="float32").reshape(1, 4, 4, 1)
    seen = preact.augment(np.repeat(image, 500, axis=0), np.random.default_rng(0), pad=1)
    assert len(np.unique(seen, axis=0)) == 3 * 3 * 2
    assert (seen == image).all(axis=(1, 2, 3)).any()


@pytest.mark.thorough
def test_the_command_runs(preact, bundled, capsys):
    preact.main(["--depth", "8", "--steps", "2", "--data", str(bundled)])
    assert "test error after the last step: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"depth 21 is not 6n \+ 2"):
        preact.main(["--depth", "21", "--data", str(bundled)])
