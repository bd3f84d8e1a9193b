"""Ways to use a Keras layer or model, tested with ours. `python tests/test_uses.py` writes docs/uses.md from them."""

import copy
import pickle
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from harness import array

import keras_preact  # noqa: F401 (registers the layers)
from keras_preact.interop import export_model
from keras_preact.layers import PreActBasicBlock, PreNormEncoderBlock, ResidualUnit, UnitStack
from keras_preact.models import cifar_resnet, feature_maps, fold, freeze_batch_norms, prenorm_transformer, roll, unroll

PAGE = Path(__file__).parents[1] / "docs" / "uses.md"
BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 8, 8, 3)).astype("float32")
Y = np.arange(8) % 3
USES = []


def use(group, words, *, on=("tensorflow", "jax", "torch")):
    """Register a test: its heading and its line on the page, and the backends that it runs on."""

    def register(function):
        USES.append((group, words, on, function))
        return function

    return register


def network(**options):
    return cifar_resnet(8, input_shape=(8, 8, 3), classes=3, **options)


def compiled(model=None, **options):
    model = model or network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.SGD(0.05), "loss": loss, "jit_compile": False, **options})
    return model


def fit(model, **options):
    return model.fit(X, Y, **{"batch_size": 4, "verbose": 0, **options}).history


def same(one, other, x=X, tolerance=1e-5):
    np.testing.assert_allclose(array(one(x)), array(other(x)), rtol=tolerance, atol=tolerance)


def weights(model):
    return [array(variable) for variable in model.trainable_variables]


def differs(before, after):
    return any(not np.array_equal(one, other) for one, other in zip(before, after, strict=True))


# ---- building -----------------------------------------------------------------------------------------------------


@use("Building", "a unit between Keras layers in the functional API")
def functional(tmp_path):
    inputs = keras.Input((8, 8, 3))
    x = PreActBasicBlock(8)(keras.layers.Conv2D(8, 3, padding="same")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(x)))
    assert fit(compiled(model))["loss"]


@use("Building", "units in a Sequential model")
def sequential(tmp_path):
    parts = [PreActBasicBlock(8), PreActBasicBlock(8), keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(3)]
    assert fit(compiled(keras.Sequential([keras.Input((8, 8, 3)), *parts])))["loss"]


@use("Building", "units in a Sequential model without an input shape, built by the first call")
def sequential_deferred(tmp_path):
    model = keras.Sequential([PreActBasicBlock(8), keras.layers.GlobalMaxPooling2D(), keras.layers.Dense(3)])
    assert fit(compiled(model))["loss"] and model.built


@use("Building", "units as attributes of a subclassed model")
def subclassed(tmp_path):
    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.unit, self.pool = PreActBasicBlock(8), keras.layers.GlobalAveragePooling2D()
            self.top = keras.layers.Dense(3)

        def call(self, x, training=None):
            return self.top(self.pool(self.unit(x, training=training)))

    model = compiled(Mine())
    assert fit(model)["loss"] and len(model.trainable_variables) == len(model.unit.trainable_variables) + 2


@use("Building", "a list of units in a subclassed layer")
def list_in_a_layer(tmp_path):
    class Rows(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.units = [PreActBasicBlock(3) for _ in range(2)]

        def call(self, x):
            for unit in self.units:
                x = unit(x)
            return x

    rows = Rows()
    assert tuple(rows(X).shape) == X.shape and len(rows.trainable_variables) == 2 * 6


@use("Building", "one unit called twice (shared weights)")
def shared(tmp_path):
    unit, inputs = PreActBasicBlock(3), keras.Input((8, 8, 3))
    twice = keras.Model(inputs, unit(unit(inputs)))
    np.testing.assert_allclose(array(twice(X)), array(unit(unit(X))), rtol=1e-5, atol=1e-5)
    assert len(twice.trainable_variables) == len(unit.trainable_variables)


@use("Building", "a network as a layer of another model")
def nested(tmp_path):
    inputs = keras.Input((8, 8, 3))
    backbone = network(include_top=False, pooling="avg")
    assert fit(compiled(keras.Model(inputs, keras.layers.Dense(3)(backbone(inputs)))))["loss"]


@use("Building", "two networks side by side in one model (on PyTorch, see the FAQ)", on=("tensorflow", "jax"))
def two_networks(tmp_path):
    inputs = keras.Input((8, 8, 3))
    parts = [network(name=name, include_top=False, pooling="avg")(inputs) for name in ("one", "other")]
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(parts)))
    assert fit(compiled(model))["loss"]


