"""Weights as safetensors: a format that other programs read and that cannot contain code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from keras_preact.errors import InputError, check_choice
from keras_preact.files import written_aside
from keras_preact.layers.composite import has_adapters
from keras_preact.layers.graph import check_model
from keras_preact.models.saving.named_weights import assign_checked, named_weights
from keras_preact.version import __version__

SAVED_DTYPES = ("float32", "float16")
ABOUT = "keras_preact.about"
"""The metadata entry with the model's name, the package's version, and the checksum of the tensors, as JSON.

A single entry, because safetensors writes several in arbitrary order. Files of other programs lack it and load without
a checksum.
"""


def save_safetensors(model: keras.Model, path: str | Path, dtype: str = "float32") -> None:
    """Write a model's weights, trainable or not, by their paths (`stage1_unit02/conv1/kernel`).

    The paths are those of the unrolled network, so rolled and unrolled networks write the same file.

    Args:
        model: a built Keras model; a functional one has no weights besides those of its layers.
        path: path of the file, which is replaced if it exists.
        dtype: of floating-point weights: `"float32"` (default) or `"float16"`, which halves the size.

    Raises:
        InputError: the model is not built or has adapters (LoRA), an unknown dtype, or a weight that is not finite in
            the dtype.
        WriteError: (an OSError) the system refused to write the file; an existing file is unchanged.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> save_safetensors(cifar_resnet(8), path)
    >>> load_safetensors(cifar_resnet(8), path)
    """
    check_model(model)
    if not model.built:
        raise InputError(f"{model.name} has no weights yet; call it on a batch, then save it")
    if has_adapters(model):
        raise InputError(
            f"{model.name} has adapters (LoRA), which this file cannot hold; build the network again without them, "
            "and assign the merged kernels, `layer.kernel`, to its layers"
        )
    tensors = as_arrays(model, dtype)
    about = {"model": model.name, "version": __version__, "sha256": tensors_checksum(tensors)}
    with written_aside(Path(path)) as aside:  # safetensors' own `save_file` hides the file from other users
        aside.write_bytes(save(tensors, {ABOUT: json.dumps(about)}))


def as_arrays(model: keras.Model, dtype: str) -> dict[str, np.ndarray]:
    """Return all weights of a model by name: floats as arrays of a dtype, integers and booleans in their own.

    Raises:
        InputError: an unknown dtype, or a weight that is not finite in it.
    """
    check_choice("dtype", dtype, SAVED_DTYPES)
    tensors: dict[str, np.ndarray] = {}
    for name, weight in named_weights(model).items():
        value = weight.value()
        if "float" in value.dtype.name:
            if not np.isfinite(value).all() or np.abs(value).max(initial=0) > np.finfo(dtype).max:
                raise InputError(f"{name} contains values that are not finite in {dtype}; nothing was written")
            value = value.astype(dtype)
        tensors[name] = np.asarray(value, order="C")
    return tensors


def load_safetensors(model: keras.Model, path: str | Path) -> None:
    """Load all weights of a model from a file that `save_safetensors` wrote.

    Args:
        model: a model with the layers, names and shapes of the saved one, rolled or not.
        path: path of the file.

    Raises:
        InputError: the file does not exist, is not safetensors, or has missing or extra weights, or weights of a
            different shape or that are not finite. The model is unchanged.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> saved, loaded = cifar_resnet(8), cifar_resnet(8)
    >>> save_safetensors(saved, path)
    >>> load_safetensors(loaded, path)
    >>> bool(keras.ops.all(loaded.get_layer("logits").kernel == saved.get_layer("logits").kernel))
    True
    """
    check_model(model)
    path = Path(path)
    assign_checked(path.name, model, read_safetensors(path))


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file by name.

    Raises:
        InputError: the file does not exist, has a different format, or does not match its checksum.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist; pass the path of a .safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except (SafetensorError, OSError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read as safetensors ({error}); save it again") from None
    if about and (not isinstance(about, dict) or about.get("sha256") != tensors_checksum(tensors)):
        raise InputError(f"{path.name} is damaged: its weights do not match its checksum; copy or save it again")
    return tensors


def tensors_checksum(tensors: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and values of tensors.

    >>> tensors_checksum({"a": np.zeros(2, "float32")}) == tensors_checksum({"a": np.zeros((1, 2), "float32")})
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.name, tensor.shape]).encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view("uint8").data)
    return digest.hexdigest()
