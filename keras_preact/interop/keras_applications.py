"""Conversion between keras.applications' ResNet50, 101 and 152 (V1 and V2) and networks of this package."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice, first_line
from keras_preact.interop.naming import Naming, parts, take_weights, weights_by_foreign_name
from keras_preact.layers.branches import ConstantPadding2D
from keras_preact.layers.units import ResidualUnit
from keras_preact.models.imagenet import UNITS, imagenet_resnet
from keras_preact.models.preprocessing import with_preprocessing
from keras_preact.models.rewiring import check_functional

NAMES = {f"ResNet{depth}{version}": (depth, version) for version in ("", "V2") for depth in (50, 101, 152)}
"""Depth and version of the networks, by their names in keras.applications."""

_BOTTLENECKS: dict[tuple[int, ...], int] = {
    repeats: depth for depth, (_, repeats) in UNITS.items() if f"ResNet{depth}" in NAMES
}
_TOP = {"stem_conv": "conv1_conv", "stem_norm": "conv1_bn", "head_norm": "post_bn", "logits": "predictions"}
_CONVOLUTIONS = {f"conv{k}": f"{k}_conv" for k in (1, 2, 3)} | {"projection/conv": "0_conv"}
_WEIGHTLESS = ("stem_conv_pad", "stem_pool_pad", "stem_pool", "avg_pool", "max_pool", "predictions")
"""This package's layers outside the units that have no weights."""
_THEIRS = re.compile(r"conv\d_.+|pool1_(pad|pool)|post_(bn|relu)|avg_pool|max_pool|predictions")
"""Names of the layers of keras.applications' networks."""
_UNITS: dict[str, Any] = {"epsilon": 1.001e-5, "shortcut": "identity", "normalization": "batch"}

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


def load_keras_applications(
    model_or_name: keras.Model | str, weights: Any = None, preprocessing: bool = False, **options: Any
) -> keras.Model:
    """Convert a ResNet of keras.applications to a network of this package with the same outputs.

    Args:
        model_or_name: a model that `keras.applications.ResNet50`, `ResNet101`, `ResNet152`, `ResNet50V2`,
            `ResNet101V2` or `ResNet152V2` returned, or one of these names; the model is not changed.
        weights: the `weights` argument of keras.applications, only if a name is passed: `None` (default; random),
            `"imagenet"` (downloads them) or a file.
        preprocessing: whether the network accepts uint8 RGB images of any size, and resizes, crops and normalizes
            them itself (see `with_preprocessing`). Default `False`.
        **options: options of `imagenet_resnet` that need no other weights: `rolled`, `remat`, `drop_path`, `dtype`,
            `name`, …

    Returns:
        `imagenet_resnet(…, profile="keras_applications")`, with the same outputs to float tolerance. Without
        `preprocessing`, prepare images as for the original: short side 256, center crop 224, and then
        `keras.applications.resnet_v2.preprocess_input` (−1 to 1) for V2, or `resnet.preprocess_input` for V1.

    Raises:
        InputError: an unknown model or name, a model with further layers, `weights` together with a model, or options
            that change the outputs.

    Example:

    >>> original = keras.applications.ResNet50V2(weights=None, include_top=False, input_shape=(64, 64, 3))
    >>> network = load_keras_applications(original)
    >>> network.name, network.count_params() == original.count_params()
    ('resnet50_full_preactivation', True)
    """
    if isinstance(model_or_name, str):
        model = _named(model_or_name, weights)
    elif weights is None:
        model = model_or_name
    else:
        raise InputError("a model already has weights; leave out weights, or pass the name of a network instead")
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
    if conflicts := sorted({*fixed, "depth", "placement", "output_stride"} & set(options)):
        raise InputError(f"leave out {', '.join(conflicts)}, which the model of keras.applications determines")
    placement = "full_preactivation" if version else "original"
    network = imagenet_resnet(depth, placement, **fixed, **options)
    arrays = {name: keras.ops.convert_to_numpy(variable) for name, variable in _variables(model).items()}
    take_weights(network, NAMINGS[version], arrays, lambda array, _: array, model.name)
    return with_preprocessing(network, "keras_applications") if preprocessing else network


