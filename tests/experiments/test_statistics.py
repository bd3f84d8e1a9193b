"""Intervals cover what they say, verdicts follow from them, and the seeds that are asked for are enough."""

import math

import numpy as np
import pytest
import scipy.stats

from keras_preact import InputError
from keras_preact.experiments import Difference, difference
from keras_preact.experiments.statistics import (
    binomial_deviation,
    difference_of_differences,
    seeds_needed,
)


@pytest.mark.parametrize("sizes", [(3, 3), (2, 7), (12, 5)])
def test_the_interval_is_scipys_welch(sizes):
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(0)
    first, second = (rng.normal(50, 1 + k, size) for k, size in enumerate(sizes))
    found, expected = difference(first, second), ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), expected)
    assert found.mean == pytest.approx(first.mean() - second.mean())


def test_the_interval_holds_the_true_difference_in_95_of_100_experiments():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1_000):
        found = difference(rng.normal(50, 2, 3), rng.normal(40, 1, 5))
        held += found.low <= 10 <= found.high
    assert 930 <= held <= 970


def test_the_interval_of_a_growth_holds_it_in_95_of_100_experiments():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1_000):
        last, first = ((rng.normal(40 + gap, 2, 4), rng.normal(40, 1, 5)) for gap in (10, 3))
        found = difference_of_differences(last, first)
        held += found.low <= 7 <= found.high
    assert 930 <= held <= 970
    same = difference([7.0, 7.2, 7.1], [6.0, 6.2, 6.4])
    constant = ([1.0, 1.0], [1.0, 1.0])
    assert difference_of_differences(([7.0, 7.2, 7.1], [6.0, 6.2, 6.4]), constant) == same


def test_one_run_has_no_interval_and_decides_nothing():
    found = difference([90.0], [10.0, 10.1])
    assert (found.mean, found.is_known, found.verdict(1.0)) == (pytest.approx(79.95), False, "undecided")
    assert str(found) == "+79.95"


@pytest.mark.parametrize(
    ("ends", "published", "expected"),
    [
        ((1, 3), 0.5, "agrees"),
        ((1, 3), math.inf, "agrees"),
        ((-3, -1), -0.5, "agrees"),
        ((1, 3), -0.5, "differs"),
        ((-3, -1), math.inf, "differs"),
        ((1, 3), 0.0, "differs"),  # published as equal
        ((-1, 3), 0.5, "undecided"),
        ((0, 3), 0.5, "undecided"),
        ((-3, 0), -0.5, "undecided"),
    ],
)
def test_verdicts(ends, published, expected):
    assert Difference(sum(ends) / 2, *ends).verdict(published) == expected


def test_runs_that_all_failed_differ_for_certain():
    assert difference([90.0, 90.0], [10.0, 10.0]).verdict(math.inf) == "agrees"
    assert difference([90.0, 90.0], [90.0, 90.0]).verdict(math.inf) == "undecided"


@pytest.mark.parametrize("pair", [([], [1.0]), ([1.0], []), ([1.0, math.inf], [1.0]), ([1.0], [math.nan])])
def test_errors_that_have_no_mean_are_refused(pair):
    with pytest.raises(InputError, match="a difference needs"):
        difference(*pair)


def test_the_binomial_spread_is_that_of_draws():
    draws = np.random.default_rng(0).binomial(10_000, 0.0661, 20_000) / 100
    assert binomial_deviation(6.61, 10_000) == pytest.approx(draws.std(), rel=0.02)
    assert binomial_deviation(0.0, 100) == 0


def test_the_seeds_asked_for_are_enough_and_one_fewer_are_not(monkeypatch):
    rng = np.random.default_rng(0)

    def power(runs):
        found = (difference(rng.normal(6.61, 0.2, runs), rng.normal(6.31, 0.2, runs)) for _ in range(1_500))
        return sum(entry.low > 0 for entry in found) / 1_500

    runs = seeds_needed(0.3, deviation=0.2)
    assert power(runs) > 0.78 and power(runs - 1) < 0.81
    # With few runs, Welch's interval is wider than that of a t-test that assumes equal variances.
    few = scipy.stats.norm.rvs(size=(2, 4, 20_000), random_state=0)
    few[1] += 11.8 / 3.5
    for count, enough in ((3, False), (4, True)):
        found = scipy.stats.ttest_ind(few[0, :count], few[1, :count], equal_var=False)
        assert (np.mean(found.pvalue < 0.05) >= 0.8) == enough
    assert seeds_needed(11.8, deviation=3.5) == 4
    assert seeds_needed(-0.3, deviation=0.2) == runs
    assert seeds_needed(5.0, deviation=0.1) == 2  # the fewest that have a deviation
    monkeypatch.setattr("keras_preact.experiments.statistics.MOST_SEEDS", 100)
    assert seeds_needed(0.05, deviation=0.3) is None  # 100 are not enough
    for apart, deviation in ((0.0, 0.2), (math.inf, 0.2), (0.3, 0.0)):
        with pytest.raises(InputError, match="no number of seeds detects"):
            seeds_needed(apart, deviation)
