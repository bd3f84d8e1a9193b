"""Files from strangers: each is refused in a sentence, and nothing in it runs."""

import io
import json
import os
import pickle
import zipfile

import h5py
import keras
import numpy as np
import pytest
from harness import array, members_of

from keras_preact import InputError
from keras_preact.models import cifar_resnet, load_model
from keras_preact.models.saving import loading


class Trap:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "executed").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small network that is sound, as the members of its archive."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="dense")])
    return members_of(model, tmp_path_factory.mktemp("saved"))


def written(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def with_layer(members, **changes):
    """The archive with its last layer's configuration changed."""
    config = json.loads(members["config.json"])
    config["config"]["layers"][-1] |= changes
    return {**members, "config.json": json.dumps(config)}


def with_weights(members, change):
    """The archive with its weights file changed by a function."""
    file = io.BytesIO(members["model.weights.h5"])
    with h5py.File(file, "r+") as weights:
        change(weights)
    return {**members, "model.weights.h5": file.getvalue()}


def kernel(weights):
    """The group of the layer's arrays: the kernel is "0" in it."""
    return weights["layers/dense/vars"]


def external_link(weights):
    del kernel(weights)["0"]
    kernel(weights)["0"] = h5py.ExternalLink("/etc/passwd", "/")


def soft_link(weights):
    kernel(weights)["2"] = h5py.SoftLink("/layers/dense/vars/0")


def external_storage(weights):
    del kernel(weights)["0"]
    kernel(weights).create_dataset("0", (4, 3), "float32", external=[("/etc/passwd", 0, 48)])


def virtual(weights):
    del kernel(weights)["0"]
    layout = h5py.VirtualLayout((4, 3), "float32")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (4, 3))
    kernel(weights).create_virtual_dataset("0", layout)


def shape_bomb(weights):
    del kernel(weights)["0"]
    kernel(weights).create_dataset("0", (1 << 30, 1 << 10), "float32", chunks=(1 << 10, 1 << 10))


def compression_bomb(weights):
    del kernel(weights)["0"]
    kernel(weights).create_dataset("0", data=np.zeros((1 << 10, 1 << 10), "float32"), compression="gzip")


def chunks(weights):
    """A chunk may be larger than its array."""
    del kernel(weights)["0"]
    kernel(weights).create_dataset("0", data=np.random.default_rng(0).random((4, 3)), chunks=(2, 3), maxshape=(None, 3))


def strings(weights):
    del kernel(weights)["0"]
    kernel(weights).create_dataset("0", data=np.array([b"text"]))


DENSE = {"module": "keras.layers", "registered_name": None}
HOSTILE = {
    "a Lambda": lambda m: with_layer(
        m, **DENSE, class_name="Lambda", config={"name": "x", "function": {"class_name": "__lambda__", "config": {}}}
    ),
    "a saved model of TensorFlow": lambda m: with_layer(
        m, **DENSE, class_name="TFSMLayer", config={"name": "x", "filepath": "/tmp/x"}
    ),
    "a module of PyTorch": lambda m: with_layer(m, **DENSE, class_name="TorchModuleWrapper", config={"module": "gASV"}),
    "a foreign module": lambda m: with_layer(m, module="os", class_name="mkdir", config={"path": "executed"}),
    "a foreign function": lambda m: with_layer(
        m,
        config={
            "name": "dense",
            "units": 3,
            "activation": {"module": "builtins", "class_name": "function", "config": "eval", "registered_name": "eval"},
        },
    ),
    "a function of keras.utils": lambda m: with_layer(
        m, module="keras.utils", class_name="get_file", config={"origin": "http://localhost/x"}
    ),
    "a function of keras under another name": lambda m: with_layer(
        m, module="keras.src.utils.file_utils", class_name="function", config="get_file"
    ),
    "a function of this package that is no layer": lambda m: with_layer(
        m, module="keras_preact.cli", class_name="main", config={"arguments": ["demo"]}
    ),
    "a registered name that is not": lambda m: with_layer(
        m, module="os", class_name="system", registered_name="keras_preact>system", config={}
    ),
    "a width that it has no numbers for": lambda m: with_layer(
        m, class_name="Dense", config={"name": "dense", "units": 1 << 40}
    ),
    "a path out of the archive": lambda m: {**m, "../executed/x": b""},
    "an absolute path": lambda m: {**m, f"{os.sep}tmp/executed": b""},
    "an asset": lambda m: {**m, "assets/vocabulary.txt": b"words"},
    "a link to another file": lambda m: with_weights(m, external_link),
    "a link inside": lambda m: with_weights(m, soft_link),
    "data in another file": lambda m: with_weights(m, external_storage),
    "data of other files, put together": lambda m: with_weights(m, virtual),
    "a shape without data": lambda m: with_weights(m, shape_bomb),
    "data that unpack to a thousandfold": lambda m: with_weights(m, compression_bomb),
    "data in chunks": lambda m: with_weights(m, chunks),
    "text for numbers": lambda m: with_weights(m, strings),
    "weights that are a pickle": lambda m: {**m, "model.weights.h5": pickle.dumps(Trap())},
    "a configuration that is none": lambda m: {**m, "config.json": b"[" * 100_000},
    "no configuration": lambda m: {"metadata.json": m["metadata.json"]},
}

