"""The bundled sequences match their descriptions, and the baselines are correct."""

import json

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import (
    SequenceDataset,
    SequenceSplit,
    baselines,
    bundled_characters,
    bundled_reviews,
    bundled_weather,
    load_dataset,
)
from keras_preact.data.sequences import SEQUENCES


def dataset(train, test, task, **options):
    return SequenceDataset("made up", SequenceSplit(*train), SequenceSplit(*test), task, **options)


def test_reviews_have_the_right_words_and_labels():
    reviews = bundled_reviews()
    words = [reviews.vocabulary[token] for token in reviews.train.sequences[1]]
    assert " ".join(words).rstrip() == "effective but too tepid biopic"
    assert reviews.test.labels[0] == 1  # the first sentence praises the film
    assert 0.4 < reviews.train.labels.mean() < 0.6
    assert reviews.vocabulary[:2] == ("", "\ufffd") and len(set(reviews.vocabulary)) == len(reviews.vocabulary)


def test_no_test_sentence_is_a_training_sentence():
    reviews = bundled_reviews()
    train = {tokens.tobytes() for tokens in reviews.train.sequences}
    shared = sum(tokens.tobytes() in train for tokens in reviews.test.sequences)
    assert shared <= 0.01 * len(reviews.test)


def test_characters_are_one_text_shifted_by_one():
    characters = bundled_characters(length=16)
    for split in (characters.train, characters.test):
        flat, shifted = split.sequences.ravel(), split.labels.ravel()
        np.testing.assert_array_equal(flat[1:], shifted[:-1])
    text = "".join(characters.vocabulary[token] for token in characters.test.sequences[:8].ravel())
    assert text.startswith("The Rock is destined to be the 21st Century's new ''Conan''")


def test_weather_is_a_year_of_hours_without_test_hours_in_training():
    weather = bundled_weather(length=48, horizon=12)
    assert len(weather.train) == 304 * 24 - 48 - 12 + 1
    assert len(weather.train) + len(weather.test) == 365 * 24 - 2 * (48 + 12 - 1)
    past, future = weather.train.batch(np.array([100]))
    np.testing.assert_array_equal(past[0, 12:, 0], weather.train.batch(np.array([112]))[0][0, :36, 0])
    np.testing.assert_array_equal(future[0, :, 0], weather.train.batch(np.array([148]))[0][0, :12, 0])
    assert weather.train.labels.min() > -30 and weather.train.labels.max() < 45
    clock = past[0, :, 6:]
    np.testing.assert_allclose(clock[24:], clock[:24], atol=1e-4)


def test_forecast_baselines_by_hand():
    hours = np.arange(60, dtype="float32")
    past, future = hours[None, :48, None], hours[None, 48:54, None]
    rules = baselines(dataset((past, future), (past, future), "forecast", hourly=True))
    assert rules["last value"] == pytest.approx(np.mean([1, 2, 3, 4, 5, 6]))
    assert rules["same hour of the day before"] == pytest.approx(24)
    assert rules["mean of the last day"] == pytest.approx(np.mean(hours[48:54] - hours[24:48].mean()))


def test_forecast_baselines_of_unsigned_numbers():
    past, future = np.full((4, 3, 1), 5, "uint8"), np.full((4, 2, 1), 3, "uint8")
    assert baselines(dataset((past, future), (past, future), "forecast", hourly=True)) == {"last value": 2.0}


def test_baselines_without_enough_data_are_left_out():
    past, future = np.zeros((3, 12, 2), "float32"), np.ones((3, 30, 1), "float32")
    short = dataset((past, future), (past, future), "forecast", hourly=True)
    assert baselines(short) == {"last value": 1.0}
    two = np.ones((3, 5, 2), "float32")
    assert baselines(dataset((past, two), (past, two), "forecast", hourly=True)) == {}


