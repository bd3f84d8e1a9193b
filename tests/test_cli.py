"""The command line: what it prints, what it leaves, and one sentence where something is wrong."""

import errno
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from harness import StopAfter
from PIL import Image
from rich.console import Console

import keras_preact
from keras_preact import InputError, __version__
from keras_preact.analysis import read_inspection
from keras_preact.cli import main
from keras_preact.cli.demo import _compared
from keras_preact.cli.inspect import _images, _images_for
from keras_preact.cli.options import parser
from keras_preact.data import bundled_cifar10
from keras_preact.data.bundled import CIFAR10_CLASSES
from keras_preact.experiments import BUDGETS, EXPERIMENTS, record_initial_gradients
from keras_preact.interop import load_safetensors
from keras_preact.layers import ResidualUnit
from keras_preact.models import NETWORKS, cifar_resnet, pretrained
from keras_preact.startup import prepare
from keras_preact.training import RunConfig, RunFolder, RunLocked, next_free_folder, orders

RESULTS = Path(__file__).parents[1] / "results"
PLACEMENTS = "original, bn_after_addition, relu_before_addition, relu_only_preactivation, full_preactivation"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def picture_folder(tmp_path):
    """Class folders of 12 training and 4 test images each, 8×8 pixels."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for number, name in enumerate(("dark", "light")):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for k in range(count):
                pixels = rng.integers(0, 60, (8, 8, 3)) + 150 * number
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{k}.png")
    return tmp_path / "pictures"


def small(folder, *more):
    return ["train", "--dataset", "folder", "--data-dir", str(folder), "--depth", "8", "--batch-size", "8", *more]


NoMemory = type("OutOfMemoryError", (RuntimeError,), {})  # named like PyTorch's


def text(capsys):
    captured = capsys.readouterr()
    return captured.out + captured.err


# ---- what works ------------------------------------------------------------------------------------------------------


def test_train_then_evaluate_then_info(here, picture_folder, capsys):
    assert main(small(picture_folder, "--epochs", "2", "--placement", "original", "--out", "run")) == 0
    assert "training error %" in text(capsys)
    record = RunFolder.open(here / "run").record()
    assert (record["step"], record["config"]["options"]["placement"]) == (6, "original")
    assert main(["evaluate", "run"]) == 0
    assert text(capsys).count(f"{record['result']['test_error']:.2f}") == 2  # measured, and recorded
    assert main(["info", "run"]) == 0
    assert f"{record['model']['trainable_parameters']:,}" in text(capsys)


def test_without_out_runs_are_numbered_and_never_overwritten(here, picture_folder):
    for _ in range(2):
        assert main(small(picture_folder, "--steps", "1")) == 0
    names = sorted(path.name for path in (here / "runs").iterdir())
    assert names == ["cifar_resnet-8-full_preactivation-001", "cifar_resnet-8-full_preactivation-002"]


def test_a_number_that_another_process_has_taken_is_passed_over(here, picture_folder, monkeypatch):
    """Between the choice of a folder and its making a model is built, which takes some seconds."""
    free = next_free_folder(here / "runs", "cifar_resnet-8-full_preactivation")
    check_free = RunFolder.check_free.__func__

    def meanwhile(cls, path):
        if Path(path).name == free.name:
            raise RunLocked("is being trained by another process")
        check_free(cls, path)

    def next_one(parent, name):
        chosen = next_free_folder(parent, name)
        chosen.mkdir(parents=True)  # as the other process does
        return chosen

    monkeypatch.setattr(RunFolder, "check_free", classmethod(meanwhile))
    monkeypatch.setattr("keras_preact.training.runs.next_free_folder", next_one)
    assert main(small(picture_folder, "--steps", "1")) == 0
    finished = [path.parent.name for path in (here / "runs").glob("*/model.keras")]
    assert finished == ["cifar_resnet-8-full_preactivation-002"]


def test_a_run_can_be_used_from_another_folder(here, picture_folder, monkeypatch):
    monkeypatch.chdir(picture_folder.parent)
    assert main(small(picture_folder.name, "--steps", "1", "--out", "run")) == 0
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert main(["evaluate", "../run"]) == 0


@pytest.mark.thorough
def test_the_name_of_a_network_is_that_network_and_a_path_a_run(here, picture_folder, capsys):
    assert main(small(picture_folder, "--steps", "1", "--out", "cifar_resnet")) == 0
    capsys.readouterr()
    assert main(["info", "cifar_resnet"]) == 0
    assert "resnet20" in text(capsys)
    assert main(["info", "./cifar_resnet"]) == 0
    assert "resnet8" in text(capsys)
    assert main(["inspect", "cifar_resnet", "--depth", "8", "--images", "4"]) == 0
    assert main(["export", "cifar_resnet", "weights.safetensors"]) == 2
    assert "use ./cifar_resnet" in text(capsys)
    assert main(["export", "./cifar_resnet", "weights.safetensors"]) == 0
    assert main(["export", "./cifar_resnet", "weights.safetensors"]) == 2
    assert "weights.safetensors exists already and is not overwritten" in text(capsys)
    for option in (["--depth", "20"], ["--image-size", "64"], ["--classes", "5"], ["--patch", "4"]):
        assert main(["info", "./cifar_resnet", *option]) == 2
        assert f"cifar_resnet is already built; leave out {option[0]}" in text(capsys)


def test_a_run_on_a_stream_is_inspected_on_its_first_test_images(monkeypatch):
    stream = [(np.full((3, 8, 8, 3), k, "uint8"), np.full(3, k)) for k in range(2)]

    class Stream:
        task, name = "classification", "photos"
        test = SimpleNamespace(test_batches=lambda count: iter(stream))

    monkeypatch.setattr("keras_preact.cli.inspect.data_of", lambda folder, data_dir: Stream)
    monkeypatch.setattr(RunFolder, "open", lambda path: path)
    model = SimpleNamespace(input_shape=(None, 8, 8, 3), output_shape=(None, 2))
    options = SimpleNamespace(model=str(RESULTS), images=3, data_dir=None)
    images, labels, shown = _images_for(model, options)
    assert np.array_equal(images, stream[0][0]) and labels.tolist() == [0] * 3 and shown == "3 test images of photos"


def test_the_demo_shows_both_networks_side_by_side_and_says_what_came_of_it(here, capsys):
    assert main(["demo", "--depth", "8", "--steps", "3", "--out", "demo"]) == 0
    printed = text(capsys)
    assert re.search(
        r"epoch 1: test error \(%\) original \d+\.\d, full pre-activation \d+\.\d; gap [+-]\d+\.\d", printed
    )
    assert re.search(r"original +\d+\.\d +\d+\.\d +\d+", printed)
    assert re.search(r"full pre-activation +\d+\.\d +\d+\.\d +\d+", printed)
    assert "At 8 layers and learning rate 0.1, " in printed and "after 3 steps" in printed and "Try next" in printed
    config = RunFolder.open(here / "demo" / "original").record()["config"]
    assert (config["image_size"], config["options"]["bottleneck"]) == (16, False)
    record = json.loads((here / "demo" / "run.json").read_text())
    assert record["status"] == "finished" and set(record["results"]) == {"original", "full_preactivation"}
    assert (here / "demo" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert (here / "demo" / "metrics.csv").read_text().startswith("run,epoch,step")
    for name in record["results"]:
        assert keras.models.load_model(here / "demo" / name / "model.keras").output_shape == (None, 10)
    assert main(["evaluate", "demo"]) == 0
    (here / "results").mkdir()
    assert main(["results", "--keep", "demo"]) == 2
    assert "demo holds several runs; give each folder its own name" in text(capsys)


def test_info_of_a_named_network(capsys):
    assert main(["info", "cifar_resnet", "--depth", "164"]) == 0
    assert "1,703,258" in text(capsys)
    assert main(["info", "preact_resnet18", "--classes", "7", "--image-size", "64"]) == 0
    printed = text(capsys)
    assert "images of 64 × 64 × 3" in printed and "4,615" in printed  # the head: 2 · 512 + 513 · 7


def test_info_without_a_name_lists_all_names(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for about in pretrained():
        assert re.search(rf"{about.name} +{about.test_error:.2f} % on {about.dataset}\n", printed)
    assert re.search(r"preact_resnet18 +pre-activation ResNet-18\n", printed)
    assert all(re.search(rf"^  {name} ", printed, re.M) for name in NETWORKS)


def test_info_says_what_another_profile_has_otherwise(capsys):
    assert main(["info", "preact-resnet50", "--against", "keras_applications"]) == 0
    table = capsys.readouterr().out.split("what differs")[1]
    assert re.search(r"strided unit of a stage +first +last", table)
    assert re.search(r"trainable parameters +25,549,352 +25,568,360", table)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        (["--shape-change", "option_a", "--against", "fb_resnet_torch"], "change of shape"),
        (["--against", "resnet_1k_layers"], "strided convolution of a bottleneck"),
        (["--placement", "original", "--against", "resnet_1k_layers"], "norm and ReLU of the first unit"),
        (["--depth", "164", "--bottleneck", "--against", "resnet_1k_layers"], "norm and ReLU of the first unit"),
    ],
)
def test_what_two_profiles_would_decide_otherwise_in_other_networks_is_no_difference(options, same, capsys):
    assert main(["info", "cifar_resnet", *options]) == 0
    assert same not in capsys.readouterr().out.split("what differs")[1]


def test_inspect_writes_a_page(here, capsys):
    arguments = ["--depth", "8", "--placement", "original", "--images", "8", "--out", "report"]
    assert main(["inspect", "cifar_resnet", *arguments]) == 0
    assert "after the addition: ReLU" in text(capsys)
    files = ["inspection.html", "inspection.json", "run.json"]
    assert sorted(path.name for path in (here / "report").iterdir()) == files
    assert main(["inspect", "cifar_resnet", *arguments]) == 2
    assert "is not overwritten" in text(capsys)
    assert main(["inspect", "cifar_resnet", *arguments[:-1], "again"]) == 0
    assert (here / "again/inspection.json").read_text() == (here / "report/inspection.json").read_text()
    (here / "results").mkdir()
    assert main(["results", "--keep", "report"]) == 0
    page = (here / "results" / "README.md").read_text()
    assert (
        "| [report](profiles/report/run.json) | resnet8_original, float32 | at initialization | 8 bundled test images"
        in page
    )
    assert (here / "results" / "figures" / "profiles-3-units.svg").exists() and "figures/profiles-3-units.svg" in page


def test_inspect_shows_a_trained_network_images_of_its_classes(here):
    assert main(["inspect", "resnet20-preact-cifar10-5classes", "--images", "4", "--out", "report"]) == 0
    assert "4 bundled test images" in (here / "report" / "inspection.html").read_text()


@pytest.mark.parametrize(
    ("shape", "names", "pixels", "dtype", "says"),
    [
        ((16, 16, 3), CIFAR10_CLASSES, True, "uint8", "4 bundled test images"),
        ((32, 32, 3), (), True, "uint8", "4 bundled test images with arbitrary labels"),
        ((48, 40, 3), (), True, "uint8", "4 images of random pixels with arbitrary labels"),
        ((32, 32, 3), CIFAR10_CLASSES, False, "float32", "4 bundled test images, standardized"),
        ((16, 16, 3), CIFAR10_CLASSES, False, "float32", "4 images of Gaussian noise with arbitrary labels"),
        ((96, 1), (), False, "float32", "4 sequences of Gaussian noise with arbitrary labels"),
    ],
)
def test_images_to_inspect_have_the_size_and_dtype_of_the_network(shape, names, pixels, dtype, says):
    images, labels, shown = _images(shape, names, 3, 4, pixels)
    assert (images.shape, images.dtype, shown) == ((4, *shape), dtype, says)
    bundled = bundled_cifar10().test.labels[:4].tolist()
    assert labels.tolist() == ([0, 1, 2, 0] if "arbitrary" in says else bundled)


@pytest.mark.parametrize(("pooled", "labels"), [(True, (4,)), (False, (4, 6))])
def test_a_network_of_tokens_is_inspected_with_its_own_vocabulary(here, pooled, labels):
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(5, 8)(tokens)
    x = keras.layers.GlobalAveragePooling1D()(x) if pooled else x
    keras.Model(tokens, keras.layers.Dense(3)(x)).save("mine.keras")
    options = parser().parse_args(["inspect", "mine.keras", "--images", "4"])
    inputs, found, _ = _images_for(keras.models.load_model("mine.keras"), options)
    assert inputs.shape == (4, 6) and inputs.min() > 0 and inputs.max() < 5
    assert found.shape == labels and set(found.ravel()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("shape", "what"), [((None,), "sequences of any length"), ((None, None, 3), "images of any size")]
)
def test_a_network_for_inputs_of_any_size_is_not_inspected(here, shape, what):
    inputs = keras.Input(shape)
    keras.Model(inputs, keras.layers.Rescaling(2.0)(inputs)).save("mine.keras")
    options = parser().parse_args(["inspect", "mine.keras"])
    with pytest.raises(InputError, match=f"accepts {what}; build and save it for a fixed"):
        _images_for(keras.models.load_model("mine.keras"), options)


def test_a_trained_transformer_is_inspected_on_its_own_sentences(here):
    assert main(["inspect", "transformer-reviews", "--images", "200", "--out", "report"]) == 0
    found = read_inspection(here / "report")
    assert found.images == "200 test sequences of reviews"
    assert found.lesions[0].error < 40  # 24.8 % on all of them; about 50 % on random tokens


def test_a_network_on_other_data_has_no_test_error_to_inspect(here):
    cifar_resnet(8, classes=3, input_shape=(16, 16, 3)).save("mine.keras")
    assert main(["inspect", "mine.keras", "--images", "4", "--out", "report"]) == 0
    assert read_inspection(here / "report").lesions == []


@pytest.mark.thorough
def test_a_run_is_evaluated_on_other_crops(here, picture_folder, capsys):
    """With one mean for all pixels; where each pixel has its own, a network belongs to one size, and that is said."""
    train = small(picture_folder, "--steps", "2", "--recipe", "fb_resnet_torch")
    assert main([*train, "--out", "run"]) == 0
    recipe = RunFolder.open(here / "run").record()["config"]["recipe"]
    assert (recipe["inputs"], recipe["nesterov"], recipe["reported"]) == (
        "per_channel",
        True,
        "best epoch on test images",
    )
    assert main(["evaluate", "run", "--image-size", "24", "--short-side", "28"]) == 0
    assert main(["evaluate", "run", "--image-size", "24", "--short-side", "20"]) == 2
    assert "a crop of 24 pixels does not fit a short side of 20" in text(capsys)
    for size in ("0", "-3"):
        assert main(["evaluate", "run", "--image-size", size]) == 2
        assert f"image_size is {size}; it must be an integer of at least 1" in text(capsys)
    assert main(["evaluate", "run", "--image-size", "7"]) == 2
    assert "the image size is 7; it must be at least 8 pixels" in text(capsys)
    assert main([*small(picture_folder, "--steps", "1"), "--out", "pixels"]) == 0
    assert main(["evaluate", "pixels", "--image-size", "24"]) == 2
    assert "the mean differs from pixel to pixel" in text(capsys)


def test_reproduce_lists_the_runs_of_another_profile_apart(here, capsys):
    """All of the paper's runs of Table 2 are kept, none of another code base's."""
    for options, expected in (
        ([], "0 of 10 runs are"),
        (["--profile", "fb_resnet_torch"], "10 of 10 runs are"),
    ):
        assert main(["reproduce", "table2", "--budget", "cpu", "--list", "--results", str(RESULTS), *options]) == 0
        assert re.search(rf"(?m)^{expected}", text(capsys))


def test_reproduce_prints_the_table(here, capsys):
    """Of runs that are kept: nothing is trained."""
    record = json.loads((RESULTS / "runs/table1/cpu-cifar10-cifar_resnet-32-original-seed0" / "run.json").read_text())
    assert main(["reproduce", "table2", "--budget", "cpu", "--results", str(RESULTS)]) == 0
    assert re.search(rf"(?m)^original-110 .*\b{record['result']['test_error']:.2f}\b", text(capsys))
    assert not (here / "runs").exists()


@pytest.mark.thorough
def test_reproduce_initialization_prints_the_gradients(here, capsys, monkeypatch):
    small = {"depths": (1, 2, 3), "seeds": 2, "dim": 16, "batch": 8}
    fewer = partial(record_initial_gradients, **small)
    monkeypatch.setattr("keras_preact.cli.reproduce.record_initial_gradients", fewer)
    assert main(["reproduce", "initialization", "--out", "out"]) == 0
    assert "pre-norm, 3 blocks" in text(capsys)


def test_every_option_of_train_reaches_the_run(here, monkeypatch):
    configs = []

    def take(config, *arguments, **options):
        configs.append(config)
        raise InputError("enough")

    monkeypatch.setattr("keras_preact.cli.train.start", take)
    train = ["train", "--depth", "26", "--basic", "--shape-change", "option_a", "--profile", "fb_resnet_torch"]
    train += ["--seed", "7", "--precision", "mixed_bfloat16", "--deterministic", "--distribute", "2"]
    train += ["--widen-factor", "2"]
    assert main([*train, "--sync-batch-norm", "--batch-size", "16", "--steps", "3", "--learning-rate", "0.03"]) == 2
    assert main(["train", "--model", "transformer", *TRANSFORMER, "--dropout", "0.2"]) == 2
    images, words = configs
    assert (images.seed, images.precision, images.deterministic) == (7, "mixed_bfloat16", True)
    assert (images.devices, images.sync_batch_norm) == (2, True)
    assert (images.recipe.batch_size, images.recipe.steps) == (16, 3)
    assert images.recipe.schedule.learning_rate == 0.03
    assert main(["train", "--recipe", "paper", "--learning-rate", "0.001"]) == 2
    assert configs.pop().recipe.schedule.warmup_learning_rate == 0.001  # not 0.01, a warm-up above the rate
    assert images.options == {
        "depth": 26,
        "placement": "full_preactivation",
        "bottleneck": False,
        "widen_factor": 2,
        "shape_change": "option_a",
        "profile": "fb_resnet_torch",
    }
    assert words.options == {"depth": 1, "dim": 8, "heads": 2, "dropout": 0.2}


def test_inspect_shows_a_run_its_own_images(here, picture_folder, capsys):
    assert main(small(picture_folder, "--steps", "1", "--out", "run")) == 0
    assert main(["inspect", "run", "--images", "3", "--out", "report"]) == 0
    page = (here / "report" / "inspection.html").read_text()
    assert "3 test images of" in page and "trained for 1 steps" in page
    assert str(here) not in (here / "report" / "run.json").read_text()


TRANSFORMER = ["--depth", "1", "--dim", "8", "--heads", "2", "--steps", "3"]


@pytest.mark.thorough
def test_a_run_on_some_classes_and_its_weights_for_other_programs(here, capsys):
    train = ["train", "--depth", "8", "--steps", "2", "--batch-size", "8", "--only", "cat", "ship", "frog"]
    assert main([*train, "--out", "run"]) == 0
    assert RunFolder.open(here / "run").record()["config"]["only"] == ["cat", "ship", "frog"]
    assert main(["evaluate", "run"]) == 0
    on_tensorflow = keras.backend.backend() == "tensorflow"
    assert main(["export", "run", "program"]) == (0 if on_tensorflow else 2)  # a SavedModel, of images as bytes
    said = "outputs differ from" if on_tensorflow else "on its TensorFlow backend; set KERAS_BACKEND=tensorflow"
    assert said in text(capsys) and (here / "program" / "saved_model.pb").exists() == on_tensorflow
    assert main(["export", "run", "program.onnx", "--dtype", "float16"]) == 2
    assert "program.onnx cannot have weights in float16; choose float32" in text(capsys)
    assert main(["export", "run", "weights.safetensors", "--dtype", "float16"]) == 0
    assert "of resnet8_full_preactivation, float16" in text(capsys)
    model = keras.models.load_model(here / "run" / "model.keras")
    assert model.output_shape == (None, 3)
    before = keras.ops.convert_to_numpy(model.get_layer("logits").kernel)
    model.get_layer("logits").kernel.assign(0 * before)
    load_safetensors(model, here / "weights.safetensors")
    assert np.allclose(keras.ops.convert_to_numpy(model.get_layer("logits").kernel), before, rtol=1e-3)


@pytest.mark.thorough
def test_a_transformer_is_trained_on_reviews_and_told_what_a_bag_of_words_reaches(here, capsys):
    assert main(["train", "--model", "prenorm-transformer", *TRANSFORMER, "--out", "run"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"bag of words \(naive Bayes\): test error 2\d\.\d\d %", printed)
    assert main(["evaluate", "run"]) == 0
    assert main(["info", "run"]) == 0
    assert "sequences of 40" in capsys.readouterr().out
    assert main(["inspect", "run", "--images", "4"]) == 0
    assert "nothing on the identity path" in capsys.readouterr().out


def test_a_forecast_has_its_unit(here, capsys):
    arguments = ["train", "--model", "postnorm-transformer", "--dataset", "weather", *TRANSFORMER, "--out", "run"]
    assert main(arguments) == 0
    assert "test error °C" in capsys.readouterr().out
    assert main(["inspect", "run"]) == 2
    assert "forecasts numbers" in capsys.readouterr().err


def test_a_transformer_by_name_is_described_and_inspected(here, capsys):
    assert main(["info", "transformer", "--depth", "2", "--placement", "sandwich", "--patch", "8"]) == 0
    assert "transformer2_sandwich, images of 32 × 32 × 3" in capsys.readouterr().out
    assert main(["info", "transformer", "--depth", "2", "--patch", "8", "--image-size", "64"]) == 0
    assert "images of 64 × 64 × 3" in capsys.readouterr().out
    assert main(["inspect", "postnorm_transformer", "--depth", "2", "--dim", "16", "--images", "4"]) == 0
    assert "after the addition: LayerNormalization" in capsys.readouterr().out


def test_reproduce_says_where_even_ten_thousand_seeds_are_too_few(here, made_up_run, capsys, monkeypatch):
    monkeypatch.setattr("keras_preact.experiments.cost.seconds_of", lambda config: 60.0)
    monkeypatch.setattr("keras_preact.experiments.report.MOST_SEEDS", 12)
    monkeypatch.setattr("keras_preact.experiments.statistics.MOST_SEEDS", 12)
    (row,) = EXPERIMENTS["table2"].select(["original-110"])
    for seed, error in enumerate((13.0, 13.3, 13.6)):
        made_up_run(here / "results" / str(seed), BUDGETS["cpu"].config(row, seed, "float32"), error)
    rows = ["--rows", "bn_after_addition-110", "full_preactivation-110"]
    assert main(["reproduce", "table2", "--budget", "cpu", *rows, "--cost"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "missing" in line]
    assert len(lines) == 2 and "more than" not in lines[0] and "more than 12" in lines[1]


@pytest.mark.thorough
def test_reproduce_says_what_the_missing_runs_would_cost(here, capsys, monkeypatch):
    order = []
    monkeypatch.setattr("keras_preact.cli.reproduce.choose_threads", order.append)  # before anything is timed
    monkeypatch.setattr(
        "keras_preact.experiments.cost.seconds_of",
        lambda config: order.append(config) or 90.0 * config.options["depth"],
    )
    assert main(["reproduce", "table2", "--rows", "original-110", "original-164", "--seeds", "2", "--cost"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("timing") == 2  # a network is timed once, whatever the seed
    assert printed.count("12 min") == 2 and "57 min on this machine" in printed
    assert not (here / "runs").exists()
    assert len(order) == 3 and order[0] == order[1]  # the threads are those of the first missing run


def test_reproduce_lists_each_run_of_all_tables_once(here, capsys):
    assert main(["reproduce", "all", "--budget", "paper", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("original-110" in line.split() for line in lines) == 0  # Table 1 has it, under another name
    assert {line.split()[0] for line in lines if line.endswith("missing")} == set(EXPERIMENTS) - {"screening", "fast"}


def test_reproduce_lists_what_is_missing(here, capsys):
    assert main(["reproduce", "table2", "--budget", "cpu", "--list", "--seeds", "2"]) == 0
    printed = text(capsys)
    assert printed.count("missing") == 20 and "full_preactivation-164" in printed
    assert not list(here.iterdir())


def test_results_leaves_a_readme_alone_that_it_has_not_written(here, capsys):
    (here / "project").mkdir()
    (here / "project" / "README.md").write_text("mine", encoding="utf-8")
    assert main(["inspect", "cifar_resnet", "--depth", "8", "--images", "4", "--out", "report"]) == 0
    capsys.readouterr()
    assert main(["results", "project", "--keep", "report"]) == 2
    assert "README.md was not written by `keras-preact results` and is not overwritten; rename it" in text(capsys)
    assert [path.name for path in (here / "project").iterdir()] == ["README.md"]
    assert (here / "project" / "README.md").read_text() == "mine"


def test_results_writes_its_page(here, capsys):
    (here / "results").mkdir()
    assert main(["results"]) == 0
    assert (here / "results" / "README.md").read_text().startswith("# Results")


def test_the_version_is_said(capsys):
    assert main(["--version"]) == 0
    assert text(capsys) == f"keras_preact {__version__}\n"


@pytest.mark.thorough
def test_a_network_of_a_million_layers_is_described_within_seconds(here, capsys):
    began = time.process_time()
    assert main(["info", "cifar_resnet", "--depth", "1000001"]) == 0
    assert re.search(r"total +333333 +10 +10,304,023,706", text(capsys))
    assert time.process_time() - began < 60  # minutes, if it had values


def test_every_path_of_a_command_may_begin_with_a_tilde(monkeypatch):
    """Also in `--out=~/run`, where shells leave it alone."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    (commands,) = (action.choices for action in parser()._actions if action.dest == "command")
    paths = {"out", "resume", "folder", "data_dir", "results", "keep", "file"}
    found = [action for command in commands.values() for action in command._actions if action.dest in paths]
    assert {action.dest for action in found} == paths
    assert {Path(action.type("~/run")) for action in found} == {Path("/home/me/run")}
    assert parser().parse_args(["train", "--out=~nobody-here/run"]).out == Path("~nobody-here/run")


