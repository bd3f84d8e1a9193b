"""What the depth study shows: expectations written down before the runs, and what the runs say of them.

The screening trains every order at every depth and learning rate once, in the demo's setting. The confirmation trains
original and full pre-activation with several seeds, at the paper's learning rate and at each order's best one: the one
with the lowest mean test error of those that the confirmation ran. The original has more rates to choose from, which is
to its advantage.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from keras_preact.experiments.grid import BUDGETS, DEPTHS
from keras_preact.experiments.probe import at_moments, read_propagation
from keras_preact.experiments.statistics import AGREES, DIFFERS, UNDECIDED, Difference, difference
from keras_preact.experiments.store import Run, Store
from keras_preact.experiments.tables import BEST_RATES, EXPERIMENTS, ORDERS, PAPERS_RATE, RATES, confirmed_rates

WORKS_BELOW = 80.0
"""Test error (%) of the screening below which a learning rate works: ten points below chance."""
SAME_WITHIN = 1.0
"""Points within which two errors are equal, where that is what is expected."""
DEEP_FROM = 110
WARMED_UP = "original, warm-up"
"""What runs of the original order with the paper's warm-up are found under."""

WORDS = {
    "original": "original",
    "full_preactivation": "full pre-activation",
    "bn_after_addition": "BN after addition",
}
"""What figures and tables call an order."""

Errors = Mapping[tuple[str, int, float], Sequence[Run]]
"""Runs by order, depth and learning rate."""


def screened(store: Store) -> Errors:
    """Return the runs of the screening; those with the paper's warm-up under the order `WARMED_UP`."""
    return _by_cell(store, "screening", "demo")


def confirmed(store: Store) -> Errors:
    """Return the runs of the confirmation."""
    return _by_cell(store, "depth", "deep")


def _by_cell(store: Store, experiment: str, budget: str) -> Errors:
    found = {}
    for row in EXPERIMENTS[experiment].rows:
        runs = store.with_any_seed(BUDGETS[budget].config(row, 0, "float32"))
        if runs:
            order = row.options["placement"] if row.warmup_learning_rate is None else WARMED_UP
            found[order, int(row.network.removeprefix("depth-")), row.learning_rate or PAPERS_RATE] = runs
    return found


def largest_working_rates(screening: Errors, order: str) -> dict[int, float]:
    """Return by depth the largest learning rate that works, 0 where none does; depths without runs are left out.

    Args:
        screening: of `screened`.
        order: the placement.
    """
    largest = {}
    for depth in DEPTHS:
        errors = _errors_by_rate(screening, order, depth)
        if errors:
            largest[depth] = max((rate for rate, error in errors.items() if error < WORKS_BELOW), default=0.0)
    return largest


def best_rates(screening: Errors, order: str) -> dict[int, float]:
    """Return by depth the learning rate with the lowest test error, where all of them have been run.

    Args:
        screening: of `screened`.
        order: the placement.
    """
    found = {depth: _errors_by_rate(screening, order, depth) for depth in DEPTHS}
    return {depth: min(errors, key=errors.__getitem__) for depth, errors in found.items() if len(errors) == len(RATES)}


@dataclass(frozen=True)
class Tuned:
    """Errors of the screening at one depth, at the paper's learning rate and at each order's best one.

    Attributes:
        depth: layers.
        papers: test error (%) by order at the paper's learning rate.
        rates: each order's best learning rate.
        best: its test error (%) there.
    """

    depth: int
    papers: Mapping[str, float]
    rates: Mapping[str, float]
    best: Mapping[str, float]

    @property
    def gaps(self) -> tuple[float, float]:
        """Original less full pre-activation, in points: at the paper's learning rate, and both at their best."""
        first, second = ORDERS
        return self.papers[first] - self.papers[second], self.best[first] - self.best[second]


def tuning(screening: Errors) -> list[Tuned]:
    """Return by depth what tuning the learning rate does, where all rates have been run in both orders.

    Args:
        screening: of `screened`.
    """
    rates = {order: best_rates(screening, order) for order in ORDERS}
    found = []
    for depth in DEPTHS:
        if all(depth in rates[order] for order in ORDERS):
            errors = {order: _errors_by_rate(screening, order, depth) for order in ORDERS}
            here = {order: rates[order][depth] for order in ORDERS}
            best = {order: errors[order][rate] for order, rate in here.items()}
            found.append(Tuned(depth, {order: errors[order][PAPERS_RATE] for order in ORDERS}, here, best))
    return found


