"""Publishing a network: the catalogue describes the weights that were written."""

import json

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.experiments import keep, publish
from keras_preact.models import catalogue, pretrained
from keras_preact.models.saving.safetensors import read_safetensors, tensors_checksum
from keras_preact.training import AdamRecipe, CosineSchedule, Recipe, RunConfig, start

TWO = {"steps": 2, "batch_size": 16, "schedule": CosineSchedule(0.01)}
RECIPE = Recipe("two", **TWO)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """An empty repository, whose catalogue is the one in use."""
    (tmp_path / "docs").mkdir()
    weights = tmp_path / "keras_preact" / "weights"
    weights.mkdir(parents=True)
    monkeypatch.setattr(catalogue, "FOLDER", weights)
    monkeypatch.setattr(catalogue, "LARGE_FOLDER", tmp_path / "weights")
    monkeypatch.setitem(publish.LICENSES, "bundled", "none")
    (weights / "catalogue.json").write_text("{}")
    catalogue.catalogue.cache_clear()
    yield tmp_path
    catalogue.catalogue.cache_clear()


def trained(root, image_size=None):
    config = RunConfig(options={"depth": 8}, recipe=RECIPE, image_size=image_size)
    return start(config, root / f"run{image_size}")


def test_a_published_network_has_the_errors_of_its_entry(root):
    run = trained(root)
    with pytest.raises(InputError, match="is not among the stored runs; store it first"):
        publish.publish(run, "tiny", root)
    keep(run, root / "results")
    about = publish.publish(run, "tiny", root)
    (kept,) = (root / "results/runs").glob("*/*/run.json")
    weights = read_safetensors(root / "keras_preact/weights/tiny.safetensors")
    assert json.loads(kept.read_text())["weights"] == {"dtype": "float16", "sha256": tensors_checksum(weights)}
    assert catalogue.catalogue() == {"tiny": about}
    images, labels = RunConfig.from_dict(run.training()["config"]).load_dataset().test.batch(range(1000))
    logits = pretrained("tiny", dtype="float32").predict(images, verbose=0)
    wrong = logits.argmax(-1) != labels
    assert about.bundled_errors == wrong.sum() and about.test_error == pytest.approx(100 * wrong.mean(), abs=0.01)
    assert about.seeds == (run.training()["result"]["test_error"],)
    assert about.core_hours is not None and about.test_size == len(labels)
    assert "## tiny" in (root / "docs/pretrained.md").read_text()
    assert json.loads((root / "keras_preact/weights/catalogue.json").read_text())["tiny"]["dataset"] == "bundled"


def test_other_weights_than_those_of_the_stored_run_are_refused(root):
    """The configuration is the same; the weights are those of another training."""
    run = trained(root)
    keep(run, root / "results")
    model = keras.models.load_model(run.model_path)
    model.layers[-1].set_weights([2 * w for w in model.layers[-1].get_weights()])
    model.save(run.model_path)
    with pytest.raises(InputError, match="has other weights than the stored run"):
        publish.publish(run, "tiny", root)
    assert list(root.rglob("*.safetensors*")) == []


def test_a_failed_publication_leaves_published_weights_as_they_were(root, monkeypatch):
    run = trained(root)
    stored = keep(run, root / "results")
    stored = stored.rename(stored.with_name("renamed"))
    assert publish.publish(run, "tiny", root).run == "renamed"
    file = root / "keras_preact/weights/tiny.safetensors"
    file.write_bytes(b"published")
    monkeypatch.setattr(publish, "_described", None)  # fails
    with pytest.raises(TypeError):
        publish.publish(run, "tiny", root)
    assert file.read_bytes() == b"published" and list(root.rglob("*.safetensors*")) == [file]


@pytest.mark.thorough
def test_a_transformer_is_published_with_its_vocabulary(root):
    options = {"depth": 1, "dim": 8, "heads": 2}
    config = RunConfig("prenorm_transformer", options, dataset="reviews", recipe=AdamRecipe("adam", **TWO))
    run = start(config, root / "run")
    keep(run, root / "results")
    about = publish.publish(run, "tiny", root)
    assert (about.vocabulary, about.input_shape, about.classes) == (8000, (40,), ("negative", "positive"))
    sentences, labels = config.load_dataset().test.batch(np.arange(1057))
    wrong = pretrained("tiny", dtype="float32").predict(sentences, verbose=0).argmax(-1) != labels
    assert about.bundled_errors == wrong.sum() and about.test_size == 1057
    assert "2 steps of 16 sentences" in (root / "docs/pretrained.md").read_text()


def test_weights_too_large_for_the_repository_are_refused(root, monkeypatch):
    run = trained(root, image_size=8)
    keep(run, root / "results")
    monkeypatch.setattr(publish, "LARGEST", 1000)
    with pytest.raises(InputError, match=r"the weights of .* have .* bytes; at most 1,000 are published"):
        publish.publish(run, "tiny", root)
    assert list(root.rglob("*.safetensors")) == []


def test_calibration_error_compares_confidence_with_accuracy():
    sure = np.log([[0.98, 0.02]] * 100)
    half_right = np.arange(100) % 2
    assert publish.calibration_error(sure, half_right) == pytest.approx(48)
    assert publish.calibration_error(sure, np.zeros(100, int)) == pytest.approx(2)
    # over- and underconfident bins do not cancel
    mixed = np.log([[0.98, 0.02], [0.52, 0.48]])
    assert publish.calibration_error(mixed, np.array([1, 0])) == pytest.approx(50 * (0.98 + 0.48))
