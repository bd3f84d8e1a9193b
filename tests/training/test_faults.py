"""Full and read-only disks, kills, closed terminals, renamed folders: what a run leaves, and that it can go on."""

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import StopAfter, damaged_metrics, damaged_record
from kills import Writes, tiny

from keras_preact import InputError
from keras_preact.errors import WriteError
from keras_preact.files import _patiently, write_atomically, writing
from keras_preact.training import (
    Checkpoint,
    Interrupted,
    Recipe,
    RunConfig,
    RunFolder,
    RunLocked,
    compare,
    resume,
    resume_comparison,
    start,
)
from keras_preact.training.callbacks import handles_signals
from keras_preact.training.checkpoints import MAX_CHECKPOINTS
from keras_preact.training.runs import METRICS, metrics_summary

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "results" / "reliability" / "2-cores"
NETWORK = {"network": "transformer", "options": {"depth": 1, "dim": 8, "heads": 2, "patch": 4, "dropout": 0.2}}
CONFIG = RunConfig(**NETWORK, dataset="tiny", recipe=Recipe("faults", steps=6, batch_size=4))
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
needs_posix = pytest.mark.skipif(os.name != "posix", reason="signals, mounts and open folders of POSIX")


def rows_without_time(folder):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()]


@pytest.fixture(scope="module")
def data():
    return tiny()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """A run of two epochs of three steps without a fault."""
    return start(CONFIG, tmp_path_factory.mktemp("runs") / "whole", dataset=data)


class At(keras.callbacks.Callback):
    """Calls a function at the end of a step, counted from the start of the callback."""

    def __init__(self, step, act):
        super().__init__()
        self.step, self.act, self.done = step, act, 0

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if self.done == self.step:
            self.act()


# ---- refused writes --------------------------------------------------------------------------------------------------


class Refusal:
    """Has the system refuse the k-th operation of some kinds."""

    def __init__(self, number, kinds, k):
        self.number, self.kinds, self.k, self.seen = number, kinds, k, 0

    def __call__(self, kind, path):
        self.seen += kind in self.kinds
        if self.seen == self.k and kind in self.kinds:
            raise OSError(self.number, os.strerror(self.number))


def places(seen, every):
    """Return arguments of refusals: each operation but writes, of which many are alike, and some of those."""
    others = set(seen) - {"write"}
    return [
        *(({"write"}, k) for k in range(1, seen["write"] + 1, every)),
        *((others, k) for k in range(1, sum(seen[kind] for kind in others) + 1)),
    ]


def check_sentence(error, folder):
    """One sentence: the file, which is in the folder, the system's words, and what to do."""
    said = str(error)
    assert error.errno in REFUSALS and os.strerror(error.errno) in said
    assert said.startswith(f"cannot write {folder}{os.sep}") and "\n" not in said
    assert any(words in said for words in ("free some space", "make the folder writable", "raise the file size limit"))


@pytest.fixture
def made():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    return model


def write_three_epochs(folder, checkpoint, from_epoch=1):
    """What a run writes, without the training."""
    rows = [{**dict.fromkeys(METRICS, 0.1), "step": epoch, "epoch": epoch} for epoch in (1, 2, 3)]
    written = rows[: from_epoch - 1]
    folder.update_record(status="running", metrics=metrics_summary(written))
    folder.write_metrics(written)
    for epoch in range(from_epoch, 4):
        written = rows[:epoch]
        checkpoint.save(epoch)
        folder.write_metrics(written)
        folder.update_record(step=epoch, metrics=metrics_summary(written))


