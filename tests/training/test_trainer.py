"""Training into a run folder: what it leaves, and that stopping and resuming changes nothing."""

import dataclasses
import importlib.util
import json
import math
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import StopAfter, array
from PIL import Image

from keras_preact import InputError
from keras_preact.data import bundled_cifar10, from_arrays, from_folder
from keras_preact.errors import MissingPackage, Stopped
from keras_preact.layers import ExclusiveGating, UnitStack
from keras_preact.losses import SmoothedCrossEntropy
from keras_preact.models import cifar_resnet, load_model, reestimate_statistics, resized
from keras_preact.models.summary import multiply_adds
from keras_preact.training import (
    CosineSchedule,
    CoupledSGD,
    Diverged,
    Interrupted,
    Recipe,
    RunConfig,
    RunFolder,
    RunLocked,
    evaluate,
    get_recipe,
    resume,
    start,
)
from keras_preact.training.build import build_model
from keras_preact.training.checkpoints import Checkpoint
from keras_preact.training.parts import parts

ROOT = Path(__file__).parents[2]
RECIPE = Recipe("test", steps=14, batch_size=10, schedule=CosineSchedule(0.05, warmup_steps=2))
SIGINT_BEFORE = signal.getsignal(signal.SIGINT)
CONFIG = RunConfig(options={"depth": 8, "placement": "full_preactivation"}, dataset="tiny", recipe=RECIPE, seed=3)


def rows_without_time(folder):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in folder.metrics()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_dataset):
    """A run of 14 steps, 6 an epoch, without a stop."""
    return start(CONFIG, tmp_path_factory.mktemp("runs") / "whole", dataset=tiny_dataset)


def test_what_a_run_leaves(whole):
    record = whole.record()
    assert record["status"] == "finished"
    assert RunConfig.from_dict(record["config"]) == CONFIG
    assert record["data"]["train_images"] == 60
    assert record["step"] == record["steps"] == 14
    assert record["seconds"] > 0
    assert record["environment"]["versions"]["keras"] == keras.__version__
    assert [row["step"] for row in whole.metrics()] == [6, 12, 14]
    rate = RECIPE.schedule.to_keras(RECIPE.steps)
    rates = [float(keras.ops.convert_to_numpy(rate(step - 1))) for step in (6, 12, 14)]
    assert [row["learning_rate"] for row in whole.metrics()] == pytest.approx(rates, rel=1e-5)
    assert record["result"]["test_error"] == whole.metrics()[-1]["test_error"]
    assert whole.curves_path.read_bytes()[:4] == b"\x89PNG"
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None  # TensorFlow writes TensorBoard's files
    assert bool(list(whole.tensorboard_path.rglob("events*"))) == has_tensorflow
    assert not list(whole.path.rglob("*.partial*"))


def test_the_saved_model_has_the_test_error_of_the_record(whole, tiny_dataset):
    measured = evaluate(whole.path, dataset=tiny_dataset)
    assert measured["test_error"] == pytest.approx(whole.record()["result"]["test_error"], abs=1e-4)


def test_the_saved_model_takes_raw_images_and_does_not_augment(whole, tiny_dataset):
    model = keras.models.load_model(whole.model_path, safe_mode=True)
    images = tiny_dataset.test.images
    np.testing.assert_array_equal(array(model(images)), array(model(images)))
    assert model.input_shape == (None, 8, 8, 3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stop", [3, 6, 7, 13])
def test_a_run_that_is_stopped_and_resumed_is_equal_to_the_bit(whole, tiny_dataset, tmp_path, stop):
    """In the middle of an epoch, at its end, just after it, and in a last epoch that is cut short."""
    with pytest.raises(Interrupted, match=f"SIGINT after step {stop}"):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(stop)])
    assert RunFolder.open(tmp_path / "run").record()["status"] == "interrupted"
    folder = resume(tmp_path / "run", dataset=tiny_dataset)
    assert rows_without_time(folder) == rows_without_time(whole)
    a, b = (keras.models.load_model(run.model_path).get_weights() for run in (whole, folder))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
    assert folder.model_path.read_bytes() == whole.model_path.read_bytes()


def stopped(path, dataset, step=8):
    with pytest.raises(Interrupted):
        start(CONFIG, path, dataset=dataset, callbacks=[StopAfter(step)])
    return RunFolder.open(path)


def lose_all(path):
    path.unlink()


def lose_a_row(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x80  # no UTF-8 any more
    path.write_bytes(content)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", [lose_all, lose_a_row, flip])
def test_a_run_goes_on_whatever_has_become_of_its_metrics(damage, whole, tiny_dataset, tmp_path):
    """The checkpoint has them too."""
    folder = stopped(tmp_path / "run", tiny_dataset)
    damage(folder.metrics_path)
    with pytest.raises(InputError, match=r"metrics\.csv"):
        folder.metrics()
    assert rows_without_time(resume(folder.path, dataset=tiny_dataset)) == rows_without_time(whole)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", [flip, lose_a_row])
def test_a_run_whose_record_is_damaged_goes_on_without_it(damage, whole, tiny_dataset, tmp_path):
    """As the sentence says: the checkpoint has a copy of the record."""
    folder = stopped(tmp_path / "run", tiny_dataset)
    damage(folder.record_path)
    with pytest.raises(InputError, match=r"run\.json .*; delete it and run `keras-preact train --resume"):
        resume(folder.path, dataset=tiny_dataset)
    folder.record_path.unlink()
    resumed = resume(folder.path, dataset=tiny_dataset)
    assert rows_without_time(resumed) == rows_without_time(whole)
    assert resumed.record_path.is_file()
    assert {**resumed.record(), "seconds": 0, "cpu_seconds": 0, "environment": 0, "resumed": 0, "metrics": 0} == {
        **whole.record(),
        "seconds": 0,
        "cpu_seconds": 0,
        "environment": 0,
        "resumed": 0,
        "metrics": 0,
    }
    assert resumed.model_path.read_bytes() == whole.model_path.read_bytes()


def test_a_run_does_not_go_on_with_another_configuration(tiny_dataset, tmp_path):
    """One digit of the seed, with a checksum that fits."""
    folder = stopped(tmp_path / "run", tiny_dataset, step=2)
    record = folder.record()
    record["config"]["seed"] = 4
    folder.update_record(**record)
    with pytest.raises(InputError, match=r"the configuration in run\.json differs from that of .* in seed; delete"):
        resume(folder.path, dataset=tiny_dataset)
    folder.record_path.unlink()
    assert RunConfig.from_dict(folder.record()["config"]) == CONFIG


def test_the_configuration_of_a_damaged_record_is_refused():
    data = CONFIG.to_dict()
    with pytest.raises(
        InputError, match=r"RunConfig has no sed: .* written by a newer version of keras_preact; update"
    ):
        RunConfig.from_dict({**data, "sed": 3})
    for broken in ({**data, "sed": 3}, {key: data[key] for key in data if key != "recipe"}, {**data, "recipe": 3}, []):
        with pytest.raises(InputError, match="a recorded configuration cannot be read"):
            RunConfig.from_dict(broken)


def test_the_comparison_above_can_fail(whole, tiny_dataset, tmp_path):
    """With another data order, or another draw of the augmentation, the weights do differ."""
    other = start(dataclasses.replace(CONFIG, seed=4), tmp_path / "other", dataset=tiny_dataset)
    assert rows_without_time(other) != rows_without_time(whole)


@pytest.mark.thorough
def test_a_run_that_is_stopped_twice(whole, tiny_dataset, tmp_path):
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(2)])
    with pytest.raises(Interrupted, match="SIGTERM after step 9"):
        resume(tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(7, signal.SIGTERM)])
    folder = resume(tmp_path / "run", dataset=tiny_dataset)
    assert rows_without_time(folder) == rows_without_time(whole)
    parts = folder.record()["resumed"]
    assert [part["step"] for part in parts] == [2, 9]
    assert all({"started", "versions", "commit", "hardware"} <= set(part) for part in parts)


