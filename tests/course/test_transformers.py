"""The judges of notebook 09."""

import numpy as np
from answers import check_answers


def pre_norm(x, norm1, attention, norm2, feed_forward):
    x = x + attention(norm1(x))
    return x + feed_forward(norm2(x))


def activated_path(x, norm1, attention, norm2, feed_forward):
    x = norm1(x)
    x = norm2(x + attention(x))
    return x + feed_forward(x)


RIGHT = {
    "09.1": pre_norm,
    "09.2": lambda depths, norms: np.polyfit(np.log(depths), np.log(norms), 1)[0],
    "09.3": lambda step, peak, steps: peak * min(1, step / steps),
}

WRONG = [
    ("09.1", lambda x, n1, a, n2, f: n2(n1(x + a(x)) + f(n1(x + a(x)))), "that is post-norm"),
    ("09.1", lambda x, n1, a, n2, f: pre_norm(x, n2, a, n1, f), "the two norms are swapped"),
    ("09.1", lambda x, n1, a, n2, f: x + a(n1(x)), "feed-forward branch is missing"),
    ("09.1", lambda x, n1, a, n2, f: x + f(n2(x)), "attention branch is missing"),
    ("09.1", lambda x, n1, a, n2, f: x + a(n1(x)) + f(n2(x)), "receive the same signal"),
    ("09.1", lambda x, n1, a, n2, f: pre_norm(x, n1, a, lambda y: y, f), "second branch has no norm"),
    ("09.1", lambda x, n1, a, n2, f: pre_norm(x, lambda y: y, a, n2, f), "first branch has no norm"),
    ("09.1", lambda x, n1, a, n2, f: f(n2(a(n1(x)))), "shortcuts are missing"),
    ("09.1", lambda x, n1, a, n2, f: activated_path(x, n1, a, n2, f), "add x itself"),
    ("09.1", lambda x, n1, a, n2, f: x, "it is not x + attention"),
    ("09.2", lambda depths, norms: np.polyfit(depths, norms, 1)[0], "take logarithms"),
    ("09.2", lambda depths, norms: np.polyfit(np.log(depths), np.log(norms), 1), "the first of them"),
    ("09.2", lambda depths, norms: -RIGHT["09.2"](depths, norms), "the sign is wrong"),
    ("09.2", lambda depths, norms: RIGHT["09.2"](norms, depths), "are swapped"),
    ("09.2", lambda d, norms: np.log(norms[-1] / norms[0]) / np.log(d[-1] / d[0]), "only the first and the last"),
    ("09.2", lambda depths, norms: 3.0, "it returns 3"),
    ("09.2", lambda depths, norms: None, "returns nothing"),
    ("09.3", lambda step, peak, steps: peak * step / steps, "keeps rising"),
    ("09.3", lambda step, peak, steps: peak, "it starts at 0.1"),
    ("09.3", lambda step, peak, steps: peak * min(1, step / steps) ** 2, "not 0.05"),
    ("09.3", lambda step, peak, steps: None, "returns nothing"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
