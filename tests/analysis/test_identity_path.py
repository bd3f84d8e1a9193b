"""The linter passes what the paper proposes and names what it warns of."""

import keras
import numpy as np
import pytest
from harness import array
from keras import layers, ops

from keras_preact import InputError
from keras_preact.analysis import check_identity_path
from keras_preact.layers import (
    ConvShortcut,
    DropPath,
    IdentityShortcut,
    PreActivation,
    PreNormEncoderBlock,
    ResidualUnit,
    Shortcut,
    UnitStack,
)
from keras_preact.models import cifar_resnet, fold, imagenet_resnet


def test_the_units_of_a_stack_are_counted():
    written_out, rolled = (str(check_identity_path(cifar_resnet(20, "original", rolled=r))) for r in (False, True))
    assert written_out == rolled
    assert "9 of 9 residual units" in rolled and "all 9 units: after the addition: ReLU" in rolled
    units = check_identity_path(cifar_resnet(20, "original", rolled=True)).units
    assert [unit.copies for unit in units] == [1, 2, 1, 2, 1, 2]
    assert "resnet20_full_preactivation: 9 residual units" in str(check_identity_path(cifar_resnet(20, rolled=True)))


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("depth", [20, 110])
def test_this_packages_full_pre_activation_networks_pass(depth, rolled):
    report = check_identity_path(cifar_resnet(depth, rolled=rolled))
    assert report.is_clear
    assert "nothing on the identity path" in str(report)


def test_imagenet_networks_pass_with_the_stride_in_either_place():
    for stride_in in ("first", "last"):
        assert check_identity_path(imagenet_resnet(50, stride_in=stride_in, input_shape=(64, 64, 3))).is_clear


def test_a_folded_network_passes_too_read_from_its_graph():
    report = check_identity_path(fold(cifar_resnet(20)))
    assert report.is_clear and len(report.units) == 9


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"placement": "original"}, "after the addition: ReLU"),
        ({"placement": "bn_after_addition"}, "after the addition: BatchNormalization, ReLU"),
        ({"placement": "bn_after_addition", "normalization": "group"}, "after the addition: GroupNormalization, ReLU"),
        ({"placement": "bn_after_addition", "normalization": "none"}, "after the addition: ReLU;"),
        ({"shortcut": "constant_scaling"}, "the factor is 0.5"),
        ({"shortcut": "exclusive_gating"}, "scaled shortcut: ExclusiveGating"),
        ({"shortcut": "shortcut_only_gating"}, "scaled shortcut: ShortcutOnlyGating"),
        ({"shortcut": "conv"}, "a shortcut between equal shapes"),
        ({"shortcut": "dropout"}, "dropout on the shortcut: rate 0.5"),
    ],
)
def test_each_variant_of_the_paper_is_named(options, fault):
    report = check_identity_path(cifar_resnet(14, **options))
    faults = [fault for unit in report.units for fault in unit.faults]
    assert any(fault in found for found in faults), faults
    assert fault in str(report)


def test_the_networks_of_keras_applications():
    v1 = check_identity_path(keras.applications.ResNet50(weights=None))
    assert len(v1.units) == 16
    assert "relu; f is not the identity" in v1.units[2].faults[0]
    v2 = check_identity_path(keras.applications.ResNet50V2(weights=None))
    assert len(v2.units) == 16 and v2.is_clear, str(v2)


def block(x, kind):
    """A block as people write it, with one fault."""
    activated = layers.ReLU()(layers.BatchNormalization()(x))
    y = layers.Conv2D(8, 3, padding="same")(activated)
    y = layers.Conv2D(8, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(y)))
    skip = {
        "none": lambda: x,
        "activated": lambda: activated,
        "normalized": lambda: layers.BatchNormalization()(x),
        "conv": lambda: layers.Conv2D(8, 1)(x),
        "scaled": lambda: layers.Rescaling(0.5)(x),
        "multiplied": lambda: x * 0.5,
        "dropped": lambda: layers.Dropout(0.5)(x),
    }[kind]()
    return layers.Add()([skip, y]) if kind != "multiplied" else skip + y


@pytest.mark.parametrize(
    "kind, fault",
    [
        ("none", None),
        ("activated", "activated shortcut: BatchNormalization, ReLU between the previous addition and the split"),
        ("normalized", "activated shortcut: BatchNormalization on it"),
        ("conv", "Conv2D on a shortcut between equal shapes"),
        ("scaled", "scaled shortcut: Rescaling on it"),
        ("multiplied", "scaled shortcut: Multiply on it"),
        ("dropped", "dropout on the shortcut: Dropout"),
    ],
)
def test_a_planted_fault_is_found_where_it_is(kind, fault):
    inputs = keras.Input((8, 8, 8))
    x = block(block(inputs, "none"), kind)
    report = check_identity_path(keras.Model(inputs, block(x, "none")))
    assert len(report.units) == 3
    assert [len(unit.faults) for unit in report.units] == [0, int(fault is not None), 0]
    assert fault is None or fault in report.units[1].faults[0]


