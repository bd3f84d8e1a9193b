"""The measurements as tables, claims and a plot."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparisons import DEPTHS, MATRIX
from keras_preact.experiments.report import markdown_table

TITLES = {"first_step": "first step, s", "step": "step, s", "peak_gib": "peak memory, GiB"}


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, and the smallest and largest ratio of a round."""

    value: float
    low: float
    high: float

    @property
    def range(self) -> str:
        """The range of the rounds as text; empty with one round."""
        return f"{self.low:.2f} to {self.high:.2f}" if self.low < self.high else ""


@dataclass(frozen=True)
class Claim:
    """A ratio of two medians, and the bound that we aim for.

    Attributes:
        text: description of the ratio.
        comparison: name of the comparison.
        over, under: numerator and denominator, as names of subjects. If there are several, separated by " | ", the best
            (smallest) counts.
        key: the measured quantity: `first_step`, `step` or `peak_gib`.
        at_least, at_most: the bound.
        under_comparison: the comparison of `under`, if it is another one.
    """

    text: str
    comparison: str
    over: str
    under: str
    key: str = "step"
    at_least: float = 0.0
    at_most: float = float("inf")
    under_comparison: str | None = None

    def ratio(self, results: dict[str, Any]) -> Ratio | None:
        """Return the ratio, or `None` if one of the two was not measured."""
        over = self._best(results, self.comparison, self.over)
        under = self._best(results, self.under_comparison or self.comparison, self.under)
        if over is None or under is None:
            return None
        rounds = [a / b for a, b in zip(over, under, strict=False)]
        return Ratio(statistics.median(over) / statistics.median(under), min(rounds), max(rounds))

    def verdict(self, ratio: Ratio) -> str:
        """Return whether the ratio satisfies the bound in all rounds ("holds") or in none; "undecided" otherwise."""
        inside = {self.at_least <= value <= self.at_most for value in (ratio.low, ratio.high)}
        return "undecided" if len(inside) > 1 else "holds" if inside == {True} else "does not hold"

    @property
    def bound(self) -> str:
        """The bound as text."""
        return f"≥ {self.at_least:g}" if self.at_least else f"≤ {self.at_most:g}"

    def _best(self, results: dict[str, Any], comparison: str, subjects: str) -> list[float] | None:
        """Return the values of the subject with the smallest median, round by round."""
        values = results["comparisons"].get(comparison, {"values": {}})["values"]
        rows = [values[s][self.key] for s in subjects.split(" | ") if s in values]
        return min(rows, key=statistics.median, default=None)


class Share(Claim):
    """A ratio of two rates in floating-point operations per second."""

    def _best(self, results: dict[str, Any], comparison: str, subjects: str) -> list[float] | None:
        values = results["comparisons"].get(comparison, {"values": {}})["values"]
        chosen = [values[s] for s in subjects.split(" | ") if s in values and "flops" in values[s]]
        rates = [[value["flops"][0] / seconds for seconds in value["step"]] for value in chosen]
        return max(rates, key=statistics.median, default=None)


