"""The linter passes what the paper proposes and names what it warns of."""

import keras
import pytest
from keras import layers

from keras_preact import InputError
from keras_preact.analysis import check_identity_path
from keras_preact.layers import PreActivation, ResidualUnit
from keras_preact.models import cifar_resnet, fold, imagenet_resnet


def test_the_units_of_a_stack_are_counted():
    written_out, rolled = (str(check_identity_path(cifar_resnet(20, "original", rolled=r))) for r in (False, True))
    assert written_out.splitlines()[0] == rolled.splitlines()[0]
    assert "9 of 9 residual units" in rolled and "stage2_stack (2 units): after the addition: ReLU" in rolled
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
        ({"shortcut": "conv"}, "a shortcut that changes no shape"),
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
        ("activated", "activated shortcut: BatchNormalization, ReLU stand between the addition before and the split"),
        ("normalized", "activated shortcut: BatchNormalization on it"),
        ("conv", "Conv2D on a shortcut that changes no shape"),
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
