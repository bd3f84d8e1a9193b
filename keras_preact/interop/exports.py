"""Exporting networks as SavedModel, ONNX, OpenVINO or LiteRT, each checked against Keras's output."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError, WriteError, check_installed, first_line, shown
from keras_preact.files import writing
from keras_preact.keras_private import layers_inside
from keras_preact.layers.copies import custom_objects, set_weights
from keras_preact.layers.graph import check_model
from keras_preact.models.folding import fold
from keras_preact.models.transformer import vocabulary_of

Outputs = Callable[[np.ndarray], np.ndarray]
TOLERANCES = {"float32": 1e-4, "int8": 0.2}
"""Largest difference from Keras's outputs, relative to the largest output, by the dtype of the weights."""


@dataclass(frozen=True)
class Format:
    """An export format.

    Attributes:
        name: Keras's name for it.
        packages: the packages that it needs.
        open: reads an exported file and returns the function that runs it.
        since: the first release of Keras with the format.
        weights_suffix: suffix of the second file, which holds the weights; empty if there is none.
        dtypes: dtypes of the weights that it can hold.
    """

    name: str
    packages: tuple[str, ...]
    open: Callable[[Path], Outputs]
    since: tuple[int, int] = (3, 12)
    weights_suffix: str = ""
    dtypes: tuple[str, ...] = ("float32",)


def _open_saved_model(path: Path) -> Outputs:
    import tensorflow as tf

    program = tf.saved_model.load(str(path))  # `program.serve` alone does not keep the variables alive
    return lambda images: program.serve(images).numpy()


def _open_onnx(path: Path) -> Outputs:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {session.get_inputs()[0].name: images})[0]


def _open_litert(path: Path) -> Outputs:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))

    def outputs(images: np.ndarray) -> np.ndarray:
        place = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(place, images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(place, images)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return outputs


def _open_openvino(path: Path) -> Outputs:
    import openvino

    # The default on processors with bfloat16 instructions is bfloat16.
    compiled = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: compiled(images)[0]


FORMATS = {
    "": Format("tf_saved_model", ("tensorflow",), _open_saved_model),
    ".onnx": Format("onnx", ("tensorflow", "tf2onnx", "onnxruntime"), _open_onnx),
    ".xml": Format("openvino", ("tensorflow", "openvino"), _open_openvino, weights_suffix=".bin"),
    ".tflite": Format(
        "litert", ("tensorflow", "ai_edge_litert"), _open_litert, since=(3, 13), dtypes=("float32", "int8")
    ),
}
"""Export formats by the suffix of the path; a SavedModel is a folder without one. OpenVINO writes NAME.bin too."""


def export_model(model: keras.Model, path: str | Path, dtype: str = "float32") -> float:
    """Export a network as a SavedModel, ONNX, OpenVINO or LiteRT and compare its output with Keras's.

    The format follows from the path's suffix: none, `.onnx`, `.xml` (OpenVINO) or `.tflite`. The exported program is
    for inference: stacks are unrolled and batch norms folded, see `fold`. It computes in float32 whatever the model's
    policy, because few runtimes for these formats support bfloat16. LiteRT can also store the weights in int8, with one
    scale per filter, and compute with integers; it quantizes the activations as it runs. Measure the test error of such
    a file on your data. Keras's exporters need the TensorFlow backend and, except for SavedModels, the packages of the
    extra `export`.

    Args:
        model: a functional or Sequential model with one input and one output.
        path: path of the file or folder; must not exist.
        dtype: dtype of the stored weights: "float32", or "int8" for a `.tflite` file.

    Returns:
        The largest difference from Keras's output on random inputs, divided by the largest output.

    Raises:
        InputError: an unknown suffix, a dtype that the format does not support, an existing path, a missing package or
            another backend, a subclassed model, a Sequential model without an input shape, a model with several inputs
            or outputs, a model that cannot be copied in float32, one that fails on random inputs, a failed export, or
            a difference above 1e-4 (int8: 0.2). No new file remains.
        WriteError: the system refused to write, for example because the disk is full. No new file remains.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> difference = export_model(cifar_resnet(8), Path(tempfile.mkdtemp()) / "network")
    >>> difference < 1e-4
    True
    """
    check_model(model)
    path = Path(path)
    if path.suffix == ".safetensors":
        raise InputError(f"{path.name} holds weights only; write it with keras_preact.interop.save_safetensors")
    if path.suffix not in FORMATS:
        raise InputError(f"{path.name} has an unknown suffix; pass a folder, NAME.onnx, NAME.xml or NAME.tflite")
    format = FORMATS[path.suffix]
    if dtype not in format.dtypes:
        raise InputError(f"{path.name} cannot have weights in {dtype}; choose {' or '.join(format.dtypes)}")
    _check(model, path, format)
    model = _in_float32(model)
    images = _images(model)
    expected = _outputs(model, images)
    try:
        found = _exported(model, images, path, format, dtype)
        with np.errstate(invalid="ignore"):  # outputs that are not finite are refused below
            difference = float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-12))
    except Exception as error:
        _remove(path, format)
        if isinstance(error, WriteError):
            raise
        raise InputError(
            f"{model.name} cannot be exported as {format.name} ({first_line(error)}); try another format"
        ) from None
    if not np.isfinite(expected).all():
        _remove(path, format)
        raise InputError(f"the outputs of {model.name} are NaN or infinite, so its export cannot be checked; train it")
    if not difference <= TOLERANCES[dtype]:
        _remove(path, format)
        raise InputError(
            f"{model.name} as {format.name} differs from Keras by {difference:.1e} of the largest output; try another "
            "format"
        )
    return difference


