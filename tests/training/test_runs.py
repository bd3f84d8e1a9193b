"""The run folder and its provenance."""

import json
import subprocess
import sys

import numpy as np
import pytest
from harness import (
    SOME_OR_MANY,
    assert_each_refused_or_equal,
    assert_refused_or_equal,
    damaged_metrics,
    damaged_record,
)

from keras_preact import InputError
from keras_preact.training import RunFolder, RunLocked, next_free_folder
from keras_preact.training.provenance import commit, environment
from keras_preact.training.runs import FORMAT, LOCK, METRICS, ReadOnlyRunFolder, metrics_summary


def row(step):
    return {**dict.fromkeys(METRICS, 0.1), "step": step, "epoch": step}


def test_a_run_never_overwrites_another(tmp_path):
    folder = RunFolder.create(tmp_path / "a" / "run")
    for kind in ("training", "comparison"):
        folder.update_record(kind=kind, status="interrupted")
        with pytest.raises(InputError, match="is not overwritten; choose another folder, or continue that run with"):
            RunFolder.create(folder.path)
    assert RunFolder.open(folder.path).record() == {"kind": "comparison", "status": "interrupted"}
    for kind, status in (("training", "finished"), ("training", "diverged"), ("inspection", "finished")):
        folder.update_record(kind=kind, status=status)
        with pytest.raises(
            InputError, match=r"is not overwritten; choose another folder$"
        ):  # there is nothing to resume
            RunFolder.create(folder.path)


