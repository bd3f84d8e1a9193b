"""A reproduced table: published results against ours."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from keras_preact.errors import InputError, printable
from keras_preact.experiments.grid import Budget, Experiment, Row
from keras_preact.experiments.statistics import (
    AGREES,
    DIFFERS,
    MOST_SEEDS,
    UNDECIDED,
    Difference,
    binomial_deviation,
    difference,
    mean_and_deviation,
    pooled_deviation,
    seeds_needed,
)
from keras_preact.experiments.store import Run, Store
from keras_preact.paper import TIE_BELOW
from keras_preact.training.runs import RunFolder

SIGNATURE = "`keras-preact results` writes this page from the runs in this folder."
"""First sentence of the page of a results folder."""
TIE = "tie"
"""Verdict on a published difference below `TIE_BELOW`, whose sign is left to chance."""
FIGURES = "figures"
"""Folder of the figures in the results."""

COLUMNS = (
    "row",
    "network",
    "published",
    "reproduced by others",
    "ours",
    "n",
    "published difference",
    "our difference [95 %]",
    "verdict",
    "test loss",
    "core-minutes",
    "10¹⁵ FLOPs",
)


HOW_TO_READ_TABLES = f"""## How to read the tables

Each table has a *budget*: `deep` trains the paper's networks for a short time, `cpu` trains shallower ones, `fast`
trains wide networks with another recipe, `paper` follows the paper's schedule. h is the shortcut, F the residual branch
and f what follows their addition; g(x) is the gate of Table 1, b the bias of its convolution, and BN batch
normalization.

* *published*: the paper's test error in %, for ResNet-20 that of He et al. 2015, after the whole schedule. "Fails" is
  an error above 20 %; such a difference counts as positive. After a shorter schedule, compare signs, not sizes.
* *reproduced by others*: hysts/pytorch_resnet_preact and hysts/pytorch_image_classification on GitHub (hysts), and a
  reproduction in Lasagne.
* *ours*: the mean test error in % ± the standard deviation over n runs; the published CIFAR errors are medians of five
  runs. A diverged run counts as random guessing.
* *our difference*: the row's mean minus that of the first row with the same network and data, in points, with Welch's
  95 % interval. The intervals are not adjusted for multiple comparisons.
* *verdict*: *agrees* if the whole interval has the sign of the published difference, *differs* if it has the opposite
  sign, and *undecided* if it contains 0 or does not exist: a row with one run has no interval, however large its
  difference. *Tie*: the published difference is below {TIE_BELOW:.2f} points, the largest standard deviation between
  the paper's own runs on CIFAR-10 (Table 4), so its sign may be chance.
* *test loss*: the median of the runs that did not diverge.
* *core-minutes*: the CPU time of a run, summed over cores; the mean of the runs that recorded it.
* *10¹⁵ FLOPs*: floating-point operations of the convolutions and matrix products of a whole run.