@pytest.mark.thorough
def test_whichever_write_is_refused_the_run_can_go_on(tmp_path, made):
    """The operations of three epochs in turn, under the reasons for a refusal in turn."""
    whole, seen = RunFolder.create(tmp_path / "whole"), Counter()
    with Writes(tmp_path, lambda kind, path: seen.update([kind])):
        write_three_epochs(whole, Checkpoint(whole.checkpoints_path, made))
    assert min(seen[kind] for kind in ("open", "write", "close", "fsync", "replace", "unlink", "mkdir")) >= 1
    for number, place in enumerate(places(seen, every=10)):
        folder = RunFolder.create(tmp_path / f"run-{number}")
        checkpoint = Checkpoint(folder.checkpoints_path, made)
        refusal = Refusal(REFUSALS[number % len(REFUSALS)], *place)
        with Writes(tmp_path, refusal), pytest.raises(WriteError) as refused:
            write_three_epochs(folder, checkpoint)
        check_sentence(refused.value, folder.path)
        assert not list(folder.path.rglob("*.partial*"))  # what would take the space that is missing
        step = checkpoint.restore()
        assert step == (checkpoint.last_step() or 0)  # the newest that is there is whole
        write_three_epochs(folder, checkpoint, step + 1)
        assert step == 3 or folder.record() == whole.record()
        assert [row["step"] for row in folder.metrics()] == [1, 2, 3]
        # After step 3, the oldest could not be removed, and no other checkpoint was saved.
        assert len(checkpoint.files()) == MAX_CHECKPOINTS or step == 3


def test_a_file_that_another_program_reads_is_waited_for():
    """As on Windows, where it can be neither replaced nor removed meanwhile."""
    tries = []

    def change():
        tries.append(time.perf_counter())
        if len(tries) < 3:
            raise PermissionError

    _patiently(change, tries=3)
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(PermissionError):
        _patiently(change, tries=2)


def test_errors_of_tensorflows_file_system_are_recognized_by_their_text(tmp_path):
    """It writes "is not a directory" where the system's text is "Not a directory"."""
    kind = type("FailedPreconditionError", (Exception,), {"__module__": "tensorflow.errors"})
    with pytest.raises(WriteError) as refused, writing(tmp_path / "tensorboard"):
        raise kind("/a/tensorboard is not a directory")
    assert refused.value.errno == errno.ENOTDIR
    with pytest.raises(kind), writing(tmp_path / "tensorboard"):
        raise kind("shapes do not match")


def test_a_fault_of_the_program_is_not_blamed_on_an_error_of_the_system_that_came_before(tmp_path):
    try:
        raise FileNotFoundError(errno.ENOENT, "no cache")
    except FileNotFoundError:
        with pytest.raises(ZeroDivisionError), writing(tmp_path / "file"):
            _ = 1 / 0
        with pytest.raises(KeyError), writing(tmp_path / "file"):
            try:
                raise OSError(errno.ENOSPC, "full")
            except OSError:
                raise KeyError("missing") from None
        with pytest.raises(WriteError) as refused, writing(tmp_path / "file"):
            try:
                raise OSError(errno.ENOSPC, "full")
            except OSError as error:
                raise RuntimeError("cannot save") from error
        assert refused.value.errno == errno.ENOSPC


