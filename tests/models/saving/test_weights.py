"""Weights by name: a file fits the network however its units are arranged, and no other network."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import array, disturb, write_weights
from safetensors.numpy import save_file

from keras_preact import InputError
from keras_preact.interop import load_safetensors, save_safetensors
from keras_preact.layers import ConvShortcut, ResidualUnit, UnitStack, freeze_batch_norms
from keras_preact.layers.variables import named_variables
from keras_preact.models import (
    Classification,
    Series,
    cifar_resnet,
    load_weights,
    roll,
    transformer,
)
from keras_preact.models.saving.named_weights import assign, assign_checked, named_weights
from keras_preact.models.saving.weights import ENDINGS

FORMS = {
    "unrolled": {"rolled": False},
    "rolled": {"rolled": True},
    "stacks that are not rolled": {"rolled": False, "remat": "unit"},
}
NETWORKS = {
    "drop path": lambda **form: cifar_resnet(20, input_shape=(8, 8, 3), drop_path=0.1, **form),
    "highway": lambda **form: cifar_resnet(20, "original", "highway", input_shape=(8, 8, 3), **form),
    "a shortcut layer": lambda **form: cifar_resnet(20, shortcut=ConvShortcut(), input_shape=(8, 8, 3), **form),
    "transformer": lambda **form: transformer(
        Series(6, 2), Classification(3), depth=3, dim=8, heads=2, dropout=0.1, drop_path=0.1, **form
    ),
}


def values(model):
    return {name: weight.value() for name, weight in named_weights(model).items()}


def different(make, form):
    """Return the network with no weight as at its beginning."""
    model = make(**FORMS[form])
    disturb(model)
    return model


def example(model):
    return np.random.default_rng(3).normal(size=(2, *model.input_shape[1:])).astype("float32")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_form_of_file_loads_into_every_form_of_network(kind, tmp_path):
    make = NETWORKS[kind]
    targets = {form: make(**FORMS[form]) for form in FORMS}
    fresh = {form: values(model) for form, model in targets.items()}
    x = example(targets["rolled"])
    for saved in FORMS:
        model = different(make, saved)
        expected = values(model)
        for suffix in ENDINGS:
            path = write_weights(model, tmp_path / f"saved{suffix}")
            for form, target in targets.items():
                load_weights(target, path)
                found = values(target)
                assert found.keys() == expected.keys()
                assert all(np.array_equal(found[name], expected[name]) for name in expected), (saved, suffix, form)
                assign(target, named_weights(target), fresh[form])
        load_weights(targets["unrolled"], path)
        np.testing.assert_allclose(array(targets["unrolled"](x)), array(model(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_the_builders_weights_argument_reads_all_formats_in_both_forms(tmp_path):
    make = NETWORKS["drop path"]
    for saved, suffix in itertools.product(("rolled", "unrolled"), ENDINGS):
        model = different(make, saved)
        path = write_weights(model, tmp_path / f"saved{suffix}")
        for form in FORMS:
            loaded = values(make(**FORMS[form], weights=path))
            assert all(np.array_equal(loaded[name], value) for name, value in values(model).items())


def test_the_bytes_of_safetensors_do_not_depend_on_the_form(tmp_path):
    model = different(NETWORKS["drop path"], "unrolled")
    files = [
        write_weights(form, tmp_path / f"{k}.safetensors").read_bytes() for k, form in enumerate((model, roll(model)))
    ]
    assert files[0] == files[1]


def test_names_are_the_paths_of_the_unrolled_network():
    for make in NETWORKS.values():
        model = make(rolled=False)
        floats = {variable.path for variable in model.weights if keras.backend.is_float_dtype(variable.dtype)}
        assert set(named_weights(model)) == {path for path in floats if not path.endswith("drop_path/rate")}
        assert set(named_weights(make(rolled=True))) == set(named_weights(model))


def block_rates(model):
    rates = []
    for layer in model.layers:
        if isinstance(layer, UnitStack):
            units = [layer.unit_weights(k) for k in range(layer.repeats)]
        else:
            units = [named_variables(layer)]
        rates += [float(value) for unit in units for name, value in unit.items() if name.endswith("drop_path/rate")]
    return [rate for rate in rates if rate]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", ENDINGS)
def test_a_network_keeps_its_rates_of_drop_path_and_needs_none_in_the_file(suffix, tmp_path):
    def make(rate, form):
        shape = {"depth": 2, "dim": 4, "heads": 1}
        return transformer(Series(3, 1), Classification(2), **shape, drop_path=rate, **FORMS[form])

    targets = {(rate, form): make(rate, form) for rate in (0.0, 0.2) for form in ("rolled", "unrolled")}
    for form, rate in itertools.product(FORMS, (0.0, 0.5)):
        model = make(rate, form)
        path = write_weights(model, tmp_path / f"saved{suffix}")
        for (own, _), target in targets.items():
            disturb_weights(target)
            load_weights(target, path)
            assert all(np.array_equal(value, values(model)[name]) for name, value in values(target).items())
            np.testing.assert_allclose(block_rates(target), [own, own] if own else [], rtol=1e-6)


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("suffix", ENDINGS)
def test_a_stack_inside_another_layer_keeps_its_rates_of_drop_path(suffix, rolled, tmp_path):
    def make(rate):
        inputs = keras.Input((2, 8, 8, 3))
        stack = UnitStack(ResidualUnit(3, drop_path=rate), 2, rolled=rolled, name="stack")
        return keras.Model(inputs, keras.layers.TimeDistributed(stack, name="each")(inputs))

    model, target = make(0.2), make(0.5)
    load_weights(target, write_weights(model, tmp_path / f"saved{suffix}"))
    rates = [array(variable) for variable in target.weights if "rate" in variable.path]
    assert rates and all(np.all(rate == 0.5) for rate in rates)
    assert all(np.array_equal(value, values(model)[name]) for name, value in values(target).items())


def disturb_weights(model):
    weights = named_weights(model)
    assign(model, weights, {name: weight.value() + 1 for name, weight in weights.items()})


def test_frozen_norms_and_drop_path_together(tmp_path):
    """The numbers of frozen layers count the layer of drop path, which the file lacks."""
    options = {"placement": "bn_after_addition", "rolled": True, "input_shape": (8, 8, 3)}
    saved, network = cifar_resnet(20, **options), cifar_resnet(20, **options, drop_path=0.1)
    saved.save_weights(tmp_path / "net.weights.h5")
    freeze_batch_norms(network)
    load_weights(network, tmp_path / "net.weights.h5")
    ours, theirs = named_weights(network), named_weights(saved)
    assert all(np.array_equal(ours[name].value(), theirs[name].value()) for name in theirs)


def test_files_with_rates_of_drop_path_among_the_weights_load():
    """As earlier versions wrote them, and only where they belong."""
    model = cifar_resnet(14, input_shape=(8, 8, 3), drop_path=0.1)
    arrays = {name: weight.value() for name, weight in named_weights(model).items()}
    assign_checked("old.safetensors", model, {**arrays, "stage1_unit02/drop_path/rate": np.array(0.5, "float32")})
    assert block_rates(model)[0] == pytest.approx(0.02)
    with pytest.raises(InputError, match="the first stage1_unit02/rate"):
        assign_checked("other.safetensors", model, {**arrays, "stage1_unit02/rate": np.array(0.5, "float32")})


@pytest.mark.thorough
def test_a_network_inside_another(tmp_path):
    def nested(rolled):
        inputs = keras.Input((8, 8, 3))
        backbone = cifar_resnet(20, input_shape=(8, 8, 3), include_top=False, rolled=rolled, name="backbone")
        return keras.Model(inputs, keras.layers.Dense(2, name="head")(backbone(inputs)))

    for rolled, suffix in itertools.product((True, False), ENDINGS):
        model, other = nested(rolled), nested(not rolled)
        disturb(model)
        load_weights(other, write_weights(model, tmp_path / f"nested{suffix}"))
        assert all(np.array_equal(values(other)[name], value) for name, value in values(model).items())


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors"])
def test_default_names_of_layers_may_have_other_numbers(suffix, tmp_path):
    """Of a head without a name, of a network inside another, and of the layers in the units of a stack."""

    def network(rolled):
        unit = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(4)])
        units = UnitStack(unit, 3, rolled=rolled, name="stage1_stack")
        inner = keras.Sequential([keras.Input((4,)), units, keras.layers.Dense(4)])
        return keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(4), keras.layers.Dense(4)])

    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    for saved, loaded in itertools.product((True, False), repeat=2):
        keras.backend.clear_session()
        model = network(saved)
        for _ in range(9 - int(keras.layers.Dense(1).name.removeprefix("dense_"))):
            keras.layers.Dense(1)  # the next names are dense_9 and dense_10
        other = network(loaded)
        disturb(model)
        load_weights(other, write_weights(model, tmp_path / f"saved{suffix}"))
        np.testing.assert_allclose(array(other(x)), array(model(x)), rtol=1e-5)


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors"])
def test_the_layers_of_a_bidirectional_layer_are_renumbered_too(suffix, tmp_path):
    def network(rolled):
        both = keras.layers.Bidirectional(keras.layers.LSTM(2, return_sequences=True))
        return keras.Sequential([keras.Input((3, 4)), both, UnitStack(keras.layers.Dense(4), 2, rolled=rolled)])

    x, (saved, loaded) = np.ones((1, 3, 4), "float32"), (network(form) for form in (True, False))
    load_weights(loaded, write_weights(saved, tmp_path / f"saved{suffix}"))
    np.testing.assert_allclose(array(loaded(x)), array(saved(x)), rtol=1e-5)


def test_default_names_of_another_network_are_not_renumbered(tmp_path):
    def network(count):
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(count))])

    save_safetensors(network(3), tmp_path / "saved.safetensors")
    with pytest.raises(InputError, match=r"has 6 variables that .* lacks, .* lacks 4 variables"):
        load_weights(network(2), tmp_path / "saved.safetensors")


def rolled_network():
    return keras.Sequential([keras.Input((4,)), UnitStack(keras.layers.Dense(4), 2, rolled=True)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = rolled_network()
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.net(x))


def test_a_weight_of_no_layer_is_not_lost_in_silence(tmp_path):
    class Contrastive(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    base = rolled_network()
    inputs, inner = keras.Input((4,)), Contrastive(base.inputs[0], base.outputs[0])
    for model in (keras.Model(inputs, inner(inputs)), inner):
        with pytest.raises(InputError, match=r"temperature is a weight of .* but of no layer in its graph"):
            save_safetensors(model, tmp_path / "a.safetensors")
    model.save_weights(tmp_path / "a.weights.h5")
    model.load_weights(tmp_path / "a.weights.h5")


def in_time():
    return keras.Sequential([keras.Input((3, 4)), keras.layers.TimeDistributed(rolled_network())])


@pytest.mark.parametrize(("make", "shape"), [(Subclassed, (1, 4)), (in_time, (1, 3, 4))])
def test_rolled_networks_inside_other_layers_load_in_the_saved_form(make, shape, tmp_path):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    saved, loaded = make(), make()
    for model in (saved, loaded):
        model(x)
    disturb(saved)
    for suffix in (".weights.h5", ".safetensors"):
        load_weights(loaded, write_weights(saved, tmp_path / f"saved{suffix}"))
        np.testing.assert_allclose(array(loaded(x)), array(saved(x)), rtol=1e-5)
        disturb(loaded)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("suffix", ENDINGS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 26}, "stage1"),
        ({"depth": 14}, "stage1"),
        ({"depth": 20, "widen_factor": 2}, "lacks .* the first stage1_unit01/projection"),
        ({"depth": 20, "classes": 7}, r"logits/kernel has shape \(64, 10\) in saved.* but \(64, 7\) in"),
        ({"depth": 20, "shortcut": "conv"}, "shortcut"),
    ],
)
def test_other_networks_are_refused_and_left_as_they_were(rolled, suffix, options, message, tmp_path):
    path = write_weights(cifar_resnet(20, input_shape=(8, 8, 3), rolled=rolled), tmp_path / f"saved{suffix}")
    model = cifar_resnet(**options, input_shape=(8, 8, 3), rolled=not rolled)
    before = values(model)
    with pytest.raises(InputError, match=message):
        load_weights(model, path)
    assert all(np.array_equal(value, before[name]) for name, value in values(model).items())


def test_statistics_of_the_inputs_take_effect_when_they_are_loaded(tmp_path):
    def model():
        return keras.Sequential([keras.Input((3,)), keras.layers.Normalization(name="standardization")])

    x = np.random.default_rng(0).normal(5, 2, (64, 3)).astype("float32")
    adapted, fresh = model(), model()
    adapted.layers[0].adapt(x)
    save_safetensors(adapted, tmp_path / "saved.safetensors")
    load_safetensors(fresh, tmp_path / "saved.safetensors")
    np.testing.assert_array_equal(array(fresh(x)), array(adapted(x)))


class Pruned(keras.layers.Layer):
    """A dense layer with a mask of its kernel and a count of its calls."""

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(4, 4), initializer="glorot_uniform", name="kernel")
        self.mask = self.add_weight(shape=(4, 4), dtype="bool", trainable=False, initializer="ones", name="mask")
        self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros", name="calls")

    def call(self, x):
        return x + keras.ops.matmul(x, self.kernel * keras.ops.cast(self.mask, "float32"))


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors"])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("loaded", [True, False])
def test_masks_and_counts_are_weights_too(saved, loaded, suffix, tmp_path):
    def network(rolled):
        return keras.Sequential(
            [keras.Input((4,)), UnitStack(Pruned(name="unit"), 3, rolled=rolled, name="stage1_stack"), Pruned()]
        )

    rng, x = np.random.default_rng(0), np.ones((2, 4), "float32")
    model, other = network(saved), network(loaded)
    for layer in model.layers:
        for k in range(3 if isinstance(layer, UnitStack) else 1):
            values = {"kernel": rng.normal(size=(4, 4)), "mask": rng.random((4, 4)) < 0.5, "calls": np.array(7 + k)}
            if isinstance(layer, UnitStack):
                layer.set_unit_weights(k, values)
            else:
                layer.set_weights(list(values.values()))
    load_weights(other, write_weights(model, tmp_path / f"saved{suffix}"))
    np.testing.assert_allclose(array(other(x)), array(model(x)), rtol=1e-5)
    stacks = [each.layers[0] for each in (model, other)]
    for k in range(3):
        ours, theirs = (stack.unit_weights(k) for stack in stacks)
        assert all(np.array_equal(array(ours[name]), array(theirs[name])) for name in ours)


def test_fractions_are_not_rounded_to_counts(tmp_path):
    model = keras.Sequential([keras.Input((4,)), Pruned(name="pruned")])
    tensors = {"pruned/kernel": np.zeros((4, 4), "float32"), "pruned/calls": np.full((), 0.5, "float32")}
    save_file(tensors | {"pruned/mask": np.ones((4, 4), bool)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"pruned/calls in a.safetensors contains values that int32 cannot hold"):
        load_weights(model, tmp_path / "a.safetensors")


def test_files_of_rolled_networks_hold_no_unit_beyond_theirs(tmp_path):
    """Nor the variables of the one unit that runs in the loop: two files of one network are equal."""
    import h5py

    model = cifar_resnet(20, input_shape=(8, 8, 3), rolled=True)
    model.save_weights(tmp_path / "saved.weights.h5")
    count = 0
    with h5py.File(tmp_path / "saved.weights.h5") as file:

        def add(name, member):
            nonlocal count
            count += int(np.prod(member.shape)) if isinstance(member, h5py.Dataset) else 0

        file.visititems(add)
    assert count == sum(int(np.prod(v.shape)) for v in model.weights)


SAVE_ELSEWHERE = """
import sys
from pathlib import Path
sys.path[:0] = ["tests", "tests/models"]
import conftest, keras, numpy as np, test_weights as t