LEFT_TO_THEIR_READERS = ("weights that are a pickle", "a configuration that is none")


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_archives_are_refused(saved, tmp_path, what):
    """By what is looked at before, not by what goes wrong in Keras."""
    path = written(tmp_path / "hostile.keras", HOSTILE[what](saved))
    with pytest.raises(InputError) as error:
        load_model(path)
    assert "hostile.keras" in str(error.value) and "\n" not in str(error.value)
    assert ("cannot be loaded as a Keras model" in str(error.value)) == (what in LEFT_TO_THEIR_READERS)


def test_a_bomb_is_not_unpacked(saved, tmp_path):
    bomb = {**saved, "config.json": b" " * 50_000_000}
    with pytest.raises(InputError, match="unpacks to more than its size"):
        load_model(written(tmp_path / "bomb.keras", bomb, zipfile.ZIP_DEFLATED))


def test_one_name_twice(saved, tmp_path):
    path = written(tmp_path / "twice.keras", saved)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("config.json", saved["config.json"])
    with pytest.raises(InputError, match="a duplicate name"):
        load_model(path)


@pytest.mark.parametrize("content", [b"", pickle.dumps(Trap()), b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_other_files_are_no_archives(tmp_path, content):
    path = tmp_path / "other.keras"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a \.keras file"):
        load_model(path)


def test_a_legacy_file_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x)])
    model.save(tmp_path / "legacy.h5")
    with pytest.raises(InputError, match=r"is not a \.keras file"):
        load_model(tmp_path / "legacy.h5")


@pytest.mark.parametrize("place", ["begin", "middle", "end"])
def test_a_file_cut_short_or_altered_is_refused(saved, tmp_path, place):
    path = written(tmp_path / "cut.keras", saved)
    content = path.read_bytes()
    cut = {"begin": content[:100], "middle": content[: len(content) // 2], "end": content[:-30]}[place]
    path.write_bytes(cut)
    with pytest.raises(InputError):
        load_model(path)


def test_sound_files_load_to_the_bit(saved, tmp_path):
    """The checks let through what this package saves: every kind of object that its networks are made of."""
    assert load_model(written(tmp_path / "sound.keras", saved)).count_params() == 15
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    for options in (
        {"shortcut": "exclusive_gating(gate_bias=-3)"},
        {"placement": "original", "profile": "resnet_1k_layers", "drop_path": 0.2},
        {"depth": 26, "rolled": True, "kernel_initializer": keras.initializers.HeNormal()},
    ):
        model = cifar_resnet(**{"depth": 8, **options})
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(True), ["accuracy"]
        )
        model.save(tmp_path / "ours.keras")
        loaded = load_model(tmp_path / "ours.keras")
        assert np.array_equal(model.predict(images, verbose=0), loaded.predict(images, verbose=0))
        assert loaded.compiled


def test_a_file_is_what_its_first_bytes_say(saved, tmp_path):
    """HDF5 data followed by a harmless archive: Keras would load the HDF5 data, by the name of the file."""
    keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x)]).save(tmp_path / "legacy.h5")
    archive = written(tmp_path / "sound.keras", saved).read_bytes()
    for name in ("both.h5", "both.keras"):
        (tmp_path / name).write_bytes((tmp_path / "legacy.h5").read_bytes() + archive)
        with pytest.raises(InputError, match=r"is not a \.keras file"):
            load_model(tmp_path / name)
    (tmp_path / "sound.h5").write_bytes(archive)
    assert load_model(tmp_path / "sound.h5").count_params() == 15


