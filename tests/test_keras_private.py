"""Keras's private parts do what `keras_preact.keras_private` says; a release of Keras that changes one fails here."""

import ast
import contextlib
import io
import re
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import keras_private

PACKAGE = Path(keras_private.__file__).parent


class Outer(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.first = keras.layers.BatchNormalization(name="first")
        self.second = keras.layers.Dropout(0.5, seed=3, name="second")

    def build(self, shape):
        self.own = self.add_weight(shape=(2,), name="own")
        self.count = self.add_weight(shape=(), name="count", trainable=False)
        self.first.build(shape)
        super().build(shape)

    def call(self, x):
        return self.second(self.first(x))


def named(variables):
    return [variable.name for variable in variables]


def test_layers_inside_are_found_at_any_depth_and_one_can_be_added():
    outer = Outer()
    network = keras.Sequential([keras.Input((2,)), outer])
    assert {layer.name for layer in keras_private.layers_inside(network)} >= {"first", "second", outer.name}
    assert [layer.name for layer in keras_private.direct_layers(outer)] == ["first", "second"]
    added = keras.layers.Dense(1, name="added")
    keras_private.direct_layers(outer).append(added)
    assert added in keras_private.layers_inside(outer)
    outer.trainable = False
    assert not added.trainable


def test_variables_of_a_layer_alone_are_told_apart_by_how_they_were_made():
    outer = Outer()
    outer.build((None, 2))
    outer.trainable = False
    assert named(keras_private.own_trainable(outer)) == ["own"]
    assert named(keras_private.own_state(outer)) == ["count"]
    assert named(keras_private.own_state(outer.first)) == ["moving_mean", "moving_variance"]
    assert keras_private.seed_generators(outer) == [] and len(keras_private.seed_generators(outer.second)) == 1


def test_a_generator_with_a_new_seed_draws_what_a_new_generator_does():
    outer = Outer()
    outer.build((None, 2))
    (generator,) = keras_private.seed_generators(outer.second)
    before = [variable.path for variable in outer.variables]
    keras_private.reseed(generator, 8)
    assert [variable.path for variable in outer.variables] == before
    expected = keras.random.uniform((9,), seed=keras.random.SeedGenerator(8))
    np.testing.assert_array_equal(array(keras.random.uniform((9,), seed=generator)), array(expected))
    assert any(array(variable).tolist() == [8, 1] for variable in outer.variables)


def test_outside_of_a_call_layers_find_the_training_argument():
    dropout, x = keras.layers.Dropout(0.5), np.ones((50, 50), "float32")
    with keras_private.calling(True):
        assert np.any(array(dropout(x)) == 0)
    with keras_private.calling(False):
        assert np.all(array(dropout(x)) == 1)
    assert np.all(array(dropout(x)) == 1)

    class Nested(keras.layers.Layer):
        def call(self, x, training=None):
            with keras_private.calling(False):
                first = dropout(x)
            with keras_private.calling(None):  # as in the call in progress
                return first, dropout(x)

    first, second = map(array, Nested()(x, training=True))
    assert np.all(first == 1) and np.any(second == 0)


def test_copies_made_while_keras_loads_a_model_have_their_own_layers():
    layer = keras.layers.Dense(2)

    def is_shared():
        configs = [keras.saving.serialize_keras_object(layer) for _ in range(2)]
        first, second = map(keras.saving.deserialize_keras_object, configs)
        return first is second

    with keras_private.shared_objects():
        assert is_shared()
        with keras_private.no_shared_objects():
            assert not is_shared()
        assert is_shared()


def test_parts_in_lists_are_in_checkpoints_of_tensorflow(tmp_path):
    if keras.backend.backend() != "tensorflow":
        keras_private.track_in_checkpoints(Outer(), [])
        return
    import tensorflow as tf

    def listed(value):
        layer = keras.layers.Layer()
        layer.parts = [keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(value))]
        layer.parts[0].build((None, 1))
        keras_private.track_in_checkpoints(layer, layer.parts)
        return layer

    path = tf.train.Checkpoint(layer=listed(3.0)).save(str(tmp_path / "checkpoint"))
    other = listed(0.0)
    tf.train.Checkpoint(layer=other).restore(path)
    assert array(other.parts[0].kernel).item() == 3


