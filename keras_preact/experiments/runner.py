"""Plan the runs of a table and train the missing ones, each once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preact.errors import Diverged, InputError, check_positive
from keras_preact.experiments.grid import Budget, Experiment, Row, budgets_of, data_dir_of
from keras_preact.experiments.probe import DATASETS, PropagationProbe
from keras_preact.experiments.store import Run, Store, folder_name, run_key
from keras_preact.training.comparison import Callbacks
from keras_preact.training.config import RunConfig
from keras_preact.training.runs import ENDED, RunFolder, RunLocked
from keras_preact.training.schedules import StepSchedule
from keras_preact.training.trainer import resume, start


@dataclass(frozen=True)
class Job:
    """One run of a table.

    Attributes:
        row: row of the table.
        config: configuration of the run.
        path: run folder.
        run: the run, if it has ended.
        is_probed: whether signal and gradient are measured during training.
    """

    row: Row
    config: RunConfig
    path: Path
    run: Run | None
    is_probed: bool = False

    @property
    def is_started(self) -> bool:
        """Whether the run was started and can be resumed."""
        return self.run is None and RunFolder(self.path).exists()

    @property
    def is_stored(self) -> bool:
        """Whether the run ended earlier and is in a folder of results, perhaps from another machine."""
        return self.run is not None and self.run.folder.path != self.path

    @property
    def state(self) -> str:
        """`"finished"`, `"diverged"`, `"being trained"` (by another process), `"started"` or `"missing"`."""
        if self.run is not None:
            return str(self.run.record["status"])
        if RunFolder(self.path).is_locked():
            return "being trained"
        return "started" if self.is_started else "missing"

    @functools.cached_property
    def timing(self) -> tuple[str, str]:
        """A key that is equal for runs of equal duration: everything except the seed and the learning rates."""
        recipe = dataclasses.replace(self.config.recipe, schedule=StepSchedule())
        return run_key(dataclasses.replace(self.config, recipe=recipe), with_seed=False), self.config.precision

    def record(self) -> dict[str, Any]:
        """Return the record of the run; empty if it was not started or cannot be read."""
        if self.run is not None:
            return self.run.record
        folder = RunFolder(self.path)
        with contextlib.suppress(InputError):
            return folder.record() if folder.record_path.exists() else {}
        return {}


def plan(
    experiment: Experiment,
    budget: Budget,
    *,
    rows: list[str] | None = None,
    seeds: int = 1,
    out: str | Path,
    results: Sequence[Path] = (),
    precision: str = "float32",
    data_dir: str | None = None,
) -> list[Job]:
    """Return the runs of a table, finished or not, each once, ordered by seed.

    Args:
        experiment: the table.
        budget: networks, data and recipes to use.
        rows: names of rows. Default: all rows in the budget.
        seeds: runs per row, with seeds 0, 1, …
        out: folder for new runs.
        results: further folders with finished runs.
        precision: precision of the missing runs. Default `"float32"`.
        data_dir: folder of the data.

    Raises:
        InputError: a row is unknown or not in the budget, `seeds` is below 1, or a run folder has a run of another
            configuration.

    Example:

    >>> from keras_preact.experiments import BUDGETS, EXPERIMENTS
    >>> jobs = plan(EXPERIMENTS["table2"], BUDGETS["paper"], rows=["original-110"], seeds=2, out=Path("no-such-folder"))
    >>> [(job.row.name, job.config.seed, job.state) for job in jobs]
    [('original-110', 0, 'missing'), ('original-110', 1, 'missing')]
    """
    check_positive("the number of seeds", seeds)
    out = Path(out)
    store = Store([out, *results])
    chosen = experiment.select(rows) if rows else tuple(row for row in experiment.rows if budget.holds(row))
    if not chosen:
        budget.check_profile(experiment.rows[0])
        remedy = budgets_of(experiment.rows[0], budget.profile)
        raise InputError(f"no row of {experiment.name} is part of the budget {budget.name}; {remedy}")
    jobs: dict[str, Job] = {}
    for seed in range(seeds):
        for row in chosen:
            config = budget.config(row, seed, precision, data_dir)
            is_probed = budget.probes and config.dataset in DATASETS
            job = Job(row, config, out / folder_name(config), store.find(config), is_probed)
            if job.is_started:
                job = _as_started(job)
            jobs.setdefault(run_key(config), job)
    return list(jobs.values())


def _as_started(job: Job) -> Job:
    """Return the job with the configuration it was started with, which may differ in precision and data folder."""
    started = RunConfig.from_dict(RunFolder.open(job.path).training()["config"])
    if run_key(started) != run_key(job.config):
        raise InputError(f"{job.path} contains a run other than {job.row.name}; choose another out folder (--out)")
    return dataclasses.replace(job, config=started)


def run_missing(
    jobs: Sequence[Job],
    data_dir: str | None = None,
    callbacks: Callbacks = lambda name, config: (),
    say: Callable[[str], Any] = lambda text: None,
) -> None:
    """Train the unfinished runs, resuming those that were started. A run that diverges is a result too.

    Several processes may train the same jobs: each skips the runs that another has taken.

    Args:
        jobs: result of `plan`.
        data_dir: folder of the data, if they have moved since a run was started.
        callbacks: function of a run's name and configuration that returns its Keras callbacks.
        say: called before each run with a line that names it and estimates the time left.

    Raises:
        InputError: the data are missing.
        Interrupted: stopped by a signal; the same call resumes.
    """
    missing = [job for job in jobs if job.run is None]
    for number, job in enumerate(missing):
        if _has_ended(job):
            continue
        seconds = seconds_left(jobs)
        left = "" if seconds is None else f", about {duration(seconds)} left"
        say(f"[{number + 1}/{len(missing)}] {job.row.title}, seed {job.config.seed}{left}")
        name = f"{job.row.name}, seed {job.config.seed}"
        watching = [*callbacks(name, job.config), *([PropagationProbe(job.config)] * job.is_probed)]
        try:
            if job.is_started:
                resume(job.path, data_dir=data_dir_of(job.config.dataset, data_dir), callbacks=watching)
            else:
                start(job.config, job.path, callbacks=watching)
        except Diverged as fault:
            say(f"{name}: {fault}")
        except RunLocked:
            say(f"{name}: skipped, another process is training it in {job.path}")
        except InputError:
            if not _has_ended(job):  # another process may have finished it in the meantime
                raise
        gc.collect()


def _has_ended(job: Job) -> bool:
    """Return whether another process has finished the run since it was planned."""
    return job.record().get("status") in ENDED


def seconds_left(jobs: Sequence[Job], workers: int = 1) -> float | None:
    """Return the time for the remaining steps, at the speed of the same network or, if unknown, of all runs together.

    Stored runs may be from another machine. Once a run in the folder for new runs has a speed, stored runs only say how
    the networks compare.

    Args:
        jobs: the runs, finished or not.
        workers: how many runs are trained at once.
    """
    records = [job.record() for job in jobs]
    timed = [(job, record) for job, record in zip(jobs, records, strict=True) if _steps_done(record)]
    stored, of_stored = _step_seconds([pair for pair in timed if pair[0].is_stored])
    here, of_here = _step_seconds([pair for pair in timed if not pair[0].is_stored])
    if not stored and not here:
        return None
    if here:
        both = stored.keys() & here.keys()
        factor = sum(here[key] for key in both) / sum(stored[key] for key in both) if both else None
        stored = {} if factor is None else {key: factor * seconds for key, seconds in stored.items()}
    known = {**stored, **here}
    left = [
        (job.config.recipe.steps - int(record.get("step", 0))) * known.get(job.timing, of_here or of_stored)
        for job, record in zip(jobs, records, strict=True)
        if record.get("status") not in ENDED
    ]
    return max([sum(left) / workers, *left])  # several workers do not share a run


def _step_seconds(timed: Sequence[tuple[Job, Mapping[str, Any]]]) -> tuple[dict[tuple[str, str], float], float]:
    """Return the seconds per step of each network, and of all runs together."""
    # Sums, not means of ratios: short parts of runs count little.
    seconds, steps = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], int](int)
    for job, record in timed:
        if found := _seconds(job, record):
            seconds[job.timing] += found
            steps[job.timing] += _steps_done(record)
    return {key: seconds[key] / steps[key] for key in steps}, sum(seconds.values()) / max(1, sum(steps.values()))


def _seconds(job: Job, record: Mapping[str, Any]) -> float:
    """Return the seconds that a run's steps took, estimated from the median epoch if there are three epochs.

    The recorded seconds include the time in which the process was suspended or the machine was busy.
    """
    recorded = float(record.get("seconds", 0))
    if job.run is not None or job.config.recipe.scales_images:  # epochs of scaled images differ in speed
        return recorded
    rows: list[dict[str, float]] = []
    with contextlib.suppress(InputError):
        rows = RunFolder(job.path).metrics()
    ends = [(0.0, 0.0), *((row["step"], row["seconds"]) for row in rows)]
    per_step = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in itertools.pairwise(ends)]
    return _steps_done(record) * statistics.median(per_step) if len(per_step) > 2 else recorded


def _steps_done(record: Mapping[str, Any]) -> int:
    """Return the steps of the recorded seconds: a diverged run went on after its last checkpoint."""
    return int(record.get("diverged", record).get("step", 0))


def duration(seconds: float) -> str:
    """Return a duration as text.

    >>> duration(50), duration(600), duration(9000)
    ('1 min', '10 min', '2 h 30 min')
    """
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
