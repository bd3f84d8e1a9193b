"""roll and unroll: the same network either way."""

import itertools
import re

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.keras_private import compile_arguments, layers_inside
from keras_preact.layers import EncoderBlock, ResidualUnit, Shortcut, UnitStack
from keras_preact.layers.stack import units_in
from keras_preact.models import (
    Classification,
    Series,
    cifar_resnet,
    feature_maps,
    fold,
    freeze,
    imagenet_resnet,
    multiply_adds,
    roll,
    transformer,
    unroll,
)
from keras_preact.models.rewiring import graphs
from keras_preact.models.summary import summarize
from keras_preact.optimizers import KernelAdamW

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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("placement", ["full_preactivation", "original"])
def test_outputs_and_a_training_step(placement):
    rolled = cifar_resnet(**SMALL, placement=placement, rolled=True)
    unrolled = unroll(rolled)
    np.testing.assert_allclose(array(rolled(X)), array(unrolled(X)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(step(rolled), step(unrolled), rtol=1e-5)
    for mine, other in zip(weights(unroll(rolled)), weights(unrolled), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX needs a setting at startup to compute in float64")
def test_a_training_step_in_float64_to_a_billionth():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        x = X.astype("float64")
        rolled = cifar_resnet(**SMALL, rolled=True, include_top=False, pooling="avg")
        unrolled = unroll(rolled)
        np.testing.assert_allclose(step(rolled, x), step(unrolled, x), rtol=1e-9)
        for mine, other in zip(weights(unroll(rolled)), weights(unrolled), strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.thorough
def test_there_and_back_is_equal_to_the_bit():
    for rolled in (True, False):
        model = cifar_resnet(**SMALL, rolled=rolled, drop_path=0.2)
        step(model)
        back = roll(unroll(model)) if rolled else unroll(roll(model))
        assert [layer.name for layer in back.layers] == [layer.name for layer in model.layers]
        for mine, other in zip(weights(back), weights(model), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_the_builders_make_the_same_network_either_way():
    rolled, unrolled = (cifar_resnet(**SMALL, rolled=value, drop_path=0.2) for value in (True, False))
    sizes = [sum(np.prod(v.shape) for v in model.trainable_variables) for model in (rolled, unrolled)]
    assert sizes[0] == sizes[1]
    assert multiply_adds(rolled) == multiply_adds(unrolled)
    assert summarize(rolled).rows == summarize(unrolled).rows
    assert [layer.name for layer in unroll(rolled).layers] == [layer.name for layer in unrolled.layers]
    rates = [layer.drop_path for layer in unrolled.layers if hasattr(layer, "drop_path")]
    found = [layer.drop_path for layer in unroll(rolled).layers if hasattr(layer, "drop_path")]
    assert found == rates


def test_imagenet_networks_roll_too():
    rolled = imagenet_resnet(50, rolled=True, classes=10, input_shape=(64, 64, 3), output_stride=16)
    x = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype("float32")
    np.testing.assert_allclose(array(unroll(rolled)(x)), array(rolled(x)), rtol=1e-4, atol=1e-4)
    maps = feature_maps(rolled)(x)
    assert [tuple(m.shape[1:3]) for m in maps.values()] == [(16, 16), (8, 8), (4, 4), (4, 4)]


@pytest.mark.thorough
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


class HalfAndHalf(Shortcut):
    def call(self, x, residual):
        return (x + residual) / 2


def test_a_shortcut_that_is_not_registered_with_keras(tmp_path):
    options = {"depth": 20, "input_shape": (8, 8, 3)}
    images = X[:2, :8, :8]
    unrolled = cifar_resnet(**options, shortcut=HalfAndHalf(), rolled=False)
    rolled = roll(unrolled)
    rolled.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", custom_objects={"HalfAndHalf": HalfAndHalf})
    direct = cifar_resnet(**options, shortcut=HalfAndHalf(), rolled=True)
    for one, other in (
        (unrolled, rolled),
        (unrolled, unroll(rolled)),
        (unrolled, unroll(loaded)),
        (unrolled, fold(rolled)),
        (direct, unroll(direct)),
    ):
        np.testing.assert_allclose(array(other(images)), array(one(images)), rtol=1e-4, atol=1e-4)


def test_units_with_a_shortcut_each_are_rolled():
    x = inputs = keras.Input((8, 8, 4))
    for k in range(3):
        x = ResidualUnit(4, shortcut=HalfAndHalf(), name=f"stage1_unit{k}")(x)
    assert [layer.name for layer in roll(keras.Model(inputs, x)).layers[1:]] == ["stage1_stack"]


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


def test_stacks_of_other_layers_are_unrolled_too():
    inputs = keras.Input((16,))
    model = keras.Model(inputs, UnitStack(keras.layers.Dense(16, "tanh"), 3, rolled=True, name="dense_stack")(inputs))
    x = np.random.default_rng(0).normal(size=(2, 16)).astype("float32")
    unrolled = unroll(model)
    assert [layer.name for layer in unrolled.layers[1:]] == ["dense_block01", "dense_block02", "dense_block03"]
    np.testing.assert_allclose(array(unrolled(x)), array(model(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rolled", [True, False])
def test_frozen_units_stay_frozen(rolled):
    model = cifar_resnet(**SMALL, rolled=rolled)
    freeze(model, before="stage3")
    other = unroll(model) if rolled else roll(model)
    trained = [sum(np.prod(v.shape) for v in network.trainable_variables) for network in (model, other)]
    assert trained[0] == trained[1]


def test_frozen_layers_stay_frozen_although_the_first_block_has_no_drop_path():
    network = transformer(Series(6, 2), Classification(3), depth=3, dim=8, heads=2, drop_path=0.2, rolled=True)
    network.get_layer("encoder_stack").loop_unit().feed_forward.branch[0].trainable = False
    for block in [layer for layer in unroll(network).layers if isinstance(layer, EncoderBlock)]:
        frozen = [part.name for part in layers_inside(block) if not part.trainable]
        assert frozen == ["dense1"]


def test_every_unit_is_a_layer_by_default_whatever_the_backend():
    network = cifar_resnet(56)
    assert all(units_in(network.get_layer(f"stage2_unit{k:02d}")) == 1 for k in (1, 7, 9))
    blocks = transformer(Series(8, 2), Classification(2), depth=12, dim=8, heads=2)
    assert blocks.get_layer("encoder_block12").keeps_identity


def test_the_automatic_choice_is_that_of_default_rolled(monkeypatch):
    monkeypatch.setattr("keras_preact.models.resnet.default_rolled", lambda repeats: repeats == 2)
    network = cifar_resnet(20, rolled=None, input_shape=(8, 8, 3))  # two units after the first of each stage
    assert {"stage1_stack", "stage2_stack", "stage3_stack"} < {layer.name for layer in network.layers}
    for depth in (2, 3):
        blocks = transformer(Series(8, 2), Classification(2), depth=depth, dim=8, heads=2, rolled=None)
        assert ("encoder_stack" in {layer.name for layer in blocks.layers}) == (depth == 2)


@pytest.mark.thorough
def test_unrolled_with_recomputation():
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


# ---- calls --------------------------------------------------------------------------------------------------------


def blocks(*options, tap=False, masks=2):
    """Return a network with a row of blocks; each option is the number of the mask for a block, or `None`."""
    x, *given = inputs = [keras.Input((5, 4)), *(keras.Input((5,), dtype="bool") for _ in range(masks))]
    assert set(options) - {None} == set(range(masks))  # before Keras 3.13, an input must be used
    middle = None
    for number, option in enumerate(options, start=1):
        mask = {} if option is None else {"mask": given[option]}
        x = EncoderBlock(2, 8, name=f"stage1_block{number:02d}")(x, training=False, **mask)
        middle = x if middle is None else middle
    return keras.Model(inputs, {"last": x, "first": middle} if tap else x)


def sequences(masks=2):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, 5, 4)).astype("float32"), *(rng.uniform(size=(3, 5)) < 0.6 for _ in range(masks))]


def test_masks_and_flags_reach_the_units():
    model = blocks(0, 0, tap=True, masks=1)
    with pytest.raises(InputError, match="nothing to roll"):
        roll(model)
    model = blocks(0, 0, 0, masks=1)
    rolled = roll(model)
    assert len(rolled.layers) == len(model.layers) - 2
    for other in (rolled, unroll(rolled)):
        np.testing.assert_allclose(array(other(sequences(1))), array(model(sequences(1))), rtol=1e-5, atol=1e-5)


def test_units_that_are_called_in_different_ways_stay():
    model = blocks(0, 0, 1, 1)
    rolled = roll(model)
    assert [layer.repeats for layer in rolled.layers if isinstance(layer, UnitStack)] == [2, 2]
    np.testing.assert_allclose(array(rolled(sequences())), array(model(sequences())), rtol=1e-5, atol=1e-5)


def test_units_that_are_called_twice_or_asked_for_training_stay():
    inputs = keras.Input((8, 8, 4))
    unit = ResidualUnit(4)
    with pytest.raises(InputError, match="nothing to roll"):
        roll(keras.Model(inputs, unit(ResidualUnit(4)(unit(inputs)))))
    with pytest.raises(InputError, match="nothing to roll"):
        roll(keras.Model(inputs, ResidualUnit(4)(ResidualUnit(4)(inputs), training=True)))


def test_units_that_change_the_shape_stay():
    inputs = keras.Input((16, 16, 4))
    with pytest.raises(InputError, match="nothing to roll"):
        roll(keras.Model(inputs, ResidualUnit(4, strides=2)(ResidualUnit(4, strides=2)(inputs))))


def test_random_states_are_copied():
    inputs, images = keras.Input((8, 8, 4)), np.ones((2, 8, 8, 4), "float32")
    x = keras.layers.Dropout(0.5, seed=3, name="dropout")(inputs)
    for k in range(2):
        x = ResidualUnit(4, name=f"stage1_unit{k}")(x)
    model = keras.Model(inputs, x)
    model.get_layer("dropout")(images, training=True)  # its generator moves on
    rolled = roll(model)
    drawn = [array(each.get_layer("dropout")(images, training=True)) for each in (rolled, model)]
    np.testing.assert_array_equal(*drawn)


def test_rows_side_by_side_and_in_a_model_inside():
    inside = keras.Input((8, 8, 4))
    backbone = keras.Model(inside, ResidualUnit(4, name="b2")(ResidualUnit(4, name="b1")(inside)), name="backbone")
    inputs = keras.Input((8, 8, 4))
    sides = [ResidualUnit(4, name=f"{side}_2")(ResidualUnit(4, name=f"{side}_1")(inputs)) for side in "lr"]
    model = keras.Model(inputs, [backbone(backbone(sides[0])), sides[1]])
    rolled = roll(model)
    names = [layer.name for graph in graphs(rolled) for layer in graph.layers if isinstance(layer, UnitStack)]
    assert sorted(names) == ["b1_stack", "l_stack", "r_stack"]
    assert_same_outputs(model, rolled, X[:2, :8, :8, [0, 1, 2, 0]])
    assert_same_outputs(model, unroll(rolled), X[:2, :8, :8, [0, 1, 2, 0]])


def test_names_that_are_taken():
    inputs = keras.Input((8, 8, 4))
    x = UnitStack(ResidualUnit(4), 2, rolled=True, name="stage1_stack")(inputs)
    model = keras.Model(inputs, keras.layers.ReLU(name="stage1_unit02")(x))
    assert [layer.name for layer in unroll(model).layers[1:]] == ["stage1_unit01", "stage1_unit03", "stage1_unit02"]


def test_names_that_are_taken_in_another_model_that_has_the_stack():
    stack = UnitStack(ResidualUnit(4), 2, rolled=True, name="stage1_stack")
    inputs, others = keras.Input((8, 8, 4)), keras.Input((8, 8, 4))
    inner = keras.Model(inputs, keras.layers.ReLU(name="stage1_unit01")(stack(inputs)), name="inner")
    model = keras.Model(others, inner(stack(others)))
    unrolled = unroll(model)
    assert [layer.name for layer in unrolled.layers[1:]] == ["stage1_unit01_2", "stage1_unit02", "inner"]
    for other in (unrolled, fold(model)):
        assert_same_outputs(model, other, X[:2, :8, :8, [0, 1, 2, 0]])


def row_of_units():
    return keras.Sequential([keras.Input((8, 8, 4)), *(ResidualUnit(4, name=f"stage1_unit{k}") for k in range(3))])


def test_rows_in_a_sequential_model():
    row, images = row_of_units(), X[:2, :8, :8, [0, 1, 2, 0]]
    row.compile("sgd", "mse", run_eagerly=True)
    inputs = keras.Input((8, 8, 4))
    for model in (row, keras.Model(inputs, keras.layers.ReLU()(row(inputs)))):
        rolled = roll(model)
        assert [layer.repeats for layer in rolled._flatten_layers() if isinstance(layer, UnitStack)] == [3]
        assert rolled.compiled == model.compiled
        assert_same_outputs(model, rolled, images)
        assert_same_outputs(model, unroll(rolled), images)


class Doubles(keras.Model):
    """A functional model whose `call` does more than run its graph."""

    def call(self, x, **options):
        return 2 * super().call(x, **options)


def test_models_with_a_call_of_their_own_stay_as_they_are():
    row, inputs, images = row_of_units(), keras.Input((8, 8, 4)), X[:2, :8, :8, [0, 1, 2, 0]]
    doubles = Doubles(row.inputs[0], row.outputs[0], name="doubles")
    with pytest.raises(InputError, match=r"only functional .*, not Doubles, which overrides `call`"):
        roll(doubles)
    x = doubles(inputs)
    for k in range(2):
        x = ResidualUnit(4, name=f"stage2_unit{k}")(x)
    model = keras.Model(inputs, x)
    rolled = roll(model)
    assert [layer.name for layer in rolled.layers[1:]] == ["doubles", "stage2_stack"]
    assert_same_outputs(model, rolled, images)


# ---- compiled models ----------------------------------------------------------------------------------------------


def tiny(**options):
    return cifar_resnet(20, input_shape=(8, 8, 3), **options)


@pytest.mark.parametrize("rolled", [True, False])
def test_losses_and_metrics_that_keras_does_not_know(rolled):
    def distance(y, logits):
        return keras.ops.mean(keras.ops.abs(logits), axis=-1)

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1

        def get_config(self):
            return {}

    for loss in (distance, lambda y, logits: keras.ops.mean(logits**2, axis=-1)):
        model = tiny(rolled=rolled)
        metrics = [distance, keras.metrics.MeanMetricWrapper(distance, name="mean")]
        model.compile(keras.optimizers.SGD(Schedule()), loss, metrics=metrics, run_eagerly=True)
        other = unroll(model) if rolled else roll(model)
        images, labels = X[:, :8, :8], np.zeros((8, 1))
        results = [network.evaluate(images, labels, verbose=0, return_dict=True) for network in (model, other)]
        assert results[0].keys() == results[1].keys()
        np.testing.assert_allclose(list(results[0].values()), list(results[1].values()), rtol=1e-4)
        assert float(other.optimizer.learning_rate) == pytest.approx(0.1)
        assert other.optimizer is not model.optimizer
        assert compile_arguments(other)["metrics"][1] is not metrics[1]


def test_an_optimizer_that_cannot_be_copied_is_named():
    class Secretive(keras.optimizers.SGD):
        def __init__(self, secret, **kwargs):
            super().__init__(**kwargs)

    model = tiny(rolled=False)
    model.compile(Secretive(1), "mse")
    with pytest.raises(InputError, match=r"the Secretive '(secretive(_\d+)?|SGD)' cannot be copied"):
        roll(model)


@pytest.mark.thorough
def test_a_quantized_layer_is_copied_or_refused_in_a_sentence():
    """In int8 and int4 the copy has the same variables; in float8 it does not."""
    for mode, copy in itertools.product(("int8", "int4"), (roll, fold)):
        model = tiny(rolled=False)
        model.quantize(mode)
        np.testing.assert_allclose(array(copy(model)(X[:, :8, :8])), array(model(X[:, :8, :8])), atol=1e-5)
    other = tiny(rolled=False)
    other.quantize("float8")
    for copy in (roll, fold):
        with pytest.raises(InputError, match="roll, unroll or fold the network before you quantize it"):
            copy(other)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_loss_scale_stays_whatever_the_policy_is_now(scaled):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = tiny(rolled=False)
        model.compile("sgd", "mse", auto_scale_loss=scaled)
    finally:
        keras.config.set_dtype_policy("float32")
    x = X[:4, :8, :8]
    model.fit(x, np.zeros((4, *model.output_shape[1:])), verbose=0)  # the optimizer has variables now
    rolled = roll(model)
    for other in (rolled, unroll(rolled)):
        assert isinstance(other.optimizer, keras.optimizers.LossScaleOptimizer) == scaled
        assert other.dtype_policy.name == "mixed_float16"


def test_a_model_of_ones_own_class_stays_one():
    class Doubled(keras.Model):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    plain = tiny(rolled=False)
    model = Doubled(plain.input, plain.output)
    model.trainable = False
    assert isinstance(roll(model), Doubled)
    assert roll(model).trainable_variables == []


def test_a_constructor_that_passes_its_arguments_on_stays_too():
    """As in Keras's guide on custom training steps."""

    class Custom(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="loss")

    plain = tiny(rolled=False)
    for change in (roll, fold):
        assert isinstance(change(Custom(plain.input, plain.output)), Custom)


def test_a_class_whose_copy_would_lose_something_is_not_copied():
    class Mixup(keras.Model):
        def __init__(self, inputs, outputs, alpha=0.2, **kwargs):
            super().__init__(inputs, outputs, **kwargs)
            self.alpha = alpha

    class Contrastive(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")

    plain = tiny(rolled=False)
    for model, lost in (
        (Mixup(plain.input, plain.output, alpha=0.8, name="mine"), "a copy of mine, a Mixup, would lose alpha"),
        (Contrastive(plain.input, plain.output, name="mine"), "a Contrastive, would lose .*temperature"),
    ):
        for change in (roll, fold):
            with pytest.raises(InputError, match=lost):
                change(model)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_variables_without_weight_decay_stay_without(wrap):
    """The configuration of an optimizer does not contain them."""
    model, decayed = tiny(rolled=False), tiny(rolled=False)
    for each, names in ((model, ["bias", "gamma"]), (decayed, [])):
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
        if names:
            optimizer.exclude_from_weight_decay(var_names=names)
        each.compile(wrap(optimizer), "mse", auto_scale_loss=False)
        rolled = roll(each)
        inner = getattr(rolled.optimizer, "inner_optimizer", rolled.optimizer)
        (gamma,) = [v for v in rolled.trainable_variables if v.path.endswith("norm1_gamma")][:1]
        assert inner._use_weight_decay(gamma) == (not names)


def test_a_trained_optimizer_passes_on_what_it_does_not_decay():
    inputs = keras.Input((8, 8, 4))
    x = keras.layers.SeparableConv2D(4, 3, padding="same")(inputs)
    model = keras.Model(inputs, ResidualUnit(4)(ResidualUnit(4)(x)))
    optimizer = KernelAdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["depthwise"])
    model.compile(optimizer, "mse")
    for _ in range(2):
        rolled = roll(model)
        rolled.optimizer.build(rolled.trainable_variables)
        decayed = {v.name for v in rolled.trainable_variables if rolled.optimizer._use_weight_decay(v)}
        assert "pointwise_kernel" in decayed and "depthwise_kernel" not in decayed
        optimizer.build(model.trainable_variables)


def test_losses_and_metrics_of_outputs_by_name():
    inputs = keras.Input((8, 8, 4))
    x = ResidualUnit(4, name="body_2")(ResidualUnit(4, name="body_1")(inputs))
    model = keras.Model(inputs, [x, keras.layers.ReLU(name="last")(inputs)])
    model.compile(
        "sgd",
        {"body_2": "mse", "last": "mae"},
        loss_weights={"body_2": 2.0, "last": 1.0},
        metrics={"body_2": ["mae"], "last": ["mse"]},
        jit_compile=False,
    )
    images = X[:, :8, :8, [0, 1, 2, 0]]
    results = [network.evaluate(images, [images, images], verbose=0) for network in (model, roll(model))]
    np.testing.assert_allclose(*results, rtol=1e-5)


# ---- any graph ----------------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="tests")
class Block(keras.layers.Layer):
    """A small block whose output depends on how it is called: a masked residual, and batch statistics in training."""

    changes_shape = False

    def __init__(self, scale=0.5, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale
        self.supports_masking = True

    def build(self, input_shape):
        self.dense = keras.layers.Dense(input_shape[-1], "tanh", name="dense")
        self.norm = keras.layers.BatchNormalization(name="norm")
        for layer in (self.dense, self.norm):
            layer.build(input_shape)
            layer.trainable = self.trainable

    def call(self, x, mask=None, training=None):
        residual = self.norm(self.dense(x), training=training)
        if mask is not None:
            residual = residual * keras.ops.cast(mask, residual.dtype)[..., None]
        return x + self.scale * residual

    def residual_layers(self):
        return {"": self}

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}


class Graphs:
    """Random networks of blocks on sequences. All tensors have one shape, so any layer can be called on any tensor.

    Blocks are called with masks and flags, shared, frozen, tapped; models are nested, and called twice.
    """

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.numbers = itertools.count(1)

    def choose(self, *options):
        return options[self.rng.integers(len(options))]

    def happens(self, probability):
        return self.rng.uniform() < probability

    def options(self, masks):
        options = {"mask": self.choose(*masks)} if self.happens(0.4) else {}
        return options | ({"training": False} if self.happens(0.4) else {})

    def row(self, x, masks, tensors):
        """Call two to four blocks in a row, usually with the same options."""
        options, faulty, scale = self.options(masks), self.happens(0.3), self.choose(0.5, 0.5, 0.4)
        block = self.block(scale)
        for _ in range(self.rng.integers(2, 5)):
            x = block(x, **(self.options(masks) if faulty else options))
            if self.happens(0.1):
                tensors.append(x)
            if not (faulty and self.happens(0.3)):
                block = self.block(scale)
        return x

    def block(self, scale):
        block = Block(scale, name=f"stage_block{next(self.numbers):02d}")
        block.trainable = self.happens(0.9)
        return block

    def model(self, depth=1):
        inputs = [keras.Input((5, 4)), keras.Input((5,), dtype="bool"), keras.Input((5,), dtype="bool")]
        x, *masks = inputs
        tensors = [x]
        for _ in range(self.rng.integers(1, 3)):
            x = self.row(tensors[-1], masks, tensors)
            kind = self.choose("dense", "stack", "nested", "add")
            if kind == "nested" and depth:
                inside = self.model(depth - 1)
                for _ in range(1 + self.happens(0.3)):
                    x = keras.tree.flatten(inside([x, *masks]))[-1]
            elif kind == "stack":
                name = f"stage{next(self.numbers)}_stack"
                x = UnitStack(self.block(0.5), 3, rolled=True, name=name)(x, **self.options(masks))
            elif kind == "add":
                x = x + 0.5 * self.choose(*tensors)
            else:
                x = keras.layers.Dropout(0.2, seed=3)(keras.layers.Dense(4, name=f"dense{next(self.numbers)}")(x))
            tensors.append(x)
        outputs = self.choose(x, [x, self.choose(*tensors)], {"b": x, "a": self.choose(*tensors)})
        return keras.Model(inputs, outputs, name=f"model{next(self.numbers)}")

    def inputs(self):
        masks = [self.rng.uniform(size=(3, 5)) < 0.6 for _ in range(2)]
        return [self.rng.normal(size=(3, 5, 4)).astype("float32"), *masks]


def plain(model):
    return (
        unroll(model)
        if any(isinstance(layer, UnitStack) for graph in graphs(model) for layer in graph.layers)
        else model
    )


def assert_same_outputs(model, other, inputs):
    for options in ({}, {"training": False}):
        expected, found = model(inputs, **options), other(inputs, **options)
        keras.tree.assert_same_structure(found, expected)
        for mine, its in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
            np.testing.assert_allclose(array(mine), array(its), rtol=1e-5, atol=1e-5 * np.abs(array(its)).max())


def assert_same_training(models, inputs):
    """Take one step of SGD with each model, which compares gradients and moving statistics."""
    targets = keras.tree.map_structure(lambda y: np.zeros(y.shape, "float32"), models[0](inputs))
    losses = [model.train_on_batch(inputs, targets, return_dict=True)["loss"] for model in models]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    for model in models[1:]:
        for mine, its in zip(weights(plain(model)), weights(plain(models[0])), strict=True):
            np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)


def check_any_graph(seeds):
    """Roll and unroll random networks; return how many of them got shorter by rolling."""
    shorter = 0
    for seed in seeds:
        made = Graphs(seed)
        model, inputs = made.model(), made.inputs()
        model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
        models = [model]
        for change in (roll, unroll):
            try:
                models.append(change(model))
            except InputError as error:
                assert "nothing to roll" in str(error) or re.search("(already|an) unrolled", str(error))
                continue
            assert_same_outputs(model, models[-1], inputs)
            shorter += len(models[-1].layers) < len(model.layers)
        assert_same_training(models, inputs)
    return shorter


@pytest.mark.thorough
def test_any_graph():
    assert check_any_graph(range(4)) > 1


@pytest.mark.slow
def test_any_graph_of_hundreds():
    assert check_any_graph(range(150)) > 20


def test_adapted_normalization_is_copied_with_the_network():
    """In front, and in the units of a stack."""
    x = np.random.default_rng(0).normal(5, 3, (8, 4, 4, 8)).astype("float32")
    front = keras.layers.Normalization()
    front.adapt(x)
    stack = UnitStack(keras.layers.Normalization(), 2, rolled=False, name="stage0_stack")
    inputs = keras.Input(x.shape[1:])
    units = [ResidualUnit(8, name=f"stage1_unit0{k}") for k in (1, 2)]
    outputs = units[1](units[0](stack(front(inputs))))
    stack.units[1].adapt(3 * x)
    network = keras.Model(inputs, outputs)
    expected = array(network(x))
    for copied in (roll(network), unroll(network), fold(network)):
        np.testing.assert_allclose(array(copied(x)), expected, rtol=1e-4, atol=1e-5)


def test_errors():
    with pytest.raises(InputError, match="nothing to roll"):
        roll(cifar_resnet(8))
    inputs = keras.Input((8, 8, 4))
    with pytest.raises(InputError, match=r"halves is an unrolled stack, .*; use roll\(unroll\(model\)\)"):
        roll(keras.Model(inputs, UnitStack(ResidualUnit(4), 2, rolled=False, name="halves")(inputs)))
    with pytest.raises(InputError, match="already unrolled"):
        unroll(cifar_resnet(20, rolled=False))
    with pytest.raises(InputError, match="has no input shape yet; begin it with"):
        roll(keras.Sequential([keras.layers.Dense(2)]))