def test_a_command_on_a_path_with_a_space_can_be_copied(here, capsys):
    assert main(["train", "--depth", "8", "--steps", "1", "--out", "my run"]) == 0
    assert "`keras-preact evaluate 'my run'`" in text(capsys)
    assert main(["train", "--resume", "my run"]) == 2
    assert "view it with `keras-preact evaluate 'my run'`" in text(capsys)
    assert main(["evaluate", "my run", "--data-dir", "data"]) == 2
    assert text(capsys).endswith(
        "the data of my run (bundled) come with the package; leave out data_dir (--data-dir)\n"
    )


def test_help_goes_to_the_output_and_is_no_error(capsys):
    assert main(["--help"]) == 0
    assert main(["train", "--help"]) == 0
    assert "--placement" in capsys.readouterr().out


# ---- what is refused: one sentence, exit status 2, nothing left behind -----------------------------------------------

REFUSED = {
    "depth": (["train", "--depth", "21"], "nearest depths that are: 20, 26"),
    "depth of a bottleneck": (["train", "--depth", "26", "--bottleneck"], "nearest depths that are: 20, 29"),
    "placement": (["train", "--placement", "preactivation"], f"known: {PLACEMENTS}"),
    "shortcut": (["train", "--shortcut", "identiti"], "known: identity, "),
    "shortcut's argument": (["train", "--shortcut", "dropout(0.5"], "shortcut"),
    "network": (["train", "--model", "resnet51"], "known: "),
    "recipe": (
        ["train", "--recipe", "quick"],
        "known: paper, imagenet, fb_resnet_torch, resnet_1k_layers, tensorflow_models, short, fast, adam, demo",
    ),
    "precision": (["train", "--precision", "float8", "--steps", "1"], "float32, mixed_float16, mixed_bfloat16"),
    "steps": (["train", "--steps", "0"], "steps is 0; it must be an integer of at least 1"),
    "epochs": (["train", "--epochs", "-1"], "--epochs is -1; it must be an integer of at least 1"),
    "learning rate": (["train", "--learning-rate", "-1", "--steps", "1"], "learning_rate is -1.0"),
    "batch size": (["train", "--batch-size", "0"], "the batch size is 0; it must be an integer"),
    "batch larger than data": (["train", "--batch-size", "5000", "--steps", "1"], "not fit 4,000 training examples"),
    "steps and epochs": (["train", "--steps", "1", "--epochs", "1"], "not allowed with"),
    "not a number": (["train", "--depth", "twenty"], "invalid int value: 'twenty'"),
    "unknown option": (["train", "--dephts", "20"], "unrecognized arguments"),
    "no command": ([], "required: COMMAND"),
    "data set": (["train", "--dataset", "cifar11", "--data-dir", "data"], "cifar11"),
    "missing folder": (["train", "--dataset", "folder", "--data-dir", "nowhere"], "nowhere"),
    "class that is not there": (["train", "--only", "cat", "dgo"], "did you mean 'dog'?"),
    "classes of sequences": (["train", "--model", "transformer", "--only", "cat", "dog"], "leave out only (--only)"),
    "format to export": (["export", "nowhere", "weights.h5"], "no run folder, file or trained network nowhere"),
    "run to evaluate": (["evaluate", "nowhere"], "not a run folder"),
    "run to resume": (["train", "--resume", "nowhere"], "not a run folder"),
    "option beside resume": (["train", "--resume", "nowhere", "--depth", "20"], "leave out --depth"),
    "depth that a name has": (["train", "--model", "preact_resnet18", "--depth", "20"], "has a fixed depth"),
    "unknown network": (["info", "nowhere"], "unknown network 'nowhere'; known: "),
    "model": (["info", "nowhere.keras"], "there is no file or folder nowhere.keras; name a run folder, a model or"),
    "run": (["inspect", "runs/nowhere"], "there is no file or folder runs/nowhere; name a run folder, a model or"),
    "trained network": (["info", "resnet14x2-preact"], "did you mean 'resnet14x2-preact-cifar10'?"),
    "network of --basic": (["info", "--basic"], "--basic needs the name of a network"),
    "network of an option": (["info", "--depth", "20"], "--depth needs the name of a network"),
    "profile of a Transformer": (["info", "transformer", "--against", "timm"], "needs the name of a residual network"),
    "profile to compare with": (["info", "cifar_resnet", "--against", "timm"], "timm has no CIFAR networks"),
    "table": (
        ["reproduce", "table9"],
        f"known: {', '.join(EXPERIMENTS)}, initialization, all",
    ),
    "rows of every table": (["reproduce", "all", "--rows", "original"], "each table has its own rows"),
    "bottleneck of a Transformer": (["train", "--model", "prenorm-transformer", "--bottleneck"], "has no bottleneck"),
    "bottleneck of a network that has one": (
        ["train", "--model", "imagenet_resnet", "--bottleneck"],
        "imagenet_resnet has no bottleneck; leave out --bottleneck",
    ),
    "width of a ResNet": (["train", "--dim", "8"], "cifar_resnet has no dim; leave out --dim"),
    "order by name and by option": (
        ["train", "--model", "prenorm-transformer", "--placement", "post_norm"],
        "choose transformer instead",
    ),
    "sequences for a ResNet": (
        ["train", "--dataset", "reviews"],
        "cifar_resnet accepts images, not sequences; use one of transformer",
    ),
    "heads": (["train", "--model", "prenorm-transformer", "--dim", "10"], "4 heads do not divide a width of 10"),
    "budget": (["reproduce", "table1", "--budget", "gpu"], f"known: {', '.join(BUDGETS)}"),
    "row": (["reproduce", "table1", "--rows", "orignal"], "did you mean 'original'"),
    "row of another budget": (
        ["reproduce", "table3", "--rows", "cifar100-164-original"],
        "not part of the budget smoke",
    ),
    "profile": (["reproduce", "table1", "--profile", "timmy"], "did you mean 'timm'"),
    "profile without such networks": (
        ["reproduce", "table1", "--profile", "timm"],
        "timm has no CIFAR networks; choose one of paper, resnet_1k_layers, fb_resnet_torch",
    ),
    "budget without networks of the profile": (
        ["reproduce", "all", "--budget", "deep", "--profile", "timm"],
        "the budget deep has no networks of the profile timm; choose another budget (--budget) or profile (--profile)",
    ),
    "table without networks of the profile": (
        ["reproduce", "warmup", "--budget", "cpu", "--profile", "fb_resnet_torch"],
        "12-post_norm-0.0005-none is a Transformer, which has no profile; leave out --profile",
    ),
    "recipe that a profile has not": (["train", "--recipe", "keras_applications"], "known: paper, imagenet, fb_"),
    "seeds": (["reproduce", "table1", "--seeds", "0"], "the number of seeds is 0"),
    "budget without its data": (
        ["reproduce", "table1", "--budget", "cpu", "--jobs", "1", "--data-dir", "none"],
        "error: the data set cifar10 is not prepared in ",
    ),
    "several runs without their data": (
        ["reproduce", "table1", "--budget", "cpu", "--jobs", "2", "--data-dir", "none"],
        "error: the data set cifar10 is not prepared in ",
    ),
    "results": (["results", "nowhere"], "nowhere is not a folder"),
    "model to inspect": (["inspect", "nowhere.keras"], "there is no file or folder nowhere.keras"),
    "too many steps": (
        ["train", "--depth", "8", "--steps", "99999999999999999999"],
        "it must be at most 2,147,483,647",
    ),
    "too wide": (["train", "--depth", "8", "--widen-factor", "1e30"], "it must be a number from 0.0625 to 1000"),
    "images": (["inspect", "cifar_resnet", "--images", "0"], "--images is 0"),
    "data of no run": (
        ["inspect", "cifar_resnet", "--depth", "8", "--data-dir", "data"],
        "cifar_resnet is not a run, so it has no data of its own; leave out --data-dir",
    ),
    "precision of a table": (
        ["reproduce", "table1", "--precision", "half", "--list"],
        "unknown precision 'half'; known: float32, mixed_float16, mixed_bfloat16",
    ),
    "seed": (["train", "--seed", "-1", "--steps", "1"], "the seed is -1; it must be an integer from 0 to 4294967295"),
    "depth of the demo": (["demo", "--depth", "21", "--out", "demo"], "nearest depths that are: 20, 26"),
    "devices": (["train", "--distribute", "0", "--steps", "1"], "number of devices is 0; it must be an integer"),
    "name before options": (["train", "--model", "cifar_resnt", "--depth", "20"], "did you mean 'cifar_resnet'"),
    "name before data": (["train", "--model", "resnet51", "--dataset", "cifar10"], "known: "),
    "folder of bundled images": (
        ["train", "--data-dir", "mine"],
        "data_dir (--data-dir) does not apply to the bundled",
    ),
    "size of bundled images": (["train", "--image-size", "64"], "choose an image size from 8 to 32 pixels, not 64"),
    "size of bundled sequences": (
        ["train", "--model", "prenorm-transformer", "--image-size", "16"],
        "image_size (--image-size) does not apply to the bundled",
    ),
    "size of words": (["info", "transformer", "--image-size", "64"], "leave out the image size"),
    "list of no runs": (
        ["reproduce", "initialization", "--list"],
        "trains nothing; leave out --list",
    ),
    "budget of no runs": (["reproduce", "initialization", "--budget", "cpu"], "leave out --budget"),
    "workers of no runs": (["reproduce", "initialization", "--jobs", "2"], "leave out --jobs"),
    "kept run": (["results", ".", "--keep", "nowhere"], "not a run folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_gets_a_sentence_and_status_2(case, here, capsys):
    arguments, message = REFUSED[case]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("keras-preact: error: ")
    assert message in lines[0]
    assert not list(here.iterdir())


def test_a_run_folder_that_exists_is_not_touched(here, picture_folder, capsys):
    (here / "run").mkdir()
    (here / "run" / "notes.txt").write_text("mine")
    assert main(small(picture_folder, "--steps", "1", "--out", "run")) == 2
    assert "exists already and is not overwritten" in text(capsys)
    assert [path.name for path in (here / "run").iterdir()] == ["notes.txt"]


def test_a_file_that_is_no_model(here, capsys):
    (here / "bad.keras").write_bytes(b"not a model")
    assert main(["info", "bad.keras"]) == 2
    assert "bad.keras is not a .keras file" in text(capsys)


@pytest.mark.filterwarnings("ignore:You are saving a model")
def test_models_that_cannot_be_inspected_or_exported_are_named(here, capsys):
    images, age = keras.Input((8, 8, 3)), keras.Input((1,))
    features = cifar_resnet(8, include_top=False, pooling="avg", input_tensor=images).output
    outputs = keras.layers.Dense(3)(features)
    keras.Model([images, age], keras.layers.Concatenate()([outputs, age])).save("two_in.keras")
    keras.Model(images, [outputs, features]).save("two_out.keras")
    keras.Sequential([keras.layers.Dense(3)]).save("unbuilt.keras")
    for name, counts in (("two_in", "2 and 1"), ("two_out", "1 and 2")):
        assert main(["inspect", f"{name}.keras", "--out", "report"]) == 2
        assert f"{name}.keras must have one input and one output, not {counts}" in text(capsys)
    for command in (
        ["inspect", "unbuilt.keras"],
        ["export", "unbuilt.keras", "x.safetensors"],
        ["info", "unbuilt.keras"],
    ):
        assert main(command) == 2
        assert "unbuilt.keras was saved before it was built; call it on a batch" in text(capsys)
    assert sorted(path.name for path in here.iterdir()) == ["two_in.keras", "two_out.keras", "unbuilt.keras"]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ([], "has outputs of shape (None, 8, 8, 16), not a score for each class"),
        (["pool", keras.layers.Dense(1)], "has a single output, not a score for each class"),
        (["pool", keras.layers.Dense(3, "sigmoid")], "has a sigmoid at its end, not logits or a softmax"),
    ],
    ids=["features", "one output", "independent classes"],
)
def test_a_network_without_scores_of_classes_is_not_inspected(here, capsys, end, said):
    x = inputs = keras.Input((8, 8, 3))
    for layer in [keras.layers.Conv2D(16, 3, padding="same"), ResidualUnit(16), *end]:
        x = keras.layers.GlobalAveragePooling2D()(x) if layer == "pool" else layer(x)
    keras.Model(inputs, x).save("mine.keras")
    assert main(["inspect", "mine.keras"]) == 2
    assert f"mine.keras {said}; inspect a classifier" in text(capsys)