@needs_posix
def test_on_a_drive_that_cannot_flush_folders_files_are_written_all_the_same(tmp_path, monkeypatch):
    real = os.fsync

    def refuse(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(file)

    monkeypatch.setattr(os, "fsync", refuse)
    write_atomically(tmp_path / "a.txt", "whole")
    assert (tmp_path / "a.txt").read_text() == "whole" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_whichever_write_of_a_training_is_refused_it_says_so_and_goes_on_to_the_same_end(whole, data, tmp_path):
    seen = Counter()
    with Writes(tmp_path, lambda kind, path: seen.update([kind])):
        start(CONFIG, tmp_path / "count", dataset=data)
    for number, place in enumerate(places(seen, every=40)):
        run = tmp_path / f"run-{number}"
        with Writes(tmp_path, Refusal(REFUSALS[number % len(REFUSALS)], *place)):
            try:
                start(CONFIG, run, dataset=data)
            except WriteError as error:
                check_sentence(error, run)
                begun = (run / "run.json").exists()
                unfinished = begun and RunFolder.open(run).record()["status"] != "finished"
                assert ("train --resume" in str(error)) == unfinished  # the curves are drawn last
            except InputError as error:  # the folder itself could not be made
                assert "cannot create the folder" in str(error)
                begun = False
            else:
                raise AssertionError(f"nothing was refused at {place}")
        if begun:
            assert RunFolder.open(run).record()["status"] in ("interrupted", "finished")
        if not begun or RunFolder.open(run).record()["status"] == "finished":  # refused after its last word
            shutil.rmtree(run, ignore_errors=True)
            continue
        assert rows_without_time(resume(run, dataset=data)) == rows_without_time(whole)
        shutil.rmtree(run)


@contextlib.contextmanager
def mounted(folder, *options):
    """A file system of its own at a folder."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", *options, "none", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kilobytes", [4, 12, 16, 80])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_space(kilobytes, whole, data, tmp_path):
    """TensorBoard's file, metrics.csv, the first checkpoint, the model: what does not fit."""
    with mounted(tmp_path / "disk", "-o", f"size={kilobytes}k") as disk:
        with pytest.raises(WriteError, match="No space left on device; free some space, then resume with") as refused:
            start(CONFIG, disk / "run", dataset=data)
        check_sentence(refused.value, disk / "run")
        folder = RunFolder.open(disk / "run")
        if kilobytes == 80:  # an empty file in place of the model leaves space for the record
            assert folder.record()["status"] == "interrupted" and folder.metrics()
        assert Checkpoint(folder.checkpoints_path, None).files() == sorted(folder.checkpoints_path.glob("*"))
        remount(disk, "size=2m")
        assert rows_without_time(resume(disk / "run", dataset=data)) == rows_without_time(whole)


@pytest.mark.thorough
@needs_posix
def test_a_limit_on_the_size_of_files(whole, data, tmp_path):
    import resource

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, before[1]))
    try:
        with pytest.raises(WriteError, match=r"checkpoints.*: File too large; raise the file size limit"):
            start(CONFIG, tmp_path / "run", dataset=data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert RunFolder.open(tmp_path / "run").record()["status"] == "interrupted"
    assert rows_without_time(resume(tmp_path / "run", dataset=data)) == rows_without_time(whole)


@pytest.mark.thorough
def test_a_read_only_folder_is_one_sentence(whole, data, tmp_path):
    with mounted(tmp_path / "disk", "-o", "size=2m") as disk:
        with pytest.raises(Interrupted):
            start(CONFIG, disk / "run", dataset=data, callbacks=[StopAfter(2)])
        remount(disk, "ro")
        with pytest.raises(WriteError, match=r"cannot write .*lock: Read-only file system; make the folder writable"):
            resume(disk / "run", dataset=data)
        with pytest.raises(InputError, match="cannot create the folder"):
            start(CONFIG, disk / "other", dataset=data)
        assert not RunFolder.open(disk / "run").is_locked()  # it can be looked at
        remount(disk, "rw")
        assert rows_without_time(resume(disk / "run", dataset=data)) == rows_without_time(whole)


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_end_whatever_has_become_of_its_metrics_or_record(whole, data, tmp_path):
    """A damaged record is refused, and deleted, as the sentence says."""
    stopped, run = tmp_path / "stopped", tmp_path / "run"
    with pytest.raises(Interrupted):
        start(CONFIG, stopped, dataset=data, callbacks=[StopAfter(4)])

    def check(damage):
        resumed = resume(run, dataset=data)
        assert rows_without_time(resumed) == rows_without_time(whole), damage
        assert resumed.model_path.read_bytes() == whole.model_path.read_bytes(), damage
        shutil.rmtree(run)

    damages = list(damaged_metrics((stopped / "metrics.csv").read_bytes()).items())
    for damage, content in damages[::3]:  # a sample, for each goes on to the end of the run
        shutil.copytree(stopped, run)
        (run / "metrics.csv").write_bytes(content)
        check(damage)
    shutil.copytree(stopped, run)
    for damage, content in damaged_record((stopped / "run.json").read_bytes()).items():
        (run / "run.json").write_bytes(content)
        with pytest.raises(InputError, match=r"run\.json .*; delete it and run|contains no training run") as error:
            resume(run, dataset=data)
        assert "\n" not in str(error.value), damage
    (run / "run.json").unlink()
    check("deleted")


TRAIN = """
import sys
from kills import config, tiny
from keras_preact.training import start
start(config(3), sys.argv[1], dataset=tiny())
"""


@pytest.mark.thorough
def test_two_processes_write_the_same_bytes(tmp_path):
    """Neither addresses nor the order of sets, which differ between processes, are in the model."""
    models = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run([sys.executable, "-c", TRAIN, tmp_path / seed], env=environment, check=True, capture_output=True)
        models.append((tmp_path / seed / "model.keras").read_bytes())
    assert models[0] == models[1]


def test_however_a_run_stops_its_record_says_so(data, tmp_path):
    def fail():
        raise RuntimeError("of a callback")

    with pytest.raises(RuntimeError, match="of a callback"):
        start(CONFIG, tmp_path / "run", dataset=data, callbacks=[At(2, fail)])
    assert RunFolder.open(tmp_path / "run").record()["status"] == "interrupted"


# ---- a folder that is renamed ----------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@needs_posix
@pytest.mark.parametrize("step", [1, 3, 4, 6])
def test_a_run_goes_on_in_the_renamed_folder(step, whole, data, tmp_path):
    """In the first epoch, at its end, just after it, at the last step; no folder comes back under the old name."""
    old, new = tmp_path / "old", tmp_path / "below" / "new"
    new.parent.mkdir()
    folder = start(CONFIG, old, dataset=data, callbacks=[At(step, lambda: old.rename(new))])
    assert folder.path.samefile(new) and not old.exists()
    assert sorted(path.name for path in new.iterdir()) == sorted(path.name for path in whole.path.iterdir())
    assert folder.record()["status"] == "finished" and rows_without_time(folder) == rows_without_time(whole)


@pytest.mark.thorough
@needs_posix
def test_another_folder_of_the_old_name_is_left_alone(data, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"

    def replace():
        old.rename(new)
        old.mkdir()

    with pytest.raises(Interrupted, match=r"SIGTERM after step 2; resume with .*new'`"):
        start(CONFIG, old, dataset=data, callbacks=[At(1, replace), StopAfter(2, signal.SIGTERM)])
    assert list(old.iterdir()) == []
    assert RunFolder.open(new).record()["status"] == "interrupted"
    assert resume(new, dataset=data).record()["status"] == "finished"


@needs_posix
def test_a_folder_that_is_removed_ends_the_run_and_does_not_come_back(data, tmp_path):
    run = tmp_path / "run"
    message = r"the run folder was removed .* during training; create or restore the folder"
    with pytest.raises(WriteError, match=message):
        start(CONFIG, run, dataset=data, callbacks=[At(2, lambda: shutil.rmtree(run))])
    assert not run.exists()


# ---- signals ---------------------------------------------------------------------------------------------------------


@needs_posix
def test_a_closed_terminal_saves_and_stops(whole, data, tmp_path):
    with pytest.raises(Interrupted, match="SIGHUP after step 2"):
        start(CONFIG, tmp_path / "run", dataset=data, callbacks=[StopAfter(2, signal.SIGHUP)])
    record = RunFolder.open(tmp_path / "run").record()
    assert (record["status"], record["step"]) == ("interrupted", 2)
    assert rows_without_time(resume(tmp_path / "run", dataset=data)) == rows_without_time(whole)


@needs_posix
def test_a_closed_terminal_may_send_its_signal_twice(whole, data, tmp_path):
    """A shell passes SIGHUP on, and the system sends it as well; `timeout` does the same with SIGTERM."""

    def hang_up():
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)

    with pytest.raises(Interrupted, match="SIGHUP after step 2"):
        start(CONFIG, tmp_path / "run", dataset=data, callbacks=[At(2, hang_up)])
    assert rows_without_time(resume(tmp_path / "run", dataset=data)) == rows_without_time(whole)


def test_a_second_ctrl_c_ends_at_once(data, tmp_path):
    def press():
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stop:
        start(CONFIG, tmp_path / "run", dataset=data, callbacks=[At(2, press)])
    assert not isinstance(stop.value, Interrupted)
    assert RunFolder.open(tmp_path / "run").record()["step"] == 0


def test_a_handler_that_python_cannot_restore_is_left(data, tmp_path, monkeypatch):
    """`signal.getsignal` returns `None` for a handler that C code installed, in an embedded Python."""
    set_handler = signal.signal

    def refuse_sigterm(number, handler):
        assert number != signal.SIGTERM
        return set_handler(number, handler)

    get_handler = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else get_handler(number))
    monkeypatch.setattr(signal, "signal", refuse_sigterm)
    assert start(CONFIG, tmp_path / "run", dataset=data).record()["status"] == "finished"


