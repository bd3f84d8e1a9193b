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
from keras_preact.experiments.grid import BUDGETS, EXPERIMENTS, Budget, Experiment, Row
from keras_preact.experiments.store import Run, Store
from keras_preact.training.recipe import get_recipe
from keras_preact.training.runs import RunFolder

COLUMNS = ("row", "network", "published", "ours", "n", "difference", "test loss")


@dataclass(frozen=True)
class Line:
    """A row of a reproduced table.

    Attributes:
        row: of the grid.
        network: what stands for the paper's network in this budget.
        errors: our test errors (%), by seed.
        fails_above: the error above which training has failed; see `Run.fails_above`.
        losses: our test losses of the last epoch, by seed.
        runs: what was run, by seed.
    """

    row: Row
    network: str
    errors: tuple[float, ...]
    fails_above: float = math.inf
    losses: tuple[float, ...] = ()
    runs: tuple[Run, ...] = ()

    @property
    def median(self) -> float | None:
        """Our median, a run that diverged being the worst there is; `None` without a run."""
        return statistics.median(self.errors) if self.errors else None

    def ours(self, judges: bool) -> str:
        """Our median with its spread, in words."""
        if self.median is None:
            return "not run"
        words, spread = [], " to ".join(f"{end:.2f}" for end in self.spread)
        if math.isfinite(self.median):
            words.append(f"{self.median:.2f}" + (f" ({spread})" if len(self.spread) > 1 else ""))
        elif spread:
            words.append(spread)
        if self.diverged:
            words.append(self.diverged)
        if judges and (self.median > self.fails_above or math.isinf(self.median)):
            words.append("fails")
        return ", ".join(words)

    @property
    def spread(self) -> tuple[float, ...]:
        """The smallest and the largest error of the runs that did not diverge, or the only one; empty without one."""
        ended = [error for error in self.errors if math.isfinite(error)]
        return tuple(dict.fromkeys((min(ended), max(ended)))) if ended else ()

    @property
    def diverged(self) -> str:
        """How many runs diverged, in words."""
        lost, runs = sum(map(math.isinf, self.errors)), len(self.errors)
        return "" if not lost else "diverged" if lost == runs else f"{lost} of {runs} diverged"

    @property
    def difference(self) -> str:
        """Ours less the published error, where both are numbers."""
        published = self.row.published
        if self.median is None or math.isinf(self.median) or published is None or published.value is None:
            return ""
        return f"{self.median - published.value:+.2f}"


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
    found = []
    for row in rows or experiment.rows:
        if budget.holds(row):
            runs = store.with_any_seed(budget.config(row, seed=0, precision="float32"))
            limit = runs[0].fails_above if runs else math.inf
            errors, losses = (tuple(getattr(run, what) for run in runs) for what in ("error", "loss"))
            found.append(Line(row, budget.network(row), errors, limit, losses, tuple(runs)))
    return found


def cells(line: Line, budget: Budget) -> list[str]:
    """Return a line as text, in the order of `COLUMNS`."""
    published = "" if line.row.published is None else str(line.row.published)
    return [
        line.row.title,
        line.network,
        published,
        line.ours(budget.judges),
        str(len(line.errors)),
        line.difference,
        f"{statistics.median(line.losses):.2f}" if line.losses else "",
    ]


AGREES, DIFFERS, LACKS = "as published", "not as published", "not run"
UNTOLD = "published as failing, which so short a training cannot tell"


def verdict(found: Sequence[Line]) -> str:
    """Say, as Markdown, which rows differ from the first of their network as published, which do not, which lack.

    How large a difference one seed can show is not judged: the numbers are there to be looked at.
    """
    said: dict[str, list[str]] = {AGREES: [], DIFFERS: [], UNTOLD: [], LACKS: []}
    for line in found:
        reference = _reference(line, found)
        if line is reference or line.row.published is None or reference.row.published is None:
            continue
        if line.median is None or reference.median is None:
            said[LACKS].append(line.row.title)
            continue
        if math.isinf(reference.median):
            continue  # it has diverged: there is nothing to compare with
        published = _apart(line.row.published.value, reference.row.published.value)
        ours = line.median - reference.median
        failing = math.isinf(ours) or line.median > line.fails_above
        if math.isinf(published) and math.isinf(line.fails_above) and not failing:
            kind = UNTOLD
        else:
            kind = AGREES if published * ours > 0 and (failing or not math.isinf(published)) else DIFFERS
        said[kind].append(f"{line.row.title}: published {_signed(published)}, ours {_signed(ours, failing)}")
    if not any(said[kind] for kind in (AGREES, DIFFERS, UNTOLD)):
        return ""
    head = (
        "Against the first row of the same network and data, in points of test error. As published means: of the same "
        "sign, however small.\n"
    )
    listed = [line for kind, rows in said.items() if rows for line in (f"* {kind}:", *(f"  * {row}" for row in rows))]
    return "\n".join([head, *listed, ""])


def _reference(line: Line, found: Sequence[Line]) -> Line:
    """Return the first line of the same network and data: what a line is compared with."""
    kind = line.row.network, line.row.dataset
    return next(one for one in found if (one.row.network, one.row.dataset) == kind)


def _apart(value: float | None, reference: float | None) -> float:
    """Return the difference of two published errors, of which the first may be "fails": infinite then."""
    assert reference is not None  # no first row of a published table fails
    return math.inf if value is None else value - reference


def _signed(difference: float, failing: bool = False) -> str:
    """Return a difference with its sign; one without end is a failure."""
    if math.isinf(difference):
        return "fails"
    return f"{difference:+.2f}" + (" (fails)" if failing else "")


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
    table = table_figure(found, title, _limit(found) if budget.judges else None)
    curves = {line.row.title: line.runs[0].folder.metrics() for line in found if line.runs}
    references = {line.row.title: _reference(line, found).row.title for line in found}
    for name, figure in (("", table), ("-curves", table_curves_figure(curves, references, title))):
        whose = "" if budget.profile == "paper" else f"-{budget.profile}"
        path = draw(figure, results / f"{experiment.name}-{budget.name}{whose}{name}.svg")
        yield f"![{alt_text(figure)}]({path.name})\n"


def _limit(found: Sequence[Line]) -> float | None:
    """Return where failing begins: for our runs or, where none is judged, for the published ones.

    Not for a table of several data sets: the paper says it of CIFAR-10.
    """
    if len({line.row.dataset for line in found}) > 1:
        return None
    if limits := [line.fails_above for line in found if math.isfinite(line.fails_above)]:
        return limits[0]
    return paper.FAILS_ABOVE if any(line.row.published == paper.FAILS for line in found) else None


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
