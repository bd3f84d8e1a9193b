"""Cards of trained networks: each statement comes from the catalogue or the stored runs."""

import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from keras_preact.cli import main
from keras_preact.experiments import Store
from keras_preact.experiments.store import Run
from keras_preact.models.cards import binomial_interval, card, facts, limits, page
from keras_preact.models.catalogue import catalogue, weights_file
from keras_preact.models.saving.safetensors import read_safetensors, tensors_checksum
from keras_preact.training import RunFolder

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_generated_one():
    assert (ROOT / "docs/pretrained.md").read_text(encoding="utf-8") == page()


@pytest.mark.thorough
def test_the_page_s_network_for_other_classes_refuses_images_that_are_not_uint8():
    code = re.findall(r"```python\n(.*?)```", page(), re.DOTALL)[:2]
    names = {}
    exec("".join(code), names)
    images = np.zeros((1, *names["network"].input_shape[1:]))
    assert names["network"].predict(images.astype("uint8"), verbose=0).shape == (1, 3)
    with pytest.raises(ValueError, match="expected dtype=uint8, found dtype=float"):
        names["network"].predict(images, verbose=0)


@pytest.mark.parametrize("name", catalogue())
def test_a_card_agrees_with_the_stored_runs(name):
    about = catalogue()[name]
    (path,) = (ROOT / "results/runs").glob(f"*/{about.run}")
    run = Run(RunFolder(path), RunFolder(path).record())
    seeds = Store([ROOT / "results"]).with_any_seed(run.config)
    stored = [run.error for run in seeds]
    assert list(about.seeds) == pytest.approx(stored, abs=0.005), "a new seed is stored: publish the network again"
    assert abs(about.test_error - run.error) < 0.15  # float16
    assert about.recipe["seed"] == run.config.seed and about.recipe["steps"] == run.config.recipe.steps
    if "weights" in run.record:  # runs of before 2026-11-26 have no checksum
        assert run.record["weights"]["sha256"] == tensors_checksum(read_safetensors(weights_file(about)))
    text = card(about)
    assert f"{statistics.mean(about.seeds):.2f}" in text and f"n = {len(seeds)}" in text and about.sha256 in text


def test_the_interval_of_an_error_is_wilsons():
    low, high = binomial_interval(0.0, 10)
    assert low == pytest.approx(0) and high == pytest.approx(27.75, abs=0.01)  # Brown, Cai and DasGupta 2001
    low, high = binomial_interval(50.0, 100)
    assert (low, high) == (pytest.approx(40.38, abs=0.01), pytest.approx(59.62, abs=0.01))


def test_info_prints_the_card_and_export_writes_the_network(capsys, tmp_path):
    name = "resnet14x2-preact-cifar10"
    main(["info", name])
    printed = capsys.readouterr().out
    about = catalogue()[name]
    for line in [*facts(about).values(), limits(about)]:
        assert " ".join(line.split()) in " ".join(printed.split())
    main(["export", name, str(tmp_path / "weights.safetensors"), "--dtype", "float16"])
    assert (tmp_path / "weights.safetensors").stat().st_size > 1_000_000
    assert main(["info", name, "--depth", "20"]) == 2
    assert f"{name} is already built; leave out --depth" in capsys.readouterr().err