def test_other_forecasts_have_no_baselines():
    """The target may be any feature, or none, and the steps need not be hours."""
    pressure, wind = np.full((5, 30), 1000.0), np.tile(np.arange(30.0), (5, 1))
    pair = np.stack([pressure, wind], -1), np.tile(np.arange(30.0, 32.0), (5, 1))[..., None]
    assert baselines(dataset(pair, pair, "forecast", unit="m/s")) == {}


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64"])
def test_next_token_baselines_by_hand(dtype):
    train = (np.array([[1, 2], [1, 2]], dtype), np.array([[2, 1], [2, 2]], dtype))
    test = (np.array([[1, 2]], dtype), np.array([[2, 1]], dtype))
    rules = baselines(dataset(train, test, "next_token", vocabulary=("", "a", "b")))
    assert rules == {"the most frequent token": 50.0, "what most often follows the last token": 0.0}


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_a_bag_of_words_ignores_order(dtype):
    rng = np.random.default_rng(0)
    x, words = rng.integers(1, 10, size=(200, 6)).astype(dtype), ("", "[UNK]", *"cdefghij")
    word, order = (x == 3).any(1).astype(dtype), (x[:, 0] < x[:, 1]).astype(dtype)
    errors = [
        baselines(dataset((x, y), (x, y), "classification", vocabulary=words, class_names=("n", "y")))
        for y in (word, order)
    ]
    assert errors[0]["bag of words (naive Bayes)"] < 20 < errors[1]["bag of words (naive Bayes)"]


@pytest.mark.parametrize("name", ["reviews", "characters", "weather"])
def test_loading_by_name_is_deterministic(name):
    data = load_dataset(name)
    assert data.name == name
    assert data.fingerprint() == load_dataset(name).fingerprint()


def test_only_data_of_the_default_sizes_can_be_loaded_by_name():
    others = [
        bundled_reviews(length=20),
        bundled_reviews(vocabulary=100),
        bundled_characters(256),
        bundled_weather(length=48),
        bundled_weather(horizon=12),
    ]
    assert [(data.name, data.source) for data in others] == [
        *[("reviews", "arrays")] * 2,
        ("characters", "arrays"),
        *[("weather", "arrays")] * 2,
    ]
    assert [load_dataset(name).source for name in SEQUENCES] == list(SEQUENCES)


def test_bad_input():
    with pytest.raises(InputError, match="5 sequences have 4 targets"):
        SequenceSplit(np.zeros((5, 2), "int32"), np.zeros(4, "int32"))
    with pytest.raises(InputError, match="do not fit into a split"):
        bundled_weather(length=2000)
    with pytest.raises(InputError, match="length is 200000; it must be less than the"):
        bundled_characters(200_000)
    with pytest.raises(InputError, match="unknown task"):
        dataset(*[(np.zeros((1, 2)), np.zeros(1))] * 2, "regression")
    fine, bad = (np.array([[0, 2]]), np.array([1])), (np.array([[0, 3]]), np.array([-1]))
    words, names = ("", "[UNK]", "a"), ("no", "yes")
    with pytest.raises(InputError, match="a test token of made up is 3, but its 3 words are numbered 0 to 2"):
        dataset(fine, (bad[0], fine[1]), "classification", vocabulary=words, class_names=names)
    with pytest.raises(InputError, match="a training label of made up is -1, but its 2 classes are numbered 0 to 1"):
        dataset((fine[0], bad[1]), fine, "classification", vocabulary=words, class_names=names)
    with pytest.raises(InputError, match="a test target of made up is 3"):
        dataset((fine[0], fine[0]), (fine[0], bad[0]), "next_token", vocabulary=words)
    with pytest.raises(InputError, match="made up has tokens but no vocabulary; pass their words"):
        dataset(fine, fine, "classification", class_names=names)
    with pytest.raises(InputError, match="made up has tokens but no vocabulary; pass their words"):
        dataset((fine[0], fine[0]), (fine[0], fine[0]), "next_token")
    with pytest.raises(InputError, match="the number of classes of made up is 1; it must be at least 2"):
        dataset(fine, fine, "classification", vocabulary=words, class_names=names[:1])
    with pytest.raises(InputError, match="the class no of made up has no training sequences; add some, or leave out"):
        dataset(fine, fine, "classification", vocabulary=words, class_names=names)


def pair(task, length=6, horizon=2):
    """Return three sequences and their targets, as the task needs them."""
    tokens = np.ones((3, length), "int32")
    if task == "classification":
        return tokens, np.array([0, 1, 1], "int32")
    return (tokens, tokens) if task == "next_token" else (np.ones((3, length, 4)), np.ones((3, horizon, 1)))


def with_value(array, value):
    array = array.astype("float64")
    array[1].flat[-1] = value
    return array


