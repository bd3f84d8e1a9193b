"""Run the comparisons as one series on this machine, interleaved. Write medians as tables, a plot and JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.comparisons import RUNTIME_PACKAGES, Comparison, Subject, comparisons
from benchmarks.report import draw, read_series, report
from benchmarks.worker import Worker
from keras_preact.files import write_atomically

ROOT = Path(__file__).parents[1]
TURN_SECONDS, TURN_STEPS = 2.0, 5
"""Duration and minimum number of steps of a subject's turn. The first steps of a turn have cold caches."""
LONG_SECONDS = 5.0
"""A longer step, such as a call of `fit`, is a turn of its own."""


@contextmanager
def workers(subjects: Sequence[Subject]) -> Iterator[dict[str, Worker]]:
    started: dict[str, Worker] = {}
    try:
        for subject in subjects:
            started[subject.name] = Worker(
                subject.function, subject.arguments, subject.precision, subject.backend, subject.threads
            )
        yield started
    finally:
        for worker in started.values():
            worker.stop()


def measure(comparison: Comparison, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the measured values by subject: seconds of the first step and of a step, and peak memory in GiB."""
    measured: dict[str, dict[str, list[float]]] = {subject.name: {} for subject in comparison.subjects}

    def note(name: str, **values: float) -> None:
        for key, value in values.items():
            measured[name].setdefault(key, []).append(value)

    if comparison.restarts:
        for _ in range(rounds):
            for subject in comparison.subjects:
                with workers([subject]) as started:
                    worker = started[subject.name]
                    after = worker.steps(2)
                    note(
                        subject.name,
                        first_step=worker.start["first_step"],
                        step=after["seconds"],
                        peak_gib=after["peak_gib"],
                    )
        return measured
    with workers(comparison.subjects) as started:
        turns = {name: _steps_per_turn(worker) for name, worker in started.items()}
        for _ in range(rounds):
            for name, worker in started.items():
                note(name, step=worker.steps(turns[name])["seconds"])
        for name, worker in started.items():
            if "flops" in worker.start:
                note(name, flops=worker.start["flops"])
    return measured


def _steps_per_turn(worker: Worker) -> int:
    worker.steps(1)
    seconds = worker.steps(1)["seconds"]
    if seconds > LONG_SECONDS:
        return 1
    return max(TURN_STEPS, round(TURN_SECONDS / seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds per comparison; results are medians (default: 3)")
    parser.add_argument("--full", action="store_true", help="also run the slow comparisons")
    parser.add_argument(
        "--only", nargs="*", default=[], help="run all comparisons whose names have these prefixes, for example start"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder for the results (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the comparisons and exit")
    arguments = parser.parse_args()
    from keras_preact.training import default_precision
    from keras_preact.training.provenance import environment

    torch, hub, jax, *runtimes = (
        importlib.util.find_spec(name) is not None for name in ("torch", "keras_hub", "jax", *RUNTIME_PACKAGES)
    )
    available = comparisons(default_precision(), torch, hub, jax, all(runtimes))
    if arguments.only:
        chosen = [c for c in available if c.name.startswith(tuple(arguments.only))]
    else:
        chosen = [c for c in available if c.is_short or arguments.full]
    if not chosen:
        parser.error(
            f"no comparison that can run here is called {' or '.join(arguments.only)}…; see --list --full, or install "
            "what the others need: pip install --editable '.[bench,export]'"
        )
    if arguments.list:
        print(*(comparison.name for comparison in chosen), sep="\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "bench.json"
    here = environment()
    results = read_series(file, parser, here, "comparisons")
    for comparison in chosen:
        if comparison.name in results["comparisons"]:
            print(
                f"{comparison.name}: measured already, in {file}; to measure it again, choose another --out", flush=True
            )
            continue
        print(comparison.name, flush=True)
        rounds = min(arguments.rounds, comparison.rounds or arguments.rounds)
        began = time.perf_counter()
        values = measure(comparison, rounds)
        entry = {"commit": here["commit"], "rounds": rounds, "images": comparison.images, "values": values}
        entry["seconds"] = round(time.perf_counter() - began)
        entry |= {"unit": comparison.unit, "also": {name: version(name) for name in comparison.also}}
        results["comparisons"][comparison.name] = entry
        write_atomically(file, json.dumps(results, indent=1) + "\n")
        write_atomically(arguments.out / "README.md", report(results))
    draw(results, arguments.out / "depth.png")
    print(report(results))


if __name__ == "__main__":
    main()
