"""A reproduced table: published against ours."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preact import paper
from keras_preact.analysis import read_inspection
from keras_preact.experiments.grid import BUDGETS, Budget, Experiment, Row
from keras_preact.experiments.statistics import (
    AGREES,
    DIFFERS,
    UNDECIDED,
    Difference,
    binomial_deviation,
    difference,
    mean_and_deviation,
    seeds_needed,
)
from keras_preact.experiments.store import Run, Store
from keras_preact.experiments.tables import EXPERIMENTS
from keras_preact.training.recipe import get_recipe
from keras_preact.training.runs import RunFolder

COLUMNS = (
    "row",
    "network",
    "published",
    "ours",
    "n",
    "published difference",
    "our difference [95 %]",
    "verdict",
    "test loss",
)


@dataclass(frozen=True)
class Line:
    """A row of a reproduced table.

    Attributes:
        row: of the grid.
        network: what stands for the paper's network in this budget.
        errors: our test errors (%), by seed; infinite where a run has diverged.
        fails_above: the error above which training has failed; see `Run.fails_above`.
        losses: our test losses of the last epoch, by seed.
        runs: what was run, by seed.
        chance: the error at which diverged runs are counted.
        reference: the first line of the same network and data, which this one is compared with; `None` in that line.
    """

    row: Row
    network: str
    errors: tuple[float, ...]
    fails_above: float = math.inf
    losses: tuple[float, ...] = ()
    runs: tuple[Run, ...] = ()
    chance: float = 90.0
    reference: Line | None = None

    @property
    def is_the_papers_network(self) -> bool:
        """Whether the budget trains the row's own network, not another one that stands for it."""
        depth = self.network.removeprefix("ResNet-").split(",")[0]
        return depth == self.row.network.removeprefix("depth-").removesuffix("-single")

    @property
    def counted(self) -> tuple[float, ...]:
        """Our test errors, those of diverged runs at chance."""
        return tuple(error if math.isfinite(error) else self.chance for error in self.errors)

    @property
    def mean(self) -> float | None:
        """The mean of `counted`; `None` without a run."""
        return statistics.mean(self.counted) if self.errors else None

    @property
    def difference(self) -> Difference | None:
        """Our mean less that of the reference; `None` where either has no run, and for the reference itself."""
        if self.reference is None or not self.errors or not self.reference.errors:
            return None
        return difference(self.counted, self.reference.counted)

    @property
    def published_difference(self) -> float | None:
        """The published error less that of the reference; infinite where it was published as failing."""
        published = self.row.published
        known = self.reference.row.published if self.reference is not None else None
        if published is None or known is None or known.value is None:
            return None
        return math.inf if published.value is None else published.value - known.value

    @property
    def verdict(self) -> str:
        """Whether our difference agrees with the published one; empty where either is missing."""
        ours, published = self.difference, self.published_difference
        return "" if ours is None or published is None else ours.verdict(published)

    @property
    def seeds_needed(self) -> int | None:
        """Runs a row for the published difference to show, four times in five; `None` where there is none to show.

        At the standard deviation of our runs, where there are three or more; else at that of the test images alone.
        """
        apart, published = self.published_difference, self.row.published
        if not apart or math.isinf(apart) or published is None or published.value is None:
            return None
        ended = [error for error in self.errors if math.isfinite(error)]
        tested = (_tested(self.runs[0]) if self.runs else 0) or 10_000
        deviation = statistics.stdev(ended) if len(ended) > 2 else binomial_deviation(published.value, tested)
        return seeds_needed(apart, deviation) if deviation else None

    @property
    def diverged(self) -> str:
        """How many runs diverged, in words."""
        lost, runs = sum(map(math.isinf, self.errors)), len(self.errors)
        return "" if not lost else "diverged" if lost == runs else f"{lost} of {runs} diverged"

    def ours(self, judges: bool) -> str:
        """Mean and standard deviation of the runs that did not diverge, in words, and how many did."""
        if not self.errors:
            return "not run"
        ended = [error for error in self.errors if math.isfinite(error)]
        words = [mean_and_deviation(ended)] if ended else []
        if self.diverged:
            words.append(self.diverged)
        most_diverged = 2 * len(ended) <= len(self.errors)
        if judges and (most_diverged or statistics.mean(self.counted) > self.fails_above):
            words.append("fails")
        return ", ".join(words)


