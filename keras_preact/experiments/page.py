"""The page of a results folder: the findings first, the list of all runs last. All of its numbers are generated."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_preact.experiments import depth
from keras_preact.experiments.grid import BUDGETS, DEPTHS, Budget, Experiment
from keras_preact.experiments.profiles import initialization, profiles
from keras_preact.experiments.report import (
    FIGURES,
    HOW_TO_READ_TABLES,
    SIGNATURE,
    Line,
    Table,
    check_is_page,
    drawn,
    escaped,
    link,
    link_to,
    machine,
    markdown,
    markdown_table,
    title_of,
    verdict,
    with_new_runs,
)
from keras_preact.experiments.statistics import Difference, binomial_deviation, difference
from keras_preact.experiments.store import Run, Store, table_of
from keras_preact.experiments.tables import DEMO_DEPTH, EXPERIMENTS, ORDERS, PAPERS_RATE, RATES
from keras_preact.files import write_atomically
from keras_preact.paper import in_words
from keras_preact.training.recipe import get_recipe
from keras_preact.training.runs import RunFolder

FIRST = ("table1", "table2", "table3")
"""The first tables of the page, with the budget `deep`."""


def write_results(results: str | Path) -> Path:
    """Write the README.md of a results folder and its figures from the runs in it; return the path of README.md.

    Raises:
        InputError: the folder has a README.md of another origin.
    """
    results = Path(results)
    check_is_page(results / "README.md")
    store = Store([results])
    (results / FIGURES).mkdir(parents=True, exist_ok=True)
    first = [(EXPERIMENTS[name], BUDGETS["deep"]) for name in FIRST]
    rest = [
        (experiment, budget)
        for budget in _budgets(store)
        for experiment in EXPERIMENTS.values()
        if (experiment, budget) not in first and experiment.name not in ("screening", "depth")
    ]
    parts = [_HEAD, _claim(store), *_depth(store, results)]
    found, explained = with_new_runs([*first, *rest], store), set[str]()
    tables = list(_tables([each for each in found if each[:2] in first], explained, results))
    others = list(_tables([each for each in found if each[:2] not in first], explained, results))
    parts += [HOW_TO_READ_TABLES if tables or others else "", *tables]
    parts += [*_demo(store, results), *_screening(store, results), *_mechanism(store, results)]
    parts += [*others, _baselines(store)]
    folders = [RunFolder(path.parent) for path in sorted(results.rglob("run.json"))]
    measured = [(run, record) for run in folders if (record := run.record()).get("status") == "finished"]
    parts += [
        initialization(run, record, results) for run, record in measured if record.get("kind") == "initialization"
    ]
    parts += profiles([run for run, record in measured if record.get("kind") == "inspection"], results)
    pages = sorted(path.relative_to(results) for path in results.glob("benchmarks/*/README.md"))
    if pages:
        links = (f"* {link(page.parent.as_posix(), page)}" for page in pages)
        parts.append("\n".join(["## Benchmarks", "", *links, ""]))
    parts += [_HOW_TO_READ_RUNS, _totals(store), *_every_run(store, results)]
    page = results / "README.md"
    write_atomically(page, "\n".join(part for part in parts if part))
    return page


_HEAD = f"# Results\n\n{SIGNATURE}\n"

_HOW_TO_READ_RUNS = """## How to read the runs

`runs/` has a folder for each table, and in it a folder for each run of `keras-preact train` or `reproduce`, without
logs and weights. A run that belongs to several tables is in the folder of the first: the depth study's runs at 20
layers are in `resnet20`.

* `run.json`: the whole configuration (network, data, recipe, precision, seed), a hash of the data, versions, commit,
  hardware (of each part, if the run was stopped and resumed), time, result;
* `metrics.csv`: errors (in %; for a forecast, in its own unit), losses and learning rate of every epoch. The training
  columns are means over the epoch, on augmented images;
* `curves.png` (not of diverged runs): both errors against steps;
* `propagation.json` (some runs): signal and gradient by unit before the first step, after step 50 and at the end.

`profiles/` has measurements of single networks, trained or not; `figures/` has the figures of this page.

The test error is that of the last epoch, as in the paper, not the best one. The time is wall-clock time, and some runs
shared the machine with other work. The hardware is that of the machine: `reproduce` trains one run per core. A recipe's
name contains what differs from its budget: `deep-0.03` has a learning rate of 0.03.

