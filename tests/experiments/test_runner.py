"""Reproducing runs what is missing, once, and goes on after it was stopped."""

import dataclasses
import os
import signal

import keras
import pytest

from keras_preact import InputError
from keras_preact.experiments import Budget, Experiment, Row, Store, keep, lines, plan, run_missing, write_results
from keras_preact.paper import Published
from keras_preact.plots import table_figure
from keras_preact.training import CosineSchedule, Interrupted, Recipe, RunFolder

ROWS = (
    Row("a", "the first", "110", {"placement": "original"}, published=Published(6.0, "L")),
    Row("b", "the second", "110", {"placement": "full_preactivation"}),
)
TABLE = Experiment("table", "a table", ROWS)
RECIPE = Recipe("tiny", steps=3, batch_size=8, schedule=CosineSchedule(0.05, warmup_steps=1))
BUDGET = Budget("tiny", "seconds", {"110": {"depth": 8}}, {"cifar10": "bundled"}, {"bundled": RECIPE})


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        os.kill(os.getpid(), signal.SIGINT)


def planned(out, **options):
    return plan(TABLE, BUDGET, out=out, **options)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Both rows, the first of them stopped once and resumed."""
    out = tmp_path_factory.mktemp("reproduce")
    with pytest.raises(Interrupted):
        run_missing(planned(out), callbacks=lambda name, config: [Stop()])
    first, second = planned(out)
    assert first.is_started and not second.is_started
    messages = []
    keras.config.set_dtype_policy("mixed_bfloat16")  # the program's own
    try:
        run_missing(planned(out, precision="float32"), say=messages.append)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")
    assert messages[0] == "[1/2] the first, seed 0, about 1 min left"
    assert messages[1].startswith("[2/2] the second, seed 0, about 1 min left")
    return out


def test_every_run_is_finished_and_none_is_repeated(out):
    jobs = planned(out)
    assert [job.run.record["step"] for job in jobs] == [3, 3]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    messages = []
    run_missing(jobs, say=messages.append)
    assert messages == []
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_another_seed_is_missing_and_another_precision_is_not(out):
    assert [job.run is None for job in planned(out, seeds=2)] == [False, False, True, True]
    assert all(job.run for job in planned(out, precision="mixed_bfloat16"))


def test_kept_runs_count_and_are_small(out, tmp_path):
    run = planned(out)[0].run
    target = keep(run.folder, tmp_path)
    assert sorted(path.name for path in target.iterdir()) == ["curves.png", "metrics.csv", "run.json"]
    assert planned(tmp_path / "elsewhere", results=[tmp_path])[0].run.error == run.error
    assert keep(run.folder, tmp_path) == target
    (target / "run.json").unlink()  # as where the copying ended before it
    assert keep(run.folder, tmp_path) == target and (target / "run.json").exists()


def test_the_table_is_made_of_the_runs(out):
    first, second = lines(TABLE, BUDGET, Store([out]))
    errors = [job.run.error for job in planned(out)]
    assert [*first.errors, *second.errors] == errors and first.difference is None
    assert second.difference.mean == pytest.approx(errors[1] - errors[0]) and second.network == "ResNet-8"


def test_a_folder_with_another_run_is_not_taken_for_this_one(tmp_path):
    job = planned(tmp_path)[0]
    folder = RunFolder.create(job.path)
    folder.update_record(kind="training", status="running", config=dataclasses.replace(job.config, seed=5).to_dict())
    with pytest.raises(InputError, match=r"contains a run other than a; choose another out folder \(--out\)"):
        planned(tmp_path)


@pytest.mark.thorough
def test_several_processes_share_the_rows(tmp_path):
    """A run that another trains is left to it, and one that another has finished meanwhile is not repeated."""
    jobs, messages = planned(tmp_path), []
    first, second = jobs
    with RunFolder.create(first.path).held():
        assert [job.state for job in jobs] == ["being trained", "missing"]
        run_missing(jobs, say=messages.append)
    assert messages[1] == f"a, seed 0: skipped, another process is training it in {first.path}"
    assert [job.state for job in planned(tmp_path)] == ["missing", "finished"]
    before = second.path.joinpath("run.json").read_bytes()
    messages.clear()
    run_missing(jobs, say=messages.append)  # planned when neither was there
    assert [job.state for job in planned(tmp_path)] == ["finished", "finished"]
    assert len(messages) == 1 and second.path.joinpath("run.json").read_bytes() == before


def test_bad_input_is_refused_before_anything_is_run(tmp_path):
    with pytest.raises(InputError, match="number of seeds is 0"):
        planned(tmp_path, seeds=0)
    elsewhere = Experiment("table", "another", (dataclasses.replace(ROWS[0], dataset="imagenet"),))
    with pytest.raises(InputError, match="no row of table is part of the budget tiny"):
        plan(elsewhere, BUDGET, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_runs_are_not_kept(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.update_record(kind="training", status="running")
    with pytest.raises(InputError, match="is not finished"):
        keep(folder, tmp_path / "results")


@pytest.mark.thorough
def test_a_training_that_diverges_is_a_result_and_the_next_one_is_run(tmp_path):
    recipe = dataclasses.replace(RECIPE, schedule=CosineSchedule(1e30))
    budget = dataclasses.replace(BUDGET, recipes={"bundled": recipe})
    messages = []
    run_missing(plan(TABLE, budget, out=tmp_path), say=messages.append)
    assert sum("lower the learning rate" in text for text in messages) == 2
    assert all(job.run is not None and "diverged" in job.run.record for job in plan(TABLE, budget, out=tmp_path))
    found = lines(TABLE, budget, Store([tmp_path]))
    assert [line.ours(judges=True) for line in found] == ["diverged, fails"] * 2
    kept = keep(next(iter(plan(TABLE, budget, out=tmp_path))).run.folder, tmp_path / "results")
    assert "diverged at step" in write_results(kept.parent).read_text(encoding="utf-8")
    assert found[1].counted == (90.0,)  # chance, of ten classes
    assert "diverged →" in [text.get_text() for text in table_figure(found).axes[0].texts]