def test_models_in_models_are_looked_into():
    inner_input = keras.Input((8, 8, 8))
    inner = keras.Model(inner_input, block(block(inner_input, "none"), "scaled"), name="inner")
    inputs = keras.Input((8, 8, 8))
    assert not check_identity_path(keras.Model(inputs, inner(inputs))).is_clear


def test_a_layer_between_units_of_this_package_is_seen():
    inputs = keras.Input((8, 8, 8))
    x = ResidualUnit(8)(PreActivation()(ResidualUnit(8)(inputs)))
    faults = check_identity_path(keras.Model(inputs, x)).units[1].faults
    assert "activated shortcut: PreActivation" in faults[0]


def test_a_preactivation_shared_between_equal_shapes_is_named():
    x = inputs = keras.Input((8, 8, 8))
    for _ in range(2):
        x = ResidualUnit(8, preactivation="shared")(x)
    first, second = check_identity_path(keras.Model(inputs, x)).units
    assert first.faults == ()  # as in the paper
    assert second.faults == ("activated shortcut: BatchNormalization, ReLU before the split; pass the sum itself",)


@pytest.mark.parametrize(
    "shortcut", ["constant_scaling(shortcut=1, residual=0.5)", "dropout(rate=0)", "scaled_residual", "identity"]
)
def test_shortcuts_that_return_x_are_no_fault(shortcut):
    assert check_identity_path(cifar_resnet(8, shortcut=shortcut)).is_clear


def test_a_projection_that_changes_the_shape_is_no_fault():
    inputs = keras.Input((8, 8, 4))
    y = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    skip = layers.BatchNormalization()(layers.Conv2D(8, 1, strides=2)(inputs))
    assert check_identity_path(keras.Model(inputs, layers.add([skip, y]))).is_clear


def test_a_layer_between_two_rows_of_units_that_changes_the_shape_is_no_fault():
    """As in MobileNetV2: the sum before it could not be given on."""
    inputs = keras.Input((16, 16, 8))
    x = block(inputs, "none")
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(keras.layers.Conv2D(16, 3, 2, "same")(x)))
    residual = keras.layers.Conv2D(16, 3, padding="same")(keras.layers.ReLU()(keras.layers.BatchNormalization()(x)))
    assert check_identity_path(keras.Model(inputs, keras.layers.Add()([x, residual]))).is_clear


def test_what_is_no_residual_network_is_refused():
    a, b = keras.Input((4,)), keras.Input((4,))
    with pytest.raises(InputError, match="has no residual units"):
        check_identity_path(keras.Model([a, b], layers.add([a, b])))
    with pytest.raises(InputError, match="only functional Keras models"):
        check_identity_path(layers.Dense(3))


# ---- faults of many kinds, wherever they may be ------------------------------------------------------------------


class Halves(layers.Layer):
    def call(self, x):
        return x / 2


class Identity(layers.Layer):  # of this name, but not Keras's
    def call(self, x):
        return x / 2


class SecretlyHalves(layers.Identity):
    def call(self, x):
        return x / 2


class DoublesAfterwards(keras.Model):
    def call(self, x):
        return 2 * super().call(x)


def pooling(kind, x):
    return getattr(layers, f"{kind}Pooling{len(x.shape) - 2}D")(2, strides=1, padding="same")(x)


def inner_model(x, function, kind=keras.Model):
    inputs = keras.Input(x.shape[1:])
    return kind(inputs, function(inputs))(x)


