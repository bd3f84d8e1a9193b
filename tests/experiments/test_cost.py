"""What runs would cost here: timed on the networks themselves."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from keras_preact.data import PadCropFlip
from keras_preact.experiments import BUDGETS, EXPERIMENTS, cost, costs, plan
from keras_preact.training import CosineSchedule, FastRecipe, RunConfig


@pytest.mark.thorough
def test_twice_the_steps_cost_about_twice_the_time(tmp_path, monkeypatch):
    """The clock's figures are made up; the steps and tests that it sees are real."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    (job,) = plan(EXPERIMENTS["table1"], BUDGETS["smoke"], rows=["original"], out=tmp_path)
    recipe = job.config.recipe
    once = cost.seconds_of(job.config)
    # 62 steps of a second, an epoch, and a test of a second over all of the 1,000 test images.
    assert once == 62 * 1 + 1 * 1
    longer = dataclasses.replace(job.config, recipe=recipe.with_steps(2 * recipe.steps))
    assert cost.seconds_of(longer) == 2 * once
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_images_that_grow_are_timed_at_each_of_their_sizes(monkeypatch):
    """Data and recipe change the size together: padding is a share of a size that the traced step has to know."""
    seen, call = [], PadCropFlip.call

    def watched(layer, x, training=None):
        seen.append(x.shape[1])
        return call(layer, x, training)

    monkeypatch.setattr(PadCropFlip, "call", watched)
    recipe = FastRecipe("growing", 15_000, 10, CosineSchedule(0.05), padding=4, scale_changes=(0.4, 0.7))
    assert cost.seconds_of(RunConfig("cifar_resnet", {"depth": 8}, "cifar10", recipe=recipe)) > 0
    sizes = [size for size, _ in itertools.groupby(seen)]
    assert sizes[-3:] == [16, 24, 32]


@pytest.mark.parametrize("row", ["cifar100-164-original", "cifar10-110-original"])
def test_data_that_are_not_here_are_stood_in_for(row):
    (chosen,) = EXPERIMENTS["table3"].select([row])
    config = BUDGETS["cpu"].config(chosen, seed=0, precision="float32", data_dir="nowhere")
    dataset, images, tested = cost._dataset_to_time(config)
    assert (images, tested) == (50_000, 10_000)
    assert dataset.image_shape == (32, 32, 3) and dataset.classes == (100 if "cifar100" in row else 10)
    assert len(dataset.train) >= config.recipe.batch_size


def test_finished_runs_cost_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "seconds_of", lambda config: 60.0)
    jobs = plan(EXPERIMENTS["table1"], BUDGETS["smoke"], rows=["original", "conv"], seeds=2, out=tmp_path)
    jobs[0] = dataclasses.replace(jobs[0], run=object())
    assert costs(jobs) == [None, 60.0, 60.0, 60.0]


@pytest.mark.thorough
def test_learning_rates_cost_the_same_and_are_timed_once(tmp_path, monkeypatch):
    timed = []
    monkeypatch.setattr(cost, "seconds_of", lambda config: timed.append(config) or 60.0)
    jobs = plan(EXPERIMENTS["screening"], BUDGETS["demo"], out=tmp_path)
    assert costs(jobs) == [60.0] * len(jobs)
    networks = {(config.options["placement"], config.options["depth"]) for config in timed}
    assert len(timed) == len(networks) < len(jobs) / 5
