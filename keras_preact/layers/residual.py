"""Eq. (1) and (2), y = h(x) + F(x) and x' = f(y), for every kind of unit: convolutions here, Transformers there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_preact.errors import InputError
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.placements import Placement
from keras_preact.layers.shortcuts import Shortcut


class ResidualLayer(CompositeLayer):
    """Base of all residual units: their terms one by one, and how they are put together.

    A subclass sets the parts in its `build`, ends it with this one's, and says nothing else about the order of things.

    Attributes:
        placement: where normalization and activation stand.
        first: layers before F's first weights: the pre-activation.
        branch: the layers of F after it.
        reshape: layers that bring x to F's shape where the two differ.
        shortcut: h.
        last: layers after the addition: f.
        changes_shape: whether x and x' differ in shape.
        shares_preactivation: whether the shortcut is given the pre-activation of x instead of x.
    """

    placement: Placement
    first: list[keras.layers.Layer]
    branch: list[keras.layers.Layer]
    reshape: list[keras.layers.Layer]
    shortcut: Shortcut
    last: list[keras.layers.Layer]
    changes_shape = False
    shares_preactivation = False

    def terms(self, x: Any, mask: Any = None) -> tuple[Any, Any, Any, Any]:
        """Return what the shortcut is given, F, y = h(x) + F of Eq. (1), and x' = f(y) of Eq. (2).

        Raises:
            InputError: x is not of floating point.
        """
        if not keras.backend.is_float_dtype(x.dtype):
            dtype = keras.backend.standardize_dtype(x.dtype)
            raise InputError(f"{self.name} takes floats, not {dtype}; cast the pixels, for example to x / 255")
        activated = self.preactivate(x)
        skip = activated if self.shares_preactivation else x
        residual = self.residual(activated, mask)
        y = self.add(skip, residual)
        return skip, residual, y, self.after_addition(y)

    def preactivate(self, x: Any) -> Any:
        """Return the placement's first norm and activation of x: f̂(x) of Eq. (9), in pre-activation placements."""
        return in_order(self.first, x)

    def residual(self, activated: Any, mask: Any = None) -> Any:
        """Return F, given the pre-activated input; `mask` tells steps of a sequence from padding."""
        return in_order(self.branch, activated)

    def add(self, skip: Any, residual: Any) -> Any:
        """Return y = h(x) + F of Eq. (1); `skip` is x, or the shared pre-activation of x."""
        return self.shortcut(in_order(self.reshape, skip), residual)

    def after_addition(self, y: Any) -> Any:
        """Return x' = f(y) of Eq. (2)."""
        return in_order(self.last, y)

    @property
    def keeps_identity(self) -> bool:
        """Whether x' = x + F(x) (Eq. 3): h(x) = x, no shape change, nothing after the addition.

        Raises:
            InputError: the unit is not built: only then does it know the shape of x.
        """
        if not self.built:
            raise InputError(f"{self.name} has no shortcut yet; call it, or build it for an input shape, first")
        return (
            self.shortcut.keeps_identity
            and not (self.changes_shape or (self.shares_preactivation and self.first))
            and not self.last
        )

    def residual_layers(self) -> dict[str, ResidualLayer]:
        """Return the residual units that this layer is made of, in order, by a suffix for their names: itself."""
        return {"": self}


def in_order(layers: Sequence[keras.layers.Layer], x: Any) -> Any:
    """Call layers one after the other."""
    for layer in layers:
        x = layer(x)
    return x
