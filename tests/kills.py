"""Kill a run again and again, resume it each time, and compare it with the same run left alone.

    KERAS_BACKEND=jax python tests/kills.py --kills 100 --out results/reliability/2-cores

One process imports Keras, computes nothing, and forks a child for every life of the run: an import costs more than
such a life. A child is killed (SIGKILL) before a chosen file operation, which `Writes` counts, or at a random time.
After each kill every checkpoint that is there must be whole and equal, to the bit, to the one that the undisturbed
run wrote after the same step: weights, optimizer, metrics and random state; so must the rows of metrics.csv. Two
controls, a save that is not atomic and a resume without the random state, must be caught by the same comparison.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import hashlib
import io
import json
import mmap
import os
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

KINDS = ("open", "write", "close", "fsync", "replace", "unlink", "mkdir")


class Writes:
    """Calls `act(kind, path)` before every operation by which Python changes a file below `folder`.

    TensorBoard's files are written in C++ and not seen.
    """

    def __init__(self, folder, act):
        self.folder = os.path.realpath(folder)
        self.act = act

    def _before(self, kind, path):
        if not isinstance(path, int) and os.path.realpath(os.fspath(path)).startswith(self.folder):
            self.act(kind, os.fspath(path))

    def __enter__(self):
        self.real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "mkdir")}
        self.real_open = io.open
        for name, real in self.real.items():
            setattr(os, name, self._counted(name, real))
        builtins.open = io.open = self._open
        return self

    def __exit__(self, *error):
        for name, real in self.real.items():
            setattr(os, name, real)
        builtins.open = io.open = self.real_open

    def _counted(self, kind, real):
        def call(path, *arguments, **keywords):
            if kind == "fsync":
                self.act(kind, "")  # only this package calls it
            elif kind != "mkdir" or not os.path.isdir(path):  # a folder that is there is not changed
                self._before(kind, path)
            return real(path, *arguments, **keywords)

        return call

    def _open(self, file, mode="r", *arguments, **keywords):
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return self.real_open(file, mode, *arguments, **keywords)
        self._before("open", file)
        opened = self.real_open(file, mode, *arguments, **keywords)
        return _Written(opened, self) if os.path.realpath(os.fspath(file)).startswith(self.folder) else opened


class _Written:
    """A file that is being written: half of what a failing `write` was given is in it."""

    def __init__(self, file, writes):
        self._file, self._writes = file, writes

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return iter(self._file)

    def write(self, data):
        half = memoryview(data).nbytes // 2 if not isinstance(data, str) else len(data) // 2
        first = data[:half] if isinstance(data, str) else memoryview(data).cast("B")[:half]
        rest = data[half:] if isinstance(data, str) else memoryview(data).cast("B")[half:]
        self._file.write(first)
        self._file.flush()
        self._writes.act("write", self._file.name)
        self._file.write(rest)
        return len(data)

    def close(self):
        if not self._file.closed:
            try:
                self._writes.act("close", self._file.name)
            finally:
                self._file.close()


# ---- what is compared ---------------------------------------------------------------------------------------------


def digest(arrays):
    """Return a hash of arrays by name: names, types, shapes and bits."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def checkpoint_digest(path):
    """Return a hash of the state, and of what is noted beside it but for times and the history of the run."""
    import numpy as np

    from keras_preact.training.checkpoints import ABOUT

    with np.load(path, allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    about = json.loads(arrays.pop(ABOUT).tobytes())
    notes = about["notes"]
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in notes["metrics"]]
    said = json.dumps([about["step"], about["names"], rows, notes["record"]["config"]])
    return digest({**arrays, ABOUT: np.frombuffer(said.encode(), "uint8")})


def model_digest(path):
    """Return a hash of the weights and optimizer in a `.keras` file, which also has dates in it."""
    import h5py

    arrays = {}
    with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return digest(arrays)


def rows_without_time(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.rsplit(",", 1)[0] for line in lines]


class Reference:
    """The run left alone: what it wrote after each step, and the seconds from a first step to a first checkpoint."""

    def __init__(self, run, digests, seconds):
        self.seconds = seconds
        self.digests = {int(step): value for step, value in digests.items()}
        self.rows = rows_without_time(run / "metrics.csv")
        self.model = model_digest(run / "model.keras")

    def faults(self, run, had_checkpoint):
        """Return what is wrong with a run that was killed; every file it shows must be one of the reference's."""
        found = []
        files = sorted((run / "checkpoints").glob("step-*.npz"))
        if had_checkpoint and not files:
            found.append("there is no checkpoint any more")
        for file in files:
            step = int(file.stem.removeprefix("step-"))
            try:
                if checkpoint_digest(file) != self.digests[step]:
                    found.append(f"{file.name} is not what the undisturbed run wrote")
            except Exception as error:
                found.append(f"{file.name} cannot be read: {type(error).__name__}")
        rows = rows_without_time(run / "metrics.csv")
        whole = rows[:-1]  # the last may be half written: it is cut at the next resume
        if whole != self.rows[: len(whole)]:
            found.append("metrics.csv is not what the undisturbed run wrote")
        return found

    def final_faults(self, run):
        """Return what is wrong with a run that has come to its end."""
        found = self.faults(run, had_checkpoint=True)
        if rows_without_time(run / "metrics.csv") != self.rows:
            found.append("metrics.csv is not the undisturbed run's")
        if model_digest(run / "model.keras") != self.model:
            found.append("model.keras has not the undisturbed run's weights")
        return found