@needs_posix
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_a_signal_that_the_process_ignores_stops_no_run(data, tmp_path, name):
    """`nohup` ignores SIGHUP, and a shell ignores SIGINT for the background jobs of a script."""
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        run = start(CONFIG, tmp_path / "run", dataset=data, callbacks=[StopAfter(2, number)])
    finally:
        signal.signal(number, before)
    assert run.record()["status"] == "finished"


def test_an_error_outside_the_main_thread_has_no_other_cause():
    """Only the main thread handles signals."""
    found = []

    def fail():
        try:
            with handles_signals(lambda number, frame: None):
                raise RuntimeError("mine")
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert str(found[0]) == "mine" and found[0].__context__ is None


def test_a_signal_while_the_run_is_finished_comes_after_it(data, tmp_path, monkeypatch):
    """The model is saved and the record written; then the signal does what it does to any program."""
    save, saved = keras.Model.save, []

    def interrupted_save(self, *arguments, **keywords):
        saved.append(self)
        if len(saved) != 2:  # the second is the first run of a comparison, which a signal interrupts
            signal.raise_signal(signal.SIGINT)
        save(self, *arguments, **keywords)

    monkeypatch.setattr(keras.Model, "save", interrupted_save)
    with pytest.raises(KeyboardInterrupt):
        start(CONFIG, tmp_path / "run", dataset=data)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.record()["status"] == "finished" and folder.trained_model().exists()
    assert not folder.is_locked()
    bundled = RunConfig(options={"depth": 8}, recipe=Recipe("faults", steps=1, batch_size=4), image_size=8)
    with pytest.raises(KeyboardInterrupt):
        compare({"a": bundled, "b": bundled}, tmp_path / "both")
    assert [RunFolder.open(tmp_path / "both" / name).record()["status"] for name in ("", "b")] == ["finished"] * 2