def _outputs(model: keras.Model, images: np.ndarray) -> np.ndarray:
    """Return what Keras computes."""
    try:
        return keras.ops.convert_to_numpy(model(images, training=False))
    except Exception as error:
        if "NHWC" in str(error):
            raise InputError(
                f"TensorFlow without oneDNN cannot run {model.name} on CPUs, because its data are channels_first; set "
                "TF_ENABLE_ONEDNN_OPTS=1 before TensorFlow is imported"
            ) from None
        raise InputError(
            f"{model.name} fails on random inputs of shape {images.shape} ({first_line(error)}); correct it, or give "
            "its input a fixed shape"
        ) from None


def _exported(model: keras.Model, images: np.ndarray, path: Path, format: Format, dtype: str) -> np.ndarray:
    """Write the program and return what it computes."""
    program = _for_inference(model)
    # Without `training=False`, Keras's augmentations would be part of the program.
    program = keras.Model(program.input, program(program.input, training=False), name=program.name)
    program(images)  # Keras exports no model that was never called
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporters
        with writing(path), _constant_normalizations(program):
            _write(program, path, format, dtype)
        return format.open(path)(images)


def _check(model: keras.Model, path: Path, format: Format) -> None:
    for file in _files(path, format):
        if file.exists():
            raise InputError(f"{file} exists already and is not overwritten; choose another path")
    if keras.backend.backend() != "tensorflow":
        raise InputError(f"Keras exports {format.name} only on its TensorFlow backend; set KERAS_BACKEND=tensorflow")
    check_installed(format.name, *format.packages)
    if tuple(map(int, keras.__version__.split(".")[:2])) < format.since:
        since = ".".join(map(str, format.since))
        raise InputError(
            f"{format.name} needs Keras {since} and Python 3.11 or later; this is Keras {keras.__version__}"
        )
    try:
        count = len(model.inputs), len(model.outputs)
    except (AttributeError, ValueError):
        raise InputError(
            f"{model.name} is not a functional model; make it one: inputs = keras.Input(shape), then "
            "keras.Model(inputs, model(inputs))"
        ) from None
    if count != (1, 1):
        raise InputError(f"{model.name} has {count[0]} inputs and {count[1]} outputs; export needs one of each")
    if any(isinstance(getattr(model, side, None), dict) for side in ("input", "output")):
        raise InputError(
            f"{model.name} has a dictionary as input or output; export keras.Model(model.inputs[0], model.outputs[0])"
        )


@contextlib.contextmanager
def _constant_normalizations(program: keras.Model) -> Iterator[None]:
    """Within the block, Keras's `Normalization` layers compute with arrays.

    They compute with tensors that they made in `build`, which tf2onnx takes for inputs of the program.
    """
    layers = [layer for layer in layers_inside(program) if isinstance(layer, keras.layers.Normalization)]
    tensors = [(layer.mean, layer.variance) for layer in layers]
    try:
        for layer in layers:
            layer.mean, layer.variance = map(keras.ops.convert_to_numpy, (layer.mean, layer.variance))
        yield
    finally:
        for layer, (mean, variance) in zip(layers, tensors, strict=True):
            layer.mean, layer.variance = mean, variance


