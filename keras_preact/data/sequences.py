"""Sequences: film reviews to classify or to continue character by character, and a year's weather to forecast.

The data are real and bundled (`bundled/README.md` names the sources) and need only NumPy. `baselines` returns the test
errors of simple rules.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_preact.data.checks import check_classes, check_examples, check_range, make_read_only, make_text
from keras_preact.data.rules import baselines
from keras_preact.data.splits import ARRAYS, Split
from keras_preact.errors import FLOAT32_MAX, InputError, check_choice, check_number, check_positive, shown

BUNDLED = Path(__file__).parent / "bundled"
TOKENS = ("integers", "number, length")
TASKS = {
    "classification": (TOKENS, ("integers", "number")),
    "next_token": (TOKENS, TOKENS),
    "forecast": (("numbers", "number, length, features"), ("numbers", "number, horizon, targets")),
}
"""The kind and the axes of the sequences and of the targets, by task."""
KINDS = {"integers": "iu", "numbers": "iuf"}
"""NumPy's codes of the dtypes of each kind."""
PADDING, UNKNOWN = "", "\N{REPLACEMENT CHARACTER}"
"""The first two entries of the bundled vocabularies: tokens 0 and 1."""
TEST_EVERY = 10
"""Every tenth review is a test review."""
TRAINING_HOURS = 304 * 24
"""January to October. November and December are the test split."""
WEATHER_FEATURES = ("temperature", "dew point", "humidity", "pressure", "wind speed", "sunlight")


class SequenceSplit(Split):
    """Sequences in memory and their targets.

    Args:
        sequences: int32 (n, length) tokens, or float32 (n, length, features).
        targets: int32 (n,) classes, int32 (n, length) tokens, or float32 (n, horizon, targets).

    Raises:
        InputError: there are no sequences, not one target per sequence, or sequences of several lengths.

    Example:

    >>> split = SequenceSplit(np.zeros((5, 8), "int32"), np.zeros(5, "int32"))
    >>> len(split), split.signature
    (5, (((8,), 'int32'), ((), 'int32')))
    """

    def __init__(self, sequences: Any, targets: Any) -> None:
        if len(sequences) != len(targets) or not len(sequences):
            raise InputError(f"{len(sequences)} sequences have {len(targets)} targets; pass one target per sequence")
        try:
            self.sequences, self.labels = np.asarray(sequences), np.asarray(targets)
        except ValueError:  # lists of several lengths
            raise InputError("the sequences or targets differ in length; cut or pad them to one length") from None

    @property
    def signature(self) -> Any:
        return tuple((array.shape[1:], array.dtype.name) for array in (self.sequences, self.labels))

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.sequences[indices], self.labels[indices]

    def at(self, image_size: int, short_side: int | None = None) -> SequenceSplit:
        """Raise InputError: sequences have no image size."""
        raise InputError("the data are sequences, not images; leave out the image size")

    def update_hash(self, digest: Any) -> None:
        digest.update(np.ascontiguousarray(self.sequences))
        digest.update(np.ascontiguousarray(self.labels))