`keras-preact reproduce TABLE --budget BUDGET --list` prints the names of a table's rows. To run one again:
`keras-preact reproduce TABLE --budget BUDGET --rows ROW --data-dir data --results runs/none`. For other runs, use
`keras-preact train` with the options in `run.json`. The commit in `run.json` identifies the code. Some runs name
commits that are no longer in the history. A seed gives the same initial weights only with the same version of the code.
The way rolled networks draw them changed after the first runs on this page.
"""


# ---- the first screen ---------------------------------------------------------------------------------------------


def _claim(store: Store) -> str:
    """Return the gaps at the paper's learning rate that have an interval, by depth, as Markdown."""
    shown = [
        f"* {at} layers: {gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}], {_standing(gap)} (n = {counts})"
        for at, gap, counts in _gaps(store)
        if gap.is_known
    ]
    if not shown:
        return ""
    bold = f"**{claim}** " if (claim := headline(store)) else ""
    text = (
        f"{bold}In the original order, the residual branch is conv, BN, ReLU, conv, BN, and a ReLU follows the "
        "addition; in full pre-activation, it is BN, ReLU, conv, BN, ReLU, conv, and nothing follows the addition. All "
        f"networks trained for {BUDGETS['deep'].recipes['cifar10'].steps:,} steps of 128 images on CIFAR-10, reduced "
        f"to 16×16 pixels. The learning rate warms up to the paper's {PAPERS_RATE:g} and decays along a cosine. So "
        "short a training shows how easily a network trains, not how accurate it becomes.\n\n"
        "The lead of full pre-activation is the mean test error of the original order minus its own, in points. The "
        "95 % intervals are not adjusted for multiple comparisons; n counts the runs of each order:"
    )
    return "\n".join([text, "", *shown, ""])


def _standing(gap: Difference) -> str:
    """Return how full pre-activation compares with the original order, given a gap with an interval."""
    return "undecided" if gap.low <= 0 <= gap.high else "ahead" if gap.low > 0 else "behind"


def headline(store: Store) -> str:
    """Return the claim that the known gaps support; empty if the deepest of them does not exclude 0."""
    leads: list[str] = []
    for at, gap, _ in _gaps(store):
        if gap.is_known:
            leads = [*leads, str(at)] if gap.low > 0 else []
    *others, last = leads or [""]
    depths = f"{', '.join(others)} and {last}" if others else last
    return (
        f"At {depths} layers, full pre-activation reaches a lower test error than the original order." if leads else ""
    )


def depth_rows(store: Store) -> list[str]:
    """Return rows of a Markdown table: the lead of full pre-activation by depth, at the paper's learning rate."""
    return [
        f"| ResNet-{at} | {gap} | {counts} | {_standing(gap) if gap.is_known else 'too few runs'} |"
        for at, gap, counts in _gaps(store)
    ]


def _gaps(store: Store) -> list[tuple[int, Difference, str]]:
    """Return depth, gap and numbers of runs at the paper's learning rate, in order of depth."""
    runs = depth.confirmed(store)
    return [
        (at, gap, " and ".join(str(len(runs[order, at, PAPERS_RATE])) for order in ORDERS))
        for at, gap in depth.gaps(runs, tuned=False).items()
    ]


def _depth(store: Store, results: Path) -> list[str]:
    """Return the figure of the depth study, and its expectations with the evidence."""
    from keras_preact.plots import depth_figure

    runs = depth.confirmed(store)
    if not runs:
        return []
    at = depth.by_depth_and_choice(runs)
    rows = [[each.expected, each.found, each.verdict] for each in depth.findings(store)]
    table = markdown_table(("expected beforehand", "measured", "verdict"), rows)
    about = (
        "The expectations were written down when two networks of 110 layers had been trained, one of each order, and "
        "before all other runs. The rules for the verdicts were revised later. Differences are test errors of the "
        "original order minus those of full pre-activation, in points, with Welch's 95 % interval; without an "
        "interval, one of the orders has fewer than three runs. A verdict is undecided if an interval that it needs "
        f'contains 0 or does not exist. "No difference" means that the interval lies within ±{depth.SAME_WITHIN:g} '
        "point. In the depth study, an order's candidates are the paper's rate, its best rate in the screening, and "
        "the rates in between; at 110 layers, the original order was also tried at full pre-activation's best "
        "rate. The best candidate is chosen by the test errors that are reported, so its error is biased downward. In "
        "a tie, the paper's rate counts as the best."
    )
    shown = "Dots are runs, lines connect their means, and bands span the lowest to the highest run.\n"
    return [drawn(depth_figure(at), results, "depth"), shown, "\n".join([table, about, ""])]


