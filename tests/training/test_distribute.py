"""Several devices share a batch: the losses of one, the same weights on all.

The devices are made of one processor; the machines are processes on this one.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.experiments import default_workers
from keras_preact.models import cifar_resnet
from keras_preact.models.trained import batch_norms
from keras_preact.training import RunConfig, distribute, start

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
backend, devices, form, folder, here = sys.argv[1:]
os.environ["KERAS_BACKEND"] = backend
if backend == "jax":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={here}"
else:
    import tensorflow as tf
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * int(here))
import keras
from keras_preact.training import RunConfig, compare, get_recipe, orders, start

class SameOnAll(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        for variable in self.model.variables:
            first, *others = (copy.numpy() for copy in variable.value.values)
            assert len(others) == int(devices) - 1 and all((first == other).all() for other in others), variable.path

watch = [SameOnAll()] if backend == "tensorflow" and int(devices) > 1 else []
recipe = get_recipe("demo").with_steps(2)
options = {"depth": 20, "rolled": True} if form == "rolled" else {"depth": 8}
sync = form in ("sync", "turns")
config = RunConfig(options=options, recipe=recipe, devices=int(devices), sync_batch_norm=sync)
if form == "turns":
    results = compare(orders(config), folder).record()["results"]
    assert keras.distribution.distribution() is None
    for order, alone in orders(config).items():
        loss = start(alone, f"{folder}-{order}").record()["result"]["test_loss"]
        assert abs(loss - results[order]["test_loss"]) < 1e-4
else:
    start(config, folder, callbacks=watch)
"""


def run(folder, backend, devices, form):
    here = str(max(devices, 2))
    subprocess.run([sys.executable, "-c", PROGRAM, backend, str(devices), form, str(folder), here], check=True)


def trained(tmp_path, backend, devices, form):
    folder = tmp_path / f"{backend}-{devices}-{form}"
    run(folder, backend, devices, form)
    return contents(folder)


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    """What one device does, trained once a backend: run.json and weights."""
    return cache(lambda backend: trained(tmp_path_factory.mktemp("one"), backend, 1, "plain"))


def contents(folder):
    with np.load(max(folder.glob("checkpoints/*.npz"))) as data:
        weights = {key: data[key] for key in data.files if key != "about"}
    return json.loads((folder / "run.json").read_text()), weights


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_devices_train_as_one_does(tmp_path, on_one_device, backend, devices):
    """Augmentation and all: each share is drawn as it would be on one device."""
    pytest.importorskip(backend)
    (one, weights), (two, others) = on_one_device(backend), trained(tmp_path, backend, devices, "sync")
    assert abs(one["result"]["train_loss"] - two["result"]["train_loss"]) < 1e-4
    assert abs(one["result"]["test_loss"] - two["result"]["test_loss"]) < 1e-3
    assert two["config"]["devices"] == devices
    differences = {key: np.abs(weights[key].astype("float64") - others[key]).max() for key in weights}
    values = [key for key in weights if weights[key].ndim > 1]  # kernels and their momenta
    assert max(differences[key] for key in values) < 5e-3
    assert any(differences[key] > 0 for key in values)  # the sums were taken in another order: there were several


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_runs_on_several_devices_take_turns(tmp_path, backend):
    """Each as if it were alone: TensorFlow mixes no sums, and no scope outlives the comparison on JAX."""
    pytest.importorskip(backend)
    run(tmp_path / "both", backend, 2, "turns")


@pytest.mark.slow
def test_batch_norms_of_each_share_are_another_network(tmp_path):
    """Without synchronization the losses differ by more than rounding; the moving statistics are those of all."""
    pytest.importorskip("tensorflow")
    (one, _), (two, _) = (trained(tmp_path, "tensorflow", *how) for how in ((1, "rolled"), (2, "rolled")))
    assert abs(one["result"]["train_loss"] - two["result"]["train_loss"]) > 2e-4


def test_batch_norms_in_a_loop_are_not_said_to_be_synchronized():
    with pytest.raises(InputError, match="in the rolled stacks stage1_stack, stage2_stack, stage3_stack cannot be"):
        distribute.synchronize(cifar_resnet(20, rolled=True))
    network = cifar_resnet(20, rolled=False)
    distribute.synchronize(network)
    assert all(norm.synchronized for norm in batch_norms(network))