def apply(optimizer, gradients, variables):
    """Take a step as `fit` does: on JAX the optimizer's loss scale is made for functions without a state alone."""
    if keras.backend.backend() != "jax":
        optimizer.apply(gradients, variables)
        return
    values = [[v.value for v in optimizer.variables], gradients, [v.value for v in variables]]
    trained, state = optimizer.stateless_apply(*values)
    for variable, value in zip([*variables, *optimizer.variables], [*trained, *state], strict=True):
        variable.assign(value)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_step_whose_float16_gradients_overflow_is_skipped(bad, tiny_dataset):
    recipe = dataclasses.replace(RECIPE, schedule=CosineSchedule(0.05, warmup_steps=0))
    model = build_model(dataclasses.replace(CONFIG, recipe=recipe, precision="mixed_float16"), tiny_dataset)
    variables = model.trainable_variables
    before, scale = [array(v) for v in variables], float(array(model.optimizer.dynamic_scale))
    good = [keras.ops.full(v.shape, 0.1 * scale) for v in variables]
    apply(model.optimizer, [keras.ops.full(variables[0].shape, bad), *good[1:]], variables)
    assert all(np.array_equal(a, array(v)) for a, v in zip(before, variables, strict=True))
    assert float(array(model.optimizer.dynamic_scale)) == scale / 2
    apply(model.optimizer, good, variables)
    assert not any(np.array_equal(a, array(v)) for a, v in zip(before, variables, strict=True))


class StopTraining(keras.callbacks.Callback):
    """Ends `fit` as Keras's EarlyStopping does, at the end of an epoch or after some steps."""

    def __init__(self, epoch=None, step=None):
        super().__init__()
        self.last = epoch, step
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step == self.last[1]:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.last[0]:
            self.model.stop_training = True


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("when", "step"), [({"epoch": 0}, 6), ({"step": 3}, 3), ({"step": 8}, 8)])
def test_a_run_that_a_callback_ends_is_none_of_its_length_and_can_go_on(when, step, whole, tiny_dataset, tmp_path):
    with pytest.raises(InputError, match=f"a callback stopped the training after step {step} of 14"):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopTraining(**when)])
    record = RunFolder.open(tmp_path / "run").record()
    assert (record["status"], record["step"]) == ("interrupted", step)
    assert rows_without_time(resume(tmp_path / "run", dataset=tiny_dataset)) == rows_without_time(whole)


def test_a_callback_that_ends_the_last_epoch_ends_nothing_too_soon(tiny_dataset, tmp_path):
    run = start(
        CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopTraining(epoch=2), StopTraining(step=14)]
    )
    assert run.record()["status"] == "finished"


def test_what_a_kill_in_the_very_first_write_leaves_is_a_free_folder(tiny_dataset, tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".lock", "run.json.partial"):
        (tmp_path / "run" / name).write_text("{")
    config = dataclasses.replace(CONFIG, recipe=dataclasses.replace(RECIPE, steps=1))
    assert start(config, tmp_path / "run", dataset=tiny_dataset).record()["status"] == "finished"


def test_two_processes_do_not_train_one_run(tiny_dataset, tmp_path):
    class Meddler(keras.callbacks.Callback):
        """What another process would do meanwhile."""

        refused = ()

        def on_train_batch_begin(self, batch, logs=None):
            for again in (lambda: resume(path, dataset=tiny_dataset), lambda: start(CONFIG, path, tiny_dataset)):
                with pytest.raises(RunLocked, match="is being trained by another process") as error:
                    again()
                self.refused += (error.value,)
            raise Interrupted(signal.SIGTERM, 0, path)

    path, meddler = tmp_path / "run", Meddler()
    with pytest.raises(Interrupted):
        start(CONFIG, path, dataset=tiny_dataset, callbacks=[meddler])
    assert len(meddler.refused) == 2
    assert resume(path, dataset=tiny_dataset).record()["status"] == "finished"  # it was let go of


