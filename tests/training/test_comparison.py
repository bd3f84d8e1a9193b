"""Two networks into one folder, as the demonstration does it."""

import csv
import dataclasses
import signal
import threading
import time

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.training import (
    CosineSchedule,
    Diverged,
    Interrupted,
    Recipe,
    RunConfig,
    RunFolder,
    compare,
    orders,
    resume_comparison,
    start,
)
from keras_preact.training.comparison import _close
from keras_preact.training.trainer import unrolled_if_synchronized


def test_nothing_to_compare_is_refused(tmp_path):
    with pytest.raises(InputError, match="no configurations to compare"):
        compare({}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", [{"only": ("ship", "truck")}, {"image_size": 16}])
def test_different_data_are_refused(tmp_path, other):
    """The mean image of the first run's data would be subtracted from those of the others."""
    configs = {"a": RunConfig(options={"depth": 8}), "b": RunConfig(options={"depth": 8}, **other)}
    with pytest.raises(InputError, match=f"b has a different {next(iter(other))} from a"):
        compare(configs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


RECIPE = Recipe("test", steps=3, batch_size=8, schedule=CosineSchedule(0.05, 1))


def rates(**learning_rates):
    """Return a configuration per learning rate."""
    return {
        name: RunConfig(options={"depth": 8}, recipe=dataclasses.replace(RECIPE, schedule=CosineSchedule(rate)))
        for name, rate in learning_rates.items()
    }


def test_a_run_that_diverges_ends_and_the_others_go_on(tmp_path):
    folder = compare(rates(high=1e30, low=0.01), tmp_path / "run")
    record = folder.record()
    assert record["status"] == "finished" and list(record["results"]) == ["low"]
    runs = {name: folder.open(folder.path / name).record() for name in ("high", "low")}
    assert runs["high"]["status"] == "diverged" and runs["low"]["step"] == 3
    with open(folder.metrics_path, newline="") as file:
        assert [row["step"] for row in csv.DictReader(file) if row["run"] == "low"] == ["3"]
    with pytest.raises(InputError, match="is finished"):
        resume_comparison(folder.path)


def test_a_run_that_diverged_before_the_stop_is_not_repeated(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            signal.raise_signal(signal.SIGINT)

    def stop_low(name, config):
        return [Stop()] if name == "low" else []

    with pytest.raises(Interrupted):
        compare(rates(high=1e30, low=0.01), tmp_path / "run", stop_low)
    before = (tmp_path / "run/high/run.json").read_bytes()
    assert list(resume_comparison(tmp_path / "run").record()["results"]) == ["low"]
    assert (tmp_path / "run/high/run.json").read_bytes() == before


def test_a_comparison_of_which_every_run_diverges_says_so(tmp_path):
    with pytest.raises(Diverged):
        compare(rates(high=1e30, higher=1e35), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").record()["status"] == "diverged"
    with pytest.raises(InputError, match=r"every run in .*run diverged; start again in another folder, with a lower"):
        resume_comparison(tmp_path / "run")


def test_a_comparison_whose_runs_all_diverged_one_by_one_has_diverged(tmp_path):
    """A process that was killed after the last of them left the comparison unfinished."""
    with pytest.raises(Diverged):
        compare(rates(high=1e30, higher=1e35), tmp_path / "run")
    RunFolder(tmp_path / "run").update_record(status="running")
    assert resume_comparison(tmp_path / "run").record()["status"] == "diverged"


@pytest.mark.thorough
def test_both_orders_on_the_bundled_images(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "keras_preact.training.trainer.build_model", None
    )  # both are built before the folder is created
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


def weights(folder):
    return keras.models.load_model(folder / "model.keras").get_weights()


@pytest.mark.thorough
def test_taking_turns_or_training_together_changes_no_run(tmp_path):
    """Three epochs of each have the weights of a run that is trained alone."""
    data = RunConfig().load_dataset()
    recipe = Recipe(
        "test", steps=2 * data.train.steps_per_epoch(1_500) + 1, batch_size=1_500, schedule=CosineSchedule(0.05)
    )
    configs = orders(RunConfig(options={"depth": 8}, recipe=recipe, image_size=8, deterministic=True))
    turns = []

    def watch(name, config):
        return [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: turns.append((epoch, name)))]

    folder = compare(configs, tmp_path / "turns", watch)
    assert turns == [(epoch, name) for epoch in range(3) for name in configs]
    both = compare(configs, tmp_path / "both", together=True)
    for name, config in configs.items():
        for found, expected in zip(weights(both.path / name), weights(folder.path / name), strict=True):
            np.testing.assert_array_equal(found, expected)
        alone = start(config, tmp_path / name)
        for found, expected in zip(weights(folder.path / name), weights(alone.path), strict=True):
            np.testing.assert_array_equal(found, expected)
        assert [row["epoch"] for row in alone.metrics()] == [1, 2, 3]


@pytest.mark.thorough
def test_a_comparison_stopped_in_its_second_run_leaves_both_to_be_resumed(tmp_path):
    recipe = Recipe("test", steps=4, batch_size=2_000, schedule=CosineSchedule(0.05))
    configs = orders(RunConfig(options={"depth": 8}, recipe=recipe, image_size=8))

    def stop(name, config):
        if name == "original":
            return []
        stopping = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: signal.raise_signal(15))
        return [stopping]

    with pytest.raises(Interrupted) as stopped:
        compare(configs, tmp_path / "run", stop)
    assert stopped.value.path == tmp_path / "run" and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    records = {name: RunFolder.open(tmp_path / "run" / name).record() for name in configs}
    assert {name: (record["status"], record["step"]) for name, record in records.items()} == {
        "original": ("interrupted", 2),
        "full_preactivation": ("interrupted", 1),
    }
    resumed = resume_comparison(tmp_path / "run")
    assert resumed.record()["status"] == "finished"
    assert [len(RunFolder(resumed.path / name).metrics()) for name in configs] == [2, 2]


@pytest.mark.thorough
def test_data_that_are_passed_are_those_of_all_runs_and_of_the_rest_of_them(tmp_path, tiny_dataset):
    def stop(name, config):
        stopping = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: signal.raise_signal(15))
        return [stopping] if name == "low" else []

    with pytest.raises(Interrupted):
        compare(rates(high=0.1, low=0.01), tmp_path / "run", stop, tiny_dataset)
    names = {RunConfig.from_dict(data).dataset for data in RunFolder(tmp_path / "run").record()["runs"].values()}
    assert names == {tiny_dataset.name}
    with pytest.raises(InputError, match="was trained on arrays; pass them again"):
        resume_comparison(tmp_path / "run")
    with pytest.raises(InputError, match="both passed"):
        resume_comparison(tmp_path / "run", dataset=tiny_dataset, data_dir=str(tmp_path))
    folder = resume_comparison(tmp_path / "run", dataset=tiny_dataset)
    alone = start(rates(low=0.01)["low"], tmp_path / "alone", dataset=tiny_dataset)
    assert folder.record()["results"]["low"] == alone.record()["result"]


def test_the_data_are_loaded_once(tmp_path, monkeypatch):
    loaded = []
    load = RunConfig.load_dataset
    monkeypatch.setattr(RunConfig, "load_dataset", lambda config, *given: loaded.append(1) or load(config, *given))
    with pytest.raises(Interrupted):
        compare(
            rates(a=0.01, b=0.02),
            tmp_path / "run",
            lambda name, config: [
                keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: signal.raise_signal(15))
            ],
        )
    assert len(loaded) == 1
    resume_comparison(tmp_path / "run")
    assert len(loaded) == 2


