"""Cutting a run into calls of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Epochs of equal length: one call of `fit`."""

    first_step: int
    first_epoch: int
    last_epoch: int
    steps_per_epoch: int

    @property
    def last_step(self) -> int:
        """The number of steps of the run at the end of this part."""
        return self.first_step + (self.last_epoch - self.first_epoch) * self.steps_per_epoch


Cut = Callable[[int, int, int], list[Part]]
"""Cuts the rest of a run into calls of `fit`, given the steps done, all steps, and the steps per epoch."""


def parts(step: int, steps: int, steps_per_epoch: int) -> list[Part]:
    """Cut the rest of a run into calls of `fit`: the rest of an epoch, whole epochs, a partial last epoch.

    >>> parts(25, 62, 20)  # doctest: +NORMALIZE_WHITESPACE
    [Part(first_step=25, first_epoch=1, last_epoch=2, steps_per_epoch=15),
     Part(first_step=40, first_epoch=2, last_epoch=3, steps_per_epoch=20),
     Part(first_step=60, first_epoch=3, last_epoch=4, steps_per_epoch=2)]
    """
    found: list[Part] = []
    while step < steps:
        epoch = step // steps_per_epoch
        end = min((epoch + 1) * steps_per_epoch, steps)
        if step % steps_per_epoch == 0 and end < steps:
            last = steps // steps_per_epoch
            found.append(Part(step, epoch, last, steps_per_epoch))
            step = last * steps_per_epoch
        else:
            found.append(Part(step, epoch, epoch + 1, end - step))
            step = end
    return found


def epochs(step: int, steps: int, steps_per_epoch: int) -> list[Part]:
    """Cut the rest of a run into epochs.

    >>> [(part.first_step, part.steps_per_epoch) for part in epochs(25, 62, 20)]
    [(25, 15), (40, 20), (60, 2)]
    """
    return [
        Part(part.first_step + k * part.steps_per_epoch, epoch, epoch + 1, part.steps_per_epoch)
        for part in parts(step, steps, steps_per_epoch)
        for k, epoch in enumerate(range(part.first_epoch, part.last_epoch))
    ]
