"""What a few runs can tell: spread, the interval of a difference, a verdict, and how many seeds it would take.

A seed varies weights, data order and augmentation together. Two runs with equal seeds have nothing in common that two
others lack, so runs are never compared as pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from keras_preact.errors import InputError

AGREES, DIFFERS, UNDECIDED = "agrees", "differs", "undecided"
LEVEL = 0.95
"""Of the intervals."""


def binomial_deviation(error: float, examples: int) -> float:
    """Return the standard deviation (points) that the test examples alone give to an error (%).

    Runs differ by about this much at the end of a long training, and by more in a short one. It is what can be said
    of the spread where there is one run only.

    >>> round(binomial_deviation(13.25, 10_000), 2)
    0.34
    """
    share = error / 100
    return 100 * math.sqrt(share * (1 - share) / examples)


def mean_and_deviation(errors: Sequence[float]) -> str:
    """Return the mean of some errors with their standard deviation (n − 1 in the denominator), in words.

    >>> mean_and_deviation([7.0, 6.0, 9.0]), mean_and_deviation([7.0])
    ('7.33 ± 1.53', '7.00')
    """
    mean = f"{statistics.mean(errors):.2f}"
    return f"{mean} ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else mean


@dataclass(frozen=True)
class Difference:
    """The difference of two means, with its confidence interval.

    Attributes:
        mean: the first mean minus the second, in points.
        low, high: ends of the 95 % interval; infinite where either side has a single run.
    """

    mean: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether there is an interval: at least two runs on either side."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + (f" [{self.low:+.2f}, {self.high:+.2f}]" if self.is_known else "")

    def verdict(self, published: float) -> str:
        """Return whether this agrees with a published difference: the sign of it, or that there is none.

        Args:
            published: in points; infinite where the first was published as failing.

        Returns:
            `"undecided"` where the interval holds 0, or there is none; else `"agrees"` where the signs are equal, and
            `"differs"` where they are not.

        >>> Difference(2.0, 1.0, 3.0).verdict(0.5), Difference(2.0, -1.0, 5.0).verdict(0.5)
        ('agrees', 'undecided')
        """
        if not self.is_known or self.low <= 0 <= self.high:
            return UNDECIDED
        return AGREES if self.mean * published > 0 else DIFFERS


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the difference of two means with Welch's 95 % interval: unequal variances, unpaired runs.

    Args:
        first, second: errors, one or more; with a single one on either side the interval is infinite.

    Raises:
        InputError: there are no errors, or one is not finite.

    >>> str(difference([7.0, 7.2, 7.1], [6.0, 6.2, 6.4]))
    '+0.90 [+0.48, +1.32]'
    """
    if len(first) == 0 or len(second) == 0:
        raise InputError("a difference needs at least one run on either side")
    if not all(map(math.isfinite, (*first, *second))):
        raise InputError("a difference needs finite errors; count diverged runs at the error of chance")
    mean = statistics.mean(first) - statistics.mean(second)
    if min(len(first), len(second)) < 2:
        return Difference(mean, -math.inf, math.inf)
    shares = [statistics.variance(errors) / len(errors) for errors in (first, second)]
    if sum(shares) == 0:
        return Difference(mean, mean, mean)  # as where all runs of both have failed
    from scipy.stats import t  # half a second, which the rest of the command need not wait for

    freedoms = [share**2 / (len(errors) - 1) for share, errors in zip(shares, (first, second), strict=True)]
    margin = float(t.ppf((1 + LEVEL) / 2, sum(shares) ** 2 / sum(freedoms))) * math.sqrt(sum(shares))
    return Difference(mean, mean - margin, mean + margin)


def seeds_needed(apart: float, deviation: float, power: float = 0.8) -> int:
    """Return how many runs each of two networks needs for a difference to show in a t-test at 5 %.

    Args:
        apart: the true difference of their means, in points; not 0.
        deviation: standard deviation of one network's runs, in points.
        power: chance that the interval then leaves out 0. Default 0.8.

    Raises:
        InputError: no difference, or no spread.

    >>> seeds_needed(0.24, deviation=0.16), seeds_needed(0.47, deviation=0.16)
    (9, 4)
    """
    if not (math.isfinite(apart) and apart and deviation > 0):
        raise InputError(f"a difference of {apart} at a deviation of {deviation} has no number of seeds")
    from scipy.stats import nct, t

    for runs in range(2, 10_000):
        freedom, shift = 2 * runs - 2, abs(apart) / (deviation * math.sqrt(2 / runs))
        if nct.sf(t.ppf((1 + LEVEL) / 2, freedom), freedom, shift) >= power:
            return runs
    return 10_000
