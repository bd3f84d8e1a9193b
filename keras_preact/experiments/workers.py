"""Several runs of a table at once: one process each, on its own share of the processor's cores."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import psutil

from keras_preact.errors import InputError
from keras_preact.experiments.runner import Job, duration
from keras_preact.experiments.store import ENDED, identity
from keras_preact.training.callbacks import StopRequest, handles_signals
from keras_preact.training.distribute import devices
from keras_preact.training.runs import RunFolder

POLL_SECONDS = 1.0
MEMORY_PER_WORKER = 3 * 2**30
"""Bytes: what training ResNet-1001 takes, with some room."""
RESTARTS = 3
"""How often a worker that was killed is started again without having finished a run in between."""


def default_workers(missing: int) -> int:
    """Return how many runs to train at once: one a core, as far as memory allows; one where there is a GPU.

    Args:
        missing: runs that are left.

    >>> default_workers(1)
    1
    """
    if any("cpu" not in device.lower() for device in devices()):
        return 1
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
    return max(1, min(missing, cores, psutil.virtual_memory().available // MEMORY_PER_WORKER))


@dataclass(frozen=True)
class Progress:
    """How far the runs of a table are.

    Attributes:
        finished: runs that have ended.
        runs: all of them.
        running: the steps done and to do of those that are being trained, by row and seed.
        seconds_left: for all that is left, at the speed so far; `None` before a run has shown one.
    """

    finished: int
    runs: int
    running: dict[str, tuple[int, int]]
    seconds_left: float | None

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {step:,}/{steps:,}" for name, (step, steps) in self.running.items())
        left = "" if self.seconds_left is None else f"; about {duration(self.seconds_left)} left"
        return f"{self.finished} of {self.runs} runs finished" + (f"; training {shown}" if shown else "") + left


def run_in_workers(
    jobs: Sequence[Job], command: Sequence[str], workers: int, show: Callable[[Progress], Any] = lambda progress: None
) -> None:
    """Have several processes run what is missing of some jobs; return when all of it has ended.

    Each process runs `command`, which must run what no other has begun: `keras-preact reproduce … --jobs 1` does. One
    that is killed is started again, and goes on from its last checkpoint. Ctrl-C, SIGTERM and SIGHUP reach all of
    them: each saves its run, and the same command goes on from there.

    Args:
        jobs: what is to be run.
        command: program and arguments.
        workers: number of processes; each gets an equal share of the cores.
        show: is told, about every second, how far they are.

    Raises:
        InputError: a worker has stopped on bad input, or was killed again and again; the others are stopped then.
        Stopped: (a KeyboardInterrupt) a signal asked to stop; all runs are saved.
    """
    asked = StopRequest()
    with handles_signals(asked), _Crew(command, workers) as crew:
        while not asked.signal_number and not crew.all_ended():
            crew.check()
            show(_progress(jobs, workers))
            time.sleep(POLL_SECONDS)
    if asked.signal_number:
        raise Stopped(asked.signal_number)
    show(_progress(jobs, workers))


class Stopped(KeyboardInterrupt):
    """A signal asked to stop; every worker has saved its run.

    Attributes:
        signal_number: of the signal that asked.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signal_number).name}; what has begun is saved: the same command goes on from "
            "there"
        )
        self.signal_number = signal_number


class _Crew:
    """The worker processes, stopped together."""

    def __init__(self, command: Sequence[str], workers: int) -> None:
        self.command = list(command)
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        self.environment = {**os.environ, **dict.fromkeys(names, threads)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.outputs: list[IO[bytes]] = []
        self.restarts = [0] * workers

    def __enter__(self) -> _Crew:
        for _ in self.restarts:
            self.outputs.append(tempfile.TemporaryFile())
            self.processes.append(self._start(self.outputs[-1]))
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()  # until its run is saved
        for output in self.outputs:
            output.close()

    def _start(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        output.seek(0)
        output.truncate()
        # A session of its own: Ctrl-C in the terminal reaches this process, which stops the workers in order.
        return subprocess.Popen(
            self.command, env=self.environment, stdout=output, stderr=output, start_new_session=True
        )

    def all_ended(self) -> bool:
        return all(process.poll() == 0 for process in self.processes)

    def check(self) -> None:
        """Start workers again that were killed; raise InputError for those that stopped on an error."""
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
        killed = f"killed by signal {-status}, {RESTARTS + 1} times" if status < 0 else f"exit status {status}"
        return lines[-1].removeprefix("keras-preact: ").removeprefix("error: ") if lines and status > 0 else killed


def _progress(jobs: Sequence[Job], workers: int) -> Progress:
    """Read off the run folders how far the runs are."""
    records = [_record(job) for job in jobs]
    ended = [job.run is not None or record.get("status") in ENDED for job, record in zip(jobs, records, strict=True)]
    running = {
        f"{job.row.name} (seed {job.config.seed})": (int(record.get("step", 0)), job.config.recipe.steps)
        for job, record, is_over in zip(jobs, records, ended, strict=True)
        if not is_over and record.get("status") == "running"
    }
    return Progress(sum(ended), len(jobs), running, _seconds_left(jobs, records, ended, workers))


def _record(job: Job) -> dict[str, Any]:
    if job.run is not None:
        return job.run.record
    folder = RunFolder(job.path)
    with contextlib.suppress(InputError):
        return folder.record() if folder.record_path.exists() else {}
    return {}


def _seconds_left(
    jobs: Sequence[Job], records: Sequence[dict[str, Any]], ended: Sequence[bool], workers: int
) -> float | None:
    """Return the time for the steps that are left, each at the speed of its own network where that is known."""
    networks = [identity(job.config, with_seed=False) for job in jobs]
    by_network: dict[str, list[float]] = {}
    for network, record in zip(networks, records, strict=True):
        if record.get("step") and record.get("seconds"):
            by_network.setdefault(network, []).append(float(record["seconds"]) / int(record["step"]))
    if not by_network:
        return None
    usual = statistics.mean(statistics.mean(found) for found in by_network.values())
    total = 0.0
    for job, network, record, is_over in zip(jobs, networks, records, ended, strict=True):
        if not is_over:
            known = by_network.get(network)
            left = job.config.recipe.steps - int(record.get("step", 0))
            total += left * (statistics.mean(known) if known else usual)
    return total / workers