def test_a_run_whose_record_is_damaged_may_be_resumed(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.update_record(kind="training", status="running")
    folder.record_path.write_text("{")
    with pytest.raises(InputError, match="choose another folder, or continue that run with"):
        RunFolder.create(folder.path)


def test_the_runs_of_a_comparison_are_named_by_their_paths(tmp_path):
    folder = RunFolder.create(tmp_path / "both")
    folder.update_record(kind="comparison", status="running", runs={"one": {}, "other": {}})
    with pytest.raises(InputError) as fault:
        folder.training()
    assert str(fault.value).endswith(f"name one of them: {tmp_path / 'both' / 'one'}, {tmp_path / 'both' / 'other'}")
    for read in (folder.metrics, folder.unit):
        with pytest.raises(InputError, match="contains several runs; name one of them"):
            read()


def test_an_empty_folder_is_taken(tmp_path):
    assert RunFolder.create(tmp_path).path == tmp_path


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match=r"is not overwritten; choose another folder$"):  # there is no run to resume
        RunFolder.create(tmp_path / "run")
    with pytest.raises(InputError, match="cannot create the folder"):
        RunFolder.create(tmp_path / "run" / "below")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_is_held_by_one_at_a_time(tmp_path):
    folder, same = RunFolder.create(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert not same.is_locked() and not (tmp_path / "run" / LOCK).exists()  # who looks leaves nothing
    with folder.held():
        assert same.is_locked()
        with (
            pytest.raises(RunLocked, match="run is being trained by another process; wait for it, stop it, or"),
            same.held(),
        ):
            raise AssertionError
        folder.update_record(status="running")
        with pytest.raises(RunLocked):
            RunFolder.create(same.path)
    assert not same.is_locked()
    with same.held():
        assert folder.is_locked()


HOLD = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_killed_lets_go_of_its_run(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder.path / LOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert folder.is_locked()
    finally:
        holder.kill()
        holder.communicate()
    assert RunFolder.create(folder.path).path == folder.path  # killed before its run had begun: the folder is free
    with folder.held():
        pass


def with_metrics(path, steps=5):
    """A run folder with metrics, and the rows."""
    folder, rng = RunFolder.create(path), np.random.default_rng(0)
    rows = [{**dict.fromkeys(METRICS, 0.0), "test_loss": float(rng.random()), "step": 6 * k} for k in range(steps)]
    folder.write_metrics(rows)
    folder.update_record(kind="training", status="running", metrics=metrics_summary(rows))
    return folder


def with_record(path):
    """A run folder with a record that has entries of all kinds."""
    folder = RunFolder.create(path)
    facts = {"kind": "training", "config": {"seed": 3}, "data": {}, "model": {"name": "net"}, "status": "running"}
    counts = {"step": 4, "steps": 6, "seconds": 4.3, "metrics": {"rows": 0}}
    folder.update_record(**facts, **counts, environment=environment(), resumed=[{"step": 2}])
    return folder


def test_metrics_are_written_and_read(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.metrics() == []
    for count in (1, 2, 3):
        folder.write_metrics([row(step + 1) for step in range(count)])
        assert [r["step"] for r in folder.metrics()] == list(range(1, count + 1))
    assert folder.metrics_path.read_text().splitlines()[0] == ",".join(METRICS)
    assert folder.metrics()[0]["test_error"] == 0.1
    assert not list(tmp_path.glob("*.partial"))


def test_a_row_that_the_record_does_not_count_yet_is_left_out(tmp_path):
    """A kill, or another process that reads, may come between the file and the record."""
    folder = with_metrics(tmp_path / "run")
    rows = folder.metrics()
    folder.write_metrics([*rows, row(30)])
    assert folder.metrics() == rows


def test_the_line_ends_of_another_system_are_no_damage(tmp_path):
    folder = with_metrics(tmp_path / "run")
    rows = folder.metrics()
    folder.metrics_path.write_bytes(folder.metrics_path.read_bytes().replace(b"\r\n", b"\n"))
    assert folder.metrics() == rows


def test_metrics_without_a_checksum_are_read(tmp_path):
    """The first runs have none."""
    folder = with_metrics(tmp_path / "run")
    rows = folder.metrics()
    folder.update_record(metrics=None)
    assert folder.metrics() == rows
    folder.metrics_path.write_text(folder.metrics_path.read_text()[:-12])
    with pytest.raises(InputError, match=r"metrics\.csv cannot be read"):
        folder.metrics()


def test_metrics_that_a_finished_run_lacks_are_missed(tmp_path):
    folder = with_metrics(tmp_path / "run")
    folder.update_record(metrics=None)
    folder.metrics_path.unlink()
    assert folder.metrics() == []  # stopped in its first epoch
    folder.update_record(status="finished")
    with pytest.raises(InputError, match=r"metrics\.csv cannot be read"):
        folder.metrics()


@SOME_OR_MANY
def test_damaged_metrics_are_refused_or_equal(times, tmp_path):
    folder = with_metrics(tmp_path / "run")
    assert assert_refused_or_equal(folder.metrics_path, folder.metrics, times) > 0.8 * times
    folder.metrics_path.unlink()
    with pytest.raises(InputError, match=r"metrics\.csv cannot be read"):
        folder.metrics()


def test_fifty_kinds_of_damage_to_metrics_are_refused_or_harmless(tmp_path):
    """Harmless is what comes after the rows that the record counts."""
    folder = with_metrics(tmp_path / "run")
    damages = damaged_metrics(folder.metrics_path.read_bytes())
    assert len(damages) > 50
    assert assert_each_refused_or_equal(folder.metrics_path, folder.metrics, damages) == len(damages) - 1


def test_fifty_kinds_of_damage_to_a_record_are_refused(tmp_path):
    folder = with_record(tmp_path / "run")
    damages = damaged_record(folder.record_path.read_bytes())
    assert len(damages) > 50
    assert assert_each_refused_or_equal(folder.record_path, folder.training, damages) == len(damages)


def test_an_entry_that_is_missing_is_named(tmp_path):
    folder = with_record(tmp_path / "run")
    for key in ("status", "config", "seconds"):
        folder = with_record(tmp_path / key)
        folder.update_record(**{key: None})
        with pytest.raises(InputError, match=f"run\\.json lacks {key}; "):
            folder.training(key)


@pytest.mark.parametrize("lose", [1, 2, 5])
def test_rows_that_are_lost_whole_are_missed(lose, tmp_path):
    folder = with_metrics(tmp_path / "run")
    lines = folder.metrics_path.read_text().splitlines(keepends=True)
    for kept in (lines[:-lose], [lines[0], *lines[lose + 1 :]]):
        folder.metrics_path.write_text("".join(kept))
        with pytest.raises(InputError, match="rows are missing or changed"):
            folder.metrics()


@SOME_OR_MANY
def test_damaged_records_are_refused_or_equal(times, tmp_path):
    folder = with_record(tmp_path / "run")
    assert assert_refused_or_equal(folder.record_path, folder.training, times) > 0.8 * times


def test_a_record_that_was_edited_or_has_no_checksum_is_refused(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.update_record(config={"seed": 3})
    text = folder.record_path.read_text()
    folder.record_path.write_text(text.replace('"seed": 3', '"seed": 4'))
    with pytest.raises(InputError, match=r"run\.json is damaged or was edited; restore it or start a new run"):
        folder.record()
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "step-000000001.npz").touch()
    with pytest.raises(InputError, match=r"delete it and run `keras-preact train --resume .*run'`"):
        folder.record()
    for text in ('{"config": {"seed": 4}}', "[]", "{}"):
        folder.record_path.write_text(text)
        with pytest.raises(InputError, match=r"run\.json is damaged or was edited"):
            folder.record()


@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000, '{"kind": "training", "status": "running"}', "\ud800"])
def test_records_of_another_shape_are_one_sentence(text, tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.record_path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=r"run\.json"):
        folder.training()


@pytest.mark.parametrize("newer", [FORMAT + 1, "3.1"])
def test_a_record_of_a_newer_version_is_refused_and_not_called_damaged(newer, tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.update_record(kind="training")
    record = json.loads(folder.record_path.read_text())
    folder.record_path.write_text(json.dumps({**record, "format": newer}))
    with pytest.raises(InputError, match=r"run\.json was written by a newer version of keras_preact; update it"):
        folder.record()


def test_every_method_that_writes_does_nothing_in_a_folder_that_is_only_read(tmp_path):
    """Including any that is added: they are found by their names."""
    folder = RunFolder.create(tmp_path / "run")
    folder.update_record(kind="training", status="running")
    before = folder.record_path.read_bytes()
    arguments = {"update_record": ((), {"status": "finished"}), "write_metrics": (([row(1)],), {})}
    arguments["write_curves"] = (({"net": [row(1), row(2)]}, "%"), {})
    writers = [name for name in dir(RunFolder) if name.startswith(("write_", "update_"))]
    assert sorted(arguments) == writers
    for name in writers:
        positional, named = arguments[name]
        getattr(ReadOnlyRunFolder(folder.path), name)(*positional, **named)
        assert list(folder.path.iterdir()) == [folder.record_path] and folder.record_path.read_bytes() == before
        getattr(RunFolder(folder.path), name)(*positional, **named)  # the same call of one that writes does write
        assert len(list(folder.path.iterdir())) > 1 or folder.record_path.read_bytes() != before
        folder.record_path.write_bytes(before)
        folder.metrics_path.unlink(missing_ok=True)
        folder.curves_path.unlink(missing_ok=True)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder \(it has no run.json\)"):
        RunFolder.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run.json cannot be read"):
        RunFolder.open(tmp_path).record()


def test_the_next_free_folder(tmp_path):
    (tmp_path / "demo-001").mkdir()
    assert next_free_folder(tmp_path, "demo").name == "demo-002"


def test_provenance_names_versions_commit_and_hardware_but_no_host_and_no_path():
    import os
    import platform

    about = environment()
    assert {"python", "keras", "keras_preact", "backend", "numpy"} <= set(about["versions"])
    assert about["hardware"]["cores"] >= 1
    assert about["hardware"]["memory_gib"] > 0
    text = json.dumps(about)
    assert os.getcwd() not in text
    assert platform.node() not in text or len(platform.node()) < 4
    if about["commit"] is not None:
        assert len(about["commit"]["id"]) == 40


def test_the_commit_is_found_whatever_the_encoding_of_the_system(monkeypatch):
    """Git writes paths in UTF-8, which the system's encoding may be unable to decode."""
    run = subprocess.run

    def in_a_folder_with_an_umlaut(command, **options):
        result = run(command, **options)
        assert isinstance(result.stdout, bytes)
        if "--show-toplevel" in command:
            result.stdout = "/elsewhere/Gerät \udcff".encode("utf-8", "surrogateescape")
        return result

    monkeypatch.setattr(subprocess, "run", in_a_folder_with_an_umlaut)
    assert commit() is None  # another repository