def _claims() -> Iterator[Claim]:
    start, ours, bfloat16 = "start 1001", "default, mixed_bfloat16", "mixed_bfloat16"
    plain = "plain Keras, float32 | plain Keras, mixed_bfloat16"
    first, memory = {"key": "first_step"}, {"key": "peak_gib"}
    yield Claim(
        "time to the first step, ResNet-1001: plain Keras ÷ default",
        start,
        "plain Keras",
        "default",
        **first,
        at_least=25,
    )
    for depth, bar in ((20, 1.3), (1001, 1.5)):
        text = f"first step, {depth}: default ÷ PyTorch"
        yield Claim(text, f"start {depth}", "default", "PyTorch", **first, at_most=bar)
    shallow = {"under_comparison": "start 164"}
    yield Claim("first step, rolled: 1001 ÷ 164", start, "rolled", "rolled", **first, at_most=1.4, **shallow)
    for precision, deep in (("float32", "step 1001"), (bfloat16, "step 1001 mixed_bfloat16")):
        for comparison in ("step 56", "step 164", deep):
            text = f"step, {comparison.split()[1]}, {precision}: rolled ÷ unrolled"
            yield Claim(text, comparison, f"rolled, {precision}", f"unrolled, {precision}", at_most=1.05)
    yield Claim(
        "peak memory, ResNet-1001: default ÷ plain Keras", start, "default", "plain Keras", **memory, at_most=0.33
    )
    text = "memory, 1001, batch 64: remat ÷ without"
    yield Claim(text, "memory 1001", "rolled, remat", "rolled", **memory, at_most=0.6)
    text = "step, 1001, batch 8: plain Keras (float32) ÷ default"
    yield Claim(text, "step 1001", "plain Keras, float32", f"rolled, {bfloat16}", at_least=1.4)
    yield Claim("step, 164, batch 32: plain Keras ÷ default", "step 164", plain, f"rolled, {bfloat16}", at_least=2.0)
    for depth in (20, 110):
        text = f"images/s, ResNet-{depth}: default ÷ "
        yield Claim(f"{text}plain Keras", f"throughput {depth}", plain, ours, at_least=1.7)
        torch = "PyTorch, compiled, bfloat16"
        yield Claim(f"{text}{torch}", f"throughput {depth}", torch, ours, at_least=1.0)
        text = f"step, ResNet-{depth}, one thread: Keras on PyTorch, default ÷ PyTorch"
        yield Claim(text, f"on PyTorch {depth}", "default", "PyTorch", at_most=1.3)
    yield Claim("step, 110, batch 32, JAX: rolled ÷ unrolled", "on JAX 110", "rolled", "unrolled", at_most=1.05)
    bars = {("training", "float32"): 1.2, ("training", bfloat16): 1.4}
    bars |= {("inference", "float32"): 1.1, ("inference", bfloat16): 1.3}
    for (kind, precision), bar in bars.items():
        comparison, theirs = f"ImageNet-50 {kind} {precision}", "keras.applications"
        ours_is, share = ("folded", 0.9) if kind == "inference" else ("default", 0.6)
        text = f"images/s, {comparison}, equal multiply-adds: {ours_is} ÷ {theirs}"
        yield Claim(text, comparison, theirs, "default, stride in the last unit", at_least=bar)
        yield Share(f"FLOP/s, {comparison}: {ours_is} ÷ {MATRIX}", comparison, "default", MATRIX, at_least=share)
    yield Claim("images/s: fit ÷ bare step", "fit 20", "bare step", "fit", at_least=0.97)
    others = {
        "keras_hub": "keras_hub, float32 | keras_hub, mixed_bfloat16",
        "PyTorch": "PyTorch, float32 | PyTorch, bfloat16 | PyTorch, compiled, bfloat16",
    }
    for name, subjects in others.items():
        yield Claim(f"tokens/s, encoder of 6 blocks: default ÷ {name}", "encoder 6", subjects, ours, at_least=1.0)
    text = "first step, encoder of 48 blocks: unrolled ÷ default"
    yield Claim(text, "encoder start 48", "unrolled", "default", **first, at_least=5)


CLAIMS = tuple(_claims())


@dataclass(frozen=True)
class Default:
    """A default of the package, its reason, and the ratios for or against it."""

    what: str
    reason: str
    ratios: tuple[Claim, ...]


