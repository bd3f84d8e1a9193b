"""Run the comparisons in one series on one machine: interleaved, medians, as a table, a plot and JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DEPTHS = (20, 56, 110, 164, 326, 1001)


@dataclass(frozen=True)
class Subject:
    """One line of a comparison: a function of `subjects.py`, its arguments, and the precision."""

    name: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    precision: str = "float32"


@dataclass(frozen=True)
class Comparison:
    """Subjects that are measured in turn. `restarts`: each round is a new process, which gives the first step."""

    name: str
    subjects: tuple[Subject, ...]
    restarts: bool = False
    images: int = 0
    """Images a step, where the result is images a second."""


def comparisons(torch: bool) -> Iterator[Comparison]:
    """Yield all comparisons; without PyTorch those that it is no part of."""
    for depth in DEPTHS:
        size = {"depth": depth, "batch": 8}
        subjects = [
            Subject("rolled", "cifar", {**size, "rolled": True}),
            Subject("written out", "cifar", {**size, "rolled": False}),
            Subject("plain Keras", "cifar_plain", size),
        ]
        if depth == 1001:
            subjects.insert(1, Subject("rolled, remat", "cifar", {**size, "rolled": True, "remat": True}))
        if torch:
            subjects.append(_torch("PyTorch", depth, 8))
        yield Comparison(f"start {depth}", tuple(subjects), restarts=True)
    for depth, batch in ((164, 32), (1001, 8)):
        size = {"depth": depth, "batch": batch}
        for precision in ("float32", "mixed_bfloat16"):
            subjects = [
                Subject("rolled", "cifar", {**size, "rolled": True}, precision),
                Subject("written out", "cifar", {**size, "rolled": False}, precision),
                Subject("plain Keras", "cifar_plain", size, precision),
            ]
            yield Comparison(f"step {depth} {precision}", tuple(subjects), images=batch)
    for depth in (20, 110):
        size = {"depth": depth, "batch": 128}
        subjects = [Subject(f"this, {p}", "cifar", size, p) for p in ("float32", "mixed_bfloat16")]
        subjects += [Subject(f"plain Keras, {p}", "cifar_plain", size, p) for p in ("float32", "mixed_bfloat16")]
        if torch:
            subjects.append(_torch("PyTorch, compiled, bfloat16", depth, 128, compiled=True, bfloat16=True))
        yield Comparison(f"throughput {depth}", tuple(subjects), images=128)
    for inference in (False, True):
        for precision in ("float32", "mixed_bfloat16"):
            arguments = {"batch": 16, "inference": inference}
            subjects = [
                Subject("this", "imagenet", arguments, precision),
                Subject("keras.applications", "imagenet_applications", arguments, precision),
            ]
            kind = "inference" if inference else "training"
            yield Comparison(f"ImageNet-50 {kind} {precision}", tuple(subjects), images=16)
    size = {"depth": 20, "batch": 100, "steps": 40}
    subjects = [Subject("fit", "fit", size), Subject("bare step", "bare", size)]
    yield Comparison("fit 20", tuple(subjects), images=100 * 40)


def _torch(name: str, depth: int, batch: int, compiled: bool = False, bfloat16: bool = False) -> Subject:
    from keras_preact.models import cifar_units

    block, n = cifar_units(depth)
    arguments = {"block": block, "n": n, "batch": batch, "compiled": compiled, "bfloat16": bfloat16}
    return Subject(name, "cifar_torch", arguments)


# ---- measuring ----------------------------------------------------------------------------------------------------


class Worker:
    """A subject in a process of its own."""

    def __init__(self, subject: Subject) -> None:
        spec = {"subject": subject.function, "arguments": subject.arguments, "precision": subject.precision}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
        # A file, because a pipe that nobody reads would fill and stop the worker; closed by `stop`.
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **quiet},
        )
        self.start = self._answer()

    def steps(self, count: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(self.log.read()[-2000:])
        return json.loads(line)

    def stop(self) -> None:
        self.process.communicate("")
        self.log.close()


@contextmanager
def workers(subjects: Sequence[Subject]) -> Iterator[dict[str, Worker]]:
    started: dict[str, Worker] = {}
    try:
        for subject in subjects:
            started[subject.name] = Worker(subject)
        yield started
    finally:
        for worker in started.values():
            worker.stop()


def measure(comparison: Comparison, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return, by subject, every value measured: seconds of the first step or of a step, and peak memory in GiB."""
    found: dict[str, dict[str, list[float]]] = {subject.name: {} for subject in comparison.subjects}

    def note(name: str, **values: float) -> None:
        for key, value in values.items():
            found[name].setdefault(key, []).append(value)

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
                        imports_gib=worker.start["imports_gib"],
                    )
        return found
    with workers(comparison.subjects) as started:
        for worker in started.values():
            worker.steps(2)
        for _ in range(rounds):
            for name, worker in started.items():
                note(name, step=worker.steps(2)["seconds"])
    return found


