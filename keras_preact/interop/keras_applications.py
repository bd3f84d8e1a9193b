"""keras.applications' ResNet50, 101 and 152, V1 and V2, as networks of this package, and back."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice
from keras_preact.interop.naming import Naming, parts, take_weights, weights_by_foreign_name
from keras_preact.layers.units import ResidualUnit
from keras_preact.models.imagenet import UNITS, imagenet_resnet
from keras_preact.models.rolling import check_functional

NAMES = {f"ResNet{depth}{version}": (depth, version) for version in ("", "V2") for depth in (50, 101, 152)}
"""Names of keras.applications: depth and version."""

_BOTTLENECKS: dict[tuple[int, ...], int] = {
    repeats: depth for depth, (_, repeats) in UNITS.items() if f"ResNet{depth}" in NAMES
}
_TOP = {"stem_conv": "conv1_conv", "stem_norm": "conv1_bn", "head_norm": "post_bn", "logits": "predictions"}
_CONVOLUTIONS = {f"conv{k}": f"{k}_conv" for k in (1, 2, 3)} | {"projection/conv": "0_conv"}
_UNITS: dict[str, Any] = {"epsilon": 1.001e-5, "shortcut": "identity"}

NAMINGS = {
    "": Naming(
        "keras.applications",
        "conv{stage1}_block{unit}_",
        _CONVOLUTIONS | {"norm2": "1_bn", "norm3": "2_bn", "norm_last": "3_bn", "projection/norm": "0_bn"},
        _TOP,
        separator="/",
        requires=_UNITS | {"stride_on": "1x1", "placement": "original"},
    ),
    "V2": Naming(
        "keras.applications",
        "conv{stage1}_block{unit}_",
        _CONVOLUTIONS | {"norm1": "preact_bn", "norm2": "1_bn", "norm3": "2_bn"},
        _TOP,
        separator="/",
        requires=_UNITS | {"stride_on": "3x3", "placement": "full_preactivation"},
        stride_in="last",
    ),
}


def load_keras_applications(model_or_name: keras.Model | str, weights: Any = None, **options: Any) -> keras.Model:
    """Return a network of this package with the arithmetic and the weights of one of keras.applications.

    Args:
        model_or_name: a model that `keras.applications.ResNet50`, `101`, `152`, `50V2`, `101V2` or `152V2` returned,
            or one of these names; the model is not changed.
        weights: with a name, what keras.applications loads: `None` (default; random), `"imagenet"` (downloads them) or
            a file.
        **options: of `imagenet_resnet` that change no weight: `rolled`, `remat`, `drop_path`, `dtype`, `name`, …

    Returns:
        `imagenet_resnet(…, profile="keras_applications")`: the outputs of the model given, to float tolerance. Its
        images are normalized as theirs: `keras.applications.resnet_v2.preprocess_input` (−1 to 1), or
        `resnet.preprocess_input`.

    Raises:
        InputError: another model or name, or options of a network that computes something else.

    Example:

    >>> theirs = keras.applications.ResNet50V2(weights=None, include_top=False, input_shape=(64, 64, 3))
    >>> ours = load_keras_applications(theirs)
    >>> ours.name, ours.count_params() == theirs.count_params()
    ('resnet50_full_preactivation', True)
    """
    model = _named(model_or_name, weights) if isinstance(model_or_name, str) else model_or_name
    depth, version = _recognized(model)
    top = next((layer for layer in model.layers if layer.name == "predictions"), None)
    fixed: dict[str, Any] = {
        "input_shape": model.input_shape[1:],
        "include_top": top is not None,
        "pooling": _pooling(model),
        "profile": "keras_applications",
    }
    if top is not None:
        fixed |= {"classes": top.units, "classifier_activation": keras.activations.serialize(top.activation)}
    taken = sorted(set(fixed) & set(options))
    if taken:
        raise InputError(f"{', '.join(taken)} follow from the model of keras.applications; leave them out")
    placement = "full_preactivation" if version else "original"
    ours = imagenet_resnet(depth, placement, **fixed, **options)
    theirs = {f"{layer.name}/{variable.name}": variable for layer in model.layers for variable in layer.variables}
    arrays = {name: keras.ops.convert_to_numpy(variable) for name, variable in theirs.items()}
    take_weights(ours, NAMINGS[version], arrays, lambda array, _: array, model.name)
    return ours


def to_keras_applications(model: keras.Model) -> keras.Model:
    """Return the model of keras.applications that computes what a network of this package does, with its weights.

    Args:
        model: a network with `profile="keras_applications"`; it is not changed.

    Raises:
        InputError: another network; the sentence names the first difference.

    Example:

    >>> from keras_preact.models import preact_resnet50
    >>> ours = preact_resnet50(profile="keras_applications", include_top=False, input_shape=(64, 64, 3))
    >>> to_keras_applications(ours).name
    'resnet50v2'
    """
    depth, version = _own(model)
    arrays = weights_by_foreign_name(model, NAMINGS[version])
    top = next((layer for layer in model.layers if layer.name == "logits"), None)
    options: dict[str, Any] = {"include_top": False, "pooling": _pooling(model)}
    if top is not None:
        activation = keras.activations.serialize(model.layers[-1].activation)
        options = {"classes": top.units, "classifier_activation": activation}
    build = getattr(keras.applications, f"ResNet{depth}{version}")
    theirs = build(weights=None, input_shape=model.input_shape[1:], **options)
    variables = {f"{layer.name}/{variable.name}": variable for layer in theirs.layers for variable in layer.variables}
    if {name: array.shape for name, array in arrays.items()} != {n: tuple(v.shape) for n, v in variables.items()}:
        raise InputError(f"{model.name} has not the weights of keras.applications' networks; {_REMEDY}")
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return theirs


_REMEDY = 'build it with profile="keras_applications"'


def _named(name: str, weights: Any) -> keras.Model:
    check_choice("network of keras.applications", name, NAMES)
    try:
        return getattr(keras.applications, name)(weights=weights)
    except Exception as error:  # no such file, or no network, for which Keras has no class of its own
        raise InputError(f"keras.applications cannot load {weights!r} into {name}: {error}") from None


def _recognized(model: keras.Model) -> tuple[int, str]:
    """Return depth and version of a model of keras.applications, told by its layers' names."""
    check_functional(model, "recognized")
    blocks = [re.fullmatch(r"conv(\d)_block(\d+)_out", layer.name) for layer in model.layers]
    count = Counter(int(block[1]) for block in blocks if block)
    depth = _BOTTLENECKS.get(tuple(count[stage] for stage in (2, 3, 4, 5)))
    if depth is None:
        raise InputError(f"{model.name} is none of keras.applications' {', '.join(NAMES)}; give one of them")
    return depth, "V2" if any(layer.name == "post_bn" for layer in model.layers) else ""


def _own(model: keras.Model) -> tuple[int, str]:
    """Return depth and version of a network of this package that keras.applications has too."""
    units: dict[int, list[ResidualUnit]] = {}
    for part in parts(model):
        if part.unit is not None:
            units.setdefault(part.stage, []).append(part.unit)
    depth = _BOTTLENECKS.get(tuple(len(row) for row in units.values()))
    if depth is None:
        raise InputError(f"keras.applications has no network of {model.name}'s units; it has {', '.join(NAMES)}")
    if any(unit.dilation != (1, 1) for row in units.values() for unit in row):
        raise InputError(f"keras.applications has no dilated networks; build {model.name} without output_stride")
    return depth, "V2" if units[1][0].placement.first else ""


def _pooling(model: keras.Model) -> str | None:
    return {"avg_pool": "avg", "max_pool": "max"}.get(model.layers[-1].name)
