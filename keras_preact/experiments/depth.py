"""The depth study: expectations written down before nearly all of the runs, and the evidence from the runs.

The screening trains every order at every learning rate and every depth but the largest, most of them with one seed, in
the demo's setting. The confirmation trains the original order and full pre-activation with several seeds, at the
paper's learning rate and at each order's best rate: the one with the lowest mean test error in the confirmation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keras_preact.experiments.grid import BUDGETS, DEPTHS
from keras_preact.experiments.probe import at_moments, read_propagation
from keras_preact.experiments.statistics import (
    AGREES,
    DIFFERS,
    UNDECIDED,
    Difference,
    contrast,
    difference_of_differences,
)
from keras_preact.experiments.store import Run, Store
from keras_preact.experiments.tables import (
    BEST_RATES,
    EXPERIMENTS,
    ORDERS,
    PAPERS_RATE,
    RATES,
    confirmed_rates,
)
from keras_preact.paper import in_words

WORKS_BELOW = 80.0
"""In the screening a learning rate works if its test error (%) is below this: ten points below chance."""
SAME_WITHIN = 1.0
"""Two errors count as equal if the 95 % interval of their difference lies within ± this, in points."""
DEEP_FROM = 110
WARMED_UP = "original, warm-up"
"""Key of the runs of the original order with the paper's warm-up."""

RunsByCell = Mapping[tuple[str, int, float], Sequence[Run]]
"""Runs by order, depth and learning rate."""


def screened(store: Store) -> RunsByCell:
    """Return the runs of the screening; those with the paper's warm-up have the order `WARMED_UP`."""
    return _by_cell(store, "screening", "demo")


def confirmed(store: Store) -> RunsByCell:
    """Return the runs of the confirmation."""
    return _by_cell(store, "depth", "deep")


def _by_cell(store: Store, experiment: str, budget: str) -> RunsByCell:
    found = {}
    for row in EXPERIMENTS[experiment].rows:
        runs = store.with_any_seed(BUDGETS[budget].config(row, 0, "float32"))
        if runs:
            order = row.options["placement"] if row.warmup_learning_rate is None else WARMED_UP
            found[order, int(row.network.removeprefix("depth-")), row.learning_rate or PAPERS_RATE] = runs
    return found


def best_rates(screening: RunsByCell, order: str) -> dict[int, float]:
    """Return the learning rate with the lowest test error, for each depth at which all rates have been run.

    Args:
        screening: result of `screened`.
        order: the placement.
    """
    found = {depth: _errors_by_rate(screening, order, depth) for depth in DEPTHS}
    return {depth: _best(errors) for depth, errors in found.items() if len(errors) == len(RATES)}


@dataclass(frozen=True)
class Tuned:
    """Errors in the screening at one depth, at the paper's learning rate and at each order's best one.

    Attributes:
        depth: number of layers.
        papers: test error (%) by order, at the paper's learning rate.
        rates: best learning rate by order.
        best: test error (%) by order, at its best learning rate.
    """

    depth: int
    papers: Mapping[str, float]
    rates: Mapping[str, float]
    best: Mapping[str, float]

    @property
    def gaps(self) -> tuple[float, float]:
        """Original minus full pre-activation, in points: at the paper's learning rate, and each at its best."""
        first, second = ORDERS
        return self.papers[first] - self.papers[second], self.best[first] - self.best[second]


def tuning(screening: RunsByCell) -> list[Tuned]:
    """Return the effect of tuning the learning rate, for each depth at which all rates have been run in both orders.

    Args:
        screening: result of `screened`.
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
    """Return the share of the deep networks' gap that tuning closes; `None` if there is no gap.

    1 if it closes all of it, more if the gap changes sign, below 0 if it grows.

    Args:
        found: result of `tuning`.
    """
    papers, best = (sum(tuned.gaps[k] for tuned in found if tuned.depth >= DEEP_FROM) for k in (0, 1))
    return 1 - best / papers if papers > 0 else None


def _errors_by_rate(screening: RunsByCell, order: str, depth: int) -> dict[float, float]:
    cells = {rate: screening[order, depth, rate] for rate in RATES if (order, depth, rate) in screening}
    return {rate: statistics.mean(counted(runs)) for rate, runs in cells.items()}


def counted(runs: Sequence[Run]) -> list[float]:
    """Return test errors (%); a diverged run counts as random guessing."""
    return [run.counted_error for run in runs]


def runs_in_words(cells: Iterable[Sequence[Run]]) -> str:
    """Return the number of runs per cell as text; empty without cells.

    >>> runs_in_words([[1, 2, 3], [1], []]), runs_in_words([[1], [1]])
    ('n = 0 to 3', 'n = 1')
    """
    counts = sorted({len(runs) for runs in cells})
    return f"n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}" if counts else ""


RUNS_FOR_INTERVAL = 3
"""Runs that every group needs before a difference has an interval; with two, the interval can span tens of points."""


def planned_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference of two means; it has an interval once both sides have `RUNS_FOR_INTERVAL` runs.

    >>> str(planned_difference([7.0, 7.2, 7.1], [6.0, 6.2, 6.4])), str(planned_difference([7.0, 7.2, 7.1], [6.0, 6.2]))
    ('+0.90 [+0.48, +1.32]', '+1.00')
    """
    return _planned_contrast([first], [second])


