"""fold: the same function in inference, with the batch norms after convolutions gone."""

import itertools

import keras
import numpy as np
import pytest
from harness import array, disturb

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, SHORTCUTS, BatchNorm, DropPath, PreActivation, ResidualUnit, UnitStack
from keras_preact.models import cifar_resnet, fold, freeze, imagenet_resnet, multiply_adds
from keras_preact.models.rewiring import graphs

X = np.random.default_rng(6).normal(size=(4, 32, 32, 3)).astype("float32")


def norms(model):
    """Return the names of the batch norms of a model and of the models in it."""
    return [
        layer.name
        for graph in graphs(model)
        for layer in graph.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def assert_same(model, folded, x=X, tolerance=1e-5, **options):
    expected, found = model(x, **options), folded(x, **options)
    keras.tree.assert_same_structure(found, expected)
    for mine, its in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        assert mine.dtype == its.dtype
        scale = np.abs(array(its)).max()
        np.testing.assert_allclose(array(mine), array(its), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement(placement):
    model = cifar_resnet(14, placement)
    disturb(model)
    assert_same(model, fold(model))


def test_convolutions_with_adapters_stay_as_they_are():
    model = cifar_resnet(8)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Conv2D):
            layer.enable_lora(2)
    disturb(model)
    assert_same(model, fold(model))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("shape_change", ["projection", "option_a"])
def test_every_shortcut(shortcut, shape_change):
    model = cifar_resnet(8, "original", shortcut, shape_change=shape_change, drop_path=0.1)
    disturb(model)
    assert_same(model, fold(model))


def test_what_is_left():
    assert norms(fold(cifar_resnet(8, "original"))) == []
    after_additions = ["stage2_unit01_norm1", "stage3_unit01_norm1", "head_norm"]
    for rolled in (False, True):  # the first unit's follows the stem's convolution
        assert norms(fold(cifar_resnet(8, rolled=rolled))) == after_additions
    assert norms(fold(imagenet_resnet(18, "original", input_shape=(64, 64, 3)))) == []


def test_units_leave_no_drop_path_and_convolutions_that_are_fused_with_the_addition():
    layers = fold(cifar_resnet(8, drop_path=0.1)).layers
    assert not any(isinstance(layer, DropPath) for layer in layers)
    assert all(layer.use_bias for layer in layers if layer.name.endswith("conv2"))


def test_rolled_networks_and_bottlenecks():
    model = cifar_resnet(29, bottleneck=True, rolled=True)
    disturb(model)
    folded = fold(model)
    assert_same(model, folded)
    assert multiply_adds(folded) == multiply_adds(model)


def test_stacks_of_other_layers_stay_in_the_network():
    inputs = keras.Input((8, 8, 3))
    convolution = keras.layers.Conv2D(3, 3, padding="same")
    model = keras.Model(inputs, UnitStack(convolution, 3, rolled=True, name="conv_stack")(inputs))
    assert_same(model, fold(model), X[:, :8, :8])


def test_frozen_units_stay_frozen():
    model = cifar_resnet(20, "original", rolled=True)
    freeze(model, before="logits")
    assert [v.path for v in fold(model).trainable_variables] == ["logits/kernel", "logits/bias"]


@pytest.mark.thorough
def test_imagenet_networks_with_groups():
    model = imagenet_resnet(50, groups=4, width_per_group=16, input_shape=(64, 64, 3), classes=7)
    x = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype("float32")
    assert_same(model, fold(model), x)


def test_group_normalization_stays():
    model = cifar_resnet(8, normalization="group")
    disturb(model)
    assert_same(model, fold(model))


def test_saved_and_loaded(tmp_path):
    model = cifar_resnet(8)
    disturb(model)
    folded = fold(model)
    folded.save(tmp_path / "folded.keras")
    loaded = keras.models.load_model(tmp_path / "folded.keras", safe_mode=True)
    np.testing.assert_array_equal(array(loaded(X)), array(folded(X)))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_exported(tmp_path):
    import tensorflow as tf

    model = cifar_resnet(8)
    disturb(model)
    fold(model).export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve(X)
    np.testing.assert_allclose(array(served), array(model(X)), rtol=1e-4, atol=1e-4)


def test_the_model_itself_is_not_changed():
    model = cifar_resnet(8)
    model.compile("sgd", "mse")
    before = [array(v) for v in model.weights]
    folded = fold(model)
    assert not folded.compiled
    for mine, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(mine), old)


