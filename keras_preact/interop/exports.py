"""Whole networks for other programs: SavedModel, ONNX, LiteRT, each asked at once whether it computes the same."""

from __future__ import annotations

import functools
import json
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError, check_installed

Outputs = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Format:
    """A format: Keras's name for it, the packages it needs, how a file gives outputs, and since when Keras has it."""

    name: str
    packages: tuple[str, ...]
    open: Callable[[Path], Outputs]
    since: tuple[int, int] = (3, 12)


def _open_saved_model(path: Path) -> Outputs:
    import tensorflow as tf

    program = tf.saved_model.load(str(path))  # the function alone does not keep its variables alive
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


FORMATS = {
    "": Format("tf_saved_model", ("tensorflow",), _open_saved_model),
    ".onnx": Format("onnx", ("tensorflow", "tf2onnx", "onnxruntime"), _open_onnx),
    ".tflite": Format("litert", ("tensorflow", "ai_edge_litert"), _open_litert, since=(3, 13)),
}
"""By the ending of the path: a folder's name has none."""


def export_model(model: keras.Model, path: str | Path) -> float:
    """Write a network, by the path's ending as a SavedModel (none), ONNX (.onnx) or LiteRT (.tflite), and compare.

    Written in float32, whatever the network's policy: few programs that run these formats have bfloat16. By Keras's own
    exporters, which need its TensorFlow backend, and for ONNX and LiteRT further packages (this project's extra
    `export`).

    Args:
        model: any Keras model with one input and one output.
        path: of the file or folder; must not exist.

    Returns:
        The largest difference from Keras's output, on random images, as a share of the largest output.

    Raises:
        InputError: an unknown ending, a path that exists, a package or backend that is missing, a model with several
            inputs, or a difference above 1e-4, in which case nothing is left behind.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> difference = export_model(cifar_resnet(8), Path(tempfile.mkdtemp()) / "network")
    >>> difference < 1e-4
    True
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise InputError(f"{path.name} ends in no known format; name a folder, or a file NAME.onnx or NAME.tflite")
    format = FORMATS[path.suffix]
    _check(model, path, format)
    model = _in_float32(model)
    images = _images(model)
    try:
        expected = keras.ops.convert_to_numpy(model(images, training=False))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporters, about their own future
            if format.name == "onnx":
                _write_erfc()
            model.export(path, format=format.name, verbose=False)
            difference = float(np.abs(format.open(path)(images) - expected).max() / max(np.abs(expected).max(), 1e-12))
    except Exception as error:
        _remove(path)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{model.name} cannot be written as {format.name} ({reason}); try another format") from None
    if not difference <= 1e-4:
        _remove(path)
        raise InputError(f"{model.name} as {format.name} differs from Keras by {difference:.1e} of the largest output")
    return difference


def _check(model: keras.Model, path: Path, format: Format) -> None:
    if path.exists():
        raise InputError(f"{path} exists already and is not overwritten; name another")
    if keras.backend.backend() != "tensorflow":
        raise InputError(f"Keras exports {format.name} on its TensorFlow backend; set KERAS_BACKEND=tensorflow")
    check_installed(format.name, *format.packages)
    if tuple(map(int, keras.__version__.split(".")[:2])) < format.since:
        since = ".".join(map(str, format.since))
        raise InputError(
            f"{format.name} needs Keras {since}, and with it Python 3.11; this is Keras {keras.__version__}"
        )
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise InputError(
            f"{model.name} has {len(model.inputs)} inputs and {len(model.outputs)} outputs; give one with one"
        )


@functools.cache
def _write_erfc() -> None:
    """Have tf2onnx write erfc(x), of which exact GELUs are made, as 1 - erf(x): ONNX has no operation for it."""
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
    """Return the model with all layers in float32, a copy where they are not."""
    text = json.dumps(keras.saving.serialize_keras_object(model))
    changed = re.sub(r'"(mixed_)?(bfloat16|float16|float64)"', '"float32"', text)
    if changed == text:
        return model
    copy = keras.saving.deserialize_keras_object(json.loads(changed))
    copy.set_weights(model.get_weights())
    return copy


def _images(model: keras.Model) -> np.ndarray:
    """Return two random inputs of the model, tokens among those that it knows; 64 where it leaves a size open."""
    shape = tuple(size or 64 for size in model.input_shape[1:])
    dtype = model.inputs[0].dtype
    random = np.random.default_rng(0)
    if "int" in dtype:
        tokens = [layer.input_dim for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
        return random.integers(0, min(tokens, default=256), (2, *shape)).astype(dtype)
    return random.normal(size=(2, *shape)).astype(dtype)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