# ---- showing ------------------------------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    """Return every comparison as Markdown: medians, and each subject over the first."""
    lines = ["# Benchmarks", "", _machine(results["environment"]), ""]
    for name, entry in results["comparisons"].items():
        lines += [f"## {name}", "", f"Medians of {entry['rounds']} rounds.", ""]
        keys = list(next(iter(entry["values"].values())))
        keys = [key for key in keys if key != "imports_gib"]
        images = entry["images"]
        titles = {"first_step": "first step, s", "step": "step, s", "peak_gib": "peak memory, GiB"}
        heads = [column for key in keys for column in (titles[key], "÷ first row")]
        heads += ["images/s"] if images else []
        lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        medians = {s: {k: statistics.median(v[k]) for k in keys} for s, v in entry["values"].items()}
        first = next(iter(medians.values()))
        for subject, values in medians.items():
            cells = [cell for key in keys for cell in (f"{values[key]:.3g}", f"{values[key] / first[key]:.2f}")]
            cells += [f"{images / values['step']:.3g}"] if images else []
            lines.append(f"| {subject} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _machine(environment: dict[str, Any]) -> str:
    hardware, versions = environment["hardware"], environment["versions"]
    cards = ", ".join(hardware["accelerators"]) or "no GPU"
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    commit = environment["commit"]
    changed = ", changed" if commit and commit["changed"] else ""
    return (
        f"{hardware['cores']} cores of {hardware['processor']}, {hardware['memory_gib']} GiB, {cards}. {software}. "
        f"Commit {commit['id'][:10] if commit else 'unknown'}{changed}."
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot first step and peak memory against depth."""
    from matplotlib.figure import Figure

    entries = {int(n.split()[1]): e for n, e in results["comparisons"].items() if n.startswith("start ")}
    if not entries:
        return
    figure = Figure(figsize=(9.0, 3.8), dpi=120, layout="constrained")
    for axes, (key, label) in zip(
        figure.subplots(1, 2),
        (("first_step", "first training step (s)"), ("peak_gib", "peak memory (GiB)")),
        strict=True,
    ):
        for subject in ("rolled", "written out", "plain Keras", "PyTorch"):
            points = [
                (depth, statistics.median(entry["values"][subject][key]))
                for depth, entry in entries.items()
                if subject in entry["values"]
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=subject)
        axes.set(xlabel="depth", ylabel=label, xscale="log", yscale="log")
        axes.set_xticks(list(entries), [str(depth) for depth in entries], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="values a median is taken of (default 5)")
    parser.add_argument("--only", nargs="*", default=[], help="comparisons whose name begins so, for example start")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder of the results")
    parser.add_argument("--list", action="store_true", help="name the comparisons and stop")
    arguments = parser.parse_args()
    import importlib.util

    from keras_preact.training.runs import environment

    chosen = [
        comparison
        for comparison in comparisons(torch=importlib.util.find_spec("torch") is not None)
        if not arguments.only or comparison.name.startswith(tuple(arguments.only))
    ]
    if arguments.list:
        print(*(comparison.name for comparison in chosen), sep="\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "bench.json"
    results = json.loads(file.read_text()) if file.exists() else {"environment": environment(), "comparisons": {}}
    for comparison in chosen:
        if comparison.name in results["comparisons"]:
            continue  # measured before: a series that was broken off goes on
        print(comparison.name, flush=True)
        values = measure(comparison, arguments.rounds)
        entry = {"rounds": arguments.rounds, "images": comparison.images, "values": values}
        results["comparisons"][comparison.name] = entry
        file.write_text(json.dumps(results, indent=1) + "\n")
        (arguments.out / "README.md").write_text(table(results))
    draw(results, arguments.out / "depth.png")
    print(table(results))


if __name__ == "__main__":
    main()
