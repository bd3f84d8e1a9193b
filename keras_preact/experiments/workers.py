"""Train several runs of a table at once: one process per run, each with an equal share of the cores."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from keras_preact.errors import InputError, Stopped
from keras_preact.experiments.runner import Job, duration, seconds_left
from keras_preact.training.callbacks import StopRequest, handles_signals
from keras_preact.training.distribute import devices
from keras_preact.training.runs import ENDED
from keras_preact.training.threads import usable_cores

POLL_SECONDS = 1.0
MEMORY_PER_WORKER = 3 * 2**30
"""Bytes; enough to train ResNet-1001."""
RESTARTS = 3
"""How often a killed worker is started again."""


def default_workers(missing: int) -> int:
    """Return how many runs to train at once: one per core, as far as memory allows; one if there is a GPU.

    Args:
        missing: number of unfinished runs.

    >>> default_workers(1)
    1
    """
    if any("cpu" not in device.lower() for device in devices()):
        return 1
    return max(1, min(missing, usable_cores(), psutil.virtual_memory().available // MEMORY_PER_WORKER))


@dataclass(frozen=True)
class Progress:
    """Progress of the runs of a table.

    Attributes:
        finished: number of finished runs.
        runs: number of all runs.
        running: the current runs, each with its row and seed, and its completed and total steps.
        seconds_left: estimated time for the rest; `None` until a speed is known, 0 at the end.
    """

    finished: int
    runs: int
    running: Sequence[tuple[str, int, int]]
    seconds_left: float | None

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {step:,}/{steps:,}" for name, step, steps in self.running)
        left = f"; about {duration(self.seconds_left)} left" if self.seconds_left else ""
        return f"{self.finished} of {self.runs} runs finished" + (f"; training {shown}" if shown else "") + left


def run_in_workers(
    jobs: Sequence[Job], command: Sequence[str], workers: int, show: Callable[[Progress], Any] = lambda progress: None
) -> None:
    """Train the unfinished jobs in several worker processes; return when all have ended.

    Each process runs `command`, which must skip runs that another process has taken, as
    `keras-preact reproduce … --jobs 1` does. A worker that is killed is started again and resumes from its last
    checkpoint. Ctrl-C, SIGTERM and SIGHUP stop all workers: each saves its run, and the same command resumes.

    Args:
        jobs: the runs.
        command: program and arguments of a worker.
        workers: number of processes; each has an equal share of the cores.
        show: called about once a second with the progress.

    Raises:
        InputError: a worker stopped on an error or was killed too often; the others are stopped too.
        Stopped: (a KeyboardInterrupt) stopped by a signal; all runs are saved.
    """
    request = StopRequest()
    with handles_signals(request), _WorkerPool(command, workers) as pool:
        while not request.signal_number and not pool.all_ended():
            pool.check()
            show(_progress(jobs, workers))
            time.sleep(POLL_SECONDS)
    if request.signal_number:
        raise Stopped(request.signal_number, "; the runs are saved; the same command resumes them")
    show(_progress(jobs, workers))


# Ctrl-C must reach only this process, which then stops the workers: each worker has a session of its own, or on Windows
# a process group. There SIGTERM would end a worker at once, so it gets Ctrl-Break instead.
if sys.platform == "win32":
    _APART = subprocess.CREATE_NEW_PROCESS_GROUP
    _STOP: int = signal.CTRL_BREAK_EVENT
else:
    _APART = 0
    _STOP = signal.SIGTERM


def _yield_like_this_process(pid: int) -> None:
    """Give a process in a session of its own the priority that the user chose with `nice`.

    Linux divides the processor among sessions first (autogroups), so `nice` alone has no effect beyond a session.
    """
    if sys.platform == "linux" and (priority := os.nice(0)):
        with contextlib.suppress(OSError):  # a kernel without autogroups
            Path(f"/proc/{pid}/autogroup").write_text(str(priority))


class _WorkerPool:
    """The worker processes, stopped together."""

    def __init__(self, command: Sequence[str], workers: int) -> None:
        self.command = list(command)
        threads = str(max(1, usable_cores() // workers))
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "PJRT_NPROC")
        self.environment = {**dict.fromkeys(names, threads), **os.environ}  # what the user has set comes first
        self.processes: list[subprocess.Popen[bytes]] = []
        self.outputs: list[IO[bytes]] = []
        self.restarts = [0] * workers

    def __enter__(self) -> _WorkerPool:
        try:
            for _ in self.restarts:
                self.outputs.append(tempfile.TemporaryFile())
                self.processes.append(self._start(self.outputs[-1]))
        except BaseException:  # `with` calls `__exit__` only after this method has returned
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(_STOP)
        for process in self.processes:
            process.wait()  # it saves its run
        for output in self.outputs:
            output.close()

    def _start(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        output.seek(0)
        output.truncate()
        process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            creationflags=_APART,
        )
        _yield_like_this_process(process.pid)
        return process

    def all_ended(self) -> bool:
        return all(process.poll() == 0 for process in self.processes)

    def check(self) -> None:
        """Restart killed workers; raise InputError if a worker stopped on an error."""
        for number, process in enumerate(self.processes):
            status = process.poll()
            if status is None or status == 0:
                continue
            if status > 0 or self.restarts[number] == RESTARTS:
                raise InputError(f"a worker stopped: {self._last_line(number)}")
            self.restarts[number] += 1
            self.processes[number] = self._start(self.outputs[number])

    def _last_line(self, number: int) -> str:
        status, output = self.processes[number].returncode, self.outputs[number]
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        killed = f"exit status {status}"
        if status < 0:
            killed = f"killed by signal {-status}, {RESTARTS + 1} times; if memory is short, lower --jobs"
        said = lines[-1].removeprefix("keras-preact: ").removeprefix("error: ") if lines and status > 0 else killed
        return said.replace("see --debug", "to see the traceback, add --jobs 1 --debug")


def _progress(jobs: Sequence[Job], workers: int) -> Progress:
    """Read the progress from the run folders."""
    records = [job.record() for job in jobs]
    running = [
        (f"{job.row.name} (seed {job.config.seed})", int(record.get("step", 0)), job.config.recipe.steps)
        for job, record in zip(jobs, records, strict=True)
        if record.get("status") == "running"
    ]
    finished = sum(record.get("status") in ENDED for record in records)
    return Progress(finished, len(jobs), running, seconds_left(jobs, workers))