def lines(experiment: Experiment, budget: Budget, store: Store, rows: Sequence[Row] | None = None) -> list[Line]:
    """Return the rows of a table that are part of a budget, with every finished run of it, whatever its seed.

    Args:
        experiment: the table.
        budget: whose runs.
        store: where they are.
        rows: of the table; default all.

    Example: without any run.

    >>> empty = Store([])
    >>> [line.ours(judges=True) for line in lines(EXPERIMENTS["resnet20"], BUDGETS["paper"], empty)]
    ['not run', 'not run']
    """
    first: dict[tuple[str, str], Line] = {}
    found = []
    for row in experiment.rows:
        if not budget.holds(row):
            continue
        runs = store.with_any_seed(budget.config(row, seed=0, precision="float32"))
        errors, losses = (tuple(getattr(run, what) for run in runs) for what in ("error", "loss"))
        limits = (runs[0].fails_above, runs[0].chance) if runs else (math.inf, 90.0)
        kind = row.network, row.dataset
        line = Line(row, budget.network(row), errors, limits[0], losses, tuple(runs), limits[1], first.get(kind))
        first.setdefault(kind, line)
        if rows is None or row in rows:
            found.append(line)
    return found


def cells(line: Line, budget: Budget) -> list[str]:
    """Return a line as text, in the order of `COLUMNS`."""
    published, apart = line.row.published, line.published_difference
    return [
        line.row.title,
        line.network,
        "" if published is None else str(published),
        line.ours(budget.judges),
        str(len(line.errors)),
        "" if apart is None else "fails" if math.isinf(apart) else f"{apart:+.2f}",
        "" if line.difference is None or not budget.judges else str(line.difference),
        line.verdict if budget.judges else "",
        f"{statistics.median(line.losses):.2f}" if line.losses else "",
    ]


def verdict(found: Sequence[Line]) -> str:
    """Say in a sentence or two, as Markdown, how many published differences our runs confirm, and what that means."""
    counts = Counter(line.verdict for line in found if line.verdict)
    lacking = sum(line.published_difference is not None and line.difference is None for line in found)
    if not counts:
        return ""
    said = [f"{counts[kind]} {words}" for kind, words in _COUNTED.items() if counts[kind]]
    said += [f"{lacking} not run"] * bool(lacking)
    single = [line for line in found if len(line.errors) == 1 and math.isfinite(line.errors[0]) and line.runs]
    spreads = [binomial_deviation(line.errors[0], examples) for line in single if (examples := _tested(line.runs[0]))]
    alone = (
        f" Rows with one run have no interval: the test images alone spread an error by {min(spreads):.2f} to "
        f"{max(spreads):.2f} points (binomial standard deviation), and runs of a short schedule differ by more."
        if spreads
        else ""
    )
    return (
        f"Differences are from the first row of the same network and data, in points of test error, with Welch's 95 % "
        f"interval. Against the published signs: {', '.join(said)}.{alone}\n"
    )


_COUNTED = {AGREES: "agree", DIFFERS: "differ", UNDECIDED: "are undecided (the interval holds 0, or there is none)"}


def _tested(run: Run) -> int:
    """Return the number of test examples of a run whose errors are shares of them; 0 for others, and where unknown."""
    data = run.record.get("data", {})
    return int(data.get("test_images", 0))


def machines(found: Sequence[Line]) -> str:
    """Say on what the runs of a table ran, in words."""
    runs = {run.folder.path: run for line in found for run in line.runs}.values()
    return "; ".join(f"{count} on {where}" for where, count in Counter(_machine(run) for run in runs).most_common())


