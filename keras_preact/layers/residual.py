"""Eq. (1) and (2), y = h(x) + F(x) and x' = f(y), for both convolutional units and Transformer sublayers."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import keras

from keras_preact.errors import InputError
from keras_preact.layers.composite import CompositeLayer, build_in_order, in_order, with_channels
from keras_preact.layers.convolutions import refuse_seed
from keras_preact.layers.placements import Placement
from keras_preact.layers.registry import get_shortcut
from keras_preact.layers.shortcuts import Shortcut


def check_floating(name: str, x: Any) -> None:
    """Raise InputError unless the input of the layer `name` is floating-point."""
    if not keras.backend.is_float_dtype(x.dtype):
        dtype = keras.backend.standardize_dtype(x.dtype)
        raise InputError(f"{name} expects floating-point input, not {dtype}; cast it to float32")


class ResidualLayer(CompositeLayer):
    """Base of all residual units: their terms, and the order in which they are computed.

    A subclass calls `_set_shortcut` in its constructor. Its `build` creates the parts and ends with
    `super().build(...)`, which builds them. It must not override `terms`.

    Attributes:
        placement: where the unit has normalization and activation.
        preact: layers before F's first weights: the pre-activation.
        branch: the layers of F after `preact`.
        projection: layers that bring x to F's shape if the two differ.
        shortcut: h.
        postact: layers after the addition: f.
        changes_shape: whether x and x' differ in shape.
        shares_preactivation: whether the shortcut receives the pre-activation of x instead of x.
        variable_arguments: arguments that the unit stores in variables, with the paths of those. They may differ
            between the units of a rolled `UnitStack`.
    """

    placement: Placement
    preact: list[keras.layers.Layer]
    branch: list[keras.layers.Layer]
    projection: list[keras.layers.Layer]
    shortcut: Shortcut
    postact: list[keras.layers.Layer]
    changes_shape = False
    shares_preactivation = False
    variable_arguments: ClassVar[dict[str, tuple[str, ...]]] = {"drop_path": ("drop_path/rate",)}

    def _set_shortcut(self, shortcut: str | Shortcut | dict[str, Any]) -> Shortcut:
        """Check the argument `shortcut` and keep it for `build` and `get_config`; return the shortcut it means."""
        template = get_shortcut(shortcut, name="shortcut")  # raises here, not in `build`, if the name is unknown
        refuse_seed(getattr(template, "kernel_initializer", None))
        # In a partial, because Keras would track the template as a layer of the unit if it were an attribute.
        self._new_shortcut = partial(get_shortcut, shortcut if isinstance(shortcut, str) else template)
        return template

    def build(self, input_shape: Any) -> None:
        output_shape = self.compute_output_shape(input_shape)
        build_in_order((*self.preact, *self.branch), input_shape)
        self.shortcut.build(build_in_order(self.projection, input_shape), output_shape)
        build_in_order(self.postact, output_shape)
        super().build(input_shape)
        is_first = getattr(self, "data_format", None) == "channels_first"
        self.input_spec = with_channels(input_shape, axis=1 if is_first else -1)

    def get_config(self) -> dict[str, Any]:
        (shortcut,) = self._new_shortcut.args
        if isinstance(shortcut, Shortcut):
            shortcut = keras.saving.serialize_keras_object(shortcut)
        return {**super().get_config(), "shortcut": shortcut}

    def compute_output_spec(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        check_floating(self.name, x)  # when a model is built, Keras does not run `call`
        return super().compute_output_spec(x, *args, **kwargs)

    def terms(self, x: Any, mask: Any = None) -> tuple[Any, Any, Any, Any]:
        """Return the input of the shortcut, F, y = h(x) + F of Eq. (1), and x' = f(y) of Eq. (2).

        Raises:
            InputError: the dtype of x is not floating-point.
        """
        check_floating(self.name, x)
        activated = self.preactivate(x)
        skip = activated if self.shares_preactivation else x
        residual = self.residual(activated, mask)
        y = self.add(skip, residual)
        return skip, residual, y, self.after_addition(y)

    def preactivate(self, x: Any) -> Any:
        """Return x after the placement's first norm and activation: f̂(x) of Eq. (9) with pre-activation."""
        return in_order(self.preact, x)

    def residual(self, activated: Any, mask: Any = None) -> Any:
        """Return F of the pre-activated input; `mask` is `False` at the padding of a sequence."""
        return in_order(self.branch, activated)

    def add(self, skip: Any, residual: Any) -> Any:
        """Return y = h(x) + F of Eq. (1); `skip` is x, or the shared pre-activation of x.

        Raises:
            InputError: the shortcut, a custom one, returns another shape than the residual's.
        """
        y = self.shortcut(in_order(self.projection, skip), residual)
        if y is None:
            raise InputError(f"{type(self.shortcut).__name__} returns None; return a tensor of the residual's shape")
        if getattr(y.shape, "rank", 0) is None:  # of a function that TensorFlow cannot look into
            return y
        found, expected = tuple(y.shape), tuple(residual.shape)
        sizes = zip(found, expected, strict=False)
        if len(found) != len(expected) or any(a != b for a, b in sizes if None not in (a, b)):
            raise InputError(
                f"{type(self.shortcut).__name__} returns shape {found}, but the residual has {expected}; return the "
                "residual's shape"
            )
        return y

    def after_addition(self, y: Any) -> Any:
        """Return x' = f(y) of Eq. (2)."""
        return in_order(self.postact, y)

    @property
    def keeps_identity(self) -> bool:
        """Whether x' = x + F(x) (Eq. 3): h(x) = x, no shape change, nothing after the addition.

        Raises:
            InputError: the unit is not built, so the shape of x is unknown.
        """
        if not self.built:
            raise InputError(f"{self.name} is not built; call it, or build it for an input shape, first")
        changes_input = self.changes_shape or (self.shares_preactivation and self.preact)
        return self.shortcut.keeps_identity and not (changes_input or self.postact)

    def residual_layers(self) -> dict[str, ResidualLayer]:
        """Return the residual units in this layer, in order, by the suffix of their names: here, the layer itself."""
        return {"": self}
