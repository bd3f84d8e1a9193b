"""tensorflow-datasets: by name, in memory or as a stream, and data sets that are missing or incomplete."""

import itertools
import os
import types
from pathlib import Path

import numpy as np
import pytest

tfds = pytest.importorskip("tensorflow_datasets")
tf = pytest.importorskip("tensorflow")

from keras_preact import InputError
from keras_preact.data import from_tfds, load_dataset
from keras_preact.data.batches import TrainBatches
from keras_preact.data.streams import FIRST_EXAMPLES, _split_names, _Stream, epoch_seed
from keras_preact.keras_private import without_tensorflow_seed

WHOLE_CIFAR10 = os.environ.get("KERAS_PREACT_CIFAR10", "data")


def write_set(name, folder, shape, test="test", size=None, files=1, label=lambda k: k % 2, dtype=np.uint8, train=12):
    """Prepare a small classification set where tensorflow-datasets finds it."""
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=shape, dtype=dtype), "label": tfds.features.ClassLabel(names=["a", "b"])}
    )
    rng = np.random.default_rng(0)

    def examples(count):
        for k in range(count):
            height, width = size(k) if size else shape[:2]
            yield {"image": rng.integers(0, 256, (height, width, 3)).astype(dtype), "label": label(k)}

    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=features,
        split_datasets={"train": enumerate(examples(train)), test: enumerate(examples(6))},
        data_dir=str(folder),
        disable_shuffling=True,
        download_config=tfds.download.DownloadConfig(num_shards=files),
    )
    return folder


@pytest.fixture
def equal_sizes(tmp_path):
    return write_set("small_equal", tmp_path, (8, 8, 3))


@pytest.fixture
def other_sizes(tmp_path):
    return write_set("small_photos", tmp_path, (None, None, 3), "validation", size=lambda k: (20 + k, 40 - k), files=3)


def test_equal_sizes_are_read_into_memory_in_order(equal_sizes):
    data = from_tfds("small_equal", equal_sizes, download=False)
    assert (len(data.train), len(data.test), data.image_shape) == (12, 6, (8, 8, 3))
    assert data.class_names == ("a", "b")
    assert data.train.labels.tolist() == [0, 1] * 6
    assert data.fingerprint() == load_dataset("small_equal", equal_sizes).fingerprint()
    assert from_tfds("small_equal", equal_sizes, image_size=8).fingerprint() == data.fingerprint()
    with pytest.raises(InputError, match="can only be reduced; choose an image size from 8 to 8 pixels, not 16"):
        from_tfds("small_equal", equal_sizes, image_size=16)


def batches_of(split, first_step, count, seed=0):
    batches = itertools.islice(split.train_batches(4, seed, first_step), count)
    return [(images, labels.tolist()) for images, labels in batches]


def test_other_sizes_are_a_stream_that_can_be_resumed(other_sizes):
    data = from_tfds("small_photos", other_sizes, image_size=16, download=False)
    assert (len(data.train), len(data.test), data.image_shape) == (12, 6, (16, 16, 3))
    whole = batches_of(data.train, 0, 7)
    for step in (2, 3, 5):
        for (a, la), (b, lb) in zip(batches_of(data.train, step, 7 - step), whole[step:], strict=True):
            np.testing.assert_array_equal(a, b)
            assert la == lb
    epochs = [sorted(label for _, labels in whole[i : i + 3] for label in labels) for i in (0, 3)]
    assert epochs == [[0] * 6 + [1] * 6] * 2
    assert not np.array_equal(whole[0][0], whole[3][0])
    assert not np.array_equal(whole[0][0], batches_of(data.train, 0, 1, seed=1)[0][0])


