"""Networks as other programs run them: the outputs of Keras, or a sentence and nothing left behind."""

import dataclasses
import errno
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.data import load_dataset
from keras_preact.errors import WriteError
from keras_preact.interop import export_model
from keras_preact.interop.exports import FORMATS, _in_float32
from keras_preact.models import (
    Classification,
    Tokens,
    cifar_resnet,
    feature_maps,
    fold,
    imagenet_resnet,
    pretrained,
    transformer,
)
from keras_preact.models.catalogue import catalogue

TRAINED = "resnet20-preact-cifar10-5classes"
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras exports on TensorFlow")


def augmented():
    layers = keras.layers
    flips = [layers.RandomFlip(), layers.RandomTranslation(0.3, 0.3)]
    return keras.Sequential([keras.Input((8, 8, 3)), *flips, layers.Flatten(), layers.Dense(3)])


NETWORKS = {
    "unrolled": lambda: cifar_resnet(8),
    "rolled, in bfloat16": lambda: cifar_resnet(14, rolled=True, dtype="mixed_bfloat16"),
    "folded": lambda: fold(cifar_resnet(8, placement="original")),
    "of another profile": lambda: imagenet_resnet(18, profile="timm", input_shape=(64, 64, 3), classes=10),
    "augmented in training": augmented,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_are_keras_own(tmp_path, network, suffix):
    for package in FORMATS[suffix].packages:
        pytest.importorskip(package)
    model, path = NETWORKS[network](), tmp_path / "new" / f"network{suffix}"
    assert export_model(model, path) < 1e-4
    images = np.random.default_rng(1).normal(size=(3, *model.input_shape[1:])).astype("float32")
    theirs, ours = FORMATS[suffix].open(path)(images), model.predict(images, verbose=0)
    assert theirs.shape == ours.shape and ours.std() > 1e-3
    tolerance = 0.05 if "bfloat16" in network else 1e-4  # the file is float32, the network was not
    assert np.abs(theirs - ours).max() < tolerance * np.abs(ours).max()


@pytest.mark.thorough
def test_int8_has_a_quarter_of_the_size_and_nearly_the_error(tmp_path):
    for package in FORMATS[".tflite"].packages:
        pytest.importorskip(package)
    network = pretrained(TRAINED, dtype="float32")
    images, labels = load_dataset("bundled").only(catalogue()[TRAINED].classes).test.batch(np.arange(500))
    errors = {}
    for dtype in ("float32", "int8"):
        path = tmp_path / f"{dtype}.tflite"
        difference = export_model(network, path, dtype)
        errors[dtype] = 100 * np.mean(FORMATS[".tflite"].open(path)(images).argmax(-1) != labels)
        assert (difference > 1e-4) == (dtype == "int8")  # rounded, not only renamed
    assert abs(errors["int8"] - errors["float32"]) < 2 and errors["float32"] < 12
    sizes = [(tmp_path / f"{dtype}.tflite").stat().st_size for dtype in ("float32", "int8")]
    assert sizes[1] < 0.4 * sizes[0]


@pytest.mark.parametrize("suffix", [suffix for suffix, format in FORMATS.items() if len(format.packages) > 1])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, suffix):
    for package in FORMATS[suffix].packages:
        if package != "tensorflow":
            monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r'not installed; pip install "keras_preact\[export\]"'):
        export_model(cifar_resnet(8), tmp_path / f"network{suffix}")


@pytest.mark.parametrize("name", ["network", "network.onnx", "network.xml"])
def test_other_formats_have_no_int8(tmp_path, name):
    with pytest.raises(InputError, match=f"{name} cannot have weights in int8; choose float32"):
        export_model(cifar_resnet(8), tmp_path / name, "int8")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("network.pb", "has an unknown suffix"),
        ("network.safetensors", "holds weights only; write it with keras_preact.interop.save_safetensors"),
        ("there", "exists already and is not overwritten"),
    ],
)
def test_bad_paths_are_refused(tmp_path, name, words):
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match=words):
        export_model(cifar_resnet(8), tmp_path / name)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    remedy = r'which are not installed; pip install "keras_preact\[tensorflow,export\]"'
    with pytest.raises(InputError, match=f"onnx needs tensorflow, tf2onnx, onnxruntime, {remedy}"):
        export_model(cifar_resnet(8), tmp_path / "network.onnx")


