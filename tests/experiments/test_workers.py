"""Several processes share a table: progress, restarts of what was killed, one sentence for what is wrong, Ctrl-C."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from keras_preact import InputError
from keras_preact.cli import main
from keras_preact.cli.options import parser
from keras_preact.experiments import BUDGETS, EXPERIMENTS, Store, default_workers, plan, run_in_workers, workers
from keras_preact.experiments.runner import seconds_left
from keras_preact.experiments.workers import RESTARTS, Progress
from keras_preact.training import RunFolder
from keras_preact.training.runs import METRICS

# What a worker does to the run folders, without Keras: takes the next that no other has made, and writes its record.
WORKER = """
import hashlib, json, os, pathlib, signal, sys, time
def write(folder, record):
    checksum = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    folder.joinpath("run.json").write_text(json.dumps({**record, "sha256": checksum}))
mode, *folders = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(folders[0], "saved-%d" % os.getpid()).touch(), sys.exit(143)))
for folder in map(pathlib.Path, folders):
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        continue
    record = {"kind": "training", "status": "running", "step": 31, "seconds": 10.0}
    write(folder, record)
    if mode == "refuses":
        sys.exit("keras-preact: error: the data are missing")
    if mode == "waits":
        time.sleep(60)
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder, {**record, "status": "finished", "step": 62, "seconds": 20.0})
"""


ROWS = ["original-110", "full_preactivation-110", "original-164"]


@pytest.fixture
def jobs(tmp_path):
    return plan(EXPERIMENTS["table2"], BUDGETS["smoke"], rows=ROWS, out=tmp_path)


def worker(mode, jobs):
    return [sys.executable, "-c", WORKER, mode, *(str(job.path) for job in jobs)]


def test_workers_share_the_runs_and_say_how_far_they_are(jobs):
    said = []
    run_in_workers(jobs, worker("works", jobs), 2, said.append)
    assert all(RunFolder(job.path).record()["status"] == "finished" for job in jobs)
    assert (said[-1].finished, said[-1].runs, said[-1].seconds_left) == (3, 3, 0.0)
    assert str(said[-1]) == "3 of 3 runs finished"


def test_the_time_left_counts_each_network_at_its_own_speed(jobs):
    progress = Progress(1, 3, [("original-110 (seed 0)", 31, 62)], 5400.0)
    assert str(progress) == "1 of 3 runs finished; training original-110 (seed 0) 31/62; about 1 h 30 min left"
    from keras_preact.experiments.workers import _progress

    for job, seconds, status in zip(jobs, (10.0, 30.0), ("finished", "running"), strict=False):
        job.path.mkdir()
        step = 62 if status == "finished" else 31
        RunFolder(job.path).update_record(kind="training", status=status, step=step, seconds=seconds)
    found = _progress(jobs, workers=2)
    # 31 steps at 30/31 s and 62 at the speed of both runs together, at the same time.
    assert found.seconds_left == pytest.approx(30)
    assert found.running == [("full_preactivation-110 (seed 0)", 31, 62)] and found.finished == 1
    assert seconds_left(jobs) == pytest.approx(30 + 62 * (10 + 30) / (62 + 31))  # one run after the other


def test_a_short_part_of_a_run_counts_little(jobs):
    """The seconds before the first step are those of the start."""
    for job, step, seconds in zip(jobs, (62, 1), (62.0, 100.0), strict=False):
        job.path.mkdir()
        status = "finished" if step == 62 else "interrupted"
        RunFolder(job.path).update_record(kind="training", status=status, step=step, seconds=seconds)
    assert seconds_left(jobs) == pytest.approx(61 * 100 + 62 * 162 / 63)


def test_a_diverged_run_counts_the_steps_after_its_last_checkpoint(jobs):
    job = jobs[0]
    job.path.mkdir()
    record = {"status": "diverged", "step": 1, "diverged": {"step": 40}, "seconds": 40.0}
    RunFolder(job.path).update_record(kind="training", **record)
    assert seconds_left(jobs) == pytest.approx(2 * 62)


def test_stored_runs_do_not_count_once_a_run_here_has_a_speed(tmp_path, jobs):
    """They may be from another machine."""
    stored = tmp_path / "stored" / "run"
    stored.mkdir(parents=True)
    record = {"kind": "training", "status": "finished", "config": jobs[0].config.to_dict(), "step": 62}
    RunFolder(stored).update_record(**record, seconds=6200.0, result={"test_error": 50.0})
    jobs = plan(EXPERIMENTS["table2"], BUDGETS["smoke"], rows=ROWS, out=tmp_path, results=[tmp_path / "stored"])
    assert [job.is_stored for job in jobs] == [True, False, False]
    assert seconds_left(jobs) == pytest.approx(2 * 6200)
    jobs[1].path.mkdir()
    RunFolder(jobs[1].path).update_record(kind="training", status="running", step=31, seconds=31.0)
    assert seconds_left(jobs) == pytest.approx(31 + 62)


def test_stored_runs_say_how_the_networks_compare(tmp_path, jobs):
    """Of a network that ten times as many seconds were recorded for elsewhere, ten times as many are expected here."""
    for job, seconds in zip(jobs[:2], (62.0, 620.0), strict=True):
        folder = RunFolder.create(tmp_path / "stored" / job.path.name)
        config = dataclasses.replace(job.config, seed=1).to_dict()
        folder.update_record(kind="training", status="finished", config=config, step=62, seconds=seconds)
    jobs = plan(
        EXPERIMENTS["table2"], BUDGETS["smoke"], rows=ROWS[:2], seeds=2, out=tmp_path, results=[tmp_path / "stored"]
    )
    jobs[0].path.mkdir()
    RunFolder(jobs[0].path).update_record(kind="training", status="finished", step=62, seconds=6.2)
    assert [job.is_stored for job in jobs] == [False, False, True, True]
    assert seconds_left(jobs) == pytest.approx(62.0)


def test_the_time_left_of_a_run_that_was_suspended_is_that_of_its_steps(jobs):
    job = jobs[0]
    job.path.mkdir()
    RunFolder(job.path).update_record(kind="training", status="interrupted", step=40, seconds=4000.0)
    rows = [{**dict.fromkeys(METRICS, 0.0), "step": k * 10, "seconds": s} for k, s in enumerate((10, 20, 30, 4000), 1)]
    RunFolder(job.path).write_metrics(rows)
    assert seconds_left(jobs[:1]) == pytest.approx(22.0)


def test_a_worker_has_its_share_of_the_cores_unless_the_user_chose_otherwise(monkeypatch):
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)
    for name in ("TF_NUM_INTRAOP_THREADS", "PJRT_NPROC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment = workers._WorkerPool(["true"], 4).environment
    names = ("TF_NUM_INTRAOP_THREADS", "PJRT_NPROC", "OMP_NUM_THREADS")
    assert [environment[name] for name in names] == ["2", "2", "3"]


def test_workers_without_a_run_do_not_shorten_the_time_left(jobs):
    """Ten workers, one run left: one of them trains it."""
    for job, step, status in zip(jobs, (62, 62, 31), ("finished", "finished", "running"), strict=True):
        job.path.mkdir()
        RunFolder(job.path).update_record(kind="training", status=status, step=step, seconds=float(step))
    assert seconds_left(jobs, workers=10) == seconds_left(jobs) == pytest.approx(31.0)


def test_a_worker_that_is_killed_is_started_again(jobs):
    """Each life makes one run and dies in it; after the third there is none left to begin."""
    run_in_workers(jobs, worker("killed", jobs), 1)
    assert [RunFolder(job.path).record()["step"] for job in jobs] == [31, 31, 31]
    assert len(jobs) <= RESTARTS


@pytest.mark.thorough
def test_a_worker_that_is_killed_each_time_is_given_up(jobs):
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    with pytest.raises(InputError, match=f"a worker stopped: killed by signal 9, {RESTARTS + 1} times"):
        run_in_workers(jobs, command, 1)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="a kernel without autogroups")
def test_workers_yield_as_the_user_asked_with_nice(jobs, tmp_path, monkeypatch):
    """Each worker has a session of its own, and Linux shares the processor among sessions before `nice` counts."""
    code = (
        "import pathlib, sys, time; own = pathlib.Path('/proc/self/autogroup'); end = time.monotonic() + 5\n"
        "while 'nice 7' not in own.read_text() and time.monotonic() < end: time.sleep(0.05)\n"
        "pathlib.Path(sys.argv[1]).write_text(own.read_text())"
    )
    monkeypatch.setattr(os, "nice", lambda more: 7)
    run_in_workers(jobs[:1], [sys.executable, "-c", code, str(tmp_path / "autogroup")], 1)
    assert (tmp_path / "autogroup").read_text().strip().endswith("nice 7")


def test_bad_input_stops_all_workers_with_its_sentence(jobs):
    with pytest.raises(InputError, match=r"^a worker stopped: the data are missing$"):
        run_in_workers(jobs, worker("refuses", jobs), 2)


def test_a_fault_in_a_worker_says_how_to_see_it(jobs):
    """The workers run without `--debug`, and their outputs are not kept."""
    code = "import sys; sys.exit('keras-preact: error: internal error, please report it (KeyError); see --debug')"
    with pytest.raises(InputError, match=r"\(KeyError\); to see the traceback, add --jobs 1 --debug$"):
        run_in_workers(jobs[:1], [sys.executable, "-c", code], 1)


@pytest.mark.skipif(os.name != "posix", reason="a signal from another process ends a process of Windows at once")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_stops_all_workers_after_they_have_saved(jobs, name):
    """Whatever the signal did before: the command, for example, ends at once on Ctrl-C."""
    number = getattr(signal, name)

    def stop():
        while sum(path.is_dir() for path in (job.path for job in jobs)) < 2:
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), number)

    before = signal.signal(number, signal.SIG_DFL)
    try:
        threading.Thread(target=stop).start()
        with pytest.raises(KeyboardInterrupt, match=f"stopped by {number.name}; .*the same command resumes") as stopped:
            run_in_workers(jobs, worker("waits", jobs), 2)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert stopped.value.signal_number == number
    assert len(list(jobs[0].path.glob("saved-*"))) == 2


@pytest.mark.thorough
def test_ctrl_c_stops_the_commands_workers_and_says_how_to_go_on(tmp_path):
    """As a user meets it: another process, a real signal."""
    options = ["--rows", "original-110", "full_preactivation-110", "--results", ".", "--jobs", "2", "--out", "runs"]
    command = [sys.executable, "-m", "keras_preact", "reproduce", "table2", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment)
    started, give_up = [], time.monotonic() + 240
    while len(started) < 2 and time.monotonic() < give_up and process.poll() is None:
        time.sleep(0.1)
        started = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert errors.startswith("keras-preact: stopped by SIGINT; ") and errors.count("\n") == 1
    assert not any(worker.is_running() for worker in started)


def test_workers_stop_if_another_one_cannot_be_started(jobs, monkeypatch):
    start, started = subprocess.Popen, []

    def popen(*arguments, **options):
        if started:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(BlockingIOError):
        run_in_workers(jobs, worker("works", jobs), 2)
    assert started[0].poll() is not None


def test_the_number_of_workers_is_bounded_by_what_is_missing():
    assert default_workers(1) == 1 <= default_workers(10_000) <= (os.cpu_count() or 1)


@pytest.mark.parametrize("table_last", [False, True])
def test_the_workers_command_trains_one_run_at_a_time(tmp_path, monkeypatch, table_last):
    """`--rows` takes several words, so `--` must separate it from a table that comes last."""
    commands = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keras_preact.cli.reproduce.run_in_workers", lambda jobs, *others: commands.append(others[0]))
    monkeypatch.setattr("keras_preact.cli.reproduce.run_missing", lambda *arguments: None)
    rows = ["--results", ".", "--jobs", "2", "--rows", "original-110", "full_preactivation-110"]
    given = ["reproduce", *rows, "--", "table2"] if table_last else ["reproduce", "table2", *rows]
    assert main(given) == 0
    asked, ours = parser().parse_args(given), parser().parse_args(commands[0][3:])
    assert (ours.table, ours.rows, ours.jobs) == (asked.table, asked.rows, 1)


@pytest.mark.thorough
def test_the_command_shares_a_table_among_processes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--rows", "original-110", "full_preactivation-110", "--results", "."]
    assert main(["reproduce", "table2", *options, "--jobs", "2", "--out", "runs"]) == 0
    runs = Store([Path("runs")]).runs
    assert len(runs) == 2 and {json.loads(run.folder.record_path.read_text())["step"] for run in runs} == {62}
    assert "2 of 2 runs finished" in capsys.readouterr().out
    assert main(["reproduce", "table2", *options, "--jobs", "0", "--out", "elsewhere"]) == 2