def _totals(store: Store) -> str:
    """Return a sentence with the number of runs, their hours of wall-clock time and their hardware."""
    if not store.runs:
        return ""
    hours = sum(float(run.record["seconds"]) for run in store.runs) / 3600
    hardware = Counter(machine(run).rsplit(", ", 1)[0] for run in store.runs).most_common()
    counts = "; ".join(f"{count} on {name}" for name, count in hardware)
    return f"Total: {len(store.runs)} runs, {hours:.0f} hours of wall-clock time. By machine: {counts}.\n"


# ---- tables -------------------------------------------------------------------------------------------------------


def _tables(tables: Iterable[Table], explained: set[str], results: Path) -> Iterator[str]:
    """Yield tables, their verdicts and figures. A budget is explained above its first table.

    Args:
        tables: tables and budgets, with their rows.
        explained: titles of the budgets that are explained already; extended.
    """
    for experiment, budget, found in tables:
        yield markdown(experiment, budget, found, explains=title_of(budget) not in explained)
        explained.add(title_of(budget))
        if budget.judges:
            yield verdict(found)
        yield from _figures(experiment, budget, found, results)


def _figures(experiment: Experiment, budget: Budget, found: Sequence[Line], results: Path) -> Iterator[str]:
    """Draw the figures of a table and its training curves; yield the Markdown that shows them."""
    from keras_preact.plots import table_curves_figure, table_figure

    title = f"{experiment.heading}, {title_of(budget)}"
    curves = {line.label: line.runs[0].folder.metrics() for line in found if line.runs}
    references = {line.label: (line.reference or line).label for line in found}
    name = f"{experiment.name}-{budget.name}" + ("" if budget.profile == "paper" else f"-{budget.profile}")
    if any(line.difference is not None for line in found):
        yield drawn(table_figure(found, title), results, name)
    yield drawn(table_curves_figure(curves, references, title), results, f"{name}-curves")


def _budgets(store: Store) -> Iterator[Budget]:
    """Yield the budgets, each for the paper's profile and for every other profile that has runs."""
    profiles = sorted({run.config.options.get("profile", "paper") for run in store.runs} - {"paper"})
    for budget in BUDGETS.values():
        yield from (budget.of(profile) for profile in ("paper", *profiles))


# ---- the demo -----------------------------------------------------------------------------------------------------


def _demo(store: Store, results: Path) -> list[str]:
    """Return the section on `keras-preact demo`, over all seeds that were run."""
    from keras_preact.plots import orders_figure

    runs = _demo_runs(store)
    curves = {
        order: [run.folder.metrics() for run in found if math.isfinite(run.error)] for order, found in runs.items()
    }
    if not all(curves.values()):
        return []
    text = (
        f"`keras-preact demo` trains both orders of a ResNet-{DEMO_DEPTH} on 4,000 images of 16×16 pixels, at the "
        f"paper's learning rate of {PAPERS_RATE:g}. {demo_claim(store)} Thin lines "
        "are runs, thick lines their means."
    )
    figure = orders_figure(curves, f"ResNet-{DEMO_DEPTH}, 4,000 images of CIFAR-10, learning rate {PAPERS_RATE:g}")
    return ["\n".join(["## The demo", "", text, ""]), drawn(figure, results, "demo")]


def _demo_runs(store: Store) -> dict[str, Sequence[Run]]:
    screening = depth.screened(store)
    return {order: screening.get((order, DEMO_DEPTH, PAPERS_RATE), ()) for order in ORDERS}


def demo_claim(store: Store) -> str:
    """Return the finding of the demo's runs, the sentence under the figure in the project's README.md."""
    runs = _demo_runs(store)
    (first, one), (second, other) = ((in_words(order), depth.counted(found)) for order, found in runs.items())
    steps, apart = get_recipe("demo").steps, difference(one, other)
    interval = f", with a 95 % interval of [{apart.low:.2f}, {apart.high:.2f}]" if apart.is_known else ""
    return (
        f"After {steps} steps the mean test error is {statistics.mean(one):.1f} % in the {first} order and "
        f"{statistics.mean(other):.1f} % in {second}: a difference of {apart.mean:.2f} points{interval} "
        f"(n = {len(one)} and {len(other)})."
    )


# ---- the depth study ----------------------------------------------------------------------------------------------