@pytest.mark.parametrize("name", ["network.onnx", "program"])
def test_standardized_inputs_are_part_of_the_program(name, tmp_path):
    """Keras's layer computes with tensors that tf2onnx took for inputs. The model itself keeps them."""
    for package in FORMATS[Path(name).suffix].packages:
        pytest.importorskip(package)
    scale = keras.layers.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 1.0, 9.0])
    before = None
    for index, layers in enumerate(([keras.layers.Conv2D(4, 3)], [keras.layers.Reshape((-1,)), keras.layers.Dense(2)])):
        model = keras.Sequential([keras.Input((8, 8, 3)), scale, *layers])
        before = scale.mean, scale.variance
        assert export_model(model, tmp_path / f"{index}-{name}") < 1e-4
    assert scale.mean is before[0] and scale.variance is before[1]


@pytest.mark.parametrize("name", ["network", "network.onnx", "network.tflite", "network.xml"])
def test_a_full_disk_is_no_fault_of_the_format(name, tmp_path, monkeypatch):
    for package in FORMATS[Path(name).suffix].packages:
        pytest.importorskip(package)

    def full(self, path, **options):
        Path(path).mkdir() if name == "network" else Path(path).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(keras.Model, "export", full)
    if name == "network.xml":
        monkeypatch.undo()
        monkeypatch.setattr("shutil.move", lambda source, target: full(None, target))
    with pytest.raises(WriteError, match=f"cannot write .*{name}: No space left on device; free some space"):
        export_model(cifar_resnet(8), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_file_that_answers_something_else_is_not_left_behind(tmp_path, monkeypatch):
    wrong = FORMATS[""].__class__("tf_saved_model", (), lambda path: lambda images: np.ones((2, 10), "float32"))
    monkeypatch.setitem(FORMATS, "", wrong)
    with pytest.raises(InputError, match="differs from Keras by"):
        export_model(cifar_resnet(8), tmp_path / "network")
    assert not (tmp_path / "network").exists()


def test_the_program_is_folded_and_a_model_that_cannot_be_folded_is_exported_as_it_is(tmp_path):
    onnx = pytest.importorskip("onnx")

    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return 2 * self.dense(x)

    model = cifar_resnet(8, placement="original", rolled=True)
    assert export_model(model, tmp_path / "network.onnx") < 1e-4
    operations = {node.op_type for node in onnx.load(tmp_path / "network.onnx").graph.node}
    assert "Conv" in operations and not operations & {"Loop", "BatchNormalization"}
    subclassed = Twice()
    subclassed(np.ones((1, 4), "float32"))
    with pytest.raises(InputError):
        fold(subclassed)
    inputs = keras.Input((4,))
    assert export_model(keras.Model(inputs, subclassed(inputs)), tmp_path / "program") < 1e-4


def test_a_network_whose_outputs_are_not_finite_is_not_exported(tmp_path):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, kernel_initializer=keras.initializers.Constant(3e38))]
    )
    with pytest.raises(InputError, match="are NaN or infinite"):
        export_model(model, tmp_path / "program")
    assert not list(tmp_path.iterdir())


def test_both_files_of_openvino_are_checked_and_removed(tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    (tmp_path / "network.bin").write_text("mine")
    with pytest.raises(InputError, match=r"network\.bin exists already and is not overwritten"):
        export_model(cifar_resnet(8), tmp_path / "network.xml")
    assert (tmp_path / "network.bin").read_text() == "mine"
    (tmp_path / "network.bin").unlink()
    wrong = dataclasses.replace(FORMATS[".xml"], open=lambda path: lambda images: np.ones((2, 10), "float32"))
    monkeypatch.setitem(FORMATS, ".xml", wrong)
    with pytest.raises(InputError, match="differs from Keras by"):
        export_model(cifar_resnet(8), tmp_path / "network.xml")
    assert not list(tmp_path.iterdir())


def test_networks_of_few_tokens_are_asked_about_those_alone(tmp_path):
    model = transformer(Tokens(20, 12), Classification(3), depth=1, dim=8, heads=2)
    assert export_model(model, tmp_path / "network") < 1e-4
    inputs = keras.Input((12,), dtype="int32")
    assert export_model(keras.Model(inputs, model(inputs)), tmp_path / "nested") < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("onednn", [False, True])
def test_a_network_in_channels_first_needs_onednn(tmp_path, onednn):
    code = (
        "from keras_preact.interop import export_model; from keras_preact.models import cifar_resnet\n"
        "network = cifar_resnet(8, data_format='channels_first', input_shape=(3, 32, 32))\n"
        f"print(export_model(network, {str(tmp_path / 'network')!r}) < 1e-4)"
    )
    settings = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings)
    if onednn:
        assert done.stdout.split()[-1] == "True"
    else:
        assert "are channels_first; set TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow" in done.stderr