def test_an_unknown_backend_in_keras_json_is_named(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "nonsense"}')
    package = Path(keras_preact.__file__).parents[1]
    environment = {**os.environ, "KERAS_HOME": str(tmp_path), "PYTHONPATH": str(package)}
    environment.pop("KERAS_BACKEND", None)
    command = [sys.executable, "-m", "keras_preact", "info", "cifar_resnet"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "error: the backend in keras.json, in KERAS_HOME or ~/.keras, is unknown; correct it, or set" in done.stderr


def test_an_unknown_backend_is_named(monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", "tensorlow")
    assert main(["info"]) == 2
    said = "unknown KERAS_BACKEND 'tensorlow' (did you mean 'tensorflow'?); known: tensorflow, jax, torch"
    assert text(capsys) == f"keras-preact: error: {said}\n"
    assert main(["--version"]) == 0


@pytest.mark.parametrize(
    ("encoding", "expected"), [("ascii", b"3?3 ?"), ("cp1252", b"3\xd73 ?"), ("utf-8", "3×3 →".encode())]
)
def test_a_character_that_the_output_lacks_does_not_end_the_command(monkeypatch, encoding, expected):
    output = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    prepare()
    print("3×3 →", flush=True)
    assert output.buffer.getvalue().startswith(expected)


def test_names_in_a_file_cannot_act_on_the_terminal(here, capsys):
    """Neither in a table nor in an error; nor are they taken for markup."""
    name = "\x1b]0;owned\x07[red]\u202e"
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3)], name=name)
    model.save(here / "named.keras")
    assert main(["info", "named.keras"]) == 0
    printed = text(capsys)
    assert "\\x1b]0;owned\\x07[red]\\u202e, images of 8 × 8 × 3" in printed
    assert all(character.isprintable() or character == "\n" for character in printed)
    assert main(["info", "\x1b[2J.keras"]) == 2
    assert main(["export", "named.keras", "\x1b[2J.other"]) == 2
    assert all(character.isprintable() or character == "\n" for character in text(capsys))


