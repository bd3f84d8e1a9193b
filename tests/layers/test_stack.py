"""UnitStack: rolled and unrolled stacks have equal outputs, states, gradients and training steps."""

import itertools
import math

import keras
import numpy as np
import pytest
from harness import all_weights, array, assert_equal_stacks, check_layer, train_stack

from keras_preact import InputError
from keras_preact.layers import PLACEMENTS, SHORTCUTS, EncoderBlock, ResidualUnit, UnitStack, freeze_batch_norms
from keras_preact.layers.composite import batch_norms
from keras_preact.layers.stack import default_rolled, units_in
from keras_preact.layers.variables import named_variables
from keras_preact.models import unroll

N = 5


def pair(unit, images, **options):
    """Return a rolled and an unrolled stack with equal random weights and states."""
    rolled, unrolled = (UnitStack(unit, N, rolled=value, **options) for value in (True, False))
    for stack in (rolled, unrolled):
        stack.build(images.shape)
    disturb(rolled)
    for k in range(N):
        unrolled.set_unit_weights(k, rolled.unit_weights(k))
    return rolled, unrolled


@keras.saving.register_keras_serializable(package="tests")
class OwnBlock(keras.layers.Layer):
    """x + dropout(W x): its layers are created in the constructor and built by the first call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(16, name="dense")
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=None):
        return x + self.dropout(self.dense(x), training=training)


@keras.saving.register_keras_serializable(package="tests")
class OwnBlockWithBuild(OwnBlock):
    def build(self, input_shape):
        self.dense.build(input_shape)
        super().build(input_shape)


@keras.saving.register_keras_serializable(package="tests")
class MaskedBlock(keras.layers.Layer):
    """x + BN(W x). Both layers look for the mask on their input; the batch statistics are those of unmasked values."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dense = keras.layers.Dense(4, name="dense")
        self.norm = keras.layers.BatchNormalization(name="norm")

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build(input_shape)

    def call(self, x, mask=None, training=None):
        return x + self.norm(self.dense(x), training=training)


@keras.saving.register_keras_serializable(package="tests")
class OwnDropout(keras.layers.Layer):
    def build(self, input_shape):
        self.dropout = keras.layers.Dropout(0.5, seed=7)
        super().build(input_shape)

    def call(self, x, training=None):
        return self.dropout(x, training=training)


@keras.saving.register_keras_serializable(package="tests")
class OwnNorm(keras.layers.BatchNormalization):
    pass


def disturb(stack):
    rng = np.random.default_rng(3)
    for variable in stack.weights:
        if "float" in variable.dtype:
            value = np.asarray(keras.ops.convert_to_numpy(variable), "float64")
            variable.assign(value + rng.uniform(0.01, 0.1, value.shape))


class TestRolledEqualsUnrolled:
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_every_placement(self, placement, images):
        assert_equal_stacks(*pair(ResidualUnit(16, placement=placement), images), images, 1e-5)

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("shortcut", SHORTCUTS)
    def test_every_shortcut(self, shortcut, images):
        assert_equal_stacks(*pair(ResidualUnit(16, shortcut=shortcut), images), images, 1e-4)

    @pytest.mark.parametrize("remat", ["none", "unit", "segment"])
    @pytest.mark.parametrize("shortcut", ["identity", "dropout(rate=0.3)"])
    @pytest.mark.sampled(1)
    def test_rematerialized_also_and_equal_to_stored(self, remat, shortcut, images):
        unit = ResidualUnit(4, block="bottleneck", shortcut=shortcut, drop_path=0.2)
        plain, _ = pair(unit, images)
        keras.utils.set_random_seed(0)
        rolled, unrolled = pair(unit, images, remat=remat)
        for k in range(N):
            for stack in (rolled, unrolled):
                stack.set_unit_weights(k, plain.unit_weights(k))
        train_stack(plain, images, steps=2)
        train_stack(rolled, images, steps=2)
        train_stack(unrolled, images, steps=2)
        for first, second, third in zip(*map(all_weights, (plain, rolled, unrolled)), strict=True):
            for name in first:
                np.testing.assert_allclose(second[name], first[name], rtol=1e-4, atol=1e-4, err_msg=name)
                np.testing.assert_allclose(third[name], first[name], rtol=1e-4, atol=1e-4, err_msg=name)

    @pytest.mark.sampled(1)
    @pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX needs a setting at startup for float64")
    @pytest.mark.parametrize("remat", ["none", "segment"])
    def test_in_float64_to_a_billionth(self, remat, images):
        keras.config.set_floatx("float64")
        try:
            unit = ResidualUnit(16, placement="full_preactivation", dtype="float64")
            stacks = pair(unit, images.astype("float64"), remat=remat)
            assert_equal_stacks(*stacks, images.astype("float64"), 1e-9)
        finally:
            keras.config.set_floatx("float32")

    @pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
    def test_mixed_precision(self, policy, images):
        rolled, unrolled = pair(ResidualUnit(16, dtype=policy), images)
        # Bitwise equal on TensorFlow; XLA rounds to half precision at other places in a loop.
        tolerance = 0 if keras.backend.backend() == "tensorflow" else 0.05
        expected = array(unrolled(images))
        np.testing.assert_allclose(array(rolled(images)), expected, atol=tolerance * np.abs(expected).max())
        assert {v.dtype for v in rolled.trainable_variables} == {"float32"}

    def test_compiled_by_xla(self, images):
        rolled, unrolled = pair(ResidualUnit(16), images)
        inputs = keras.Input(images.shape[1:])
        model = keras.Model(inputs, rolled(inputs))
        model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=True)
        target = np.random.default_rng(4).normal(size=images.shape)
        np.testing.assert_allclose(model.train_on_batch(images, target), train_stack(unrolled, images)[0], rtol=1e-4)
        for first, second in zip(all_weights(rolled), all_weights(unrolled), strict=True):
            for name in first:
                np.testing.assert_allclose(first[name], second[name], rtol=1e-3, atol=1e-4, err_msg=name)

    def test_channels_first(self, images):
        images = images.transpose(0, 3, 1, 2)
        rolled, unrolled = pair(ResidualUnit(16, data_format="channels_first"), images)
        np.testing.assert_allclose(array(rolled(images)), array(unrolled(images)), rtol=1e-5, atol=1e-5)


