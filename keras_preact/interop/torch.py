"""Loading weights of PyTorch residual networks: timm's, torchvision's and pytorch-cifar's.

PyTorch is not required: a state dict is a dictionary of arrays. Only safetensors files are read, because PyTorch's own
files are pickles, which can execute code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError
from keras_preact.interop.naming import Naming, parts, take_weights
from keras_preact.layers.graph import check_model
from keras_preact.models.saving.safetensors import read_safetensors

_VARIABLES = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_CONVOLUTIONS = {f"conv{k}": f"conv{k}" for k in (1, 2, 3)}
_AFTER = {"norm2": "bn1", "norm3": "bn2", "norm_last": "bn{convolutions}"}
"""Batch norms of an original unit: PyTorch numbers them by the preceding convolution."""
_BEFORE = {f"norm{k}": f"bn{k}" for k in (1, 2, 3)}
"""Batch norms of a pre-activation unit: PyTorch numbers them by the following convolution."""
_UNITS: dict[str, Any] = {
    "stride_on": "3x3",
    "epsilon": 1e-5,
    "shortcut": "identity",
    "shape_change": "projection",
    "normalization": "batch",  # group norms also come with standardized kernels (BiT), which no name or shape shows
}
_ORIGINAL = _UNITS | {"placement": "original"}
_PREACTIVATION = _UNITS | {"placement": "full_preactivation"}

NAMINGS: dict[tuple[str, bool], Naming] = {
    ("timm's resnetv2", True): Naming(
        "timm's resnetv2",
        "stages.{stage0}.blocks.{unit0}.",
        _CONVOLUTIONS | {f"norm{k}": f"norm{k}" for k in (1, 2, 3)} | {"projection/conv": "downsample.conv"},
        {"stem_conv": "stem.conv", "head_norm": "norm", "logits": "head.fc"},
        _VARIABLES,
        requires=_PREACTIVATION,
    ),
    ("torchvision's and timm's resnet", False): Naming(
        "torchvision's and timm's resnet",
        "layer{stage}.{unit0}.",
        _CONVOLUTIONS | _AFTER | {"projection/conv": "downsample.0", "projection/norm": "downsample.1"},
        {"stem_conv": "conv1", "stem_norm": "bn1", "logits": "fc"},
        _VARIABLES,
        requires=_ORIGINAL,
    ),
    ("pytorch-cifar's PreActResNet", True): Naming(
        "pytorch-cifar's PreActResNet",
        "layer{stage}.{unit0}.",
        _CONVOLUTIONS | _BEFORE | {"projection/conv": "shortcut.0"},
        {"stem_conv": "conv1", "head_norm": "bn", "logits": "linear"},
        _VARIABLES,
        requires=_PREACTIVATION,
    ),
    ("pytorch-cifar's ResNet", False): Naming(
        "pytorch-cifar's ResNet",
        "layer{stage}.{unit0}.",
        _CONVOLUTIONS | _AFTER | {"projection/conv": "shortcut.0", "projection/norm": "shortcut.1"},
        {"stem_conv": "conv1", "stem_norm": "bn1", "logits": "linear"},
        _VARIABLES,
        requires=_ORIGINAL,
    ),
}
"""Naming by library and by whether its units are pre-activation units."""

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")


def load_torch_state_dict(model: keras.Model, source: str | Path | Mapping[str, Any]) -> None:
    """Load the weights of a PyTorch network into a network of the same architecture.

    Args:
        model: the matching network of this package, rolled or not: `imagenet_resnet(50, profile="timm")` for timm's
            `resnetv2_50`; `imagenet_resnet(50, "original")` for timm's or torchvision's `resnet50`;
            `imagenet_resnet(18, profile="pytorch_cifar", stem="3x3", classes=10)` for the `PreActResNet18` of many
            CIFAR repositories. With `include_top=False`, the weights of the dense layer are ignored.
        source: a `.safetensors` file, or a state dict: tensors or arrays by name, with or without the prefix `module.`
            of `DataParallel`.

    Raises:
        InputError: a pickle, the weights of another network (the message names the layer), a network that would compute
            something else with these weights, or values that are not finite. The model is unchanged.

    Example:

    >>> from keras_preact.models import imagenet_resnet
    >>> network = imagenet_resnet(18, profile="timm", input_shape=(64, 64, 3))
    >>> load_torch_state_dict(network, {"conv.weight": np.zeros(3)})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: the state dict matches none of these: timm's resnetv2, ...
    """
    check_model(model)
    if not isinstance(source, (str, os.PathLike, Mapping)):
        remedy = (
            "pass its state_dict()" if hasattr(source, "state_dict") else "pass a .safetensors file or a state dict"
        )
        raise InputError(f"a {type(source).__name__} is not a state dict; {remedy}")
    what = "the state dict" if isinstance(source, Mapping) else Path(source).name
    state = source if isinstance(source, Mapping) else _read(Path(source))
    state = {
        str(name).removeprefix("module."): tensor
        for name, tensor in state.items()
        if not str(name).endswith("num_batches_tracked")
    }
    if nested := [name for name, value in state.items() if isinstance(value, Mapping)]:
        raise InputError(f"{what} is a checkpoint, not a state dict; pass source[{nested[0]!r}]")
    naming = _recognized(state, model, what)
    take_weights(model, naming, {name: _array(tensor) for name, tensor in state.items()}, _kernel, what)


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix in PICKLES:
        raise InputError(
            f"{path.name} is a pickle, which can execute code; load it with torch.load(path, weights_only=True) and "
            "pass the state dict, or convert it to .safetensors"
        )
    return read_safetensors(path)


def _recognized(state: Mapping[str, Any], model: keras.Model, what: str) -> Naming:
    preactivation = next(bool(part.unit.placement.first) for part in parts(model) if part.unit is not None)
    dense = "linear" if "linear.weight" in state or any(".shortcut.0." in name for name in state) else "fc"
    if any(name.startswith("stages.") for name in state):
        library = "timm's resnetv2"
    elif not any(name.startswith("layer1.") for name in state):
        known = ", ".join(library for library, _ in NAMINGS)
        raise InputError(f"{what} matches none of these: {known}; rename its tensors")
    elif dense == "fc":
        library = "torchvision's and timm's resnet"
    else:
        library = "pytorch-cifar's PreActResNet" if preactivation else "pytorch-cifar's ResNet"
    if (library, preactivation) not in NAMINGS:
        placement = "original" if preactivation else "full_preactivation"
        raise InputError(
            f"{what} is from {library}, which orders its layers differently; build the network with {placement=}"
        )
    return NAMINGS[library, preactivation]


def _array(tensor: Any) -> np.ndarray:
    # NumPy has no bfloat16.
    return tensor.detach().cpu().float().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def _kernel(array: np.ndarray, rank: int) -> np.ndarray:
    """Transpose a kernel from PyTorch's (out, in, height, width) to Keras's (height, width, in, out), or (in, out)."""
    if array.ndim == 4 and rank == 2 and array.shape[2:] == (1, 1):  # timm's dense layer is a 1×1 convolution
        array = array[:, :, 0, 0]
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T
