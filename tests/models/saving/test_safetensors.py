import errno
import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import SOME_OR_MANY, array, assert_refused_or_equal, disturb
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from keras_preact import InputError
from keras_preact.errors import WriteError
from keras_preact.interop import load_safetensors, save_safetensors
from keras_preact.layers import ResidualUnit, UnitStack
from keras_preact.models import cifar_resnet, unroll
from keras_preact.models.saving.safetensors import ABOUT, tensors_checksum


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.safetensors"


def values(model):
    return [keras.ops.convert_to_numpy(v) for v in model.weights]


def test_weights_come_back_to_the_bit(path):
    saved, loaded = cifar_resnet(8), cifar_resnet(8)
    disturb(saved)
    save_safetensors(saved, path)
    load_safetensors(loaded, path)
    assert all(np.array_equal(a, b) for a, b in zip(values(saved), values(loaded), strict=True))


def test_a_file_may_be_read_by_whoever_may_read_other_new_files(path, tmp_path):
    save_safetensors(cifar_resnet(8), path)
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_half_precision_is_half_the_size_and_rounds(path, tmp_path):
    saved, loaded = cifar_resnet(8), cifar_resnet(8)
    disturb(saved)
    save_safetensors(saved, path)
    save_safetensors(saved, tmp_path / "half.safetensors", "float16")
    assert 0.5 <= (tmp_path / "half.safetensors").stat().st_size / path.stat().st_size < 0.6
    load_safetensors(loaded, tmp_path / "half.safetensors")
    for a, b in zip(values(saved), values(loaded), strict=True):
        assert np.array_equal(a.astype("float16").astype("float32"), b)


def test_seeds_are_no_weights(path):
    images = keras.Input((8, 8, 3))
    network = keras.Model(images, keras.layers.Dense(2)(keras.layers.Dropout(0.5)(images)))
    save_safetensors(network, path)
    load_safetensors(network, path)
    steps = keras.Input((3, 8, 8, 3))
    stack = UnitStack(ResidualUnit(3, drop_path=0.1), 2, rolled=True)
    network = keras.Model(steps, keras.layers.TimeDistributed(stack)(steps))
    save_safetensors(network, path)
    assert not any("seed" in name for name in load_file(path))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"depth": 14}, "lacks 30 variables that resnet14_.* needs, the first stage1_unit02/"),
        ({"depth": 8, "classes": 5}, r"logits/\w+ has shape \(.*\) in weights.safetensors"),
        ({"depth": 8, "include_top": False}, "has 2 variables that resnet8_.* lacks, the first logits/"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(path, options, words):
    save_safetensors(cifar_resnet(8), path)
    model = cifar_resnet(**options)
    before = values(model)
    with pytest.raises(InputError, match=words):
        load_safetensors(model, path)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model), strict=True))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not of this format",
        b"\x80\x04K\x01.",
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (lambda header: len(header).to_bytes(8, "little") + header)(
            json.dumps({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
        ),
    ],
    ids=["empty", "text", "pickle", "a header of a terabyte", "no weights", "cut short"],
)
def test_files_of_another_kind_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read as safetensors|lacks"):
        load_safetensors(cifar_resnet(8), path)


@SOME_OR_MANY
def test_a_file_of_ours_that_is_damaged_is_refused_or_equal(times, path):
    def loaded():
        load_safetensors(model, path)
        return [value.tobytes() for value in values(model)]

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.BatchNormalization()])
    save_safetensors(model, path)
    assert assert_refused_or_equal(path, loaded, times) > 0.6 * times


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_changed_weight_is_found_where_the_file_has_a_checksum(path, value):
    """And in a file without one it is a weight like any other: other programs write none."""
    model = cifar_resnet(8)
    save_safetensors(model, path)
    tensors = load_file(path)
    about = {"sha256": tensors_checksum(tensors)}
    with safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()[ABOUT])["sha256"] == about["sha256"]
    tensors["stem_conv/kernel"][0, 0, 0, 0] = value
    save_file(tensors, path, metadata={ABOUT: json.dumps(about)})
    with pytest.raises(InputError, match=r"weights.safetensors is damaged: its weights do not match its checksum"):
        load_safetensors(model, path)
    save_file(tensors, path)
    load_safetensors(model, path)
    assert keras.ops.convert_to_numpy(model.get_layer("stem_conv").kernel)[0, 0, 0, 0] == value