def test_a_convolution_with_another_user_is_left_alone():
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, name="shared")(inputs)
    outputs = keras.layers.Add()([x, keras.layers.BatchNormalization(name="norm")(x)])
    model = keras.Model(inputs, outputs)
    disturb(model)
    folded = fold(model)
    assert norms(folded) == ["norm"]
    assert_same(model, folded, X[:, :8, :8])


# ---- any graph ----------------------------------------------------------------------------------------------------


class Graphs:
    """Random networks of images of one shape, so that any layer can be called on any tensor.

    Layers are shared, frozen, and called with flags; models are nested, and called twice; there are several outputs.
    """

    shape = (5, 5, 4)

    def __init__(self, seed, policies=("float32",)):
        self.rng = np.random.default_rng(seed)
        self.policies, self.main = policies, policies[self.rng.integers(len(policies))]
        self.trains = self.happens(0.2)
        """Whether some calls say `training=True`. What draws at random then stays out: its outputs differ each time."""
        self.numbers = itertools.count()

    def choose(self, *options):
        return options[self.rng.integers(len(options))]

    def happens(self, probability):
        return self.rng.uniform() < probability

    def dtype(self):
        return self.main if self.happens(0.8) else self.choose(*self.policies)

    def flag(self, probability):
        return {"training": self.trains and self.happens(0.5)} if self.happens(probability) else {}

    def convolution(self):
        options = {
            "use_bias": self.happens(0.5),
            "activation": "relu" if self.happens(0.1) else None,
            "trainable": self.happens(0.8),
            "dtype": self.dtype(),
        }
        kind = self.choose("conv", "conv", "grouped", "depthwise", "transpose", "separable", "dense")
        if kind == "dense":
            return keras.layers.Dense(4, **options)
        if kind == "depthwise":
            return keras.layers.DepthwiseConv2D(3, padding="same", **options)
        if kind == "grouped":
            return keras.layers.Conv2D(4, 3, padding="same", groups=2, **options)
        layers = {
            "conv": keras.layers.Conv2D,
            "transpose": keras.layers.Conv2DTranspose,
            "separable": keras.layers.SeparableConv2D,
        }
        return layers[kind](4, 3, padding="same", **options)

    def norm(self):
        return self.choose(keras.layers.BatchNormalization, BatchNorm, PreActivation)(
            axis=self.choose(-1, -1, -1, 3, 1),
            center=self.happens(0.7),
            scale=self.happens(0.7),
            trainable=self.happens(0.8),
            dtype=self.dtype(),
        )

    def unit(self):
        unit = ResidualUnit(
            4,
            placement=self.choose(*PLACEMENTS),
            shortcut=self.choose(*(name for name in SHORTCUTS if name != "dropout" or not self.trains)),
            drop_path=0.0 if self.trains else 0.2,
            dtype=self.dtype(),
            name=f"unit{next(self.numbers)}",
        )
        unit.trainable = self.happens(0.8)
        return UnitStack(unit, 2, rolled=self.happens(0.5)) if self.happens(0.2) else unit

    def add_layers(self, tensors, layers):
        """Call a layer, new or an old one again, on a tensor and put its output among the tensors."""
        x = tensors[self.rng.integers(max(len(tensors) - 3, 0), len(tensors))]
        kind = self.choose("pair", "pair", "pair", "conv", "norm", "unit", "again", "add", "dropout")
        if kind == "add":
            new, x = [keras.layers.ReLU()], keras.ops.add(x, self.choose(*tensors))
        else:
            new = {
                "pair": lambda: [self.convolution(), self.norm()],
                "conv": lambda: [self.convolution()],
                "norm": lambda: [self.norm()],
                "unit": lambda: [self.unit()],
                "again": lambda: [self.choose(*layers)] if layers else [],
                "dropout": lambda: [keras.layers.Dropout(0.0 if self.trains else 0.3)],
            }[kind]()
            layers += new
        for layer in new:
            takes_flag = isinstance(layer, keras.layers.BatchNormalization | keras.layers.Dropout | ResidualUnit)
            x = layer(x, **self.flag(0.2 if takes_flag else 0))
            if self.happens(0.1):
                tensors.append(x)
        tensors.append(x)

    def outputs(self, tensors):
        last, *others = (tensors[-1], self.choose(*tensors), self.choose(*tensors))
        return self.choose(
            last, [last], [last, *others], {"b": last, "a": others[0]}, {"b": [last, others[0]], "a": {"c": others[1]}}
        )

    def model(self, depth=1):
        inputs = keras.Input(self.shape)
        tensors, layers = [inputs], []
        for _ in range(self.rng.integers(2, 7)):
            self.add_layers(tensors, layers)
            if depth and self.happens(0.3):
                inside = self.model(depth - 1) if self.happens(0.7) else self.row()
                for _ in range(1 + self.happens(0.3)):
                    tensors += keras.tree.flatten(inside(self.choose(*tensors), **self.flag(0.3)))
        return keras.Model(inputs, self.outputs(tensors), name=f"model{next(self.numbers)}")

    def row(self):
        return keras.Sequential(
            [keras.Input(self.shape), self.convolution(), self.norm()], name=f"row{next(self.numbers)}"
        )

    def images(self):
        return self.rng.normal(size=(2, *self.shape)).astype("float32")