def test_a_mask_is_attached_where_there_is_none():
    x = keras.layers.Masking()(keras.ops.ones((2, 3, 4)))
    mask = keras_private.mask_of(x)
    assert mask.shape == (2, 3)
    keras_private.attach_mask(x, None)
    assert keras_private.mask_of(x) is mask
    plain = keras.ops.ones((2, 3, 4))
    assert keras_private.mask_of(plain) is None
    keras_private.attach_mask(plain, mask)
    assert keras_private.mask_of(plain) is mask


def test_a_sequential_model_can_refuse_what_it_would_cast():
    images = keras.Input((2,), dtype="uint8")
    model = keras.Sequential([images, keras.layers.Rescaling(0.5)])
    model.input_spec = [keras.InputSpec(shape=(None, 2), dtype="uint8")]
    model(np.ones((1, 2), "float32"))  # cast before it is compared
    keras_private.accept_any_dtype(model)
    with pytest.raises(ValueError, match="expected dtype=uint8"):
        model(keras.ops.ones((1, 2), "float32"))


def test_variables_of_a_stateless_scope_get_their_values_later():
    with keras.StatelessScope(initialize_variables=False):
        layer = keras.layers.Dense(2, kernel_initializer="ones", dtype="mixed_bfloat16")
        layer.build((None, 3))
    assert isinstance(keras_private.initializer_of(layer.kernel), keras.initializers.Ones)
    assert keras_private.is_autocast(layer.kernel)
    values = {id(layer.bias): np.full(2, 7.0, "float32")}
    keras_private.initialize(values)
    assert values == {} and array(layer.kernel).tolist() == [[1, 1]] * 3 and array(layer.bias).tolist() == [7, 7]


def test_variables_can_be_left_without_values():
    with keras.StatelessScope(initialize_variables=False):
        keras.layers.Dense(2).build((None, 3))
    keras_private.forget_uninitialized()
    with keras.StatelessScope():
        pass
    keras_private.initialize({})


def test_the_global_seed_and_generator_come_back():
    keras.utils.set_random_seed(1)
    expected = [array(keras.random.uniform((2,))).tolist() for _ in range(2)]
    keras.utils.set_random_seed(1)
    assert array(keras.random.uniform((2,))).tolist() == expected[0]
    with keras_private.own_random_state():
        keras.utils.set_random_seed(1)
        assert array(keras.random.uniform((2,))).tolist() == expected[0]
    assert array(keras.random.uniform((2,))).tolist() == expected[1]


def test_tensorflow_has_no_seed_within_a_block_and_the_programs_after_it():
    tf = pytest.importorskip("tensorflow")

    def shuffled():
        return list(tf.data.Dataset.range(50).shuffle(50, seed=3).as_numpy_iterator())

    with keras_private.without_tensorflow_seed():
        unseeded = shuffled()
        tf.random.set_seed(1)
        seeded, first, second = shuffled(), tf.random.uniform(()), tf.random.uniform(())
        tf.random.set_seed(1)
        assert tf.random.uniform(()) == first
        with keras_private.without_tensorflow_seed():
            assert shuffled() == unseeded != seeded
            tf.random.set_seed(2)
        assert shuffled() == seeded and tf.random.uniform(()) == second


def test_one_thread_at_a_time_is_without_tensorflows_seed():
    tf = pytest.importorskip("tensorflow")
    tf.random.set_seed(7)
    inside, entered = threading.Event(), []

    def enter():
        with keras_private.without_tensorflow_seed():
            entered.append(inside.is_set())

    with keras_private.without_tensorflow_seed():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(0.2)
        inside.set()
    thread.join()
    assert entered == [True]  # only after the block of this thread
    first = tf.random.uniform(())
    tf.random.set_seed(7)
    assert tf.random.uniform(()) == first