@use("Building", "a network after preprocessing layers: `input_tensor`")
def input_tensor(tmp_path):
    images = keras.Input((8, 8, 3))
    model = cifar_resnet(8, classes=3, input_tensor=keras.layers.Rescaling(2.0)(keras.layers.RandomFlip()(images)))
    alone = keras.Model(model.get_layer("stem_conv").input, model.output)
    same(lambda x: model(x, training=False), lambda x: alone(2 * x))


@use("Building", "a network on each image of a sequence: `TimeDistributed`")
def time_distributed(tmp_path):
    backbone = network(include_top=False, pooling="avg")
    frames = np.stack([X[:2], X[2:4]], axis=1)
    found = array(keras.layers.TimeDistributed(backbone)(frames))
    np.testing.assert_allclose(found[:, 0], array(backbone(X[:2])), rtol=1e-4, atol=1e-4)


@use("Building", "a stack of stacks")
def nested_stacks(tmp_path):
    inner = UnitStack(PreActBasicBlock(3), 2, rolled=True)
    stack = UnitStack(inner, 2, rolled=False)
    assert tuple(stack(X).shape) == X.shape


@use("Building", "a stack of a Keras layer")
def stack_of_keras(tmp_path):
    stack = UnitStack(keras.layers.Dense(3), 4, rolled=True)
    assert tuple(stack(X).shape) == X.shape and tuple(stack.trainable_variables[0].shape) == (4, 3, 3)


@use("Building", "a network with two heads")
def two_heads(tmp_path):
    backbone = network(include_top=False, pooling="avg")
    heads = {name: keras.layers.Dense(size, name=name)(backbone.output) for name, size in (("kind", 3), ("size", 1))}
    model = keras.Model(backbone.input, heads)
    loss = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    model.compile("sgd", loss, jit_compile=False)
    assert model.fit(X, {"kind": Y, "size": Y.astype("float32")}, verbose=0).history["loss"]


# ---- inputs -------------------------------------------------------------------------------------------------------


@use("Inputs", "a batch of one image")
def batch_of_one(tmp_path):
    model = compiled()
    model.train_on_batch(X[:1], Y[:1])
    assert np.isfinite(model.predict(X[:1], verbose=0)).all()


@use("Inputs", "images of an odd size")
def odd_images(tmp_path):
    assert cifar_resnet(8, input_shape=(13, 11, 3), classes=3)(RNG.normal(size=(2, 13, 11, 3))).shape == (2, 3)


@use("Inputs", "images of the smallest size, 8 pixels")
def tiny_images(tmp_path):
    assert array(feature_maps(network())(X)["stage3"]).shape == (8, 2, 2, 64)


@use("Inputs", "images of several sizes in one network")
def open_size(tmp_path):
    model = cifar_resnet(8, include_top=False, input_shape=(None, None, 3))
    assert [tuple(model(np.zeros((1, n, n, 3), "float32")).shape) for n in (8, 20)] == [(1, 2, 2, 64), (1, 5, 5, 64)]


@use("Inputs", "images with one or twelve channels")
def other_channels(tmp_path):
    for channels in (1, 12):
        model = cifar_resnet(8, input_shape=(16, 16, channels), classes=3)
        assert model(np.zeros((1, 16, 16, channels), "float32")).shape == (1, 3)


@use("Inputs", "channels first", on=("jax", "torch"))
def channels_first(tmp_path):
    first = cifar_resnet(8, input_shape=(3, 8, 8), classes=3, data_format="channels_first")
    last = network()
    first.set_weights(last.get_weights())
    same(last, lambda x: first(x.transpose(0, 3, 1, 2)), tolerance=1e-4)


@use("Inputs", "NumPy float64, which Keras casts")
def float64(tmp_path):
    model = network()
    same(model, lambda x: model(x.astype("float64")))


