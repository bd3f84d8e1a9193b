"""Weights in files that other programs read too, and from which nothing can be executed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_preact.errors import InputError, check_choice
from keras_preact.models.named_weights import assign_checked, named_weights
from keras_preact.version import __version__

SAVED_DTYPES = ("float32", "float16")
ABOUT = "keras_preact.about"
"""The entry of a file's metadata: the model's name, our version, the checksum of the tensors, as JSON.

One entry, because the format writes several in any order. Files of other programs have none, and load without a check.
"""


def save_safetensors(model: keras.Model, path: str | Path, dtype: str = "float32") -> None:
    """Write a model's weights, trained and not trained, under their paths (`stage1_unit02/conv1/kernel`).

    The paths are those of the network with each unit as a layer of its own, so a file of a rolled network is the same.

    Args:
        model: any Keras model that is built.
        path: of the file, which is replaced if it exists.
        dtype: `"float32"` (default) or `"float16"`, half the size; what is larger than float16 can hold is refused.

    Raises:
        InputError: another dtype, a weight that does not fit the dtype, or a file that cannot be
            written; one that was there is as it was then.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> save_safetensors(cifar_resnet(8), path)
    >>> load_safetensors(cifar_resnet(8), path)
    """
    check_choice("dtype", dtype, SAVED_DTYPES)
    tensors: dict[str, np.ndarray] = {}
    for name, weight in named_weights(model).items():
        value = weight.value()
        if not np.isfinite(value).all() or np.abs(value).max(initial=0) > np.finfo(dtype).max:
            raise InputError(f"the weight {name} has values that {dtype} does not hold; nothing is written")
        tensors[name] = value.astype(dtype, order="C")
    path = Path(path)
    aside = path.with_name(path.name + ".partial")
    about = {"model": model.name, "version": __version__, "sha256": checksum(tensors)}
    try:
        save_file(tensors, aside, metadata={ABOUT: json.dumps(about)})
        aside.replace(path)
    except (SafetensorError, OSError) as error:
        aside.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written ({error}); name a folder that is there and has space") from None


def load_safetensors(model: keras.Model, path: str | Path) -> None:
    """Set a model's weights to those of a file that `save_safetensors` wrote: all of them, or none.

    Args:
        model: with the layers, names and shapes of the one that was saved, whether units are rolled in it or not.
        path: of the file.

    Raises:
        InputError: no such file, none of safetensors, or weights that are missing, too many or of another shape; the
            model is as it was then.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> theirs, ours = cifar_resnet(8), cifar_resnet(8)
    >>> save_safetensors(theirs, path)
    >>> load_safetensors(ours, path)
    >>> bool(keras.ops.all(ours.get_layer("logits").kernel == theirs.get_layer("logits").kernel))
    True
    """
    path = Path(path)
    assign_checked(path.name, model, read_safetensors(path))


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file by name.

    Raises:
        InputError: no such file, another format, or tensors that are not those that were written.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of a .safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    except (SafetensorError, OSError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read as safetensors ({error}); write it again") from None
    if about and (not isinstance(about, dict) or about.get("sha256") != checksum(tensors)):
        raise InputError(f"{path.name} is damaged: its weights are not those that were written; copy or save it again")
    return tensors


def checksum(tensors: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of tensors: of their names, dtypes, shapes and values.

    >>> checksum({"a": np.zeros(2, "float32")}) == checksum({"a": np.zeros((1, 2), "float32")})
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.name, tensor.shape]).encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view("uint8").data)
    return digest.hexdigest()