def test_what_is_checked_is_what_is_loaded(saved, tmp_path, monkeypatch):
    """Another file under the same name, put there after the check, is not read."""
    path = written(tmp_path / "sound.keras", saved)
    checked = loading.check_configuration

    def check(*arguments):
        checked(*arguments)
        path.write_bytes(b"")

    monkeypatch.setattr(loading, "check_configuration", check)
    assert load_model(path).count_params() == 15


def test_a_false_size_in_the_directory_is_refused(saved, tmp_path):
    """A member that claims to be small and unpacks to a gigabyte."""
    path = written(tmp_path / "false.keras", {**saved, "metadata.json": bytes(10_000_000)}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("metadata.json")
    true = member.file_size.to_bytes(4, "little")
    start = 0
    while (start := content.find(true, start)) >= 0:
        content[start : start + 4] = (10).to_bytes(4, "little")
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("metadata.json").file_size == 10
    with pytest.raises(InputError, match="unpacks to more than its size"):
        load_model(path)


def test_arrays_that_share_their_bytes_are_refused(saved, tmp_path):
    """Arrays of a megabyte without bytes of their own, which are then said to be where the first has its own."""
    places = []

    def share(weights):
        group = weights.create_group("many")
        places.append(group.create_dataset("0", data=np.ones(1 << 18, "float32")).id.get_offset())
        for number in range(1, 6):
            group.create_dataset(str(number), (1 << 18,), "float32")

    members = with_weights(saved, share)
    size = (1 << 20).to_bytes(8, "little")
    nowhere, first = b"\xff" * 8 + size, places[0].to_bytes(8, "little") + size
    assert members["model.weights.h5"].count(nowhere) == 5
    shared = {**members, "model.weights.h5": members["model.weights.h5"].replace(nowhere, first)}
    with pytest.raises(InputError, match="contains overlapping arrays"):
        load_model(written(tmp_path / "overlap.keras", shared))


def test_there_is_no_such_file():
    with pytest.raises(InputError, match=r"nowhere\.keras does not exist"):
        load_model("nowhere.keras")


def data_twice(weights):
    kernel(weights)["2"] = kernel(weights)["0"]


def groups_twice(weights):
    """A few groups, each in the one before it under two names: a billion ways to the last."""
    group = weights.create_group("deep")
    for _ in range(30):
        inside = group.create_group("one")
        group["other"] = inside
        group = inside


@pytest.mark.parametrize("change", [data_twice, groups_twice])
def test_data_under_two_names_are_refused(saved, tmp_path, change):
    path = written(tmp_path / "twice.keras", with_weights(saved, change))
    with pytest.raises(InputError, match="under a second name"):
        load_model(path)


@pytest.mark.parametrize("repeats", [(10**9,), (1000, 1000, 1000)])
def test_stacks_of_a_billion_units_are_refused_before_they_are_made(saved, tmp_path, repeats):
    unit = keras.saving.serialize_keras_object(keras.layers.Dense(4))
    for count in repeats:
        stack = {"name": "stack", "unit": unit, "repeats": count, "rolled": False}
        unit = {"class_name": "UnitStack", "registered_name": "keras_preact>UnitStack", "module": None, "config": stack}
    path = written(tmp_path / "tall.keras", with_layer(saved, **unit))
    with pytest.raises(InputError, match=r"creates 4,0\d\d,\d{3},\d{3} objects"):
        load_model(path)


# ---- what Keras's own loader lets through -------------------------------------------------------------------------
# SECURITY.md says so of these four. If a release of Keras refuses one of them, its test fails: correct that page then.


def load_with_keras(path):
    return keras.models.load_model(path, safe_mode=True)


def refused(path, sentence):
    """Check that our loader refuses a file, and that it does so in one sentence."""
    with pytest.raises(InputError, match=sentence) as error:
        load_model(path)
    assert "\n" not in str(error.value)


@pytest.fixture
def epsilon():
    before = keras.config.epsilon()
    yield before
    keras.config.set_epsilon(before)


def test_keras_calls_its_functions_for_a_file(tmp_path, epsilon):
    """A Lambda layer with a function of Keras, called on a number of the file while the file is loaded."""
    inputs = keras.Input((4,))
    members = members_of(keras.Model(inputs, keras.layers.ReLU()(inputs)), tmp_path)
    config = json.loads(members["config.json"])
    function = {"module": "keras.config", "class_name": "function", "registered_name": None, "config": "set_epsilon"}
    config["config"]["layers"].append(
        {
            **DENSE,
            "class_name": "Lambda",
            "name": "write",
            "config": {"name": "write", "function": function, "output_shape": [1]},
            "inbound_nodes": [{"args": [], "kwargs": {"inputs": 0.5}}],
        }
    )
    path = written(tmp_path / "lambda.keras", {**members, "config.json": json.dumps(config)})
    refused(path, r"asks for keras\.layers\.Lambda among its layers")
    assert keras.config.epsilon() == epsilon
    load_with_keras(path)
    assert keras.config.epsilon() == 0.5


def test_keras_makes_any_registered_class_for_a_file(saved, tmp_path, monkeypatch):
    made = []

    class Own(keras.layers.Layer):
        def __init__(self, **options):
            made.append(options)
            super().__init__(name="own")

    monkeypatch.setitem(keras.saving.get_custom_objects(), "program>Own", Own)
    own = {"module": None, "class_name": "Own", "registered_name": "program>Own", "config": {"word": "from the file"}}
    path = written(tmp_path / "registered.keras", with_layer(saved, **own))
    refused(path, r"asks for None\.Own among its layers")
    assert made == []
    load_with_keras(path)
    assert made == [{"word": "from the file"}]


@pytest.mark.filterwarnings("ignore")  # Keras's older format is out of date, it says
def test_keras_reads_what_comes_before_an_archive(saved, tmp_path):
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(7)]).save(tmp_path / "legacy.h5")
    path, archive = tmp_path / "both.h5", written(tmp_path / "sound.keras", saved)
    path.write_bytes((tmp_path / "legacy.h5").read_bytes() + archive.read_bytes())
    refused(path, r"is not a \.keras file")
    with zipfile.ZipFile(path) as both:  # an archive too, and a sound one
        assert both.testzip() is None and both.read("config.json") == saved["config.json"]
    assert load_with_keras(path).output_shape == (None, 7)