# ---- a life of the run --------------------------------------------------------------------------------------------


class Shared:
    """What a child tells its parent, who reads it after the child's death."""

    def __init__(self):
        self.memory = mmap.mmap(-1, 8)

    def clear(self):
        self.memory[:] = bytes(8)

    def _flag(number):
        return property(
            lambda self: bool(self.memory[number]), lambda self, value: self.memory.__setitem__(number, int(value))
        )

    has_stepped, is_saving, is_at_write = _flag(0), _flag(1), _flag(2)


def tiny():
    """12 training and 4 test images of 8×8 pixels in 3 classes."""
    import numpy as np

    from keras_preact.data import from_arrays

    rng = np.random.default_rng(0)

    def split(count):
        labels = np.arange(count) % 3
        return (rng.integers(0, 60, size=(count, 8, 8, 3)) + 80 * labels[:, None, None, None]).astype("uint8"), labels

    return from_arrays(*split(12), *split(4), name="tiny")


def config(steps):
    """A network with batch norm, dropout, dropped paths and augmentation: all that has a state."""
    from keras_preact.training import Recipe, RunConfig

    options = {"depth": 8, "shortcut": "dropout", "drop_path": 0.3}
    return RunConfig(options=options, dataset="tiny", recipe=Recipe("kills", steps=steps, batch_size=4))


def live(run, steps, shared, kill_at=None, change=None):
    """Train the run, from its start or where it is; be killed before the operation `kill_at` = (kind, number).

    Return the times of its steps.
    """
    import keras

    from keras_preact.training import resume, start
    from keras_preact.training.callbacks import Recorder

    if change is not None:
        change()
    seen, stepped = Counter(), []

    def act(kind, path):
        seen[kind] += 1
        if (kind, seen[kind]) == kill_at:
            shared.is_at_write = True
            os.kill(os.getpid(), signal.SIGKILL)

    def mark(batch, logs=None):
        shared.has_stepped = True
        stepped.append(time.monotonic())

    on_epoch_end = Recorder.on_epoch_end

    def marked_epoch_end(self, *arguments):
        shared.is_saving = True
        on_epoch_end(self, *arguments)
        shared.is_saving = False

    Recorder.on_epoch_end = marked_epoch_end
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=mark)]
    with Writes(run, act):
        if (run / "run.json").exists():
            resume(run, dataset=tiny(), callbacks=callbacks)
        else:
            start(config(steps), run, dataset=tiny(), callbacks=callbacks)
    return stepped


def fork(work, log):
    """Run `work` in a child; return its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        work()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(child, seconds=None):
    """Return the child's status, or None if it goes on after some seconds."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if done:
            return status
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def killed(child, shared, moment):
    """Kill a child at a moment: seconds after its start, seconds after its first step, or where it kills itself."""
    kind, seconds = moment
    if kind != "start":
        while not shared.has_stepped:
            if (status := wait(child, 0.002)) is not None:
                return status
    if (status := wait(child, seconds)) is not None:
        return status
    os.kill(child, signal.SIGKILL)
    return wait(child)


def undisturbed(folder, steps, shared, log):
    """Train the run without a stop; return what it wrote."""

    def work():
        from keras_preact.training import Checkpoint

        digests, times, save = {}, [], Checkpoint.save

        def noting(self, step, notes):
            digests[step] = checkpoint_digest(save(self, step, notes))
            times.append(time.monotonic())

        Checkpoint.save = noting
        first, *_ = live(folder / "whole", steps, shared)
        (folder / "written.json").write_text(json.dumps([digests, times[0] - first]))

    if wait(fork(work, log)):
        raise RuntimeError(f"the undisturbed run failed:\n{Path(log.name).read_text(errors='replace')}")
    return Reference(folder / "whole", *json.loads((folder / "written.json").read_text()))


def plan(rng, only_writes, to_first_save):
    """Draw a moment: three of five before a file operation, the others in time, which a slow machine has more of."""
    kind = "write" if only_writes else rng.choice(["write", "write", "write", "step", "start"])
    if kind == "write":
        operation = rng.choice(KINDS[:-1])  # folders are made once
        number = rng.randint(1, 250) if operation == "write" else rng.randint(1, 8)
        return (operation, number), ("step", 120.0 if only_writes else max(4.0, 5 * to_first_save))
    return None, (kind, rng.uniform(0, max(2.0, 4 * to_first_save) if kind == "step" else 10.0))


