"""Exercises of the course, which check themselves: `check` says what is wrong with an answer, not only that it is.

Each module holds the exercises of one notebook, in its order.
"""

from keras_preact.course.exercise import EXERCISES, Exercise, Wrong, check, results_folder

__all__ = ["EXERCISES", "Exercise", "Wrong", "check", "results_folder"]
