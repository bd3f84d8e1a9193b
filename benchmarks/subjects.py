"""The subjects of the comparisons. Each builds a network in its own process and returns a function that runs one step.

`cifar…` are CIFAR networks of any depth (10 classes, 32×32), `imagenet…` are pre-activation ResNet-50 at 224×224. The
plain network is what a user would write from the paper in the functional API. It and the PyTorch network have the same
units, shortcuts and parameters as this package's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[], Any]


class _Counted:
    """A step whose floating-point operations are known; a multiply-add counts as two."""

    def __init__(self, step: Step, flops: float) -> None:
        self._step, self.flops = step, flops

    def __call__(self) -> Any:
        return self._step()


def images(batch: int, size: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, size, size, 3)).astype("float32"), np.arange(batch) % classes


# ---- Keras --------------------------------------------------------------------------------------------------------


def training_step(
    model: Any, batch: int, size: int, classes: int, xla: bool | None = None, builds_optimizer: bool = True
) -> Step:
    """Compile a network and return its training step.

    By default the optimizer's variables exist before the first step, as in this package's runs. Keras creates them in
    that step, and TensorFlow then traces it twice.
    """
    import keras

    from keras_preact.training.device import compiles_with_xla

    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=compiles_with_xla() if xla is None else xla,
    )
    if builds_optimizer:
        model.optimizer.build(model.trainable_variables)
    x, y = images(batch, size, classes)
    return lambda: model.train_on_batch(x, y)


def inference_step(model: Any, batch: int, size: int) -> Step:
    x, _ = images(batch, size, 10)
    return lambda: model.predict_on_batch(x)


def forward_flops(model: Any, batch: int) -> float:
    """Return the floating-point operations of a forward pass; a training step has three times as many."""
    from keras_preact.models.summary import multiply_adds

    return 2.0 * batch * multiply_adds(model)


def cifar(
    depth: int,
    batch: int,
    xla: bool | None = None,
    intra_op_threads: int | None = None,
    deterministic: bool = False,
    rolled: bool | None = None,  # the default of runs, not of `cifar_resnet`
    builds_optimizer: bool = True,
    **options: Any,
) -> Step:
    import keras

    from keras_preact.models import cifar_resnet
    from keras_preact.training.device import make_deterministic

    if intra_op_threads and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
    if deterministic:
        make_deterministic()
    return training_step(cifar_resnet(depth, rolled=rolled, **options), batch, 32, 10, xla, builds_optimizer)


def matrix_product(size: int) -> Step:
    """Return the product of two square matrices, as fast as the backend computes on this processor."""
    import keras

    dtype = keras.config.dtype_policy().compute_dtype
    rng = np.random.default_rng(0)
    a, b = (keras.ops.convert_to_tensor(rng.normal(size=(size, size)), dtype) for _ in range(2))
    # NumPy cannot hold a single bfloat16 number, hence the cast.
    return _Counted(lambda: float(keras.ops.cast(keras.ops.matmul(a, b)[0, 0], "float32")), 2 * size**3)


def cifar_twice(**arguments: Any) -> Step:
    """Return a step that runs two steps of `cifar`."""
    step = cifar(**arguments)

    def twice() -> None:
        step()
        step()

    return twice


def cifar_at_once(runs: int, precision: str, **arguments: Any) -> Step:
    """Return a step of several parallel runs, each in its own process with one thread."""
    from benchmarks.worker import Worker

    workers = [Worker("cifar", arguments, precision, threads=1) for _ in range(runs)]

    def step() -> None:
        for worker in workers:
            worker.ask(1)
        for worker in workers:
            worker.answer()

    return step


def cifar_plain(depth: int, batch: int, builds_optimizer: bool = False) -> Step:
    # By default as users write it: Keras builds the optimizer in the first step.
    return training_step(plain_network(depth), batch, 32, 10, builds_optimizer=builds_optimizer)


def plain_network(depth: int) -> Any:
    """Return the paper's pre-activation network, built from Keras's layers in the functional API."""
    import keras
    from keras import layers

    from keras_preact.models import cifar_units

    block, n = cifar_units(depth)
    kernels, expansion = ([3, 3], 1) if block == "basic" else ([1, 3, 1], 4)

    def norm_relu(x: Any) -> Any:
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))

    def conv(x: Any, filters: int, kernel: int, strides: int = 1) -> Any:
        return layers.Conv2D(filters, kernel, strides, "same", use_bias=False, kernel_initializer="he_normal")(x)

    inputs = keras.Input((32, 32, 3))
    x = conv(inputs, 16, 3)
    for stage, filters in enumerate((16, 32, 64)):
        for unit in range(n):
            strides = 2 if stage and not unit else 1
            y = norm_relu(x)
            if not unit:  # the first unit of a stage shares its pre-activation
                x = conv(y, filters * expansion, 1, strides) if stage or expansion > 1 else y
            for i, kernel in enumerate(kernels):
                y = norm_relu(y) if i else y
                last = i == len(kernels) - 1
                strided = strides if i == (0 if block == "basic" else 1) else 1
                y = conv(y, filters * (expansion if last else 1), kernel, strided)
            x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(norm_relu(x))
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(x))


def imagenet(batch: int, inference: bool = False, **options: Any) -> Step:
    from keras_preact.models import fold, preact_resnet50

    model = preact_resnet50(**options)
    flops = forward_flops(model, batch)
    if inference:
        return _Counted(inference_step(fold(model), batch, 224), flops)
    return _Counted(training_step(model, batch, 224, 1000), 3 * flops)


def imagenet_applications(batch: int, inference: bool = False) -> Step:
    import keras

    model = keras.applications.ResNet50V2(weights=None, classifier_activation=None)
    return inference_step(model, batch, 224) if inference else training_step(model, batch, 224, 1000)


# ---- serving ------------------------------------------------------------------------------------------------------


def served(network: str, runtime: str, batch: int) -> Step:
    """Return an inference step of a folded network in a runtime, from a NumPy array to a NumPy array."""
    import tempfile
    from pathlib import Path

    from keras_preact.interop import export_model
    from keras_preact.models import cifar_resnet, fold, preact_resnet50

    model = cifar_resnet(110) if network == "cifar" else preact_resnet50()
    x, _ = images(batch, model.input_shape[1], 10)
    if runtime == "TensorFlow":
        folded = fold(model)
        return lambda: folded.predict_on_batch(x)
    if runtime == "TensorFlow, frozen":
        return _frozen(fold(model), x)
    suffix, opened = RUNTIMES[runtime]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"network{suffix}")
        export_model(model, path)  # folds it
        return opened(path, x)


def _frozen(model: Any, x: np.ndarray) -> Step:
    """TensorFlow with the weights as constants of the graph."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    call = tf.function(lambda images: model(images, training=False))
    graph = convert_variables_to_constants_v2(call.get_concrete_function(tf.TensorSpec(x.shape, x.dtype)))
    return lambda: graph(tf.constant(x))[0].numpy()


