"""Networks: the paper's for CIFAR and for ImageNet, as functional Keras models."""

from keras_preact.models.cifar import cifar_resnet, cifar_units
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
from keras_preact.models.resnet import feature_maps, multiply_adds

__all__ = [
    "cifar_resnet",
    "cifar_units",
    "feature_maps",
    "imagenet_resnet",
    "multiply_adds",
    "postact_resnet18",
    "postact_resnet34",
    "postact_resnet50",
    "postact_resnet101",
    "postact_resnet152",
    "postact_resnet200",
    "preact_resnet18",
    "preact_resnet34",
    "preact_resnet50",
    "preact_resnet101",
    "preact_resnet152",
    "preact_resnet200",
]