class TestState:
    @pytest.mark.thorough
    def test_moving_statistics_follow_the_closed_form_once_a_step(self, images):
        """m ← ½ m + ½ batch, once per step, rematerialized or not, in the first unit, whose input is known."""
        for rolled, remat in itertools.product((True, False), ("none", "unit", "segment")):
            stack = UnitStack(ResidualUnit(16, momentum=0.5), N, rolled=rolled, remat=remat)
            train_stack(stack, images, steps=3)
            mean = images.mean((0, 1, 2))
            expected = mean * (1 - 0.5**3)  # from 0, three steps toward the batch's mean
            np.testing.assert_allclose(array(stack.unit_weights(0)["norm1/moving_mean"]), expected, atol=1e-6)

    def test_moving_statistics_are_averaged_over_devices(self, images):
        stack = UnitStack(ResidualUnit(16), 2, rolled=True)
        stack.build(images.shape)
        moving = [variable.aggregation for variable in stack.weights if "moving" in variable.path]
        assert moving and set(moving) == {"mean"}

    def test_inference_changes_nothing(self, images):
        stack = UnitStack(ResidualUnit(16, drop_path=0.5), N, rolled=True)
        stack(images)
        before = all_weights(stack)
        stack(images, training=False)
        for old, new in zip(before, all_weights(stack), strict=True):
            for name in old:
                np.testing.assert_array_equal(old[name], new[name])

    def test_a_frozen_stack_normalizes_with_its_moving_statistics(self, images):
        stack = UnitStack(ResidualUnit(16), N, rolled=True)
        expected = array(stack(images))
        stack.trainable = False
        np.testing.assert_array_equal(array(stack(images, training=True)), expected)
        assert not stack.trainable_variables
        last = array(stack.activations(images, training=True))[-1]
        np.testing.assert_allclose(last, expected, rtol=1e-5, atol=1e-5)

    def test_frozen_weights_are_not_rounded_in_mixed_precision(self, images):
        stack = UnitStack(ResidualUnit(16, dtype="mixed_bfloat16"), 2, rolled=False, remat=True)
        stack(images)
        stack.trainable = False
        before = all_weights(stack)
        stack(images, training=True)
        for old, new in zip(before, all_weights(stack), strict=True):
            for name in old:
                np.testing.assert_array_equal(new[name], old[name], err_msg=name)

    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_stack_of_frozen_units_and_a_unit_of_a_frozen_stack_are_frozen(self, rolled, images):
        units = [ResidualUnit(16, trainable=False) for _ in range(2)]
        for unit in units:
            unit.build(images.shape)
        made = UnitStack(units[0], 2, rolled=rolled)
        made.build(images.shape)
        for stack in (made, UnitStack.from_units(units, rolled=rolled)):
            assert not stack.trainable and not any(variable.trainable for variable in stack.variables)
            assert not any(variable.trainable for variable in stack.unit(1).variables)
            stack.trainable = True
            assert stack.trainable_variables and stack.unit(1).trainable_variables

    @pytest.mark.parametrize("rolled", [True, False])
    def test_each_unit_draws_its_own_dropout(self, rolled, images):
        """With F = 0 and h = dropout, equal draws would drop a value in all units or in none."""
        unit = ResidualUnit(16, shortcut="dropout(rate=0.5, seed=7)", zero_init_residual=True)
        stack = UnitStack(unit, 2, rolled=rolled)
        nonzero = np.mean(array(stack(np.ones_like(images), training=True)) != 0)
        assert abs(nonzero - 0.25) < 0.03

    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_model_with_inputs_is_a_unit_for_any_batch(self, rolled):
        unit = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
        x = np.ones((2, 4), "float32")
        stack = UnitStack(unit, 2, rolled=rolled)
        assert stack(x).shape == (2, 4) and stack(x[:1]).shape == (1, 4)

    def test_each_unit_draws_its_own_dropout_if_the_first_training_step_builds_it(self, images):
        model = keras.Sequential([UnitStack(ResidualUnit(16, shortcut="dropout(seed=7)"), 3, rolled=False)])
        model.compile("sgd", "mse")
        model.fit(images, images, verbose=0)
        weights = [model.layers[0].unit_weights(k).items() for k in range(3)]
        states = [array(value).tolist() for unit in weights for name, value in unit if "seed" in name]
        assert len({seed for seed, _ in states}) == 3 and all(draws for _, draws in states)

    @pytest.mark.parametrize("unit", [
        keras.layers.Dropout(0.5, seed=7),  # makes its generator in the constructor
        OwnDropout(),  # in `build`
        UnitStack(keras.layers.Dropout(0.5, seed=7), 2, rolled=False),
    ])  # fmt: skip
    def test_explicit_seeds_are_those_of_a_rolled_stack(self, unit):
        x = np.ones((4, 50), "float32")
        outputs = [array(UnitStack(unit, 3, rolled=rolled)(x, training=True)) for rolled in (True, False)]
        np.testing.assert_array_equal(*outputs)
        assert abs(np.mean(outputs[0] != 0) - 0.5 ** (6 if isinstance(unit, UnitStack) else 3)) < 0.06

    @pytest.mark.parametrize("remat", ["unit", "segment"])
    def test_units_with_and_without_drop_path_can_be_rematerialized(self, remat):
        vary = {"drop_path": [0.0, 0.1, 0.2]}
        stack = UnitStack(EncoderBlock(2, drop_path=0.2), 3, rolled=False, remat=remat, vary=vary)
        train_stack(stack, np.ones((2, 5, 8), "float32"), steps=1)
        states = [
            [v[1] for name, v in unit.items() if name.endswith("seed_generator_state")] for unit in all_weights(stack)
        ]
        assert [len(state) for state in states] == [0, 2, 2]
        assert all(count == 1 for state in states for count in state) or keras.backend.backend() == "torch"

    def test_a_rolled_custom_norm_updates_its_statistics_after_it_was_frozen(self):
        stack, x = UnitStack(OwnNorm(), 2, rolled=True), np.arange(12, dtype="float32").reshape(3, 4)
        stack.build(x.shape)
        for trainable in (False, True):
            stack.trainable = trainable
            stack(x, training=True)
            assert bool(np.any(array(stack.unit_weights(0)["moving_mean"]) != 0)) == trainable

    def test_each_call_draws_new_values(self, images):
        stack = UnitStack(ResidualUnit(16, shortcut="dropout", zero_init_residual=True), 2, rolled=True)
        assert not np.array_equal(array(stack(images, training=True)), array(stack(images, training=True)))

    def test_losses_of_the_units_are_summed(self, images):
        def stack(rolled):
            unit = keras.layers.Dense(16, activity_regularizer=keras.regularizers.L2(0.1), name="dense")
            return UnitStack(unit, N, rolled=rolled)

        rolled, unrolled = stack(True), stack(False)
        rolled(images), unrolled(images)
        for k in range(N):
            unrolled.set_unit_weights(k, rolled.unit_weights(k))
        rolled(images), unrolled(images)
        np.testing.assert_allclose(float(sum(rolled.losses)), float(sum(unrolled.losses)), rtol=1e-5)


@keras.saving.register_keras_serializable(package="tests")
class MeanSquare(keras.regularizers.Regularizer):
    def __call__(self, value):
        return keras.ops.mean(keras.ops.square(value))

    def get_config(self):
        return {}


@keras.saving.register_keras_serializable(package="tests")
class AlwaysDrops(keras.layers.Layer):
    """Monte-Carlo dropout: it draws at inference too."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(0.3)

    def call(self, x):
        return self.dropout(x, training=True)


@keras.saving.register_keras_serializable(package="tests")
class Counts(keras.layers.Layer):
    """Counts its calls, and adds a buffer that Keras casts to the compute dtype."""

    def build(self, input_shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")
        self.buffer = self.add_weight(
            shape=(6,), initializer=keras.initializers.Constant(0.1), trainable=False, name="buffer"
        )

    def call(self, x):
        self.calls.assign(self.calls + 1)
        return x + self.buffer


@keras.saving.register_keras_serializable(package="tests")
class HalvesItsKernel(keras.layers.Layer):
    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(6, 6), initializer="he_normal", name="kernel")
        self.kernel.assign(self.kernel * 0.5)

    def call(self, x):
        return x @ self.kernel


@keras.saving.register_keras_serializable(package="tests")
class Normalized(keras.layers.Layer):
    """x + BN(W x). Its `call` has no `training`: the norm finds the value of the call in progress."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(6, name="dense")
        self.norm = keras.layers.BatchNormalization(name="norm")

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build(input_shape)
        super().build(input_shape)

    def call(self, x):
        return x + self.norm(self.dense(x))