def _screening(store: Store, results: Path) -> list[str]:
    from keras_preact.plots import screening_figure

    runs = depth.screened(store)
    if not runs:
        return []
    errors: dict[str, dict[tuple[int, float], float]] = {}
    for (order, at, rate), cell in runs.items():
        errors.setdefault(order, {})[at, rate] = statistics.mean(depth.counted(cell))
    warmed_up = {at: error for (at, _), error in errors.pop(depth.WARMED_UP, {}).items()}
    errors = {ORDERS[0]: {}, **errors} if warmed_up else errors
    count, seeds = sum(map(len, runs.values())), depth.runs_in_words(runs.values())
    text = (
        f"Test errors after the demo's {get_recipe('demo').steps} steps on 4,000 images: {count} runs, {seeds} per "
        f"cell. A learning rate works if the error is below {depth.WORKS_BELOW:g} %, ten points better than chance; a "
        "cross marks those that do not. The 1,000 test images alone give an error near "
        f"{depth.WORKS_BELOW:g} % a standard deviation of {binomial_deviation(depth.WORKS_BELOW, 1000):.1f} points."
    )
    if warmed_up:
        text += " In the row with warm-up, the original order trains at 0.01 for the first quarter of the steps."
    head = "## Screening: which learning rates work at which depth?"
    figure = screening_figure(errors, depth.WORKS_BELOW, warmed_up, RATES)
    shown = drawn(figure, results, "screening")
    return ["\n".join([head, "", text, ""]), shown, _tuning(runs), _rates_of_confirmation(store)]


def _tuning(screening: depth.RunsByCell) -> str:
    """Return the effect of tuning the learning rate as Markdown; empty unless all rates have been run."""
    found = depth.tuning(screening)
    if not found:
        return ""
    first, second = (in_words(order) for order in ORDERS)
    at = f"at {PAPERS_RATE:g}"
    heads = ["layers", f"{first} {at}", f"{second} {at}", "gap", f"{first}, best", f"{second}, best", "gap of the best"]
    rows = []
    for tuned in found:
        papers = [f"{tuned.papers[order]:.1f}" for order in ORDERS]
        best = [f"{tuned.best[order]:.1f} (rate {tuned.rates[order]:g})" for order in ORDERS]
        gaps = [f"{gap:+.1f}" for gap in tuned.gaps]
        rows.append([str(tuned.depth), *papers, gaps[0], *best, gaps[1]])
    share = depth.share_of_tuning(found)
    closes = f"At {depth.DEEP_FROM} and more layers, tuning closes {100 * (share or 0):.0f} % of the gap {at}."
    text = [
        f"Test errors (%) after {get_recipe('demo').steps} steps, and the lead of {second} in points (gap), {at} and "
        "at the rate that gives each order its lowest error after these steps.",
        *([closes] if share else []),
        f"Each error is a mean of few runs ({depth.runs_in_words(screening.values())}); the gaps have no "
        "intervals. For intervals, see the depth study at the top of this page.",
    ]
    return "\n".join([" ".join(text), "", markdown_table(heads, rows)])


def rate_rows(store: Store) -> list[list[str]]:
    """Return what another learning rate than the paper's does to each order: a row for each rate of the depth study."""
    runs, rows = depth.confirmed(store), []
    papers = {key: depth.counted(found) for key, found in runs.items() if key[2] == PAPERS_RATE}
    for order in ORDERS:
        for at, rate in ((at, rate) for at in DEPTHS for rate in RATES if rate != PAPERS_RATE):
            if (order, at, rate) in runs and (order, at, PAPERS_RATE) in papers:
                one, other = papers[order, at, PAPERS_RATE], depth.counted(runs[order, at, rate])
                errors = [f"{statistics.mean(found):.1f} % (n = {len(found)})" for found in (one, other)]
                change = depth.planned_difference(other, one)
                rows.append([in_words(order), str(at), errors[0], f"{rate:g}", errors[1], str(change)])
    return rows


RATE_COLUMNS = (
    "order",
    "layers",
    f"error at rate {PAPERS_RATE:g}",
    "other rate",
    "error there",
    "difference [95 %]",
)


def _rates_of_confirmation(store: Store) -> str:
    """Return the effect of another learning rate in the depth study as Markdown; empty if only one rate was run."""
    rows = rate_rows(store)
    text = (
        f"The best rate after {get_recipe('demo').steps} steps need not be the best later. In the depth study, after "
        f"{BUDGETS['deep'].recipes['cifar10'].steps:,} steps on all of CIFAR-10, another rate changes the mean test "
        f"error of an order by these points; an interval needs at least {depth.RUNS_FOR_INTERVAL} runs on each side:"
    )
    return "\n".join([text, "", markdown_table(RATE_COLUMNS, rows), _other_precisions(store)]) if rows else ""