def trained(model, seed=0):
    """Give a model weights and statistics as if it had been trained."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        if "float" in keras.backend.standardize_dtype(variable.dtype):
            low, high = (0.3, 2.0) if variable.path.endswith(("gamma", "variance")) else (-0.5, 0.5)
            variable.assign(rng.uniform(low, high, variable.shape))
    return model


def count_folded(seeds, policies, tolerance):
    """Fold random networks; return how many batch norms are gone, and how many are left."""
    before = after = 0
    for seed in seeds:
        made = Graphs(seed, policies)
        model = trained(made.model())
        folded, images = fold(model), made.images()
        for options in ({}, {"training": False}):
            assert_same(model, folded, images, tolerance, **options)
        before, after = before + count_norms(model), after + count_norms(folded)
    return before - after, after


def count_norms(model):
    return sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model._flatten_layers())


def test_any_graph():
    folded, left = count_folded(range(12), ["float32"], 1e-5)
    assert folded > 10
    assert left > 10


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_any_graph_in_half_precision(half):
    """Four roundings, of the outputs' largest value: those of a convolution and of a batch norm, in both networks."""
    epsilon = {"float16": 2**-10, "bfloat16": 2**-7}[half]
    folded, _ = count_folded(range(5), [half, f"mixed_{half}", "float32"], 4 * epsilon)
    assert folded > 0


@pytest.mark.slow
def test_any_graph_of_hundreds():
    count_folded(range(400), ["float32"], 1e-5)
    count_folded(range(100), ["float16", "mixed_float16", "float32"], 4 * 2**-10)
    count_folded(range(100), ["bfloat16", "mixed_bfloat16", "float64"], 4 * 2**-7)


