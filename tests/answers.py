"""The tests that every notebook's exercises have, made from its right and wrong answers."""

import numpy as np
import pytest

from keras_preact.course import check


def returning(kind, answer):
    """Return the answer; if it is a function, one that returns its numbers as a list, a tuple or an array."""

    def convert(*arguments):
        returned = answer(*arguments)
        try:
            return kind(returned) if isinstance(returned, (list, tuple, np.ndarray)) else returned
        except ValueError:  # arrays of different shapes, which are no array together
            return returned

    return convert if callable(answer) and not isinstance(answer, type) else answer


def check_answers(right, wrong):
    """Return three tests: right answers are right, wrong ones are told what is wrong, every exercise has both.

    A right answer that returns several numbers is right as a list, a tuple or an array.

    Args:
        right: a right answer by number of the exercise.
        wrong: number of the exercise, a wrong answer, and words of the verdict.
    """

    @pytest.mark.parametrize("number", right)
    def right_answer(number, capsys):
        for answer in (right[number], *(returning(kind, right[number]) for kind in (list, tuple, np.asarray))):
            check(number, answer)
            assert capsys.readouterr().out.startswith(f"{number} right. ")

    @pytest.mark.parametrize("number, answer, words", wrong, ids=lambda value: value if isinstance(value, str) else "")
    def wrong_answer(number, answer, words, capsys):
        check(number, answer)
        printed = capsys.readouterr().out
        assert printed.startswith(f"{number} not yet: ") and words in printed

    def both():
        assert {number for number, _, _ in wrong} == set(right)

    return right_answer, wrong_answer, both
