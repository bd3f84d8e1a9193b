"""Statistics of a few runs: spread, confidence interval of a difference, verdict, and number of seeds needed.

A seed determines weights, data order and augmentation. Two networks with the same seed see the same batches and, where
their kernels have the same shapes, may start with the same weights. How strongly their errors are correlated cannot be
told from three to five seeds, so runs are never paired.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from keras_preact.errors import InputError

AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"
LEVEL = 0.95
"""Confidence level of the intervals."""
MOST_SEEDS = 10_000
"""`seeds_needed` tries no larger number of runs."""


def binomial_deviation(error: float, examples: int) -> float:
    """Return the standard deviation (points) of an error (%) over random test sets of this size.

    It says how precisely a test set measures one network's error. It is not the spread between seeds, because all runs
    share one test set.

    >>> round(binomial_deviation(13.25, 10_000), 2)
    0.34
    """
    share = error / 100
    return 100 * math.sqrt(share * (1 - share) / examples)


def mean_and_deviation(errors: Sequence[float]) -> str:
    """Return mean and standard deviation of errors (n − 1 in the denominator) as text.

    >>> mean_and_deviation([7.0, 6.0, 9.0]), mean_and_deviation([7.0])
    ('7.33 ± 1.53', '7.00')
    """
    mean = f"{statistics.mean(errors):.2f}"
    return f"{mean} ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else mean


def pooled_deviation(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation within groups of errors; `None` unless a group has at least two errors.

    >>> pooled_deviation([[7.0, 6.0, 8.0], [5.0, 5.0], [9.0]]), pooled_deviation([[7.0], []])
    (0.816496580927726, None)
    """
    freedoms = [(len(errors) - 1, statistics.variance(errors)) for errors in groups if len(errors) > 1]
    return math.sqrt(sum(n * variance for n, variance in freedoms) / sum(n for n, _ in freedoms)) if freedoms else None


@dataclass(frozen=True)
class Difference:
    """The difference of two means with its confidence interval.

    Attributes:
        mean: the first mean minus the second, in points.
        low, high: ends of the 95 % interval; infinite if there are too few runs.
    """

    mean: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether the interval is finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + (f" [{self.low:+.2f}, {self.high:+.2f}]" if self.is_known else "")

    def verdict(self, published: float) -> str:
        """Return whether this difference has the sign of a published one.

        Args:
            published: published difference in points; infinite if the first network was published as failing.

        Returns:
            `"undecided"` if the interval contains 0 or is infinite; otherwise `"agrees"` if the signs are equal and
            `"differs"` if they are not.

        >>> Difference(2.0, 1.0, 3.0).verdict(0.5), Difference(2.0, -1.0, 5.0).verdict(0.5)
        ('agrees', 'undecided')
        """
        if not self.is_known or self.low <= 0 <= self.high:
            return UNDECIDED
        return AGREES if self.mean * published > 0 else DIFFERS


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference of two means with Welch's 95 % interval: unequal variances, unpaired runs.

    Args:
        first, second: one or more errors each; with a single error on either side the interval is infinite.

    Raises:
        InputError: either side has no errors, or an error is not finite.

    >>> str(difference([7.0, 7.2, 7.1], [6.0, 6.2, 6.4]))
    '+0.90 [+0.48, +1.32]'
    """
    return contrast([first], [second])


def difference_of_differences(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Difference:
    """Return how much larger one difference of two means is than another, with its 95 % interval.

    Args:
        first, second: two groups of errors each, as for `difference`.

    Raises:
        InputError: as in `difference`.

    >>> str(difference_of_differences(([9.0, 9.2, 9.1], [6.0, 6.2, 6.4]), ([7.0, 7.2, 7.1], [6.0, 6.2, 6.4])))
    '+2.00 [+1.55, +2.45]'
    """
    return contrast([first[0], second[1]], [first[1], second[0]])


def contrast(plus: Sequence[Sequence[float]], minus: Sequence[Sequence[float]]) -> Difference:
    """Return the sum of the means of `plus` minus that of `minus`, with the interval of Welch and Satterthwaite.

    Args:
        plus, minus: groups of independent errors; no group may be on both sides.

    Raises:
        InputError: as in `difference`.

    >>> str(contrast([[7.0, 7.2, 7.1], [4.0, 4.1]], [[6.0, 6.2, 6.4]]))
    '+4.95 [+4.55, +5.35]'
    """
    groups = [*plus, *minus]
    if not all(len(errors) for errors in groups):
        raise InputError("a difference needs at least one run on each side")
    if not all(math.isfinite(error) for errors in groups for error in errors):
        raise InputError(
            "a difference needs finite errors; replace those of diverged runs by the error of random guessing"
        )
    mean = sum(map(statistics.mean, plus)) - sum(map(statistics.mean, minus))
    if any(len(errors) < 2 for errors in groups):
        return Difference(mean, -math.inf, math.inf)
    shares = [statistics.variance(errors) / len(errors) for errors in groups]
    if sum(shares) == 0:
        return Difference(mean, mean, mean)  # for example, all runs of both failed
    from scipy.stats import t  # imported here: it takes half a second

    freedoms = [share**2 / (len(errors) - 1) for share, errors in zip(shares, groups, strict=True)]
    margin = float(t.ppf((1 + LEVEL) / 2, sum(shares) ** 2 / sum(freedoms))) * math.sqrt(sum(shares))
    return Difference(mean, mean - margin, mean + margin)


def seeds_needed(apart: float, deviation: float, power: float = 0.8) -> int | None:
    """Return how many runs of each of two networks Welch's t-test at 5 % needs to detect a difference.

    Args:
        apart: the true difference of the means, in points; not 0.
        deviation: standard deviation of the runs of one network, in points.
        power: probability that the interval excludes 0. Default 0.8.

    Returns:
        The smallest sufficient number, from 2 on; `None` if even 10,000 runs are too few.

    Raises:
        InputError: the difference or the deviation is 0, or the difference is not finite.

    >>> seeds_needed(0.24, deviation=0.16), seeds_needed(0.47, deviation=0.16)
    (9, 4)
    """
    if not (math.isfinite(apart) and apart and deviation > 0):
        raise InputError(f"no number of seeds detects a difference of {apart} at a standard deviation of {deviation}")
    counts = range(2, MOST_SEEDS + 1)
    place = bisect.bisect_left(counts, power, key=lambda runs: _power(abs(apart) / deviation, runs))
    return counts[place] if place < len(counts) else None


def _power(effect: float, runs: int) -> float:
    """Return the probability that Welch's interval excludes 0, for a difference of `effect` standard deviations.

    The first network's share u of the two sample variances follows a beta distribution and decides the degrees of
    freedom of Welch and Satterthwaite; the sum of the variances is independent of it. The power is the mean over u.
    """
    import numpy as np
    from scipy.stats import beta, nct, t

    u = beta.ppf((np.arange(200) + 0.5) / 200, (runs - 1) / 2, (runs - 1) / 2)
    freedom = (runs - 1) / (u**2 + (1 - u) ** 2)
    return float(nct.sf(t.ppf((1 + LEVEL) / 2, freedom), 2 * runs - 2, effect / math.sqrt(2 / runs)).mean())