def test_a_network_that_fails_in_keras_too_is_not_blamed_on_the_format(tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, keras.ops.reshape(inputs, (-1, 12)))
    with pytest.raises(
        InputError, match=r"fails on random inputs of shape \(2, 64\) .*; correct it, or give its input"
    ):
        export_model(model, tmp_path / "network")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_transformers_as_onnx(activation, rolled, tmp_path):
    for package in FORMATS[".onnx"].packages:
        pytest.importorskip(package)
    shape = {"depth": 2, "dim": 8, "heads": 2}
    model = transformer(Tokens(20, 12), Classification(3), **shape, activation=activation, rolled=rolled)
    assert export_model(model, tmp_path / "network.onnx") < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_networks_of_every_policy_are_written_in_float32(dtype, tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype=dtype)])
    assert export_model(model, tmp_path / "network") < 1e-4
    assert FORMATS[""].open(tmp_path / "network")(np.ones((2, 4), "float32")).dtype == "float32"


class Scaled(keras.layers.Layer):
    """Not registered with Keras."""

    def call(self, x):
        return 0.5 * x


@pytest.mark.parametrize("make", [Scaled, lambda **options: keras.layers.Lambda(lambda x: 0.5 * x, **options)])
def test_custom_layers_are_copied_in_float32(make, tmp_path):
    dtype = "mixed_bfloat16"
    inputs = keras.Input((4,))
    model = keras.Model(inputs, make(dtype=dtype)(keras.layers.Dense(3, dtype=dtype)(inputs)))
    assert export_model(model, tmp_path / "network") < 1e-4


def test_adapted_normalization_is_copied_in_float32():
    normalization, x = keras.layers.Normalization(), np.random.default_rng(0).normal(5, 3, (8, 4)).astype("float32")
    normalization.adapt(x)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, dtype="mixed_bfloat16")(normalization(inputs)))
    expected = array(model(x))
    np.testing.assert_allclose(array(_in_float32(model)(x)), expected, atol=0.02 * np.abs(expected).max())


def test_a_layer_that_cannot_be_copied_is_refused(tmp_path):
    class Odd(Scaled):
        def __init__(self, factor, **options):
            super().__init__(**options)

    inputs = keras.Input((4,))
    model = keras.Model(inputs, Odd(object(), dtype="mixed_bfloat16")(inputs), name="odd")
    with pytest.raises(InputError, match=r"odd cannot be copied in float32 \(.*\); return all constructor arguments"):
        export_model(model, tmp_path / "network")


def test_a_float32_network_with_an_optimizer_that_cannot_be_copied_is_exported(tmp_path):
    """As in TensorFlow's tutorial on Transformers: a schedule without get_config."""

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(Schedule()), "mse")
    assert export_model(model, tmp_path / "network") < 1e-4


class Subclassed(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize("make", [Subclassed, lambda: keras.Sequential([keras.layers.Dense(3)])])
def test_models_without_inputs_are_refused(make, tmp_path):
    with pytest.raises(InputError, match="is not a functional model; make it one"):
        export_model(make(), tmp_path / "network")


def test_a_dictionary_of_outputs_is_refused(tmp_path):
    """In the sentence about the model, not about the format: no format has names."""
    features = feature_maps(cifar_resnet(8, input_shape=(8, 8, 3)), ["stage3"])
    with pytest.raises(InputError, match=r"has a dictionary .*; export keras\.Model\(model\.inputs\[0\]"):
        export_model(features, tmp_path / "features")


def test_several_inputs_are_refused(tmp_path):
    one, other = keras.Input((4,)), keras.Input((4,))
    with pytest.raises(InputError, match="has 2 inputs and 1 outputs; export needs one of each"):
        export_model(keras.Model([one, other], one + other), tmp_path / "sum")
