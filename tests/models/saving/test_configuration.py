"""What a configuration may contain: allowed objects, each of the kind of its position, in proportion to the file."""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import members_of

from keras_preact import InputError
from keras_preact.models import load_model
from keras_preact.models.saving.allowlist import known

HOSTILE = Path(__file__).with_name("hostile.py")


def changed(path, members, change):
    """Write a file with its configuration changed by a function; return its path."""
    config = json.loads(members["config.json"])
    change(config)
    with zipfile.ZipFile(path / "changed.keras", "w") as archive:
        for name, content in {**members, "config.json": json.dumps(config)}.items():
            archive.writestr(name, content)
    return path / "changed.keras"


@pytest.fixture
def graph(tmp_path):
    """A graph of two dense layers and an addition, compiled."""
    one = keras.Input((4,), name="one")
    x = keras.layers.Dense(4, name="first")(one)
    model = keras.Model(one, keras.layers.Dense(2, name="last")(x + one))
    model.compile("sgd", "mse")
    return members_of(model, tmp_path)


def layer(config, name):
    return next(each for each in config["config"]["layers"] if each["name"].startswith(name))


def refused(path, sentence):
    """Check that a file is refused with a sentence, quickly and in little memory; return the error."""
    before, start = resident(), time.perf_counter()
    with pytest.raises(InputError, match=sentence) as error:
        load_model(path)
    assert time.perf_counter() - start < 10 and resident() - before < 100e6
    return error


def resident():
    """Peak memory of this process in bytes."""
    resource = pytest.importorskip("resource")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.thorough
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_name_in_every_position_is_refused_or_of_the_positions_kind(count):
    """Nothing is executed, read, written or connected to, and the global settings do not change."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, HOSTILE, str(count)], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["files"] == count and found["loaded"] + found["refused"] == count
    assert found["refused"] > 0.9 * count and found["loaded"] > 0
    assert (found["wrong"], found["events"], found["unclear"]) == ([], [], [])


def test_keras_finds_the_objects_that_are_known():
    """The checked object is the one that Keras would use: its own search for each name finds the same."""
    find = keras.src.saving.serialization_lib._retrieve_class_or_fn
    assert len(known()) > 400
    for (module, name), thing in known().items():
        if not isinstance(thing.found, type):  # a function, which Keras finds by its name alone
            continue
        full = {"module": module, "class_name": name, "registered_name": None}
        assert find(name, None, module, "class", full) is thing.found


def write_of(name):
    """A Lambda whose function, a public one of Keras, is called while the model is built."""
    return {
        "module": "keras",
        "class_name": "layers.Lambda",
        "registered_name": None,
        "config": {
            "name": "last",
            "function": {"module": "keras.config", "class_name": "function", "config": name, "registered_name": name},
        },
    }


def constants(config):
    layer(config, "last")["inbound_nodes"][0]["args"] = [[[1.0, 2.0]]]


def text_input(config):
    layer(config, "add")["inbound_nodes"][0]["args"][1] = "text"


def array_input(config):
    array = {"class_name": "__numpy__", "config": {"value": [1.0], "dtype": "float32"}}
    layer(config, "add")["inbound_nodes"][0]["args"][1] = array


def another_kind(config):
    """The second layer has the ID of the first layer's initializer, which Keras would use unchecked."""
    first, last = layer(config, "first"), layer(config, "last")
    first["config"]["kernel_initializer"]["shared_object_id"] = 1
    last["shared_object_id"] = 1


