"""What a probe measures is what the analysis says of the network, and measuring changes nothing."""

import dataclasses
import os
import signal

import keras
import numpy as np
import pytest

from keras_preact.analysis import gradient_signal
from keras_preact.cli import main
from keras_preact.data import load_dataset
from keras_preact.experiments import Budget, Experiment, Row, keep, plan, probe, read_propagation, run_missing
from keras_preact.experiments.probe import EARLY_STEP, IMAGES, at_moments, direct_shares, propagation
from keras_preact.models import cifar_resnet, load_model
from keras_preact.training import CosineSchedule, Interrupted, Recipe, RunConfig, RunFolder

RECIPE = Recipe("tiny", steps=EARLY_STEP + 3, batch_size=8, schedule=CosineSchedule(0.05, warmup_steps=1))
TABLE = Experiment("table", "a table", (Row("a", "a row", "110", {"placement": "original"}),))
BUDGET = Budget("tiny", "seconds", {"110": {"depth": 8}}, {"cifar10": "bundled"}, {"bundled": RECIPE})
PROBED = dataclasses.replace(BUDGET, probes=True, image_sizes={"bundled": 16})


class Stop(keras.callbacks.Callback):
    """Ctrl-C after the early measurement."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == EARLY_STEP + 1:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A run that was probed, stopped after the second measurement, and resumed as the message says."""
    out = tmp_path_factory.mktemp("probed")
    with pytest.raises(Interrupted):
        run_missing(plan(TABLE, PROBED, out=out), callbacks=lambda name, config: [Stop()])
    (job,) = plan(TABLE, PROBED, out=out)
    assert len(read_propagation(job.path)) == 2
    assert main(["train", "--resume", str(job.path)]) == 0
    return job


@pytest.mark.thorough
def test_a_run_is_measured_before_its_first_step_after_the_fiftieth_and_at_the_end(job):
    found = read_propagation(job.path)
    assert [entry["step"] for entry in found] == [0, EARLY_STEP, RECIPE.steps]
    assert list(at_moments(found)) == ["before", "early", "end"]
    model = load_model(job.path / "model.keras")
    images, labels = load_dataset("bundled", image_size=16).test.batch(np.arange(IMAGES))
    measured = propagation(model, images, labels)
    assert {key: found[-1][key] for key in measured} == measured
    assert found[0]["variance"] != found[1]["variance"] != found[2]["variance"]


@pytest.mark.thorough
def test_measuring_changes_nothing_of_the_run(job, tmp_path):
    bare = dataclasses.replace(PROBED, probes=False)
    (other,) = plan(TABLE, bare, out=tmp_path)
    run_missing([other])
    assert read_propagation(other.path) == []
    probed, plain = (load_model(path / "model.keras").get_weights() for path in (job.path, other.path))
    for one, another in zip(probed, plain, strict=True):
        np.testing.assert_array_equal(one, another)


@pytest.mark.thorough
def test_what_was_measured_is_kept_with_the_run(job, tmp_path):
    (finished,) = plan(TABLE, PROBED, out=job.path.parent)
    target = keep(finished.run.folder, tmp_path)
    assert read_propagation(target) == read_propagation(job.path)


@pytest.mark.parametrize("placement", ["original", "full_preactivation", "bn_after_addition"])
def test_direct_shares_are_of_the_gradient_at_the_end_of_the_stage(placement):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(8, 16, 16, 3)).astype("float32"), np.arange(8)
    gradient = gradient_signal(cifar_resnet(20, placement=placement, input_shape=(16, 16, 3)), images, labels)
    shares = direct_shares(gradient)
    ends = {1: gradient[3].norm, 2: gradient[6].norm, 3: gradient[9].norm}  # three units a stage
    np.testing.assert_allclose(shares, [entry.direct / ends[entry.stage] for entry in gradient[:-1]], rtol=1e-12)
    kept = [share for k, share in enumerate(shares) if k % 3]  # by the units that keep the shape
    assert (np.array(kept) == 1).all() == (placement == "full_preactivation")
    assert max(kept) <= 1 or placement == "bn_after_addition"


def test_other_images_are_not_measured(tmp_path):
    budget = dataclasses.replace(PROBED, datasets={"cifar10": "characters"})
    row = Row("t", "a Transformer", "110", {}, builder="transformer")
    budget = dataclasses.replace(budget, networks={"110": {"depth": 1, "dim": 8, "heads": 1}})
    budget = dataclasses.replace(budget, recipes={"characters": RECIPE})
    (job,) = plan(Experiment("table", "a table", (row,)), budget, out=tmp_path)
    assert not job.is_probed


def test_measurements_are_read_only_at_the_steps_of_a_measurement(tmp_path, monkeypatch):
    """Reading and parsing a file after every batch would slow down the training that it accompanies."""
    read = []
    monkeypatch.setattr(probe, "read_propagation", lambda folder: read.append(folder) or [{"step": EARLY_STEP}])
    callback = probe.PropagationProbe(RunConfig(recipe=RECIPE))
    callback.run_folder = RunFolder(tmp_path)
    for step in range(EARLY_STEP + 2):
        callback.on_train_batch_end(step)
    assert read == [tmp_path]


@pytest.mark.skipif(os.name != "posix", reason="Windows does not rename a folder with open files")
def test_measurements_follow_a_renamed_run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "propagation", lambda model, images, labels: {})
    callback = probe.PropagationProbe(RunConfig(recipe=RECIPE))
    callback.set_model(keras.Sequential())
    callback.run_folder = RunFolder.create(tmp_path / "old")
    with callback.run_folder.held():
        (tmp_path / "old").rename(tmp_path / "new")
        for step in range(EARLY_STEP):
            callback.on_train_batch_end(step)
    assert [entry["step"] for entry in read_propagation(tmp_path / "new")] == [EARLY_STEP]
    assert not (tmp_path / "old").exists()