@keras.saving.register_keras_serializable(package="tests")
class Penalized(keras.layers.Layer):
    """Adds a loss for each example."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(x**2, axis=1))
        return keras.ops.tanh(x)


@keras.saving.register_keras_serializable(package="tests")
class Scaled(keras.layers.Layer):
    """Multiplies by a constant tensor, besides a weight."""

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(6, 6), name="kernel")
        self.scale = keras.ops.convert_to_tensor(0.5)

    def call(self, x):
        return keras.ops.tanh(x @ self.kernel) * self.scale


class TestCustomUnits:
    """What units of other programs do in `build` and `call` is the same in a rolled stack."""

    x = np.ones((4, 6), "float32")
    images = np.random.default_rng(2).normal(size=(4, 6)).astype("float32")

    def stack(self, unit, rolled, **options):
        stack = UnitStack(unit, N, rolled=rolled, **options)
        stack.build(self.x.shape)
        return stack

    @pytest.mark.parametrize(
        "regularizer", [MeanSquare(), keras.regularizers.OrthogonalRegularizer(0.1), keras.regularizers.L1L2(0.1, 0.2)]
    )
    def test_a_regularizer_sees_the_weights_of_one_unit(self, regularizer):
        unit = keras.layers.Dense(6, kernel_initializer="ones", kernel_regularizer=regularizer)
        rolled, unrolled = (float(sum(self.stack(unit, value).losses)) for value in (True, False))
        np.testing.assert_allclose(rolled, unrolled, rtol=1e-6)
        assert rolled > 0

    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_constraint_holds_for_the_weights_of_each_unit(self, rolled):
        stack = self.stack(keras.layers.Dense(6, kernel_constraint=keras.constraints.UnitNorm(axis=0)), rolled)
        train_stack(stack, self.images)
        for k in range(N):
            np.testing.assert_allclose((array(stack.unit_weights(k)["kernel"]) ** 2).sum(0), 1, rtol=1e-4)

    @pytest.mark.filterwarnings("error:Layer .* does not have a `build")
    def test_a_stack_with_random_states_may_be_built_by_fit(self):
        """TensorFlow then traces a program, in which values are symbols."""
        unit = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), keras.layers.Dropout(0.5)])
        model = keras.Sequential([UnitStack(unit, N, rolled=True), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(self.images, np.zeros((4, 1)), verbose=0)
        states = [array(v).tolist() for v in model.layers[0].weights if "seed_generator_state" in v.path]
        assert len({tuple(state) for state in states[0]}) == N

    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_stack_that_is_built_by_a_call_in_mixed_precision_stores_float32(self, rolled):
        class Tower(keras.layers.Layer):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.stack = UnitStack(keras.layers.Dense(6, dtype="mixed_bfloat16"), N, rolled=rolled)

            def build(self, shape):
                self.scale = self.add_weight(shape=())

            def call(self, x):
                return self.scale * self.stack(x)

        tower = Tower(dtype="mixed_bfloat16")
        tower(self.images)
        assert {keras.backend.standardize_dtype(v.value.dtype) for v in tower.weights} == {"float32"}

    @pytest.mark.parametrize("rolled", [True, False])
    def test_weights_that_were_read_do_not_change(self, rolled):
        stack = self.stack(keras.layers.Dense(6), rolled)
        before = stack.unit_weights(0)
        kernel = array(before["kernel"])
        stack.set_unit_weights(0, {"kernel": 0 * kernel})
        np.testing.assert_array_equal(array(before["kernel"]), kernel)
        assert kernel.any()

    @pytest.mark.parametrize("rolled", [True, False])
    def test_after_an_error_no_weight_has_been_set(self, rolled):
        stack = self.stack(keras.layers.Dense(6), rolled)
        kernel = array(stack.unit_weights(0)["kernel"])
        for wrong in ({"bia": np.ones(6)}, {"bias": np.ones(5)}):
            with pytest.raises(InputError, match="bia"):
                stack.set_unit_weights(0, {"kernel": 0 * kernel, **wrong})
        np.testing.assert_array_equal(array(stack.unit_weights(0)["kernel"]), kernel)

    def test_a_layer_of_several_outputs_is_refused(self):
        stack = UnitStack(keras.layers.LSTM(6, return_sequences=True, return_state=True), 2)
        with pytest.raises(InputError, match="has several outputs; a unit of a stack has one"):
            stack.build((2, 5, 6))

    def test_a_unit_with_frozen_layers_cannot_lose_its_drop_path(self):
        """Layers are frozen by their numbers, and without the layer of drop path the others have other numbers."""
        unit = ResidualUnit(6, drop_path=0.1)
        unit.build((None, 4, 4, 6))
        unit.branch[0].trainable = False
        UnitStack(unit, 2, vary={"drop_path": [0.1, 0.2]})
        with pytest.raises(InputError, match="frozen inner layers cannot vary to drop_path=0"):
            UnitStack(unit, 2, rolled=False, vary={"drop_path": [0.0, 0.1]})

    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_unit_that_draws_at_inference_draws_new_values(self, rolled):
        stack = self.stack(AlwaysDrops(), rolled)
        first, second = array(stack(self.x)), array(stack(self.x))
        assert not np.array_equal(first, second)

    @pytest.mark.parametrize("remat", ["none", "unit", "segment"])
    @pytest.mark.parametrize("rolled", [True, False])
    def test_what_a_unit_counts_is_kept(self, rolled, remat):
        stack = self.stack(Counts(), rolled, remat=remat)
        stack(self.x), stack(self.x, training=True)
        assert [int(stack.unit_weights(k)["calls"]) for k in range(N)] == [2] * N

    @pytest.mark.parametrize("remat", ["none", "unit"])
    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_buffer_keeps_its_precision_in_mixed_precision(self, rolled, remat):
        stack = self.stack(Counts(dtype="mixed_bfloat16"), rolled, remat=remat)
        stack(self.x, training=True)
        assert all(array(stack.unit_weights(k)["buffer"])[0] == np.float32(0.1) for k in range(N))

    @pytest.mark.parametrize("remat", ["none", "unit"])
    def test_weights_that_a_unit_assigns_are_kept(self, remat):
        """Spectral normalization assigns its kernel in training."""
        unit = keras.layers.SpectralNormalization(keras.layers.Dense(6, name="dense"), power_iterations=3)
        rolled, unrolled = (self.stack(unit, value, remat=remat) for value in (True, False))
        for k in range(N):
            unrolled.set_unit_weights(k, rolled.unit_weights(k))
        for stack in (rolled, unrolled):
            stack(self.x, training=True)
        np.testing.assert_allclose(array(rolled(self.x)), array(unrolled(self.x)), rtol=1e-4, atol=1e-6)

    def test_a_step_with_weights_that_a_unit_assigns_is_the_same_rolled(self):
        unit = keras.layers.SpectralNormalization(keras.layers.Dense(6, name="dense"))
        rolled, unrolled = (self.stack(unit, value) for value in (True, False))
        for k in range(N):
            unrolled.set_unit_weights(k, rolled.unit_weights(k))
        assert_equal_stacks(rolled, unrolled, self.images, 1e-4)

    @pytest.mark.parametrize("remat", ["unit", "segment"])
    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_recomputed_norm_is_in_training_if_the_call_does_not_say_so(self, rolled, remat):
        stored, recomputed = (self.stack(Normalized(), rolled, remat=value) for value in ("none", remat))
        for k in range(N):
            recomputed.set_unit_weights(k, stored.unit_weights(k))
        assert_equal_stacks(stored, recomputed, self.images, 1e-5)

    @pytest.mark.parametrize("rolled", [True, False])
    def test_norms_that_are_trainable_again_update_their_statistics(self, rolled):
        stack = self.stack(
            keras.Sequential([keras.layers.Dense(6), keras.layers.BatchNormalization(name="norm")]), rolled
        )
        freeze_batch_norms(stack)
        train_stack(stack, self.images)
        for norm in batch_norms(stack):
            norm.trainable = True
        train_stack(stack, self.images)
        assert all(np.any(array(stack.unit_weights(k)["norm/moving_mean"])) for k in range(N))

    def test_if_the_first_unit_is_frozen_the_others_update_their_statistics(self):
        stack = self.stack(Normalized(), rolled=False, remat="unit")
        stack.units[0].trainable = False
        train_stack(stack, self.images)
        moved = [bool(np.any(array(stack.unit_weights(k)["norm/moving_mean"]))) for k in range(N)]
        assert moved == [False, True, True, True, True]

    def test_a_unit_without_variables_is_repeated(self):
        rolled, unrolled = (self.stack(Penalized(), value) for value in (True, False))
        np.testing.assert_allclose(array(rolled(self.images)), array(unrolled(self.images)), rtol=1e-6)
        rolled, unrolled = (train_stack(stack, self.images)[0] for stack in (rolled, unrolled))
        np.testing.assert_allclose(rolled, unrolled, rtol=1e-6)

    def test_constants_are_refused_where_tensorflow_cannot_recompute_them(self):
        for rolled, remat in ((True, "none"), (False, "unit")):
            train_stack(self.stack(Scaled(), rolled, remat=remat), self.images)
        stack = self.stack(Scaled(), True, remat="unit")
        stack(self.images)
        if keras.backend.backend() == "tensorflow":
            with pytest.raises(InputError, match="use a Python number or a NumPy array instead"):
                train_stack(stack, self.images)

    @pytest.mark.parametrize("make", [lambda x: keras.Sequential([x]), keras.layers.SpectralNormalization])
    def test_units_of_a_loaded_model_have_weights_of_their_own(self, make, tmp_path):
        inputs = keras.Input((6,))
        model = keras.Model(inputs, UnitStack(make(keras.layers.Dense(6)), 3, rolled=False)(inputs))
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert loaded.count_params() == model.count_params()
        np.testing.assert_allclose(array(loaded(self.images)), array(model(self.images)), rtol=1e-6)
        loaded.save(tmp_path / "again.keras")
        again = keras.models.load_model(tmp_path / "again.keras")
        np.testing.assert_allclose(array(again(self.images)), array(model(self.images)), rtol=1e-6)

    @pytest.mark.parametrize("remat", ["none", "unit"])
    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_float32_layer_in_a_mixed_precision_unit_keeps_its_kernel(self, rolled, remat):
        """Scaled by a million, the identity is out of the range of float16."""
        inputs = keras.Input((6,), dtype="float16")
        large = keras.layers.Dense(6, use_bias=False, dtype="float32", name="large")(inputs)
        unit = keras.Model(inputs, keras.layers.Rescaling(1e-6, dtype="float32")(large))
        stack = self.stack(unit, rolled, remat=remat, dtype="mixed_float16")
        for k in range(N):
            stack.set_unit_weights(k, {"large/kernel": 1e6 * np.eye(6, dtype="float32")})
        np.testing.assert_allclose(array(stack(self.x, training=True)), self.x, rtol=1e-2)

    @pytest.mark.parametrize("rolled", [True, False])
    @pytest.mark.parametrize("inside, outside", [("mixed_bfloat16", "float32"), ("float32", "mixed_bfloat16")])
    def test_outputs_have_the_dtype_of_the_stack(self, inside, outside, rolled):
        inputs = keras.Input((6,))
        unit = keras.Model(inputs, keras.layers.Dense(6, dtype=inside)(inputs))
        stack = self.stack(unit, rolled, dtype=outside)
        expected = keras.DTypePolicy(outside).compute_dtype
        assert keras.backend.standardize_dtype(stack(self.x).dtype) == expected

    def test_values_that_build_assigns_are_the_initial_ones(self):
        for rolled in (True, False):
            stack = self.stack(HalvesItsKernel(), rolled)
            kernels = np.stack([array(stack.unit_weights(k)["kernel"]) for k in range(N)])
            np.testing.assert_allclose(kernels.std(), 0.5 * (2 / 6) ** 0.5, rtol=0.25)
            assert len(np.unique(kernels[:, 0, 0])) == N

    def test_adapters_are_refused(self):
        stack = self.stack(keras.layers.Dense(6), True)
        with pytest.raises(InputError, match="unroll it first"):
            stack.loop_unit().enable_lora(2)

    def test_a_model_that_is_built_by_fit(self):
        """On JAX, the stack is then built while Keras traces the model."""

        class Subclassed(keras.Model):
            def __init__(self):
                super().__init__()
                self.stack = UnitStack(ResidualUnit(4, drop_path=0.1), N, rolled=True)

            def call(self, x, training=None):
                return self.stack(x, training=training)

        model, x = Subclassed(), np.ones((4, 6, 6, 4), "float32")
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x, verbose=0)
        seeds = [v for v in model.stack.weights if "seed" in v.name]
        assert len(np.unique(array(seeds[0])[:, 0])) == N


class TestUnits:
    def test_initial_weights_differ_between_units(self, images):
        stack = UnitStack(ResidualUnit(16), N, rolled=True)
        stack.build(images.shape)
        kernels = [array(stack.unit_weights(k)["conv1/kernel"]) for k in range(N)]
        assert all(not np.array_equal(a, b) for a, b in itertools.combinations(kernels, 2))
        # N(0, 2 / (9 · 16)) in each
        np.testing.assert_allclose([kernel.std() for kernel in kernels], (2 / (9 * 16)) ** 0.5, rtol=0.1)

    @pytest.mark.parametrize(
        "initializer",
        [
            keras.initializers.HeNormal(),
            keras.initializers.GlorotUniform(),
            keras.initializers.VarianceScaling(3.0, "fan_out", "untruncated_normal"),
            keras.initializers.Orthogonal(),
            keras.initializers.RandomNormal(0.3),
            keras.initializers.HeNormal(seed=1),
            keras.initializers.GlorotUniform(keras.random.SeedGenerator(2)),
        ],
        ids=lambda initializer: type(initializer).__name__,
    )
    def test_each_unit_is_initialized_like_a_separate_layer(self, initializer):
        dense = keras.layers.Dense(48, kernel_initializer=initializer, bias_initializer=initializer.clone())
        if isinstance(initializer, keras.initializers.Orthogonal):
            dense.bias_initializer = keras.initializers.Zeros()  # refuses vectors
        stacks = [UnitStack(dense, 40, rolled=rolled) for rolled in (True, False)]
        kernels, biases = [], []
        for stack in stacks:
            stack.build((None, 48))
            weights = [stack.unit_weights(k) for k in range(40)]
            kernels.append(np.stack([array(each["kernel"]) for each in weights]))
            biases.append(np.stack([array(each["bias"]) for each in weights]))
        np.testing.assert_allclose(kernels[0].std(axis=(1, 2)).mean(), kernels[1].std(axis=(1, 2)).mean(), rtol=0.01)
        np.testing.assert_allclose(np.abs(kernels[0]).max(), np.abs(kernels[1]).max(), rtol=0.2)  # the distribution
        np.testing.assert_allclose(biases[0].std(), biases[1].std(), rtol=0.15)
        distinct = [len(np.unique(values[:, 0, 0])) for values in kernels]
        assert distinct[0] == distinct[1]  # 1 with an integer seed, else 40
        gram = kernels[0] @ kernels[0].transpose(0, 2, 1)
        assert np.allclose(gram, np.eye(48), atol=1e-4) == isinstance(initializer, keras.initializers.Orthogonal)

    @pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="counts TensorFlow's operations")
    def test_no_gradient_is_computed_for_updates_of_the_state(self, images):
        import tensorflow as tf

        @keras.saving.register_keras_serializable(package="tests")
        class Remembers(keras.layers.Layer):
            def build(self, input_shape):
                self.w = self.add_weight(shape=(16,), initializer="ones")
                self.last = self.add_weight(shape=(16,), trainable=False)

            def call(self, x, training=None):
                if training:
                    self.last.assign(keras.ops.tanh(self.last + keras.ops.mean(x, axis=(0, 1, 2))))
                return x * self.w

        stack = UnitStack(Remembers(), N, rolled=True)
        stack.build(images.shape)

        @tf.function
        def gradients(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(stack(x, training=True))
            return tape.gradient(loss, [variable.value for variable in stack.trainable_variables])

        function = gradients.get_concrete_function(tf.constant(images))
        definition = function.graph.as_graph_def()
        types = {node.op for body in definition.library.function for node in body.node_def}
        assert "Tanh" in types and "TanhGrad" not in types
        assert all(np.abs(array(gradient)).max() > 0 for gradient in gradients(images))

    def test_one_seed_gives_the_same_stack(self, images):
        first, second = [], []
        for weights in (first, second):
            keras.utils.set_random_seed(1)
            stack = UnitStack(ResidualUnit(16, drop_path=0.1), N, rolled=True)
            stack.build(images.shape)
            weights += all_weights(stack)
        for one, other in zip(first, second, strict=True):
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])

    def test_a_unit_on_its_own(self, images):
        for rolled in (True, False):
            stack = UnitStack(ResidualUnit(16), N, rolled=rolled)
            x = images
            for k in range(N):
                stack(images)
                x = stack.unit(k)(x)
            np.testing.assert_allclose(array(x), array(stack(images)), rtol=1e-5, atol=1e-5)

    def test_activations_are_those_of_the_units(self, images):
        for rolled in (True, False):
            stack = UnitStack(ResidualUnit(16), N, rolled=rolled)
            states = array(stack.activations(images))
            assert states.shape == (N + 1, *images.shape)
            np.testing.assert_array_equal(states[0], images)
            np.testing.assert_allclose(states[-1], array(stack(images)), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("rolled", [True, False])
    def test_activations_in_training_are_those_of_the_batchs_statistics_and_change_no_state(self, rolled, images):
        stack = UnitStack(ResidualUnit(16), 2, rolled=rolled)
        stack.build(images.shape)
        before, states = all_weights(stack), array(stack.activations(images, training=True))
        for old, new in zip(before, all_weights(stack), strict=True):
            for name in old:
                np.testing.assert_array_equal(old[name], new[name], err_msg=name)
        assert not np.allclose(states, array(stack.activations(images)))
        np.testing.assert_allclose(states[-1], array(stack(images, training=True)), rtol=1e-4, atol=1e-4)

    def test_from_units(self, images):
        units = [ResidualUnit(16, drop_path=rate) for rate in (0.1, 0.2, 0.3)]
        x = images
        for unit in units:
            x = unit(x)
        for rolled in (True, False):
            stack = UnitStack.from_units(units, rolled=rolled)
            np.testing.assert_allclose(array(stack(images)), array(x), rtol=1e-5, atol=1e-5)
            rates = [float(array(stack.unit_weights(k)["drop_path/rate"])) for k in range(3)]
            np.testing.assert_allclose(rates, [0.1, 0.2, 0.3], rtol=1e-6)

    def test_drop_path_by_unit(self, images):
        """The first unit drops F for no image, the second for nearly all."""
        stack = UnitStack(ResidualUnit(16, drop_path=0.5), 2, rolled=True, vary={"drop_path": [0.0, 0.999]})
        stack(images)
        one = UnitStack.from_units([stack.unit(0)], rolled=False)
        first = array(one(images, training=True))
        np.testing.assert_allclose(array(stack(images, training=True)), first, rtol=1e-4, atol=1e-4)

    def test_set_unit_weights_does_not_change_other_units(self, images):
        stack = UnitStack(ResidualUnit(16), 3, rolled=True)
        stack(images)
        before = all_weights(stack)
        stack.set_unit_weights(1, {"norm1/gamma": np.full(16, 7.0)})
        after = all_weights(stack)
        np.testing.assert_array_equal(after[1]["norm1/gamma"], np.full(16, 7.0))
        for k in (0, 2):
            for name in before[k]:
                np.testing.assert_array_equal(before[k][name], after[k][name])


def test_any_layer_that_keeps_the_shape_can_be_stacked(images):
    for rolled in (True, False):
        stack = UnitStack(keras.layers.Dense(16, activation="tanh"), 3, rolled=rolled)
        assert tuple(stack(images).shape) == images.shape
        assert set(stack.unit_weights(0)) == {"kernel", "bias"}


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("kind", ["dropout", "sequential", "own block", "own block with build"])
def test_layers_that_create_parts_in_the_constructor_can_be_stacked(kind, rolled, images):
    unit = {
        "dropout": lambda: keras.layers.Dropout(0.5),
        "sequential": lambda: keras.Sequential([keras.layers.Dense(16), keras.layers.Dropout(0.5)]),
        "own block": OwnBlock,
        "own block with build": OwnBlockWithBuild,
    }[kind]()
    names = set() if kind == "dropout" else {"kernel", "bias"}
    stack = UnitStack(unit, 3, rolled=rolled)
    stack.build(images.shape)
    assert {name.split("/")[-1] for name in stack.unit_weights(0) if "seed" not in name} == names
    assert len(stack.trainable_variables) == len(names) * (1 if rolled else 3)
    x = images
    for k in range(3):
        x = stack.unit(k)(x)
    np.testing.assert_allclose(array(stack(images)), array(x), rtol=1e-4, atol=1e-4)
    assert not np.array_equal(array(stack(images, training=True)), array(stack(images, training=True)))


class Automatic(keras.layers.Layer):
    """x + dropout(W₂ W₁ x) with layers that have Keras's default names, numbered across the process."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.dropout, self.last = keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(16)

    def call(self, x, training=None):
        return x + self.dropout(self.last(self.first(x)), training=training)