def test_a_folder_that_is_not_free_is_refused_before_the_data_are_looked_for(tiny_dataset, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    config = dataclasses.replace(CONFIG, dataset="folder", data_dir=str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="exists already and is not overwritten"):
        start(config, tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        start(config, tmp_path / "run")
    # Longer than file systems allow. On Windows, and since Python 3.14, `exists` is False and `create` reports it.
    with pytest.raises(InputError, match=r"cannot (use|create) the folder .*; choose another folder"):
        start(CONFIG, tmp_path / ("a" * 300), tiny_dataset)


def test_signals_are_handed_back_after_a_run(whole):
    assert signal.getsignal(signal.SIGINT) is SIGINT_BEFORE


def test_the_record_counts_the_operations_of_the_whole_training(whole):
    """Six per multiply-add: two forward, four backward. Preprocessing counts none."""
    network = cifar_resnet(8, input_shape=(8, 8, 3), classes=3)
    assert whole.record()["training_flops"] == 6 * 14 * 10 * multiply_adds(network)


def test_the_record_counts_the_time_of_all_cores(whole):
    record = whole.record()
    assert 0 < record["cpu_seconds"] < 64 * record["seconds"]


@pytest.mark.thorough
def test_dropout_and_drop_path_resume_too(tiny_dataset, tmp_path):
    config = dataclasses.replace(CONFIG, options={"depth": 8, "shortcut": "dropout", "drop_path": 0.3})
    straight = start(config, tmp_path / "straight", dataset=tiny_dataset)
    with pytest.raises(Interrupted):
        start(config, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(8)])
    assert rows_without_time(resume(tmp_path / "run", dataset=tiny_dataset)) == rows_without_time(straight)


def test_it_learns(tiny_dataset, tmp_path):
    """Three kinds of brightness are told apart after 60 steps."""
    recipe = dataclasses.replace(RECIPE, steps=60, augment=False)
    folder = start(dataclasses.replace(CONFIG, recipe=recipe), tmp_path / "run", dataset=tiny_dataset)
    assert folder.record()["result"]["test_error"] <= 10


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_and_sets_the_policy_back(precision, tiny_dataset, tmp_path):
    config = dataclasses.replace(CONFIG, precision=precision, recipe=dataclasses.replace(RECIPE, steps=4))
    folder = start(config, tmp_path / "run", dataset=tiny_dataset)
    assert np.isfinite(folder.record()["result"]["train_loss"])
    assert keras.config.dtype_policy().name == "float32"
    model = keras.models.load_model(folder.model_path, compile=False)
    assert model.get_layer("stage1_unit01").compute_dtype == precision.removeprefix("mixed_")


@pytest.mark.thorough
def test_float16_scales_its_loss_and_does_so_again_when_it_is_loaded(tiny_dataset, tmp_path):
    """However it is loaded: the loss scale is a part of the saved optimizer, with its state."""
    config = dataclasses.replace(CONFIG, precision="mixed_float16", recipe=dataclasses.replace(RECIPE, steps=3))
    assert type(build_model(config, tiny_dataset).optimizer) is keras.optimizers.LossScaleOptimizer
    with pytest.raises(Interrupted):
        start(config, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(2)])
    seen = []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(look.model.optimizer))
    path = resume(tmp_path / "run", dataset=tiny_dataset, callbacks=[look]).model_path
    assert [type(optimizer) for optimizer in seen] == [keras.optimizers.LossScaleOptimizer]
    for load in (keras.models.load_model, load_model):
        optimizer = load(path).optimizer
        assert type(optimizer) is keras.optimizers.LossScaleOptimizer
        assert int(optimizer.step_counter) == 3 and int(optimizer.inner_optimizer.iterations) == 3


class Scaled(Recipe):
    """A recipe with a loss scale of its own."""

    average = None

    def optimizer(self):
        inner = keras.optimizers.SGD(0.1, use_ema=self.average)
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**10)


def test_a_recipe_that_scales_its_loss_does_so_once(tiny_dataset, monkeypatch):
    """Twice, and the gradients would be 2**15 times too small."""
    recipe = Scaled("scaled", steps=3, batch_size=10)
    config = dataclasses.replace(CONFIG, precision="mixed_float16", recipe=recipe)
    optimizer = build_model(config, tiny_dataset).optimizer
    assert float(optimizer.initial_scale) == 2.0**10
    assert isinstance(optimizer.inner_optimizer, keras.optimizers.SGD)  # PyTorch has a subclass; a loss scale is none
    monkeypatch.setattr(Scaled, "average", True)
    with pytest.raises(InputError, match="a run cannot average its weights"):
        build_model(config, tiny_dataset)


def test_why_a_run_ended_is_passed_on_between_processes(tmp_path):
    for error in (
        Interrupted(signal.SIGTERM, 7, tmp_path),
        Diverged("the loss is nan", 7, [3, 4], tmp_path, 5),
        Stopped(signal.SIGTERM, "; the runs are saved"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error) and vars(again) == vars(error)


@pytest.mark.parametrize("how", [{}, {"precision": "mixed_bfloat16"}])
def test_other_precisions_scale_no_loss(how, tiny_dataset):
    assert type(build_model(dataclasses.replace(CONFIG, **how), tiny_dataset).optimizer) is CoupledSGD


def test_a_forecasters_loss_is_scaled_too():
    options, recipe = {"depth": 1, "dim": 8, "heads": 2}, Recipe("mine", steps=1)
    config = RunConfig("prenorm_transformer", options, dataset="weather", recipe=recipe, precision="mixed_float16")
    model = build_model(config, config.load_dataset())
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer


@pytest.mark.thorough
def test_a_trained_network_refuses_pixels_that_are_not_uint8(whole, tiny_dataset, tmp_path):
    """Keras would cast pixels from 0 to 1 to 0: wherever it is called, built, loaded or trained further."""
    images, labels = tiny_dataset.test.images, tiny_dataset.test.labels
    for model in (build_model(CONFIG, tiny_dataset), load_model(whole.model_path), resized_alike(whole)):
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        calls = (
            model,
            lambda x, m=model: m.predict(x, verbose=0),
            lambda x, m=model: m.evaluate(x, labels, verbose=0),
            lambda x, m=model: m.fit(x, labels, verbose=0),
            lambda x, m=model: m.train_on_batch(x, labels),
            lambda x, m=model: reestimate_statistics(m, [x]),
        )
        for call in calls:
            for given in (images / 255, images.astype("float32"), images.astype("int32") - 1):
                with pytest.raises(ValueError, match=r"expected dtype=uint8, found dtype=(float32|float64|int32)"):
                    call(given)
            call(images)


def resized_alike(run):
    recipe = dataclasses.replace(RECIPE, inputs="none")
    config = dataclasses.replace(CONFIG, recipe=recipe)
    x = np.zeros((6, 8, 8, 3), "uint8")
    return resized(build_model(config, from_arrays(x, [0, 1, 2] * 2, x, [0, 1, 2] * 2)), 8)


def test_images_of_another_dtype_are_no_data_to_train_or_evaluate_on(whole, tiny_dataset):
    images, labels = tiny_dataset.test.images, tiny_dataset.test.labels
    with pytest.raises(InputError, match="are not uint8; pass pixels from 0 to 255"):
        evaluate(whole.path, dataset=from_arrays(images / 255, labels, images, labels))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("remains", [None, "folder", "another file"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again(remains, tiny_dataset, tmp_path):
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(7)])
    folder = RunFolder.open(tmp_path / "run")
    shutil.rmtree(folder.checkpoints_path)
    if remains is not None:
        folder.checkpoints_path.mkdir()
    if remains == "another file":
        (folder.checkpoints_path / "step-000000007.partial").write_bytes(b"")
    before = folder.record_path.read_bytes(), folder.metrics_path.read_bytes()
    with pytest.raises(InputError, match=r"but its folder checkpoints/ contains no checkpoint; restore"):
        resume(folder.path, dataset=tiny_dataset)
    assert (folder.record_path.read_bytes(), folder.metrics_path.read_bytes()) == before


@pytest.mark.thorough
def test_a_run_that_goes_on_with_another_onednn_says_so(tiny_dataset, tmp_path, monkeypatch, recwarn):
    """In one line, where both parts say which; runs of before do not."""
    monkeypatch.setattr("keras_preact.training.provenance.computes_with_onednn", lambda: True)
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(2)])
    folder = RunFolder.open(tmp_path / "run")
    assert folder.record()["environment"]["onednn"] is True
    for there, warned in ((True, False), (False, True), (False, False), (None, False)):
        monkeypatch.setattr("keras_preact.training.provenance.computes_with_onednn", lambda there=there: there)
        recwarn.clear()
        with pytest.raises(Interrupted):
            resume(folder.path, dataset=tiny_dataset, callbacks=[StopAfter(1)])
        said = [str(w.message) for w in recwarn if "oneDNN" in str(w.message)]
        assert len(said) == warned and all("\n" not in text and "TF_ENABLE_ONEDNN_OPTS=1" in text for text in said)
    assert [part.get("onednn") for part in folder.record()["resumed"]] == [True, False, False, None]


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(whole, tiny_dataset, tmp_path):
    def end(batch, logs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed = [keras.callbacks.LambdaCallback(on_train_batch_begin=end)]
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=killed)
    assert rows_without_time(resume(tmp_path / "run", dataset=tiny_dataset)) == rows_without_time(whole)