def shuffled_channels(x):
    """The shape is the same at the end, and so is each step's: the values are in another order."""
    parts = ops.reshape(x, (-1, *x.shape[1:-1], 2, x.shape[-1] // 2))
    return ops.reshape(ops.swapaxes(parts, -1, -2), (-1, *x.shape[1:]))


def steps_shuffled(x):
    return ops.reshape(ops.swapaxes(ops.reshape(x, (-1, 2, 4, *x.shape[2:])), 1, 2), (-1, *x.shape[1:]))


FAULTS = {
    "negative": lambda x: -x,
    "square": lambda x: x**2,
    "absolute": ops.abs,
    "exp": ops.exp,
    "sin": ops.sin,
    "round": ops.round,
    "sign": ops.sign,
    "sqrt": ops.sqrt,
    "nan_to_num": ops.nan_to_num,
    "clip": lambda x: ops.clip(x, -1, 1),
    "times a half": lambda x: x * 0.5,
    "half": lambda x: x / 2,
    "plus one": lambda x: x + 1,
    "plus ones": lambda x: x + ops.ones_like(x),
    "minus its mean": lambda x: x - ops.mean(x, axis=-1, keepdims=True),
    "twice": lambda x: x + x,
    "sum of itself": lambda x: layers.Add()([x, x]),
    "average with itself": lambda x: layers.Average()([x, -x]),
    "maximum": lambda x: layers.Maximum()([x, -x]),
    "where": lambda x: ops.where(x > 0, x, 0.0),
    "cast to integers": lambda x: ops.cast(ops.cast(x, "int32"), "float32"),
    "stop gradient": ops.stop_gradient,
    "flip": lambda x: ops.flip(x, axis=1),
    "reverse": lambda x: x[:, ::-1],
    "roll": lambda x: ops.roll(x, 1, axis=1),
    "sort": lambda x: ops.sort(x, axis=-1),
    "cumsum": lambda x: ops.cumsum(x, axis=1),
    "gather": lambda x: ops.take(x, np.arange(8)[::-1].copy(), axis=1),
    "halves exchanged": lambda x: layers.Concatenate(axis=1)([x[:, 4:], x[:, :4]]),
    "transpose": lambda x: ops.swapaxes(x, 1, 2),
    "permute": lambda x: layers.Permute([2, 1, *range(3, len(x.shape))])(x),
    "channels shuffled": shuffled_channels,
    "steps shuffled": steps_shuffled,
    "GaussianNoise": lambda x: layers.GaussianNoise(0.1)(x),
    "GaussianDropout": lambda x: layers.GaussianDropout(0.1)(x),
    "AlphaDropout": lambda x: layers.AlphaDropout(0.1)(x),
    "Dropout": lambda x: layers.Dropout(0.1)(x),
    "DropPath": lambda x: DropPath(0.1)(x),
    "Softmax": lambda x: layers.Softmax()(x),
    "softmax": lambda x: layers.Activation("softmax")(x),
    "sigmoid": lambda x: layers.Activation("sigmoid")(x),
    "ReLU": lambda x: layers.ReLU()(x),
    "relu": ops.relu,
    "LeakyReLU": lambda x: layers.LeakyReLU()(x),
    "PReLU": lambda x: layers.PReLU()(x),
    "tanh": ops.tanh,
    "BatchNormalization": lambda x: layers.BatchNormalization()(x),
    "LayerNormalization": lambda x: layers.LayerNormalization()(x),
    "GroupNormalization": lambda x: layers.GroupNormalization(4)(x),
    "RMSNormalization": lambda x: layers.RMSNormalization()(x),
    "UnitNormalization": lambda x: layers.UnitNormalization()(x),
    "Normalization": lambda x: layers.Normalization(mean=1.0, variance=2.0)(x),
    "Rescaling": lambda x: layers.Rescaling(0.5)(x),
    "RandomFlip": lambda x: layers.RandomFlip("horizontal")(x),
    "Masking": lambda x: layers.Masking(1.0)(x) if len(x.shape) == 3 else ops.where(ops.isnan(x), 0.0, x),
    "max pooling": lambda x: pooling("Max", x),
    "average pooling": lambda x: pooling("Average", x),
    "attention": lambda x: layers.MultiHeadAttention(1, 4)(x, x),
    "1×1 convolution": lambda x: getattr(layers, f"Conv{len(x.shape) - 2}D")(x.shape[-1], 1)(x),
    "depthwise": lambda x: getattr(layers, f"DepthwiseConv{len(x.shape) - 2}D")(1)(x),
    "Dense": lambda x: layers.Dense(x.shape[-1])(x),
    "gate": lambda x: x * layers.Dense(x.shape[-1], "sigmoid")(x),
    "TimeDistributed": lambda x: layers.TimeDistributed(layers.Identity())(x),
    "Lambda": lambda x: layers.Lambda(lambda x: x, output_shape=x.shape[1:])(x),
    "custom layer": lambda x: Halves()(x),
    "custom layer named Identity": lambda x: Identity()(x),
    "subclass of Identity": lambda x: SecretlyHalves()(x),
    "nested 2x": lambda x: inner_model(x, lambda y: 2 * y),
    "nested sum of itself": lambda x: inner_model(x, lambda y: y + y),
    "Sequential": lambda x: keras.Sequential([layers.ReLU()])(x),
    "a model that does more": lambda x: inner_model(x, layers.Identity(), DoublesAfterwards),
}  # fmt: skip

HARMLESS = {
    "nothing": lambda x: x,
    "Identity": lambda x: layers.Identity()(x),
    "linear": lambda x: layers.Activation("linear")(x),
    "no dropout": lambda x: layers.Dropout(0.0)(x),
    "casts": lambda x: ops.cast(ops.cast(x, "float16"), "float32"),
    "a penalty": lambda x: layers.ActivityRegularization(l2=0.1)(x),
    "reshaped and back": lambda x: layers.Reshape(x.shape[1:])(layers.Flatten()(x)),
    "expanded and back": lambda x: ops.squeeze(ops.expand_dims(x, 1), 1),
    "transposed and back": lambda x: ops.swapaxes(ops.swapaxes(x, 1, 2), 1, 2),
    "a model of nothing": lambda x: inner_model(x, layers.Identity()),
}


def basic(x):
    for _ in range(2):
        x = layers.Conv2D(8, 3, padding="same")(layers.ReLU()(x))
    return x


def bottleneck(x):
    for filters, size in ((4, 1), (4, 3), (8, 1)):
        x = layers.Conv2D(filters, size, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
    return x


def attention(x):
    y = layers.LayerNormalization()(x)
    return layers.Dropout(0.1)(layers.MultiHeadAttention(2, 4)(y, y))


def network(branch, place, plants, shape=(8, 8, 8), nested=False):
    """A unit as it should be, and after it a unit for each of what is to be planted, on its shortcut or after it."""

    def unit(x, h=lambda x: x, f=lambda x: x):
        def graph(x):
            return f(layers.Add()([branch(x), h(x)]))

        return inner_model(x, lambda y: inner_model(y, graph)) if nested else graph(x)

    inputs = keras.Input(shape)
    x = unit(inputs)
    for plant in plants:
        x = unit(x, **{{"shortcut": "h", "after": "f"}[place]: plant})
    return keras.Model(inputs, unit(x))


SHARED = [layers.BatchNormalization(), layers.Conv2D(8, 3, padding="same")]


def shared(x):
    for layer in SHARED:
        x = layer(x)
    return x


GRAPHS = {
    "basic": {"branch": basic},
    "bottleneck": {"branch": bottleneck},
    "nested": {"branch": lambda x: layers.Conv2D(8, 3, padding="same")(layers.ReLU()(x)), "nested": True},
    "shared": {"branch": shared},
    "Transformer": {"branch": attention, "shape": (8, 8)},
}


SLOW = [pytest.param(graph, marks=pytest.mark.slow) for graph in ("basic", "bottleneck", "nested")]


@pytest.mark.parametrize("graph", ["shared", "Transformer", *SLOW])
@pytest.mark.parametrize("place", ["shortcut", "after"])
def test_only_what_is_known_to_leave_the_values_alone_passes(graph, place):
    """What is after an addition is on the path of the unit that follows."""
    model = network(**GRAPHS[graph], place=place, plants=[*FAULTS.values(), *HARMLESS.values()])
    units = check_identity_path(model).units
    wanted = [True] * len(FAULTS) + [False] * len(HARMLESS)
    around = 1 if place == "shortcut" else 2
    assert len(units) == len(wanted) + 2
    wrong = [
        (kind, unit.faults)
        for kind, unit, bad in zip([*FAULTS, *HARMLESS], units[around:], wanted, strict=False)
        if bool(unit.faults) != bad
    ]
    assert not wrong and not any(unit.faults for unit in units[:around])


def shrinking(shortcut, before=lambda x: x):
    """A unit, and one that halves the size and doubles the channels."""
    inputs = keras.Input((8, 8, 8))
    x = before(layers.Add()([inputs, basic(inputs)]))
    y = layers.Conv2D(16, 3, 2, "same")(layers.Conv2D(8, 3, padding="same")(layers.ReLU()(x)))
    return check_identity_path(keras.Model(inputs, layers.Add()([shortcut(x), y])))


@pytest.mark.parametrize(
    "shortcut",
    [
        lambda x: layers.Conv2D(16, 1, 2)(x),
        lambda x: layers.BatchNormalization()(layers.Conv2D(16, 1, 2)(x)),
        lambda x: layers.Conv2D(16, 1)(layers.AveragePooling2D(2)(x)),
        lambda x: ops.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (4, 4))),
        lambda x: layers.Concatenate()([layers.MaxPooling2D(1, 2)(x), ops.zeros_like(layers.MaxPooling2D(1, 2)(x))]),
    ],
)
def test_a_shortcut_that_changes_the_shape_may_have_what_does_that(shortcut):
    report = shrinking(shortcut)
    assert len(report.units) == 2 and report.is_clear, str(report)


KINDS = ["negative", "exp", "GaussianNoise", "Dropout", "ReLU", "flip", "custom layer", "max pooling"]


@pytest.mark.parametrize("kind", KINDS)
def test_and_nothing_else(kind):
    plant = FAULTS[kind]
    assert not shrinking(lambda x: plant(layers.Conv2D(16, 1, 2)(x))).is_clear
    if kind != "ReLU":  # which may be a pre-activation that both ways share
        assert not shrinking(layers.Conv2D(16, 1, 2), before=plant).is_clear


def test_at_an_open_size_a_stride_changes_the_shape():
    inputs = keras.Input((None, None, 8))
    for strides, is_clear in ((2, True), (1, False)):
        skip = layers.MaxPooling2D(2, strides, "same")(inputs)
        y = layers.Conv2D(8, 3, strides, "same")(layers.Conv2D(8, 3, padding="same")(inputs))
        assert check_identity_path(keras.Model(inputs, layers.Add()([skip, y]))).is_clear == is_clear


@pytest.mark.parametrize("size", [16, None])
def test_upsampling_changes_the_shape_at_any_size(size):
    x = inputs = keras.Input((size, size, 8))
    for _ in range(2):
        branch = layers.Conv2D(8, 3, padding="same")(layers.UpSampling2D()(x))
        x = layers.Add()([layers.UpSampling2D()(x), branch])
    assert check_identity_path(keras.Model(inputs, x)).is_clear


def test_a_difference_and_an_average_are_additions_too():
    inputs = keras.Input((8, 8, 8))
    for add, is_clear in (
        (lambda x, f: x - f, True),
        (lambda x, f: f - x, False),
        (lambda x, f: layers.Average()([x, f]), False),
        (lambda x, f: layers.Add()([f, x, basic(x)]), True),
        (lambda x, f: layers.Add()([f, layers.ReLU()(x), basic(x)]), False),
    ):
        report = check_identity_path(keras.Model(inputs, add(inputs, basic(inputs))))
        assert len(report.units) == 1 and report.is_clear == is_clear


@keras.saving.register_keras_serializable(package="tests")
class LeakyUnit(ResidualUnit):
    def call(self, x, training=None):
        return ops.relu(super().call(x))


@pytest.mark.parametrize("wrap", [lambda unit: unit, lambda unit: UnitStack(unit, 2)])
def test_a_subclass_of_this_packages_units_is_not_taken_at_its_word(wrap):
    inputs = keras.Input((8, 8, 8))
    report = check_identity_path(keras.Model(inputs, wrap(LeakyUnit(8))(inputs)))
    assert "not known to leave x unchanged" in report.units[0].faults[0]


def test_what_else_both_ways_share_is_not_taken_for_x():
    inputs, condition = keras.Input((8, 8)), keras.Input((4, 8))
    gate = layers.Reshape((8, 8))(layers.Dense(16)(condition))
    x = layers.Add()([inputs, layers.Dense(8)(inputs)])
    y = layers.Add()([layers.Multiply()([x, gate]), layers.Dense(8)(x) * gate])
    units = check_identity_path(keras.Model([inputs, condition], y)).units
    assert [unit.faults for unit in units] == [(), ("scaled shortcut: Multiply on it",)]


def test_folded_shortcuts_are_read_too():
    assert "the factor is 0.5" in str(check_identity_path(fold(cifar_resnet(8, shortcut="constant_scaling"))))


def test_equal_faults_are_one_line():
    lines = str(check_identity_path(cifar_resnet(14, "original"))).splitlines()
    assert lines[1:] == ["  all 6 units: after the addition: ReLU; f is not the identity"]
    two = str(check_identity_path(network(basic, "shortcut", [ops.exp, ops.exp]))).splitlines()
    assert (
        len(two) == 2 and two[1].count(",") == 1 and "Exp on the shortcut is not known to leave x unchanged" in two[1]
    )
    many = str(check_identity_path(network(basic, "shortcut", [ops.exp] * 5))).splitlines()
    assert len(many) == 2 and many[1].startswith("  5 units, add")


def test_a_model_with_a_call_of_its_own_is_refused():
    inputs = keras.Input((8, 8, 8))
    with pytest.raises(InputError, match="only functional Keras models"):
        check_identity_path(DoublesAfterwards(inputs, layers.Add()([inputs, basic(inputs)])))


# ---- custom shortcuts are measured ------------------------------------------------------------------------------


class Half(Shortcut):
    """It declares nothing."""

    def call(self, x, residual):
        return x / 2 + residual


class HalfShortcut(IdentityShortcut):
    """It inherits a declaration that is wrong."""

    def call(self, x, residual):
        return x / 2 + residual


class Clips(IdentityShortcut):
    def call(self, x, residual):
        return ops.clip(x, -6, 6) + residual


class Damped(Shortcut):
    """y = x + 0.1 F."""

    keeps_identity = True

    def call(self, x, residual):
        return x + 0.1 * residual


class Learned(Damped):
    """y = ax + F, where a begins at 1."""

    def build(self, x_shape, residual_shape):
        self.factor = self.add_weight(shape=(), initializer="ones", name="factor")
        super().build(x_shape, residual_shape)

    def call(self, x, residual):
        return ops.cast(self.factor, x.dtype) * x + residual


class Drops(Damped):
    """The identity at inference only. Its seed generator changes at each call."""

    def build(self, x_shape, residual_shape):
        self.dropout = layers.Dropout(0.5, seed=1, dtype=self.dtype_policy)
        super().build(x_shape, residual_shape)

    def call(self, x, residual):
        return self.dropout(x) + residual


class Normalizes(Damped):
    """Batch norm in training, whose moving statistics change at each call.

    At inference it returns x itself: on some processors, division by a deviation of 1 rounds.
    """

    def build(self, x_shape, residual_shape):
        self.norm = layers.BatchNormalization()
        self.norm.build(x_shape)
        super().build(x_shape, residual_shape)

    def call(self, x, residual, training=None):
        return (self.norm(x, training=True) if training else x) + residual


class Fails(Damped):
    def call(self, x, residual):
        if isinstance(x, keras.KerasTensor):
            return x + residual
        raise ArithmeticError


class Reduces(Damped):
    def call(self, x, residual):
        if isinstance(x, keras.KerasTensor):
            return x + residual
        return ops.mean(x, axis=-1)


CHANGES = "declares keeps_identity but changes x"


@pytest.mark.parametrize("wrap", [lambda unit: unit, lambda unit: UnitStack(unit, 2, rolled=True)])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Half, "Half is not known to leave x unchanged"),
        (HalfShortcut, f"HalfShortcut {CHANGES}, by up to 0.5 × max |x|"),
        (Clips, f"Clips {CHANGES}, by up to"),
        (Damped, None),
        (Learned, None),
        (Drops, f"Drops {CHANGES} in training, by up to 1 × max |x|"),
        (Normalizes, f"Normalizes {CHANGES} in training"),
    ],
)
def test_a_custom_shortcut_that_declares_the_identity_is_measured(kind, fault, wrap):
    inputs = keras.Input((None, None, 8))
    model = keras.Model(inputs, wrap(ResidualUnit(8, shortcut=kind()))(inputs))
    before = [array(variable) for layer in model.layers for variable in layer.variables]
    (unit,) = check_identity_path(model).units
    after = [array(variable) for layer in model.layers for variable in layer.variables]
    assert all(map(np.array_equal, before, after))
    assert unit.shortcut == ((kind.__name__,) if fault else ())
    assert len(unit.faults) == bool(fault) and (not fault or fault in unit.faults[0])