def chain(folder, reference, kills, steps, seed, shared, log, change=None, moments=None, only_writes=False):
    """Kill and resume a run until it was killed often enough, then let it end; what ends before begins again."""
    import random

    rng, counts, operations, faults = random.Random(seed), Counter(), Counter(), []
    run = folder / "run-0"
    while counts["kills"] < kills and not faults:
        kill_at, moment = moments.pop(0) if moments else plan(rng, only_writes, reference.seconds)
        resumed = (run / "run.json").exists()
        had_checkpoint = any((run / "checkpoints").glob("step-*.npz"))
        shared.clear()
        life = functools.partial(live, run, steps, shared, kill_at, change)
        status = killed(fork(life, log), shared, moment)
        counts["lives"] += 1
        counts["resumes"] += resumed
        if os.WIFSIGNALED(status):
            counts["kills"] += 1
            counts["kills inside a save"] += shared.is_saving
            counts["kills before a file operation"] += shared.is_at_write
            operations[kill_at[0] if shared.is_at_write else moment[0]] += 1
            faults += reference.faults(run, had_checkpoint)
        elif status:
            faults.append("a resumed run failed")
        else:
            faults += reference.final_faults(run)
            counts["runs ended"] += 1
            counts["steps resumed from"] += resume_points(run)
            run = folder / f"run-{counts['runs ended']}"
        counts["most files of a checkpoint folder"] = max(
            counts["most files of a checkpoint folder"], len(list((run / "checkpoints").glob("*")))
        )
        print(dict(counts), faults, file=sys.stderr, flush=True)
    if not faults and run.exists():
        counts["resumes"] += 1
        counts["runs ended"] += 1
        status = wait(fork(functools.partial(live, run, steps, shared, None, change), log))
        faults += ["a resumed run failed"] if status else reference.final_faults(run)
        counts["steps resumed from"] += resume_points(run)
    return {**counts, "where": dict(operations), "faults": faults}


def resume_points(run):
    """Return how many different steps a run was resumed from: kills before the first checkpoint count once."""
    return len({part["step"] for part in json.loads((run / "run.json").read_text()).get("resumed", [])})


# ---- the controls -------------------------------------------------------------------------------------------------


def save_in_place():
    """Have the state written over itself, as a program does that gives no thought to kills."""
    from keras_preact.training import Checkpoint, checkpoints

    save = Checkpoint.save

    @contextlib.contextmanager
    def in_place(path, aside):
        yield path

    def after_the_others(self, step, notes):
        for old in self.files():
            old.unlink()
        return save(self, step, notes)

    checkpoints.written_aside = in_place
    Checkpoint.save = after_the_others


def forget_random_state():
    """Have a resumed run draw its random numbers from the beginning."""
    from keras_preact.training import Checkpoint

    restore = Checkpoint.restore

    def forgetful(self):
        seeds = [v for v in self.variables() if "seed" in v.path]
        before = [v.numpy() if hasattr(v, "numpy") else v for v in seeds]
        step = restore(self)
        for variable, value in zip(seeds, before, strict=True):
            variable.assign(value)
        return step

    Checkpoint.restore = forgetful


CONTROLS = {
    "a save in place": (save_in_place, [(("write", number), ("step", 30.0)) for number in (150, 60, 30)]),
    "a resume without the random state": (forget_random_state, [(("replace", 12), ("step", 30.0)) for _ in range(3)]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=600, help="of the run; three an epoch, a checkpoint each epoch")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only-writes", action="store_true", help="every kill comes before a file operation")
    parser.add_argument("--out", type=Path, help="folder for the counts")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))
        os.environ.setdefault("JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        import keras

        from keras_preact.training.provenance import versions

        with contextlib.suppress(ImportError):
            import tensorflow.summary  # noqa: F401  (on JAX too: TensorBoard's files are its)

        log = stack.enter_context(open(folder / "log.txt", "ab"))
        shared = Shared()
        reference = undisturbed(folder, options.steps, shared, log)
        found = {
            "backend": keras.backend.backend(),
            "versions": versions(),
            "seed": options.seed,
            "steps": options.steps,
            "checkpoints": len(reference.digests),
            **chain(
                folder,
                reference,
                options.kills,
                options.steps,
                options.seed,
                shared,
                log,
                only_writes=options.only_writes,
            ),
            "controls": {},
        }
        for number, (name, (change, moments)) in enumerate(CONTROLS.items()):
            (folder / f"control-{number}").mkdir()
            arguments = (len(moments), options.steps, options.seed, shared, log, change, list(moments))
            found["controls"][name] = chain(folder / f"control-{number}", reference, *arguments)
        found["minutes"] = round((time.monotonic() - began) / 60, 1)
        if found["faults"]:
            print((folder / "log.txt").read_text()[-3000:], file=sys.stderr)
    text = json.dumps(found, indent=1) + "\n"
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"kills-{found['backend']}{'-writes' if options.only_writes else ''}.json"
        (options.out / name).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
