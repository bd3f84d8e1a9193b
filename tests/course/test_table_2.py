"""Exercises of notebook 05: right answers are right, and wrong ones are told why."""

import numpy as np
from answers import check_answers

from keras_preact.layers import Placement

RIGHT = {
    "05.1": ["full_preactivation", "bn_after_addition"],
    "05.2": 54 / (2 * np.pi) ** 0.5,
    "05.3": Placement("mine", "mine", first=("norm", "relu"), last=("norm",)),
}

WRONG = [
    ("05.1", "full_preactivation", "give a list"),
    ("05.1", ["pre"], "pre is not a placement"),
    ("05.1", ["original"], "not original"),
    ("05.1", ["bn_only_preactivation"], "not one of the five"),
    ("05.1", ["bn_after_addition"], "full_preactivation is missing"),
    ("05.1", ["full_preactivation"], "one is missing"),
    ("05.2", 1 / (2 * np.pi) ** 0.5, "mean of one residual"),
    ("05.2", 2 * RIGHT["05.2"], "twice that of max"),
    ("05.2", 27, "their mean is not 1"),
    ("05.2", (54 / (2 * np.pi)) ** 0.5, "not with its square root"),
    ("05.2", 3, "3 is not 54 times"),
    ("05.3", "full_preactivation", "give a Placement"),
    ("05.3", Placement("mine", "mine", after_addition=("relu",)), "f is not the identity"),
    ("05.3", Placement("mine", "mine"), "the first convolution sees"),
    ("05.3", Placement("mine", "mine", first=("norm",), between=("relu",)), "the second convolution sees"),
    ("05.3", Placement("mine", "mine", first=("norm",), last=("relu",)), "can only push the signal up"),
    ("05.3", Placement("mine", "mine", first=("norm",), between=("norm",)), "it has no ReLU"),
    ("05.3", Placement("mine", "mine", first=("norm", "relu")), "that is full_preactivation"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
