"""roll and unroll: the same network either way."""

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.layers import ResidualUnit, UnitStack
from keras_preact.models import (
    Classification,
    Series,
    cifar_resnet,
    feature_maps,
    freeze,
    imagenet_resnet,
    multiply_adds,
    roll,
    transformer,
    unroll,
)
from keras_preact.models.summary import summarize

X = np.random.default_rng(6).normal(size=(8, 16, 16, 3)).astype("float32")
Y = np.arange(8) % 10
SMALL = {"depth": 26, "input_shape": (16, 16, 3)}


def step(model, x=X):
    """Take one step of SGD; return the loss before it."""
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return float(model.train_on_batch(x, Y))


def weights(model):
    return [np.asarray(keras.ops.convert_to_numpy(v), "float64") for v in model.weights]


@pytest.mark.parametrize("placement", ["full_preactivation", "original"])
def test_outputs_and_a_training_step(placement):
    rolled = cifar_resnet(**SMALL, placement=placement, rolled=True)
    written_out = unroll(rolled)
    np.testing.assert_allclose(array(rolled(X)), array(written_out(X)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(step(rolled), step(written_out), rtol=1e-5)
    for mine, other in zip(weights(unroll(rolled)), weights(written_out), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX computes in float64 only when told at its start")
def test_a_training_step_in_float64_to_a_billionth():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        x = X.astype("float64")
        rolled = cifar_resnet(**SMALL, rolled=True, include_top=False, pooling="avg")
        written_out = unroll(rolled)
        np.testing.assert_allclose(step(rolled, x), step(written_out, x), rtol=1e-9)
        for mine, other in zip(weights(unroll(rolled)), weights(written_out), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    finally:
        keras.config.set_floatx("float32")


def test_there_and_back_is_equal_to_the_bit():
    for rolled in (True, False):
        model = cifar_resnet(**SMALL, rolled=rolled, drop_path=0.2)
        step(model)
        back = roll(unroll(model)) if rolled else unroll(roll(model))
        assert [layer.name for layer in back.layers] == [layer.name for layer in model.layers]
        for mine, other in zip(weights(back), weights(model), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_the_builders_make_the_same_network_either_way():
    rolled, written_out = (cifar_resnet(**SMALL, rolled=value, drop_path=0.2) for value in (True, False))
    sizes = [sum(np.prod(v.shape) for v in model.trainable_variables) for model in (rolled, written_out)]
    assert sizes[0] == sizes[1]
    assert multiply_adds(rolled) == multiply_adds(written_out)
    assert summarize(rolled).rows == summarize(written_out).rows
    assert [layer.name for layer in unroll(rolled).layers] == [layer.name for layer in written_out.layers]
    rates = [layer.drop_path for layer in written_out.layers if hasattr(layer, "drop_path")]
    found = [layer.drop_path for layer in unroll(rolled).layers if hasattr(layer, "drop_path")]
    assert found == rates


def test_imagenet_networks_roll_too():
    rolled = imagenet_resnet(50, rolled=True, classes=10, input_shape=(64, 64, 3), output_stride=16)
    x = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype("float32")
    np.testing.assert_allclose(array(unroll(rolled)(x)), array(rolled(x)), rtol=1e-4, atol=1e-4)
    maps = feature_maps(rolled)(x)
    assert [tuple(m.shape[1:3]) for m in maps.values()] == [(16, 16), (8, 8), (4, 4), (4, 4)]


def test_saved_and_loaded_rolled(tmp_path):
    model = cifar_resnet(**SMALL, rolled=True, remat="segment", drop_path=0.2)
    step(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert isinstance(loaded.get_layer("stage2_stack"), UnitStack)
    np.testing.assert_array_equal(array(loaded(X)), array(model(X)))


def test_units_whose_outputs_are_wanted_stay():
    model = cifar_resnet(**SMALL, rolled=False)
    wanted = keras.Model(model.input, [model.get_layer("stage1_unit03").output, model.output])
    rolled = roll(wanted)
    for mine, other in zip(rolled(X), wanted(X), strict=True):
        np.testing.assert_allclose(array(mine), array(other), rtol=1e-5, atol=1e-5)


def test_rows_of_one_stage_get_stacks_of_different_names():
    x = inputs = keras.Input((8, 8, 16))
    for _ in range(2):
        for _ in range(2):
            x = ResidualUnit(16)(x)
        x = keras.layers.ReLU()(x)
    model = keras.Model(inputs, x)
    rolled = roll(model)
    stacks = [layer.name for layer in rolled.layers if isinstance(layer, UnitStack)]
    assert len(set(stacks)) == 2
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 16)).astype("float32")
    np.testing.assert_allclose(array(unroll(rolled)(images)), array(model(images)), rtol=1e-5, atol=1e-5)


def test_stacks_of_other_layers_are_written_out_too():
    inputs = keras.Input((16,))
    model = keras.Model(inputs, UnitStack(keras.layers.Dense(16, "tanh"), 3, rolled=True, name="dense_stack")(inputs))
    x = np.random.default_rng(0).normal(size=(2, 16)).astype("float32")
    written_out = unroll(model)
    assert [layer.name for layer in written_out.layers[1:]] == ["dense_block01", "dense_block02", "dense_block03"]
    np.testing.assert_allclose(array(written_out(x)), array(model(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rolled", [True, False])
def test_frozen_units_stay_frozen(rolled):
    model = cifar_resnet(**SMALL, rolled=rolled)
    freeze(model, before="stage3")
    other = unroll(model) if rolled else roll(model)
    trained = [sum(np.prod(v.shape) for v in network.trainable_variables) for network in (model, other)]
    assert trained[0] == trained[1]


def test_every_unit_is_a_layer_by_default_whatever_the_backend():
    assert [cifar_resnet(80).get_layer(f"stage2_unit{k:02d}").name for k in (1, 7, 13)][-1] == "stage2_unit13"
    blocks = transformer(Series(8, 2), Classification(2), depth=12, dim=8, heads=2)
    assert blocks.get_layer("encoder_block12").keeps_identity


def test_the_automatic_choice_rolls_long_stages_on_tensorflow():
    """The stages of depth 80 have 12 units after their first, those of depth 74 have 11."""
    rolls = keras.backend.backend() == "tensorflow"
    for depth, expected in ((80, rolls), (74, False)):
        names = {layer.name for layer in cifar_resnet(depth, rolled=None).layers}
        assert ("stage1_stack" in names) == expected
    blocks = transformer(Series(8, 2), Classification(2), depth=12, dim=8, heads=2, rolled=None)
    assert ("encoder_stack" in {layer.name for layer in blocks.layers}) == rolls


def test_written_out_with_recomputation():
    names = [layer.name for layer in cifar_resnet(**SMALL, rolled=False).layers]
    assert [layer.name for layer in cifar_resnet(**SMALL, rolled=False, remat="none").layers] == names
    model = cifar_resnet(**SMALL, rolled=False, remat=True)
    plain = unroll(model)
    np.testing.assert_allclose(step(model), step(plain), rtol=1e-5)
    for mine, other in zip(weights(unroll(model)), weights(plain), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_depth_1001_both_ways():
    rolled = cifar_resnet(1001, rolled=True, input_shape=(8, 8, 3))
    x = X[:1, :8, :8]
    np.testing.assert_allclose(array(unroll(rolled)(x)), array(rolled(x)), rtol=1e-3, atol=1e-3)


def test_errors():
    with pytest.raises(InputError, match="nothing to roll"):
        roll(cifar_resnet(8))
    with pytest.raises(InputError, match="written out already"):
        unroll(cifar_resnet(20, rolled=False))
    with pytest.raises(InputError, match="only functional"):
        roll(keras.Sequential([keras.layers.Dense(2)]))