class AutomaticInBuild(keras.layers.Layer):
    def build(self, input_shape):
        self.first, self.last = keras.layers.Dense(8), keras.layers.Dense(16)
        self.first.build(input_shape)
        self.last.build((*input_shape[:-1], 8))
        super().build(input_shape)

    def call(self, x):
        return x + self.last(self.first(x))


def functional():
    inputs = keras.Input((8, 8, 16))
    return keras.Model(inputs, inputs + keras.layers.Dense(16)(keras.layers.Dense(8)(inputs)))


def sequential():
    return keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(16)])


@pytest.mark.parametrize("rolled", [True, False])
@pytest.mark.parametrize("make", [Automatic, AutomaticInBuild, functional, sequential])
def test_units_of_layers_with_default_names(make, rolled, images):
    stack = UnitStack(make(), 3, rolled=rolled)
    expected = array(stack(images))
    for k in range(3):
        weights = [name for name in stack.unit_weights(k) if "seed" not in name]
        assert weights == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    units = [stack.unit(k) for k in range(3)]
    inputs = keras.Input(images.shape[1:])
    unrolled = unroll(keras.Model(inputs, stack(inputs)))
    for other in (
        UnitStack.from_units(units, rolled=not rolled),
        unrolled,
        UnitStack.from_units(unrolled.layers[1:]),
        lambda x: stack.activations(x)[-1],
    ):
        np.testing.assert_allclose(array(other(images)), expected, rtol=1e-4, atol=1e-4)
    stack.set_unit_weights(1, stack.unit_weights(0))
    for one, other in zip(*(all_weights(stack)[k].values() for k in (0, 1)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("where", ["attached", "argument", "both"])
@pytest.mark.parametrize(("rolled", "remat", "repeats"), [
    (True, "none", N), (True, "none", 1), (True, "unit", N), (True, "segment", N),
    (False, "unit", N), (False, "segment", N),
])  # fmt: skip
def test_layers_inside_units_see_the_mask_as_without_a_stack(rolled, remat, repeats, where):
    """The tensors in a loop and in a checkpointed function are new: Keras has attached no mask to them."""
    x, mask = keras.Input((6, 4)), keras.Input((6,), dtype="bool")
    inputs = [x] if where == "attached" else [x, mask]  # before Keras 3.13 a model must use all of its inputs
    start = x if where == "argument" else keras.layers.Masking()(x)
    options = {} if where == "attached" else {"mask": mask}
    units = [MaskedBlock(name=f"block{k}") for k in range(repeats)]
    y = start
    for unit in units:
        y = unit(y, **options)
    stack = UnitStack(MaskedBlock(name="block"), repeats, rolled=rolled, remat=remat)
    models = keras.Model(inputs, y), keras.Model(inputs, stack(start, **options))
    for k, unit in enumerate(units):
        stack.set_unit_weights(k, {name: array(variable) for name, variable in named_variables(unit).items()})
    rng = np.random.default_rng(0)
    shown = rng.uniform(size=(8, 6)) < 0.7
    values = [np.where(shown[..., None], rng.normal(size=(8, 6, 4)), 0).astype("float32"), np.roll(shown, 1)][
        : len(inputs)
    ]
    losses = []
    for model in models:
        model.compile(keras.optimizers.SGD(0.1), "mse")
        losses += [[model.train_on_batch(values, np.ones((8, 6, 4)), return_dict=True)["loss"] for _ in range(2)]]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for k, unit in enumerate(units):
        for name, variable in named_variables(unit).items():
            np.testing.assert_allclose(array(stack.unit_weights(k)[name]), array(variable), rtol=1e-4, atol=1e-6)


def test_two_inputs_or_outputs_are_an_error(images):
    inputs = [keras.Input((8, 8, 16)) for _ in range(2)]
    with pytest.raises(InputError, match="several inputs or outputs; a unit of a stack has one of each"):
        UnitStack(keras.Model(inputs, inputs[0] + inputs[1]), 2)
    with pytest.raises(InputError, match="several inputs or outputs"):
        UnitStack(keras.Model(inputs[0], [inputs[0] * 1.0, inputs[0] + 1.0]), 2)


@pytest.mark.parametrize(("backend", "first"), [("tensorflow", 8), ("jax", 500), ("torch", 500)])
def test_stacks_are_rolled_from_a_length_that_depends_on_the_backend(monkeypatch, backend, first):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    assert not default_rolled(first - 1) and default_rolled(first)


def test_units_of_layers_are_counted_and_named(images):
    dense, stack = keras.layers.Dense(16), UnitStack(ResidualUnit(16), 2, rolled=False, name="stage1_stack")
    assert [units_in(layer) for layer in (ResidualUnit(16), stack, dense, UnitStack(dense, 3))] == [1, 2, 0, 0]
    stack.build(images.shape)
    assert [unit.name for unit in stack.units] == ["unit01", "unit02"]
    assert [stack.unit(k).name for k in range(2)] == ["stage1_stack_unit01", "stage1_stack_unit02"]


def test_multiply_adds_are_those_of_all_units(images):
    for rolled in (True, False):
        stack = UnitStack(keras.layers.Dense(16), 3, rolled=rolled)
        stack.build(images.shape)
        assert stack.multiply_adds(images.shape) == 3 * math.prod(images.shape[1:-1]) * 16 * 16


@pytest.mark.parametrize("rolled", [True, False])
def test_harness(rolled, images):
    def make(**options):
        policy, data_format = options.get("dtype"), options.get("data_format")
        unit = ResidualUnit(16, drop_path=0.1, dtype=policy, data_format=data_format)
        return UnitStack(unit, 3, rolled=rolled, remat="unit", vary={"drop_path": [0.1, 0.2, 0.3]})

    check_layer(make, images)


def test_names_do_not_depend_on_earlier_layers(images):
    names = []
    for _ in range(2):
        unit = ResidualUnit(16, shortcut="dropout", drop_path=0.1)
        unit.build(images.shape)
        names.append(list(named_variables(unit)))
    assert names[0] == names[1]


def functional_unit():
    inputs = keras.Input((8,))
    return keras.Model(inputs, inputs + keras.layers.Dense(8, activation="tanh")(inputs))


@pytest.mark.parametrize("remat", [False, True])
def test_units_that_are_functional_models_have_paths_and_gradients_of_their_own(remat):
    """On PyTorch, Keras resets the gradients of those parameters that it finds by their paths."""
    inputs = keras.Input((8,))
    rolled, unrolled = (UnitStack(functional_unit(), 3, rolled=form, remat=remat) for form in (True, False))
    models = [keras.Model(inputs, stack(inputs)) for stack in (rolled, unrolled)]
    models.append(unroll(models[0]))
    for k in range(3):
        unrolled.set_unit_weights(k, rolled.unit_weights(k))
    x, losses = np.random.default_rng(0).normal(size=(16, 8)).astype("float32"), []
    for model in models:
        assert len({variable.path for variable in model.variables}) == len(model.variables)
        model.compile(keras.optimizers.SGD(0.5), "mse")
        losses.append([float(model.train_on_batch(x, np.sin(3 * x))) for _ in range(4)])
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4)


def test_weights_made_in_a_constructor_have_paths_of_their_own():
    inputs = keras.Input((8,))
    y = UnitStack(Shifted(), 2, rolled=False)(UnitStack(Shifted(), 2, rolled=False)(inputs))
    model = keras.Model(inputs, y)
    assert len({variable.path for variable in model.variables}) == 4
    assert list(named_variables(model.layers[1].units[0])) == ["shift"]


class Shifted(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.shift = self.add_weight(shape=(8,), initializer="ones", name="shift")

    def call(self, x):
        return x + self.shift


class Dropping(keras.layers.Layer):
    """A custom layer with a seeded layer of Keras inside."""

    def build(self, input_shape):
        self.drop = keras.layers.Dropout(0.5, seed=3)
        self.drop.build(input_shape)
        self.built = True

    def call(self, x, training=None):
        return self.drop(x, training=training)


@pytest.mark.parametrize("options", [{"rolled": True}, {"rolled": False, "remat": True}], ids=["rolled", "remat"])
@pytest.mark.parametrize("unit", [Dropping, lambda: keras.Sequential([keras.layers.Dropout(0.5, seed=3)])])
def test_every_step_draws_new_numbers(unit, options):
    stack, x = UnitStack(unit(), 3, **options), np.ones((4, 16), "float32")
    assert len({array(stack(x, training=True)).tobytes() for _ in range(4)}) == 4


@pytest.mark.parametrize("first", [True, False])
def test_the_first_seed_generator_of_a_process_has_no_number(first):
    keras.backend.clear_session()
    if not first:
        keras.random.SeedGenerator(1)
    unit = EncoderBlock(2, dropout=0.1, drop_path=0.1)
    unit.build((None, 4, 8))
    other = EncoderBlock(2, dropout=0.1, drop_path=0.1)
    other.build((None, 4, 8))
    assert list(named_variables(unit)) == list(named_variables(other))


class TestErrors:
    def test_not_a_layer(self):
        with pytest.raises(InputError, match="must be a Keras layer"):
            UnitStack("basic", 3)

    @pytest.mark.parametrize("repeats", [0, -1, 2.5, True])
    def test_repeats(self, repeats):
        with pytest.raises(InputError, match="at least 1"):
            UnitStack(ResidualUnit(16), repeats)

    def test_rolled_that_is_no_flag(self):
        with pytest.raises(InputError, match="rolled is 'False'; it must be True or False"):
            UnitStack(ResidualUnit(16), 2, rolled="False")

    @pytest.mark.parametrize("rolled", [True, False])
    def test_a_unit_that_changes_the_shape(self, rolled, images):
        with pytest.raises(InputError, match="must keep the shape"):
            UnitStack(ResidualUnit(32), 2, rolled=rolled)(images)

    def test_remat(self):
        with pytest.raises(InputError, match="unknown remat 'all'"):
            UnitStack(ResidualUnit(16), 2, remat="all")

    def test_vary(self):
        with pytest.raises(InputError, match="2 values of drop_path for 3 units"):
            UnitStack(ResidualUnit(16), 3, vary={"drop_path": [0.1, 0.2]})
        with pytest.raises(InputError, match=r"epsilon cannot differ .* drop_path"):
            UnitStack(ResidualUnit(16), 2, rolled=True, vary={"epsilon": [1e-5, 1e-3]})
        for wrong in (1.5, -0.1, math.nan, "half"):
            with pytest.raises(InputError, match="drop_path"):
                UnitStack(ResidualUnit(16, drop_path=0.1), 2, rolled=True, vary={"drop_path": [0.1, wrong]})
        with pytest.raises(InputError, match="vary names color, which is not an argument of ResidualUnit"):
            UnitStack(ResidualUnit(16), 2, rolled=False, vary={"color": [1, 2]})
        with pytest.raises(InputError, match=r"no variable drop_path/rate to vary; set the unit's drop_path above 0"):
            UnitStack(ResidualUnit(16), 2, rolled=True, vary={"drop_path": [0.0, 0.1]}).build((1, 8, 8, 16))

    @pytest.mark.parametrize("rolled", [True, False])
    def test_unit_weights(self, rolled, images):
        stack = UnitStack(ResidualUnit(16), 3, rolled=rolled)
        with pytest.raises(InputError, match="no weights yet"):
            stack.unit_weights(0)
        stack(images)
        with pytest.raises(InputError, match="no unit 3: the stack's units are 0 to 2"):
            stack.unit_weights(3)
        with pytest.raises(InputError, match="conv1/kernel"):
            stack.set_unit_weights(0, {"conv1/kernl": np.zeros(1)})
        with pytest.raises(InputError, match=r"norm1/gamma has shape .*; use shape"):
            stack.set_unit_weights(0, {"norm1/gamma": np.zeros(3)})

    def test_loop_unit(self):
        unrolled, rolled = (UnitStack(ResidualUnit(16), 2, rolled=rolled) for rolled in (False, True))
        unrolled.build((1, 8, 8, 16))
        with pytest.raises(InputError, match="unrolled and has no loop; its units are the layers in `units`"):
            unrolled.loop_unit()
        with pytest.raises(InputError, match="no weights yet"):
            rolled.loop_unit()

    def test_units_that_differ(self, images):
        units = [ResidualUnit(16), ResidualUnit(16, epsilon=1e-3)]
        for unit in units:
            unit.build(images.shape)
        with pytest.raises(InputError, match="not equal units"):
            UnitStack.from_units(units)

    def test_no_units_and_units_without_weights(self):
        with pytest.raises(InputError, match="no units to stack"):
            UnitStack.from_units([])
        with pytest.raises(InputError, match="units is a generator; pass a list of layers"):
            UnitStack.from_units(unit for unit in [ResidualUnit(16)])
        with pytest.raises(InputError, match="None is not a layer; pass a list of layers"):
            UnitStack.from_units([ResidualUnit(16), None])
        with pytest.raises(InputError, match="new has no weights yet; call or build it first"):
            UnitStack.from_units([ResidualUnit(16, name="new")])


# ---- units that leave something to the first call, or have more than weights ---------------------------------------


@keras.saving.register_keras_serializable(package="tests")
class BuildsHalf(keras.layers.Layer):
    """x + scale W x: its `build` creates the scale and leaves the Dense layer to the first call, as Keras permits."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(6, name="dense")

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        return x + self.scale * self.dense(x)


@pytest.mark.parametrize("rolled", [True, False])
def test_units_whose_build_leaves_layers_to_the_first_call_have_separate_weights_and_files(rolled, tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 6)).astype("float32")
    inputs = keras.Input((6,))
    model = keras.Model(inputs, UnitStack(BuildsHalf(), 3, rolled=rolled, name="stack")(inputs))
    kernels = [array(model.get_layer("stack").unit_weights(k)["dense/kernel"]) for k in range(3)]
    assert len({kernel.tobytes() for kernel in kernels}) == 3
    expected = x
    for kernel in kernels:
        expected = expected + expected @ kernel
    np.testing.assert_allclose(array(model(x)), expected, rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(keras.models.load_model(tmp_path / "model.keras")(x)), array(model(x)))


def test_a_layer_that_keeps_its_layers_in_a_tuple_can_be_stacked(images):
    """TensorFlow wraps the tuple, and lists cannot be extended by the wrapper with `+=`."""

    class Pair(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.parts = tuple(keras.layers.Dense(16, use_bias=False) for _ in range(2))

        def call(self, x):
            return self.parts[1](self.parts[0](x))

    stack = UnitStack(Pair(), 3, rolled=False)
    expected = images
    outputs = array(stack(images))
    for unit in stack.units:
        for part in unit.parts:
            expected = expected @ array(part.kernel)
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow computes them wrongly")
def test_second_derivatives_in_a_function_are_right_or_refused(images):
    """The gradient of a gradient penalty, with each form of a stack, in a `tf.function`, where a loop stays a loop."""
    tf = pytest.importorskip("tensorflow")
    x, reference = tf.constant(images), UnitStack(ResidualUnit(16), 3, rolled=False)
    reference.build(x.shape)

    def penalty(rolled, remat):
        stack = UnitStack(ResidualUnit(16), 3, rolled=rolled, remat=remat)
        stack.build(x.shape)
        for k in range(3):
            stack.set_unit_weights(k, reference.unit_weights(k))

        @tf.function
        def gradient():
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_mean(stack(x, training=True) ** 2)
                size = tf.reduce_sum(inner.gradient(y, x) ** 2)
            return outer.gradient(size, x)

        return gradient()

    expected = array(penalty(False, "none"))
    largest = np.abs(expected).max()
    for rolled, remat in ((True, "none"), (False, "unit"), (False, "segment")):
        np.testing.assert_allclose(array(penalty(rolled, remat)), expected, rtol=1e-3, atol=1e-4 * largest)
    for remat in ("unit", "segment"):
        with pytest.raises(Exception, match="wrong second derivatives of a rolled stack with remat"):
            penalty(True, remat)


def fails(shape, dtype=None):
    raise ArithmeticError("no value")


def test_a_unit_that_cannot_be_built_does_not_break_later_stacks(images):
    """Keras lists variables without values; a list left over would make every later stateless scope fail."""
    for initializer in (fails, "ones"):
        unit = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(16, kernel_initializer=initializer)])
        if initializer is fails:
            with pytest.raises(ArithmeticError, match="no value"):
                UnitStack(unit, 3, rolled=True)(images)
        else:
            assert UnitStack(unit, 3, rolled=True)(images).shape == images.shape


class Measures(keras.layers.Layer):
    """Has a metric, whose variables Keras does not count among the layer's."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x):
        self.mean.update_state(x)
        return x


def test_a_metric_in_a_unit_is_refused_where_it_could_not_be_updated():
    with pytest.raises(InputError, match="has a metric, which the loop of a rolled stack cannot update"):
        UnitStack(Measures(), 2, rolled=True).build((None, 3))
    stack = UnitStack(Measures(), 2, rolled=False)
    stack(np.ones((1, 3), "float32"))
    assert [float(unit.mean.result()) for unit in stack.units] == [1.0, 1.0]


@pytest.mark.parametrize("rolled", [True, False])
def test_a_mask_ends_where_the_units_do_not_pass_it_on(rolled):
    class NoMask(keras.layers.Layer):
        def call(self, x):
            return x * 1.0

    x = np.ones((1, 4, 3), "float32")
    x[:, 2:] = 0
    masked = keras.layers.Masking()(inputs := keras.Input((4, 3)))
    stack = UnitStack(NoMask(), 2, rolled=rolled)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling1D()(stack(masked)))
    np.testing.assert_allclose(array(model(x)), [[0.5] * 3])
    assert not stack.supports_masking and UnitStack(EncoderBlock(2), 2).supports_masking


class TestSingleFrozenVariables:
    """`variable.trainable = False` on some variables of a layer, as in training the biases alone."""

    @pytest.mark.parametrize("rolled", [True, False])
    def test_they_stay_frozen(self, rolled):
        stack = UnitStack(keras.layers.Dense(6), 2, rolled=rolled)
        stack.build((None, 6))
        for variable in stack.weights:
            variable.trainable = "bias" in variable.name
        assert {variable.name.split("/")[-1] for variable in stack.trainable_weights} == {"bias"}
        again = UnitStack.from_units([stack.unit(k) for k in range(2)], rolled=not rolled)
        assert {variable.name.split("/")[-1] for variable in again.trainable_weights} == {"bias"}

    def test_freezing_the_layer_in_the_loop_still_works(self):
        stack = UnitStack(OwnBlock(), 2, rolled=True)
        stack.build((None, 16))
        stack.loop_unit().dense.trainable = False
        assert stack.trainable_weights == []
        stack.loop_unit().dense.trainable = True
        assert len(stack.trainable_weights) == 2

    def test_units_that_differ_in_them_are_not_stacked(self):
        units = [keras.layers.Dense(6), keras.layers.Dense(6)]
        for unit in units:
            unit.build((None, 6))
        units[1].bias.trainable = False
        with pytest.raises(InputError, match="are not equal units"):
            UnitStack.from_units(units)


def test_units_with_adapters_or_quantized_layers_are_not_copied():
    stack = UnitStack(keras.layers.Dense(6), 2, rolled=False)
    stack.build((None, 6))
    stack.units[0].enable_lora(2)
    for copy in (lambda: stack.unit(0), lambda: UnitStack.from_units(stack.units)):
        with pytest.raises(InputError, match=r"has adapters \(LoRA\), which a copy would lose; save the network"):
            copy()
    stack.units[1].quantize("int8")
    with pytest.raises(InputError, match="has quantized layers, which cannot be copied"):
        stack.unit(1)
    with pytest.raises(InputError, match="has quantized layers, which cannot be copied"):
        UnitStack.from_units(stack.units[1:])


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="other backends have no loop of PyTorch's own")
def test_frozen_layers_have_no_gradient_in_a_training_loop_of_pytorch(images):
    """Such a loop reads `parameters()`, which Keras collects once, and never `weights`."""
    stack = UnitStack(ResidualUnit(16), N, rolled=True)
    stack.build(images.shape)
    frozen = [v.value for v in stack.weights if v.path.endswith(("gamma", "beta"))]
    for trainable in (True, False, True):
        for norm in batch_norms(stack):
            norm.trainable = trainable
        for parameter in stack.parameters():
            parameter.grad = None
        stack(images, training=True).sum().backward()
        assert frozen and all((parameter.grad is not None) == trainable for parameter in frozen)