def to_keras_applications(model: keras.Model) -> keras.Model:
    """Convert a network of this package to the model of keras.applications with the same outputs.

    Args:
        model: a network with `profile="keras_applications"`; it is not changed.

    Raises:
        InputError: keras.applications has no such network, for example because layers for preprocessing come first; the
            message names the first difference.

    Example:

    >>> from keras_preact.models import preact_resnet50
    >>> network = preact_resnet50(profile="keras_applications", include_top=False, input_shape=(64, 64, 3))
    >>> to_keras_applications(network).name
    'resnet50v2'
    """
    depth, version = _matching(model)
    arrays = weights_by_foreign_name(model, NAMINGS[version])
    _check_weightless(model)
    top = next((layer for layer in model.layers if layer.name == "logits"), None)
    options: dict[str, Any] = {"include_top": False, "pooling": _pooling(model)}
    if top is not None:
        activation = keras.activations.serialize(model.layers[-1].activation)
        options = {"classes": top.units, "classifier_activation": activation}
    build = getattr(keras.applications, f"ResNet{depth}{version}")
    try:
        converted = build(weights=None, input_shape=model.input_shape[1:], **options)
    except ValueError as error:  # for example, images of less than 32 pixels
        raise InputError(f"keras.applications cannot build this network: {first_line(error)}") from None
    variables = _variables(converted)
    ours = {name: array.shape for name, array in arrays.items()}
    theirs = {name: tuple(variable.shape) for name, variable in variables.items()}
    if different := [name for name in theirs | ours if theirs.get(name) != ours.get(name)]:
        raise InputError(
            f"{model.name} {_first_difference(different[0], ours, theirs, converted.name)}; build it with "
            'profile="keras_applications" and without other options that change its layers'
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return converted


def _first_difference(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], network: str) -> str:
    if name not in ours:
        return f"lacks {name} of keras.applications' {network}"
    if name not in theirs:
        return f"has {name}, which keras.applications' {network} lacks"
    return f"has {name} of shape {ours[name]}, but keras.applications' {network} has {theirs[name]}"


def _variables(model: keras.Model) -> dict[str, keras.Variable]:
    return {f"{layer.name}/{variable.name}": variable for layer in model.layers for variable in layer.variables}


def _named(name: str, weights: Any) -> keras.Model:
    check_choice("network of keras.applications", name, NAMES)
    try:
        return getattr(keras.applications, name)(weights=weights)
    except Exception as error:  # a missing file or a failed download, for which Keras has no exception class
        raise InputError(f"keras.applications cannot load {weights!r} into {name}: {error}") from None


def _recognized(model: keras.Model) -> tuple[int, str]:
    """Return the depth and version of a model of keras.applications, from its layer names."""
    check_functional(model, "recognized")
    _check_outputs(model)
    blocks = [re.fullmatch(r"conv(\d)_block(\d+)_out", layer.name) for layer in model.layers]
    count = Counter(int(block[1]) for block in blocks if block)
    depth = _BOTTLENECKS.get(tuple(count[stage] for stage in (2, 3, 4, 5)))
    if depth is None:
        inner = next((layer.name for layer in model.layers if isinstance(layer, keras.Model)), None)
        instead = f", perhaps the model inside it, get_layer({inner!r})" if inner else ""
        raise InputError(
            f"{model.name} is not one of keras.applications' {', '.join(NAMES)}; pass one of these{instead}"
        )
    further = [each.name for each in _operations(model) if not (_THEIRS.fullmatch(each.name) or _subsamples(each))]
    if further:
        raise InputError(f"{model.name} has {further[0]}, which keras.applications' networks lack; pass one without it")
    return depth, "V2" if any(layer.name == "post_bn" for layer in model.layers) else ""


def _check_outputs(model: keras.Model) -> None:
    if len(model.outputs) != 1:
        raise InputError(f"{model.name} has {len(model.outputs)} outputs; pass the network with its last one alone")


def _matching(model: keras.Model) -> tuple[int, str]:
    """Return the depth and version of the model of keras.applications that matches a network of this package."""
    check_functional(model, "converted")
    _check_outputs(model)
    units: dict[int, list[ResidualUnit]] = {}
    for part in parts(model):
        if part.unit is not None:
            units.setdefault(part.stage, []).append(part.unit)
    depth = _BOTTLENECKS.get(tuple(len(row) for row in units.values()))
    if depth is None:
        raise InputError(f"keras.applications has no network with the units of {model.name}; it has {', '.join(NAMES)}")
    ours, theirs = units[1][0].data_format, keras.config.image_data_format()
    if ours != theirs:
        raise InputError(
            f"{model.name} is {ours}, but keras.applications builds {theirs} networks; build it in that format, load "
            "the weights into it, then convert it"
        )
    if any(unit.dilation != (1, 1) for row in units.values() for unit in row):
        raise InputError(f"keras.applications has no dilated networks; build {model.name} without output_stride")
    return depth, "V2" if units[1][0].placement.first else ""


def _check_weightless(model: keras.Model) -> None:
    """Raise InputError if a layer without weights computes something that keras.applications' network does not."""
    for operation in _operations(model):
        if not getattr(operation, "weights", ()) and operation.name not in _WEIGHTLESS:
            raise InputError(f"keras.applications has no layer for {operation.name}; build the network without it")
        if isinstance(operation, ConstantPadding2D) and operation.value:
            raise InputError(
                f"keras.applications pads with 0 before the pooling, and {operation.name} with {operation.value}; "
                'build the network with profile="keras_applications"'
            )


def _operations(model: keras.Model) -> list[Any]:
    """Return the layers and other operations of a functional model, without its inputs."""
    return [each for each in model.operations if not isinstance(each, keras.layers.InputLayer)]


def _subsamples(operation: Any) -> bool:
    """Return whether this is the shortcut of a V2 unit with a stride, the only layer without a name of its own."""
    return isinstance(operation, keras.layers.MaxPooling2D) and operation.pool_size == (1, 1)


def _pooling(model: keras.Model) -> str | None:
    return {"avg_pool": "avg", "max_pool": "max"}.get(model.layers[-1].name)
