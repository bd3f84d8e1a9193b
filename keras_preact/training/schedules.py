"""Learning rate schedules as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import keras

from keras_preact.errors import InputError, check_count, check_number
from keras_preact.optimizers import CosineAfterHold
from keras_preact.training.recorded import make_plain


@dataclass(frozen=True)
class StepSchedule:
    """The paper's schedule: a constant warm-up, then a learning rate that is divided by 10 at given steps.

    Attributes:
        learning_rate: rate after the warm-up. Default 0.1.
        drops: steps at which the rate is divided by 10. Default (32000, 48000).
        warmup_learning_rate: rate during the warm-up. Default 0.01.
        warmup_steps: length of the warm-up. Default 400.

    Raises:
        InputError: a number is out of range, a drop comes before the end of the warm-up, or the drops are unsorted.

    Example: the paper's schedule, before and after each change.

    >>> rate = StepSchedule().to_keras(64_000)
    >>> [round(float(rate(step)), 4) for step in (0, 399, 400, 31_999, 32_000, 48_000)]
    [0.01, 0.01, 0.1, 0.1, 0.01, 0.001]
    """

    learning_rate: float = 0.1
    drops: tuple[int, ...] = (32_000, 48_000)
    warmup_learning_rate: float = 0.01
    warmup_steps: int = 400

    def __post_init__(self) -> None:
        make_plain(self)
        check_number("learning_rate", self.learning_rate, 0)
        check_number("warmup_learning_rate", self.warmup_learning_rate, 0)
        check_count("warmup_steps", self.warmup_steps)
        if not isinstance(self.drops, (tuple, list)):
            raise InputError(f"drops is {self.drops!r}; it must be a tuple of steps, such as (32000, 48000)")
        for drop in self.drops:
            check_count("a step in drops", drop)
        object.__setattr__(self, "drops", tuple(self.drops))
        # Equal drops are allowed: scaling a schedule to a few steps can produce them.
        if list(self.drops) != sorted(self.drops):
            raise InputError(f"the steps in drops are {self.drops}; they must be in increasing order")
        if self.drops and self.drops[0] < self.warmup_steps:
            raise InputError(
                f"the learning rate drops at step {self.drops[0]}, inside the warm-up of {self.warmup_steps} steps; "
                "move the drop or shorten the warm-up"
            )

    def scaled(self, factor: float) -> StepSchedule:
        """Return the schedule with every length multiplied by `factor`."""
        drops = tuple(round(drop * factor) for drop in self.drops)
        return dataclasses.replace(self, drops=drops, warmup_steps=round(self.warmup_steps * factor))

    def to_keras(self, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """Return the learning rate as a function of the step (0, 1, …). `steps` is ignored."""
        # A Keras boundary is the last step with the earlier value. A warm-up of 0 steps has the boundary -1: no step.
        rates = [float(self.warmup_learning_rate), *(self.learning_rate / 10**k for k in range(len(self.drops) + 1))]
        boundaries = [step - 1 for step in (self.warmup_steps, *self.drops)]
        return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)


@dataclass(frozen=True)
class CosineSchedule:
    """A schedule for short runs: a warm-up, then cosine decay, which reaches 0 after the last step.

    Attributes:
        learning_rate: rate at the end of the warm-up. Default 0.1.
        warmup_steps: length of the warm-up. Default 200.
        warmup_learning_rate: constant rate during the warm-up, as in the paper. Default `None`: a linear rise from 0.

    Raises:
        InputError: a number is out of range.

    Example:

    >>> rate = CosineSchedule(0.1, warmup_steps=100).to_keras(300)
    >>> [round(float(rate(step)), 4) for step in (0, 50, 100, 200, 300)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    learning_rate: float = 0.1
    warmup_steps: int = 200
    warmup_learning_rate: float | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        check_number("learning_rate", self.learning_rate, 0)
        check_count("warmup_steps", self.warmup_steps)
        if self.warmup_learning_rate is not None:
            check_number("warmup_learning_rate", self.warmup_learning_rate, 0)

    def scaled(self, factor: float) -> CosineSchedule:
        """Return the schedule with the warm-up's length multiplied by `factor`."""
        return dataclasses.replace(self, warmup_steps=round(self.warmup_steps * factor))

    def to_keras(self, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """Return the learning rate as a function of the step (0, 1, …, `steps` − 1)."""
        rate = float(self.learning_rate)  # an int would make Keras compute in int
        warmup = min(self.warmup_steps, steps - 1)
        if warmup < 1:
            return keras.optimizers.schedules.CosineDecay(rate, steps - warmup)
        if self.warmup_learning_rate is not None:
            return CosineAfterHold(float(self.warmup_learning_rate), warmup, rate, steps - warmup)
        return keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=rate, warmup_steps=warmup)


SCHEDULES: dict[str, type[StepSchedule] | type[CosineSchedule]] = {"steps": StepSchedule, "cosine": CosineSchedule}
"""The schedules, by the kind that `run.json` names."""

PAPERS_SCHEDULE = StepSchedule()