@pytest.mark.parametrize("kind", [Fails, Reduces])
def test_a_custom_shortcut_that_cannot_be_measured_is_a_fault(kind):
    inputs = keras.Input((None, 5, 8))
    (unit,) = check_identity_path(keras.Model(inputs, ResidualUnit(8, shortcut=kind())(inputs))).units
    expected = f"the shortcut {kind.__name__} declares keeps_identity but fails on x and F of shape (2, 8, 5, 8)"
    assert unit.faults == (expected,)


@pytest.mark.parametrize("rolled", [False, True])
def test_the_trained_weights_of_every_unit_are_measured(rolled):
    inputs = keras.Input((8, 8, 8))
    stack = UnitStack(ResidualUnit(8, shortcut=Learned()), 3, rolled=rolled)
    model = keras.Model(inputs, stack(inputs))
    assert check_identity_path(model).is_clear
    factors = [variable for variable in stack.variables if variable.path.endswith("factor")]
    factors[-1].assign([1.0, 1.0, 0.75] if rolled else 0.75)
    report = str(check_identity_path(model))
    assert f"  {stack.name} (3 units): the shortcut Learned {CHANGES}, by up to 0.2 × max |x|" in report


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", [Damped, HalfShortcut])
def test_custom_shortcuts_of_other_dtypes_and_in_other_places_are_measured(kind, dtype):
    inputs = keras.Input((8, 16))
    block = PreNormEncoderBlock(2, shortcut=kind(), dtype=dtype)
    assert check_identity_path(keras.Model(inputs, block(inputs))).is_clear == (kind is Damped)
    sums = kind(dtype=dtype)(inputs, layers.Dense(16, dtype=dtype)(inputs))
    assert check_identity_path(keras.Model(inputs, sums)).is_clear == (kind is Damped)


