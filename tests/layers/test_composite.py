"""What is frozen inside layers that are made of other layers: after saving, cloning, rolling and unrolling."""

import itertools

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.keras_private import layers_inside
from keras_preact.layers import (
    ConvShortcut,
    EncoderBlock,
    Projection,
    ResidualUnit,
    SelfAttention,
    UnitStack,
    freeze_batch_norms,
)
from keras_preact.layers.composite import frozen_parts, set_frozen
from keras_preact.layers.copies import clone
from keras_preact.models import (
    Classification,
    Series,
    cifar_resnet,
    freeze,
    load_model,
    reestimate_statistics,
    roll,
    transformer,
    unroll,
)

X = np.random.default_rng(2).normal(size=(8, 8, 8, 3)).astype("float32")
Y = np.arange(8) % 10
SMALL = {"depth": 20, "input_shape": (8, 8, 3)}
IMAGES, SEQUENCES = (None, 8, 8, 16), (None, 6, 16)
LAYERS = {
    "unit": (lambda **more: ResidualUnit(32, strides=2, **more), IMAGES),
    "named unit": (lambda **more: ResidualUnit(16, shortcut="highway", block="bottleneck", **more), IMAGES),
    "frozen shortcut": (lambda **more: ResidualUnit(16, shortcut=ConvShortcut(trainable=False), **more), IMAGES),
    "projection": (lambda **more: Projection(4, normalize="batch", **more), IMAGES),
    "attention": (lambda **more: SelfAttention(2, **more), SEQUENCES),
    "block": (lambda **more: EncoderBlock(2, dropout=0.1, **more), SEQUENCES),
    "rolled": (lambda **more: UnitStack(ResidualUnit(16), 3, rolled=True, **more), IMAGES),
    "unrolled": (lambda **more: UnitStack(ResidualUnit(16), 3, rolled=False, **more), IMAGES),
    "rolled blocks": (lambda **more: UnitStack(EncoderBlock(2), 3, rolled=True, **more), SEQUENCES),
}


def trained(model):
    """Return how many numbers are trained, by the name of their layer without that of the unit or stack."""
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def copied(layer, shape):
    copy = type(layer).from_config(layer.get_config())
    copy.build(shape)
    return copy


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", LAYERS)
def test_any_set_of_frozen_layers_survives_a_copy(kind):
    """Drawn at random, as a whole frozen or not; and the copy of the copy is the same."""
    make, shape = LAYERS[kind]
    rng = np.random.default_rng(0)
    for trainable in (True, True, True, False):
        layer = make(trainable=trainable)
        layer.build(shape)
        assert "frozen" not in layer.get_config() or kind == "frozen shortcut"
        assert trainable or not layer.trainable_variables
        chosen = np.flatnonzero(rng.random(len(layers_inside(layer))) < 0.4)
        set_frozen(layer, chosen.tolist())
        assert frozen_parts(layer) == chosen.tolist()
        copy = copied(copied(layer, shape), shape)
        assert frozen_parts(copy) == chosen.tolist() and copy.trainable == trainable
        assert [v.shape for v in copy.trainable_variables] == [v.shape for v in layer.trainable_variables]
        # Before it is built, the copy says the same.
        assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize("kind", LAYERS)
def test_all_inner_layers_against_the_whole_survive_a_copy(kind):
    """All of them thawed in a frozen layer, or frozen in one that is not; built before or after."""
    make, shape = LAYERS[kind]
    for at_build, trainable in itertools.product((True, False), repeat=2):
        layer = make(trainable=at_build)
        layer.build(shape)
        layer.trainable = trainable
        set_frozen(layer, range(len(layers_inside(layer))) if trainable else [])
        copy = copied(layer, shape)
        assert (copy.trainable, frozen_parts(copy)) == (trainable, frozen_parts(layer)), (at_build, trainable)


def test_numbers_of_layers_that_are_not_there_are_refused():
    with pytest.raises(InputError, match=r"frozen is \[99\], but .* has 5 inner layers"):
        ResidualUnit(16, frozen=[99], block="single", shortcut="conv").build(IMAGES)


def frozen_networks(tmp_path, model):
    """Yield the network's copies by all ways there are."""
    model.save(tmp_path / "model.keras")
    yield "saved", keras.models.load_model(tmp_path / "model.keras")
    yield "loaded", load_model(tmp_path / "model.keras")
    yield "cloned", keras.models.clone_model(model)
    other = unroll(model) if any(isinstance(layer, UnitStack) for layer in model.layers) else roll(model)
    yield "rolled or unrolled", other
    yield "there and back", unroll(other) if not any(isinstance(x, UnitStack) for x in model.layers) else roll(other)
    yield "cloned after it", keras.models.clone_model(other)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rolled", [False, True])
