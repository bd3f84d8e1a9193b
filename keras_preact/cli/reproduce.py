"""`keras-preact reproduce`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from keras_preact import paper
from keras_preact.cli.display import progress
from keras_preact.cli.options import option, parser
from keras_preact.console import Status, say, show, table
from keras_preact.data import prepare_dataset
from keras_preact.errors import InputError, check_choice, check_positive
from keras_preact.experiments import (
    BUDGETS,
    COLUMNS,
    EXPERIMENTS,
    Store,
    cells,
    costs,
    default_workers,
    duration,
    lines,
    plan,
    record_initial_gradients,
    run_in_workers,
    run_missing,
    without_empty_columns,
)
from keras_preact.experiments.grid import data_dir_of
from keras_preact.experiments.store import run_key
from keras_preact.training import PRECISIONS, choose_threads, default_precision, next_free_folder


def run(options: argparse.Namespace) -> None:
    if options.table == "initialization":
        _refuse_for_initialization(options)
        _initialization(options)
        return
    name = check_choice("table", options.table, [*EXPERIMENTS, "initialization", "all"])
    budget = BUDGETS[check_choice("budget", options.budget, BUDGETS)].of(options.profile)
    if options.precision is not None:
        check_choice("precision", options.precision, PRECISIONS)
    if name == "all" and options.rows:
        raise InputError("each table has its own rows; name one table, or leave out --rows")
    experiments = (
        [e for e in EXPERIMENTS.values() if any(map(budget.holds, e.rows))] if name == "all" else [EXPERIMENTS[name]]
    )
    if not experiments:
        raise InputError(
            f"the budget {budget.name} has no networks of the profile {budget.profile}; choose another budget "
            "(--budget) or profile (--profile)"
        )
    if not options.results.is_dir():
        say(f"There is no folder {options.results}, so no stored runs are reused; pass the right one with --results.")
    jobs = _jobs(options, experiments, budget)
    if options.list or options.cost:
        store = Store([options.out, options.results])
        judged = experiments if options.cost and budget.judges else []
        every = [(each.name, line) for each in judged for line in lines(each, budget, store)]
        _list(options, jobs, {(name, line.row.name): line.seeds_needed for name, line in every})
        return
    _run(options, [job for _, job in jobs])
    store = Store([options.out, options.results])
    for experiment in experiments:
        found = lines(experiment, budget, store, experiment.select(options.rows))
        # To fit 80 columns: names instead of titles; no networks, published differences and losses.
        shown = [COLUMNS.index(head) for head in ("published", "ours", "n", "our difference [95 %]", "verdict")]
        texts = [(line.row.name, cells(line, budget)) for line in found]
        rows = [[name, *(text[k] for k in shown)] for name, text in texts]
        heads = ["row", "published", "ours", "n", "difference [95 %]", "verdict"]
        show(table(*without_empty_columns(heads, rows), title=experiment.title))
        replaced = {
            f" {line.network} replaces {_network_name(line.row.network)}."
            for line in found
            if not line.is_the_papers_network
        }
        note = f"Test errors in %. {budget.what} Profile {budget.profile}."
        say(note + "".join(sorted(replaced)))


def _network_name(key: str) -> str:
    number = key.rpartition("-")[2] if key.startswith("transformer") else key.removeprefix("depth-")
    return f"the Transformer of {number} blocks" if key.startswith("transformer") else f"ResNet-{number}"


def _run(options: argparse.Namespace, jobs: Sequence[Any]) -> None:
    """Run what is missing: one run after the other in this process, or in several worker processes."""
    missing = [job for job in jobs if job.run is None]
    if missing:
        choose_threads(missing[0].config)
    workers = default_workers(len(missing)) if options.jobs is None else check_positive("--jobs", options.jobs)
    if (workers := min(workers, len(missing))) > 1:
        for name in dict.fromkeys(job.config.dataset for job in missing):
            prepare_dataset(name, data_dir_of(name, options.data_dir))  # or each worker would download it
        arguments = [word for word in options.arguments if word != "--debug"]
        end = arguments.index("--") if "--" in arguments else len(arguments)  # after it there are no options
        arguments[end:end] = ["--jobs", "1"]
        with Status() as status:
            run_in_workers(jobs, [sys.executable, "-m", "keras_preact", *arguments], workers, status.show)
    run_missing(jobs, options.data_dir, progress, say)  # after workers usually nothing


def _jobs(options: argparse.Namespace, experiments: Sequence[Any], budget: Any) -> list[tuple[str, Any]]:
    """Return the runs of the tables, each once, with the name of the first table that has it."""
    found: dict[str, tuple[str, Any]] = {}
    for experiment in experiments:
        planned = plan(
            experiment,
            budget,
            rows=options.rows,
            seeds=options.seeds,
            out=options.out,
            results=[options.results],
            precision=options.precision or default_precision(),
            data_dir=options.data_dir,
        )
        for job in planned:
            found.setdefault(run_key(job.config), (experiment.name, job))
    return list(found.values())


def _list(options: argparse.Namespace, jobs: Sequence[tuple[str, Any]], seeds: dict[tuple[str, str], str]) -> None:
    """Print the state of each run; with `--cost` also the time of unfinished ones and the seeds needed."""
    rows = [[name, job.row.name, str(job.config.seed), job.state] for name, job in jobs]
    heads = ["table", "row", "seed", ""]
    missing = [job for _, job in jobs if job.run is None]
    if options.cost:
        if missing:
            choose_threads(missing[0].config)  # as `_run` does
        seconds = costs([job for _, job in jobs], say)
        rows = [[*row, "" if cost is None else duration(cost)] for row, cost in zip(rows, seconds, strict=True)]
        heads.append("time here")
        if any(seeds.values()):
            rows = [[*row, seeds.get((row[0], row[1]), "")] for row in rows]
            heads.append("seeds needed")
    show(table(heads, rows))
    say(f"{len(missing)} of {len(jobs)} runs are not finished.")
    if options.cost and missing:
        total = sum(cost for cost in seconds if cost is not None)
        say(f"Training them from scratch, one after another, takes about {duration(total)} on this machine.")
    if options.cost and any(seeds.values()):
        power = "Seeds needed: runs per row to detect the published difference with 80 % power"
        say(f"{power}, if runs differ as the stored ones do.")


def _refuse_for_initialization(options: argparse.Namespace) -> None:
    defaults = parser().parse_args(["reproduce", "initialization"])
    for key in ("budget", "profile", "rows", "seeds", "precision", "data_dir", "list", "cost", "results", "jobs"):
        if getattr(options, key) != getattr(defaults, key):
            raise InputError(f"initialization trains nothing; leave out {option(key)}")


def _initialization(options: argparse.Namespace) -> None:
    """Measure and print gradient norms of untrained Transformers."""
    out = next_free_folder(options.out, "initialization")
    found = record_initial_gradients(out, say)
    rows = [
        [
            f"{entry.order.replace('_', '-')}, {depth} blocks",
            f"{min(norms):.3g} to {max(norms):.3g}",
            f"{entry.exponent:.2f} ± {entry.standard_error:.2f}",
            f"{paper.INITIAL_GRADIENT_EXPONENTS[entry.order]:g}",
        ]
        for entry in found
        for depth, norms in entry.norms.items()
    ]
    show(table(["untrained", "gradient norm", "exponent of depth", "bound"], rows))
    say(f"The measurements are in {out}.")