def test_keras_makes_initial_values_before_it_looks_for_weights(saved, tmp_path, monkeypatch):
    """16 MB of them for a small file; SECURITY.md had 4.9 GB, with wider layers."""
    made, initial = [], keras.initializers.GlorotUniform.__call__

    def record(self, shape, dtype=None, **options):
        values = initial(self, shape, dtype, **options)
        made.append(keras.ops.convert_to_numpy(values).nbytes)
        return values

    monkeypatch.setattr(keras.initializers.GlorotUniform, "__call__", record)
    config = {"name": "dense", "units": 1_000_000}
    wide = with_layer(saved, **DENSE, class_name="Dense", config=config, build_config={"input_shape": [None, 4]})
    path = written(tmp_path / "wide.keras", wide)
    assert path.stat().st_size < 16_000
    refused(path, r"declares 5,000,000 values but stores \d+ bytes; save the model again")
    assert made == []
    with pytest.raises(ValueError, match="could not be loaded"):
        load_with_keras(path)
    assert made == [16_000_000]


def test_the_optimizer_of_a_float32_model_with_a_part_in_float16_keeps_its_state(tmp_path):
    inputs = keras.Input((8, 8, 3))
    part = cifar_resnet(8, input_shape=(8, 8, 3), dtype="mixed_float16", include_top=False, pooling="avg")
    model = keras.Model(inputs, keras.layers.Dense(3, dtype="float32")(part(inputs)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(np.zeros((4, 8, 8, 3), "float32"), np.arange(4) % 3, batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert all(
        np.array_equal(array(a), array(b))
        for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True)
    )