HOSTILE_CONFIGURATIONS = {
    "dots in a class name": (lambda c: layer(c, "last").update(write_of("set_floatx")), r"keras\.layers\.Lambda among"),
    "an initializer as a layer": (
        lambda c: layer(c, "last").update(module="keras.initializers", class_name="Zeros", config={}),
        r"allowed: layer, model, operation\)",
    ),
    "constants alone": (constants, "calls last on constants"),
    "text in a call": (text_input, r"calls add\w* with text; use tensors"),
    "an array in a call": (array_input, r"calls add\w* with __numpy__"),
    "a large number in a call": (
        lambda c: layer(c, "add")["inbound_nodes"][0]["args"].__setitem__(1, 1 << 40),
        r"asks for an argument of a call of add\w* of 1,099,511,627,776",
    ),
    "a large tensor in a call": (
        lambda c: layer(c, "last")["inbound_nodes"][0]["args"][0]["config"].update(shape=[None, 1 << 40]),
        "asks for the shape of an input of last of 1,099,511,627,776",
    ),
    "a call of an older version": (
        lambda c: layer(c, "last").update(inbound_nodes=[[["first", 0, 0, {}]]]),
        "a call of last in another format than Keras 3's",
    ),
    "one object as two": (another_kind, "the ID of another shared object"),
    "an operation that takes a function": (
        lambda c: layer(c, "add").update(module="keras.src.ops.core", class_name="Map", registered_name="Map"),
        r"keras\.src\.ops\.core\.Map among its layers",
    ),
    "a class of a list under a function's name": (
        lambda c: c["compile_config"].update(
            loss={"module": "builtins", "class_name": "function", "config": "Huber", "registered_name": "function"}
        ),
        "the function Huber as loss",
    ),
    "a vocabulary in a file": (
        lambda c: layer(c, "last").update(
            module="keras.layers", class_name="StringLookup", config={"name": "last", "vocabulary": "/etc/passwd"}
        ),
        "reads a vocabulary from a file",
    ),
    "no model": (
        lambda c: c.update(module="keras.layers", class_name="Dense", registered_name=None, config={"units": 1}),
        r"as the model \(allowed: model\)",
    ),
    "an argument that `compile` lacks": (
        lambda c: c["compile_config"].update(x=1),
        "compiled with unknown arguments",
    ),
    "a name of what the program has registered": (
        lambda c: layer(c, "last")["config"].update(name="keras_preact>ResidualUnit"),
        "asks for keras_preact>ResidualUnit as name",
    ),
}


@pytest.mark.parametrize("what", HOSTILE_CONFIGURATIONS)
def test_configurations_that_ask_for_more_are_refused(graph, tmp_path, what):
    change, sentence = HOSTILE_CONFIGURATIONS[what]
    refused(changed(tmp_path, graph, change), sentence)


def test_classes_of_the_program_that_loads_are_not_the_files_to_choose(graph, tmp_path):
    """A class or function that the program has registered or put in a scope cannot be named by a file."""

    class Dense(keras.layers.Layer):
        made = False

        def __init__(self, **kwargs):
            type(self).made = True
            super().__init__()

    with keras.saving.custom_object_scope({"Dense": Dense}):
        path = changed(tmp_path, graph, lambda c: layer(c, "last").update(registered_name="Dense"))
        refused(path, r"asks for keras\.layers\.Dense among its layers")
    assert not Dense.made


# ---- cost ---------------------------------------------------------------------------------------------------------


def test_moments_of_a_small_file_are_not_made(tmp_path):
    """They are constants, not weights, and are allocated when the layer is built."""
    layers = [keras.Input((4, 4, 4)), keras.layers.Normalization((1, 2, 3), mean=0.0, variance=1.0)]

    def widen(config):
        config["config"]["layers"][0]["config"]["batch_shape"] = [None, 1000, 1000, 1000]
        config["config"]["layers"][1]["build_config"]["input_shape"] = [None, 1000, 1000, 1000]

    path = changed(tmp_path, members_of(keras.Sequential(layers), tmp_path), widen)
    assert path.stat().st_size < 20_000
    refused(path, "moments of 1,000,000,000 numbers")


def test_a_lookup_of_a_billion_indices_is_refused(tmp_path):
    pytest.importorskip("tensorflow")
    inputs = keras.Input((1,), dtype="string")
    model = keras.Model(inputs, keras.layers.StringLookup(vocabulary=["a"], name="lookup")(inputs))
    path = changed(
        tmp_path, members_of(model, tmp_path), lambda c: layer(c, "lookup")["config"].update(num_oov_indices=10**9)
    )
    refused(path, "num_oov_indices of 1,000,000,000")


def test_metrics_of_a_billion_numbers_are_refused(graph, tmp_path):
    metric = keras.saving.serialize_keras_object(keras.metrics.MeanIoU(2))
    metric["config"]["num_classes"] = 50_000
    refused(changed(tmp_path, graph, lambda c: c["compile_config"].update(metrics=[metric])), "2,500,000,000 values")


def test_no_initial_value_is_computed(tmp_path, monkeypatch):
    """The file has the values, and an orthogonal matrix of a wide layer would take minutes."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, kernel_initializer="orthogonal")])
    members_of(model, tmp_path)
    called = []
    monkeypatch.setattr(keras.initializers.Orthogonal, "__call__", lambda *args, **kwargs: called.append(args))
    loaded = load_model(tmp_path / "sound.keras")
    assert called == []
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_models_in_models_called_twice_each_are_refused(tmp_path):
    """Thirty of them make a billion calls."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(4, name="dense")(inputs))
    members = members_of(model, tmp_path)

    def nest(config):
        for number in range(30):
            inner = {key: value for key, value in json.loads(json.dumps(config)).items() if key != "compile_config"}
            place = layer(config, "dense" if number == 0 else "inner")
            nodes = place["inbound_nodes"]
            place.clear()
            place.update(inner, name="inner", inbound_nodes=nodes[:1] * 2)
            config["config"]["output_layers"] = ["inner", 1, 0]

    refused(changed(tmp_path, members, nest), "objects from [0-9,]+ bytes")