TOO_MANY = f"but {len(distribute.devices())} found; pass devices="
if keras.backend.backend() == "torch":
    TOO_MANY = "2 devices were requested, but with PyTorch Keras trains on one"


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "number of devices is 0"),
        (len(distribute.devices()) + 1, TOO_MANY),
    ],
)
def test_devices_that_are_not_there_are_refused(count, words):
    with pytest.raises(InputError, match=words):
        distribute.device_scope(count)


def test_no_device_and_another_backend_are_refused_before_anything_is_made(tmp_path, monkeypatch):
    config = RunConfig(options={"depth": 8}, devices=0)
    with pytest.raises(InputError, match="number of devices is 0; it must be an integer of at least 1"):
        start(config, tmp_path / "run")
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    with pytest.raises(InputError, match="openvino backend cannot train; set KERAS_BACKEND=tensorflow, jax or torch"):
        start(dataclasses.replace(config, devices=1), tmp_path / "run")
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(InputError, match="2 devices were requested, but with PyTorch Keras trains on one"):
        start(dataclasses.replace(config, devices=2), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("batch_size", "test_examples"), [(127, 1000), (128, 999)])
def test_shares_that_are_not_equal_are_refused(batch_size, test_examples):
    with pytest.raises(InputError, match="which is not divisible by 2 devices"):
        distribute.check_shares(2, batch_size, test_examples)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow has that strategy")