@use("Inputs", "a padding mask in a Transformer block")
def masks(tmp_path):
    block, x = PreNormEncoderBlock(heads=2), RNG.normal(size=(2, 5, 8)).astype("float32")
    mask = np.array([[True] * 3 + [False] * 2] * 2)
    padded = np.where(mask[..., None], x, 7.0).astype("float32")
    one, other = (array(block(given, mask=mask))[:, :3] for given in (x, padded))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# ---- training -----------------------------------------------------------------------------------------------------


@use("Training", "`fit` on arrays, with validation")
def fit_arrays(tmp_path):
    history = fit(compiled(metrics=["accuracy"]), validation_data=(X, Y), epochs=2)
    assert len(history["val_loss"]) == 2 and set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}


@use("Training", "`fit` on a `keras.utils.PyDataset`")
def fit_py_dataset(tmp_path):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return X[4 * number : 4 * number + 4], Y[4 * number : 4 * number + 4]

    assert np.isfinite(compiled().fit(Batches(), verbose=0).history["loss"]).all()


@use("Training", "`fit` on a `tf.data.Dataset`", on=("tensorflow", "jax"))
def fit_tf_data(tmp_path):
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    assert np.isfinite(compiled().fit(data, verbose=0).history["loss"]).all()


@use("Training", "`train_on_batch` and `test_on_batch`")
def on_batch(tmp_path):
    model = compiled()
    assert np.isfinite([model.train_on_batch(X, Y), model.test_on_batch(X, Y)]).all()


@use("Training", "a custom loop with `tf.GradientTape`", on=("tensorflow",))
def gradient_tape(tmp_path):
    import tensorflow as tf

    model, optimizer = network(rolled=True), keras.optimizers.SGD(0.05)
    before = weights(model)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    assert np.isfinite(float(step(X, Y))) and differs(before, weights(model))


@use("Training", "a custom loop with `jax.grad` and `stateless_call`", on=("jax",))
def jax_loop(tmp_path):
    import jax

    model = network()
    state = [v.value for v in model.non_trainable_variables]

    def loss(trainable):
        logits, _ = model.stateless_call(trainable, state, X, training=True)
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(Y, logits, True))

    gradients = jax.grad(loss)([v.value for v in model.trainable_variables])
    assert all(np.isfinite(array(g)).all() for g in gradients)


@use("Training", "a custom `train_step`", on=("tensorflow",))
def train_step(tmp_path):
    import tensorflow as tf

    class Noisy(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x + tf.random.normal(tf.shape(x)), training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    plain = network()
    assert fit(compiled(Noisy(plain.input, plain.output)))["loss"]


@use("Training", "`jit_compile=True`", on=("jax", "tensorflow"))
def jit_compile(tmp_path):
    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(PreActBasicBlock(3)(inputs))))
    assert np.isfinite(fit(compiled(model, jit_compile=True))["loss"]).all()


@use("Training", "`run_eagerly=True`", on=("tensorflow", "torch"))
def run_eagerly(tmp_path):
    assert np.isfinite(fit(compiled(network(rolled=True), run_eagerly=True))["loss"]).all()


@use("Training", "`steps_per_execution`", on=("tensorflow", "jax"))
def steps_per_execution(tmp_path):
    one, two = compiled(), compiled(steps_per_execution=2)
    two.set_weights(one.get_weights())
    fit(one, shuffle=False), fit(two, shuffle=False)
    for mine, other in zip(weights(one), weights(two), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@use("Training", "gradient accumulation")
def gradient_accumulation(tmp_path):
    model = compiled(optimizer=keras.optimizers.SGD(0.05, gradient_accumulation_steps=2))
    before = weights(model)
    model.train_on_batch(X, Y)
    assert not differs(before, weights(model))
    model.train_on_batch(X, Y)
    assert differs(before, weights(model))


@use("Training", "an exponential moving average of the weights")
def moving_average(tmp_path):
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5)
    model = compiled(optimizer=optimizer)
    fit(model, callbacks=[keras.callbacks.SwapEMAWeights()])
    assert np.isfinite(model.predict(X, verbose=0)).all()


@use("Training", "clipped gradients")
def clipped(tmp_path):
    assert np.isfinite(fit(compiled(optimizer=keras.optimizers.SGD(0.05, global_clipnorm=1.0)))["loss"]).all()