def command(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-m", "keras_preact", *arguments], env=environment, **options)


@needs_posix
@pytest.mark.parametrize("seconds", [0.5, 1.5, 3])
def test_ctrl_c_in_the_first_seconds_prints_one_line(seconds, tmp_path):
    process = command("train", "--out", str(tmp_path / "run"), stderr=subprocess.PIPE, start_new_session=True)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
    said = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130 and said.startswith("keras-preact: stopped") and said.count("\n") == 1, said


@pytest.mark.thorough
@needs_posix
def test_a_terminal_that_is_closed_leaves_a_run_that_can_be_resumed(tmp_path):
    """A real terminal, which goes away with all that is printed to it."""
    import pty  # not on Windows

    terminal, its_side = pty.openpty()
    arguments = ["train", "--depth", "8", "--steps", "5000", "--out", str(tmp_path / "run")]
    options = {"stdin": its_side, "stdout": its_side, "stderr": its_side, "start_new_session": True}
    process = command(*arguments, **options, preexec_fn=_take_terminal)
    os.close(its_side)
    os.set_blocking(terminal, False)
    give_up = time.monotonic() + 240
    while b"step 2" not in (said := _read(terminal)) and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.1)
    os.close(terminal)
    assert process.wait(timeout=120) == 128 + signal.SIGHUP, said
    record = RunFolder.open(tmp_path / "run").record()
    assert record["status"] == "interrupted" and 0 < record["step"] < 5000
    assert Checkpoint(tmp_path / "run" / "checkpoints", None).last_step() == record["step"]


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(terminal):
    with contextlib.suppress(BlockingIOError):
        return os.read(terminal, 1 << 16)
    return b""