def share_of_tuning(found: Sequence[Tuned]) -> float | None:
    """Return how much of the gap of the deep networks tuning closes, from 0 to 1; `None` where there is no gap.

    Args:
        found: of `tuning`.
    """
    papers, best = (sum(tuned.gaps[k] for tuned in found if tuned.depth >= DEEP_FROM) for k in (0, 1))
    return 1 - best / papers if papers > 0 else None


def _errors_by_rate(screening: Errors, order: str, depth: int) -> dict[float, float]:
    cells = {rate: screening[order, depth, rate] for rate in RATES if (order, depth, rate) in screening}
    return {rate: statistics.mean(counted(runs)) for rate, runs in cells.items()}


def counted(runs: Sequence[Run]) -> list[float]:
    """Return test errors (%), those of diverged runs at chance."""
    return [run.error if math.isfinite(run.error) else run.chance for run in runs]


def gaps(confirmation: Errors, tuned: bool) -> dict[int, Difference]:
    """Return by depth the test error of the original less that of full pre-activation, with its interval.

    Args:
        confirmation: of `confirmed`.
        tuned: at each order's best learning rate, instead of the paper's for both; depths whose rates have not all
            been run are left out.
    """
    found = {}
    for depth in DEPTHS:
        runs = [_chosen(confirmation, order, depth, tuned) for order in ORDERS]
        if all(runs):
            found[depth] = difference(*map(counted, runs))
    return found


def confirmed_best(confirmation: Errors, order: str, depth: int) -> float | None:
    """Return the learning rate with the lowest mean test error of the confirmation, once all of its rates were run.

    Args:
        confirmation: of `confirmed`.
        order: the placement.
        depth: layers.
    """
    rates = confirmed_rates(order, depth)
    if (order, depth) not in BEST_RATES or any((order, depth, rate) not in confirmation for rate in rates):
        return None
    return min(rates, key=lambda rate: statistics.mean(counted(confirmation[order, depth, rate])))


def _chosen(confirmation: Errors, order: str, depth: int, tuned: bool) -> Sequence[Run]:
    rate = confirmed_best(confirmation, order, depth) if tuned else PAPERS_RATE
    return () if rate is None else confirmation.get((order, depth, rate), ())


def by_depth_and_choice(confirmation: Errors) -> dict[str, dict[str, dict[str, dict[int, list[float]]]]]:
    """Return training losses and test errors of the last epoch: by quantity, choice of the rate, order and depth.

    Args:
        confirmation: of `confirmed`.
    """
    choices = {f"learning rate {PAPERS_RATE:g}, the paper's": False, "each order's best learning rate": True}
    found: dict[str, dict[str, dict[str, dict[int, list[float]]]]] = {"training loss": {}, "test error (%)": {}}
    for choice, tuned in choices.items():
        for quantity in found:
            found[quantity][choice] = {order: {} for order in ORDERS}
        for order in ORDERS:
            for depth in gaps(confirmation, tuned=True) if tuned else DEPTHS:  # tuned, both orders or neither
                ended = [run for run in _chosen(confirmation, order, depth, tuned) if math.isfinite(run.error)]
                if ended:
                    losses = [run.folder.metrics()[-1]["train_loss"] for run in ended]
                    found["training loss"][choice][order][depth] = losses
                    found["test error (%)"][choice][order][depth] = [run.error for run in ended]
    return found