def _write(program: keras.Model, path: Path, format: Format, dtype: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)  # OpenVINO would not create it
    if format.name == "openvino":
        _write_openvino(program, path)
        return
    options = {}
    if format.name == "onnx":
        _write_erfc()
    if dtype == "int8":
        import tensorflow as tf

        options["optimizations"] = [tf.lite.Optimize.DEFAULT]
    program.export(str(path), format=format.name, verbose=False, **options)


def _write_openvino(program: keras.Model, path: Path) -> None:
    """Convert a SavedModel: on Python 3.13, OpenVINO 2026.4 rejects the function that Keras passes to it."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        program.export(folder, format="tf_saved_model", verbose=False)
        written = Path(folder, path.name)
        openvino.save_model(openvino.convert_model(folder), written, compress_to_fp16=False)
        for suffix in (".xml", ".bin"):  # moved by Python, which says why if the disk is full
            shutil.move(written.with_suffix(suffix), path.with_suffix(suffix))


@functools.cache
def _write_erfc() -> None:
    """Make tf2onnx convert erfc(x), which exact GELU uses, to 1 - erf(x): ONNX has no such operation."""
    from tf2onnx.handler import tf_op

    if any("Erfc" in known for opset in tf_op.get_opsets().values() for known in opset):
        return

    @tf_op("Erfc")
    class _Erfc:
        @classmethod
        def version_9(cls, context: Any, node: Any, **_: Any) -> None:
            output, dtype = node.output[0], node.output_dtypes[0]
            shape = context.get_shape(output)
            context.remove_node(node.name)
            one = context.make_const(f"{node.name}_one", np.ones((), np.float32))  # every export is in float32
            erf = context.make_node("Erf", node.input, dtypes=[dtype], shapes=[shape])
            operands = [one.output[0], erf.output[0]]
            context.make_node("Sub", operands, outputs=[output], dtypes=[dtype], shapes=[shape])


def _in_float32(model: keras.Model) -> keras.Model:
    """Return the model if it is all float32, otherwise a float32 copy.

    Raises:
        InputError: it cannot be created from its configuration.
    """
    try:
        text = json.dumps(keras.saving.serialize_keras_object(model))
        changed = re.sub(r'"(mixed_)?(bfloat16|float16|float64)"', '"float32"', text)
        if changed == text:
            return model
        with keras.saving.CustomObjectScope(custom_objects(model)):
            copy = keras.saving.deserialize_keras_object(json.loads(changed), safe_mode=False)  # its own lambdas
        set_weights(copy, model.get_weights())
    except Exception as error:  # any of a custom layer's constructor
        if all(layer.compute_dtype == "float32" for layer in layers_inside(model)):
            return model  # it needs no copy: its optimizer, for example, cannot be serialized
        raise InputError(
            f"{model.name} cannot be copied in float32 ({shown(first_line(error), 200)}); return all constructor "
            "arguments of its layers from get_config"
        ) from None
    return copy


def _for_inference(model: keras.Model) -> keras.Model:
    """Return the model folded, or unchanged if it cannot be folded.

    Loops run slowly in other runtimes, and OpenVINO cannot convert them; folding unrolls them too.
    """
    try:
        return fold(model)
    except InputError:
        return model


def _images(model: keras.Model) -> np.ndarray:
    """Return a batch of two random inputs: tokens within the vocabulary, and 64 for every unknown size."""
    shape = tuple(size or 64 for size in model.input_shape[1:])
    dtype = model.inputs[0].dtype
    random = np.random.default_rng(0)
    if "int" in dtype:
        return random.integers(0, vocabulary_of(model), (2, *shape)).astype(dtype)
    return random.normal(size=(2, *shape)).astype(dtype)


def _files(path: Path, format: Format) -> list[Path]:
    """Return the files, or the folder, that an export writes."""
    return [path, *([path.with_suffix(format.weights_suffix)] if format.weights_suffix else [])]


def _remove(path: Path, format: Format) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        for file in _files(path, format):
            file.unlink(missing_ok=True)
