"""The run folder and its provenance."""

import json
import subprocess
import sys

import pytest

from keras_preact import InputError
from keras_preact.training import RunFolder, Taken, next_free_folder
from keras_preact.training.runs import LOCK, METRICS, environment


def row(step):
    return {**dict.fromkeys(METRICS, 0.1), "step": step, "epoch": step}


def test_a_run_never_overwrites_another(tmp_path):
    folder = RunFolder.create(tmp_path / "a" / "run")
    folder.update_record(status="running")
    with pytest.raises(InputError, match="exists already and is not overwritten; name another folder"):
        RunFolder.create(folder.path)
    assert RunFolder.open(folder.path).record() == {"status": "running"}


def test_an_empty_folder_is_taken(tmp_path):
    assert RunFolder.create(tmp_path).path == tmp_path


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(tmp_path / "run")
    with pytest.raises(InputError, match="cannot make the folder"):
        RunFolder.create(tmp_path / "run" / "below")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_is_held_by_one_at_a_time(tmp_path):
    folder, same = RunFolder.create(tmp_path / "run"), RunFolder(tmp_path / "run")
    assert not same.is_taken() and not (tmp_path / "run" / LOCK).exists()  # who looks leaves nothing
    with folder.held():
        assert same.is_taken()
        with (
            pytest.raises(Taken, match="run is being trained by another process; wait for it, stop it first"),
            same.held(),
        ):
            raise AssertionError
        folder.update_record(status="running")
        with pytest.raises(Taken):
            RunFolder.create(same.path)
    assert not same.is_taken()
    with same.held():
        assert folder.is_taken()


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
        assert folder.is_taken()
    finally:
        holder.kill()
        holder.communicate()
    assert RunFolder.create(folder.path).path == folder.path  # killed before its run had begun: the folder is free
    with folder.held():
        pass


def test_metrics_are_written_read_and_cut(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics(row(step))
    folder.cut_metrics(2)
    folder.append_metrics(row(3))
    assert [r["step"] for r in folder.metrics()] == [1, 2, 3]
    assert folder.metrics_path.read_text().splitlines()[0] == ",".join(METRICS)
    assert folder.metrics()[0]["test_error"] == 0.1


@pytest.mark.parametrize("where", ["in the middle", "after the last comma"])
def test_a_row_of_which_the_full_disk_took_a_part_is_left_out(where, tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2):
        folder.append_metrics(row(step))
    whole = folder.metrics_path.read_text()
    folder.metrics_path.write_text(whole[:-12] if where == "in the middle" else whole[: whole.rindex(",") + 1])
    assert [r["step"] for r in folder.metrics()] == [1]
    folder.cut_metrics(1)
    folder.append_metrics(row(2))
    assert folder.metrics_path.read_text() == whole


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
