"""The depth study says what its runs say: best rates, gaps, and how far expectations hold."""

import json
import math
from pathlib import Path

import pytest

from keras_preact.experiments import BUDGETS, EXPERIMENTS, Store, depth
from keras_preact.experiments.probe import PROPAGATION
from keras_preact.experiments.statistics import difference
from keras_preact.experiments.tables import TUNED_ORIGINAL
from keras_preact.training import RunFolder

BUDGET = {"screening": "demo", "depth": "deep"}


@pytest.fixture
def store(tmp_path, made_up_run):
    """A function that makes up runs, errors by row of a table, and returns their store."""

    def make(table, errors):
        for name, found in errors.items():
            (row,) = EXPERIMENTS[table].select([name])
            for seed, error in enumerate(found):
                config = BUDGETS[BUDGET[table]].config(row, seed, "float32")
                made_up_run(tmp_path / table / f"{name}-{seed}", config, error)
        return Store([tmp_path])

    return make


def test_the_best_rate_is_known_where_all_rates_were_run(store):
    cells = {0.003: 75.0, 0.01: 60.0, 0.03: 65.0, 0.1: 85.0, 0.3: 90.0}
    errors = {f"original-218-{rate:g}": [error] for rate, error in cells.items()}
    errors |= {"original-434-0.1": [88.0], "full_preactivation-20-0.3": [79.9], "original-218-warmup": [50.0]}
    found = depth.screened(store("screening", errors))
    assert depth.best_rates(found, "original") == {218: 0.01}
    assert found["original, warm-up", 218, 0.1][0].error == 50.0


def test_gaps_are_the_originals_error_less_that_of_pre_activation(store):
    errors = {"original-110-0.1": [38.0, 39.0, 40.0], "full_preactivation-110-0.1": [35.0, 36.0, 34.0]}
    confirmation = depth.confirmed(store("depth", {**errors, "original-218-0.1": [50.0]}))
    gaps = depth.gaps(confirmation, tuned=False)
    assert list(gaps) == [110] and gaps[110].mean == pytest.approx(4.0) and gaps[110].low > 0
    assert depth.gaps(confirmation, tuned=True) == {}


def test_a_difference_has_an_interval_from_three_runs_on(store):
    assert depth.planned_difference([40.0, 41.0, 42.0], [30.0, 31.0, 32.0]).is_known
    for one, other in (([40.0, 41.0], [30.0, 31.0, 32.0]), ([40.0, 41.0, 42.0], [30.0, 31.0])):
        gap = depth.planned_difference(one, other)
        assert not gap.is_known and gap.mean == pytest.approx(10.0, abs=0.51)
    errors = {"original-110-0.1": [40.0, 41.0, 42.0], "full_preactivation-110-0.1": [30.0, 31.0]}
    assert not depth.gaps(depth.confirmed(store("depth", errors)), tuned=False)[110].is_known


def test_the_best_rate_is_the_one_with_the_lowest_mean_error_of_all_that_were_run(store):
    papers = {"original-110-0.1": [38.0, 42.0], "full_preactivation-110-0.1": [35.0, 36.0]}
    found = depth.confirmed(
        store("depth", {**papers, "original-110-0.01": [39.0], "full_preactivation-110-0.3": [34.0]})
    )
    assert depth.confirmed_best(found, "full_preactivation", 110) == 0.3
    assert (
        depth.confirmed_best(found, "original", 110) is None and depth.gaps(found, tuned=True) == {}
    )  # 0.03 is missing
    found = depth.confirmed(store("depth", {"original-110-0.03": [39.5], "original-110-0.3": [50.0]}))
    assert depth.confirmed_best(found, "original", 110) == 0.01
    assert depth.gaps(found, tuned=True)[110].mean == 5.0
    series = depth.by_depth_and_choice(found)["test error (%)"]["each order's best learning rate"]
    assert series == {"original": {110: [39.0]}, "full_preactivation": {110: [34.0]}}


def test_the_share_that_tuning_closes_is_that_of_the_deep_networks():
    def tuned(at, papers, best):
        gaps = [dict(zip(depth.ORDERS, (gap, 0.0), strict=True)) for gap in (papers, best)]
        return depth.Tuned(at, gaps[0], {}, gaps[1])

    found = [tuned(56, 50.0, 50.0), tuned(110, 10.0, 4.0), tuned(218, 30.0, 6.0)]
    assert depth.share_of_tuning(found) == pytest.approx(0.75)
    assert depth.share_of_tuning([tuned(110, 0.0, -1.0)]) is None