@dataclass(frozen=True)
class SequenceDataset:
    """Training and test sequences.

    The name, the vocabulary and the class names are converted to `str`.

    Attributes:
        name: used in run.json and messages.
        train: training sequences.
        test: test sequences.
        task: `"classification"`, `"next_token"` or `"forecast"`.
        vocabulary: the words or characters, indexed by token. Empty for numeric series. For classification, token 0 is
            padding, which networks ignore, and token 1 an unknown word: the vocabulary begins with two entries that
            are not words, for example `""` and `"[UNK]"`.
        class_names: names of the classes, in the order of the labels. Empty for other tasks.
        unit: unit of the error: % of the classes or tokens, or the unit of a forecast.
        source: the name by which `load_dataset` returns these data; `"arrays"` (default) if it cannot.
        hourly: whether a forecast continues the first feature hour by hour, as the rules of `baselines` assume.
            Default `False`: a forecast has no baselines.

    Raises:
        InputError: the task is unknown, the arrays do not have the dtype and shape of the task, training and test
            sequences differ in shape, tokens have no vocabulary, the vocabulary of a classification begins with words,
            there are fewer than two classes, a class has no training sequences, a label or token is outside the
            classes or the vocabulary, or a number is NaN or infinite.

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
    source: str = ARRAYS
    hourly: bool = False
    kind: ClassVar[str] = "sequences"

    def __post_init__(self) -> None:
        make_text(self, "vocabulary", "class_names")
        check_choice("task", self.task, TASKS)
        if self.task != "forecast" and not self.vocabulary:
            raise InputError(f"{self.name} has tokens but no vocabulary; pass their words, or their numbers as text")
        if self.task == "classification":
            _check_first_tokens(self)
            check_classes(self.name, self.class_names)
        for what, split in (("training", self.train), ("test", self.test)):
            for kind, array, layout in zip(("sequences", "targets"), _arrays(split), TASKS[self.task], strict=True):
                _check_array(f"{what} {kind} of {self.name}", array, self.task, *layout)
            if self.task == "classification":
                check_range(what, "label", self.name, split.labels, "classes", self.classes)
            if self.vocabulary:
                check_range(what, "token", self.name, split.sequences, "words", len(self.vocabulary))
                if self.task == "next_token":
                    check_range(what, "target", self.name, split.labels, "words", len(self.vocabulary))
        train, test = ([array.shape[1:] for array in _arrays(split)] for split in (self.train, self.test))
        if train != test:
            raise InputError(
                f"training sequences and targets of {self.name} have the shapes {train[0]} and {train[1]}, test "
                f"sequences and targets {test[0]} and {test[1]}; make their shapes equal"
            )
        if self.task == "next_token" and train[0] != train[1]:
            raise InputError(
                f"sequences of {self.name} have the shape {train[0]}, targets {train[1]}; pass a target for each token"
            )
        if self.task == "classification":
            check_examples(self.name, self.class_names, self.train.labels, "sequences")

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def length(self) -> int:
        """Steps per sequence."""
        return self.train.sequences.shape[1]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return texts as tokens, for a network that was trained on these data.

        For classification, texts are split into words in lower case and punctuation marks; for `"next_token"`, into
        characters. They are cut, or padded with 0, to `length`. What is not in the vocabulary becomes token 1.

        Args:
            texts: sentences; for characters, any text.

        Returns:
            int32 (n, length).

        Raises:
            InputError: the data are numbers; `texts` is a single string; tokens 0 and 1 are not padding and unknown
                text; or the vocabulary has entries that no text is split into, such as words with capital letters, or
                for `"next_token"` any words.

        Example:

        >>> bundled_reviews().encode(["A film"])[0, :3].tolist() == bundled_reviews().encode(["a FILM"])[0, :3].tolist()
        True
        """
        if self.task == "forecast":
            raise InputError(f"{self.name} has numbers, not text; only texts are encoded")
        if isinstance(texts, str):
            raise InputError("texts is a single string; pass a list of strings")
        _check_first_tokens(self)
        parts, split = PARTS[self.task]
        for entry in self.vocabulary[2:]:
            if split(entry) != [entry]:
                raise InputError(
                    f"encode splits texts into {parts} and would never find {shown(entry)!r} in the vocabulary of "
                    f"{self.name}; use a vocabulary of {parts}, or turn texts into tokens yourself"
                )
        return _tokens([split(text) for text in texts], self.vocabulary, self.length)

    @property
    def vocabulary_sha256(self) -> str:
        """A SHA-256 that identifies the vocabulary."""
        return hashlib.sha256(repr(self.vocabulary).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return what the record of a run says of the data, including the errors of simple rules."""
        return {
            "task": self.task,
            "shape": list(self.train.signature[0][0]),
            "target_shape": list(self.train.signature[1][0]),
            "class_names": list(self.class_names),
            "vocabulary": len(self.vocabulary),
            "vocabulary_sha256": self.vocabulary_sha256,
            "train_sequences": len(self.train),
            "test_sequences": len(self.test),
            "unit": self.unit,
            "baselines": self._baselines,
        }

    @functools.cached_property
    def _baselines(self) -> dict[str, float]:
        return baselines(self)  # they can take seconds, and a run reads the facts twice

    def only(self, class_names: Sequence[str]) -> SequenceDataset:
        """Raise InputError: only images can be selected by class."""
        raise InputError(f"{self.name} has sequences, not images; leave out only (--only)")

    def fingerprint(self) -> str:
        """Return a SHA-256 that identifies the data."""
        digest = hashlib.sha256(repr((self.task, self.vocabulary, self.class_names)).encode())
        self.train.update_hash(digest)
        self.test.update_hash(digest)
        return digest.hexdigest()


def _arrays(split: SequenceSplit) -> tuple[np.ndarray, np.ndarray]:
    return split.sequences, split.labels


def _check_array(what: str, array: np.ndarray, task: str, kind: str, axes: str) -> None:
    """Raise InputError unless an array has these axes and finite numbers of this kind."""
    if array.dtype.kind not in KINDS[kind] or array.ndim != axes.count(",") + 1 or not array.size:
        raise InputError(
            f"the {what} have shape {array.shape} and dtype {array.dtype}; for the task {task}, pass {kind} of shape "
            f"({axes})"
        )
    low, high = float(array.min()), float(array.max())  # NaN if a number is
    if not -FLOAT32_MAX <= low <= high <= FLOAT32_MAX:
        finite = np.abs(array.astype(float)) <= FLOAT32_MAX
        first = np.flatnonzero(~finite.reshape(len(array), -1).all(1))[0]
        raise InputError(f"the {what} are NaN or infinite in example {first}; replace the values or leave it out")


def _check_first_tokens(dataset: SequenceDataset) -> None:
    """Raise InputError if token 0 or 1 is text: networks ignore token 0, and `encode` returns 1 for unknown text."""
    _, split = PARTS[dataset.task]
    first = dataset.vocabulary[:2]
    if len(first) < 2 or any(len(split(entry)) == 1 and entry != UNKNOWN for entry in first):
        raise InputError(
            f"the vocabulary of {dataset.name} begins with {', '.join(repr(shown(entry)) for entry in first)}, but "
            "token 0 must be padding and token 1 unknown text; begin it with '' and '[UNK]', and number the tokens to "
            "match"
        )


def _cached(sequences: Any, targets: Any) -> SequenceSplit:
    """Return a split of a bundled data set, which is cached and therefore read-only."""
    split = SequenceSplit(sequences, targets)
    make_read_only(split.sequences, split.labels)
    return split


# ---- text ---------------------------------------------------------------------------------------------------------


@functools.cache
def bundled_reviews(length: int = 40, vocabulary: int = 8000) -> SequenceDataset:
    """Return 10,568 sentences of film reviews as tokens. The task: did people rate the sentence as positive?

    Args:
        length: words and punctuation marks per sentence. Longer sentences are cut, shorter ones padded with 0. Default
            40.
        vocabulary: number of tokens: padding, unknown, and the most frequent words of the training sentences. Default
            8000.

    Returns:
        A data set with sequences int32 (n, length) and labels int32 (n,): 0 negative, 1 positive. Every call returns
        the same arrays, which are read-only; copy them to change them.

    Raises:
        InputError: `length` is not an integer of at least 1, or `vocabulary` not one of at least 3.
    """
    check_positive("length", length)
    check_number("vocabulary", vocabulary, 3)  # padding, unknown, and a word
    check_positive("vocabulary", vocabulary)
    train, test = _ratings_and_texts()
    known = _vocabulary((word for _, text in train for word in _words(text)), vocabulary)

    def split(reviews: list[tuple[float, str]]) -> SequenceSplit:
        tokens = _tokens([_words(text) for _, text in reviews], known, length)
        return _cached(tokens, np.array([rating > 0 for rating, _ in reviews], np.int32))

    classes = ("negative", "positive")
    source = "reviews" if (length, vocabulary) == (40, 8000) else ARRAYS
    return SequenceDataset("reviews", split(train), split(test), "classification", known, classes, source=source)


@functools.cache
def bundled_characters(length: int = 128) -> SequenceDataset:
    """Return the same sentences as one training text and one test text. The task: which character comes next?

    Args:
        length: characters per sequence. The target is the sequence shifted by one character. Default 128.

    Returns:
        A data set with sequences and targets int32 (n, length). Every call returns the same arrays, which are
        read-only; copy them to change them.

    Raises:
        InputError: `length` is not an integer of at least 1, or longer than the test text.
    """
    check_positive("length", length)
    texts = ["\n".join(text for _, text in split) for split in _ratings_and_texts()]
    known = _vocabulary(texts[0], 100)
    train, test = (_shifted(text, known, length) for text in texts)
    source = "characters" if length == 128 else ARRAYS
    return SequenceDataset("characters", train, test, "next_token", known, source=source)


def _shifted(text: str, vocabulary: Sequence[str], length: int) -> SequenceSplit:
    """Return a text cut into sequences, with the text shifted by one character as targets."""
    count = (len(text) - 1) // length
    if not count:
        raise InputError(f"length is {length}; it must be less than the {len(text)} characters of the text")
    tokens = _tokens([text], vocabulary, count * length + 1)[0]
    return _cached(tokens[:-1].reshape(count, length), tokens[1:].reshape(count, length))


def _ratings_and_texts() -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Return training and test reviews without those rated 0, which are neither positive nor negative."""
    with gzip.open(BUNDLED / "reviews.txt.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    rated = [(float(rating), text) for rating, text in lines if float(rating)]
    return [row for number, row in enumerate(rated) if number % TEST_EVERY], rated[::TEST_EVERY]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


PARTS: dict[str, tuple[str, Callable[[str], list[str]]]] = {
    "classification": ("words in lower case and punctuation marks", _words),
    "next_token": ("characters", list),
}
"""What `encode` splits texts into, and how, by task."""


def _vocabulary(tokens: Iterable[str], size: int) -> tuple[str, ...]:
    """Return padding, unknown, and the most frequent tokens. Ties keep the order of first appearance."""
    return (PADDING, UNKNOWN, *(token for token, _ in Counter(tokens).most_common(size - 2)))


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
    """Return the hours of a typical year in Greensboro, North Carolina. The task: forecast the temperature.

    The features are `WEATHER_FEATURES` and the sine and cosine of the time of day.

    Args:
        length: hours on which a forecast is based. Default 72.
        horizon: hours to forecast. Default 24.

    Returns:
        A data set with sequences float32 (n, length, 8) and targets float32 (n, horizon, 1), temperatures in °C. Every
        call returns the same arrays, which are read-only; copy them to change them.

    Raises:
        InputError: `length` or `horizon` is not an integer of at least 1, or together they do not fit into the test
            split of two months.
    """
    check_positive("length", length)
    check_positive("horizon", horizon)
    with gzip.open(BUNDLED / "weather.csv.gz", "rt", encoding="ascii") as file:
        hours = np.loadtxt(file, delimiter=",", dtype=np.float32)
    angle = 2 * np.pi * np.arange(len(hours)) / 24
    hours = np.column_stack([hours, np.sin(angle), np.cos(angle)]).astype(np.float32)
    train, test = (_windows(part, length, horizon) for part in (hours[:TRAINING_HOURS], hours[TRAINING_HOURS:]))
    source = "weather" if (length, horizon) == (72, 24) else ARRAYS
    return SequenceDataset("weather", train, test, "forecast", unit="°C", source=source, hourly=True)


def _windows(hours: np.ndarray, length: int, horizon: int) -> SequenceSplit:
    """Return every window of hours, with the temperatures that follow as targets."""
    count = len(hours) - length - horizon + 1
    if count < 1:
        raise InputError(f"{length} + {horizon} hours do not fit into a split of {len(hours)} hours; use fewer")
    past = np.stack([hours[start : start + length] for start in range(count)])
    future = np.stack([hours[start + length : start + length + horizon, :1] for start in range(count)])
    return _cached(past, future)


SEQUENCES = {"reviews": bundled_reviews, "characters": bundled_characters, "weather": bundled_weather}
"""The bundled sequences, by the names that `load_dataset` accepts."""
