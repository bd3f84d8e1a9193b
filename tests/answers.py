"""The tests that every notebook's exercises have, made from its right and wrong answers."""

import pytest

from keras_preact.course import check


def check_answers(right, wrong):
    """Return three tests: right answers are right, wrong ones are told what is wrong, every exercise has both.

    Args:
        right: a right answer by number of the exercise.
        wrong: number of the exercise, a wrong answer, and words of the verdict.
    """

    @pytest.mark.parametrize("number", right)
    def right_answer(number, capsys):
        check(number, right[number])
        assert capsys.readouterr().out.startswith(f"{number} right. ")

    @pytest.mark.parametrize("number, answer, words", wrong, ids=lambda value: value if isinstance(value, str) else "")
    def wrong_answer(number, answer, words, capsys):
        check(number, answer)
        printed = capsys.readouterr().out
        assert printed.startswith(f"{number} not yet: ") and words in printed

    def both():
        assert {number for number, _, _ in wrong} == set(right)

    return right_answer, wrong_answer, both
