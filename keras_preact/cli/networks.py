"""The network that MODEL and the network options describe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from keras_preact.cli.options import RESNET_OPTIONS, TRANSFORMER_OPTIONS, option
from keras_preact.errors import InputError, check_choice
from keras_preact.layers import get_placement, get_shortcut
from keras_preact.models import NETWORKS, Pretrained, get_entry, load_model, pretrained
from keras_preact.models.catalogue import catalogue
from keras_preact.training import RunFolder


def network_options(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the network's arguments from the command line, with the command's defaults for `cifar_resnet`."""
    entry = get_entry(network)
    given = {
        key: getattr(options, key)
        for key in (*RESNET_OPTIONS, *TRANSFORMER_OPTIONS)
        if getattr(options, key) is not None
    }
    get_shortcut(given.get("shortcut", "identity"))
    for key in sorted(given.keys() - entry.options):
        flag = option(key, given[key])
        if key in entry.fixed:
            raise InputError(f"{network} has a fixed {key}; leave out {flag}, or choose {entry.base.__name__} instead")
        raise InputError(f"{network} has no {key.replace('_', ' ')}; leave out {flag}")
    get_placement(given.get("placement", next(iter(entry.placements))), entry.placements)
    return {"depth": 20, "placement": "full_preactivation", **given} if network == "cifar_resnet" else given


def saved(model: str) -> Path | None:
    """Return the path of a run folder or file, if `model` is one; a network's name is never a path, ./name is."""
    path = Path(model)
    return path if model not in NETWORKS and path.exists() else None


def trained(model: str) -> Pretrained | None:
    """Return the catalogue's entry if `model` is the name of a trained network and not a path."""
    return catalogue().get(model) if saved(model) is None else None


def as_known(model: str) -> str:
    """Return a network's name with underscores for hyphens; return a path unchanged."""
    name = model.replace("-", "_")
    return name if name in NETWORKS and not Path(model).exists() else model


def model_to_inspect(options: argparse.Namespace) -> Any:
    path, about = saved(options.model), trained(options.model)
    if path is None and about is None:
        if Path(options.model).name != options.model or Path(options.model).suffix:
            raise InputError(f"there is no file or folder {options.model}; name a run folder, a model or a network")
        check_choice("network", options.model, [*NETWORKS, *catalogue()])
        return new_network(options)
    for key in sorted({*RESNET_OPTIONS, *TRANSFORMER_OPTIONS, "image_size", "classes"}):
        if (value := getattr(options, key, None)) is not None:
            raise InputError(f"{options.model} is already built; leave out {option(key, value)}")
    if path is None:
        return pretrained(options.model)
    model = load_model(RunFolder.open(path).trained_model() if path.is_dir() else path)
    if not model.built:
        raise InputError(f"{options.model} was saved before it was built; call it on a batch, then save it again")
    return model


def new_network(options: argparse.Namespace) -> Any:
    """Build the network that the options describe."""
    size, classes = getattr(options, "image_size", None), getattr(options, "classes", None)
    arguments = {"rolled": None, **network_options(options.model, options)}  # as in a run
    return get_entry(options.model).on_its_own(size, classes, arguments)