In the figures of a table, each dot is a run, and a bar is the interval of the difference.
"""


def check_is_page(path: Path) -> None:
    """Raise InputError if there is a file at `path` that `write_results` did not write."""
    if path.exists() and SIGNATURE not in path.read_text(encoding="utf-8", errors="replace"):
        raise InputError(
            f"{path} was not written by `keras-preact results` and is not overwritten; rename it, or name another "
            "folder"
        )


@dataclass(frozen=True)
class Line:
    """A row of a reproduced table.

    Attributes:
        row: row of the grid.
        network: the network that the budget trains for the row.
        runs: the runs, by seed.
        reference: the first line with the same network and data, for comparison; `None` in that line itself.
    """

    row: Row
    network: str
    runs: tuple[Run, ...] = ()
    reference: Line | None = None

    @property
    def is_the_papers_network(self) -> bool:
        """Whether the budget trains the paper's network, not a replacement; true if the row names no depth."""
        papers, ours = (re.search(r"\d+", name) for name in (self.row.network, self.network))
        return papers is None or ours is None or papers[0] == ours[0]  # "wide" is no network of the paper

    @property
    def label(self) -> str:
        """The title of the row for figures, with the network that was run if its depth is not the paper's."""
        is_said = self.is_the_papers_network or not self.runs or self.network in self.row.title
        return self.row.title if is_said else f"{self.row.title} (run: {self.network})"

    @property
    def errors(self) -> tuple[float, ...]:
        """Our test errors (%), by seed; infinite for diverged runs."""
        return tuple(run.error for run in self.runs)

    @property
    def counted(self) -> tuple[float, ...]:
        """Our test errors (%), by seed; diverged runs count as random guessing."""
        return tuple(run.counted_error for run in self.runs)

    @property
    def fails_above(self) -> float:
        """The error (%) above which training counts as failed; infinite if there is no such criterion or no run."""
        return self.runs[0].fails_above if self.runs else math.inf

    @property
    def mean(self) -> float | None:
        """The mean of `counted`; `None` if there are no runs."""
        return statistics.mean(self.counted) if self.runs else None

    @property
    def difference(self) -> Difference | None:
        """Our mean minus that of the reference; `None` if either has no runs, and for the reference itself."""
        if self.reference is None or not self.runs or not self.reference.runs:
            return None
        return difference(self.counted, self.reference.counted)

    @property
    def published_difference(self) -> float | None:
        """The published error minus that of the reference; infinite if this row was published as failing."""
        published = self.row.published
        reference = self.reference.row.published if self.reference is not None else None
        if published is None or reference is None or reference.value is None:
            return None
        return math.inf if published.value is None else published.value - reference.value

    @property
    def verdict(self) -> str:
        """Whether our difference agrees with the published one, or a tie was published; empty if either is missing."""
        ours, published = self.difference, self.published_difference
        if ours is None or published is None:
            return ""
        return ours.verdict(published) if abs(published) >= TIE_BELOW else TIE

    @property
    def seeds_needed(self) -> str:
        """Runs per row to detect the published difference with 80 % power, as text; empty without such a difference.

        The standard deviation is that of our runs within this row and its reference. The text is empty too unless one
        of the two has at least two runs.
        """
        apart = self.published_difference
        if not apart or math.isinf(apart) or self.reference is None:
            return ""
        deviation = pooled_deviation([self.counted, self.reference.counted])
        if not deviation:
            return ""
        needed = seeds_needed(apart, deviation)
        return f"more than {MOST_SEEDS:,}" if needed is None else f"{needed:,}"

    @property
    def diverged(self) -> str:
        """How many runs diverged, as text."""
        lost, runs = sum(map(math.isinf, self.errors)), len(self.runs)
        return "" if not lost else "diverged" if lost == runs else f"{lost} of {runs} diverged"

    @property
    def fails(self) -> bool:
        """Whether training fails: the mean error is above `fails_above`, or all runs diverged."""
        return self.mean is not None and (self.mean > self.fails_above or self.diverged == "diverged")

    @property
    def loss(self) -> str:
        """The median test loss of the last epoch, as text, without the runs that diverged."""
        finite = [run.loss for run in self.runs if math.isfinite(run.loss)]
        return f"{statistics.median(finite):.2f}" if finite else "diverged" if self.runs else ""

    def ours(self, judges: bool) -> str:
        """Mean and standard deviation of `counted`, how many runs diverged, and whether training fails, as text."""
        if not self.runs:
            return "not run"
        words = [] if self.diverged == "diverged" else [mean_and_deviation(self.counted)]
        words += [self.diverged] if self.diverged else []
        words += ["fails"] if judges and self.fails else []
        return ", ".join(words)


Table = tuple[Experiment, Budget, Sequence[Line]]
"""A table with its rows."""


def lines(experiment: Experiment, budget: Budget, store: Store, rows: Sequence[Row] | None = None) -> list[Line]:
    """Return the rows of a table that are in a budget, each with its finished runs of any seed.

    Args:
        experiment: the table.
        budget: the budget.
        store: the finished runs.
        rows: rows of the table. Default: all.

    Example: without any run.

    >>> from keras_preact.experiments import BUDGETS, EXPERIMENTS
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
        kind = row.network, row.dataset
        line = Line(row, budget.network(row), tuple(runs), first.get(kind))
        first.setdefault(kind, line)
        if rows is None or row in rows:
            found.append(line)
    return found


def with_new_runs(entries: Iterable[tuple[Experiment, Budget]], store: Store) -> list[Table]:
    """Return the tables that have a run which no table before has, with their rows."""
    tables: list[Table] = []
    seen: set[Path] = set()
    for experiment, budget in entries:
        found = lines(experiment, budget, store)
        runs = {run.folder.path for line in found for run in line.runs}
        if runs - seen:
            tables.append((experiment, budget, found))
        seen |= runs
    return tables


def cells(line: Line, budget: Budget) -> list[str]:
    """Return the cells of a line as text, in the order of `COLUMNS`."""
    published, apart = line.row.published, line.published_difference
    return [
        line.row.title,
        line.network,
        "" if published is None else str(published),
        line.row.others,
        line.ours(budget.judges),
        _count(line),
        "" if apart is None else "fails" if math.isinf(apart) else f"{apart:+.2f}",
        "" if line.difference is None or not budget.judges else str(line.difference),
        line.verdict if budget.judges else "",
        line.loss,
        *_cost(line),
    ]


def _count(line: Line) -> str:
    """Return the number of runs as text; if they differ in precision, also how many have another than the most."""
    _, *others = Counter(run.config.precision for run in line.runs).most_common() or [("", 0)]
    return ", ".join([str(len(line.runs)), *(f"{count} in {precision}" for precision, count in others)])


def _cost(line: Line) -> tuple[str, str]:
    """Return the core-minutes of a run and its floating-point operations, as text; not all runs have a record."""
    seconds = [run.record["cpu_seconds"] for run in line.runs if "cpu_seconds" in run.record]
    whole = [run.record for run in line.runs if "diverged" not in run.record]  # the record has those of all steps
    operations = [record["training_flops"] for record in whole if "training_flops" in record]
    return (
        f"{statistics.mean(seconds) / 60:.0f}" if seconds else "",
        f"{operations[0] / 1e15:.2g}" if operations else "",
    )


def _of_single_runs(runs: Sequence[Run]) -> str:
    """Return a sentence on the binomial standard deviation, by the size of the test set, of errors of single runs."""
    sizes = [run.record.get("data", {}).get("test_images", 0) for run in runs]  # sequences have none
    spreads = [
        binomial_deviation(run.error, size)
        for run, size in zip(runs, sizes, strict=True)
        if size and math.isfinite(run.loss)
    ]
    if not spreads:
        return ""
    return (
        "The spread between seeds is unknown in rows with one run. As an estimate for new images, their errors have a "
        f"standard deviation of {min(spreads):.2f} to {max(spreads):.2f} points. All rows share one test set, so much "
        "of it cancels in differences."
    )


def verdict(found: Sequence[Line]) -> str:
    """Return Markdown that counts the verdicts on the published differences."""
    counts = Counter(line.verdict for line in found if line.verdict)
    if not counts:
        return ""
    counts["not run"] = sum(line.published_difference is not None and line.difference is None for line in found)
    tally = ", ".join(f"{kind} {counts[kind]}" for kind in (AGREES, DIFFERS, UNDECIDED, TIE, "not run") if counts[kind])
    note = _of_single_runs([line.runs[0] for line in found if len(line.runs) == 1])
    return " ".join(filter(None, [f"Verdicts: {tally}.", note])) + "\n"


def machines(found: Sequence[Line]) -> str:
    """Return the hardware of the runs of a table, with counts, as text."""
    runs = {run.folder.path: run for line in found for run in line.runs}.values()
    return "; ".join(f"{count} on {where}" for where, count in Counter(machine(run) for run in runs).most_common())


def without_empty_columns(heads: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without its empty columns.

    >>> without_empty_columns(("a", "b"), [["1", ""], ["2", ""]])
    (['a'], [['1'], ['2']])
    """
    filled = [k for k in range(len(heads)) if any(row[k] for row in rows)]
    return [heads[k] for k in filled], [[row[k] for k in filled] for row in rows]


