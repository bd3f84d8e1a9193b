"""Trained networks: their errors are those on record, and whatever could give other weights is refused."""

import functools
import shutil

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.data import load_dataset
from keras_preact.models import catalogue as module
from keras_preact.models import cifar_resnet, pretrained
from keras_preact.models.catalogue import ADDRESS, FOLDER, LARGE_FOLDER, catalogue, weights_file

WIDE = {"depth": 14, "widen_factor": 2}
SMALL = "resnet14x2-preact-cifar10"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", catalogue())
def test_the_bundled_test_data_give_exactly_the_recorded_errors(name):
    about = catalogue()[name]
    dataset = load_dataset("reviews") if about.vocabulary else load_dataset("bundled", image_size=about.input_shape[0])
    if len(about.classes) < dataset.classes:
        dataset = dataset.only(about.classes)
    images, labels = dataset.test.batch(np.arange(len(dataset.test)))
    network = pretrained(name, dtype="float32")
    logits = np.concatenate([network.predict_on_batch(images[k : k + 250]) for k in range(0, len(images), 250)])
    assert int((logits.argmax(-1) != labels).sum()) == about.bundled_errors
    assert network.count_params() >= about.parameters == sum(map(_size, network.trainable_weights))
    # the bundled images are a tenth of the test images
    deviation = np.sqrt(about.test_error * (100 - about.test_error) / len(images))
    assert abs(100 * about.bundled_errors / len(images) - about.test_error) < 3 * deviation


def test_a_transformer_reads_sentences():
    about = catalogue()["transformer-reviews"]
    assert about.example == "sentence" and about.test_size == 1057
    tokens = load_dataset(about.dataset).encode(["a dull, lifeless film", "a moving, beautifully acted story"])
    logits = pretrained(about.name, dtype="float32").predict_on_batch(tokens)
    assert [about.classes[k] for k in logits.argmax(-1)] == ["negative", "positive"]


def _size(weight):
    return int(np.prod(weight.shape))


def test_every_file_is_in_the_catalogue_and_small_enough():
    files = [*FOLDER.glob("*.safetensors"), *LARGE_FOLDER.glob("*.safetensors")]
    assert sorted(path.stem for path in files) == sorted(catalogue())
    for about in catalogue().values():
        path = weights_file(about)
        assert path.stat().st_size == about.bytes < 4_000_000
        assert (path.parent == FOLDER) == (about.bytes <= 2**20)


def test_the_list_names_error_parameters_license_and_size():
    about = {entry.name: entry for entry in pretrained()}[SMALL]
    assert about.parameters == 691_674 and about.test_size == 10_000 and len(about.class_errors) == 10
    assert np.mean(about.class_errors) == pytest.approx(about.test_error, abs=0.01)
    assert "Krizhevsky" in about.data_license and 1e6 < about.bytes < 2e6
    assert module.Pretrained.from_dict(SMALL, about.to_dict()) == about


def test_a_builder_with_trained_weights_is_the_network_without_preprocessing():
    mean, deviation = (np.array(values, "float32") for values in catalogue()[SMALL].moments)
    images, _ = load_dataset("bundled").test.batch(range(8))
    standardized = (images - mean) / deviation
    expected = pretrained(SMALL, dtype="float32").predict_on_batch(images)
    rolled = cifar_resnet(**WIDE, weights="cifar10", rolled=True, drop_path=0.1, dtype="float32")
    np.testing.assert_allclose(rolled.predict_on_batch(standardized), expected, atol=1e-4)
    probabilities = cifar_resnet(**WIDE, weights="cifar10", classifier_activation="softmax", dtype="float32")
    np.testing.assert_allclose(probabilities.predict_on_batch(standardized), keras.ops.softmax(expected), atol=1e-5)
    features = cifar_resnet(**WIDE, weights="cifar10", include_top=False, pooling="avg", dtype="float32")
    top = probabilities.get_layer("logits")
    np.testing.assert_allclose(features.predict_on_batch(standardized) @ top.kernel + top.bias, expected, atol=1e-4)


