"""Weights from a file: exactly those of the network, whatever kind of file it is."""

import zipfile

import h5py
import keras
import numpy as np
import pytest
from harness import SOME_OR_MANY, array, assert_refused_or_equal, disturb, write_weights

from keras_preact import InputError
from keras_preact.models import cifar_resnet, load_model
from keras_preact.models.saving import weights
from keras_preact.models.saving.weights import ENDINGS, load_weights

KINDS = {
    "plain": {},
    "gated": {"shortcut": "exclusive_gating"},
    "option A": {"shape_change": "option_a"},
    "no norms": {"normalization": "none"},
    "original": {"placement": "original"},
    "biases": {"biases": "all"},
    "deeper": {"depth": 14},
    "fewer classes": {"classes": 5},
    "no top": {"include_top": False},
}


def network(**options):
    return cifar_resnet(**{"depth": 8, "input_shape": (8, 8, 3), **options})


def values(model):
    return [array(variable) for variable in model.weights]


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Networks of several kinds, and the folder where each of them is saved in every format."""
    folder = tmp_path_factory.mktemp("weights")
    made = {kind: network(**options) for kind, options in KINDS.items()}
    for kind, model in made.items():
        disturb(model)
        for ending in ENDINGS:
            write_weights(model, folder / f"{kind}{ending}")
    return made, folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_loads_into_its_own_network_alone(networks, ending):
    made, folder = networks
    pairs = [pair for kind in made for pair in ((kind, "plain"), ("plain", kind)) if kind != "plain"]
    for saved, other in pairs:
        before = values(made[other])
        with pytest.raises(InputError, match=r"has \d+ variable|lacks \d+ variable|\(64, 10\)|\(64, 5\)") as error:
            load_weights(made[other], folder / f"{saved}{ending}")
        assert "\n" not in str(error.value)
        assert all(np.array_equal(a, b) for a, b in zip(before, values(made[other]), strict=True)), (saved, other)
    for kind, options in KINDS.items():
        loaded = network(**options, weights=folder / f"{kind}{ending}")
        assert all(np.array_equal(a, b) for a, b in zip(values(made[kind]), values(loaded), strict=True))


@pytest.mark.parametrize(
    ("saved", "other", "words"),
    [
        ("gated", "plain", "gated{} has 6 variables that resnet8_.* lacks, the first stage1_unit01/shortcut/gate/"),
        (
            "plain",
            "option A",
            "plain{} has 2 variables that resnet8_.* lacks, the first stage2_unit01/projection/conv/",
        ),
        ("plain", "no norms", "plain{} has 28 variables that resnet8_.* lacks, the first "),
        ("plain", "gated", "plain{} lacks 6 variables that resnet8_.* needs, the first stage1_unit01/shortcut/gate/"),
        ("plain", "fewer classes", r"logits/\w+ has shape \(.*10.*\) in plain{} but \(.*5.*\) in resnet8_"),
    ],
)
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_sentence_says_what_differs(networks, ending, saved, other, words):
    with pytest.raises(InputError, match=words.format(ending)):
        network(**KINDS[other], weights=networks[1] / f"{saved}{ending}")


def test_a_layer_of_another_name_is_another_layer(networks, tmp_path):
    """Even where shapes and number are the same."""
    path = write_weights(networks[0]["plain"], tmp_path / "renamed.weights.h5")
    with h5py.File(path, "a") as file:
        places = []
        file.visititems(lambda place, member: places.append(place) if member.attrs.get("name") == "head_norm" else None)
        file[places[0]].attrs["name"] = "stem_norm"
    with pytest.raises(InputError, match="has stem_norm/0 where resnet8_full_preactivation has head_norm/0"):
        network(weights=path)


def test_the_optimizer_of_a_compiled_network_is_no_part_of_the_network(tmp_path):
    """Nor are the numbers by which Keras tells layers of one name apart."""
    inputs = keras.Input((4,))
    model, again = (
        keras.Model(inputs, keras.layers.Dense(2)(keras.layers.BatchNormalization()(inputs))) for _ in range(2)
    )
    model.compile(keras.optimizers.Adam(), "mse")
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    for ending in (".weights.h5", ".keras"):
        load_weights(again, write_weights(model, tmp_path / f"trained{ending}"))
        assert all(np.array_equal(a, b) for a, b in zip(values(model), values(again), strict=True))
        fine_tuned = keras.models.clone_model(model)
        fine_tuned.compile(keras.optimizers.Adam(1e-5), "mse")
        load_weights(fine_tuned, tmp_path / f"trained{ending}")
        assert float(fine_tuned.optimizer.learning_rate) == pytest.approx(1e-5)
        assert int(fine_tuned.optimizer.iterations) == 0


def changed(path, value):
    """Put a value into the first kernel of the file."""
    with h5py.File(path, "a") as file:
        kernel = file["layers/conv2d/vars/0"]
        content = np.asarray(kernel, "float64")
        content[0, 0, 0, 0] = value
        del file["layers/conv2d/vars/0"]
        file["layers/conv2d/vars/0"] = content if abs(value) > 1e39 else content.astype("float32")
    return path


@pytest.mark.parametrize(
    ("value", "words"),
    [(np.nan, "NaN or infinite values"), (np.inf, "NaN or infinite values"), (1e300, "values too large for float32")],
)
def test_weights_that_are_not_finite_are_named(networks, tmp_path, value, words):
    path = changed(write_weights(networks[0]["plain"], tmp_path / "bad.weights.h5"), value)
    with pytest.raises(InputError, match=f"stem_conv/0 in bad.weights.h5 contains {words}"):
        network(weights=path)


def test_a_model_with_weights_that_are_not_finite_is_refused(tmp_path):
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(3e38))]
    )
    path = write_weights(model, tmp_path / "large.keras")
    assert array(load_model(path).weights[1]) == np.float32(3e38)
    model.weights[1].assign([np.inf])
    with pytest.raises(InputError, match=r"bias in large.keras contains NaN or infinite values"):
        load_model(write_weights(model, path))


class Subclassed(keras.Model):
    def __init__(self, units=3, more=False):
        super().__init__()
        self.dense = keras.layers.Dense(units, name="dense")
        self.heads = [keras.layers.Dense(2, name=f"head{k}") for k in range(1 + more)]
        self.scale = self.add_weight(shape=(2,), initializer="ones", name="scale")

    def call(self, x):
        x = self.dense(x)
        return self.scale * sum(head(x) for head in self.heads)


def subclassed(**options):
    model = Subclassed(**options)
    model(np.ones((1, 4), "float32"))
    return model


@pytest.mark.parametrize("ending", [".weights.h5", ".safetensors"])
def test_files_of_subclassed_models_are_checked_too(ending, tmp_path):
    model, other = subclassed(), subclassed()
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 2)))
    load_weights(other, write_weights(model, tmp_path / f"sound{ending}"))
    assert all(np.array_equal(a, b) for a, b in zip(values(model), values(other), strict=True))
    for options, words in (
        ({"more": True}, r"has 2 variables.* head1/"),
        ({"units": 5}, r"dense/\w+ has shape \(4, 5\)"),
    ):
        with pytest.raises(InputError, match=words):
            load_weights(other, write_weights(subclassed(**options), tmp_path / f"other{ending}"))
    for variable in (model.scale, model.heads[0].bias):
        variable.assign([np.nan, 1.0])
        if ending == ".weights.h5":
            with pytest.raises(InputError, match="contains NaN or infinite values"):
                load_weights(other, write_weights(model, tmp_path / f"bad{ending}"))
        variable.assign([1.0, 1.0])


def test_weights_of_half_precision_load(tmp_path):
    """HDF5 has no bfloat16; Keras writes its bytes."""
    dtype = keras.DTypePolicy("bfloat16")
    model = network(dtype=dtype)
    loaded = network(dtype=dtype, weights=write_weights(model, tmp_path / "half.weights.h5"))
    assert all(np.array_equal(a, b) for a, b in zip(values(model), values(loaded), strict=True))


def linked(path):
    with h5py.File(path, "a") as file:
        file.copy("layers/conv2d/vars/0", "elsewhere")
        del file["layers/conv2d/vars/0"]
        file["layers/conv2d/vars/0"] = h5py.SoftLink("/elsewhere")


def external(path):
    with h5py.File(path, "a") as file:
        kernel = file["layers/conv2d/vars/0"]
        shape = kernel.shape
        del file["layers/conv2d/vars/0"]
        file["layers/conv2d/vars"].create_dataset("0", shape, "float32", external=[("other", 0, 10**6)])


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1000])


def text(path):
    path.write_text("weights")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (linked, "contains a link at /layers/conv2d/vars/0"),
        (external, "stores /layers/conv2d/vars/0 in another file"),
        (cut_short, "cannot be read"),
        (text, "cannot be read"),
    ],
)
def test_damaged_files_are_one_sentence(networks, tmp_path, change, words):
    path = write_weights(networks[0]["plain"], tmp_path / "bad.weights.h5")
    change(path)
    with pytest.raises(InputError, match=words) as error:
        network(weights=path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
def test_what_is_checked_is_what_is_loaded(networks, tmp_path, monkeypatch, ending):
    """Another file under the same name, put there after the check, is not read."""
    made, folder = networks
    path = tmp_path / f"weights{ending}"
    path.write_bytes((folder / f"plain{ending}").read_bytes())
    check = weights.check_file

    def checked(*arguments):
        check(*arguments)
        write_weights(network(), path)

    monkeypatch.setattr(weights, "check_file", checked)
    loaded = network(weights=path)
    assert path.read_bytes() != (folder / f"plain{ending}").read_bytes()
    assert all(np.array_equal(a, b) for a, b in zip(values(made["plain"]), values(loaded), strict=True))


def test_a_flipped_bit_in_a_keras_file_is_found(networks, tmp_path):
    path = write_weights(networks[0]["plain"], tmp_path / "bad.keras")
    content = bytearray(path.read_bytes())
    kernel = array(networks[0]["plain"].get_layer("stem_conv").kernel).tobytes()
    content[bytes(content).index(kernel) + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="Bad CRC-32"):
        network(weights=path)


@SOME_OR_MANY
@pytest.mark.parametrize("what", ["model", "weights"])
def test_a_damaged_keras_file_is_refused_or_equal(what, times, tmp_path):
    inputs = keras.Input((8,))
    model = keras.Model(
        inputs, keras.layers.Dense(3, name="last")(keras.layers.BatchNormalization(name="norm")(inputs))
    )
    path = write_weights(model, tmp_path / "model.keras")

    def loaded():
        if what == "weights":
            load_weights(model, path)
            return [value.tobytes() for value in values(model)]
        found = load_model(path)
        return found.get_config(), [value.tobytes() for value in values(found)]

    assert assert_refused_or_equal(path, loaded, times) > 0.4 * times


def test_an_archive_that_unpacks_to_more_than_it_is_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(10**6))
    with pytest.raises(InputError, match="unpacks to more than its size"):
        network(weights=tmp_path / "bomb.keras")


def test_a_false_size_in_the_directory_is_refused(tmp_path):
    """What the directory calls 100 bytes would be unpacked as a whole before the rest is dropped."""
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(10**7))
    path.write_bytes(path.read_bytes().replace((10**7).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(InputError, match="unpacks to more than its size"):
        network(weights=path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none.weights.h5 does not exist; pass the path"):
        network(weights=tmp_path / "none.weights.h5")
    with pytest.raises(InputError, match="does not exist"):
        load_weights(network(), tmp_path / "none.weights.h5")
    (tmp_path / "old.h5").write_text("")
    with pytest.raises(
        InputError,
        match=r"old.h5 is not a weights file; pass the path of a file ending in \.weights\.h5",
    ):
        network(weights=tmp_path / "old.h5")