@pytest.mark.parametrize(("split", "length"), [("train", 40), ("test", 40), ("test", 0), ("train", 48), ("test", 48)])
def test_a_half_written_image_is_named(split, length, here, picture_folder, capsys):
    """Before anything is made; only a test image with an intact header is found when the first epoch has ended."""
    broken = next((picture_folder / split / "dark").iterdir())
    broken.write_bytes(broken.read_bytes()[:length])
    assert main(small(picture_folder, "--steps", "1", "--out", "run")) == 2
    said = text(capsys)
    assert f"the image {split}/dark/{broken.name} cannot be read" in said and "internal error" not in said
    assert "replace or remove it and start a new run, or leave such images out with skip_corrupt" in said
    is_late = (split, length) == ("test", 48)
    assert (here / "run").exists() == is_late
    if is_late:
        assert RunFolder.open(here / "run").record()["status"] == "interrupted"


def test_a_folder_that_holds_no_training_is_called_what_it_is(here, capsys):
    assert main(["inspect", "cifar_resnet", "--depth", "8", "--images", "4", "--out", "report"]) == 0
    capsys.readouterr()
    for command in (["evaluate", "report"], ["export", "report", "x.safetensors"], ["train", "--resume", "report"]):
        assert main(command) == 2
        assert "report contains no training run (inspection); name a folder that `train` created" in text(capsys)


