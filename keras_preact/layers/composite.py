"""Layers that contain other layers. Inner layers that are frozen stay frozen when the layer is copied."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import direct_layers, layers_inside, own_trainable, track_in_checkpoints


class CompositeLayer(keras.layers.Layer):
    """Base of layers that create other layers in `build`. Its configuration records which of those are frozen.

    Keras stores `trainable` only for the layer itself, so inner layers frozen one by one would be trainable after
    loading or cloning. A subclass must end its `build` with `super().build(...)`.

    Args:
        frozen: indices of the frozen inner layers, as in `get_config`. Default `None`: all or none of them, according
            to `trainable`.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(self, frozen: Iterable[int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._frozen = None if frozen is None else list(frozen)

    def build(self, *shapes: Any) -> None:
        super().build(shapes[0])
        build_inner(self, *shapes)
        track_in_checkpoints(self, self._checkpointed())
        if not self.trainable:
            # Setting `trainable` also sets it on the inner layers, but the constructor set it before they existed.
            set_frozen(self, range(len(layers_inside(self))))
        if self._frozen is not None:
            set_frozen(self, self._frozen)

    def _checkpointed(self) -> list[Any]:
        """Return the inner layers or variables that TensorFlow's checkpoints should contain."""
        return direct_layers(self)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if any(part.quantization_mode for part in layers_inside(self)):
            raise InputError(
                f"{self.name} contains quantized layers, which its configuration cannot record; save the network "
                "before you quantize it, and quantize it again after loading"
            )
        if has_adapters(self):
            warnings.warn(
                f"{self.name} has adapters (LoRA), which its configuration cannot record: files and copies have them "
                "merged into the kernels, and enable_lora adds new ones",
                stacklevel=2,
            )
        if not self.built:
            return config if self._frozen is None else {**config, "frozen": self._frozen}
        frozen = frozen_parts(self)
        default = [] if self.trainable else list(range(len(layers_inside(self))))  # as `trainable` alone sets it
        return config if frozen == default else {**config, "frozen": frozen}


def build_inner(layer: keras.layers.Layer, *shapes: Any) -> None:
    """Build the layers inside a layer that wait for its first call: trace `call`, as Keras does then.

    Calling the layer instead would record it as a node of a model.
    """
    if not all(part.built for part in layers_inside(layer)):
        with keras.name_scope(layer.name, caller=layer):  # Keras opens it only once for the same caller
            inputs = (keras.KerasTensor(shape, dtype=layer.compute_dtype) for shape in shapes)
            keras.Operation.compute_output_spec(layer, *inputs)


def has_adapters(layer: keras.layers.Layer) -> bool:
    """Return whether a layer inside a network or layer has low-rank adapters (LoRA)."""
    return any(getattr(part, "lora_enabled", False) for part in layers_inside(layer))


def with_channels(shape: Any, axis: int = -1) -> keras.InputSpec:
    """Return the specification of inputs with the rank and the number of channels of `shape`.

    Keras checks it before each call. Layers that compute their output shape from that of the input need it: without
    it, a wrong number of channels would not be found before the model runs.

    >>> with_channels((None, 8, 8, 16)).axes
    {-1: 16}
    """
    return keras.InputSpec(ndim=len(shape), axes={axis: shape[axis]})


def in_order(layers: Sequence[keras.layers.Layer], x: Any) -> Any:
    """Call layers one after the other."""
    for layer in layers:
        x = layer(x)
    return x


def build_in_order(layers: Sequence[keras.layers.Layer], shape: Any) -> Any:
    """Build layers that are called one after the other; return the output shape of the last."""
    for layer in layers:
        layer.build(shape)
        shape = layer.compute_output_shape(shape)
    return shape


def frozen_parts(layer: keras.layers.Layer) -> list[int]:
    """Return the indices of the frozen layers inside a layer."""
    return [index for index, part in enumerate(layers_inside(layer)) if not part.trainable]


def set_frozen(layer: keras.layers.Layer, frozen: Iterable[int]) -> None:
    """Freeze the layers with these indices inside a layer, and unfreeze the others."""
    inside, indices = layers_inside(layer), set(frozen)
    if not indices <= set(range(len(inside))):
        raise InputError(
            f"frozen is {sorted(indices)}, but {layer.name} has {len(inside)} inner layers; use indices from 0 to "
            f"{len(inside) - 1}"
        )
    for index, part in enumerate(inside):
        # Outer layers come first, because setting `trainable` also sets it on the layers inside. The variables are
        # set too: TensorFlow skips the assignment of an unchanged value, and a layer created frozen has trainable
        # variables.
        part.trainable = trainable = index not in indices
        for variable in own_trainable(part):
            variable.trainable = trainable


def batch_norms(layer: keras.layers.Layer) -> list[keras.layers.BatchNormalization]:
    """Return the batch norms at any level of a network or layer; those of a rolled stack are its one unit's."""
    return [part for part in [layer, *layers_inside(layer)] if isinstance(part, keras.layers.BatchNormalization)]


def freeze_batch_norms(layer: keras.layers.Layer) -> int:
    """Freeze all batch norms of a network or layer, including those in units and stacks, and return their number.

    Frozen batch norms do not change their scales, offsets and statistics. They normalize as at inference, even if the
    network is called with `training=True`. All other layers are unaffected. In a rolled stack, one norm represents
    that norm in every unit. Compile the model afterwards.

    Args:
        layer: a built model, unit or stack.

    Raises:
        InputError: it contains no batch norm.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(20, rolled=True)
    >>> freeze_batch_norms(network)
    13
    >>> {variable.name for variable in network.trainable_variables if "norm" in variable.path}
    set()
    """
    norms = batch_norms(layer)
    if not norms:
        raise InputError(f"{layer.name} has no batch norm to freeze; build it first, or freeze its layers instead")
    for norm in norms:
        norm.trainable = False
    return len(norms)