def test_diverged_runs_of_the_depth_study_count_as_chance_and_have_no_loss(store, tmp_path):
    store("depth", {"original-110-0.1": [38.0, 42.0], "full_preactivation-110-0.1": [35.0]})
    RunFolder(tmp_path / "depth" / "original-110-0.1-1").update_record(diverged={"step": 3})
    runs = depth.confirmed(Store([tmp_path]))
    series = depth.by_depth_and_choice(runs)
    ((papers, errors), _) = series["test error (%)"].items()
    assert errors["original"] == {110: [38.0, 90.0]} and depth.gaps(runs, tuned=False)[110].mean == 29.0
    assert series["training loss"][papers]["original"] == {110: [1.25]}


def judged(store):
    return [finding.verdict for finding in depth.findings(store)]


def confirmation(gaps, spread):
    """Errors of three seeds a row, with these gaps between the orders."""
    around = (-spread, 0.0, spread)
    rows = {f"full_preactivation-{at}-0.1": [35.0 + s for s in around] for at in gaps}
    return {**rows, **{f"original-{at}-0.1": [35.0 + gap + s for s in around] for at, gap in gaps.items()}}


@pytest.mark.parametrize(
    ("gaps", "spread", "verdicts"),
    [
        ({20: 0.1, 56: -0.1, 110: 3.0, 218: 10.0}, 0.1, ["agrees", "agrees"]),
        ({20: 0.1, 56: 2.0, 110: 3.0, 218: 10.0}, 0.1, ["differs", "agrees"]),
        ({20: 0.1, 56: -0.1, 110: 3.0, 218: 3.0}, 0.1, ["agrees", "undecided"]),
        ({20: 0.1, 56: -0.1, 110: 3.0, 218: -3.0}, 0.1, ["agrees", "differs"]),
        ({20: 0.1, 56: 0.9, 110: 3.0, 218: 4.0}, 3.0, ["undecided", "undecided"]),  # runs too far apart to say
        ({20: 0.1, 56: -0.1, 110: 3.0, 218: 10.0}, 3.0, ["undecided", "undecided"]),  # neither gap is known well enough
        ({20: 0.1, 110: 3.0}, 0.1, ["undecided", "undecided"]),  # not all of it run
        ({20: 0.4, 110: 3.0}, 0.1, ["undecided", "undecided"]),  # within ±1 point, which is no evidence of a difference
        ({20: 0.4, 56: 0.5, 110: 3.0}, 0.1, ["agrees", "undecided"]),  # intervals without 0, but within ±1 point
        ({20: 0.4, 56: 1.0, 110: 3.0}, 0.1, ["differs", "undecided"]),  # an interval without 0 that reaches beyond
    ],
)
def test_expected_gaps_are_judged_by_their_intervals(store, gaps, spread, verdicts):
    found = depth.findings(store("depth", confirmation(gaps, spread)))
    assert [finding.verdict for finding in found][:2] == verdicts
    assert found[6].found == "not run"  # nothing was tuned
    if set(gaps) == {20, 56, 110, 218}:
        growth = f"{gaps[218] - gaps[110]:+.2f}", f"{gaps[218] - gaps[20]:+.2f}"
        first, second = found[1].found.split("; ")[2:]
        assert first.startswith(f"from 110 to 218 layers {growth[0]} [")
        assert second.startswith(f"from 20 to 218 layers {growth[1]} [")