def test_a_projection_on_its_own_may_change_the_shape():
    inputs = keras.Input((8, 8, 8))
    for strides in (1, 2):
        branch = layers.Conv2D(8, 3, strides, padding="same")(inputs)
        report = check_identity_path(keras.Model(inputs, ConvShortcut(strides=strides)(inputs, branch)))
        assert report.is_clear == (strides == 2)


# ---- sums of several terms, and layers that cannot be read -------------------------------------------------------


def faults_of(function, shape=(8, 8, 8)):
    """Return the faults of what follows a unit, in the order of the graph."""
    inputs = keras.Input(shape)
    x = layers.Add()([inputs, basic(inputs)])
    units = check_identity_path(keras.Model(inputs, function(x))).units
    assert not units[0].faults
    return [unit.faults for unit in units[1:]]


def grouped(x):
    """An addition of the two halves of the channels in turn, as in a reversible network."""
    a, b = ops.split(x, 2, axis=-1)
    return a + layers.Conv2D(4, 3, padding="same")(layers.ReLU()(b))


@pytest.mark.parametrize(
    "add",
    [
        lambda x: x + basic(x) + basic(x),
        lambda x: x + (basic(x) + basic(x)),
        lambda x: basic(x) + x - basic(x),
        lambda x: layers.Average()([x, x]) + basic(x),
        grouped,
    ],
)
def test_several_residuals_of_one_x_are_one_unit(add):
    assert faults_of(add) == [()]