DEFAULTS = (
    Default(
        "Stages with 8 or more equal units are rolled on TensorFlow; on other backends, stages with 500 or more.",
        "A loop is traced once for all units, so training starts sooner. Rolled steps take between about as long and "
        "a fifth longer; most of the differences lie within the range of the rounds. Shorter stages gain "
        "nothing. On JAX, loops start sooner too, but need more memory. GPUs were not measured.",
        (
            Claim("first step, 1001: unrolled ÷ rolled", "start 1001", "unrolled", "rolled", "first_step"),
            Claim("first step, 110: unrolled ÷ rolled", "start 110", "unrolled", "rolled", "first_step"),
            Claim("first step, 56: unrolled ÷ rolled", "start 56", "unrolled", "rolled", "first_step"),
            Claim("step, 56, float32: rolled ÷ unrolled", "step 56", "rolled, float32", "unrolled, float32"),
            Claim("step, 164, float32: rolled ÷ unrolled", "step 164", "rolled, float32", "unrolled, float32"),
            Claim(
                "step, 1001, mixed_bfloat16: rolled ÷ unrolled",
                "step 1001 mixed_bfloat16",
                "rolled, mixed_bfloat16",
                "unrolled, mixed_bfloat16",
            ),
            Claim("first step, 110, JAX: unrolled ÷ rolled", "on JAX 110", "unrolled", "rolled", "first_step"),
            Claim("memory, 110, JAX: rolled ÷ unrolled", "on JAX 110", "rolled", "unrolled", "peak_gib"),
        ),
    ),
    Default(
        "`keras-preact train` computes in mixed_bfloat16 on devices that are faster with it, otherwise in float32.",
        "These are GPUs from compute capability 8.0, TPUs, and, except with JAX, processors with AVX512-BF16 or AMX. "
        "bfloat16 has the range of float32 and needs no loss scale. `import keras_preact` changes nothing: models "
        "follow Keras's dtype policy.",
        (
            Claim(
                "step, 20, batch 128: float32 ÷ mixed_bfloat16",
                "throughput 20",
                "default, float32",
                "default, mixed_bfloat16",
            ),
            Claim("step, 164: float32 ÷ mixed_bfloat16", "step 164", "rolled, float32", "rolled, mixed_bfloat16"),
        ),
    ),
    Default(
        "XLA on GPUs and on JAX, but not on CPUs with TensorFlow (`jit_compile=False`).",
        "On CPUs, XLA's convolutions are slower than oneDNN's, which TensorFlow uses without XLA.",
        (Claim("step, 20, batch 128: with XLA ÷ without", "XLA 20", "XLA", "without"),),
    ),
    Default(
        "`--deterministic` is not the default.",
        "It makes TensorFlow use operations with bit-identical results, and fail on operations that have none.",
        (Claim("step, 20, batch 128: deterministic ÷ default", "deterministic 20", "deterministic", "default"),),
    ),
    Default(
        "One step per execution.",
        "With several, a run could not stop and resume at any step.",
        (Claim("`fit`, 20: 10 steps per execution ÷ one", "fit 20", "fit, 10 steps per execution", "fit"),),
    ),
    Default(
        "`reproduce` trains one run per core, with one thread each.",
        "Operations on one thread do not wait for other threads.",
        (
            Claim(
                "images/s, 110, batch 128: two runs with one thread each ÷ one run with all",
                "at once 110",
                "one run, all threads",
                "two runs, one thread each",
            ),
        ),
    ),
    Default(
        "`keras-preact train` runs each operation on one thread where batches are small.",
        "TensorFlow splits each operation among all cores. The operations of small batches are too short for that: "
        "running several at once, on one thread each, is faster (`keras_preact.training.choose_threads`).",
        (
            *(
                Claim(
                    f"step, 110, batch {batch}: TensorFlow's default ÷ one thread per operation",
                    f"threads 110 batch {batch}",
                    "default",
                    "default, one thread",
                )
                for batch in (8, 32, 128)
            ),
            Claim(
                "step, 1001, batch 8: default ÷ one thread per operation",
                "step 1001 mixed_bfloat16",
                "rolled, mixed_bfloat16",
                "rolled, one thread, mixed_bfloat16",
            ),
        ),
    ),
)