KINDS = {
    "Conv1D": ((9, 4), {"kernel_size": 3}),
    "Conv2D": ((6, 6, 4), {"kernel_size": 3, "groups": 2}),
    "Conv3D": ((4, 4, 4, 4), {"kernel_size": 2}),
    "Conv1DTranspose": ((9, 4), {"kernel_size": 3}),
    "Conv2DTranspose": ((6, 6, 4), {"kernel_size": 3, "strides": 2}),
    "Conv3DTranspose": ((4, 4, 4, 4), {"kernel_size": 2}),
    "DepthwiseConv1D": ((9, 4), {"kernel_size": 3, "depth_multiplier": 2}),
    "DepthwiseConv2D": ((6, 6, 4), {"kernel_size": 3, "depth_multiplier": 3}),
    "Dense": ((5, 4), {"units": 6}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use_bias", [True, False])
def test_every_kind_of_convolution(kind, use_bias):
    shape, options = KINDS[kind]
    if "Depthwise" not in kind and kind != "Dense":
        options = options | {"filters": 6}
    inputs = keras.Input(shape)
    x = getattr(keras.layers, kind)(use_bias=use_bias, **options)(inputs)
    model = trained(keras.Model(inputs, keras.layers.BatchNormalization()(x)))
    folded = fold(model)
    assert norms(folded) == []
    assert_same(model, folded, np.random.default_rng(0).normal(size=(2, *shape)).astype("float32"))


def test_channels_first_convolutions_fold_with_norms_of_the_first_axis():
    inputs = keras.Input((4, 6, 6))
    x = keras.layers.Conv2D(6, 1, data_format="channels_first")(inputs)
    model = trained(keras.Model(inputs, keras.layers.BatchNormalization(axis=1)(x)))
    assert norms(fold(model)) == []
    if keras.backend.backend() != "tensorflow":  # whose convolutions on a CPU take channels last alone
        assert_same(model, fold(model), np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype("float32"))


def small(*layers, outputs=None):
    """Return a network of layers that follow each other on images of 8 pixels, three channels."""
    x = inputs = keras.Input((8, 8, 3))
    for layer in layers:
        x = layer(x)
    return trained(keras.Model(inputs, outputs(x) if outputs else x))


def assert_folded(model, left):
    folded = fold(model)
    assert len(norms(folded)) == left
    assert_same(model, folded, X[:, :8, :8])
    return folded


def test_a_norm_of_two_convolutions_stays():
    norm = keras.layers.BatchNormalization()
    inputs = keras.Input((8, 8, 3))
    branches = [norm(keras.layers.Conv2D(4, 3)(inputs)) for _ in range(2)]
    assert_folded(trained(keras.Model(inputs, keras.layers.Add()(branches))), left=1)


def test_a_norm_of_rows_stays():
    assert_folded(small(keras.layers.Conv2D(6, 3), keras.layers.BatchNormalization(axis=1)), left=1)


def test_a_convolution_that_computes_in_another_way_stays():
    class Squared(keras.layers.Conv2D):
        def call(self, x):
            return super().call(x) ** 2

    assert_folded(small(Squared(4, 3), keras.layers.BatchNormalization()), left=1)


def test_a_unit_that_computes_in_another_way_stays():
    class Twice(ResidualUnit):
        def residual(self, activated, mask=None):
            return 2 * super().residual(activated, mask)

    folded = assert_folded(small(Twice(3, name="twice")), left=0)
    assert isinstance(folded.get_layer("twice"), Twice)


def test_units_and_layers_that_are_used_twice():
    unit = ResidualUnit(3)
    folded = assert_folded(small(unit, keras.layers.ReLU(), unit), left=1)
    assert len([layer for layer in folded.layers if isinstance(layer, keras.layers.Conv2D)]) == 2
    convolution = keras.layers.Conv2D(3, 3, padding="same")
    assert_folded(small(convolution, keras.layers.BatchNormalization(), convolution), left=1)


@pytest.mark.parametrize("compiled", [True, False])
def test_the_structure_of_outputs_stays(compiled):
    model = small(
        keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), outputs=lambda x: {"b": x, "a": [x + 1, x * 2]}
    )
    if compiled:
        model.compile("sgd")
    assert_folded(model, left=0)


def test_models_inside_are_folded_too():
    row = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(3, 1), keras.layers.BatchNormalization()])
    backbone = small(keras.layers.Conv2D(3, 1), keras.layers.BatchNormalization(), row)
    backbone.trainable = False
    folded = assert_folded(small(backbone, keras.layers.ReLU(), backbone), left=0)
    assert folded.trainable_variables == []


def test_sequential_models_are_folded():
    row = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(3, 1), keras.layers.BatchNormalization()])
    assert_folded(trained(keras.Sequential([row, keras.layers.Conv2D(3, 3), keras.layers.BatchNormalization()])), 0)


def test_a_model_with_a_call_of_its_own_stays():
    """Which need not be that of its graph, nor use the layers that fold would leave."""

    class Halves(keras.Model):
        def __init__(self, **kwargs):
            inputs = keras.Input((8, 8, 3))
            norm, convolution = keras.layers.BatchNormalization(name="norm"), keras.layers.Conv2D(3, 1)
            super().__init__(inputs, norm(convolution(inputs)), **kwargs)
            self.norm = norm

        def call(self, x, training=None):
            return self.norm(x, training=training) / 2

        def get_config(self):
            return {"name": self.name}

    assert_folded(small(Halves(), keras.layers.Conv2D(3, 3), keras.layers.BatchNormalization()), left=0)


def test_float64_is_kept():
    model = small(keras.layers.Conv2D(4, 3, dtype="float64"), keras.layers.BatchNormalization(dtype="float64"))
    if keras.backend.backend() == "tensorflow":  # elsewhere Keras computes the norms of float64 in float32
        outputs = [keras.ops.convert_to_numpy(network(X[:, :8, :8])) for network in (model, fold(model))]
        np.testing.assert_allclose(*outputs, rtol=1e-12, atol=1e-12)


def test_names_that_are_taken():
    assert_folded(small(keras.layers.Conv2D(3, 1, name="u_conv1"), ResidualUnit(3, name="u")), left=1)


def test_errors():
    with pytest.raises(InputError, match="has no input shape yet; begin it with"):
        fold(keras.Sequential([keras.layers.Dense(2)]))