@pytest.mark.thorough
def test_the_demo_goes_on_where_it_was_stopped(here, monkeypatch, capsys):
    """Stopped in its first run, and resumed: the second is trained too, and the table comes."""
    stop = StopAfter(2)
    with monkeypatch.context() as patch:
        patch.setattr("keras_preact.console.SideBySide.callback", lambda self, name: stop)
        assert main(["demo", "--depth", "8", "--steps", "3", "--out", "demo"]) == 130
    assert "resume with `keras-preact train --resume demo`" in text(capsys)
    assert RunFolder.open(here / "demo").record()["status"] == "interrupted"
    assert main(["train", "--resume", "demo"]) == 0
    assert re.search(r"full pre-activation +\d+\.\d +\d+\.\d +\d+", text(capsys))
    assert RunFolder.open(here / "demo").record()["status"] == "finished"
    assert main(["train", "--resume", "demo"]) == 2
    assert "demo is finished" in text(capsys)


def test_the_progress_bar_is_closed_however_the_command_ends(here, monkeypatch):
    from keras_preact import console

    monkeypatch.setattr(console, "console", Console(force_terminal=True, file=io.StringIO()))
    monkeypatch.setattr("keras_preact.training.trainer.tensorboard_callbacks", lambda folder: [StopAfter(1)])
    assert main(["train", "--depth", "8", "--steps", "3", "--out", "run"]) == 130
    written = console.console.file.getvalue()
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor is hidden, and shown again
    assert console._open_bar is None


