"""Exercises of notebook 07: right answers pass, and each usual mistake is named."""

from statistics import NormalDist

from answers import check_answers

CHECKPOINT = ["trainable weights", "moving averages", "momentum", "step", "dropout state", "loss scale"]


def chance(gap, deviation):
    return NormalDist(gap, deviation * 2**0.5).cdf(0)


RIGHT = {
    "07.3": 2**15,
    "07.2": lambda step: 0.01 if step < 400 else 0.1 if step < 32_000 else 0.01 if step < 48_000 else 0.001,
    "07.4": CHECKPOINT,
    "07.1": chance,
}

WRONG = [
    ("07.3", 20_345, "not a power of two"),
    ("07.3", 2**14, "below 2^-14"),
    ("07.3", 2**16, "half of 65536 is enough"),
    ("07.2", lambda step: 0.1, "still in the warm-up"),
    ("07.2", lambda step: 0.01 if step < 399 else 0.1, "one step too early"),
    ("07.2", lambda step: 0.01 if step <= 400 else 0.1, "counted from 0"),
    ("07.2", lambda step: None, "returns nothing"),
    ("07.2", lambda step: 1.0, "at step 0 it returns 1"),
    ("07.4", "trainable weights", "give a list"),
    ("07.4", ["trainable weights", "learning rate"], "the schedule and the step determine it"),
    ("07.4", [*CHECKPOINT, "test error"], "can be measured again"),
    ("07.4", ["trainable weights", "colour"], "'colour' is not in the list"),
    ("07.4", [name for name in CHECKPOINT if name != "momentum"], "the momentum must be stored"),
    ("07.4", [name for name in CHECKPOINT if name != "loss scale"], "the loss scale must be stored"),
    ("07.1", 0.1, "give a function"),
    ("07.1", lambda gap, deviation: 1 - chance(gap, deviation), "the chance of the right order"),
    ("07.1", lambda gap, deviation: NormalDist(gap, deviation).cdf(0), "two runs vary, not one"),
    ("07.1", lambda gap, deviation: NormalDist(gap, 2 * deviation).cdf(0), "variances add"),
    ("07.1", lambda gap, deviation: 2 * chance(gap, deviation), "only one of the two directions"),
    ("07.1", lambda gap, deviation: 0.9, "it returns 0.9"),
    ("07.1", lambda gap, deviation: chance(gap, deviation) if gap else 1, "for a gap of 0"),
    ("07.1", lambda gap, deviation: None, "returns nothing"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