def _as_checked(path: Any, x: np.ndarray) -> Step:
    """The runtime as `export_model` uses it to check the file."""
    from keras_preact.interop.exports import FORMATS

    outputs = FORMATS[path.suffix].open(path)
    return lambda: outputs(x)


def _openvino_bfloat16(path: Any, x: np.ndarray) -> Step:
    import openvino

    compiled = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    return lambda: compiled(x)[0]


def _litert(path: Any, x: np.ndarray) -> Step:
    """With all cores, and without an allocation for each batch."""
    import os

    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=path.read_bytes(), num_threads=os.cpu_count())
    place, out = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    interpreter.resize_tensor_input(place, x.shape)
    interpreter.allocate_tensors()

    def step() -> np.ndarray:
        interpreter.set_tensor(place, x)
        interpreter.invoke()
        return interpreter.get_tensor(out)

    return step


RUNTIMES: dict[str, tuple[str, Callable[[Any, np.ndarray], Step]]] = {
    "ONNX Runtime": (".onnx", _as_checked),
    "OpenVINO, float32": (".xml", _as_checked),
    "OpenVINO, bfloat16": (".xml", _openvino_bfloat16),
    "LiteRT": (".tflite", _litert),
}
"""Suffix of the exported file, and the function that opens it, by runtime."""


def cifar_torch_served(block: str, n: int, batch: int) -> Step:
    import torch

    model = torch.compile(torch_cifar(block, n).eval())
    pixels = torch.from_numpy(images(batch, 32, 10)[0].transpose(0, 3, 1, 2))
    pixels = pixels.contiguous(memory_format=torch.channels_last)

    def step() -> np.ndarray:
        with torch.inference_mode():
            return model(pixels).numpy()

    return step


# ---- runs ---------------------------------------------------------------------------------------------------------


def model_of_a_run(depth: int) -> tuple[Any, Any]:
    """Return the compiled model that a run of this package trains, with augmentation, and its data."""
    import keras

    from keras_preact.data import load_dataset
    from keras_preact.training import RunConfig, get_recipe
    from keras_preact.training.build import build_model

    data = load_dataset("bundled")
    config = RunConfig(options={"depth": depth}, recipe=get_recipe("short"), precision=keras.config.dtype_policy().name)
    model = build_model(config, data)
    return model, data


def fit(depth: int, batch: int, steps: int, steps_per_execution: int = 1) -> Step:
    """Return `fit` as in a run of this package, with real images, augmentation and metrics: `steps` training steps."""
    from keras_preact.data import feed

    model, data = model_of_a_run(depth)
    model.steps_per_execution = steps_per_execution

    def run() -> Any:
        batches = feed(data.train.train_batches(batch, 0, 0))
        return model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)

    return run