@pytest.mark.parametrize(
    ("task", "change", "says"),
    [
        (
            "forecast",
            lambda x, y: (x, y[:, 0, 0]),
            r"targets of made up have shape \(3,\) .* numbers of shape \(number, h",
        ),
        ("forecast", lambda x, y: (x, y[..., 0]), r"targets of made up have shape \(3, 2\)"),
        ("forecast", lambda x, y: (x[..., 0], y), r"sequences of made up have shape \(3, 6\) .* \(number, length, fea"),
        ("forecast", lambda x, y: (x[:, :0], y), r"sequences of made up have shape \(3, 0, 4\)"),
        ("forecast", lambda x, y: (with_value(x, np.nan), y), "sequences of made up are NaN or infinite in example 1"),
        ("forecast", lambda x, y: (x, with_value(y, -np.inf)), "targets of made up are NaN or infinite in example 1"),
        ("forecast", lambda x, y: (with_value(x, 1e39), y), "sequences of made up are NaN or infinite in example 1"),
        (
            "classification",
            lambda x, y: (x, y[:, None]),
            r"targets of made up have shape \(3, 1\) .* integers of shape",
        ),
        (
            "classification",
            lambda x, y: (x, y.astype(float)),
            "targets of made up have .* dtype float64; for the task cl",
        ),
        ("classification", lambda x, y: (x, y > 0), "targets of made up have .* dtype bool"),
        ("classification", lambda x, y: (x.astype("float32"), y), "sequences of made up have .* dtype float32"),
        ("next_token", lambda x, y: (x, y[:, 0]), r"targets of made up have shape \(3,\)"),
    ],
)
@pytest.mark.parametrize("split", ["training", "test"])
def test_arrays_that_do_not_fit_the_task_are_refused(split, task, change, says):
    good, bad = pair(task), change(*pair(task))
    options = {} if task == "forecast" else {"vocabulary": ("", "[UNK]"), "class_names": ("no", "yes")}
    with pytest.raises(InputError, match=f"the {split} {says}"):
        dataset(*((bad, good) if split == "training" else (good, bad)), task, **options)


def test_both_splits_have_the_same_shapes():
    names = {"vocabulary": ("", "[UNK]"), "class_names": ("no", "yes")}
    with pytest.raises(InputError, match=r"have the shapes \(6, 4\) and \(4, 1\), test .* \(6, 4\) and \(1, 1\); make"):
        dataset(pair("forecast", horizon=4), pair("forecast", horizon=1), "forecast")
    with pytest.raises(InputError, match=r"have the shapes \(6,\) and \(\), test sequences and targets \(8,\)"):
        dataset(pair("classification"), pair("classification", length=8), "classification", **names)
    tokens, targets = pair("next_token")
    with pytest.raises(InputError, match=r"have the shape \(6,\), targets \(5,\); pass a target for each token"):
        dataset((tokens, targets[:, 1:]), (tokens, targets[:, 1:]), "next_token", **names)


def test_lists_become_arrays():
    lists = [[1, 0], [1, 1]], [0, 1]
    data = dataset(lists, lists, "classification", vocabulary=("", "[UNK]"), class_names=("no", "yes"))
    assert data.train.batch(np.array([1]))[0].tolist() == [[1, 1]] and baselines(data)
    with pytest.raises(InputError, match="differ in length; cut or pad them"):
        SequenceSplit([[1, 0], [1]], [0, 1])


def test_texts_are_encoded_as_the_training_sentences_were():
    """Known words in lower case, separated by blanks, come back as the tokens they were decoded from."""
    data = bundled_reviews()
    rows = [row for row in data.test.sequences[:200] if 1 not in row]
    texts = [" ".join(data.vocabulary[token] for token in row if token) for row in rows]
    assert len(rows) > 50 and np.array_equal(data.encode(texts), rows)
    assert np.array_equal(data.encode([text.upper() for text in texts]), rows)
    assert data.encode(["qwertzuiop", "film " * 99]).tolist()[0] == [1] + [0] * 39
    assert data.encode(["film " * 99]).shape == (1, 40)


def test_characters_are_encoded_one_by_one():
    data = bundled_characters()
    start = "".join(data.vocabulary[token] for token in data.test.sequences[0])
    assert np.array_equal(data.encode([start])[0], data.test.sequences[0])


@pytest.mark.parametrize("number", [0, -1, 2.5, "40"])
@pytest.mark.parametrize(
    ("load", "option"),
    [
        (bundled_reviews, "length"),
        (bundled_characters, "length"),
        (bundled_weather, "length"),
        (bundled_weather, "horizon"),
    ],
)
def test_sizes_that_are_no_positive_integers_are_refused(load, option, number):
    with pytest.raises(InputError, match=f"{option} is {number!r}; it must be an integer of at least 1"):
        load(**{option: number})


