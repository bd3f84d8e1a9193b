"""What an exercise is, and how an answer to it is checked."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_preact.errors import InputError, check_choice


class Wrong(Exception):
    """An answer is wrong; the message says what is wrong with it, in a sentence."""


@dataclass(frozen=True)
class Exercise:
    """A question of the course.

    Attributes:
        number: of the notebook and of the question: `"02.3"`.
        judge: given an answer, returns what is to be learned from it, or raises `Wrong`.
    """

    number: str
    judge: Callable[[Any], str]

    def verdict(self, answer: Any) -> str:
        """Return what is to be said of an answer: open, not yet and why, or right."""
        if answer is None or answer is ...:
            return "open: put your answer in the place of the dots."
        try:
            return f"right. {self.judge(answer)}"
        except Wrong as fault:
            return f"not yet: {fault}"
        except Exception as error:  # whatever the reader's code raises is said, and ends no notebook
            return f"not yet: checking it raised {type(error).__name__}: {error}"


EXERCISES: dict[str, Exercise] = {}
"""Every exercise by number, of the notebooks that were imported so far."""

NOTEBOOKS = {
    "00": "start_here",
    "01": "residual_units",
    "02": "propagation",
    "03": "scaling",
    "04": "table_1",
    "05": "table_2",
    "06": "thousand_layers",
    "07": "real_training",
    "08": "imagenet",
    "09": "transformers",
    "10": "bugs",
    "11": "afterwards",
}
"""The module of each notebook's exercises."""


def exercise(number: str) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Register a judge as that of an exercise."""

    def register(judge: Callable[[Any], str]) -> Callable[[Any], str]:
        EXERCISES[number] = Exercise(number, judge)
        return judge

    return register


def check(number: str, answer: Any) -> None:
    """Print whether an answer to an exercise is right, and if not, what is wrong with it.

    Args:
        number: of the exercise, as it stands in the notebook: `"02.3"`.
        answer: a number, a list, a function or a network, as the exercise asks.

    Raises:
        InputError: there is no such exercise.

    Example:

    >>> check("03.3", 0.5)
    03.3 not yet: 0.5 to the power of 54 is 5.55e-17, not 0.5.
    >>> check("03.3", ...)
    03.3 open: put your answer in the place of the dots.
    """
    module = NOTEBOOKS[check_choice("notebook", number.partition(".")[0], NOTEBOOKS)]
    importlib.import_module(f"keras_preact.course.{module}")
    print(number, EXERCISES[check_choice("exercise", number, EXERCISES)].verdict(answer))


def results_folder() -> Path:
    """Return the folder of the kept results, `results`, of the repository that the notebook lies in.

    Raises:
        InputError: there is none above the folder that Python runs in.
    """
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "results" / "README.md").exists():
            return folder / "results"
    raise InputError("there is no folder results here or above; run the notebook in a clone of the repository")


# ---- what judges ask ----------------------------------------------------------------------------------------------


def expect_function(answer: Any) -> Callable[..., Any]:
    """Return the answer.

    Raises:
        Wrong: it is no function.
    """
    if not callable(answer):
        raise Wrong(f"give a function, not a {type(answer).__name__}.")
    return answer


def expect_number(answer: Any) -> float:
    """Return an answer, or what a function gave back, as a number.

    Raises:
        Wrong: it is none, or nothing.
    """
    _refuse_nothing(answer)
    try:
        number = float(answer)
    except (TypeError, ValueError):
        raise Wrong(f"give a number, not a {type(answer).__name__}.") from None
    if not math.isfinite(number):
        raise Wrong(f"{number} is no finite number.")
    return number


def expect_array(answer: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a function gave back as an array.

    Raises:
        Wrong: it gave nothing back, or another shape.
    """
    _refuse_nothing(answer)
    array = np.asarray(answer, dtype="float64")
    if array.shape != shape:
        raise Wrong(f"your function returns the shape {array.shape}; it was given values for {shape}.")
    return array


def _refuse_nothing(answer: Any) -> None:
    # An answer itself is never nothing here, `verdict` has seen to that: a function gave it back.
    if answer is None or answer is ...:
        raise Wrong("your function returns nothing.")


def refuse_mistakes(answer: Any, mistakes: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    """Compare an answer with what known mistakes make.

    Args:
        answer: a number or an array.
        mistakes: by the sentence that names the mistake, what it makes of the same input.
        tolerance: as in `is_close`.

    Raises:
        Wrong: it is what a mistake makes, the first that fits; the message names it.
    """
    for fault, made in mistakes.items():
        if is_close(answer, made, tolerance):
            raise Wrong(fault)


def is_close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    """Return whether two answers are the same number or array, but for rounding."""
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))