def without_empty_columns(heads: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns in which no row has anything.

    >>> without_empty_columns(("a", "b"), [["1", ""], ["2", ""]])
    (['a'], [['1'], ['2']])
    """
    kept = [k for k in range(len(heads)) if any(row[k] for row in rows)]
    return [heads[k] for k in kept], [[row[k] for k in kept] for row in rows]


def write_results(results: Path) -> Path:
    """Write the page of a results folder, README.md, and its figures from the runs in it; return the page's path.

    The page lists every run, and every table that has one, budget by budget. Nothing on it is typed by hand.
    """
    store = Store([results])
    parts = [_HEAD, _runs_table(store)]
    for budget in _budgets(store):
        for experiment in EXPERIMENTS.values():
            found = lines(experiment, budget, store)
            if any(line.errors for line in found):
                parts += [markdown(experiment, budget, found), *_figures(experiment, budget, found, results)]
                parts += [verdict(found)] if budget.judges else []
    parts += _rules_tables(store)
    folders = [RunFolder(path.parent) for path in sorted(results.glob("*/run.json"))]
    others = [(run, run.record()) for run in folders]
    parts += [_initialization(run, record) for run, record in others if record.get("kind") == "initialization"]
    parts += _profiles([run for run, record in others if record.get("kind") == "inspection"], results)
    pages = sorted(path.parent.name for path in results.glob("*/bench.json"))
    if pages:
        parts.append("\n".join(["## Benchmarks", "", *(f"* [{name}]({name}/README.md)" for name in pages), ""]))
    page = results / "README.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _budgets(store: Store) -> Iterator[Budget]:
    """Yield the budgets, each for the paper's profile and for every other one of which there are runs."""
    profiles = sorted({run.config.options.get("profile", "paper") for run in store.runs} - {"paper"})
    for budget in BUDGETS.values():
        yield from (budget.of(profile) for profile in ("paper", *profiles))


def _initialization(run: RunFolder, record: dict[str, Any]) -> str:
    """Return the gradient norms of untrained Transformers as Markdown."""
    found = record["result"]
    depths = list(found[0]["norms"])
    heads = ["order", *(f"{depth} blocks" for depth in depths), "exponent of depth", "bound"]
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for entry in found:
        norms = [f"{statistics.median(entry['norms'][depth]):.3g}" for depth in depths]
        fit = f"{entry['exponent']:.2f} ± {entry['standard_error']:.2f}"
        bound = f"{paper.INITIAL_GRADIENT_EXPONENTS[entry['order']]:g}"
        rows.append("| " + " | ".join([entry["order"].replace("_", "-"), *norms, fit, bound]) + " |")
    text = (
        "Norm of the gradient of the last feed-forward kernel before training, median over seeds, and the exponent of "
        "the number of blocks that fits it, with its standard error; the bound is that of Xiong et al. 2020, Theorem 1."
    )
    head = f"## Transformers before training ([{run.path.name}]({run.path.name}/run.json))"
    return "\n".join([head, "", text, "", *rows, ""])


def _profiles(runs: Sequence[RunFolder], results: Path) -> list[str]:
    """Return the kept inspections as Markdown: a table, and a figure for the networks of equally many units."""
    from keras_preact.plots import alt_text, draw, profiles_figure

    if not runs:
        return []
    found = {run.path.name: read_inspection(run.path) for run in runs}
    # Older inspections do not say theirs: it was float32.
    precisions = {run.path.name: run.record()["config"].get("precision", "float32") for run in runs}
    rows = ["| " + " | ".join(PROFILE_COLUMNS) + " |", "|---" * len(PROFILE_COLUMNS) + "|"]
    for name, entry in found.items():
        x = entry.forward[0].x.variance, entry.forward[-1].x.variance
        numbers = [f"{x[0]:.3g} → {x[1]:.3g}", f"{entry.unrolled_error:.2g}"]
        numbers += [f"{entry.gradient_ratio:.3g}", f"{entry.direct_ratio:.3g}"]
        what = [f"[{name}]({name}/run.json)", f"{entry.model}, {precisions[name]}", entry.state, entry.images]
        rows.append("| " + " | ".join([*what, *numbers]) + " |")
    parts = ["\n".join(["## Signal and gradient by depth", "", _PROFILES, "", *rows, ""])]
    for count in sorted({len(entry.forward) for entry in found.values()}):
        same = {name: (entry.forward, entry.gradient) for name, entry in found.items() if len(entry.forward) == count}
        figure = profiles_figure(same, f"{count} units")
        path = draw(figure, results / f"profiles-{count}-units.svg")
        parts.append(f"![{alt_text(figure)}]({path.name})\n")
    return parts


PROFILE_COLUMNS = (
    "run",
    "network",
    "is",
    "shown",
    "variance of x",
    "Eq. (4)",
    "∂E/∂x, first ÷ last",
    "direct ÷ ∂E/∂x_L",
)

_PROFILES = (
    "Measured by `keras-preact inspect`, with the batch's statistics. Variance of x_l at the first and at the last "
    "unit; the greatest ‖x_L − x_l − ΣF‖ / ‖x_L‖ within a stage; ‖∂E/∂x_l‖ at the first unit over that after the "
    "last; and of Eq. (5), in the last stage, the norm of what comes back along the shortcuts alone over ‖∂E/∂x_L‖. "
    "Sums in bfloat16 are rounded to 8 bits, which Eq. (4) shows."
)


def _figures(experiment: Experiment, budget: Budget, found: Sequence[Line], results: Path) -> Iterator[str]:
    """Draw a table, and its training curves, beside the page; yield the Markdown that shows them."""
    from keras_preact.plots import alt_text, draw, table_curves_figure, table_figure

    title = f"{experiment.name}, {_title(budget)}"
    table = table_figure(found, title)
    curves = {line.row.title: line.runs[0].folder.metrics() for line in found if line.runs}
    references = {line.row.title: (line.reference or line).row.title for line in found}
    for name, figure in (("", table), ("-curves", table_curves_figure(curves, references, title))):
        whose = "" if budget.profile == "paper" else f"-{budget.profile}"
        path = draw(figure, results / f"{experiment.name}-{budget.name}{whose}{name}.svg")
        yield f"![{alt_text(figure)}]({path.name})\n"


_HEAD = """# Results of record

This page is written by `keras-preact results`; it is not edited by hand.

One folder a run, as `keras-preact train` left it, without the weights (but for one small network) and the logs:

* `run.json`: the whole configuration (network, data, recipe, precision, seed), a hash of the data, versions, commit,
  hardware (of each part, where the run was stopped and resumed), time, result;
* `metrics.csv`: errors (in %, of a forecast in what it is measured in), losses and learning rate of every epoch. The
  training columns are means over the epoch, on augmented images;
* `curves.png`: both errors against steps;
* `inspection.json`: of the folders that `keras-preact inspect` left, what was measured unit by unit.

The test error is that of the last epoch, as the paper reports it, not that of the best. The time is that of the whole
run, with whatever else the machine did meanwhile. To make a run of a table again: `keras-preact reproduce TABLE
--budget BUDGET --rows ROW --results runs/none`; any other, `keras-preact train` with the options of its `run.json`. The
commit that it names says which code that was (a few early runs name commits that the history does not hold any more).
"""


def _runs_table(store: Store) -> str:
    rows = [
        "## Runs",
        "",
        "| run | network | data | recipe | test error | minutes | on |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in store.runs:
        record, config = run.record, run.config
        name = run.folder.path.name
        diverged = record.get("diverged")
        error = f"diverged at step {diverged['step']:,}" if diverged else f"{run.error:.2f} {run.folder.unit()}"
        data = config.dataset + (f" ({', '.join(config.only)})" if config.only else "")
        rows.append(
            f"| [{name}]({name}/run.json) | {record['model']['name']} | {data} | {config.recipe.name}, "
            f"{config.recipe.steps:,} steps | {error} | {record['seconds'] / 60:.0f} | {_machine(run)} |"
        )
    return "\n".join([*rows, ""])


def _machine(run: Run) -> str:
    """Say on what a run ran, in words; one that was stopped may have gone on on another machine."""
    parts = [run.record["environment"], *run.record.get("resumed", [])]
    machines = dict.fromkeys(_hardware(part["hardware"]) for part in parts)
    return f"{', then '.join(machines)}, {run.config.precision}"


def _hardware(hardware: dict[str, Any]) -> str:
    instructions = f" ({known})" if (known := hardware.get("instructions")) else ""  # runs of old do not say
    cores = f"{hardware['cores']} core{'s' * (hardware['cores'] > 1)} of {hardware['processor']}{instructions}"
    return ", ".join(hardware["accelerators"]) or cores


def _rules_tables(store: Store) -> list[str]:
    """Return, for every run on sequences that is part of no table, what simple rules reach on the same data."""
    tables = []
    for run in store.runs:
        rules = run.record.get("data", {}).get("baselines")
        if rules and run.config.recipe == get_recipe("adam").with_steps(run.config.recipe.steps):
            best = min(rules.values())
            verdict = "It beats all of them." if run.error < best else "It does not beat the best of them."
            unit = run.folder.unit()
            rows = [f"| {rule} | {error:.2f} {unit} |" for rule, error in rules.items()]
            head = f"## {run.folder.path.name}, and simple rules"
            table = ["| | test error |", "|---|---|", f"| the network | {run.error:.2f} {unit} |", *rows]
            tables.append("\n".join([head, "", verdict, "", *table, ""]))
    return tables


def _title(budget: Budget) -> str:
    return f"budget {budget.name}" + ("" if budget.profile == "paper" else f", profile {budget.profile}")


def markdown(experiment: Experiment, budget: Budget, found: Sequence[Line]) -> str:
    """Return a table as Markdown, under its title."""
    heads, body = without_empty_columns(COLUMNS, [cells(line, budget) for line in found])
    rows = ["| " + " | ".join(row) + " |" for row in (heads, *body)]
    rows.insert(1, "|---" * len(heads) + "|")
    judged = any(math.isfinite(line.fails_above) for line in found)
    note = f" Fails: {experiment.failing}." if judged else ""
    note = note if budget.judges else " The errors say nothing but that it runs."
    head = f"## {experiment.name}, {_title(budget)}: {experiment.title}"
    ran = f" Runs: {where}." if (where := machines(found)) else ""
    return "\n".join([head, "", f"Budget {budget.name}: {budget.what}.{note}{ran}", "", *rows, ""])
