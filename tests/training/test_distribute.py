"""Several devices share a batch: the losses of one, the same weights on all. Two devices made of one processor."""

import json
import subprocess
import sys

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.training import distribute

PROGRAM = """
import os, sys
backend, devices, form, folder = sys.argv[1:]
os.environ["KERAS_BACKEND"] = backend
if backend == "jax":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
else:
    import tensorflow as tf
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from keras_preact.training import RunConfig, get_recipe, start

class SameOnAll(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for variable in self.model.variables:
            first, *others = (copy.numpy() for copy in variable.value.values)
            assert len(others) == int(devices) - 1 and all((first == other).all() for other in others), variable.path

watch = [SameOnAll()] if backend == "tensorflow" and int(devices) > 1 else []
recipe = get_recipe("demo").with_steps(2)
options = {"depth": 20, "rolled": True} if form == "rolled" else {"depth": 8}
config = RunConfig(options=options, recipe=recipe, devices=int(devices), sync_batch_norm=form == "sync")
start(config, folder, callbacks=watch)
"""


def trained(tmp_path, backend, devices, form):
    folder = tmp_path / f"{backend}-{devices}-{form}"
    subprocess.run([sys.executable, "-c", PROGRAM, backend, str(devices), form, str(folder)], check=True)
    with np.load(max(folder.glob("checkpoints/*.npz"))) as data:
        weights = {key: data[key] for key in data.files if key != "about"}
    return json.loads((folder / "run.json").read_text()), weights


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_two_devices_train_as_one_does(tmp_path, backend):
    """Augmentation and all: each share is drawn as it would be on one device."""
    pytest.importorskip(backend)
    (one, weights), (two, others) = (trained(tmp_path, backend, *how) for how in ((1, "plain"), (2, "sync")))
    assert abs(one["result"]["train_loss"] - two["result"]["train_loss"]) < 1e-4
    assert abs(one["result"]["test_loss"] - two["result"]["test_loss"]) < 1e-3
    assert two["config"]["devices"] == 2
    differences = {key: np.abs(weights[key].astype("float64") - others[key]).max() for key in weights}
    values = [key for key in weights if weights[key].ndim > 1]  # kernels and their momenta
    assert max(differences[key] for key in values) < 1e-3
    assert any(differences[key] > 0 for key in values)  # the sums were taken in another order: there were two


def test_batch_norms_of_each_share_are_another_network(tmp_path):
    """Without synchronization the losses differ by more than rounding; the moving statistics are those of all."""
    pytest.importorskip("tensorflow")
    (one, _), (two, _) = (trained(tmp_path, "tensorflow", *how) for how in ((1, "rolled"), (2, "rolled")))
    assert abs(one["result"]["train_loss"] - two["result"]["train_loss"]) > 2e-4


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "number of devices is 0"),
        (len(distribute.devices()) + 1, f"there are {len(distribute.devices())} devices here"),
    ],
)
def test_devices_that_are_not_there_are_refused(count, words):
    with pytest.raises(InputError, match=words), distribute.on_devices(count):
        pass


@pytest.mark.parametrize(("batch_size", "test_examples"), [(127, 1000), (128, 999)])
def test_shares_that_are_not_equal_are_refused(batch_size, test_examples):
    with pytest.raises(InputError, match="which 2 devices cannot share equally"):
        distribute.check_shares(2, batch_size, test_examples)


def test_tensorflows_strategy_for_several_machines_is_refused(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    strategy = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    with pytest.raises(InputError, match=r"fails with Keras 3; use KERAS_BACKEND=jax"):
        distribute.check_devices(1)