for kind, make in t.NETWORKS.items():
    for form in ("rolled", "unrolled"):
        keras.utils.set_random_seed(1)
        model = t.different(make, form)
        for suffix in t.ENDINGS:
            t.write_weights(model, Path(sys.argv[1]) / f"{kind}-{form}{suffix}")
        np.save(Path(sys.argv[1]) / f"{kind}-{form}.npy", t.array(model(t.example(model))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["tensorflow", "jax", "torch"])
def test_files_of_one_backend_load_on_the_others(saved, tmp_path):
    """Saved in a process of its own, rolled and not, in each format: equal weights, and outputs to 1e-5."""
    pytest.importorskip(saved)
    environment = {**os.environ, "KERAS_BACKEND": saved}
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", SAVE_ELSEWHERE, tmp_path], env=environment, cwd=root, check=True)
    for kind, make in NETWORKS.items():
        targets = {form: make(**FORMS[form]) for form in FORMS}
        fresh = {form: values(model) for form, model in targets.items()}
        for form in ("rolled", "unrolled"):
            expected, output = None, np.load(tmp_path / f"{kind}-{form}.npy")
            for suffix, (target, model) in itertools.product(ENDINGS, targets.items()):
                load_weights(model, tmp_path / f"{kind}-{form}{suffix}")
                expected = expected or values(model)
                assert all(np.array_equal(values(model)[name], value) for name, value in expected.items())
                difference = np.abs(array(model(example(model))) - output).max()
                assert difference <= 1e-5 * np.abs(output).max(), (kind, form, suffix, target)
                assign(model, named_weights(model), fresh[target])


def test_float64_weights_load_exactly_into_the_other_form(tmp_path):
    rolled, unrolled = (cifar_resnet(14, rolled=value, dtype="float64") for value in (True, False))
    rolled.save_weights(tmp_path / "net.weights.h5")
    load_weights(unrolled, tmp_path / "net.weights.h5")
    kernel = rolled.get_layer("stage1_stack").unit_weights(0)["conv1/kernel"]
    np.testing.assert_array_equal(array(unrolled.get_layer("stage1_unit02").branch[0].kernel), array(kernel))


@pytest.mark.parametrize("suffix", ENDINGS)
def test_layers_with_names_of_their_own_are_loaded_by_name(suffix, tmp_path):
    def make(*names):
        layers = [keras.layers.Dense(4, name=name) for name in names]
        return keras.Sequential([keras.Input((4,)), *layers])

    model, other = make("fc_1", "fc_2"), make("fc_2", "fc_1")
    load_weights(other, write_weights(model, tmp_path / f"saved{suffix}"))
    for name in ("fc_1", "fc_2"):
        np.testing.assert_array_equal(array(other.get_layer(name).kernel), array(model.get_layer(name).kernel))


class Blocks(keras.Model):
    """Names its layers block_1, block_2, …, from a number on."""

    def __init__(self, start):
        super().__init__()
        self.blocks = [keras.layers.Dense(3, name=f"block_{k}") for k in range(start, start + 3)]
        self(np.zeros((1, 3), "float32"))

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("start", [2, 3, 4])
def test_layers_counted_from_another_number_are_in_the_same_order(start, tmp_path):
    saved, model = Blocks(1), Blocks(start)
    saved.save_weights(tmp_path / "net.weights.h5")
    load_weights(model, tmp_path / "net.weights.h5")
    for block, original in zip(model.blocks, saved.blocks, strict=True):
        np.testing.assert_array_equal(array(block.kernel), array(original.kernel))


def test_swapped_arguments_are_named():
    with pytest.raises(InputError, match="pass the network first and then the path"):
        load_weights("net.weights.h5", cifar_resnet(8))


def test_a_model_that_is_not_built_is_not_the_files_fault(tmp_path):
    path = write_weights(cifar_resnet(8), tmp_path / "net.weights.h5")
    with pytest.raises(InputError, match="has no weights yet; call it on a batch, or build it, before"):
        load_weights(keras.Sequential([keras.layers.Dense(3)]), path)
