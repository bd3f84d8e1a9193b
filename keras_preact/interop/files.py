"""Weights in files that other programs read too, and from which nothing can be executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_preact.errors import InputError, check_choice
from keras_preact.version import __version__

SAVED_DTYPES = ("float32", "float16")


def save_safetensors(model: keras.Model, path: str | Path, dtype: str = "float32") -> None:
    """Write a model's weights, trained and not trained, under their paths (`stage1_unit01/conv1/kernel`).

    Args:
        model: any Keras model that is built.
        path: of the file, which is replaced if it exists.
        dtype: `"float32"` (default) or `"float16"`, half the size; what is larger than float16 can hold is refused.

    Raises:
        InputError: another dtype, two weights of one path, one that does not fit the dtype, or a file that cannot be
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
    for variable in _weights(model):
        value = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
        if not np.isfinite(value).all() or np.abs(value).max(initial=0) > np.finfo(dtype).max:
            raise InputError(f"the weight {variable.path} has values that {dtype} does not hold; nothing is written")
        if variable.path in tensors:
            raise InputError(f"two weights of {model.name} have the path {variable.path}; give its layers other names")
        tensors[variable.path] = np.ascontiguousarray(value.astype(dtype))
    path = Path(path)
    aside = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, aside, metadata={"model": model.name, "keras_preact": __version__})
        aside.replace(path)
    except (SafetensorError, OSError) as error:
        aside.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written ({error}); name a folder that is there and has space") from None


def load_safetensors(model: keras.Model, path: str | Path) -> None:
    """Set a model's weights to those of a file that `save_safetensors` wrote: all of them, or none.

    Args:
        model: with the layers, names and shapes of the one that was saved.
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
    weights = {variable.path: variable for variable in _weights(model)}
    tensors = read_safetensors(Path(path))
    _refuse_other_names(path, model, set(weights), set(tensors))
    for name, variable in weights.items():
        if tensors[name].shape != tuple(variable.shape):
            raise InputError(
                f"the weight {name} is {tensors[name].shape} in {Path(path).name} and {tuple(variable.shape)} in "
                f"{model.name}; build the network with the options of the one that was saved"
            )
    for name, variable in weights.items():
        variable.assign(tensors[name].astype("float32"))


def _weights(model: keras.Model) -> list[Any]:
    # Seed generators have a state of their own: an integer, no part of the function that was learned.
    return [variable for variable in model.weights if keras.backend.is_float_dtype(variable.dtype)]


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise InputError(f"there is no file {path}; give the path of a .safetensors file")
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as safetensors ({error}); write it again") from None


def _refuse_other_names(path: str | Path, model: keras.Model, wanted: set[str], found: set[str]) -> None:
    # Of units in a stack that is written out, the names have one part more.
    model_rolled, file_rolled = (any(re.search("_stack/[^/]+$", name) for name in names) for names in (wanted, found))
    remedy = "" if model_rolled == file_rolled else f", rolled={file_rolled} among them"
    for differing, what in ((wanted - found, "lacks"), (found - wanted, "has, beyond those of the model,")):
        if names := sorted(differing):
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise InputError(
                f"{Path(path).name} {what} {shown}; build {model.name} with the options of the network that was "
                f"saved{remedy}"
            )