def test_frozen_batch_norms_stay_so_and_their_statistics_do_not_move(rolled, tmp_path):
    model = cifar_resnet(**SMALL, rolled=rolled)
    reestimate_statistics(model, [X])
    before = trained(model)
    norms = sum(int(np.prod(v.shape)) for v in model.weights if "norm" in v.path and v.path[-4:] in ("amma", "beta"))
    freeze_batch_norms(model)
    assert trained(model) == before - norms > 0
    for way, copy in frozen_networks(tmp_path, model):
        assert trained(copy) == trained(model), way
        copy.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True), run_eagerly=True)
        held = [(v, array(v)) for v in copy.weights if not v.trainable]
        free = [(v, array(v)) for v in copy.trainable_variables]
        copy.train_on_batch(X, Y)
        assert held and all(np.array_equal(array(v), value) for v, value in held), way
        assert all(not np.array_equal(array(v), value) for v, value in free), way


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("remat", ["none", "unit", "segment"])
def test_a_step_is_the_same_rolled_and_unrolled_with_frozen_norms(remat, policy):
    rolled = cifar_resnet(**SMALL, rolled=True, remat=remat, dtype=policy)
    reestimate_statistics(rolled, [X])
    freeze_batch_norms(rolled)
    unrolled = unroll(rolled)
    for model in (rolled, unrolled):
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True), run_eagerly=True)
        model.train_on_batch(X, Y)
    tolerance = 1e-5 if policy == "float32" else 0.15  # JAX rounds sums to bfloat16
    for mine, other in zip(unroll(rolled).weights, unrolled.weights, strict=True):
        assert np.linalg.norm(array(mine) - array(other)) <= tolerance * np.linalg.norm(array(other))


def test_keras_own_loop_over_all_layers_reaches_the_norms_of_rolled_stacks():
    rolled, unrolled = (cifar_resnet(**SMALL, rolled=rolled) for rolled in (True, False))
    for model in (rolled, unrolled):
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
    assert trained(rolled) == trained(unrolled)


def test_freezing_reaches_down_and_thawing_too():
    model = cifar_resnet(**SMALL, rolled=True)
    everything = trained(model)
    freeze(model)
    assert not model.trainable_variables and trained(unroll(model)) == 0
    for layer in model.layers:
        layer.trainable = True
    assert trained(model) == everything
    stack = model.get_layer("stage1_stack")
    freeze_batch_norms(stack)
    stack.loop_unit().branch[0].trainable = False
    units = unroll(model)
    assert not units.get_layer("stage1_unit03").branch[0].trainable
    assert units.get_layer("stage2_unit03").branch[0].trainable


def test_units_that_are_frozen_otherwise_are_no_row():
    model = cifar_resnet(**SMALL)
    model.get_layer("stage1_unit03").preact[0].trainable = False
    names = [layer.name for layer in roll(model).layers]
    assert "stage1_unit03" in names and trained(roll(model)) == trained(model)


def test_a_transformers_frozen_attention(tmp_path):
    model = transformer(Series(6, 2), Classification(3), depth=3, dim=8, heads=2)
    for number in (1, 2, 3):
        model.get_layer(f"encoder_block{number:02d}").attention.trainable = False
    for way, copy in frozen_networks(tmp_path, model):
        assert trained(copy) == trained(model), way


@pytest.mark.parametrize("when", ["before it is built", "in a stack", "in an unbuilt copy"])
def test_parts_of_a_layer_can_be_frozen_before_it_is_built(when, tmp_path):
    block = EncoderBlock(2)
    block.attention.trainable = False
    if when == "in a stack":
        layer = UnitStack(block, 2, rolled=False)
        layer.units[1].trainable = False
    else:
        layer = block if when == "before it is built" else clone(block)
    inputs = keras.Input((6, 16))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    copies = load_model(tmp_path / "model.keras"), keras.models.clone_model(model)
    assert not block.attention.trainable_variables
    for network in (model, *copies):
        assert len(network.trainable_variables) == 6  # of the feed-forward unit: two of its norm, two of each layer


def test_a_network_without_batch_norm_has_none_to_freeze():
    with pytest.raises(InputError, match="has no batch norm to freeze"):
        freeze_batch_norms(transformer(Series(6, 2), Classification(3), depth=1, dim=8, heads=2))


@pytest.mark.parametrize("name", LAYERS)
def test_a_wrong_number_of_channels_is_refused_when_a_model_is_built(name):
    make, shape = LAYERS[name]
    layer = make()
    layer(keras.Input(shape[1:]))
    layer(keras.Input((*[None] * (len(shape) - 2), shape[-1])))  # other sizes are fine
    with pytest.raises(ValueError, match=f"value {shape[-1]}, but received input with shape"):
        layer(keras.Input((*shape[1:-1], 2 * shape[-1])))
    with pytest.raises(ValueError, match=f"expected ndim={len(shape)}"):
        layer(keras.Input((4, *shape[1:])))


def test_the_channels_of_channels_first_images_come_first():
    unit = ResidualUnit(16, data_format="channels_first")
    unit.build((None, 16, 8, 8))
    unit(keras.Input((16, 4, 4)))
    with pytest.raises(ValueError, match="value 16, but received input with shape"):
        unit(keras.Input((8, 8, 16)))


def test_a_stack_accepts_what_its_unit_accepts():
    stack = UnitStack(keras.layers.Dense(16), 2)
    stack(keras.Input((16,)))
    assert stack(keras.Input((4, 16))).shape == (None, 4, 16)
    with pytest.raises(ValueError, match="value 16, but received input with shape"):
        stack(keras.Input((8,)))