@use("Training", "class weights and sample weights")
def sample_weights(tmp_path):
    model = compiled(weighted_metrics=["accuracy"])
    fit(model, class_weight={0: 1.0, 1: 2.0, 2: 0.5})
    fit(model, sample_weight=np.linspace(0, 1, 8))


@use("Training", "mixed precision, with a loss scale in float16")
def mixed_precision(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = compiled(network(rolled=True))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert np.isfinite(fit(model)["loss"]).all() and model.output.dtype == "float32"


@use("Training", "a learning-rate schedule, and `ReduceLROnPlateau`")
def learning_rates(tmp_path):
    fit(compiled(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))))
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1e9)
    assert fit(compiled(), epochs=3, callbacks=[plateau])["learning_rate"][-1] < 0.05


@use("Training", "`EarlyStopping` that restores the best weights")
def early_stopping(tmp_path):
    stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9, restore_best_weights=True)
    assert len(fit(compiled(), epochs=5, callbacks=[stop])["loss"]) < 5


@use("Training", "`ModelCheckpoint` of the weights only")
def checkpoint_weights(tmp_path):
    model = compiled()
    fit(model, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "w.weights.h5", save_weights_only=True)])
    other = network()
    other.load_weights(tmp_path / "w.weights.h5")
    same(model, other)


@use("Training", "`BackupAndRestore`")
def backup(tmp_path):
    fit(compiled(), epochs=2, callbacks=[keras.callbacks.BackupAndRestore(tmp_path)])


@use("Training", "`TensorBoard` with histograms", on=("tensorflow",))
def tensorboard(tmp_path):
    fit(compiled(), callbacks=[keras.callbacks.TensorBoard(tmp_path, histogram_freq=1)])
    assert list(tmp_path.rglob("events*"))


@use("Training", "a penalty on the activations between two units")
def penalty(tmp_path):
    inputs = keras.Input((8, 8, 3))
    x = PreActBasicBlock(3)(keras.layers.ActivityRegularization(l2=0.1)(PreActBasicBlock(3)(inputs)))
    model = compiled(keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x))))
    model(X)
    assert len(model.losses) == 1 and np.isfinite(fit(model)["loss"]).all()


@use("Training", "freezing in a loop over the layers")
def freezing(tmp_path):
    model = network()
    for layer in model.layers[:-1]:
        layer.trainable = False
    before = weights(model.layers[1])
    fit(compiled(model))
    assert not differs(before, weights(model.layers[1])) and len(model.trainable_variables) == 2


@use("Training", "freezing only the batch norms, also in rolled stacks: `freeze_batch_norms`")
def frozen_norms(tmp_path):
    model = network(rolled=True)
    assert freeze_batch_norms(model) == 7
    assert not any("norm" in variable.path for variable in model.trainable_variables)


@use("Training", "distillation: two networks in one loss")
def distillation(tmp_path):
    teacher, student = network(name="teacher"), network(name="student")
    teacher.trainable = False
    inputs = keras.Input((8, 8, 3))
    model = keras.Model(inputs, keras.layers.Subtract()([teacher(inputs), student(inputs)]))
    model.compile("sgd", "mse", jit_compile=False)
    before = weights(student)
    model.fit(X, np.zeros((8, 3)), verbose=0)
    assert differs(before, weights(student)) and not teacher.trainable_variables


@use("Training", "second derivatives", on=("tensorflow",))
def second_derivatives(tmp_path):
    import tensorflow as tf

    unit, x = PreActBasicBlock(3), tf.constant(X[:2])
    unit(x)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(unit(x) ** 3)
        gradient = inner.gradient(y, x)
    assert np.isfinite(array(outer.gradient(gradient, x))).all()


# ---- looking inside -----------------------------------------------------------------------------------------------


@use("Looking inside", "a sub-model up to any layer")
def sub_model(tmp_path):
    model = network()
    part = keras.Model(model.input, model.get_layer("stage2_unit01").output)
    assert tuple(part(X).shape) == (8, 4, 4, 32)


@use("Looking inside", "feature maps of all stages: `feature_maps`")
def stages(tmp_path):
    assert list(feature_maps(network()).output) == ["stage1", "stage2", "stage3"]