def test_a_graph_is_read_and_run_with_other_layers():
    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((2,), name="b")}
    total = keras.layers.Add(name="add")([inputs["a"], inputs["b"]])
    model = keras.Model(inputs, keras.layers.ReLU(name="relu")(total))
    assert [node.operation.name for node in keras_private.nodes_of(model)] == ["add", "relu"]
    (add, _) = keras_private.nodes_of(model)
    assert [tensor.name for tensor in add.input_tensors] == ["a", "b"] and add.outputs == [total]
    assert len(add.arguments.args[0]) == 2 and add.arguments.kwargs == {}
    assert keras_private.names_its_inputs(model)
    assert not keras_private.names_its_inputs(keras.Model(list(inputs.values()), total))
    assert keras_private.producer_of(model.outputs[0]) is model.get_layer("relu")
    new = {name: keras.Input((2,), name=name) for name in inputs}
    negated = keras_private.run_through(model, new, lambda layer: (lambda x: -x) if layer.name == "relu" else layer)
    values = {"a": np.array([[-1.0, 2.0]]), "b": np.zeros((1, 2))}
    assert array(keras.Model(new, negated)(values)).tolist() == [[1.0, -2.0]]


def test_a_sequential_model_runs_a_functional_one():
    model = keras.Sequential([keras.layers.Dense(2)])
    assert keras_private.functional_of(model) is None
    model.build((None, 3))
    assert len(list(keras_private.nodes_of(keras_private.functional_of(model)))) == 1


def test_what_a_model_was_compiled_with_comes_back_as_it_was_given():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    loss = lambda y, x: keras.ops.mean(x)  # noqa: E731
    model.compile("sgd", loss, metrics=["mae"], jit_compile=False)
    arguments = keras_private.compile_arguments(model)
    assert arguments["loss"] is loss and arguments["metrics"] == ["mae"] and arguments["jit_compile"] is False
    model.compile(**arguments)


def test_names_are_found_as_keras_finds_them():
    assert keras_private.public_symbol("keras.layers.Dense") is keras.layers.Dense
    assert keras_private.public_symbol("keras.layers.NoSuchLayer") is None
    for part in ("losses", "metrics", "initializers", "regularizers", "constraints", "activations", "optimizers"):
        assert keras_private.objects_by_name(part)
    assert hasattr(keras_private.defining_module("ops.numpy"), "Add")
    assert hasattr(keras_private.defining_module("models.functional"), "Functional")


def test_variables_are_loaded_from_content(tmp_path):
    model, other = (keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]) for _ in range(2))
    model.save_weights(tmp_path / "model.weights.h5")
    content = io.BytesIO((tmp_path / "model.weights.h5").read_bytes())
    visited = set()
    assert keras_private.load_variables(other, content, visited) == {} and id(other.layers[0]) in visited
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    wider = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    assert keras_private.load_variables(wider, content, set())


def test_code_is_refused_and_shared_objects_are_made_once():
    written = keras.saving.serialize_keras_object(keras.layers.Lambda(lambda x: x))
    with keras_private.safe_mode(), pytest.raises(ValueError, match="safe"):
        keras.saving.deserialize_keras_object(written)
    layer = keras.saving.serialize_keras_object(keras.layers.ReLU()) | {"shared_object_id": 1}
    with keras_private.shared_objects():
        one, again = (keras.saving.deserialize_keras_object(layer) for _ in range(2))
    assert one is again