def test_expected_best_rates_are_judged_by_their_course(store):
    def screening(order, best, *more):  # `more`: how much higher the errors of further seeds are
        return {
            f"{order}-{at}-{rate:g}": [(50.0 if rate == chosen else 70.0) + each for each in (0.0, *more)]
            for at, chosen in best.items()
            for rate in (0.003, 0.01, 0.03, 0.1, 0.3)
        }

    original, full = {20: 0.1, 110: 0.03}, {20: 0.1, 110: 0.1}
    errors = {**screening("original", original, 0.5, 1.0), **screening("full_preactivation", full, 0.5, 1.0)}
    assert judged(store("screening", errors))[2:6] == ["agrees", "undecided", "agrees", "undecided"]
    found = depth.findings(store("screening", screening("full_preactivation", {218: 0.03}, 0.5, 1.0)))
    said = "0.1 at 20 layers; 0.1 at 110 layers; 0.03 at 218 layers (screening, 124 steps, n = 3)"
    assert (found[4].found, found[4].verdict) == (said, "differs")
    single = depth.findings(store("screening", screening("original", {434: 0.01})))[2]  # one run each: no interval
    assert "0.01 at 434 layers" in single.found and single.verdict == "undecided"


def test_expected_best_rates_are_judged_in_both_settings(store):
    """Best at 0.03 and then 0.01 after the screening's steps, at 0.1 after those of the depth study."""
    screened = {
        f"original-{at}-{rate:g}": [50.0, 50.5, 51.0] if rate == chosen else [70.0, 70.5, 71.0]
        for at, chosen in {56: 0.03, 110: 0.01}.items()
        for rate in (0.003, 0.01, 0.03, 0.1, 0.3)
    }
    store("screening", screened)
    confirmed = {f"original-{at}-0.1": [36.0, 36.5, 37.0] for at in (20, 56, 110)}
    confirmed |= {"original-56-0.03": [42.0], "original-110-0.03": [46.0, 46.5, 47.0], "original-110-0.3": [60.0]}
    confirmed["original-110-0.01"] = [52.0, 52.5, 53.0]
    found = depth.findings(store("depth", confirmed))[2:4]
    assert [(each.found, each.verdict) for each in found] == [
        ("0.03 at 56 layers; 0.01 at 110 layers (screening, 124 steps, n = 3)", "agrees"),
        ("0.1 at 56 layers; 0.1 at 110 layers (depth study, 1,560 steps)", "differs"),
    ]


@pytest.mark.parametrize(
    ("lower", "verdict"),
    [
        ([30.0, 31.0, 30.5], "agrees"),
        ([30.0, 31.0], "undecided"),  # too few runs for an interval
        ([36.0, 37.0, 36.5], "undecided"),
        ([20.0, 50.0, 35.0], "undecided"),
        ([50.0, 51.0, 50.5], "differs"),
    ],
)
def test_the_best_rate_of_the_depth_study_falls_if_intervals_say_so(store, lower, verdict):
    """A mean that is lower by chance is no lower best rate."""
    confirmed = {f"original-{at}-0.1": [36.0, 36.5, 37.0] for at in (56, 110)}
    confirmed |= {"original-56-0.03": [42.0, 42.5], "original-110-0.03": lower, "original-110-0.3": [60.0]}
    confirmed["original-110-0.01"] = [52.0, 52.5, 53.0]
    assert judged(store("depth", confirmed))[3] == verdict


def test_the_best_rate_is_undecided_where_no_lower_rate_was_run(store):
    rows = {"full_preactivation-110-0.1": [36.0], "full_preactivation-110-0.3": [40.0]}
    rows |= {"full_preactivation-434-0.1": [60.0], "full_preactivation-434-0.3": [50.0]}
    assert judged(store("depth", rows))[5] == "undecided"
    lowest = {f"full_preactivation-{at}-{rate:g}": [50.0 + rate] for at in (20, 56) for rate in depth.RATES}
    assert judged(store("screening", lowest))[4] == "undecided"


def test_a_change_of_the_gap_by_tuning_is_judged_by_the_runs_that_differ(store):
    """The intervals of both gaps overlap because the original order's runs, common to both, are far apart."""
    rows = {"original-110-0.1": [39.0, 45.0], "original-110-0.03": [50.0], "original-110-0.01": [50.0]}
    rows |= {"original-110-0.3": [50.0]}
    rows |= {"full_preactivation-110-0.1": [35.6, 35.7, 35.8], "full_preactivation-110-0.3": [32.9, 33.0, 33.1]}
    found = depth.confirmed(store("depth", rows))
    papers, tuned = (depth.gaps(found, tuned=choice)[110] for choice in (False, True))
    assert papers.low < tuned.mean < papers.high
    finding = depth.findings(store("depth", {}))[6]
    change = difference([35.6, 35.7, 35.8], [32.9, 33.0, 33.1])
    assert finding.verdict == "differs" and finding.found.endswith(f"full pre-activation 0.3), change {change}")