@pytest.mark.parametrize(
    "add, factor",
    [
        (lambda x: layers.Add()([x, x, basic(x)]), "2"),
        (lambda x: x + basic(x) + x, "2"),
        (lambda x: basic(x) + (x + x), "2"),
        (lambda x: basic(x) - x, "-1"),
        (lambda x: x - (x + basic(x)), "0"),
        (lambda x: layers.Average()([x, basic(x)]), "0.5"),
        (lambda x: layers.Average()([x + basic(x), basic(x)]), "0.5"),
    ],
)
def test_x_is_added_once(add, factor):
    ((fault,),) = faults_of(add)
    assert fault.startswith("scaled shortcut: ") and fault.endswith(f" adds {factor} times x")


def test_a_projection_with_more_weights_than_the_branch_is_the_shortcut():
    inputs = keras.Input((8, 8, 64))
    y = layers.Conv2D(8, 3, 2, "same")(layers.ReLU()(layers.Conv2D(4, 1)(layers.ReLU()(inputs))))
    skip = layers.Conv2D(8, 1, 2)(inputs)
    assert check_identity_path(keras.Model(inputs, layers.Add()([skip, y]))).is_clear


@pytest.mark.parametrize(
    "shortcut",
    [
        lambda x: layers.Conv2D(16, 1, 2)(layers.Permute((2, 1, 3))(x)),
        lambda x: layers.Permute((2, 1, 3))(layers.Conv2D(16, 1, 2)(x)),
        lambda x: layers.Conv2D(16, 1, 2)(shuffled_channels(x)),
        lambda x: layers.Conv2D(16, 1)(x[:, ::2, ::2, ::-1]),
        lambda x: ops.pad(x[:, ::-2, ::-2], ((0, 0), (0, 0), (0, 0), (4, 4))),
        lambda x: ops.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (4, 4)), constant_values=5.0),
        lambda x: ops.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (4, 4)), mode="reflect"),
    ],
)
def test_a_shortcut_that_changes_the_shape_keeps_the_order_and_adds_zeros_alone(shortcut):
    assert not shrinking(shortcut).is_clear