@use("Looking inside", "Grad-CAM", on=("tensorflow",))
def grad_cam(tmp_path):
    import tensorflow as tf

    model = network()
    both = keras.Model(model.input, [model.get_layer("stage3_unit01").output, model.output])
    with tf.GradientTape() as tape:
        maps, logits = both(X)
        top = tf.reduce_max(logits, axis=-1)
    found = tf.reduce_sum(maps * tf.reduce_mean(tape.gradient(top, maps), axis=(1, 2), keepdims=True), axis=-1)
    assert found.shape == (8, 2, 2)


@use("Looking inside", "`summary`, with nested layers")
def summary(tmp_path):
    lines = []
    network().summary(print_fn=lambda line, **options: lines.append(line), expand_nested=True)
    assert "stage3_unit01" in "\n".join(lines)


@use("Looking inside", "`plot_model`")
def plot(tmp_path):
    pytest.importorskip("pydot")
    keras.utils.plot_model(network(), tmp_path / "model.dot", show_shapes=True)


@use("Looking inside", "`count_params`, and the paths of all variables")
def paths(tmp_path):
    model = network()
    assert len({variable.path for variable in model.variables}) == len(model.variables)
    assert model.count_params() == sum(array(variable).size for variable in model.weights)


# ---- copying and saving -------------------------------------------------------------------------------------------


@use("Copying and saving", "`model.save` and `load_model`, with the optimizer")
def save(tmp_path):
    model = compiled(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    same(model, loaded)
    assert int(array(loaded.optimizer.iterations)) == 2


@use("Copying and saving", "`save_weights` and `load_weights`")
def save_weights(tmp_path):
    model, other = network(), network()
    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")
    same(model, other)


@use("Copying and saving", "`clone_model`, and copies of layers from their configurations")
def clone(tmp_path):
    model = network()
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    same(model, copied)
    unit = ResidualUnit(8, placement="original")
    assert ResidualUnit.from_config(unit.get_config()).get_config() == unit.get_config()


@use("Copying and saving", "`to_json` and `model_from_json`")
def as_json(tmp_path):
    model = network()
    other = keras.models.model_from_json(model.to_json())
    other.set_weights(model.get_weights())
    same(model, other)


@use("Copying and saving", "`pickle` of a model")
def pickled(tmp_path):
    model = network()
    same(model, pickle.loads(pickle.dumps(model)))


@use("Copying and saving", "`copy.deepcopy` of a model")
def deep_copy(tmp_path):
    model = network()
    other = copy.deepcopy(model)
    same(model, other)
    other.layers[1].trainable_variables[0].assign(other.layers[1].trainable_variables[0] + 1)
    assert differs(weights(model), weights(other))


@use("Copying and saving", "conversion between one layer per unit and a loop: `roll`, `unroll`")
def rolling(tmp_path):
    model = cifar_resnet(20, input_shape=(8, 8, 3), classes=3)
    rolled = roll(model)
    same(model, rolled), same(model, unroll(rolled))


@use("Copying and saving", "folding batch norms into convolutions: `fold`")
def folding(tmp_path):
    model = network(placement="original")
    same(model, fold(model), tolerance=1e-4)


@use("Copying and saving", "quantization of an unrolled network to int8", on=("tensorflow", "jax"))
def quantized(tmp_path):
    model = network()
    model.quantize("int8")
    assert np.isfinite(model.predict(X, verbose=0)).all()


@use("Copying and saving", "a SavedModel: `model.export`, `export_model`", on=("tensorflow",))
def saved_model(tmp_path):
    model = network()
    model.export(tmp_path / "served", verbose=False)
    served = keras.layers.TFSMLayer(tmp_path / "served", call_endpoint="serve")
    same(model, served)
    export_model(model, tmp_path / "again")


@use("Copying and saving", "TensorFlow's own checkpoints: `tf.train.Checkpoint`", on=("tensorflow",))
def tensorflow_checkpoint(tmp_path):
    import tensorflow as tf

    for build in (network, lambda: network(rolled=True), lambda: prenorm_transformer(depth=2, dim=16)):
        model, other = build(), build()
        path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
        tf.train.Checkpoint(model=other).restore(path).assert_consumed()
        assert all(np.array_equal(a, b) for a, b in zip(model.weights, other.weights, strict=True))


@use("Copying and saving", "ONNX: `export_model` on TensorFlow, `model.export` on PyTorch", on=("tensorflow", "torch"))
def onnx(tmp_path):
    pytest.importorskip("onnx")
    runtime, path = pytest.importorskip("onnxruntime"), tmp_path / "model.onnx"
    if BACKEND == "tensorflow":
        export_model(network(), path)
        return
    for model in (network(), network(rolled=True), network(placement="original")):
        expected = array(model(X))  # Keras exports a model only after its first call
        model.export(path, format="onnx", verbose=False)
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (outputs,) = session.run(None, {session.get_inputs()[0].name: X})
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


@use("Copying and saving", "LiteRT", on=("tensorflow",))
def litert(tmp_path):
    pytest.importorskip("ai_edge_litert")
    export_model(network(), tmp_path / "model.tflite")


@use("Copying and saving", "OpenVINO", on=("tensorflow",))
def openvino(tmp_path):
    pytest.importorskip("openvino")
    export_model(network(), tmp_path / "model.xml")


@use("Copying and saving", "safetensors")
def safetensors(tmp_path):
    from keras_preact.interop import load_safetensors, save_safetensors

    model, other = network(), network()
    save_safetensors(model, tmp_path / "w.safetensors")
    load_safetensors(other, tmp_path / "w.safetensors")
    same(model, other)


# ---- running ------------------------------------------------------------------------------------------------------


@use("Running", "`predict` from several threads")
def threads(tmp_path):
    model, found = network(), {}
    expected = model.predict(X, verbose=0)

    def work(number):
        found[number] = array(model(X))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for each in found.values():
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-4)
    assert len(found) == 4


