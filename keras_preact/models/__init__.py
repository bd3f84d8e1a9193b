"""The paper's networks for CIFAR and ImageNet, and Transformers, as functional Keras models."""

from keras_preact.layers.composite import freeze_batch_norms
from keras_preact.models.catalogue import Pretrained, pretrained
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
from keras_preact.models.options import NetworkOptions
from keras_preact.models.preprocessing import with_preprocessing
from keras_preact.models.profiles import Preprocessing
from keras_preact.models.registry import NETWORKS, TRANSFORMERS, get_entry, get_network
from keras_preact.models.resnet import feature_maps
from keras_preact.models.rolling import roll, unroll
from keras_preact.models.saving.loading import load_model
from keras_preact.models.saving.weights import load_weights
from keras_preact.models.summary import multiply_adds
from keras_preact.models.trained import freeze, reestimate_statistics, require_uint8, resized
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

__all__ = [
    "NETWORKS",
    "TRANSFORMERS",
    "Classification",
    "Forecast",
    "NetworkOptions",
    "NextToken",
    "Patches",
    "Preprocessing",
    "Pretrained",
    "Series",
    "Tokens",
    "cifar_resnet",
    "cifar_units",
    "feature_maps",
    "fold",
    "freeze",
    "freeze_batch_norms",
    "get_entry",
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
    "pretrained",
    "reestimate_statistics",
    "require_uint8",
    "resized",
    "roll",
    "transformer",
    "unroll",
    "with_preprocessing",
]