@pytest.mark.parametrize(("tuned", "verdict"), [(0.0, "agrees"), (12.0, "undecided")])
def test_a_smaller_gap_when_tuned_is_judged_by_its_interval(store, tuned, verdict):
    around = [35.0 + tuned + s for s in (-0.1, 0.0, 0.1)]
    rows = {"original-218-0.01": around, "original-218-0.03": [80.0]}
    finding = depth.findings(store("depth", {**confirmation({110: 6.0, 218: 12.0}, 0.1), **rows}))[6]
    assert finding.verdict == verdict and "110 layers" not in finding.found  # where not all rates have been run
    best = 0.01 if tuned == 0 else 0.1  # equally good: the paper's
    assert finding.found.startswith("218 layers: +12.00 [")
    assert f"(original {best:g}, full pre-activation 0.1)" in finding.found


def test_a_smaller_gap_is_undecided_while_a_depth_has_no_interval(store):
    around = [34.9, 35.0, 35.1]
    rows = {"original-218-0.01": around, "original-218-0.03": [80.0], "full_preactivation-110-0.3": [29.0]}
    rows |= {f"original-110-{rate:g}": [80.0] for rate in (0.01, 0.03, 0.3)}
    finding = depth.findings(store("depth", {**confirmation({110: 6.0, 218: 12.0}, 0.1), **rows}))[6]
    assert "110 layers" in finding.found and finding.verdict == "undecided"


def test_a_larger_gap_when_tuned_is_said(store):
    """The better learning rate of full pre-activation can be the larger gain."""
    rows = {f"original-110-{rate:g}": [80.0] for rate in (0.01, 0.03, 0.3)}
    rows |= {"full_preactivation-110-0.3": [30.0, 30.1, 29.9]}
    assert judged(store("depth", {**confirmation({110: 2.0}, 0.1), **rows}))[6] == "differs"


def test_the_mechanism_is_the_median_of_the_runs_at_one_rate(store, tmp_path):
    found = store("screening", {"original-20-0.1": [55.0] * 4, "original-20-0.01": [60.0]})
    moment = {
        "step": 50,
        "stage": [1.0, 1.0, 1.0, 2.0, 2.0],
        "variance": [0.1, 2.0, 3.0, 4.0, 6.0],
        "direct": [0.01, 0.5, 0.7, 0.001, 0.4],
        "dead": [0.0, 0.0, 0.0, 0.5, 0.5],
    }
    for rate, seed, scale in ((0.1, 0, 1.0), (0.1, 1, 2.0), (0.1, 2, 9.0), (0.1, 3, math.nan), (0.01, 0, 5.0)):
        entry = {**moment, "variance": [scale * v if k == 4 else v for k, v in enumerate(moment["variance"])]}
        (tmp_path / "screening" / f"original-20-{rate:g}-{seed}" / PROPAGATION).write_text(json.dumps([entry]))
    explained = depth.mechanism(depth.screened(found))
    values = {quantity: moments["early"]["original"] for quantity, moments in explained.items()}
    assert values == {
        "direct term left, Eq. (5)": {20: 0.4},  # the units that begin a stage change the shape
        "variance of the signal, last ÷ second unit": {20: 6.0},  # of 3, 6 and 27; the diverged run has none
        "dead channels after the addition": {20: 0.2},
    }
    assert all(moments["before"] == {} for moments in explained.values())
    assert depth.dead_channels({"dead": []}) == 0


def test_best_rates_are_those_of_the_screening_on_record():
    screening = depth.screened(Store([Path(__file__).parents[2] / "results"]))
    for (order, at), rate in depth.BEST_RATES.items():
        assert depth.best_rates(screening, order)[at] == rate


def test_what_the_demo_says_of_tuning_is_on_record():
    screening = depth.screened(Store([Path(__file__).parents[2] / "results"]))
    (tuned,) = (each for each in depth.tuning(screening) if each.depth == 218)
    assert (tuned.rates["original"], round(tuned.best["original"], 1)) == TUNED_ORIGINAL
    assert tuned.gaps[0] > tuned.gaps[1] > 0
