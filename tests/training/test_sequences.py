"""Training on sequences and of Transformers: every task, stopped and resumed, recorded with what simple rules reach."""

import dataclasses

import keras
import numpy as np
import pytest
from harness import StopAfter

from keras_preact import InputError
from keras_preact.data import SequenceDataset, SequenceSplit
from keras_preact.models import Classification, Patches, Series, Tokens, prenorm_transformer
from keras_preact.training import CosineSchedule, Interrupted, RunConfig, RunFolder, evaluate, resume, start
from keras_preact.training.recipe import AdamRecipe, Recipe, get_recipe
from keras_preact.training.tasks import TASKS, errors

RECIPE = AdamRecipe(
    "test", steps=30, batch_size=10, schedule=CosineSchedule(3e-3, 3), weight_decay=0.01, decays="kernels"
)
OPTIONS = {"depth": 2, "dim": 16, "heads": 2, "dropout": 0.1}
RNG = np.random.default_rng(0)


def made_up(task):
    """Data that are easy to learn: does a token occur, what comes next in a circle, how does a sine go on."""
    tokens = RNG.integers(1, 6, size=(80, 8)).astype("int32")
    words = ("", "[UNK]", "a", "b", "c", "d")
    if task == "classification":
        pair = tokens, (tokens == 3).any(1).astype("int32")
        options = {"vocabulary": words, "class_names": ("no", "yes")}
    elif task == "next_token":
        circle = (RNG.integers(0, 4, size=(80, 1)) + np.arange(9)) % 4 + 2
        pair = circle[:, :-1].astype("int32"), circle[:, 1:].astype("int32")
        options = {"vocabulary": words}
    else:
        time = RNG.uniform(0, 24, size=(80, 1)) + np.arange(30)
        waves = 20 + 5 * np.sin(time * 2 * np.pi / 24)[..., None].astype("float32")
        pair = waves[:, :26], waves[:, 26:]
        options = {"unit": "°C", "hourly": True}
    splits = [SequenceSplit(*(array[part] for array in pair)) for part in (slice(60), slice(60, None))]
    return SequenceDataset("made up", *splits, task, **options)


def config(network="prenorm_transformer", **changes):
    return RunConfig(network, OPTIONS, "made up", recipe=dataclasses.replace(RECIPE, **changes), seed=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_learned_and_recorded(task, tmp_path):
    data = made_up(task)
    folder = start(config(steps=90), tmp_path / "run", dataset=data)
    record, rows = folder.record(), folder.metrics()
    assert rows[-1]["train_loss"] < 0.6 * rows[0]["train_loss"]
    assert record["data"]["task"] == task and record["data"]["unit"] == data.unit
    assert record["data"]["baselines"]
    measured = evaluate(folder.path, dataset=data)
    assert measured["test_error"] == pytest.approx(record["result"]["test_error"], abs=1e-3)
    if task == "forecast":
        model = keras.models.load_model(folder.model_path)
        past, future = data.test.batch(np.arange(20))
        by_hand = np.abs(keras.ops.convert_to_numpy(model(past)) - future).mean()
        assert measured["test_error"] == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [4, 6])
def test_a_transformer_that_is_stopped_and_resumed_is_equal_to_the_bit(stop, tmp_path):
    data = made_up("classification")
    whole = start(config(steps=14), tmp_path / "whole", dataset=data)
    with pytest.raises(Interrupted):
        start(config(steps=14), tmp_path / "run", dataset=data, callbacks=[StopAfter(stop)])
    resumed = resume(tmp_path / "run", dataset=data)
    first, second = (keras.models.load_model(folder.model_path) for folder in (whole, resumed))
    for mine, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert RunFolder.open(tmp_path / "run").record()["config"]["recipe"]["kind"] == "adam"


@pytest.mark.thorough
def test_images_as_patches(tiny_dataset, tmp_path):
    vision = dataclasses.replace(config(), options={**OPTIONS, "patch": 4}, dataset="tiny")
    folder = start(vision, tmp_path / "run", dataset=tiny_dataset)
    assert keras.models.load_model(folder.model_path).get_layer("patches").output.shape == (None, 4, 16)


def test_the_paper_s_recipe_reads_back_as_what_it_was():
    for recipe in (RECIPE, get_recipe("adam"), get_recipe("paper")):
        again = Recipe.from_dict(recipe.to_dict())
        assert again == recipe and type(again) is type(recipe)


@pytest.mark.parametrize("inputs", [Series(8, 3), Patches((8, 8, 3), 4), Tokens(10, 8)])
@pytest.mark.parametrize("rolled", [False, True])
def test_only_kernels_decay_and_not_those_of_embeddings(inputs, rolled):
    recipe = dataclasses.replace(RECIPE, schedule=CosineSchedule(0.1, 0), weight_decay=0.5)
    network = prenorm_transformer(inputs, Classification(2), depth=3, dim=8, heads=2, rolled=rolled)
    variables = network.trainable_variables
    for variable in variables:
        variable.assign(keras.ops.ones(variable.shape))
    recipe.optimizer().apply([keras.ops.zeros(variable.shape) for variable in variables], variables)
    decayed = {v.path for v in variables if float(keras.ops.convert_to_numpy(v).ravel()[0]) < 1}
    assert decayed == {v.path for v in variables if v.path.endswith("kernel") and v.path != "embedding/kernel"}
    assert "logits/kernel" in decayed and any("qkv" in path for path in decayed)


def test_errors_are_percent_or_in_the_data_s_unit():
    assert errors({"loss": 1.0, "mean_absolute_error": 2.0, "val_mean_absolute_error": 3.0}) == (2.0, 3.0)


def test_what_does_not_fit_is_refused(tmp_path, tiny_dataset):
    data = made_up("classification")
    with pytest.raises(InputError, match="cifar_resnet accepts images, not sequences; use one of transformer"):
        start(dataclasses.replace(config(), network="cifar_resnet", options={}), tmp_path / "a", dataset=data)
    with pytest.raises(InputError, match="does not accept these options"):
        start(dataclasses.replace(config(), options={"bottleneck": True}), tmp_path / "b", dataset=data)
    folder = start(config(steps=6), tmp_path / "c", dataset=data)
    with pytest.raises(InputError, match="made up is for next_token, but the run's network was trained for classif"):
        evaluate(folder.path, dataset=made_up("next_token"))
    with pytest.raises(InputError, match=r"of tiny have shape \(8, 8, 3\); use data of the run's shape, \(8,\)"):
        evaluate(folder.path, dataset=tiny_dataset)
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


def test_forecasts_are_compared_with_as_many_numbers(tmp_path):
    """Keras would broadcast one number against four, without a word."""
    data = made_up("forecast")
    folder = start(config(steps=2), tmp_path / "run", dataset=data)
    for count in (1, 2):
        splits = [SequenceSplit(part.sequences, part.labels[:, :count]) for part in (data.train, data.test)]
        shorter = SequenceDataset("made up", *splits, "forecast", unit="°C")
        with pytest.raises(InputError, match=rf"have shape \({count}, 1\); use data of the run's horizon .*\(4, 1\)"):
            evaluate(folder.path, dataset=shorter)