def test_the_checksum_is_of_names_dtypes_shapes_and_values():
    tensors = {"a": np.arange(4, dtype="float32"), "b": np.zeros((), "float16")}
    others = [
        {"a": tensors["a"], "c": tensors["b"]},
        {"a": tensors["a"].reshape(2, 2), "b": tensors["b"]},
        {"a": tensors["a"].view("int32"), "b": tensors["b"]},
        {"a": tensors["a"] + 1, "b": tensors["b"]},
        {"a": tensors["a"]},
    ]
    assert tensors_checksum(dict(reversed(tensors.items()))) == tensors_checksum(tensors)
    assert len({tensors_checksum(each) for each in (tensors, *others)}) == 6


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (np.nan, "float32", "NaN or infinite"),
        (np.inf, "float16", "NaN or infinite"),
        (1e300, "float64", "too large for float32"),
        (1, "int32", "is int32, not floating-point"),
    ],
)
def test_values_that_are_no_weights_are_named_and_change_nothing(path, value, dtype, words):
    model = cifar_resnet(8)
    before = values(model)
    tensors = {variable.path: keras.ops.convert_to_numpy(variable) for variable in model.weights}
    tensors["logits/bias"] = np.full(10, value, dtype)
    save_file(tensors, path)
    with pytest.raises(InputError, match=f"logits/bias in weights.safetensors .*{words}"):
        load_safetensors(model, path)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model), strict=True))


def test_a_missing_file(path):
    with pytest.raises(InputError, match="does not exist"):
        load_safetensors(cifar_resnet(8), path)


def test_what_the_dtype_does_not_hold_is_refused(path):
    model = cifar_resnet(8)
    model.get_layer("logits").kernel.assign(model.get_layer("logits").kernel + 1e6)
    with pytest.raises(InputError, match="logits/kernel contains values that are not finite in float16"):
        save_safetensors(model, path, "float16")
    assert not path.exists()
    with pytest.raises(InputError, match="unknown dtype"):
        save_safetensors(model, path, "int8")


def header(text, data=b"", length=None):
    """A safetensors file: the header's length, the header, the data."""
    encoded = text.encode()
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nmkdir\n(S'executed'\ntR.",  # a pickle
        header("{}", length=1 << 60),
        header("{", b""),
        header(json.dumps({"__metadata__": {ABOUT: "[" * 100_000}})),
        header('{"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}', bytes(1)),
        header('{"a": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4]}}', bytes(4)),
        header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4000]}}', bytes(4)),
        header(
            '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            ' "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
            bytes(4),
        ),
    ],
)
def test_hostile_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_safetensors(cifar_resnet(8), path)


def test_a_file_that_cannot_be_written_is_one_sentence_and_the_old_one_stays(path, tmp_path, monkeypatch):
    network = cifar_resnet(8)
    with pytest.raises(WriteError, match="No such file or directory; create or restore the folder"):
        save_safetensors(network, tmp_path / "nowhere" / "weights.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(WriteError, match="folder: Is a directory; choose another path"):
        save_safetensors(network, tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    with pytest.raises(WriteError, match="too long; choose another path"):
        save_safetensors(network, tmp_path / ("a" * 300))
    save_safetensors(network, path)
    before = path.read_bytes()

    def full(aside, content):
        with open(aside, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WriteError, match=f"cannot write {path}: No space left on device; free some space"):
        save_safetensors(network, path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_adapters_are_refused(tmp_path):
    network = cifar_resnet(8)
    network.get_layer("stage1_unit01").branch[-1].enable_lora(2)
    with pytest.raises(InputError, match=r"has adapters .* build the network again without them"):
        save_safetensors(network, tmp_path / "net.safetensors")


def test_a_name_of_a_megabyte_is_not_shown(path):
    save_file({"a" * 10**6: np.zeros(1, "float32")}, path)
    with pytest.raises(InputError, match="has 1 variable that") as error:
        load_safetensors(cifar_resnet(8), path)
    assert len(str(error.value)) < 1000


def test_a_model_without_weights_yet_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no weights yet; call it on a batch, then save it"):
        save_safetensors(keras.Sequential([keras.layers.Dense(3)]), tmp_path / "file.safetensors")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("rolled", [False, True])
def test_a_unit_named_like_one_of_a_stack_keeps_its_weights(rolled, tmp_path):
    def network(rolled):
        x = keras.Input((8, 8, 4))
        stack = UnitStack(ResidualUnit(4), 2, rolled=rolled, name="stage1_stack")
        return keras.Model(x, ResidualUnit(4, name="stage1_unit01")(stack(x)))

    model, images = network(rolled), np.random.default_rng(0).normal(size=(2, 8, 8, 4)).astype("float32")
    disturb(model)
    save_safetensors(model, tmp_path / "a.safetensors")
    for other in (network(rolled), network(not rolled), unroll(network(rolled))):
        load_safetensors(other, tmp_path / "a.safetensors")
        np.testing.assert_allclose(array(other(images)), array(model(images)), rtol=1e-4, atol=1e-4)


def test_a_quantized_network_is_refused(path):
    """Its integers would be left out of the file, and left alone when it is loaded."""
    plain, quantized = cifar_resnet(8, input_shape=(8, 8, 3)), cifar_resnet(8, input_shape=(8, 8, 3))
    quantized.quantize("int8")
    with pytest.raises(InputError, match=r"is quantized \(.*logits/kernel contains integers\)"):
        save_safetensors(quantized, path)
    save_safetensors(plain, path)
    with pytest.raises(InputError, match="is quantized"):
        load_safetensors(quantized, path)