# ---- clocks, second processes, kills ---------------------------------------------------------------------------------


@pytest.mark.thorough
def test_nothing_depends_on_the_clock_of_the_day(whole, data, tmp_path, monkeypatch):
    """It goes back an hour each time it is read, and the newer checkpoint has the older date."""
    now = [2e9]

    def back():
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", back)
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", dataset=data, callbacks=[StopAfter(5)])
    folder = RunFolder.open(tmp_path / "run")
    for age, path in enumerate(sorted(folder.checkpoints_path.iterdir())):
        os.utime(path, (1e9 - 1e6 * age,) * 2)
    resume(folder.path, dataset=data)
    assert rows_without_time(folder) == rows_without_time(whole)
    assert folder.record()["resumed"][0]["step"] == 5
    seconds = [row["seconds"] for row in folder.metrics()]
    assert 0 < seconds[0] <= seconds[1] <= folder.record()["seconds"] < 3600


def test_a_comparison_is_trained_by_one_process_at_a_time(tmp_path):
    folder = RunFolder.create(tmp_path / "both")
    folder.update_record(kind="comparison", status="running", runs={"one": CONFIG.to_dict()})
    with folder.held(), pytest.raises(RunLocked, match="is being trained by another process"):
        resume_comparison(folder.path)
    assert RunFolder.open(folder.path).record()["status"] == "running"  # what the other one wrote


@pytest.mark.slow
@needs_posix
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_run_that_is_killed_a_hundred_times_is_equal_to_the_bit(backend, tmp_path):
    pytest.importorskip(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(ROOT / "tests" / "kills.py"), "--out", str(tmp_path)]
    subprocess.run(script, env=environment, check=True, capture_output=True)
    found = json.loads((tmp_path / f"kills-{backend}.json").read_text())
    check_kills(found)
    assert found["kills"] >= 100 and found["kills inside a save"] >= 30


def check_kills(found):
    assert found["faults"] == []
    assert found["resumes"] >= found["kills"] - found["runs ended"]
    in_place, forgetful = found["controls"].values()
    assert any("cannot be read" in fault for fault in in_place["faults"])
    assert any("is not what the undisturbed run wrote" in fault for fault in forgetful["faults"])


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ("kills-tensorflow", "TensorFlow"),
        ("kills-jax", "JAX"),
        ("kills-torch", "PyTorch"),
        ("kills-jax-writes", "JAX, at file operations only"),
    ],
)
def test_the_page_on_reliability_has_the_recorded_counts(record, name):
    found = json.loads((RECORDED / f"{record}.json").read_text())
    check_kills(found)
    keys = ("lives", "kills", "kills inside a save", "kills before a file operation", "resumes", "runs ended")
    counts = [*(found[key] for key in keys), len(found["faults"])]
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"| {name} | " + " | ".join(map(str, counts)) + " |" in page


def test_the_metrics_of_a_run_can_be_read_at_every_write(data, tmp_path):
    """Whoever kills the run there, or only looks, finds the rows of the record."""
    folder, seen = RunFolder(tmp_path / "run"), []

    def read(kind, path):
        if kind == "replace" and folder.record_path.exists():
            seen.append(len(folder.metrics()))

    with Writes(tmp_path, read):
        start(CONFIG, folder.path, dataset=data)
    assert sorted(seen) == seen and max(seen) == len(folder.metrics())