def test_half_written_images_are_left_out_by_choice_and_counted(here, picture_folder, capsys):
    broken = next((picture_folder / "train" / "dark").iterdir())
    broken.write_bytes(broken.read_bytes()[:40])
    assert main(small(picture_folder, "--steps", "2", "--out", "run", "--skip-corrupt")) == 0
    said = text(capsys)
    assert "cannot be read: 1 (" in said and broken.name in said
    record = json.loads((here / "run" / "run.json").read_text())
    assert record["data"]["skipped"] == [f"train/dark/{broken.name}"]
    assert main(["evaluate", "run"]) == 0  # the same images again


def test_only_images_of_a_folder_can_be_left_out(here, capsys):
    assert main(["train", "--dataset", "bundled", "--skip-corrupt", "--steps", "1"]) == 2
    assert "skip_corrupt (--skip-corrupt) applies only to image folders" in text(capsys)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "free some space"), (errno.EROFS, "choose one that you can write to")]
)
def test_a_full_or_read_only_disk_is_one_sentence(here, picture_folder, monkeypatch, capsys, number, words):
    def fail(*arguments, **keywords):
        raise OSError(number, os.strerror(number), "run/checkpoint/step-000000001.partial")

    monkeypatch.setattr("keras_preact.training.checkpoints.np.savez", fail)
    assert main(small(picture_folder, "--steps", "1", "--out", "run")) == 1
    said = text(capsys)
    assert words in said and os.strerror(number) in said and "Traceback" not in said