def prepared(dataset, inputs, augment=False):
    """What the network's first convolution is given, of the training images."""
    recipe = dataclasses.replace(CONFIG.recipe, inputs=inputs, augment=augment)
    model = build_model(dataclasses.replace(CONFIG, recipe=recipe), dataset)
    before = model.get_layer("stem_conv").input
    images = dataset.train.batch(np.arange(len(dataset.train)))[0]
    return array(keras.Model(model.input, before)(images, training=augment)), images.astype("float64")


def test_the_pixels_come_to_the_network_as_the_recipe_says(tiny_dataset):
    x, images = prepared(tiny_dataset, "per_pixel_mean")
    np.testing.assert_allclose(x, (images - images.mean(0)) / 255, atol=1e-6)
    x, _ = prepared(tiny_dataset, "per_channel")
    np.testing.assert_allclose(x, (images - images.mean((0, 1, 2))) / images.std((0, 1, 2)), atol=1e-4)
    x, _ = prepared(tiny_dataset, "per_image")
    deviation = images.std((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(x, (images - images.mean((1, 2, 3), keepdims=True)) / deviation, atol=1e-4)
    x, _ = prepared(tiny_dataset, "none")
    np.testing.assert_allclose(x, images / 255, atol=1e-6)


def test_an_image_is_standardized_after_the_crop(tiny_dataset):
    """So its black border counts; a mean that is subtracted before the crop makes a border of zeros."""
    x, _ = prepared(tiny_dataset, "per_image", augment=True)
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(x.std((1, 2, 3)), 1, atol=1e-3)
    x, _ = prepared(tiny_dataset, "per_channel", augment=True)
    assert np.abs(x.mean((1, 2, 3))).max() > 0.01


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"rolled": False}, {"rolled": True}])
def test_the_networks_of_runs_are_rolled_where_that_pays_unless_the_options_say(given, tiny_dataset):
    config = dataclasses.replace(CONFIG, options={"depth": 80, "block": "basic", **given})
    stacks = {layer.name for layer in build_model(config, tiny_dataset).layers if isinstance(layer, UnitStack)}
    assert bool(stacks) == given.get("rolled", keras.backend.backend() == "tensorflow")
    assert "rolled" not in config.to_dict()["options"] or given  # the record holds what was asked for


def test_bad_configurations_leave_nothing_behind(tiny_dataset, tmp_path):
    for change, message in (
        ({"options": {"depth": 21}}, "nearest depths that are: 20, 26"),
        ({"options": {"deepness": 20}}, "does not accept these options"),
        ({"network": "resnet"}, "unknown network 'resnet'"),
        ({"precision": "float8"}, "unknown precision 'float8'"),
        ({"recipe": dataclasses.replace(RECIPE, batch_size=61)}, "does not fit 60 training examples"),
        ({"recipe": Unrecordable("mine", 1, 10)}, "the recipe's path is .*, which run.json cannot hold"),
        ({"recipe": OwnInit()}, "cannot be restored from run.json; make everything that OwnInit adds a field"),
        ({"options": {"depth": 8, "shortcut": ExclusiveGating()}}, "the option shortcut is .*ExclusiveGating"),
        ({"only": ("0", "1")}, r"only is \('0', '1'\), but the data that were passed have the classes 0, 1, 2; select"),
        ({"image_size": 16}, "image_size is 16, but the data that were passed have images of 8×8 pixels; scale"),
        *(
            ({"options": {"depth": 8, name: value}}, f"a run chooses {name} itself")
            for name, value in (
                *(("classes", 3), ("input_shape", (8, 8, 3)), ("input_tensor", None), ("include_top", False)),
                *(("pooling", "avg"), ("classifier_activation", "softmax"), ("dtype", "bfloat16")),
            )
        ),
    ):
        with pytest.raises(InputError, match=message):
            start(dataclasses.replace(CONFIG, **change), tmp_path / "run", dataset=tiny_dataset)
        assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class Unrecordable(Recipe):
    path: type = Path