class Hidden(layers.Layer):
    def build(self, input_shape):
        self.dense = layers.Dense(input_shape[-1])
        self.dense.build(input_shape)

    def call(self, x):
        return ops.relu(x + self.dense(x))


class SumOfHalf(layers.Layer):
    def call(self, x, y):
        return x / 2 + y


def test_custom_layers_that_may_have_units_inside_are_named():
    x = inputs = keras.Input((8, 8, 8))
    for k in range(2):
        x = Hidden(name=f"hidden{k}")(x)
    with pytest.raises(InputError, match=r"but hidden0 \(Hidden\), hidden1 \(Hidden\) may contain units"):
        check_identity_path(keras.Model(inputs, x))
    x = layers.Add()([x, basic(x)])
    x = SumOfHalf(name="half")(x, basic(x))
    report = check_identity_path(keras.Model(inputs, x))
    assert report.is_clear and len(report.units) == 1
    assert str(report).endswith("not checked: hidden0 (Hidden), hidden1 (Hidden), half (SumOfHalf)")
    x = UnitStack(Hidden(), 3, name="stack")(inputs)
    assert check_identity_path(keras.Model(inputs, layers.Add()([x, basic(x)]))).unread == ("stack (UnitStack)",)
    in_a_branch = layers.Add()([inputs, layers.Conv2D(8, 1)(Hidden()(inputs))])
    assert check_identity_path(keras.Model(inputs, in_a_branch)).unread == ()


