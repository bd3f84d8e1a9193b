"""Reproducing a table: which runs are missing, running those, and never one twice."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import Diverged, InputError
from keras_preact.experiments.grid import Budget, Experiment, Row, budgets_of, place_of
from keras_preact.experiments.probe import DATASETS, PropagationProbe
from keras_preact.experiments.store import ENDED, Run, Store, folder_name, identity
from keras_preact.training.config import RunConfig
from keras_preact.training.runs import RunFolder, RunLocked
from keras_preact.training.trainer import resume, start


@dataclass(frozen=True)
class Job:
    """One run of a table.

    Attributes:
        row: what it is a run of.
        config: what is run.
        path: where it is run.
        run: the finished run, if there is one.
        is_probed: whether signal and gradient are measured while it runs.
    """

    row: Row
    config: RunConfig
    path: Path
    run: Run | None
    is_probed: bool = False

    @property
    def is_begun(self) -> bool:
        """Whether it was begun and can be resumed."""
        return self.run is None and RunFolder(self.path).exists()

    @property
    def state(self) -> str:
        """In words, how far it is: finished, begun, being trained now by another process, or missing."""
        if self.run is not None:
            return "finished"
        if RunFolder(self.path).is_taken():
            return "being trained"
        return "begun" if self.is_begun else "missing"


def plan(
    experiment: Experiment,
    budget: Budget,
    *,
    rows: list[str] | None = None,
    seeds: int = 1,
    out: Path,
    results: Sequence[Path] = (),
    precision: str = "float32",
    data_dir: str | None = None,
) -> list[Job]:
    """Return the runs of a table, finished or not, each once, seed by seed.

    Args:
        experiment: the table.
        budget: what it may cost.
        rows: names of rows; default all that are part of the budget.
        seeds: runs a row, with seeds 0, 1, …
        out: folder of the runs.
        results: further folders with finished runs.
        precision: of the runs that are missing.
        data_dir: where the data are.

    Raises:
        InputError: no such row, one that is not part of the budget, a number of seeds below 1, or a run of another
            configuration in a run's place.

    Example:

    >>> from keras_preact.experiments import BUDGETS, EXPERIMENTS
    >>> jobs = plan(EXPERIMENTS["table2"], BUDGETS["paper"], rows=["original-110"], seeds=2, out=Path("no-such-folder"))
    >>> [(job.row.name, job.config.seed, job.state) for job in jobs]
    [('original-110', 0, 'missing'), ('original-110', 1, 'missing')]
    """
    if seeds < 1:
        raise InputError(f"the number of seeds is {seeds}; give at least 1")
    store = Store([out, *results])
    chosen = experiment.select(rows) if rows else tuple(row for row in experiment.rows if budget.holds(row))
    if not chosen:
        budget.check_profile(experiment.rows[0])
        remedy = budgets_of(experiment.rows[0])
        raise InputError(f"no row of {experiment.name} is part of the budget {budget.name}; {remedy}")
    jobs: dict[str, Job] = {}
    for seed in range(seeds):
        for row in chosen:
            config = budget.config(row, seed, precision, data_dir)
            is_probed = budget.probes and config.dataset in DATASETS
            job = Job(row, config, out / folder_name(config), store.find(config), is_probed)
            if job.is_begun:
                job = _as_begun(job)
            jobs.setdefault(identity(config), job)
    return list(jobs.values())


def _as_begun(job: Job) -> Job:
    """Return the job with the configuration it was begun with, which may differ in precision and data folder."""
    begun = RunConfig.from_dict(RunFolder.open(job.path).training()["config"])
    if identity(begun) != identity(job.config):
        raise InputError(f"{job.path} holds another run than {job.row.name}'s; name another folder by --out")
    return dataclasses.replace(job, config=begun)


Callbacks = Callable[[str, RunConfig], Sequence[keras.callbacks.Callback]]


def run_missing(
    jobs: Sequence[Job],
    data_dir: str | None = None,
    callbacks: Callbacks = lambda name, config: (),
    say: Callable[[str], Any] = lambda text: None,
) -> None:
    """Run what is not finished, resuming what was begun. A training that diverges is a result, and the next one begins.

    Several processes may be given the same jobs: each runs what no other has begun.

    Args:
        jobs: of `plan`.
        data_dir: where the data are, if they have moved since a run was begun.
        callbacks: makes the Keras callbacks of each run.
        say: is told, before each run, which it is and how long the rest will take.

    Raises:
        InputError: the data are missing.
        Interrupted: a signal asked to stop; the same call goes on from there.
    """
    missing = [job for job in jobs if job.run is None]
    ended = [job.run.record for job in jobs if job.run is not None]
    seconds = [float(record["seconds"]) for record in ended if "diverged" not in record]  # which was over too soon
    for number, job in enumerate(missing):
        if _has_ended(job):
            continue
        left = f", about {duration(statistics.mean(seconds) * (len(missing) - number))} left" if seconds else ""
        say(f"[{number + 1}/{len(missing)}] {job.row.title}, seed {job.config.seed}{left}")
        began = time.perf_counter()
        name = f"{job.row.name}, seed {job.config.seed}"
        watching = [*callbacks(name, job.config), *([PropagationProbe(job.config, job.path)] * job.is_probed)]
        try:
            if job.is_begun:
                resume(job.path, data_dir=place_of(job.config.dataset, data_dir), callbacks=watching)
            else:
                start(job.config, job.path, callbacks=watching)
        except Diverged as fault:
            say(f"{name}: {fault}")
        except RunLocked:
            say(f"{name}: left to another process, which is training it in {job.path}")
        except InputError:
            if not _has_ended(job):  # by another process, since this one looked
                raise
        else:
            seconds.append(time.perf_counter() - began)
        keras.backend.clear_session()
        gc.collect()


def _has_ended(job: Job) -> bool:
    """Return whether another process has finished a run since it was planned."""
    return job.is_begun and RunFolder(job.path).record().get("status") in ENDED


def duration(seconds: float) -> str:
    """Return a length of time in words.

    >>> duration(50), duration(600), duration(9000)
    ('1 min', '10 min', '2 h 30 min')
    """
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