def _other_precisions(store: Store) -> str:
    """Return a sentence on the rates whose runs used other precisions than those at the paper's rate."""
    runs, named = depth.confirmed(store), []
    for (order, at, rate), found in runs.items():
        at_papers = runs.get((order, at, PAPERS_RATE), ())
        used, usual = ({run.config.precision for run in each} for each in (found, at_papers))
        if usual and used != usual:
            named.append(f"{in_words(order)}, {at} layers, {rate:g} ({' and '.join(sorted(used))})")
    if not named:
        return ""
    return f"Some of these runs also differ in precision from those at {PAPERS_RATE:g}: {'; '.join(named)}.\n"


def _mechanism(store: Store, results: Path) -> list[str]:
    from keras_preact.plots import mechanism_figure

    parts = []
    for name, study, runs in (
        ("screening", "the screening", depth.screened(store)),
        ("depth", "the depth study", depth.confirmed(store)),
    ):
        found = depth.mechanism(runs)
        if any(orders for moments in found.values() for orders in moments.values()):
            text = (
                f"Medians over the measured runs of {study} at the learning rate {PAPERS_RATE:g}, on 128 test images "
                "with the batch's statistics. The direct term is the norm of the gradient along the shortcuts alone at "
                "a unit, divided by ‖∂E/∂x_L‖ at the end of its stage; the smallest value of all units is shown. The "
                "variance of the signal is that of the last unit's input, divided by that of the second unit's. Dead "
                "channels are those that the ReLU after the addition sets to 0 for every image."
            )
            parts.append("\n".join([f"## Signal and gradient in {study}", "", text, ""]))
            shown = {
                quantity: {depth.MOMENTS[moment]: orders for moment, orders in moments.items()}
                for quantity, moments in found.items()
            }
            parts.append(drawn(mechanism_figure(shown), results, f"{name}-mechanism"))
    return parts


# ---- sequences -------------------------------------------------------------------------------------------------------


def _baselines(store: Store) -> str:
    """Return a table of the sequence runs that are in no other table, each with its best simple baseline."""
    rows = []
    for run in store.runs:
        baselines = run.record.get("data", {}).get("baselines")
        if baselines and table_of(run.config) == "others":
            best = min(baselines, key=baselines.get)
            baseline = f"{baselines[best]:.2f} {escaped(run.folder.unit())}, {escaped(best)}"
            verdict = "beats it" if run.error < baselines[best] else "does not beat it"
            rows.append([*map(escaped, (run.folder.path.name, run.config.dataset, _error(run))), baseline, verdict])
    if not rows:
        return ""
    heads = ("run", "data", "test error", "best simple baseline", "")
    return "\n".join(["## Sequence networks against simple baselines", "", markdown_table(heads, rows)])


# ---- every run ----------------------------------------------------------------------------------------------------


def _every_run(store: Store, results: Path) -> Iterator[str]:
    """Yield the lists of all runs: images, then sequences."""
    on_sequences = [run for run in store.runs if "task" in run.record.get("data", {})]
    on_images = [run for run in store.runs if run not in on_sequences]
    for title, runs in (("Every run on images", on_images), ("Every run on sequences", on_sequences)):
        if runs:
            yield "\n".join([f"## {title}", "", markdown_table(RUN_COLUMNS, [_row(run, results) for run in runs])])


RUN_COLUMNS = ("run", "network", "data", "recipe", "test error", "minutes", "hardware")


def _row(run: Run, results: Path) -> list[str]:
    """Return the cells of a run, in the order of `RUN_COLUMNS`."""
    record, config = run.record, run.config
    data = config.dataset + (f", {config.image_size} pixels" if config.image_size else "")
    data += f" ({', '.join(config.only)})" if config.only else ""
    steps, minutes = f"{config.recipe.name}, {config.recipe.steps:,} steps", f"{record['seconds'] / 60:.0f}"
    cells = [record["model"]["name"], data, steps, _error(run), minutes, machine(run)]
    return [link_to(run.folder, results), *map(escaped, cells)]


def _error(run: Run) -> str:
    """Return a run's test error as text."""
    diverged = run.record.get("diverged")
    return f"diverged at step {diverged['step']:,}" if diverged else f"{run.error:.2f} {run.folder.unit()}"
