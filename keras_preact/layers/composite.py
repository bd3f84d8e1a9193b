"""Layers that are made of other layers: what is frozen inside stays frozen, however the layer is copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.keras_private import layers_inside, own_trainable


class CompositeLayer(keras.layers.Layer):
    """Base of layers that make other layers in `build`: their configuration says which of those are frozen.

    Keras writes down `trainable` of a layer, and of no layer inside it, so that parts frozen one by one would be
    trained after loading or cloning. A subclass ends its `build` with this one's.

    Args:
        frozen: numbers of the frozen layers inside, as `get_config` gives them. Default `None`: all or none, by
            `trainable`.
        **kwargs: as in `keras.layers.Layer`.
    """

    def __init__(self, frozen: Iterable[int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._frozen = None if frozen is None else list(frozen)

    def build(self, *shapes: Any) -> None:
        super().build(shapes[0])
        self._frozen_if_trainable = frozen_parts(self)
        if not self.trainable:
            # Keras hands `trainable` on to the layers inside when it is set; when it was, there were none.
            set_frozen(self, range(len(layers_inside(self))))
        if self._frozen is not None:
            set_frozen(self, self._frozen)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if any(part.quantization_mode for part in layers_inside(self)):
            raise InputError(
                f"{self.name} holds layers that are quantized, which its configuration cannot say; save the network "
                "before you quantize it, and quantize it again after loading"
            )
        if not self.built:
            return config if self._frozen is None else {**config, "frozen": self._frozen}
        # What a copy has anyway, made as trainable or frozen as this layer is now.
        default = self._frozen_if_trainable if self.trainable else list(range(len(layers_inside(self))))
        frozen = frozen_parts(self)
        return config if frozen == default else {**config, "frozen": frozen}


def frozen_parts(layer: keras.layers.Layer) -> list[int]:
    """Return which of the layers inside a layer are frozen, by their numbers."""
    return [number for number, part in enumerate(layers_inside(layer)) if not part.trainable]


def set_frozen(layer: keras.layers.Layer, frozen: Iterable[int]) -> None:
    """Freeze those of the layers inside a layer, and no others."""
    inside, chosen = layers_inside(layer), set(frozen)
    if not chosen <= set(range(len(inside))):
        raise InputError(f"{layer.name} has {len(inside)} layers inside, not those to be frozen: {sorted(chosen)}")
    for number, part in enumerate(inside):
        # In this order, because each hands its state on. TensorFlow leaves out the assignment of a value that is there
        # already, and a layer that was made frozen has variables that are not.
        part.trainable = trainable = number not in chosen
        for variable in own_trainable(part):
            variable.trainable = trainable


def batch_norms(layer: keras.layers.Layer) -> list[keras.layers.BatchNormalization]:
    """Return the batch norms in a network or a layer, also inside other layers; of a rolled stack its one unit's."""
    return [part for part in [layer, *layers_inside(layer)] if isinstance(part, keras.layers.BatchNormalization)]


def freeze_batch_norms(layer: keras.layers.Layer) -> int:
    """Freeze all batch norms in a network or a layer, those inside units and stacks too; return how many.

    They keep their scales, offsets and statistics and normalize as at inference, also where the network is called
    with `training=True`; everything else is trained. In a rolled stack one norm represents that norm in every
    unit. Compile the model afterwards.

    Args:
        layer: a model, a unit or a stack; built.

    Raises:
        InputError: there is no batch norm in it.

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
        raise InputError(f"{layer.name} has no batch norm that could be frozen; build it first, or freeze its layers")
    for norm in norms:
        norm.trainable = False
    return len(norms)