def _planned_contrast(plus: Sequence[Sequence[float]], minus: Sequence[Sequence[float]]) -> Difference:
    found = contrast(plus, minus)
    has_enough = all(len(errors) >= RUNS_FOR_INTERVAL for errors in (*plus, *minus))
    return found if has_enough else Difference(found.mean, -math.inf, math.inf)


def gaps(confirmation: RunsByCell, tuned: bool) -> dict[int, Difference]:
    """Return the test error of the original minus that of full pre-activation, by depth.

    Args:
        confirmation: result of `confirmed`.
        tuned: use each order's best learning rate instead of the paper's. Depths at which not all rates have been run
            are left out.
    """
    found = {}
    for depth in DEPTHS:
        runs = [_chosen(confirmation, order, depth, tuned) for order in ORDERS]
        if all(runs):
            found[depth] = planned_difference(*map(counted, runs))
    return found


def confirmed_best(confirmation: RunsByCell, order: str, depth: int) -> float | None:
    """Return the learning rate with the lowest mean test error in the confirmation; `None` until all rates were run.

    Args:
        confirmation: result of `confirmed`.
        order: the placement.
        depth: number of layers.
    """
    rates = confirmed_rates(order, depth)
    if (order, depth) not in BEST_RATES or any((order, depth, rate) not in confirmation for rate in rates):
        return None
    return _best({rate: statistics.mean(counted(confirmation[order, depth, rate])) for rate in rates})


def _best(errors: Mapping[float, float]) -> float:
    """Return the learning rate with the lowest error; of several that are equally good, the paper's or the nearest."""
    return min(errors, key=lambda rate: (round(errors[rate], 6), abs(math.log(rate / PAPERS_RATE))))


def _chosen(confirmation: RunsByCell, order: str, depth: int, tuned: bool) -> Sequence[Run]:
    rate = confirmed_best(confirmation, order, depth) if tuned else PAPERS_RATE
    return () if rate is None else confirmation.get((order, depth, rate), ())


def by_depth_and_choice(confirmation: RunsByCell) -> dict[str, dict[str, dict[str, dict[int, list[float]]]]]:
    """Return training losses and test errors of the last epoch, by quantity, choice of the rate, order and depth.

    Diverged runs have no loss, and count as random guessing.

    Args:
        confirmation: result of `confirmed`.
    """
    choices = {f"learning rate {PAPERS_RATE:g}, the paper's": False, "each order's best learning rate": True}
    found: dict[str, dict[str, dict[str, dict[int, list[float]]]]] = {"training loss": {}, "test error (%)": {}}
    for choice, tuned in choices.items():
        for quantity in found:
            found[quantity][choice] = {order: {} for order in ORDERS}
        for order in ORDERS:
            for depth in gaps(confirmation, tuned=True) if tuned else DEPTHS:  # tuned, both orders or neither
                runs = _chosen(confirmation, order, depth, tuned)
                losses = [run.folder.metrics()[-1]["train_loss"] for run in runs if math.isfinite(run.loss)]
                for quantity, values in zip(found, (losses, counted(runs)), strict=True):
                    if values:
                        found[quantity][choice][order][depth] = values
    return found