class OwnInit(Recipe):
    def __init__(self):
        super().__init__("mine", 1, 10)


def test_arguments_of_other_types_leave_nothing_behind(whole, tiny_dataset, tmp_path):
    arrays = (tiny_dataset.train, tiny_dataset.test)
    for change, message in (
        ({"dataset": arrays}, "dataset is a tuple; pass a data set"),
        ({"callbacks": [3]}, "3 is not a callback"),
        ({"callbacks": print}, "<built-in function print> is not a callback"),
    ):
        with pytest.raises(InputError, match=message):
            start(CONFIG, tmp_path / "run", **{"dataset": tiny_dataset, **change})
        assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="dataset is a tuple; pass a data set"):
        evaluate(whole.path, dataset=arrays)


@pytest.mark.thorough
def test_data_that_were_selected_as_configured_are_accepted(tmp_path):
    config = dataclasses.replace(CONFIG, dataset="bundled", only=["cat", "dog"], image_size=np.int64(8))
    config = dataclasses.replace(config, recipe=dataclasses.replace(RECIPE, steps=1))
    folder = start(config, tmp_path / "run", config.load_dataset(), keras.callbacks.Callback())
    assert RunConfig.from_dict(folder.record()["config"]) == config and evaluate(folder.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": cifar_resnet}, "the network is <function cifar_resnet .*; a configuration names it"),
        ({"dataset": None}, "the dataset is None; a configuration names it, for example 'bundled'"),
        ({"options": [("depth", 8)]}, "it must be a dictionary"),
        ({"options": {8: 8}}, "it must be a dictionary"),
        ({"only": "cat"}, "only is 'cat'; it must be a tuple of names"),
        ({"recipe": "papre"}, "unknown recipe 'papre'"),
        ({"deterministic": "False"}, "deterministic is 'False'; it must be True or False"),
        ({"seed": np.float64(3)}, "the seed is 3.0; it must be an integer"),
    ],
)
def test_values_of_another_type_are_no_configuration(change, message):
    with pytest.raises(InputError, match=message):
        RunConfig(**change)


def test_a_configuration_accepts_numpys_numbers_paths_and_names_of_recipes(tmp_path):
    options = {"depth": np.int64(8), "drop_path": np.float32(0.5)}
    config = RunConfig(options=options, data_dir=tmp_path, recipe="paper", seed=np.int64(3), deterministic=np.bool_(0))
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (
        again
        == config
        == RunConfig(options={"depth": 8, "drop_path": 0.5}, data_dir=str(tmp_path), recipe=get_recipe("paper"), seed=3)
    )


def test_a_run_has_the_weights_of_its_seed_and_leaves_the_program_its_random_numbers(tiny_dataset):
    weights, drawn = [], []
    for _ in range(2):
        weights.append(build_model(CONFIG, tiny_dataset).get_weights())
        drawn.append((random.random(), np.random.uniform(), float(keras.random.uniform(()))))
    keras.utils.set_random_seed(0)  # as before the test
    assert drawn == [(random.random(), np.random.uniform(), float(keras.random.uniform(()))) for _ in range(2)]
    for one, again in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, again)


class Smooth(Recipe):
    """A recipe with a loss of its own."""

    def loss(self, task):
        return SmoothedCrossEntropy(0.9)


@pytest.mark.thorough
def test_a_recipe_with_its_own_loss_is_resumed_and_evaluated_with_it(tiny_dataset, tmp_path):
    recipe = Smooth("mine", steps=2, batch_size=10, schedule=CosineSchedule(0.01, 0))
    config = dataclasses.replace(CONFIG, recipe=recipe)
    with pytest.raises(Interrupted):
        start(config, tmp_path / "run", tiny_dataset, StopAfter(1))
    (row,) = resume(tmp_path / "run", tiny_dataset).metrics()
    (expected,) = start(config, tmp_path / "whole", tiny_dataset).metrics()
    assert (row["train_loss"], row["test_loss"]) == (expected["train_loss"], expected["test_loss"])
    assert evaluate(tmp_path / "run", tiny_dataset)["test_loss"] == pytest.approx(row["test_loss"], rel=1e-5)


def test_a_finished_run_is_not_resumed(whole, tiny_dataset, tmp_path):
    with pytest.raises(InputError, match="is finished; view it with `keras-preact evaluate"):
        resume(whole.path, dataset=tiny_dataset)
    folder = tmp_path / "without a model"  # as stored in `results`
    shutil.copytree(whole.path, folder, ignore=shutil.ignore_patterns("model.keras"))
    with pytest.raises(InputError, match="is finished; use another folder"):
        resume(folder, dataset=tiny_dataset)


def test_other_data_than_the_run_began_with_are_refused(tiny_dataset, tmp_path):
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(2)])
    train, test = tiny_dataset.train, tiny_dataset.test
    other = from_arrays(train.images + 1, train.labels, test.images, test.labels, name="tiny")
    with pytest.raises(InputError, match=r"differ from those that .* started with"):
        resume(tmp_path / "run", dataset=other)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("load", ["keras.models.load_model", "keras_preact.models.load_model"])