def test_both_of_tensorboards_files_can_be_opened_first(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("tensorflow")
    callback = keras.callbacks.TensorBoard(tmp_path)
    callback.set_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    keras_private.open_both_writers(callback)
    assert (tmp_path / "validation").is_dir()


def test_dense_layers_and_axes_of_attention_are_found():
    x = np.ones((1, 3, 8), "float32")
    attention = keras.layers.MultiHeadAttention(2, 4)
    attention(x, x)
    parts = keras_private.parts_of_attention(attention)
    assert {name: part.kernel.shape for name, part in parts.items()} == {
        **dict.fromkeys(("query", "key", "value"), (8, 2, 4)),
        "output": (2, 4, 8),
    }
    assert keras_private.attention_axes(attention) == (1,)
    grouped = keras.layers.GroupQueryAttention(4, 2, 1)
    grouped(x, x)
    assert keras_private.parts_of_attention(grouped).keys() == parts.keys()


def test_an_optimizer_knows_its_variables_and_which_of_them_decay():
    first, second = (keras.Variable([1.0], name=name) for name in ("first", "second"))
    optimizer = keras.optimizers.SGD(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_list=[second])
    optimizer.build([first, second])
    assert [keras_private.variable_index(optimizer, variable) for variable in (first, second)] == [0, 1]
    assert [keras_private.is_decayed(optimizer, variable) for variable in (first, second)] == [True, False]
    assert keras_private.decay_exclusions(optimizer) == []
    named = keras.optimizers.SGD(weight_decay=0.1)
    named.exclude_from_weight_decay(var_names=["a", "b"])
    (pattern,) = keras_private.decay_exclusions(named)
    assert set(pattern.split("|")) == {"a", "b"}


@pytest.mark.parametrize("copied", [False, True], ids=["one variable", "a copy on each device"])
def test_the_last_learning_rate_is_that_of_the_last_step(copied):
    scope = contextlib.nullcontext()
    if copied:
        pytest.importorskip("tensorflow")
        if keras.backend.backend() != "tensorflow":
            pytest.skip("only TensorFlow keeps a copy of each variable on each device")
        import tensorflow as tf

        scope = tf.distribute.MirroredStrategy(["CPU:0"]).scope()
    with scope:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [0.3, 0.2, 0.1])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))
        optimizer.build([keras.Variable([1.0])])
        found = [keras_private.last_learning_rate(optimizer)]
        for _ in range(3):
            optimizer.inner_optimizer.iterations.assign_add(1)
            found.append(keras_private.last_learning_rate(optimizer))
    assert np.allclose(found, [0.3, 0.3, 0.2, 0.1])
    assert keras_private.last_learning_rate(keras.optimizers.SGD(0.5)) == 0.5


def test_the_dtype_of_a_variable_is_that_of_its_value():
    class Reads(keras.layers.Layer):
        def build(self, input_shape):
            self.weight = self.add_weight(shape=())

        def call(self, x):
            assert (self.weight.dtype, keras_private.stored_dtype(self.weight)) == ("bfloat16", "float32")
            return x

    Reads(dtype="mixed_bfloat16")(np.ones(1))


def test_a_loss_that_is_forgotten_is_no_longer_the_layers():
    with keras.StatelessScope(collect_losses=True) as scope:
        outer, inner = keras.layers.Layer(), keras.layers.Layer()
        outer.inner = inner
        inner.add_loss(keras.ops.ones(()))
        assert len(outer.losses) == 1
        keras_private.forget_losses(outer, scope.losses)
        assert outer.losses == []


def own_names(tree):
    """Return the private names that a module defines: functions, classes, variables and attributes of its objects."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                yield node.id
            elif ast.unparse(node.value) in ("self", "cls"):
                yield node.attr


def private_uses(tree, own):
    for node in ast.walk(tree):
        is_private = isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in own
        is_import = isinstance(node, (ast.Import, ast.ImportFrom)) and "keras.src" in ast.unparse(node)
        if is_private or is_import:
            yield ast.unparse(node)


def test_no_other_module_uses_what_is_private_to_keras():
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
        if path.name != "keras_private.py"
    }
    own = {name for tree in trees.values() for name in own_names(tree)}
    found = {f"{path}: {use}" for path, tree in trees.items() for use in private_uses(tree, own)}
    assert found == {"startup.py: os._exit"}
