"""Exercises of the course: `check` tells you what is wrong with an answer.

Each module contains the exercises of one notebook, in the notebook's order.
"""

from keras_preact.course.exercise import EXERCISES, Exercise, Wrong, check, results_folder

__all__ = ["EXERCISES", "Exercise", "Wrong", "check", "results_folder"]
