"""Exercises of notebook 12: right answers pass, and each usual mistake is named."""

import numpy as np
from answers import check_answers


def freeze(network, chosen, stage):
    with_weights = [layer for layer in network.layers if layer.weights]
    first = next(place for place, layer in enumerate(with_weights) if layer.name.startswith(stage))
    for place, layer in enumerate(with_weights):
        layer.trainable = not chosen(place, first)


def distances(new, others):
    return ((new[:, None] - others) ** 2).sum(-1)


def means(features, labels, combine=np.mean):
    return np.stack([combine(features[labels == k], 0) for k in range(labels.max() + 1)])


def folded(kernel, bias, gamma, beta, mean, variance, epsilon):
    scale = gamma / np.sqrt(variance + epsilon)
    return scale[:, None] * kernel, bias + (beta - mean * scale) @ kernel


RIGHT = {
    "12.1": lambda network, stage: freeze(network, lambda place, first: place < first, stage),
    "12.2": lambda f, y, new: distances(new, means(f, y)).argmin(1),
    "12.3": folded,
}

WRONG = [
    ("12.1", lambda network, stage: None, "nothing is frozen"),
    ("12.1", lambda network, stage: freeze(network, lambda place, first: True, stage), "even the classifier"),
    ("12.1", lambda network, stage: freeze(network, lambda place, first: place == 0, stage), "but is still trained"),
    ("12.1", lambda network, stage: freeze(network, lambda place, first: place <= first, stage), "but is frozen"),
    ("12.1", 3, "give a function"),
    ("12.2", lambda f, y, new: distances(new, means(f, y, np.sum)).argmin(1), "divide by it"),
    ("12.2", lambda f, y, new: y[distances(new, f).argmin(1)], "nearest single image"),
    ("12.2", lambda f, y, new: distances(new, means(f, y)).argmax(1), "the largest distance"),
    ("12.2", lambda f, y, new: (new @ means(f, y).T).argmax(1), "dot products"),
    ("12.2", lambda f, y, new: distances(new, means(f, y)), "the shape (31, 3)"),
    ("12.2", lambda f, y, new: np.arange(len(new)) % 3, "are not those of the nearest mean"),
    ("12.2", lambda f, y, new: None, "returns nothing"),
    ("12.3", lambda *a: a[0], "return two arrays"),
    ("12.3", lambda k, b, g, o, m, v, e: (k * g / np.sqrt(v + e), b), "after the layer"),
    ("12.3", lambda k, b, g, o, m, v, e: folded(k, b, g, o, m, v, 0), "epsilon is missing"),
    ("12.3", lambda k, b, g, o, m, v, e: (k * (g / (v + e))[:, None], b), "not by the variance"),
    ("12.3", lambda k, b, *norm: (k, b), "the kernel is unchanged"),
    ("12.3", lambda k, b, *norm: (7 * k, b), "row i must be scaled"),
    ("12.3", lambda k, b, *norm: folded(k, 0 * b, *norm), "the old bias is missing"),
    ("12.3", lambda k, b, *norm: (folded(k, b, *norm)[0], b), "the bias is unchanged"),
    (
        "12.3",
        lambda k, b, *norm: (folded(k, b, *norm)[0], b + folded(np.eye(3), 0, *norm)[1] @ folded(k, b, *norm)[0]),
        "the old kernel",
    ),
    ("12.3", lambda k, b, *norm: (folded(k, b, *norm)[0], folded(np.eye(3), b, *norm)[1]), "multiplying it"),
    ("12.3", lambda k, b, *norm: (folded(k, b, *norm)[0], 7 * b), "the bias is not"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