def test_models_that_other_layers_run_are_named_if_they_may_have_units_inside():
    a = keras.Input((8,))
    unit = keras.Model(a, layers.ReLU()(layers.Add()([a, layers.Dense(8)(a)])))
    plain = keras.Model(a, layers.Dense(8)(a))
    for make, shape, name in (
        (lambda unit: UnitStack(unit, 3, rolled=True, name="stack"), (8,), "stack (UnitStack)"),
        (lambda unit: UnitStack(unit, 3, rolled=False, name="stack"), (8,), "stack (UnitStack)"),
        (lambda unit: layers.TimeDistributed(unit, name="each"), (5, 8), "each (TimeDistributed)"),
    ):
        inputs = keras.Input(shape)
        clear = layers.Add()([inputs, layers.Dense(8)(layers.ReLU()(inputs))])
        assert check_identity_path(keras.Model(inputs, make(unit)(clear))).unread == (name,)
        assert check_identity_path(keras.Model(inputs, make(plain)(clear))).unread == ()
        with pytest.raises(InputError, match="may contain units, which were not checked; pass the model inside, or"):
            check_identity_path(keras.Model(inputs, make(unit)(inputs)))


# ---- networks of others -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_inception_resnet_of_keras_applications():
    """Its units add with a layer of their own, and most activate the sum."""
    report = check_identity_path(keras.applications.InceptionResNetV2(weights=None, include_top=False))
    assert len(report.units) == 40
    assert {fault for unit in report.units for fault in unit.faults} == {
        "after the previous addition: relu; f is not the identity"
    }


def hub_resnet(hub, use_pre_activation, **options):
    return hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 16],
        stackwise_num_blocks=[2, 2],
        stackwise_num_strides=[1, 2],
        use_pre_activation=use_pre_activation,
        **options,
    )


@pytest.mark.parametrize("shape", [(32, 32, 3), (None, None, 3)])
@pytest.mark.parametrize("block_type", ["basic_block", "bottleneck_block"])
def test_the_resnets_of_keras_hub(block_type, shape):
    hub = pytest.importorskip("keras_hub")
    v1, v2 = (
        check_identity_path(hub_resnet(hub, pre, block_type=block_type, image_shape=shape)) for pre in (False, True)
    )
    assert len(v2.units) == 4 and v2.is_clear, str(v2)
    activated = ("after the previous addition: relu; f is not the identity",)
    assert [unit.faults for unit in v1.units] == [(), activated, (), activated]


def test_other_networks_of_keras_hub():
    hub = pytest.importorskip("keras_hub").models
    conv = {"image_shape": (32, 32, 3)}
    csp = {
        "stem_filters": 8,
        "stem_kernel_size": 3,
        "stem_strides": 1,
        "stackwise_depth": [2, 2],
        "stackwise_strides": [1, 2],
        "stackwise_num_filters": [8, 16],
        "bottle_ratio": [0.5, 1],
        "expand_ratio": [2, 2],
        "output_strides": 8,
    }
    text = {"vocabulary_size": 20, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    for network, count in (
        (hub.CSPNetBackbone(**csp, block_type="dark_block", stage_type="csp", **conv), 4),
        (hub.XceptionBackbone([[8, 8], [8, 8], [8, 8], [8, 8]], [False] * 4, **conv), 2),
    ):
        report = check_identity_path(network)
        assert len(report.units) == count and report.is_clear and not report.unread, str(report)
    report = check_identity_path(hub.CSPNetBackbone(**csp, block_type="bottleneck_block", stage_type="dark", **conv))
    assert "LeakyReLU; f is not the identity" in str(report)
    report = check_identity_path(hub.GPT2Backbone(**text, max_sequence_length=12))
    assert report.is_clear and "not checked: transformer_layer_0 (TransformerDecoder)" in str(report)
    vit = hub.ViTBackbone((16, 16, 3), (4, 4), num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16)
    with pytest.raises(InputError, match="which were not checked"):
        check_identity_path(vit)
    dense = hub.DenseNetBackbone([2, 2], growth_rate=4, **conv)
    with pytest.raises(InputError, match="has no residual units: no addition in its graph joins layers with weights"):
        check_identity_path(dense)