def test_the_trained_network_is_loaded_where_only_the_package_was_imported(whole, load):
    """It is saved compiled, so that its optimizer has to be known too; here it would be, in any case."""
    look = f"import sys, keras_preact, keras; print({load}(sys.argv[1]).optimizer.name)"
    done = subprocess.run([sys.executable, "-c", look, whole.model_path], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split()[-1:] == ["coupled_sgd"], done.stderr


def test_a_run_on_arrays_is_never_looked_up_by_their_name(tmp_path, monkeypatch):
    """Not even where tensorflow-datasets has a data set of that name, which would be downloaded."""
    monkeypatch.setattr("keras_preact.data.load.from_tfds", lambda *arguments: pytest.fail("was looked up"))
    images, labels = bundled_cifar10().train.batch(np.arange(40))
    arrays = from_arrays(images, labels, images, labels, class_names=bundled_cifar10().class_names, name="mnist")
    config = RunConfig(options={"depth": 8}, recipe=dataclasses.replace(RECIPE, steps=1))
    run = start(config, tmp_path / "run", arrays)
    assert run.record()["config"]["dataset"] == "mnist" and run.record()["data"]["source"] == "arrays"
    with pytest.raises(InputError, match="was trained on arrays; pass them again in Python, with dataset="):
        evaluate(run.path)
    assert evaluate(run.path, arrays).keys() == {"test_loss", "test_error"}


def test_a_run_on_loaded_data_that_were_passed_is_evaluated_without_them(tmp_path):
    config = RunConfig(dataset="others", options={"depth": 8}, recipe=dataclasses.replace(RECIPE, steps=1))
    run = start(dataclasses.replace(config, image_size=8), tmp_path / "run", bundled_cifar10().at(8))
    assert run.record()["config"]["dataset"] == "bundled"
    assert evaluate(run.path).keys() == {"test_loss", "test_error"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("made", "recorded"),
    [
        (lambda data: data.at(8), {"image_size": 8}),
        (lambda data: data.at(8).only(["cat", "dog"]), {"image_size": 8, "only": ["cat", "dog"]}),
        (lambda data: data.only(["dog", "cat"]).at(8), {"image_size": 8, "only": ["dog", "cat"]}),
    ],
)
def test_a_run_records_how_the_data_that_were_passed_were_selected(made, recorded, tmp_path):
    config = RunConfig(options={"depth": 8}, recipe=dataclasses.replace(RECIPE, steps=1))
    run = start(config, tmp_path / "run", made(bundled_cifar10()))
    known = run.record()["config"]
    assert known["dataset"] == "bundled" and {key: known[key] for key in recorded} == recorded
    assert evaluate(run.path)["test_error"] == pytest.approx(run.record()["result"]["test_error"])


def test_a_run_on_a_folder_that_was_passed_knows_the_folder(tmp_path):
    for path in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png"):
        (tmp_path / path).parent.mkdir(parents=True)
        Image.new("RGB", (60, 40)).save(tmp_path / path)
    config = RunConfig(options={"depth": 8}, recipe=dataclasses.replace(RECIPE, steps=1, batch_size=2))
    run = start(config, tmp_path / "run", from_folder(tmp_path, 16))
    assert evaluate(run.path)["test_error"] == pytest.approx(run.record()["result"]["test_error"])


def test_images_that_were_averaged_twice_are_passed_again(tmp_path):
    config = RunConfig(options={"depth": 8}, recipe=dataclasses.replace(RECIPE, steps=1))
    data = bundled_cifar10().at(16).at(8)
    run = start(config, tmp_path / "run", data)
    with pytest.raises(InputError, match="was trained on arrays; pass them again"):
        evaluate(run.path)
    assert evaluate(run.path, data)["test_error"] == pytest.approx(run.record()["result"]["test_error"])


@pytest.mark.thorough
def test_a_run_on_arrays_is_never_taken_for_one_on_data_of_another_name(tmp_path):
    """The configuration's data set is "bundled" unless it says otherwise; what was trained on is what is recorded."""
    images, labels = bundled_cifar10().train.batch(np.arange(40))
    recipe = dataclasses.replace(RECIPE, steps=1)
    arrays = from_arrays(images, labels, images, labels, class_names=bundled_cifar10().class_names)
    run = start(RunConfig(options={"depth": 8}, recipe=recipe), tmp_path / "a", arrays)
    assert run.record()["config"]["dataset"] == "arrays"
    with pytest.raises(InputError, match="was trained on arrays; pass them again"):
        evaluate(run.path)
    part = dataclasses.replace(arrays, source="bundled")  # as if they were all of it
    run = start(RunConfig(options={"depth": 8}, recipe=recipe), tmp_path / "b", part)
    with pytest.raises(InputError, match=r"the data differ from those that .* started with \(arrays\)"):
        evaluate(run.path)
    assert evaluate(run.path, part).keys() == {"test_loss", "test_error"}


def test_evaluation_of_other_data_checks_shape_and_classes(whole):
    x = np.zeros((4, 16, 16, 3), "uint8")
    with pytest.raises(InputError, match=r"have shape \(16, 16, 3\); use data of the run's shape, \(8, 8, 3\)"):
        evaluate(whole.path, dataset=from_arrays(x, [0, 1] * 2, x, [0, 1] * 2))
    x = np.zeros((5, 8, 8, 3), "uint8")
    with pytest.raises(InputError, match="has 5 classes, but the run's network has 3; use data with at most 3"):
        evaluate(whole.path, dataset=from_arrays(x, range(5), x, range(5)))


def test_evaluation_of_an_unfinished_run_says_how_to_finish_it(tiny_dataset, tmp_path):
    with pytest.raises(Interrupted):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[StopAfter(2)])
    with pytest.raises(InputError, match="has no trained model yet; finish it first with `keras-preact train --resume"):
        evaluate(tmp_path / "run", dataset=tiny_dataset)
    (tmp_path / "run" / "model.keras").write_bytes(b"a kill came between the model and the result")
    with pytest.raises(InputError, match="has no trained model yet"):
        evaluate(tmp_path / "run", dataset=tiny_dataset)


def test_a_run_whose_weights_were_not_kept_says_so(whole, tmp_path):
    (tmp_path / "run.json").write_bytes(whole.record_path.read_bytes())
    with pytest.raises(InputError, match=r"are not stored \(model.keras is missing\); train it again"):
        evaluate(tmp_path)


