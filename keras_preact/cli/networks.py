"""The network that MODEL and the network's options name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from keras_preact.cli.options import RESNET_OPTIONS, TRANSFORMER_OPTIONS
from keras_preact.errors import InputError
from keras_preact.layers import NORM_PLACEMENTS, get_placement, get_shortcut
from keras_preact.models import NETWORKS, TRANSFORMERS, Classification, Patches, get_network, load_model
from keras_preact.training import (
    RunFolder,
)


def network_options(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the network's arguments that were given, with the default depth of `cifar_resnet`."""
    given = {
        key: getattr(options, key)
        for key in (*RESNET_OPTIONS, *TRANSFORMER_OPTIONS)
        if getattr(options, key) is not None
    }
    get_shortcut(given.get("shortcut", "identity"))
    refused = RESNET_OPTIONS - TRANSFORMER_OPTIONS if network in TRANSFORMERS else TRANSFORMER_OPTIONS - RESNET_OPTIONS
    for key in sorted(refused & given.keys()):
        raise InputError(f"{network} has no {key.replace('_', ' ')}; drop --{key.replace('_', '-')}")
    if network in TRANSFORMERS:
        if network != "transformer" and "placement" in given:
            raise InputError(f"{network} has its placement in its name; drop --placement, or take --model transformer")
        get_placement(given.get("placement", "pre_norm"), NORM_PLACEMENTS)
        return given
    get_placement(given.get("placement", "original"))
    if network == "cifar_resnet":
        return {"depth": 20, "placement": "full_preactivation", **given}
    fixed = {"depth", "placement", "bottleneck"} if network != "imagenet_resnet" else {"bottleneck"}
    for key in sorted(fixed & given.keys()):
        why = "has bottlenecks by its depth" if key == "bottleneck" else f"has its {key} in its name"
        raise InputError(f"{network} {why}; drop --{key}, or choose --model cifar_resnet")
    return given


def saved(model: str) -> Path | None:
    """Return the run folder or file that is meant, if one is: a network's name means that network, ./name a file."""
    path = Path(model)
    return path if model not in NETWORKS and path.exists() else None


def as_known(model: str) -> str:
    """Return the name of a network as it is known, where it was written with hyphens; a path as it is."""
    name = model.replace("-", "_")
    return name if name in NETWORKS and not Path(model).exists() else model


def model_to_inspect(options: argparse.Namespace) -> Any:
    path = saved(options.model)
    if path is None:
        return new_network(options)
    for key in sorted({*RESNET_OPTIONS, *TRANSFORMER_OPTIONS, "image_size", "classes"}):
        if getattr(options, key, None) is not None:
            raise InputError(f"{path} is built already; leave out --{key.replace('_', '-')}")
    return load_model(RunFolder.open(path).trained_model() if path.is_dir() else path)


def new_network(options: argparse.Namespace) -> Any:
    """Build the network that the options name."""
    size, classes = getattr(options, "image_size", None), getattr(options, "classes", None)
    network = get_network(options.model)
    arguments = {"rolled": None, **network_options(options.model, options)}  # as a run has it
    if options.model in TRANSFORMERS:
        patch = arguments.pop("patch", None)
        if size is not None and patch is None:
            raise InputError(f"{options.model} takes words unless --patch makes it take images; leave out --image-size")
        shape = Patches.image_shape if size is None else (size, size, 3)
        inputs = None if patch is None else Patches(shape, patch)
        return network(inputs, Classification(Classification.classes if classes is None else classes), **arguments)
    if classes is not None:
        arguments["classes"] = classes
    if size is not None:
        arguments["input_shape"] = (size, size, 3)
    return network(**arguments)
