"""Exercises, and the check of their answers."""

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
    """An answer is wrong; the message says why, in a sentence."""


@dataclass(frozen=True)
class Exercise:
    """A question of the course.

    Attributes:
        number: number of the notebook and of the question, for example `"02.3"`.
        judge: function of an answer; returns the lesson, or raises `Wrong`.
    """

    number: str
    judge: Callable[[Any], str]

    def verdict(self, answer: Any) -> str:
        """Return the verdict on an answer: open, not yet with the reason, or right."""
        if answer is None or answer is ...:
            return "open: replace the dots with your answer."
        try:
            return f"right. {self.judge(answer)}"
        except Wrong as fault:
            return f"not yet: {fault}"
        except Exception as error:  # errors in the reader's code must not stop the notebook
            return f"not yet: checking it raised {type(error).__name__}: {error}"


CHECKOUT = Path(__file__).parents[2]
"""The repository, if the package runs from a checkout of it."""

EXERCISES: dict[str, Exercise] = {}
"""The exercises of the notebooks imported so far, by number."""

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
    "12": "transfer",
}
"""The module of each notebook's exercises."""


def exercise(number: str) -> Callable[[Callable[[Any], str]], Callable[[Any], str]]:
    """Register the judge of an exercise."""

    def register(judge: Callable[[Any], str]) -> Callable[[Any], str]:
        EXERCISES[number] = Exercise(number, judge)
        return judge

    return register


def check(number: str, answer: Any) -> None:
    """Print whether an answer to an exercise is right, and if not, why.

    Args:
        number: number of the exercise in the notebook, for example `"02.3"`.
        answer: what the exercise asks for: for example a number, a list, a name, a function or a class.

    Raises:
        InputError: the exercise does not exist, or its number is not text.

    Example:

    >>> check("00.2", "many")
    00.2 not yet: give a function; this is of type str.
    >>> check("00.2", ...)
    00.2 open: replace the dots with your answer.
    """
    if not isinstance(number, str):
        raise InputError(f'the number of an exercise is text such as "02.3", not {number!r}; put it in quotes')
    module = NOTEBOOKS[check_choice("notebook", number.partition(".")[0], NOTEBOOKS)]
    importlib.import_module(f"keras_preact.course.{module}")
    print(number, EXERCISES[check_choice("exercise", number, EXERCISES)].verdict(answer))


def results_folder() -> Path:
    """Return the folder of stored results, `results`, of the notebook's repository.

    Raises:
        InputError: neither the working directory, a folder above it nor the checkout of this package has one.
    """
    for folder in (Path.cwd(), *Path.cwd().parents, CHECKOUT):
        if (folder / "results" / "README.md").exists():
            return folder / "results"
    raise InputError("no folder results here or above; run the notebook in a clone of the repository")


# ---- helpers for judges -------------------------------------------------------------------------------------------


def expect_function(answer: Any) -> Callable[..., Any]:
    """Return the answer.

    Raises:
        Wrong: it is not a function.
    """
    if not callable(answer):
        raise Wrong(f"give a function; this is of type {type(answer).__name__}.")
    return answer


def expect_number(answer: Any) -> float:
    """Return an answer, or the result of a function, as a number.

    Raises:
        Wrong: it is not a finite number.
    """
    _refuse_nothing(answer)
    try:
        number = float(answer)
    except (TypeError, ValueError):
        raise Wrong(f"give a number; this is of type {type(answer).__name__}.") from None
    if not math.isfinite(number):
        raise Wrong(f"{number} is not a finite number.")
    return number


def expect_array(answer: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the result of a function as an array.

    Raises:
        Wrong: the result is `None`, or has another shape.
    """
    _refuse_nothing(answer)
    array = np.asarray(answer, dtype="float64")
    if array.shape != shape:
        raise Wrong(f"the shape {array.shape} is wrong; it should be {shape}.")
    return array


def expect_several(answer: Any, count: int, otherwise: str) -> list[Any]:
    """Return the values that a function returns as a list, a tuple or an array.

    Raises:
        Wrong: with the words `otherwise`, if the answer is something else or has another length.
    """
    if not isinstance(answer, (list, tuple, np.ndarray)) or len(answer) != count:
        raise Wrong(otherwise)
    return list(answer)


def _refuse_nothing(answer: Any) -> None:
    # Not an open answer, which `verdict` handles: a function returned it.
    if answer is None or answer is ...:
        raise Wrong("your function returns nothing.")


def refuse_mistakes(answer: Any, mistakes: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    """Compare an answer with the results of known mistakes.

    Args:
        answer: a number or an array.
        mistakes: result of each mistake, by the sentence that describes it.
        tolerance: as in `is_close`.

    Raises:
        Wrong: the answer is the result of a mistake; the message describes the first that matches.
    """
    for fault, result in mistakes.items():
        if is_close(answer, result, tolerance):
            raise Wrong(fault)


def is_close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    """Return whether two answers are the same number or array, up to rounding."""
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))