@use("Running", "`predict` in batches equals one call")
def predict(tmp_path):
    model = network()
    np.testing.assert_allclose(model.predict(X, batch_size=3, verbose=0), array(model(X)), rtol=1e-4, atol=1e-4)


@use("Running", "a Transformer on tokens")
def words(tmp_path):
    model = prenorm_transformer(depth=1, dim=8, heads=2)
    tokens = np.ones((2, *model.input_shape[1:]), model.inputs[0].dtype)
    assert np.isfinite(array(model(tokens))).all()


@use("Running", "a model after `clear_session`")
def cleared(tmp_path):
    model = network()
    before = array(model(X))
    keras.backend.clear_session()
    np.testing.assert_array_equal(before, array(model(X)))


@use("Running", "a global data format or policy that changed after building")
def other_settings(tmp_path):
    model = network()
    before = array(model(X))
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.set_image_data_format("channels_first")
    np.testing.assert_array_equal(before, array(model(X)))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(before, array(clone(X)))


# ---- the tests and the page ---------------------------------------------------------------------------------------


@pytest.mark.sampled(17)
@pytest.mark.parametrize(("on", "act"), [pytest.param(on, act, id=act.__name__) for _, _, on, act in USES])
def test_a_way_to_use_it(on, act, tmp_path):
    if BACKEND not in on:
        pytest.skip(f"this is for {' and '.join(on)}")
    act(tmp_path)


def page():
    """Return the page of all ways."""
    lines = [
        "# Ways to use a layer or a network",
        "",
        "Will it work with a custom loop, `TimeDistributed`, `deepcopy` or ONNX? This page lists "
        f"{len(USES)} ways to use Keras layers and models.",
        "The layers and networks of this package pass a test of each, in `tests/test_uses.py`, on the backends in the",
        "last column. To run one: `pytest tests/test_uses.py -k grad_cam`.",
    ]
    for group in dict.fromkeys(group for group, *_ in USES):
        lines += ["", f"## {group}", "", "| way | test | backends |", "|---|---|---|"]
        for found, words, on, act in USES:
            if found == group:
                where = "all" if len(on) == 3 else ", ".join(NAMES[name] for name in on)
                lines.append(f"| {words} | `{act.__name__}` | {where} |")
    return "\n".join(lines) + "\n"


NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


def test_the_page_has_all_of_them():
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