# ---- expectations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """An expectation and the evidence for or against it.

    Attributes:
        expected: the expectation.
        found: the measurements, in words.
        verdict: `"agrees"`, `"differs"` or `"undecided"`.
    """

    expected: str
    found: str
    verdict: str


def findings(store: Store) -> list[Finding]:
    """Return every expectation with the evidence from the runs in a store.

    Example: without any run.

    >>> [finding.verdict for finding in findings(Store([]))]
    ['undecided', 'undecided', 'undecided', 'undecided', 'undecided', 'undecided', 'undecided']
    """
    screening, confirmation = screened(store), confirmed(store)
    at_papers_rate = gaps(confirmation, tuned=False)
    falls, stays = (
        "the best rate of the original order falls with depth",
        "the best rate of full pre-activation does not fall with depth",
    )
    judged: list[tuple[str, Callable[[], tuple[str, str]]]] = [
        ("at 20 and 56 layers the order makes no difference", lambda: _no_gap(at_papers_rate)),
        ("at the paper's rate the gap grows with depth from 110 layers on", lambda: _growing(confirmation)),
        (falls, lambda: _falls_in_screening(screening, "original", True)),
        (falls, lambda: _falls_in_confirmation(confirmation, "original", True)),
        (stays, lambda: _falls_in_screening(screening, "full_preactivation", False)),
        (stays, lambda: _falls_in_confirmation(confirmation, "full_preactivation", False)),
        ("the gap is smaller when both orders are tuned", lambda: _smaller(confirmation)),
    ]
    return [Finding(expected, *judge()) for expected, judge in judged]


def _no_gap(found: Mapping[int, Difference]) -> tuple[str, str]:
    shallow = {depth: gap for depth, gap in found.items() if depth < DEEP_FROM}
    inside = [depth for depth, gap in shallow.items() if gap.low > -SAME_WITHIN and gap.high < SAME_WITHIN]
    if inside == [depth for depth in DEPTHS if depth < DEEP_FROM]:
        return _as_text(shallow), AGREES
    apart = any(gap.is_known and not gap.low <= 0 <= gap.high and depth not in inside for depth, gap in shallow.items())
    return _as_text(shallow), DIFFERS if apart else UNDECIDED


def _growing(confirmation: RunsByCell) -> tuple[str, str]:
    """Judge whether the gap grows from the first to the last of the deep networks that have an interval.

    The growth from the shallowest network is shown, too; it says nothing about where the growth takes place.
    """
    found = gaps(confirmation, tuned=False)
    deep = _as_text({depth: gap for depth, gap in found.items() if depth >= DEEP_FROM})
    known = [depth for depth, gap in found.items() if gap.is_known]
    deep_known = [depth for depth in known if depth >= DEEP_FROM]
    if len(deep_known) < 2:
        return deep, UNDECIDED
    errors = {depth: [counted(confirmation[order, depth, PAPERS_RATE]) for order in ORDERS] for depth in known}
    last = deep_known[-1]
    growth = {first: difference_of_differences(errors[last], errors[first]) for first in (deep_known[0], known[0])}
    said = "; ".join(f"from {first} to {last} layers {grown}" for first, grown in growth.items())
    return f"{deep}; {said}", growth[deep_known[0]].verdict(1.0)


def _falls_in_screening(screening: RunsByCell, order: str, expected: bool) -> tuple[str, str]:
    best = best_rates(screening, order)
    seeds = runs_in_words([screening[order, depth, rate] for depth in best for rate in RATES])
    found = _rates_as_text(best, f"screening, {BUDGETS['demo'].recipes['bundled'].steps:,} steps, {seeds}")
    return found, _falls(best, lambda depth: {rate: counted(screening[order, depth, rate]) for rate in RATES}, expected)


def _falls_in_confirmation(confirmation: RunsByCell, order: str, expected: bool) -> tuple[str, str]:
    """Judge the depths for which several rates were confirmed."""
    depths = [depth for depth in DEPTHS if len(confirmed_rates(order, depth)) > 1]
    best = {depth: rate for depth in depths if (rate := confirmed_best(confirmation, order, depth)) is not None}
    found = _rates_as_text(best, f"depth study, {BUDGETS['deep'].recipes['cifar10'].steps:,} steps")

    def errors(depth: int) -> dict[float, list[float]]:
        return {rate: counted(confirmation[order, depth, rate]) for rate in confirmed_rates(order, depth)}

    return found, _falls(best, errors, expected)


def _falls(best: Mapping[int, float], errors: Callable[[int], Mapping[float, list[float]]], expected: bool) -> str:
    """Judge whether the best rate falls from the first depth to the last.

    It falls if, at the last depth, a rate below the first depth's best has a lower error. It does not fall if all such
    rates have a higher error. Both need an interval that excludes 0; otherwise, it is undecided.
    """
    if len(best) < 2:
        return UNDECIDED
    first, at_last = best[min(best)], errors(max(best))
    lower = [planned_difference(found, at_last[first]) for rate, found in at_last.items() if rate < first]
    if any(gap.high < 0 for gap in lower):
        return AGREES if expected else DIFFERS
    return (DIFFERS if expected else AGREES) if lower and all(gap.low > 0 for gap in lower) else UNDECIDED


def _rates_as_text(best: Mapping[int, float], setting: str) -> str:
    text = "; ".join(f"{rate:g} at {depth} layers" for depth, rate in best.items())
    return f"{text} ({setting})" if text else "not run"


def _smaller(confirmation: RunsByCell) -> tuple[str, str]:
    papers, tuned = gaps(confirmation, tuned=False), gaps(confirmation, tuned=True)
    deep = [depth for depth in tuned if depth >= DEEP_FROM and depth in papers]
    changes = {depth: _change_by_tuning(confirmation, depth) for depth in deep}

    def describe(depth: int) -> str:
        first, second = (confirmed_best(confirmation, order, depth) for order in ORDERS)
        rates = f"the best rates ({in_words(ORDERS[0])} {first:g}, {in_words(ORDERS[1])} {second:g})"
        change = f"change {changes[depth]}"
        return f"{depth} layers: {papers[depth]} at the paper's rate, {tuned[depth]} at {rates}, {change}"

    text = "<br>".join(map(describe, deep))
    verdict = AGREES if changes and all(change.high < 0 for change in changes.values()) else UNDECIDED
    return text or "not run", DIFFERS if any(change.low > 0 for change in changes.values()) else verdict


def _change_by_tuning(confirmation: RunsByCell, depth: int) -> Difference:
    """Return the gap at each order's best rate minus that at the paper's; an order whose rate stays cancels."""
    plus: list[list[float]] = []
    minus: list[list[float]] = []
    for order, at_best, at_papers in ((ORDERS[0], plus, minus), (ORDERS[1], minus, plus)):
        if (rate := confirmed_best(confirmation, order, depth)) is not None and rate != PAPERS_RATE:
            at_best.append(counted(confirmation[order, depth, rate]))
            at_papers.append(counted(confirmation[order, depth, PAPERS_RATE]))
    return _planned_contrast(plus, minus)


def _as_text(found: Mapping[int, Difference]) -> str:
    return "; ".join(f"{depth} layers {gap}" for depth, gap in found.items()) or "not run"


# ---- the mechanism ------------------------------------------------------------------------------------------------

Moment = Mapping[str, Sequence[float]]


def direct_term(moment: Moment) -> float:
    """Return the smallest share of the direct term of Eq. (5) at any unit, as in `probe.direct_shares`.

    The first unit of each stage is left out: it changes the shape, or activates x before the split.

    Args:
        moment: an entry of `propagation.json`.
    """
    stages = moment["stage"]
    return min(share for k, share in enumerate(moment["direct"]) if k and stages[k] == stages[k - 1])


def signal_growth(moment: Moment) -> float:
    """Return the variance of the last unit's input divided by that of the second unit's input."""
    return moment["variance"][-1] / moment["variance"][1]


def dead_channels(moment: Moment) -> float:
    """Return the share of channels that the ReLU after the addition sets to zero; 0 if there is no such ReLU."""
    return statistics.mean(moment["dead"]) if moment["dead"] else 0.0


MECHANISM: dict[str, Callable[[Moment], float]] = {
    "direct term left, Eq. (5)": direct_term,
    "variance of the signal, last ÷ second unit": signal_growth,
    "dead channels after the addition": dead_channels,
}
MOMENTS = {"before": "before the first step", "early": "after 50 steps", "end": "at the end"}


def mechanism(runs: RunsByCell) -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """Return the quantities that explain the gap, by quantity, moment, order and depth: medians at the paper's rate.

    Args:
        runs: result of `screened` or `confirmed`.
    """
    found: dict[str, dict[str, dict[str, dict[int, float]]]] = {
        quantity: {moment: {} for moment in MOMENTS} for quantity in MECHANISM
    }
    for (order, depth, rate), cell in runs.items():
        measured = [at_moments(read_propagation(run.folder.path)) for run in cell] if rate == PAPERS_RATE else []
        for moment in MOMENTS:
            entries = [each[moment] for each in measured if moment in each]
            entries = [entry for entry in entries if math.isfinite(entry["variance"][-1])]  # without diverged runs
            for quantity, measure in MECHANISM.items() if entries else ():
                series = found[quantity][moment].setdefault(order, {})
                series[depth] = statistics.median(measure(entry) for entry in entries)
    return found