def test_a_fault_of_the_program_is_one_sentence_too(here, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr("keras_preact.cli.train.start", fail)
    assert main(["train", "--steps", "1"]) == 1
    assert text(capsys) == "keras-preact: internal error, please report it (RuntimeError: boom); see --debug\n"
    for arguments in (["train", "--steps", "1", "--debug"], ["--debug", "train", "--steps", "1"]):
        assert main(arguments) == 1
        printed = text(capsys)
        assert printed.startswith("Traceback") and "please report it (RuntimeError: boom)" in printed
    assert main(["--debug", "info", "cifar_resnet", "--depth", "21"]) == 2
    assert main(["--deb", "info"]) == 2 and "unrecognized arguments: --deb" in text(capsys)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
        NoMemory("on GPU"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_is_no_fault_of_the_program(error, here, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("keras_preact.cli.train.start", fail)
    assert main(["train", "--steps", "1"]) == 1
    assert text(capsys).startswith("keras-preact: error: out of memory; use smaller batches (train --batch-size)")


@pytest.mark.thorough
@pytest.mark.parametrize("before", [{}, {"TF_ENABLE_ONEDNN_OPTS": "0"}])
def test_the_command_computes_with_onednn_and_a_program_is_left_as_it_is(before):
    """TensorFlow decides on oneDNN when it is imported: that is seen only in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "TF_ENABLE_ONEDNN_OPTS"} | before
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    look = (
        "import os, keras_preact; from keras_preact.training.provenance import environment; "
        "print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'), environment().get('onednn'))"
    )
    command = "import sys; sys.argv[0] = 'keras-preact'; from keras_preact.cli import main"
    as_command = f"{command}; main(['info', 'cifar_resnet']); {look}"
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        for program in (as_command, look)
    ]
    variables, onednn = zip(*(done.stdout.splitlines()[-1].split() for done in said), strict=True)
    assert variables == (("0", "0") if before else ("1", "None")), said[0].stderr
    if keras.backend.backend() == "tensorflow":
        assert onednn[0] == str(not before and platform.machine() in ("x86_64", "AMD64"))
        assert "oneDNN" not in said[0].stderr


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


def end_soon(folder, steps):
    """Give a run fewer steps: in its record, and in the copy that its checkpoints have."""
    config = folder.record()["config"]
    config["recipe"]["steps"] = steps
    folder.update_record(config=config, steps=steps)
    for path in folder.checkpoints_path.glob("*.npz"):
        with np.load(path) as data:
            contents = dict(data)
        about = json.loads(contents["about"].tobytes())
        about["notes"]["record"]["config"] = config
        contents["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        np.savez(path, **contents)


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_run_that_can_be_resumed(here, picture_folder, number, status):
    """As a user meets it: another process, a real signal (Ctrl-C, a cluster), the command that its message names."""
    command = [sys.executable, "-m", "keras_preact"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    arguments = [*command, *small(picture_folder, "--steps", "5000", "--out", "run")]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    metrics = here / "run" / "metrics.csv"
    give_up = time.monotonic() + 240
    while not metrics.exists() and time.monotonic() < give_up and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors
    assert re.search(rf"stopped by {number.name} after step \d+; resume with `keras-preact train --resume run`", errors)
    assert "Traceback" not in errors
    record = RunFolder.open(here / "run").record()
    assert record["status"] == "interrupted" and 0 < record["step"] < 5000
    end_soon(RunFolder.open(here / "run"), record["step"] + 2)
    done = subprocess.run([*command, "train", "--resume", "run"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(here / "run").record()["status"] == "finished"


def test_training_goes_on_when_nobody_reads_its_output(here, picture_folder):
    """As `keras-preact train | head -1`: the epochs that nobody sees are trained too."""
    command = [sys.executable, "-m", "keras_preact", *small(picture_folder, "--steps", "40", "--out", "run")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 0, said
    assert RunFolder.open("run").record()["status"] == "finished"


def test_an_unfinished_comparison_is_resumed_as_a_whole(here, capsys):
    """Not one of its runs, which would leave the other unfinished."""
    for path, kind in (("demo", "comparison"), ("demo/original", "training")):
        runs = {"original": {}, "full_preactivation": {}}
        RunFolder.create(path).update_record(kind=kind, status="interrupted", runs=runs)
    assert main(["evaluate", "demo"]) == 2
    assert "demo is not finished; finish it first with `keras-preact train --resume demo`" in text(capsys)


def test_two_demos_that_start_together_take_different_folders(here, monkeypatch):
    taken = []

    def compare(configs, out, callbacks, together):
        taken.append(str(out))
        if len(taken) == 1:
            RunFolder.create(out).update_record(kind="comparison")  # the other demo
            raise RunLocked("is being trained by another process")
        return RunFolder(out)

    monkeypatch.setattr("keras_preact.cli.demo.compare", compare)
    assert _compared(orders(RunConfig()), None).path.name == "demo-002"
    assert [Path(out).name for out in taken] == ["demo-001", "demo-002"]
    taken.clear()
    with pytest.raises(RunLocked):
        _compared(orders(RunConfig()), Path("mine"))


@pytest.mark.skipif(os.name != "posix", reason="Windows has no pseudo-terminals")
def test_a_command_that_is_stopped_leaves_a_visible_cursor():
    """A live table hides it, and the command ends without closing the table."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from keras_preact.startup import prepare\n"
        "prepare(); signal.raise_signal(signal.SIGINT)"
    )
    terminal, end = os.openpty()
    outputs = []
    for output in (end, subprocess.PIPE):
        process = subprocess.run([sys.executable, "-c", code], stdout=output, stderr=subprocess.PIPE)
        assert (process.returncode, process.stderr.splitlines()[-1]) == (130, b"keras-preact: stopped")
        outputs.append(os.read(terminal, 100) if output == end else process.stdout)
    assert outputs == [b"\x1b[?25h", b""]


def test_a_comparison_of_which_every_run_diverged_has_nothing_to_evaluate(here, capsys):
    assert main(["demo", "--depth", "8", "--steps", "3", "--learning-rate", "1e30", "--out", "demo"]) == 1
    capsys.readouterr()
    assert main(["evaluate", "demo"]) == 2
    said = capsys.readouterr().err
    assert "every run of demo diverged; train again with a lower learning rate" in said