def test_the_order_of_a_stream_does_not_depend_on_the_global_seed(tmp_path):
    write_set("small_sorted", tmp_path, (None, None, 3), size=lambda k: (20, 24), label=lambda k: k // 6)
    train = from_tfds("small_sorted", tmp_path, image_size=16).train
    with without_tensorflow_seed():
        order = tf.data.Dataset.range(12).shuffle(10_000, seed=epoch_seed(0, 0), reshuffle_each_iteration=False)
        on_record = [int(k) // 6 for k in order.as_numpy_iterator()]
        for seed in (None, 1, 2):
            tf.random.set_seed(seed)
            assert [label for _, labels in batches_of(train, 0, 3) for label in labels] == on_record


def test_a_stream_shuffles_the_files_in_each_epoch(tmp_path, monkeypatch):
    """With a fixed order of files, a shuffle buffer never mixes the first file with the last."""
    write_set("small_sorted", tmp_path, (None, None, 3), size=lambda k: (20, 24), files=3, label=lambda k: k // 6)
    monkeypatch.setattr("keras_preact.data.streams.SHUFFLE_BUFFER", 1)
    train = from_tfds("small_sorted", tmp_path, image_size=16).train
    files = [tuple(labels) for _, labels in batches_of(train, 0, 18)]  # a batch has as many images as a file
    epochs = {tuple(files[i : i + 3]) for i in range(0, 18, 3)}
    assert len(epochs) > 1
    assert all(sorted(files) == [(0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)] for files in epochs)


def test_a_stream_has_all_test_images_in_uint8(other_sizes):
    data = from_tfds("small_photos", other_sizes, image_size=16)
    batches = list(data.test.test_batches(4).as_numpy_iterator())
    assert [len(labels) for _, labels in batches] == [4, 2]
    assert batches[0][0].dtype == np.uint8
    assert data.train.mean().shape == (16, 16, 3)


def test_the_test_images_of_a_stream_at_other_sizes_are_center_crops(other_sizes):
    test = from_tfds("small_photos", other_sizes, image_size=16).test

    def images(split):
        return next(iter(split.test_batches(6).as_numpy_iterator()))[0]

    larger = test.at(24)
    assert images(larger).shape == (6, 24, 24, 3) and images(test).shape == (6, 16, 16, 3)
    assert larger.short_side / 24 == test.short_side / 16 == 256 / 224
    np.testing.assert_array_equal(images(larger.at(16)), images(test))
    whole, part = images(test.at(20, short_side=20)), images(test.at(12, short_side=20))
    np.testing.assert_array_equal(whole[:, 4:16, 4:16], part)
    with pytest.raises(InputError, match="a crop of 20 pixels does not fit a short side of 19"):
        test.at(20, short_side=19)
    with pytest.raises(InputError, match="the image size is 7; it must be at least 8 pixels"):
        test.at(7)


def test_only_the_first_examples_of_a_stream_are_read_at_its_start(tmp_path, monkeypatch):
    """The start of a run, a resume and an evaluation of ImageNet would otherwise read every file."""
    write_set("small_long", tmp_path, (None, None, 3), size=lambda k: (8, 9), files=2, train=3000)
    read = []
    encoded = _Stream._encoded

    def count(label):
        read.append(label)
        return label

    def counted(self, seed=None):
        return encoded(self, seed).map(
            lambda example: {
                **example,
                "label": tf.ensure_shape(tf.numpy_function(count, [example["label"]], tf.int64), []),
            }
        )

    monkeypatch.setattr(_Stream, "_encoded", counted)
    data = from_tfds("small_long", tmp_path, image_size=8)
    assert (len(data.train), data.train.steps_per_epoch(100)) == (3000, 30)
    assert data.fingerprint() == data.fingerprint()
    assert len(read) <= 2 * FIRST_EXAMPLES
    with pytest.raises(InputError, match="read as a stream; use all of its classes"):
        data.only(["a", "b"])
    assert len(read) <= 2 * FIRST_EXAMPLES
    assert data.train.labels.tolist() == [0, 1] * 1500


def test_the_fingerprint_of_a_stream_tells_data_apart(tmp_path):
    found = set()
    for k, label in enumerate((lambda k: k % 2, lambda k: k // 6)):
        write_set("small_photos", tmp_path / str(k), (None, None, 3), size=lambda k: (20, 24), label=label)
        found |= {from_tfds("small_photos", tmp_path / str(k), image_size=size).fingerprint() for size in (16, 20)}
    assert len(found) == 4


def test_a_stream_without_labels_is_refused(tmp_path):
    write_set("small_secret", tmp_path, (None, None, 3), size=lambda k: (20, 24), label=lambda k: -1)
    with pytest.raises(InputError, match="label of small_secret is -1"):
        from_tfds("small_secret", tmp_path, image_size=16)


@pytest.mark.parametrize("name", ["imagenet2012", "i_naturalist2017", "i_naturalist2018"])
def test_the_test_split_has_published_labels(name):
    image, label = tfds.features.Image(), tfds.features.ClassLabel(num_classes=2)
    info = types.SimpleNamespace(
        features=tfds.features.FeaturesDict({"image": image, "label": label}), splits=["train", "validation", "test"]
    )
    builder = types.SimpleNamespace(info=info)
    assert _split_names(builder, name) == ("train", "validation")
    assert _split_names(builder, "photos") == ("train", "test")


@pytest.mark.parametrize("label", [np.int64, tfds.features.Sequence(tfds.features.ClassLabel(num_classes=2))])
def test_labels_other_than_one_class_are_refused(label):
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": label})
    builder = types.SimpleNamespace(info=types.SimpleNamespace(features=features, splits=["train", "test"]))
    with pytest.raises(InputError, match="the data set photos does not have images with one label each"):
        _split_names(builder, "photos")


def test_pixels_of_more_than_8_bits_are_refused(tmp_path):
    write_set("small_deep", tmp_path, (None, None, 3), size=lambda k: (20, 24), dtype=np.uint16)
    with pytest.raises(InputError, match="the pixels of small_deep are uint16, not uint8"):
        from_tfds("small_deep", tmp_path, image_size=16)


def test_without_a_network_no_download_is_tried(tmp_path, monkeypatch, caplog):
    """tensorflow-datasets would retry ten times, for three minutes."""

    def fail(*arguments):
        raise OSError("DNS lookup failed")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", lambda self: pytest.fail("was tried"))
    with pytest.raises(InputError, match=r"cannot be downloaded \(there is no network.*--data-dir"):
        from_tfds("cifar10", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert caplog.records == []  # the error says it


@pytest.mark.parametrize("active", [True, False])
def test_the_program_keeps_its_progress_bars(active, equal_sizes, monkeypatch):
    bars = tfds.core.utils.tqdm_utils
    monkeypatch.setattr(bars, "_active", active)
    from_tfds("small_equal", equal_sizes, download=False)
    assert bars._active == active
    with pytest.raises(InputError, match="is not prepared"):
        from_tfds("cifar10", equal_sizes, download=False)
    assert bars._active == active


def test_a_stream_has_a_seed_from_0(other_sizes):
    with pytest.raises(InputError, match="seed is -1; it must be an integer of at least 0"):
        batches_of(from_tfds("small_photos", other_sizes, image_size=16).train, 0, 1, seed=-1)


def test_other_sizes_need_an_image_size(other_sizes):
    with pytest.raises(InputError, match=r"differ in size .*; pass image_size \(--image-size\), for example 224"):
        from_tfds("small_photos", other_sizes)


def test_an_unknown_name_is_refused_with_the_closest_ones(tmp_path):
    with pytest.raises(InputError, match=r"there is no data set 'cifar11' \(did you mean .*cifar10"):
        load_dataset("cifar11", tmp_path)


@pytest.mark.parametrize("shown", ["{}", "{}/"])
def test_the_path_of_a_folder_as_name_is_refused_with_the_right_options(shown, tmp_path):
    with pytest.raises(InputError, match=r"is a folder; for its images pass .*\(--dataset\) and this folder"):
        load_dataset(shown.format(tmp_path))


def test_a_missing_data_set_is_refused(tmp_path):
    with pytest.raises(InputError, match="the data set cifar10 is not prepared in"):
        from_tfds("cifar10", tmp_path, download=False)


def test_missing_empty_and_truncated_files_are_refused(equal_sizes):
    file = next(equal_sizes.rglob("*train*tfrecord*"))
    contents = file.read_bytes()
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"is incomplete: .* is missing or empty; remove its folder"):
        from_tfds("small_equal", equal_sizes)
    file.unlink()
    with pytest.raises(InputError, match="is incomplete"):
        from_tfds("small_equal", equal_sizes)
    file.write_bytes(contents[: len(contents) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        from_tfds("small_equal", equal_sizes)


def test_an_interrupted_preparation_is_refused(tmp_path):
    remains = tmp_path / "cifar10" / "3.0.2"
    remains.mkdir(parents=True)
    (remains / "cifar10-train.tfrecord-00000-of-00001").write_bytes(b"half")
    with pytest.raises(InputError, match=r"is incomplete|not prepared|cannot be opened"):
        from_tfds("cifar10", tmp_path, download=False)


@pytest.mark.skipif(
    not (Path(WHOLE_CIFAR10) / "cifar10").is_dir(),
    reason="the whole CIFAR-10 is not here; set KERAS_PREACT_CIFAR10 to the data_dir that holds it",
)
def test_the_whole_cifar10():
    data = load_dataset("cifar10", WHOLE_CIFAR10)
    assert (len(data.train), len(data.test), data.image_shape) == (50_000, 10_000, (32, 32, 3))
    assert np.bincount(data.train.labels).tolist() == [5000] * 10
    # The channel means in common use.
    np.testing.assert_allclose(data.train.mean().mean((0, 1)), [125.3, 123.0, 113.9], atol=0.1)
    mean, deviation = data.train.channel_moments()
    assert [f"{value:.1f}" for value in mean] == ["125.3", "123.0", "113.9"]
    assert [f"{value:.1f}" for value in deviation] == ["63.0", "62.1", "66.7"]
    assert data.train.steps_per_epoch(128) == 390
    assert TrainBatches(data.train, 128)[389][0].shape == (128, 32, 32, 3)