def test_a_graph_listed_backwards_is_refused(tmp_path):
    """Keras would search the list once per layer."""
    x = inputs = keras.Input((4,))
    for _ in range(60):
        x = keras.layers.ReLU()(x)
    path = changed(tmp_path, members_of(keras.Model(inputs, x), tmp_path), lambda c: c["config"]["layers"].reverse())
    refused(path, "lists its layers out of order")


# ---- misplaced arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["loss_weights", "run_eagerly", "jit_compile", "loss"])
@pytest.mark.parametrize("key", ["cell", "layer", "unit", "kernel_initializer", "dtype", "optimizer", "metrics"])
def test_plain_dictionaries_contain_no_objects(graph, tmp_path, argument, key):
    """Keras creates the objects in any dictionary, and those of a compiled model get values at once."""
    wide = {"module": "keras.layers", "class_name": "Dense", "registered_name": None, "config": {"units": 20_000}}
    wide["build_config"] = {"input_shape": [None, 20_000]}
    path = changed(tmp_path, graph, lambda c: c["compile_config"].update({argument: {key: wide}}))
    refused(path, r"asks for keras\.layers\.Dense as")


@pytest.mark.parametrize("pattern", ["(a+)+b", ".*.*.*.*b", "(a|a)(a|a)b", "a?a?aa", "a{9}{9}{9}"])
def test_patterns_that_take_forever_are_refused(tmp_path, pattern):
    policies = keras.dtype_policies.DTypePolicyMap(policy_map={"name": keras.DTypePolicy("float32")})
    layers = [keras.Input((4,)), keras.layers.Dense(4, name="a" * 40, dtype=policies)]

    def rename(config, name):
        named = config["config"]["layers"][-1]["config"]["dtype"]["config"]["policy_map"]
        named[name] = named.pop("name")

    members = members_of(keras.Sequential(layers), tmp_path)
    refused(changed(tmp_path, members, lambda c: rename(c, pattern)), "sets dtypes by the pattern")
    assert load_model(changed(tmp_path, members, lambda c: rename(c, "a/.*"))).count_params() == 20


def test_a_shared_model_must_have_its_full_configuration_everywhere(tmp_path):
    """Otherwise each level of a few bytes could call the one below ten times: a billion calls."""
    inputs = keras.Input((4,))
    inner = keras.Model(inputs, keras.layers.Dense(4, name="dense")(inputs), name="inner")
    members = members_of(keras.Model(inputs, inner(inputs)), tmp_path)

    def share(config, changes):
        place = layer(config, "inner")
        place["shared_object_id"] = 1
        config["config"]["layers"].append({**place, "inbound_nodes": [], "name": "again", **changes})

    refused(changed(tmp_path, members, lambda c: share(c, {"config": {}})), "the ID of another shared object")
    assert load_model(changed(tmp_path, members, lambda c: share(c, {}))).count_params() == 20


def test_layers_with_a_million_outputs_are_refused(tmp_path):
    inputs = keras.Input((4,), name="inputs")
    for outputs, key in (
        (keras.ops.split(inputs, 4, axis=1), "indices_or_sections"),
        (keras.ops.unstack(inputs, 4, 1), "num"),
    ):
        members = members_of(keras.Model(inputs, outputs), tmp_path)
        assert len(load_model(changed(tmp_path, members, lambda c: None)).outputs) == 4
        path = changed(tmp_path, members, lambda c, key=key: c["config"]["layers"][-1]["config"].update({key: 1 << 20}))
        refused(path, f"asks for {key} of 1,048,576")
    refused(
        changed(tmp_path, members, lambda c: c["config"]["layers"][-1]["config"].update(num=None)), "of unknown length"
    )


def test_a_sequence_of_a_thousand_layers_is_refused(tmp_path):
    """Keras rebuilds a Sequential model after each layer."""
    members = members_of(keras.Sequential([keras.Input((4,)), keras.layers.ReLU()]), tmp_path)

    def lengthen(config):
        layers = config["config"]["layers"]
        layers += [{**layers[-1], "config": {"name": f"relu{number}"}} for number in range(1000)]

    refused(changed(tmp_path, members, lengthen), "a Sequential model of 1,002 layers")


def test_a_number_of_thousands_of_digits_is_not_shown(graph, tmp_path):
    error = refused(changed(tmp_path, graph, lambda c: layer(c, "last")["config"].update(units=10**4000)), "units of 1")
    assert len(str(error.value)) < 300