def test_parts_cover_every_step_once():
    for step, steps, per_epoch in ((0, 14, 6), (3, 14, 6), (6, 14, 6), (13, 14, 6), (0, 5, 6), (0, 12, 6), (2, 3, 1)):
        cut = parts(step, steps, per_epoch)
        lengths = [(part.last_epoch - part.first_epoch) * part.steps_per_epoch for part in cut]
        assert sum(lengths) == steps - step
        assert [part.first_step for part in cut] == [step + sum(lengths[:i]) for i in range(len(cut))]
        assert all(part.first_epoch == part.first_step // per_epoch for part in cut)


def test_run_json_is_plain(whole):
    text = whole.record_path.read_text()
    assert json.loads(text)["config"]["recipe"]["schedule"]["kind"] == "cosine"
    assert str(whole.path) not in text


class Poison(keras.callbacks.Callback):
    """Make a layer's weights no number at the end of a step."""

    def __init__(self, step, layer):
        super().__init__()
        self.layer = layer
        self.step = step
        self.seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.step:
            kernel = self.model.get_layer(self.layer).kernel
            kernel.assign(kernel * float("nan"))


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="a weight cannot be changed in the middle of fit on JAX")
def test_a_loss_that_is_no_number_ends_the_run_and_names_step_batch_and_checkpoint(tiny_dataset, tmp_path):
    words = r"the loss is nan at step 9 \(training examples [\d, ]+…\); the state after step 6 is saved"
    with pytest.raises(Diverged, match=words):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[Poison(8, "logits")])
    folder = RunFolder.open(tmp_path / "run")
    record = folder.record()
    order = tiny_dataset.train.train_batches(RECIPE.batch_size, CONFIG.seed)
    assert record["status"] == "diverged" and record["diverged"]["step"] == 9 and record["seconds"] > 0
    assert record["diverged"]["examples"] == order.indices(8).tolist()
    assert [row["step"] for row in folder.metrics()] == [6] and not folder.model_path.exists()
    folder.update_record(seconds=5000.0)  # after the checkpoint
    record = resume(tmp_path / "run", dataset=tiny_dataset).record()  # from the good state
    assert record["status"] == "finished" and "diverged" not in record and record["seconds"] < 5000


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="a weight cannot be changed in the middle of fit on JAX")
def test_weights_that_are_lost_while_the_loss_looks_well_are_noticed_before_they_are_kept(tiny_dataset, tmp_path):
    """On TensorFlow's processors ReLU makes 0 of what is no number."""
    with pytest.raises(Diverged, match=r"the (weight stem_conv/kernel is not finite|loss is nan) at step"):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[Poison(8, "stem_conv")])
    assert [file.stem for file in RunFolder(tmp_path / "run").checkpoints_path.iterdir()] == ["step-000000006"]


def test_a_test_loss_that_overflows_ends_no_run(tiny_dataset, tmp_path):
    """As in float16, while the moving statistics of a deep network are still far off."""

    def overflow(epoch, logs):
        logs["val_loss"] = math.inf  # as Keras computes it

    watch = keras.callbacks.LambdaCallback(on_epoch_end=overflow)
    folder = start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=watch)
    assert [row["test_loss"] for row in folder.metrics()] == [math.inf] * 3
    assert folder.record()["status"] == "finished" and folder.curves_path.exists()


def test_only_variables_of_model_and_optimizer_must_be_finite(tiny_dataset, tmp_path):
    model = build_model(CONFIG, tiny_dataset)
    model.evaluate(*tiny_dataset.test.batch(np.arange(8)), verbose=0)
    assert model.metrics_variables
    for variable in model.metrics_variables:
        variable.assign(keras.ops.full(variable.shape, np.inf, variable.dtype))
    checkpoint = Checkpoint(tmp_path, model)
    assert checkpoint.first_not_finite() is None
    momentum = next(v for v in model.optimizer.variables if "momentum" in v.path)
    momentum.assign(keras.ops.full(momentum.shape, np.nan))
    assert checkpoint.first_not_finite() == momentum.path


def test_an_epoch_at_whose_end_a_run_was_stopped_is_in_tensorboard(tiny_dataset, tmp_path):
    pytest.importorskip("tensorboard")
    tf = pytest.importorskip("tensorflow")
    folder = stopped(tmp_path / "run", tiny_dataset, step=6)
    resume(folder.path, dataset=tiny_dataset)
    files = (folder.tensorboard_path / "train").glob("events*")
    events = [event for file in files for event in tf.compat.v1.train.summary_iterator(str(file))]
    epochs = [event.step for event in events for value in event.summary.value if value.tag == "epoch_loss"]
    assert sorted(epochs) == [0, 1, 2]


def test_data_that_cannot_be_described_leave_nothing_behind(tiny_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(type(tiny_dataset), "facts", lambda self: {"made_by": object()})
    with pytest.raises(InputError, match="the data set's made_by is <object"):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset)
    assert not (tmp_path / "run").exists()


def test_data_and_their_folder_are_not_both_passed(whole, tiny_dataset, tmp_path):
    for read in (evaluate, resume):
        with pytest.raises(InputError, match="dataset and data_dir were both passed"):
            read(whole.path, tiny_dataset, str(tmp_path))


def test_a_rate_that_is_far_too_large_ends_it_before_any_state_is_kept(tiny_dataset, tmp_path):
    recipe = dataclasses.replace(RECIPE, schedule=CosineSchedule(1e30))
    with pytest.raises(Diverged, match="no checkpoint was saved"):
        start(dataclasses.replace(CONFIG, recipe=recipe), tmp_path / "run", dataset=tiny_dataset)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(("backend", "longest"), [("tensorflow", 6), ("jax", 20)])
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_weights(
    tmp_path, monkeypatch, precision, backend, longest
):
    """SIGKILL: in a step, in a test, in a write, wherever it falls; then resumed, until it has ended by itself."""
    pytest.importorskip(backend)
    monkeypatch.setenv("KERAS_BACKEND", backend)  # of the runs; JAX compiles for longer
    options = ["--depth", "8", "--steps", "48", "--batch-size", "250", "--precision", precision]
    command = [sys.executable, "-m", "keras_preact", "train"]
    subprocess.run([*command, *options, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    random, run, kills = np.random.default_rng(0), tmp_path / "killed", 0
    arguments = [*options, "--out", str(run)]
    while kills < 20:
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(run.glob("checkpoints/*")):
            time.sleep(0.05)  # before the first checkpoint there is nothing that could be lost
        try:
            process.wait(random.uniform(0, longest))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            arguments = ["--resume", str(run)]
        if (run / "run.json").exists() and RunFolder.open(run).record()["status"] == "finished":
            ended = len(list(tmp_path.glob("ended-*")))
            run.rename(tmp_path / f"ended-{ended}")  # it was faster than the kills: it must be equal, and again
            arguments = [*options, "--out", str(run)]
    if run.exists():
        subprocess.run([*command, "--resume", str(run)], check=True, capture_output=True)
    ended = [run, *tmp_path.glob("ended-*")] if run.exists() else list(tmp_path.glob("ended-*"))
    whole = RunFolder.open(tmp_path / "whole")
    for folder in map(RunFolder.open, ended):
        assert rows_without_time(folder) == rows_without_time(whole)
        a, b = (keras.models.load_model(each.model_path).get_weights() for each in (whole, folder))
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


# ---- callbacks and optimizers that change more than a run allows --------------------------------------------------


class ChangesWeightsAtTheEnd(keras.callbacks.Callback):
    """As EarlyStopping, which restores its best weights at the end of every call of `fit`."""

    def on_train_end(self, logs=None):
        for variable in self.model.trainable_variables:
            variable.assign(variable + 0.5)


def test_weights_that_a_callback_sets_at_the_end_of_fit_are_not_those_of_the_run(whole, tiny_dataset, tmp_path):
    run = start(CONFIG, tmp_path / "run", dataset=tiny_dataset, callbacks=[ChangesWeightsAtTheEnd()])
    assert rows_without_time(run) == rows_without_time(whole)
    assert evaluate(run.path, tiny_dataset)["test_error"] == run.record()["result"]["test_error"]


class NoConfig(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: keras.optimizers.AdamW(1e-3, use_ema=True), "cannot average its weights"),
        (lambda: keras.optimizers.SGD(NoConfig()), "define get_config in its class or its schedule"),
    ],
)
@pytest.mark.usefixtures("kinds")
def test_an_optimizer_that_could_not_be_resumed_or_saved_is_refused(optimizer, message, tiny_dataset, tmp_path):
    class Mine(Recipe):
        def optimizer(self):
            return optimizer()

    with pytest.raises(InputError, match=message):
        start(dataclasses.replace(CONFIG, recipe=Mine("mine", 2, 10)), tmp_path / "run", tiny_dataset)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_the_learning_rate_on_record_is_that_of_the_optimizer(precision, tiny_dataset, tmp_path):
    class Halved(Recipe):
        def optimizer(self):
            return keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25]))

    class Constant(Recipe):
        def optimizer(self):
            return keras.optimizers.SGD(0.125)

    for kind, rates in ((Halved, [0.5, 0.25]), (Constant, [0.125, 0.125])):
        recipe = kind("mine", 2, 30)
        config = dataclasses.replace(CONFIG, recipe=recipe, precision=precision)
        run = start(config, tmp_path / kind.__name__, part_of_epochs(tiny_dataset, 30))
        assert [row["learning_rate"] for row in run.metrics()] == rates


