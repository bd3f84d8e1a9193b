"""Simple rules that a trained sequence network should beat, and their test errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from keras_preact.data.sequences import SequenceDataset


def baselines(dataset: SequenceDataset) -> dict[str, float]:
    """Return the test errors of simple rules: in %, or for a forecast the mean absolute error in its unit.

    The rules for forecasts repeat past values of the first feature. They hold only if the data set is `hourly` and has
    one target; other forecasts have no rules.

    Example:

    >>> from keras_preact.data import bundled_weather
    >>> sorted(baselines(bundled_weather()))
    ['last value', 'mean of the last day', 'same hour of the day before']
    """
    rules = {"classification": _bag_of_words, "next_token": _frequencies, "forecast": _naive_forecasts}
    return rules[dataset.task](dataset)


def _bag_of_words(dataset: SequenceDataset) -> dict[str, float]:
    """Naive Bayes on the words of a sentence, regardless of order, with add-one smoothing."""
    words, classes = len(dataset.vocabulary), dataset.classes
    counts = np.ones((classes, words))
    for tokens, label in zip(dataset.train.sequences, dataset.train.labels, strict=True):
        np.add.at(counts[label], tokens[tokens > 0], 1)
    examples = np.bincount(dataset.train.labels.astype(np.int64), minlength=classes)
    weights = np.log(counts / counts.sum(1, keepdims=True))
    scores = np.stack([np.where(dataset.test.sequences > 0, w[dataset.test.sequences], 0).sum(1) for w in weights])
    predicted = (scores + np.log(examples / examples.sum())[:, None]).argmax(0)
    return {
        "the more frequent class": 100 * float(np.mean(dataset.test.labels != examples.argmax())),
        "bag of words (naive Bayes)": 100 * float(np.mean(dataset.test.labels != predicted)),
    }


def _frequencies(dataset: SequenceDataset) -> dict[str, float]:
    """Predict the most frequent token, or the most frequent successor of the last token."""
    size, test = len(dataset.vocabulary), dataset.test
    tokens, labels = (array.ravel().astype(np.int64) for array in (dataset.train.sequences, dataset.train.labels))
    pairs, counts = np.unique(tokens * size + labels, return_counts=True)
    # The most frequent pair of each token comes last, so that its successor stays in the table; of several, the first.
    order = np.lexsort((-pairs, counts))
    followed_by = np.zeros(size, np.int64)
    followed_by[pairs[order] // size] = pairs[order] % size
    return {
        "the most frequent token": 100 * float(np.mean(test.labels != np.bincount(labels).argmax())),
        "what most often follows the last token": 100 * float(np.mean(test.labels != followed_by[test.sequences])),
    }


def _naive_forecasts(dataset: SequenceDataset) -> dict[str, float]:
    """Repeat past values of the first feature, if that is what the only target continues."""
    past, future = (array.astype(np.float64) for array in (dataset.test.sequences[..., :1], dataset.test.labels))
    if not dataset.hourly or future.shape[-1] != 1:
        return {}
    forecasts = {"last value": past[:, -1:]}
    if past.shape[1] >= 24:
        day = past[:, -24:]
        forecasts["same hour of the day before"] = day[:, np.arange(future.shape[1]) % 24]
        forecasts["mean of the last day"] = day.mean(1, keepdims=True)
    return {name: float(np.abs(future - forecast).mean()) for name, forecast in forecasts.items()}
