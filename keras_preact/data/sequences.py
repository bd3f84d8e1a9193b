"""Sequences: film reviews to tell apart and to continue letter by letter, a year's weather to forecast.

All of it is real and bundled (`bundled/README.md` says whence), and needs NumPy alone. Each set knows what simple
rules without a network reach on it: `baselines`.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_preact.data.splits import Split, check_range
from keras_preact.errors import InputError, check_choice

BUNDLED = Path(__file__).parent / "bundled"
TASKS = ("classification", "next_token", "forecast")
PADDING, UNKNOWN = "", "\N{REPLACEMENT CHARACTER}"
"""The first two entries of every vocabulary: tokens 0 and 1."""
EVERY_TENTH = 10
"""Every tenth review is a test review."""
HOURS_OF_TRAINING = 304 * 24
"""January to October; November and December are the test."""
WEATHER_FEATURES = ("temperature", "dew point", "humidity", "pressure", "wind speed", "sunlight")


class SequenceSplit(Split):
    """Sequences in memory, with what a network is to make of each.

    Args:
        sequences: int32 (n, length) tokens, or float32 (n, length, features).
        targets: int32 (n,) classes, int32 (n, length) tokens, or float32 (n, horizon, targets).

    Raises:
        InputError: no sequences, or not one target a sequence.

    Example:

    >>> split = SequenceSplit(np.zeros((5, 8), "int32"), np.zeros(5, "int32"))
    >>> len(split), split.signature
    (5, (((8,), 'int32'), ((), 'int32')))
    """

    def __init__(self, sequences: np.ndarray, targets: np.ndarray) -> None:
        if len(sequences) != len(targets) or not len(sequences):
            raise InputError(f"{len(sequences)} sequences have {len(targets)} targets; give one a sequence")
        self.sequences = sequences
        self.labels = targets

    @property
    def signature(self) -> Any:
        return tuple((array.shape[1:], array.dtype.name) for array in (self.sequences, self.labels))

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.sequences[indices], self.labels[indices]

    def update_hash(self, digest: Any) -> None:
        digest.update(np.ascontiguousarray(self.sequences))
        digest.update(np.ascontiguousarray(self.labels))


@dataclass(frozen=True)
class SequenceDataset:
    """Training and test sequences.

    Attributes:
        name: for run.json and messages.
        train: training sequences.
        test: test sequences, which training never sees.
        task: `"classification"`, `"next_token"` or `"forecast"`.
        vocabulary: the words or characters by token; empty for series of numbers.
        class_names: of a classification.
        unit: of the error: % of the classes or tokens, or what a forecast is measured in.

    Raises:
        InputError: an unknown task, or a label or token that is none of the classes or words.

    Example:

    >>> reviews = bundled_reviews()
    >>> len(reviews.train), len(reviews.test), reviews.class_names, len(reviews.vocabulary)
    (9511, 1057, ('negative', 'positive'), 8000)
    """

    name: str
    train: SequenceSplit
    test: SequenceSplit
    task: str
    vocabulary: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    unit: str = "%"

    def __post_init__(self) -> None:
        check_choice("task", self.task, TASKS)
        for what, split in (("training", self.train), ("test", self.test)):
            if self.task == "classification":
                check_range(what, "label", self.name, split.labels, "classes", self.classes)
            if self.vocabulary:
                check_range(what, "token", self.name, split.sequences, "words", len(self.vocabulary))
                if self.task == "next_token":
                    check_range(what, "target", self.name, split.labels, "words", len(self.vocabulary))

    @property
    def classes(self) -> int:
        """Number of classes of a classification."""
        return len(self.class_names)

    @property
    def length(self) -> int:
        """Steps of a sequence."""
        return self.train.sequences.shape[1]

    def fingerprint(self) -> str:
        """Return a SHA-256 that tells these data from others."""
        digest = hashlib.sha256(repr((self.task, self.vocabulary, self.class_names)).encode())
        self.train.update_hash(digest)
        self.test.update_hash(digest)
        return digest.hexdigest()


# ---- text ---------------------------------------------------------------------------------------------------------


@functools.cache
def bundled_reviews(length: int = 40, vocabulary: int = 8000) -> SequenceDataset:
    """Return 10,568 sentences of film reviews, rated by people, as tokens: is the rating positive?

    Args:
        length: words of a sentence; longer ones are cut, shorter ones padded with 0.
        vocabulary: number of tokens: padding, unknown, and the most frequent words of the training sentences.
    """
    train, test = _ratings_and_texts()
    words = [[_words(text) for _, text in split] for split in (train, test)]
    known = _vocabulary((word for sentence in words[0] for word in sentence), vocabulary)
    first, second = (
        SequenceSplit(_tokens(sentences, known, length), np.array([rating > 0 for rating, _ in split], np.int32))
        for split, sentences in zip((train, test), words, strict=True)
    )
    return SequenceDataset("reviews", first, second, "classification", known, ("negative", "positive"))


@functools.cache
def bundled_characters(length: int = 128) -> SequenceDataset:
    """Return the same sentences as one text for training and one for testing, cut up: which character comes next?

    Args:
        length: characters of a sequence; the target is the sequence one character on.
    """
    texts = ["\n".join(text for _, text in split) for split in _ratings_and_texts()]
    known = _vocabulary(iter(texts[0]), vocabulary=100)
    first, second = (_shifted(text, known, length) for text in texts)
    return SequenceDataset("characters", first, second, "next_token", known)


def _shifted(text: str, vocabulary: Sequence[str], length: int) -> SequenceSplit:
    """Return a text cut up, and the same one character on."""
    count = (len(text) - 1) // length
    tokens = _tokens([text], vocabulary, count * length + 1)[0]
    return SequenceSplit(tokens[:-1].reshape(count, length), tokens[1:].reshape(count, length))


def _ratings_and_texts() -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Return training and test reviews; those that were rated 0 are neither positive nor negative."""
    with gzip.open(BUNDLED / "reviews.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    rated = [(float(rating), text) for rating, text in lines if float(rating)]
    return (
        [row for number, row in enumerate(rated) if number % EVERY_TENTH],
        [row for number, row in enumerate(rated) if not number % EVERY_TENTH],
    )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def _vocabulary(tokens: Any, vocabulary: int) -> tuple[str, ...]:
    """Return padding, unknown, and the most frequent tokens; of equally frequent ones, those that came first."""
    return (PADDING, UNKNOWN, *(token for token, _ in Counter(tokens).most_common(vocabulary - 2)))


def _tokens(sentences: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int) -> np.ndarray:
    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokens = np.zeros((len(sentences), length), np.int32)
    for row, sentence in zip(tokens, sentences, strict=True):
        cut = [numbers.get(token, 1) for token in sentence[:length]]
        row[: len(cut)] = cut
    return tokens


# ---- weather ------------------------------------------------------------------------------------------------------


@functools.cache
def bundled_weather(length: int = 72, horizon: int = 24) -> SequenceDataset:
    """Return the hours of a typical year in Greensboro, North Carolina: how warm will the next hours be?

    Features are those of `WEATHER_FEATURES` and, as two more, the time of day: sine and cosine.

    Args:
        length: hours that the forecast starts from.
        horizon: hours to forecast.
    """
    with gzip.open(BUNDLED / "weather.csv.gz", "rt", encoding="ascii") as file:
        hours = np.loadtxt(file, delimiter=",", dtype=np.float32)
    angle = 2 * np.pi * np.arange(len(hours)) / 24
    hours = np.column_stack([hours, np.sin(angle), np.cos(angle)]).astype(np.float32)
    train, test = (_windows(part, length, horizon) for part in (hours[:HOURS_OF_TRAINING], hours[HOURS_OF_TRAINING:]))
    return SequenceDataset("weather", train, test, "forecast", unit="°C")


def _windows(hours: np.ndarray, length: int, horizon: int) -> SequenceSplit:
    """Return every stretch of hours, and the temperatures that follow it."""
    count = len(hours) - length - horizon + 1
    if count < 1:
        raise InputError(f"{length} hours and {horizon} more do not fit into the {len(hours)} of a split; give fewer")
    past = np.stack([hours[start : start + length] for start in range(count)])
    future = np.stack([hours[start + length : start + length + horizon, :1] for start in range(count)])
    return SequenceSplit(past, future)


# ---- what needs no network ----------------------------------------------------------------------------------------


def baselines(dataset: SequenceDataset) -> dict[str, float]:
    """Return the test error of simple rules: in %, or for a forecast the mean absolute error in its unit.

    A network that does not beat them has learnt nothing worth its price.

    Example: no weather is more persistent than that of this time yesterday.

    >>> sorted(baselines(bundled_weather()))
    ['last value', 'mean of the last day', 'same hour of the day before']
    """
    rules = {"classification": _bag_of_words, "next_token": _frequencies, "forecast": _naive_forecasts}
    return rules[dataset.task](dataset)


def _bag_of_words(dataset: SequenceDataset) -> dict[str, float]:
    """Naive Bayes on the words of a sentence, whatever their order, with one count added to each."""
    words, classes = len(dataset.vocabulary), dataset.classes
    counts = np.ones((classes, words))
    for tokens, label in zip(dataset.train.sequences, dataset.train.labels, strict=True):
        np.add.at(counts[label], tokens[tokens > 0], 1)
    of_a_class = np.bincount(dataset.train.labels, minlength=classes)
    weights = np.log(counts / counts.sum(1, keepdims=True))
    scores = np.stack([np.where(dataset.test.sequences > 0, w[dataset.test.sequences], 0).sum(1) for w in weights])
    told = (scores + np.log(of_a_class / of_a_class.sum())[:, None]).argmax(0)
    return {
        "the more frequent class": 100 * float(np.mean(dataset.test.labels != of_a_class.argmax())),
        "bag of words (naive Bayes)": 100 * float(np.mean(dataset.test.labels != told)),
    }


def _frequencies(dataset: SequenceDataset) -> dict[str, float]:
    """The token that is most frequent, and the one that most frequently follows the last."""
    size = len(dataset.vocabulary)
    pairs = np.zeros((size, size), np.int64)
    np.add.at(pairs, (dataset.train.sequences.ravel(), dataset.train.labels.ravel()), 1)
    test = dataset.test
    return {
        "the most frequent token": 100 * float(np.mean(test.labels != pairs.sum(0).argmax())),
        "what most often follows the last token": 100 * float(np.mean(test.labels != pairs.argmax(1)[test.sequences])),
    }


def _naive_forecasts(dataset: SequenceDataset) -> dict[str, float]:
    """Rules for one target that is the first feature, hour by hour; none for others, of which nothing is known."""
    past, future = dataset.test.sequences[..., :1], dataset.test.labels
    if future.shape[-1] != 1:
        return {}
    forecasts = {"last value": past[:, -1:]}
    if past.shape[1] >= 24:
        day = past[:, -24:]
        forecasts["same hour of the day before"] = day[:, np.arange(future.shape[1]) % 24]
        forecasts["mean of the last day"] = day.mean(1, keepdims=True)
    return {name: float(np.abs(future - forecast).mean()) for name, forecast in forecasts.items()}


SEQUENCES = {"reviews": bundled_reviews, "characters": bundled_characters, "weather": bundled_weather}
"""The bundled sets by the names that `load_dataset` takes."""
