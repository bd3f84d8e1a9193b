"""Runs whose images grow: the sizes of the epochs, the saved network, resuming, the operations in the record."""

import dataclasses
import itertools

import numpy as np
import pytest
from harness import StopAfter

from keras_preact import InputError
from keras_preact.data import PadCropFlip, from_arrays
from keras_preact.models import cifar_resnet, load_model
from keras_preact.models.summary import multiply_adds
from keras_preact.training import CosineSchedule, FastRecipe, Interrupted, Recipe, RunConfig, evaluate, resume, start

FAST = FastRecipe(
    "test",
    steps=20,
    batch_size=10,
    schedule=CosineSchedule(0.05, warmup_steps=2),
    padding=1,
    image_scales=(0.5, 0.75, 1.0),
    scale_changes=(0.4, 0.7),
)
CONFIG = RunConfig(options={"depth": 8, "placement": "full_preactivation"}, dataset="tiny", recipe=FAST, seed=3)


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """A run of 20 steps, 6 an epoch: two epochs at 8 pixels, one at 12, and the last one, cut short, at 16."""
    seen, call = [], PadCropFlip.call

    def watched(layer, x, training=None):
        seen.append(int(x.shape[1]))
        return call(layer, x, training)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PadCropFlip, "call", watched)
        folder = start(CONFIG, tmp_path_factory.mktemp("runs") / "run", larger())
    return folder, seen


def larger():
    """Images of 16×16 pixels whose classes are easy to tell apart."""
    labels = np.arange(80) % 3
    pixels = np.random.default_rng(0).integers(0, 60, (80, 16, 16, 3)) + 80 * labels[:, None, None, None]
    images = pixels.astype("uint8")
    return from_arrays(images[:60], labels[:60], images[60:], labels[60:], name="tiny")


def test_the_images_of_a_fast_recipe_grow(growing):
    _, seen = growing
    assert [size for size, _ in itertools.groupby(seen)] == [8, 12, 16]


def test_a_network_that_grew_accepts_images_of_full_size_and_has_the_recorded_error(growing):
    folder, _ = growing
    measured, recorded = evaluate(folder.path, larger()), folder.record()["result"]
    assert measured["test_error"] == pytest.approx(recorded["test_error"], abs=1e-4)
    assert measured["test_loss"] == pytest.approx(recorded["test_loss"], rel=1e-3)  # with smoothed labels
    assert load_model(folder.model_path).input_shape == (None, 16, 16, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [4, 12, 15])
def test_a_run_whose_images_grow_is_resumed_to_the_bit(growing, tmp_path, stop):
    """At the smallest size, at a change of the size, and just after it."""
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", larger(), [StopAfter(stop)])
    folder = resume(tmp_path / "run", larger())
    assert folder.model_path.read_bytes() == growing[0].model_path.read_bytes()


def test_the_images_of_any_recipe_with_sizes_of_its_own_grow(tmp_path, monkeypatch):
    seen, call = [], PadCropFlip.call

    def watched(layer, x, training=None):
        seen.append(int(x.shape[1]))
        return call(layer, x, training)

    monkeypatch.setattr(PadCropFlip, "call", watched)
    recipe = Halves("halved", steps=8, batch_size=20, schedule=CosineSchedule(0.01), padding=1, inputs="per_channel")
    folder = start(dataclasses.replace(CONFIG, recipe=recipe), tmp_path / "run", larger())
    assert [size for size, _ in itertools.groupby(seen)][-2:] == [8, 16]
    assert folder.record()["training_flops"] < 0.6 * 6 * 8 * 20 * multiply_adds(load_model(folder.model_path))
    with pytest.raises(InputError, match="8×8 pixels cannot be scaled"):
        small = from_arrays(np.zeros((60, 8, 8, 3), "uint8"), [0, 1] * 30, np.zeros((2, 8, 8, 3), "uint8"), [0, 1])
        start(dataclasses.replace(CONFIG, recipe=recipe), tmp_path / "small", small)


def test_data_that_a_fast_recipe_cannot_scale_are_refused_before_a_folder_is_made(tiny_dataset, tmp_path):
    with pytest.raises(InputError, match="8×8 pixels cannot be scaled"):
        start(CONFIG, tmp_path / "run", tiny_dataset)
    series = RunConfig("transformer", {"depth": 1}, "characters", recipe=FAST)
    with pytest.raises(InputError, match="trains image networks"):
        start(series, tmp_path / "run")
    recipe = Halves("mine", steps=8, batch_size=20, schedule=CosineSchedule(0.01))
    with pytest.raises(InputError, match="mine changes the size of the images, for which inputs='per_pixel_mean' is"):
        start(dataclasses.replace(CONFIG, recipe=recipe), tmp_path / "run", larger())
    with pytest.raises(InputError, match="inputs='none' fits only one image size"):
        dataclasses.replace(FAST, inputs="none")
    assert not list(tmp_path.iterdir())


class Halves(Recipe):
    def image_scale(self, epoch, epochs):
        return 1.0 if epoch == epochs - 1 else 0.5


def test_the_record_counts_the_operations_at_each_size(growing):
    of = {size: multiply_adds(cifar_resnet(8, input_shape=(size, size, 3), classes=3)) for size in (8, 12, 16)}
    assert growing[0].record()["training_flops"] == 6 * 10 * (12 * of[8] + 6 * of[12] + 2 * of[16])