@pytest.mark.parametrize(
    ("number", "says"),
    [(0, "number of at least 3"), (2, "number of at least 3"), ("9", "number of at least 3"), (3.5, "an integer")],
)
def test_a_vocabulary_has_a_word_besides_padding_and_unknown(number, says):
    with pytest.raises(InputError, match=f"vocabulary is {number!r}; it must be .*{says}"):
        bundled_reviews(vocabulary=number)


@pytest.mark.parametrize(
    "vocabulary",
    [("good", "bad", "film", "the"), ("", "bad", "film"), ("[PAD]", "?", "film"), ("0", "1", "2"), ("Good", "", "a")],
)
def test_networks_ignore_token_0_so_that_it_cannot_be_a_word(vocabulary):
    pair = np.array([[0, 1, 2], [1, 2, 0]]), np.array([0, 1])
    with pytest.raises(InputError, match=r"begins with .*, but token 0 must be padding .* begin it with"):
        dataset(pair, pair, "classification", vocabulary=vocabulary, class_names=("no", "yes"))


@pytest.mark.parametrize("first", [("", "\ufffd"), ("", "[UNK]"), ("<pad>", "<unk>")])
def test_unknown_words_become_token_1(first):
    pair = np.array([[0, 1, 2], [1, 2, 0]]), np.array([0, 1])
    data = dataset(pair, pair, "classification", vocabulary=[*first, "film", "!"], class_names=("no", "yes"))
    assert data.encode(["Excellent film!", "unk pad"]).tolist() == [[1, 2, 3], [1, 1, 0]]


@pytest.mark.parametrize(
    ("task", "vocabulary", "says"),
    [
        ("classification", ("", "[UNK]", "film", "Good"), "into words in lower case .* would never find 'Good'"),
        ("classification", ("", "[UNK]", "don't"), 'would never find "don\'t"'),
        ("next_token", ("", "[UNK]", "film"), "into characters and would never find 'film' in the vocabulary of made"),
        ("next_token", ("a", "b", "c"), "begins with 'a', 'b', but token 0 must be padding and token 1 unknown text"),
    ],
)
def test_texts_are_not_encoded_with_words_that_are_never_found(task, vocabulary, says):
    tokens = np.array([[0, 1, 2], [1, 2, 0]])
    pair = (tokens, np.array([0, 1])) if task == "classification" else (tokens, tokens)
    names = ("no", "yes") if task == "classification" else ()
    data = dataset(pair, pair, task, vocabulary=vocabulary, class_names=names)
    with pytest.raises(InputError, match=says):
        data.encode(["film"])


def test_names_of_any_type_become_text():
    """run.json cannot hold NumPy's numbers."""
    pair = np.array([[0, 1, 2], [1, 2, 0]]), np.array([0, 1])
    words = ("", "[UNK]", "2")
    first = dataset(pair, pair, "classification", vocabulary=words, class_names=("0", "1"))
    other = dataset(pair, pair, "classification", vocabulary=np.array(words), class_names=np.arange(2))
    assert json.dumps(other.facts()) == json.dumps(first.facts()) and other.fingerprint() == first.fingerprint()


def test_what_stored_runs_were_trained_on_has_not_changed():
    """A run is only resumed and evaluated on data of the recorded fingerprint."""
    found = {name: load_dataset(name).fingerprint()[:16] for name in ("bundled", *SEQUENCES)}
    assert found == {
        "bundled": "65568deda3799240",
        "reviews": "1fc4214e163a73a1",
        "characters": "d3ee6d4b27aa60ec",
        "weather": "c88bbbca57e6cd0d",
    }


@pytest.mark.parametrize(
    ("data", "texts", "says"),
    [(bundled_weather, ["a"], "weather has numbers, not text"), (bundled_reviews, "a film", "pass a list of strings")],
)
def test_what_cannot_be_encoded_is_refused(data, texts, says):
    with pytest.raises(InputError, match=says):
        data().encode(texts)


def test_baselines_of_a_large_vocabulary_need_little_memory():
    """A table of all pairs of 10⁵ tokens would have 80 GB."""
    vocabulary = tuple(map(str, range(100_000)))
    tokens = np.array([[1, 99_999, 1, 5], [1, 99_999, 1, 5]])
    following = np.array([[99_999, 1, 5, 7], [99_999, 1, 4, 7]])
    split = SequenceSplit(tokens, following)
    found = baselines(SequenceDataset("large", split, split, "next_token", vocabulary))
    # After 1: 99999 twice, 5 and 4 once. The most frequent token is 1, 7 or 99999, twice each: the first of them.
    assert found == {"the most frequent token": 75.0, "what most often follows the last token": 25.0}