def machine(run: Run) -> str:
    """Return the hardware and precision of a run as text; a resumed run may have used several machines."""
    parts = [run.record["environment"], *run.record.get("resumed", [])]
    machines = dict.fromkeys(_hardware(part["hardware"]) for part in parts)
    return f"{', then '.join(machines)}, {run.config.precision}"


def _hardware(hardware: dict[str, Any]) -> str:
    instructions = f" ({known})" if (known := hardware.get("instructions")) else ""  # older runs have none
    cores = f"{hardware['cores']} core{'s' * (hardware['cores'] > 1)} of {hardware['processor']}{instructions}"
    return ", ".join(hardware["accelerators"]) or cores


def title_of(budget: Budget) -> str:
    """Return the budget in words, with its profile if that is not the paper's."""
    return f"budget {budget.name}" + ("" if budget.profile == "paper" else f", profile {budget.profile}")


def markdown(experiment: Experiment, budget: Budget, found: Sequence[Line], explains: bool = True) -> str:
    """Return a table as Markdown, under its title and, if `explains`, a description of the budget."""
    shown = without_empty_columns(COLUMNS, [cells(line, budget) for line in found])
    rules = [experiment.failing] if any(math.isfinite(line.fails_above) for line in found) else []
    rules += ["all runs diverged"] if any(line.diverged == "diverged" for line in found) else []
    fails = f'In our column, "fails" means: {", or ".join(rules)}.' if rules else ""
    note = fails if budget.judges else "The errors only show that it runs."
    head = f"## {experiment.heading}, {title_of(budget)}: {experiment.title}"
    ran = f"Runs: {where}." if (where := machines(found)) else ""
    text = " ".join(filter(None, [budget.what if explains else "", note, ran]))
    return "\n".join([head, "", text, "", markdown_table(*shown)])


def escaped(text: object) -> str:
    r"""Return a text that this package did not choose, such as a folder's name, so that Markdown shows it unchanged.

    >>> print(escaped("a|b [x] <i>"))
    a\|b \[x\] \<i>
    """
    return re.sub(r"([\\`*|<\[\]])", r"\\\1", printable(text))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, which ends with a line break.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]), end="")
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    first, *others = ("| " + " | ".join(row) + " |\n" for row in (heads, *rows))
    return "".join([first, "|---" * len(heads) + "|\n", *others])


def drawn(figure: Any, results: Path, name: str) -> str:
    """Save a figure in the results; return the Markdown that shows it."""
    from keras_preact.plots import alt_text, draw

    path = draw(figure, results / FIGURES / f"{name}.svg")
    return f"![{escaped(alt_text(figure))}]({FIGURES}/{path.name})\n"


def link_to(run: RunFolder, results: Path) -> str:
    """Return a Markdown link to a run's record."""
    return link(run.path.name, run.record_path.relative_to(results))


def link(text: str, path: Path) -> str:
    """Return a Markdown link to a path."""
    return f"[{escaped(text)}]({quote(os.fsencode(path.as_posix()))})"