# ---- what a loop or a checkpoint would lose ------------------------------------------------------------------------


class Noise(keras.layers.Layer):
    """Draws from Keras's global generator."""

    def call(self, x, training=None):
        return x + keras.random.normal(x.shape[1:])


class CountsOutside(keras.layers.Layer):
    """CountsOutside its calls in a variable of the program."""

    counter = None

    def call(self, x):
        self.counter.assign(self.counter + 1)
        return x


class ScaledBy(keras.layers.Layer):
    """Multiplies by a variable of the program."""

    factor = None

    def call(self, x):
        return x * self.factor


@pytest.mark.parametrize(("rolled", "remat"), [(True, False), (True, True), (False, "unit"), (False, "segment")])
def test_variables_outside_of_the_unit_that_it_reads_have_their_values_and_gradients(rolled, remat):
    ScaledBy.factor = factor = keras.Variable(np.full(3, 2.0), name="factor")
    stack = UnitStack(ScaledBy(), 4, rolled=rolled, remat=remat)
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(array(stack(x, training=True)), 16.0)
    with keras.StatelessScope(state_mapping=[(factor, keras.ops.full((3,), 3.0))]):
        y = stack(x, training=True)
    np.testing.assert_allclose(array(y), 81.0)
    gradient = gradient_of(factor, lambda: keras.ops.sum(stack(x, training=True)))
    np.testing.assert_allclose(gradient, 2 * 4 * 2.0**3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a graph of TensorFlow")
@pytest.mark.parametrize("remat", [True, "unit"])
def test_a_training_loop_of_tensorflow_cannot_recompute_a_variable_that_is_not_the_units_own(remat):
    ScaledBy.factor = keras.Variable(np.full(3, 2.0), name="factor")
    x = keras.Input((3,))
    model = keras.Model(x, UnitStack(ScaledBy(), 4, rolled=True, remat=remat)(x))
    model.compile("sgd", "mse")
    with pytest.raises(InputError, match=r"reads a variable that is not its own, .*use remat=False or rolled=False"):
        model.fit(np.ones((4, 3)), np.ones((4, 3)), verbose=0)
    plain = keras.Model(x, UnitStack(ScaledBy(), 4, rolled=True)(x))
    plain.compile("sgd", "mse")
    assert plain.fit(np.ones((4, 3)), np.ones((4, 3)), verbose=0).history["loss"] == [15.0**2]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends differentiate functions")
@pytest.mark.parametrize(("rolled", "remat"), [(True, True), (False, "unit"), (False, "segment")])
def test_values_of_a_scope_around_the_stack_have_gradients_inside_it(images, rolled, remat):
    """As in a training step that calls the model within a `StatelessScope`."""
    import tensorflow as tf

    def norms(stack):
        values = [tf.convert_to_tensor(variable.value) for variable in stack.trainable_variables]
        with keras.StatelessScope(state_mapping=list(zip(stack.trainable_variables, values, strict=True))):
            with tf.GradientTape() as tape:
                tape.watch(values)
                loss = tf.reduce_sum(stack(images, training=True) ** 2)
            return [float(tf.norm(gradient)) for gradient in tape.gradient(loss, values)]

    stack = UnitStack(ResidualUnit(16), N, rolled=rolled, remat=remat)
    stack.build(images.shape)
    plain = UnitStack(ResidualUnit(16), N, rolled=rolled)
    plain.build(images.shape)
    plain.set_weights(stack.get_weights())
    np.testing.assert_allclose(norms(stack), norms(plain), rtol=1e-4)
    assert min(norms(stack)) > 0


def gradient_of(variable, loss):
    """Return the gradient of a loss by one variable, as the backend's training step computes it."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        return array(tape.gradient(value, variable.value))
    if keras.backend.backend() == "torch":
        variable.value.grad = None
        loss().backward()
        return array(variable.value.grad)
    import jax

    def at(value):
        with keras.StatelessScope(state_mapping=[(variable, value)]):
            return loss()

    return array(jax.grad(at)(variable.value))


def test_a_metric_in_a_checkpointed_unit_is_refused():
    stack = UnitStack(Measures(), 2, rolled=False, remat="unit")
    with pytest.raises(InputError, match="unit01 assigns mean/total, which its variables do not include"):
        stack(np.zeros((2, 1), "float32"), training=True)


@pytest.mark.parametrize("unit", [Noise, CountsOutside])
@pytest.mark.parametrize(("rolled", "remat"), [(True, False), (True, True), (False, "unit"), (False, "segment")])
def test_variables_outside_of_the_unit_are_refused(unit, rolled, remat):
    CountsOutside.counter = keras.Variable(0.0, trainable=False, name="counter")
    stack = UnitStack(unit(), 4, rolled=rolled, remat=remat)
    # On JAX, Keras itself refuses a draw from its global generator.
    reason = "SeedGenerator" if unit is Noise else "counter, which its variables do not include, so a loop"
    with pytest.raises(Exception, match=reason):
        stack(np.zeros((2, 1), "float32"), training=True)
    if unit is CountsOutside or keras.backend.backend() != "jax":
        plain, before = UnitStack(unit(), 4, rolled=False), float(CountsOutside.counter)
        y = array(plain(np.zeros((2, 1), "float32"), training=True))
        assert float(CountsOutside.counter) - before == (4 if unit is CountsOutside else 0)
        assert (y != 0).any() == (unit is Noise)


def normalized(mean):
    unit = keras.layers.Normalization(axis=-1)
    unit.build((None, 4))
    unit.adapt_mean.assign([mean] * 4)
    unit.adapt_variance.assign([1.0] * 4)
    unit.finalize_state()
    return unit


def test_adapted_normalizations_are_refused_in_a_loop_and_set_in_an_unrolled_stack():
    x = np.zeros((1, 4), "float32")
    units = [normalized(mean) for mean in (1.0, 10.0, 100.0)]
    with pytest.raises(InputError, match="computes with copies of its variables; pass it mean and variance, or use"):
        UnitStack.from_units(units, rolled=True)
    stack = UnitStack.from_units(units, rolled=False)
    np.testing.assert_allclose(array(stack(x)), -111)
    stack.set_unit_weights(0, {"mean": np.full(4, 2.0)})
    np.testing.assert_allclose(array(stack(x)), -112)
    constant = UnitStack(keras.layers.Normalization(axis=-1, mean=[3.0] * 4, variance=[1.0] * 4), 2, rolled=True)
    np.testing.assert_allclose(array(constant(x)), -6)


@pytest.mark.parametrize("vary", [[0.1, 0.2], 0.3, "drop_path", {"drop_path": 0.3}, {"drop_path": "ab"}])
def test_what_is_no_list_of_values_for_each_argument_is_refused(vary):
    with pytest.raises(InputError, match=r"pass one value per unit, for example {'drop_path': \[0.0, 0.1\]}"):
        UnitStack(ResidualUnit(4, drop_path=0.1), 2, vary=vary)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([], "there are no units to stack; pass at least one"),
        ("abc", "'a' is not a layer; pass a list of layers"),
        (ResidualUnit(4), "units is a ResidualUnit; pass a list of layers"),
        ([None], "None is not a layer; pass a list of layers"),
    ],
)
def test_a_stack_is_made_of_a_list_of_units(units, message):
    with pytest.raises(InputError, match=message):
        UnitStack.from_units(units)


@pytest.mark.parametrize(("name", "values"), [("trainable", [False, True]), ("dtype", ["float32", "bfloat16"])])
def test_what_the_stack_decides_cannot_vary(name, values):
    with pytest.raises(InputError, match=f"vary names {name}, which the stack itself sets for its units; leave it out"):
        UnitStack(ResidualUnit(4), 2, rolled=False, vary={name: values})


def test_every_unit_that_varies_is_checked_and_counted():
    strided = UnitStack(ResidualUnit(4), 2, rolled=False, vary={"strides": [1, 2]})
    with pytest.raises(InputError, match="the units of a stack must keep the shape"):
        strided.build((None, 8, 8, 4))
    stack = UnitStack(ResidualUnit(4), 2, rolled=False, vary={"block": ["single", "basic"]})
    stack.build((None, 8, 8, 4))
    assert stack.multiply_adds((None, 8, 8, 4)) == sum(unit.multiply_adds((None, 8, 8, 4)) for unit in stack.units)


class CountsIfAsked(keras.layers.Layer):
    def __init__(self, update=False, **options):
        super().__init__(**options)
        self.update = update

    def build(self, input_shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x):
        if self.update:
            self.count.assign(self.count + 1)
        return x

    def get_config(self):
        return {**super().get_config(), "update": self.update}


@pytest.mark.parametrize("remat", ["none", "unit", "segment"])
def test_units_that_assign_differently_are_told_apart(remat):
    stack = UnitStack(CountsIfAsked(), 3, rolled=False, remat=remat, vary={"update": [False, True, True]})
    stack(np.zeros((2, 1), "float32"), training=True)
    assert [float(unit.count) for unit in stack.units] == [0, 1, 1]


@pytest.mark.parametrize("layer", [ResidualUnit(4), UnitStack(ResidualUnit(4), 2, rolled=True), EncoderBlock(2, 8)])
def test_integers_are_refused_when_a_model_is_built(layer):
    shape = (5, 8) if isinstance(layer, EncoderBlock) else (8, 8, 4)
    with pytest.raises(InputError, match="expects floating-point input, not uint8; cast it to float32"):
        layer(keras.Input(shape, dtype="uint8"))