def read_series(file: Path, parser: argparse.ArgumentParser, here: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the series in a file, or a new one; end the command if it was measured under other conditions.

    Args:
        file: the file, which need not exist.
        parser: reports the error.
        here: `environment()` of this process.
        kind: key of the measurements, empty in a new series.
    """
    results = json.loads(file.read_text()) if file.exists() else {"environment": here, kind: {}}
    if any(results["environment"].get(part) != here.get(part) for part in ("versions", "hardware", "onednn")):
        parser.error(f"{file} was measured on another machine or with other software or settings; choose another --out")
    return results


def report(results: dict[str, Any]) -> str:
    """Return the report as Markdown: claims, defaults, profiles, and the medians of each comparison."""
    lines = [
        "# Benchmarks",
        "",
        "Time and memory of this package against the same networks in plain Keras layers, PyTorch and "
        "keras.applications. 20, 110, 1001, … are the layers of CIFAR ResNets at 32×32 pixels; ImageNet-50 is a "
        "pre-activation ResNet-50 at 224×224. *Plain Keras* is the paper's network in Keras's own layers. *Rolled*: "
        "equal units run as a loop over stacked weights; *unrolled*: one layer each; *remat*: the backward pass "
        "recomputes activations. *Bare step*: a training step on one batch in memory. *Frozen*: a graph with its "
        "weights as constants. Batch sizes: 128 in “throughput”, “at once”, “XLA”, “deterministic” and “step 56”; 100 "
        "in “fit”; 64 in “memory”; 32 in “step 164”, “on PyTorch” and “on JAX”; 16 on ImageNet and in “encoder 6” "
        "(sequences of 128 tokens); 8 in “start”, “encoder start” and “step 1001”.",
        "",
        f"{machine(results['environment'])} Commits: {', '.join(_commits(results))}.",
        "",
        *_claims_table(results),
    ]
    lines += [
        "Each ratio divides two medians; the smallest and largest ratio of a round follow it. A target holds if "
        "all rounds satisfy it, and is undecided if only some do. In “start”, “encoder start”, “memory” and “on JAX”, "
        "each round starts new processes and takes the median of two steps. Elsewhere all rounds share one process per "
        "row, so their range leaves out how much processes differ: the same network takes up to 1.4 times as long in "
        "another comparison. If there are several competitors, the ratio is to the fastest.",
        "",
        "* *Default*: the loops and the precision of `keras-preact train`, but TensorFlow's own number of threads. In "
        "“step”, it is the row “rolled, mixed_bfloat16”; for “equal multiply-adds”, the row “default, stride in the "
        "last unit”, as in keras.applications.",
        "* *Precision*, if not named: float32 in “start” (except “default”), “on PyTorch”, “on JAX” and “serving”; "
        "elsewhere, what `keras-preact train` chooses on this machine.",
        "* *Optimizer*: ours is built before the first step, except in “default, optimizer not built”, “encoder 6” and "
        "“encoder start”. Plain Keras and keras_hub do not build theirs unless the row says “optimizer built”, so "
        "TensorFlow traces their first step twice.",
        "* *Step*: a call of `fit` in “fit 20”, two training steps in “at once 110”.",
        "* *Inference*: our network is folded (`keras_preact.models.fold`), the others are not.",
        "* *Memory* in “start”: the peak of the whole process. *Matrix product*: of two 4096×4096 matrices. PyTorch "
        "runs eagerly unless the row says “compiled”.",
        "",
    ]
    lines += _defaults(results)
    lines += _profiles(results.get("profiles", {}))
    lines += _first_steps(results.get("first_steps", {}))
    for name, entry in results["comparisons"].items():
        also = "".join(f" {package} {version}." for package, version in entry.get("also", {}).items())
        lines += [f"## {name}", "", _rounds(entry["rounds"]) + also, "", *_table(entry), ""]
    return "\n".join(lines)


def _claims_table(results: dict[str, Any]) -> list[str]:
    """Return the claims whose comparisons are in the series, as Markdown."""
    ratios = [(claim, ratio) for claim in CLAIMS if (ratio := claim.ratio(results)) is not None]
    rows = [
        [claim.text, f"{ratio.value:.2f}", ratio.range, claim.bound, claim.verdict(ratio)] for claim, ratio in ratios
    ]
    return [markdown_table(["ratio", "measured", "rounds", "target", "verdict"], rows)] if rows else []


def _defaults(results: dict[str, Any]) -> list[str]:
    """Return the defaults with a measured ratio, as Markdown."""
    lines = []
    for default in DEFAULTS:
        ratios = [(claim.text, ratio) for claim in default.ratios if (ratio := claim.ratio(results)) is not None]
        if ratios:
            measured = "; ".join(
                f"{text} **{ratio.value:.2f}**" + (f" ({ratio.range})" if ratio.range else "") for text, ratio in ratios
            )
            lines += [f"* **{default.what}** {default.reason} Measured: {measured}."]
    return ["## Defaults chosen by measurement", "", *lines, ""] if lines else []


def _profiles(profiles: dict[str, dict[str, float]]) -> list[str]:
    """Return the profiles as Markdown, in percent of the time of all operations."""
    if not profiles:
        return []
    rows = []
    for name, times in profiles.items():
        total = sum(times.values())
        rows.append([name, *(f"{100 * time / total:.0f}" for time in times.values()), f"{total:.0f}"])
    return [
        "## Where a step's time goes",
        "",
        "Time by kind of operation in % of the total, on one thread, in training with mixed_bfloat16 and in inference "
        "with float32 (`python -m benchmarks.profile`).",
        "",
        markdown_table(["", *next(iter(profiles.values())), "total, ms"], rows),
    ]


def _first_steps(profiles: dict[str, dict[str, float]]) -> list[str]:
    """Return the parts of the first steps as Markdown, in seconds."""
    if not profiles:
        return []
    rows = [
        [name, *(f"{time:.2f}" for time in seconds.values()), f"{sum(seconds.values()):.1f}"]
        for name, seconds in profiles.items()
    ]
    return [
        "## Where the first step's time goes",
        "",
        "Seconds on one thread, in float32, with rolled stages (`python -m benchmarks.profile`). TensorFlow traces the "
        "step by calling Keras's Python code once; *optimize the graph* is everything between that and the time of a "
        "later step, such as the work of TensorFlow's graph optimizer and the first use of each operation. PyTorch "
        "neither traces nor optimizes.",
        "",
        markdown_table(["", *next(iter(profiles.values())), "total, s"], rows),
    ]


def _table(entry: dict[str, Any]) -> list[str]:
    images = entry["images"]
    keys = [key for key in TITLES if key in next(iter(entry["values"].values()))]
    heads = [column for key in keys for column in (TITLES[key], "÷ first row")]
    heads += [f"{entry.get('unit', 'images')}/s"] if images else []
    rows = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    medians = {s: {key: statistics.median(v[key]) for key in keys} for s, v in entry["values"].items()}
    first = next(iter(medians.values()))
    for subject, values in medians.items():
        cells = [cell for key in keys for cell in (f"{values[key]:.3g}", f"{values[key] / first[key]:.2f}")]
        cells += ["" if subject == MATRIX else _short(images / values["step"])] if images else []
        rows.append(f"| {subject} | " + " | ".join(cells) + " |")
    return rows


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _rounds(count: int) -> str:
    return "One round." if count == 1 else f"Medians of {count} rounds."


def processor(hardware: dict[str, Any]) -> str:
    """Return the processor's name, with the instructions that decide its speed if they are recorded."""
    return hardware["processor"] + (f" ({hardware['instructions']})" if hardware.get("instructions") else "")


def machine(environment: dict[str, Any]) -> str:
    """Return a line with the hardware and the versions of a series."""
    hardware, versions = environment["hardware"], environment["versions"]
    gpus = ", ".join(hardware["accelerators"]) or "no GPU"
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{hardware['cores']} cores of {processor(hardware)}, {hardware['memory_gib']} GiB, {gpus}. {software}."


def _commits(results: dict[str, Any]) -> list[str]:
    """Return the commits at which the comparisons were measured, each once."""
    commits = [entry["commit"] for entry in results["comparisons"].values()]
    texts = [f"{c['id'][:10]}{', changed' if c['changed'] else ''}" if c else "unknown" for c in commits]
    return list(dict.fromkeys(texts))


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot first step, step and peak memory against depth."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    from keras_preact.plots import look

    names = {depth: f"start {depth}" for depth in DEPTHS if f"start {depth}" in results["comparisons"]}
    if len(names) < 2:  # no line
        return
    entries = {depth: results["comparisons"][name]["values"] for depth, name in names.items()}
    subjects = list(dict.fromkeys(subject for values in entries.values() for subject in values))
    figure = Figure(figsize=(12.0, 3.8), dpi=120, layout="constrained")
    titles = {"first_step": "first training step (s)", "step": "training step (s)", "peak_gib": "peak memory (GiB)"}
    for axes, (key, label) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for number, subject in enumerate(subjects):
            points = [(d, statistics.median(v[subject][key])) for d, v in entries.items() if subject in v]
            if len(points) > 1:
                axes.plot(*zip(*points, strict=True), label=subject, markersize=4, **look(number))
        axes.set(xlabel="depth (layers)", ylabel=label, xscale="log", yscale="log")
        axes.set_xticks(list(entries), [str(depth) for depth in entries], minor=False)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(subjects), frameon=False)
    figure.savefig(path, metadata={"Software": None})