def test_the_time_of_a_run_leaves_out_that_of_the_other(tmp_path):
    recipe = Recipe("test", steps=4, batch_size=2_000, schedule=CosineSchedule(0.05))
    configs = orders(RunConfig(options={"depth": 8}, recipe=recipe, image_size=8))

    def wait(name, config):
        pause = 2.0 if name == "full_preactivation" else 0.0
        return [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(pause))]

    began = time.perf_counter()
    folder = compare(configs, tmp_path / "run", wait)
    seconds = [RunFolder(folder.path / name).record()["seconds"] for name in configs]
    assert seconds[1] >= 4.0 and sum(seconds) <= time.perf_counter() - began


class Meets(keras.callbacks.Callback):
    """Wait in every step for the other run. In turns, the other one would never come."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def on_train_batch_begin(self, batch, logs=None):
        self.barrier.wait()


def test_runs_that_train_together_do_each_step_at_the_same_time(tmp_path):
    barrier = threading.Barrier(2, timeout=60)
    configs = rates(high=0.02, low=0.01)
    folder = compare(configs, tmp_path / "run", lambda name, config: [Meets(barrier)], together=True)
    record, runs = folder.record(), [RunFolder(folder.path / name).record() for name in configs]
    assert list(record["results"]) == ["high", "low"] and [run["step"] for run in runs] == [3, 3]
    assert not any(RunFolder(folder.path / name).is_locked() for name in configs)
    assert record["seconds"] == max(run["seconds"] for run in runs) > 0
    assert not any("cpu_seconds" in run for run in runs)  # that of the process would count the other run, too
    assert folder.curves_path.exists()


def test_a_run_that_diverges_leaves_the_one_beside_it_to_go_on(tmp_path):
    assert list(compare(rates(high=1e30, low=0.01), tmp_path / "run", together=True).record()["results"]) == ["low"]
    with pytest.raises(Diverged):
        compare(rates(high=1e30, higher=1e35), tmp_path / "both", together=True)
    assert RunFolder.open(tmp_path / "both").record()["status"] == "diverged"


def test_a_signal_stops_all_runs_that_train_together_and_they_resume_together(tmp_path):
    barrier = threading.Barrier(2, timeout=60)

    class Stop(Meets):
        def on_train_batch_end(self, batch, logs=None):
            if self.barrier.wait() == 0:
                signal.raise_signal(signal.SIGTERM)
            time.sleep(0.5)  # the main thread handles the signal before the recorders look

    with pytest.raises(Interrupted):
        compare(rates(high=0.02, low=0.01), tmp_path / "run", lambda name, config: [Stop(barrier)], together=True)
    for name in ("high", "low"):
        record = RunFolder(tmp_path / "run" / name).record()
        assert (record["status"], record["step"]) == ("interrupted", 1)
    resumed = resume_comparison(tmp_path / "run", lambda name, config: [Meets(barrier)])
    runs = [RunFolder(resumed.path / name) for name in ("high", "low")]
    assert resumed.record()["status"] == "finished" and not any(run.is_locked() for run in runs)
    assert resumed.record()["seconds"] == max(run.record()["seconds"] for run in runs)
    assert not any("cpu_seconds" in run.record() for run in runs)


def test_a_fault_of_a_run_stops_the_one_beside_it_at_its_next_step(tmp_path):
    def fail(batch, logs):
        raise RuntimeError("broken")

    def wait(name, config):
        if name == "low":
            return [keras.callbacks.LambdaCallback(on_train_batch_begin=fail)]
        return [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(1))]

    with pytest.raises(RuntimeError, match="broken"):
        compare(rates(high=0.02, low=0.01), tmp_path / "run", wait, together=True)
    records = [RunFolder(tmp_path / "run" / name).record() for name in ("high", "low")]
    assert [(record["status"], record["step"]) for record in records] == [("interrupted", 1), ("interrupted", 0)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_runs_that_train_together_need_callbacks_of_their_own(tmp_path):
    shared = keras.callbacks.LambdaCallback()
    with pytest.raises(InputError, match="LambdaCallback is the callback of two runs that train at the same time"):
        compare(rates(high=0.02, low=0.01), tmp_path / "run", lambda name, config: [shared], together=True)
    assert compare(rates(high=0.02, low=0.01), tmp_path / "turns", lambda name, config: [shared])


def test_a_run_whose_thread_is_still_busy_is_left_to_it():
    def training():
        with pytest.raises(ValueError, match="already executing"):
            this.close()
        _close(this)
        yield 1

    this = training()
    assert next(this) == 1


def test_runs_on_several_devices_cannot_train_together(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_preact.training.comparison.check_devices", lambda devices: None)
    with pytest.raises(InputError, match="a is trained on 2 devices; train such runs in turns, together=False"):
        compare({"a": RunConfig(options={"depth": 8}, devices=2)}, tmp_path / "run", together=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../esc", "/tmp/esc", "a\\b", "a\n", "run.json", "Metrics.csv", "checkpoints", 8]
)
def test_a_name_that_is_no_new_subfolder_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"a run of a comparison cannot be named .*use the name of a subfolder"):
        compare({"a": RunConfig(options={"depth": 8}), name: RunConfig(options={"depth": 8})}, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_callbacks_that_are_no_function_are_refused(tmp_path):
    with pytest.raises(InputError, match="must be a function"):
        compare({"a": RunConfig(options={"depth": 8})}, tmp_path / "out", [])
    with pytest.raises(InputError, match="must be a function"):
        resume_comparison(tmp_path, keras.callbacks.Callback())
    assert not list(tmp_path.iterdir())


def test_a_comparison_killed_after_its_first_record_is_resumed(tmp_path, monkeypatch):
    configs = orders(RunConfig(options={"depth": 8}, image_size=8, recipe=Recipe("test", steps=1, batch_size=8)))

    def killed(folder, *others):
        assert RunFolder(folder.path).is_locked()  # or two comparisons started together could mix their records
        raise SystemExit

    monkeypatch.setattr("keras_preact.training.comparison._train", killed)
    with pytest.raises(SystemExit):
        compare(configs, tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").record()["status"] == "running"
    monkeypatch.setattr("keras_preact.training.comparison._train", lambda folder, *others: folder.record()["kind"])
    RunFolder(tmp_path / "run").update_record(status=None)  # as older versions left it
    assert resume_comparison(tmp_path / "run") == "comparison"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="on other backends, devices share one batch")
def test_synchronized_batch_norms_are_built_unrolled(tmp_path, monkeypatch):
    """As `start` builds them: a rolled stack cannot exchange statistics between devices."""
    built = []

    def build(config, dataset):
        built.append(config.options)
        raise InputError("enough")

    monkeypatch.setattr("keras_preact.training.comparison.build_model", build)
    monkeypatch.setattr("keras_preact.training.comparison.check_devices", lambda devices: None)
    config = RunConfig(options={"depth": 110}, devices=2, sync_batch_norm=True)
    with pytest.raises(InputError, match="enough"):
        compare({"a": config}, tmp_path / "run")
    assert built == [{"rolled": False, "depth": 110}]
    assert unrolled_if_synchronized(dataclasses.replace(config, sync_batch_norm=False)).options == {"depth": 110}


def test_what_cannot_be_built_leaves_nothing_behind(tmp_path):
    configs = orders(RunConfig(options={"depth": 8}))
    configs["full_preactivation"] = RunConfig(options={"depth": 21})
    with pytest.raises(InputError, match="nearest depths that are"):
        compare(configs, tmp_path / "run")
    assert not (tmp_path / "run").exists()