def test_trained_weights_load_after_layers_that_have_weights():
    images, _ = load_dataset("bundled").test.batch(range(8))
    tensor = keras.Input((32, 32, 3))
    mean, deviation = catalogue()[SMALL].moments
    standardization = keras.layers.Normalization()
    standardization.build((None, 32, 32, 3))
    standardization.set_weights([np.array(mean), np.array(deviation) ** 2, np.array(0)])
    standardization.finalize_state()
    network = cifar_resnet(**WIDE, weights="cifar10", input_tensor=standardization(tensor), dtype="float32")
    assert network.input is tensor
    expected = pretrained(SMALL, dtype="float32").predict_on_batch(images)
    np.testing.assert_allclose(network.predict_on_batch(images.astype("float32")), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({**WIDE, "classes": 3}, f"{SMALL} has 10 classes, not 3; set include_top=False and add a layer"),
        ({"depth": 26}, f"no trained weights for 'cifar10' fit these options; .*{SMALL}"),
        ({**WIDE, "placement": "original"}, "no trained weights"),
        ({**WIDE, "shortcut": "dropout"}, "no trained weights"),
        ({**WIDE, "epsilon": 0.1}, "no trained weights"),
        ({"depth": 8, "weights": "cifar100"}, "cifar100 is not a weights file; pass the path of a file"),
    ],
)
def test_options_that_no_trained_network_has_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        cifar_resnet(**{"weights": "cifar10", **options})


def test_a_wrong_name_is_named_with_the_nearest_one():
    with pytest.raises(InputError, match=f"unknown trained network 'resnet14x2'.*{SMALL}"):
        pretrained("resnet14x2")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An installation without the large files, which downloads them from a folder."""
    monkeypatch.setattr(module, "LARGE_FOLDER", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "ADDRESS", (tmp_path / "site").as_uri())
    monkeypatch.setattr(keras.utils, "get_file", functools.partial(keras.utils.get_file, cache_dir=tmp_path / "cache"))
    (tmp_path / "site").mkdir()
    (tmp_path / "cache").mkdir()
    return tmp_path


def test_a_file_that_is_not_here_is_downloaded_once(elsewhere):
    about = catalogue()[SMALL]
    shutil.copy(LARGE_FOLDER / about.file, elsewhere / "site")
    path = weights_file(about)
    assert path.read_bytes() == (LARGE_FOLDER / about.file).read_bytes()
    (elsewhere / "site" / about.file).unlink()
    assert weights_file(about) == path


def test_an_installed_copy_finds_the_files_inside_a_checkout(elsewhere, monkeypatch):
    monkeypatch.chdir(LARGE_FOLDER.parent / "notebooks")
    assert weights_file(catalogue()[SMALL]) == LARGE_FOLDER / catalogue()[SMALL].file


def test_without_a_connection_one_sentence_says_what_to_do(elsewhere):
    with pytest.raises(InputError, match=rf"the weights of {SMALL} are not on this computer .*connect to the internet"):
        pretrained(SMALL)


@pytest.mark.parametrize("where", ["download", "repository"])
def test_a_damaged_file_is_refused(elsewhere, where, monkeypatch):
    about = catalogue()[SMALL]
    data = bytearray((LARGE_FOLDER / about.file).read_bytes())
    data[-1] ^= 1
    (elsewhere / "site" / about.file).write_bytes(data)
    if where == "repository":
        monkeypatch.setattr(module, "LARGE_FOLDER", elsewhere / "site")
    with pytest.raises(InputError, match=r"damaged|cannot be downloaded"):
        pretrained(SMALL)


def test_the_address_of_the_files_is_that_of_the_repository():
    assert ADDRESS.startswith("https://") and ADDRESS.endswith("/weights")


def test_a_file_of_another_version_beside_the_program_is_passed_over(elsewhere):
    about = catalogue()[SMALL]
    shutil.copy(LARGE_FOLDER / about.file, elsewhere / "site")
    (elsewhere / "weights").mkdir()
    (elsewhere / "weights" / about.file).write_bytes(b"of another version")
    assert weights_file(about).read_bytes() == (LARGE_FOLDER / about.file).read_bytes()