def test_the_learning_rate_on_record_does_not_count_steps_that_the_loss_scale_skips(tiny_dataset, tmp_path):
    class Skipping(Recipe):
        def optimizer(self):
            schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
            return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(schedule), initial_scale=2.0**100)

    config = dataclasses.replace(CONFIG, recipe=Skipping("mine", 2, 30), precision="mixed_float16")
    run = start(config, tmp_path / "run", part_of_epochs(tiny_dataset, 30))
    assert [row["learning_rate"] for row in run.metrics()] == [0.5, 0.5]


def part_of_epochs(dataset, images):
    """Return a data set with so many training images."""
    x, y = dataset.train.batch(np.arange(images))
    return from_arrays(x, y, x, y)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_training_that_keras_cuts_short_is_not_finished(tiny_dataset, tmp_path, monkeypatch):
    """As with the environment variable KERAS_MAX_STEPS_PER_EPOCH."""
    monkeypatch.setattr("keras.src.trainers.epoch_iterator.config.max_steps_per_epoch", lambda: 2)
    with (
        pytest.warns(UserWarning, match="Limiting steps_per_epoch to 2"),
        pytest.raises(InputError, match="Keras ended an epoch after step 4 instead of 12; unset KERAS_MAX_EPOCHS"),
    ):
        start(CONFIG, tmp_path / "run", dataset=tiny_dataset)
    assert RunFolder.open(tmp_path / "run").record()["status"] == "interrupted"


# ---- evaluation on data of another meaning ------------------------------------------------------------------------


def test_evaluation_of_other_classes_or_another_order_is_refused(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), "uint8"), [0, 1] * 10

    def named(*names):
        return from_arrays(x, y, x, y, class_names=names)

    config = RunConfig(options={"depth": 8}, recipe=Recipe("mine", 1, 10))
    run = start(config, tmp_path / "run", named("cat", "dog"))
    for accepted in (named("cat", "dog"), from_arrays(x, y, x, y)):  # numbers say nothing
        evaluate(run.path, accepted)
    for names in (("dog", "cat"), ("ship", "truck")):
        with pytest.raises(InputError, match="but the run's network was trained on cat, dog; use data with the same"):
            evaluate(run.path, named(*names))
    numbered = start(config, tmp_path / "numbered", from_arrays(x, y, x, y))
    evaluate(numbered.path, named("dog", "cat"))


def test_a_diverged_run_is_not_told_to_resume(tiny_dataset, tmp_path):
    far_too_large = dataclasses.replace(CONFIG, recipe=Recipe("far", 6, 10, CosineSchedule(1e30)))
    with pytest.raises(Diverged):
        start(far_too_large, tmp_path / "run", tiny_dataset)
    with pytest.raises(InputError, match="diverged and has no trained model; train again with a lower learning rate"):
        evaluate(tmp_path / "run", tiny_dataset)


def test_drawing_comes_after_the_run_is_finished(tiny_dataset, tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no LaTeX")

    monkeypatch.setattr("keras_preact.plots.draw_curves", fail)
    with pytest.raises(RuntimeError, match="no LaTeX"):
        start(CONFIG, tmp_path / "run", tiny_dataset)
    assert RunFolder.open(tmp_path / "run").record()["status"] == "finished"
    evaluate(tmp_path / "run", tiny_dataset)


def test_the_curves_do_not_depend_on_the_style_of_the_program(whole, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    from keras_preact.plots import draw_curves

    runs = {"net": whole.metrics()}
    plain = draw_curves(runs, tmp_path / "plain.png").read_bytes()
    with matplotlib.rc_context({"savefig.dpi": 30, "axes.facecolor": "black", "text.usetex": True, "font.size": 20}):
        assert draw_curves(runs, tmp_path / "styled.png").read_bytes() == plain


def test_a_missing_package_is_not_taken_for_moved_data(whole, monkeypatch):
    """Another `data_dir` would not help."""
    missing = MissingPackage("the data set 'cifar10' needs tensorflow_datasets; pip install it")
    monkeypatch.setattr(RunConfig, "load_dataset", lambda *arguments: (_ for _ in ()).throw(missing))
    record = whole.record()
    monkeypatch.setattr(type(whole), "training", lambda *arguments: {**record, "data": {}})
    with pytest.raises(MissingPackage) as error:
        evaluate(whole.path)
    assert str(error.value) == str(missing)