def test_tensorflows_strategy_for_several_machines_is_refused(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    strategy = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    with pytest.raises(InputError, match=r"fails with Keras 3; set KERAS_BACKEND=jax"):
        distribute.check_devices(1)


LAYOUTS = """
import os
os.environ |= {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
import keras
from keras_preact.layers import PreActBasicBlock, UnitStack

mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], keras.distribution.list_devices())
layouts = keras.distribution.LayoutMap(mesh)
layouts[".*conv1.kernel"] = (None, None, None, None, "model")
with keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch").scope():
    inside = keras.distribution.distribution()
    stack = UnitStack(PreActBasicBlock(8), 3, rolled=True, name="stack")
    stack.build((None, 8, 8, 8))
    assert keras.distribution.distribution() is inside
    layout = {v.name: str(getattr(v.value.sharding, "spec", None)) for v in stack.trainable_variables}
print(layout["conv1_kernel"], layout["conv2_kernel"])
"""


@pytest.mark.thorough
def test_the_layouts_of_a_rolled_stack_are_those_of_its_stacked_variables():
    """The unit in the loop has variables of its own, with one dimension less, whose paths match the same pattern."""
    pytest.importorskip("jax")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", LAYOUTS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = done.stdout.strip().splitlines()[-1]
    assert "P(None, None, None, None, 'model')" in kernels.replace("PartitionSpec", "P")
    assert kernels.count("model") == 1


# ---- several processes --------------------------------------------------------------------------------------------

MEMBER = """
import hashlib, os, signal, sys
folder, steps, stop_at, me = sys.argv[1:]
os.environ["KERAS_BACKEND"] = "jax"
import keras
from keras_preact.training import Interrupted, RunConfig, get_recipe, resume, start
from keras_preact.training.distribute import join

join()

class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == int(stop_at) and me == "1":
            os.kill(os.getpid(), signal.SIGTERM)

class Digest(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.model.jax_state_sync()
        weights = b"".join(keras.ops.convert_to_numpy(v).tobytes() for v in self.model.variables)
        print("weights", hashlib.sha256(weights).hexdigest(), flush=True)

recipe = get_recipe("demo").with_steps(int(steps))
try:
    if os.path.exists(os.path.join(folder, "checkpoints")):
        resume(folder, callbacks=[Digest()])
    else:
        start(RunConfig(options={"depth": 8}, recipe=recipe, devices=2), folder, callbacks=[Stop(), Digest()])
except Interrupted as stopped:
    sys.exit(128 + stopped.signal_number)
"""


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def together(command, count=2, timeout=400, **environment):
    """Run the command in several processes that find each other; return exit statuses, last lines, standard errors."""
    shared = {
        **os.environ,
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"127.0.0.1:{free_port()}",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
        **environment,
    }
    members = [
        subprocess.Popen(
            [*command(k)],
            env={**shared, "KERAS_DISTRIBUTION_PROCESS_ID": str(k)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(count)
    ]
    try:
        outputs = [member.communicate(timeout=timeout) for member in members]
    finally:
        for member in members:
            member.kill()
    last_lines = [(out.splitlines() or [""])[-1] for out, _ in outputs]  # Gloo says above it that it is there
    return [member.returncode for member in members], last_lines, [err for _, err in outputs]


def trained_together(folder, steps, stop_at=0):
    return together(lambda k: [sys.executable, "-c", MEMBER, str(folder), str(steps), str(stop_at), str(k)])


@pytest.mark.thorough
def test_two_processes_train_as_one_does(tmp_path, on_one_device):
    """Each with a device and half of every batch; one writes, both have the same weights."""
    pytest.importorskip("jax")
    one, weights = on_one_device("jax")
    statuses, said, _ = trained_together(tmp_path / "two", 2)
    two, others = contents(tmp_path / "two")
    assert statuses == [0, 0] and two["status"] == "finished"
    assert two["environment"]["processes"] == 2 and "processes" not in one["environment"]
    assert said[0].startswith("weights ") and said[0] == said[1]
    assert abs(one["result"]["train_loss"] - two["result"]["train_loss"]) < 1e-4
    assert abs(one["result"]["test_loss"] - two["result"]["test_loss"]) < 1e-3
    values = [key for key in weights if weights[key].ndim > 1]
    assert max(np.abs(weights[key].astype("float64") - others[key]).max() for key in values) < 5e-3
    assert len((tmp_path / "two" / "metrics.csv").read_text().splitlines()) == 2  # one row, written once


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step_and_they_resume_to_the_bit(tmp_path):
    pytest.importorskip("jax")
    assert trained_together(tmp_path / "whole", 5)[0] == [0, 0]
    assert trained_together(tmp_path / "stopped", 5, stop_at=2)[0] == [143, 143]
    stopped = json.loads((tmp_path / "stopped" / "run.json").read_text())
    assert stopped["status"] == "interrupted" and stopped["step"] == 2
    statuses, said, _ = trained_together(tmp_path / "stopped", 5)
    assert statuses == [0, 0] and said[0] == said[1]
    (_, whole), (_, resumed) = contents(tmp_path / "whole"), contents(tmp_path / "stopped")
    assert all((whole[key] == resumed[key]).all() for key in whole)


@pytest.mark.parametrize(
    ("variables", "backend", "words"),
    [
        ({"JOB_ADDRESSES": "127.0.0.1:1"}, "jax", "KERAS_DISTRIBUTION_NUM_PROCESSES is not; set all three"),
        (
            {"JOB_ADDRESSES": "127.0.0.1:1", "NUM_PROCESSES": "2", "PROCESS_ID": "0"},
            "tensorflow",
            "tensorflow trains on one machine only; set KERAS_BACKEND=jax",
        ),
        (
            {"JOB_ADDRESSES": f"127.0.0.1:{free_port()}", "NUM_PROCESSES": "2", "PROCESS_ID": "1"},
            "jax",
            "could not connect .*refused",
        ),
        (
            {"JOB_ADDRESSES": "127.0.0.1:1", "NUM_PROCESSES": "2", "PROCESS_ID": "second"},
            "jax",
            "could not connect .*'second'",
        ),
    ],
)
def test_machines_that_cannot_be_joined_are_refused(monkeypatch, variables, backend, words):
    for name, value in variables.items():
        monkeypatch.setenv(f"KERAS_DISTRIBUTION_{name}", value)
    monkeypatch.setattr(distribute.keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(distribute, "CONNECT_TIMEOUT", 0)
    with pytest.raises(InputError, match=words):
        distribute.join()


@pytest.mark.slow
def test_an_error_in_one_process_ends_all_with_a_sentence(tmp_path):
    """The first cannot make its folder; the second would wait for it for ever."""
    pytest.importorskip("jax")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    command = [sys.executable, "-m", "keras_preact", "train", "--depth", "8", "--steps", "2", "--distribute", "2"]
    out = ["--out", str(tmp_path / "taken")]
    statuses, _, said = together(lambda k: [*command, *out], KERAS_BACKEND="jax")
    assert statuses == [2, 2]
    assert "exists already and is not overwritten" in said[0]
    assert "another process of this run could not start" in said[1]
    assert "Traceback" not in said[0] + said[1]


def test_pytorch_names_the_device_that_keras_selects(monkeypatch):
    """With one GPU, `default_workers` starts one run at a time."""
    for kind, index, name in (("cpu", None, "cpu:0"), ("cuda", 0, "cuda:0"), ("mps", 0, "mps:0")):
        tensor = SimpleNamespace(device=SimpleNamespace(type=kind, index=index))
        monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
        monkeypatch.setattr(keras.ops, "zeros", lambda shape, tensor=tensor: tensor)
        assert distribute.devices() == [name]
    assert default_workers(8) == 1
