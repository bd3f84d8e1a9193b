"""Networks: the paper's for CIFAR and for ImageNet, as functional Keras models."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

from keras_preact.errors import check_choice
from keras_preact.layers.composite import freeze_batch_norms
from keras_preact.models.cifar import cifar_resnet, cifar_units
from keras_preact.models.folding import fold
from keras_preact.models.imagenet import (
    imagenet_resnet,
    postact_resnet18,
    postact_resnet34,
    postact_resnet50,
    postact_resnet101,
    postact_resnet152,
    postact_resnet200,
    preact_resnet18,
    preact_resnet34,
    preact_resnet50,
    preact_resnet101,
    preact_resnet152,
    preact_resnet200,
)
from keras_preact.models.loading import load_model
from keras_preact.models.resnet import feature_maps
from keras_preact.models.rolling import roll, unroll
from keras_preact.models.summary import multiply_adds
from keras_preact.models.trained import freeze, reestimate_statistics, resized
from keras_preact.models.transformer import (
    Classification,
    Forecast,
    NextToken,
    Patches,
    Series,
    Tokens,
    postnorm_transformer,
    prenorm_transformer,
    transformer,
)
from keras_preact.models.weights import load_weights

__all__ = [
    "NETWORKS",
    "TRANSFORMERS",
    "Classification",
    "Forecast",
    "NextToken",
    "Patches",
    "Series",
    "Tokens",
    "cifar_resnet",
    "cifar_units",
    "feature_maps",
    "fold",
    "freeze",
    "freeze_batch_norms",
    "get_network",
    "imagenet_resnet",
    "load_model",
    "load_weights",
    "multiply_adds",
    "postact_resnet18",
    "postact_resnet34",
    "postact_resnet50",
    "postact_resnet101",
    "postact_resnet152",
    "postact_resnet200",
    "postnorm_transformer",
    "preact_resnet18",
    "preact_resnet34",
    "preact_resnet50",
    "preact_resnet101",
    "preact_resnet152",
    "preact_resnet200",
    "prenorm_transformer",
    "reestimate_statistics",
    "resized",
    "roll",
    "transformer",
    "unroll",
]

NETWORKS: dict[str, Callable[..., keras.Model]] = {
    builder.__name__: builder
    for builder in (
        cifar_resnet,
        imagenet_resnet,
        preact_resnet18,
        preact_resnet34,
        preact_resnet50,
        preact_resnet101,
        preact_resnet152,
        preact_resnet200,
        postact_resnet18,
        postact_resnet34,
        postact_resnet50,
        postact_resnet101,
        postact_resnet152,
        postact_resnet200,
        transformer,
        prenorm_transformer,
        postnorm_transformer,
    )
}
"""Every network by the name that the command line and run.json use."""
TRANSFORMERS = ("transformer", "prenorm_transformer", "postnorm_transformer")
"""Those that take sequences, and images as patches."""


def get_network(name: str) -> Callable[..., Any]:
    """Return the function that builds the network of that name; a hyphen stands for an underscore too.

    Raises:
        InputError: there is no such network.

    >>> get_network("preact_resnet50").__name__
    'preact_resnet50'
    """
    return NETWORKS[check_choice("network", name.replace("-", "_"), NETWORKS)]


def options_of(name: str) -> set[str]:
    """Return the names of the arguments of a network, those included that `preact_resnet50` and the like hand on.

    >>> "shortcut" in options_of("preact_resnet50"), "depth" in options_of("preact_resnet50")
    (True, False)
    """
    network = get_network(name)
    own = set(inspect.signature(network).parameters)
    if "options" not in own:
        return own
    general, fixed = (transformer, {"placement"}) if name in TRANSFORMERS else (imagenet_resnet, {"depth", "placement"})
    return (own | set(inspect.signature(general).parameters)) - {"options"} - fixed