# ---- expectations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """An expectation, and what the runs say.

    Attributes:
        expected: written down before the runs.
        found: in words, with numbers.
        verdict: `"agrees"`, `"differs"` or `"undecided"`.
    """

    expected: str
    found: str
    verdict: str


def findings(store: Store) -> list[Finding]:
    """Return every expectation with what the runs in a store say of it.

    Example: without any run.

    >>> [finding.verdict for finding in findings(Store([]))]
    ['undecided', 'undecided', 'undecided', 'undecided', 'undecided']
    """
    screening, confirmation = screened(store), confirmed(store)
    at_papers_rate = gaps(confirmation, tuned=False)
    judged: list[tuple[str, Callable[[], tuple[str, str]]]] = [
        ("at 20 and 56 layers the order makes no difference", lambda: _no_gap(at_papers_rate)),
        ("at the paper's rate the gap grows with depth from 110 layers on", lambda: _growing(at_papers_rate)),
        ("the best rate of the original falls with depth", lambda: _falls(best_rates(screening, "original"), True)),
        (
            "the best rate of full pre-activation does not fall with depth",
            lambda: _falls(best_rates(screening, "full_preactivation"), False),
        ),
        ("the gap is smaller when both orders are tuned", lambda: _smaller(confirmation)),
    ]
    return [Finding(expected, *judge()) for expected, judge in judged]


def _no_gap(found: Mapping[int, Difference]) -> tuple[str, str]:
    shallow = {depth: gap for depth, gap in found.items() if depth < DEEP_FROM}
    known = [gap for gap in shallow.values() if gap.is_known]
    if len(known) == 2 and all(gap.low > -SAME_WITHIN and gap.high < SAME_WITHIN for gap in known):
        verdict = AGREES
    else:
        verdict = DIFFERS if any(not gap.low <= 0 <= gap.high for gap in known) else UNDECIDED
    return _said(shallow), verdict


def _growing(found: Mapping[int, Difference]) -> tuple[str, str]:
    deep = {depth: gap for depth, gap in found.items() if depth >= DEEP_FROM}
    known = [gap for gap in deep.values() if gap.is_known]
    if any(gap.high < 0 for gap in known):
        return _said(deep), DIFFERS
    grows = len(known) > 1 and known[-1].low > known[0].mean and all(gap.low > 0 for gap in known)
    return _said(deep), AGREES if grows else UNDECIDED


def _falls(best: Mapping[int, float], expected: bool) -> tuple[str, str]:
    said = "; ".join(f"{depth} layers {rate:g}" for depth, rate in best.items())
    rates = list(best.values())
    if len(rates) < 2:
        return said or "not run", UNDECIDED
    falls = rates[-1] < rates[0] and rates == sorted(rates, reverse=True)
    return f"{said} (one seed)", AGREES if falls == expected else DIFFERS


def _smaller(confirmation: Errors) -> tuple[str, str]:
    papers, tuned = gaps(confirmation, tuned=False), gaps(confirmation, tuned=True)
    deep = [depth for depth in tuned if depth >= DEEP_FROM and depth in papers]

    def said_of(depth: int) -> str:
        first, second = (confirmed_best(confirmation, order, depth) for order in ORDERS)
        rates = f"the best rates ({WORDS[ORDERS[0]]} {first:g}, {WORDS[ORDERS[1]]} {second:g})"
        return f"{depth} layers {papers[depth]} at the paper's rate, {tuned[depth]} at {rates}"

    said = "; ".join(map(said_of, deep))
    apart = [tuned[depth].high < papers[depth].low for depth in deep if tuned[depth].is_known]
    larger = [tuned[depth].low > papers[depth].high for depth in deep if tuned[depth].is_known]
    verdict = AGREES if apart and all(apart) else DIFFERS if any(larger) else UNDECIDED
    return said or "not run", verdict


def _said(found: Mapping[int, Difference]) -> str:
    return "; ".join(f"{depth} layers {gap}" for depth, gap in found.items()) or "not run"


# ---- the mechanism ------------------------------------------------------------------------------------------------

Moment = Mapping[str, Sequence[float]]


def direct_term(moment: Moment) -> float:
    """Return how much of the direct term of Eq. (5) is left at the start of a stage: the least of all stages.

    Args:
        moment: an entry of `propagation.json`. Units that change the shape are left out.
    """
    stages = moment["stage"]
    return min(share for k, share in enumerate(moment["direct"]) if k and stages[k] == stages[k - 1])


def signal_growth(moment: Moment) -> float:
    """Return the variance of the last unit's input over that of the second's, which both orders have normalized."""
    return moment["variance"][-1] / moment["variance"][1]


def dead_channels(moment: Moment) -> float:
    """Return the share of channels that the ReLU after the addition sets to zero; 0 without such a ReLU."""
    return statistics.mean(moment["dead"]) if moment["dead"] else 0.0


MECHANISM: dict[str, Callable[[Moment], float]] = {
    "direct term left, Eq. (5)": direct_term,
    "variance of the signal, last ÷ second unit": signal_growth,
    "dead channels after the addition": dead_channels,
}
MOMENTS = {"before": "before the first step", "early": "after 50 steps", "end": "at the end"}


def mechanism(runs: Errors, rate: float = PAPERS_RATE) -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """Return what explains the gap: by quantity, moment, order and depth; the median of the runs at a learning rate.

    Args:
        runs: of `screened` or `confirmed`.
        rate: their learning rate.
    """
    found: dict[str, dict[str, dict[str, dict[int, float]]]] = {
        quantity: {moment: {} for moment in MOMENTS} for quantity in MECHANISM
    }
    for (order, depth, at), cell in runs.items():
        measured = [at_moments(read_propagation(run.folder.path)) for run in cell] if at == rate else []
        for moment in MOMENTS:
            entries = [each[moment] for each in measured if moment in each]
            entries = [entry for entry in entries if math.isfinite(entry["variance"][-1])]  # the others have diverged
            for quantity, measure in MECHANISM.items() if entries else ():
                series = found[quantity][moment].setdefault(order, {})
                series[depth] = statistics.median(measure(entry) for entry in entries)
    return found