def bare(depth: int, batch: int, steps: int) -> Step:
    """Return `steps` bare training steps of the same model, on one batch in memory."""
    import keras

    model, data = model_of_a_run(depth)
    x, y = data.train.batch(np.arange(batch))
    x, y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
    model.make_train_function()

    def step() -> Any:
        # On other backends the train function also needs the state, which `train_on_batch` passes.
        if keras.backend.backend() == "tensorflow":
            return model.train_function(iter([(x, y)]))
        return model.train_on_batch(x, y)

    def run() -> Any:
        for _ in range(steps):
            logs = step()
        return keras.tree.map_structure(float, logs)

    return run


# ---- Transformers -------------------------------------------------------------------------------------------------


def sequences(batch: int, length: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(batch, length, dim)).astype("float32"), np.arange(batch) % 10


def encoder_step(model: Any, batch: int, length: int, dim: int) -> Step:
    import keras

    from keras_preact.training.device import compiles_with_xla

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=compiles_with_xla())
    x, y = sequences(batch, length, dim)
    return lambda: model.train_on_batch(x, y)


def encoder(depth: int, dim: int, heads: int, length: int, batch: int, rolled: bool | None = None) -> Step:
    """The pre-norm encoder of this package: embedding, positions, blocks, norm, mean, ten classes."""
    from keras_preact.models import Classification, Series, prenorm_transformer

    options: dict[str, Any] = {"depth": depth, "dim": dim, "heads": heads, "rolled": rolled}
    model = prenorm_transformer(Series(length, dim), Classification(10), **options)
    return encoder_step(model, batch, length, dim)


def encoder_keras_hub(depth: int, dim: int, heads: int, length: int, batch: int) -> Step:
    return encoder_step(keras_hub_network(depth, dim, heads, length), batch, length, dim)


def keras_hub_network(depth: int, dim: int, heads: int, length: int) -> Any:
    """Return the same encoder, built from keras_hub's layers."""
    import keras
    import keras_hub

    inputs = keras.Input((length, dim))
    x = keras.layers.Dense(dim)(inputs)
    x = x + keras_hub.layers.PositionEmbedding(length)(x)
    for _ in range(depth):
        x = keras_hub.layers.TransformerEncoder(4 * dim, heads, activation="gelu", normalize_first=True)(x)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(10, dtype="float32")(x))


def encoder_torch(
    depth: int, dim: int, heads: int, length: int, batch: int, bfloat16: bool, compiled: bool = False
) -> Step:
    import torch

    model = torch_encoder(depth, dim, heads, length)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    x, y = (torch.from_numpy(array) for array in sequences(batch, length, dim))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            loss = torch.nn.functional.cross_entropy(run(x).float(), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def torch_encoder(depth: int, dim: int, heads: int, length: int) -> Any:
    """Return the same encoder, built from PyTorch's layers."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(dim, dim)
            self.positions = nn.Parameter(0.02 * torch.randn(length, dim))
            layer = nn.TransformerEncoderLayer(
                dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
            self.logits = nn.Linear(dim, 10)

        def forward(self, x: Any) -> Any:
            return self.logits(self.encoder(self.embedding(x) + self.positions).mean(1))

    return Network()


# ---- PyTorch ------------------------------------------------------------------------------------------------------


def torch_cifar(block: str, n: int, width: int = 1) -> Any:
    """Return the same network in PyTorch, channels_last; `width` multiplies the filters of the stages."""
    import torch
    from torch import nn

    kernels, expansion = ([3, 3], 1) if block == "basic" else ([1, 3, 1], 4)

    class Unit(nn.Module):
        def __init__(self, channels: int, filters: int, strides: int, first: bool) -> None:
            super().__init__()
            out = filters * expansion
            widths = [channels, *[filters] * (len(kernels) - 1), out]
            strided = 0 if block == "basic" else 1
            self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[:-1])
            self.convs = nn.ModuleList(
                nn.Conv2d(a, b, k, strides if i == strided else 1, k // 2, bias=False)
                for i, (a, b, k) in enumerate(zip(widths[:-1], widths[1:], kernels, strict=True))
            )
            self.first = first
            changes = strides > 1 or channels != out
            self.projection = nn.Conv2d(channels, out, 1, strides, bias=False) if changes else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.norms[0](x))
            skip = self.projection(y) if self.first else x
            y = self.convs[0](y)
            for norm, conv in zip(list(self.norms)[1:], list(self.convs)[1:], strict=True):
                y = conv(torch.relu(norm(y)))
            return skip + y

    parts: list[Any] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    channels = 16
    for stage, filters in enumerate((16 * width, 32 * width, 64 * width)):
        for unit in range(n):
            parts.append(Unit(channels, filters, 2 if stage and not unit else 1, first=not unit))
            channels = filters * expansion
    parts += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*parts).to(memory_format=torch.channels_last)


def cifar_torch(block: str, n: int, batch: int, bfloat16: bool, compiled: bool) -> Step:
    """A training step of the same network in PyTorch; `compiled`: by torch.compile."""
    import torch
    from torch import nn

    model = torch_cifar(block, n)
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x, y = images(batch, 32, 10)
    pixels = torch.from_numpy(x.transpose(0, 3, 1, 2)).contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(y)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            loss = nn.functional.cross_entropy(run(pixels).float(), labels)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step
