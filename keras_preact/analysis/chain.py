"""A residual network as a chain: what stands before its units, the units one by one, what stands after them."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from keras_preact.analysis.differentiation import vjp
from keras_preact.data import PadCropFlip
from keras_preact.errors import InputError
from keras_preact.keras_private import maker_of
from keras_preact.layers.graph import input_of, mask_of
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, units_in
from keras_preact.models.rolling import check_functional, is_functional


@dataclass(frozen=True)
class Link:
    """One unit of a chain, as functions of its input that change nothing: no moving average, no random state.

    Attributes:
        name: that of the layer, as `stage2_unit07`, or what a unit of a stack would be called; of a Transformer
            `block07_attention`.
        unit: the layer: of the model itself, or a copy of a stack's unit.
        stage: number of the row of units of one shape that it belongs to, from 1.
        mask: what of a sequence is no padding; bool (batch, steps), or `None`.
    """

    name: str
    unit: ResidualLayer
    stage: int
    mask: Any = None

    @property
    def passes_x_on(self) -> bool:
        """Whether the shortcut is given x_l itself, in the shape that x_{l+1} will have.

        The first unit of a stage changes the shape; the first of a network activates x before the split.
        """
        return not self.unit.changes_shape and not (self.unit.shares_preactivation and self.unit.first)

    def __call__(self, x: Any, training: bool = False) -> Any:
        """Return x_{l+1}, given x_l."""
        return self.terms(x, training).output

    def terms(self, x: Any, training: bool = False) -> Terms:
        """Return the terms of Eq. (1) and (2), given x_l."""
        return Terms(*undisturbed(lambda x: self.unit.terms(x, self.mask), x, training))

    def along_shortcut(self, x: Any, residual: Any, training: bool = False) -> Any:
        """Return x_{l+1}, given x_l, with F held at a value: only h and f depend on x_l.

        With a `residual` of zeros this is what is left of the unit when F is left out.
        """
        unit = self.unit

        def compute(x: Any) -> Any:
            skip = unit.preactivate(x) if unit.shares_preactivation else x
            return unit.after_addition(unit.add(skip, residual))

        return undisturbed(compute, x, training)

    def through_branch(self, x: Any, skip: Any, training: bool = False) -> Any:
        """Return x_{l+1}, given x_l, with what the shortcut is given held at a value: only F depends on x_l."""
        unit = self.unit

        def compute(x: Any) -> Any:
            return unit.after_addition(unit.add(skip, unit.residual(unit.preactivate(x), self.mask)))

        return undisturbed(compute, x, training)

    def for_copies(self, count: int) -> Link:
        """Return the link for a batch of `count` copies of the inputs, one after the other: it has as many masks."""
        return self if self.mask is None else replace(self, mask=ops.concatenate([self.mask] * count))

    def gradient(self, x: Any, upstream: Any, training: bool = False) -> Any:
        """Return ∂E/∂x_l, given ∂E/∂x_{l+1}."""
        return vjp(lambda x: self(x, training), x, upstream)

    def direct_gradient(self, x: Any, terms: Terms, upstream: Any, training: bool = False) -> Any:
        """Return what of ∂E/∂x_{l+1} comes back along the shortcut alone."""
        return vjp(lambda x: self.along_shortcut(x, terms.residual, training), x, upstream)

    def branch_gradient(self, x: Any, terms: Terms, upstream: Any, training: bool = False) -> Any:
        """Return what of ∂E/∂x_{l+1} comes back through F alone."""
        return vjp(lambda x: self.through_branch(x, terms.skip, training), x, upstream)

    def shortcut_term(self, terms: Terms, training: bool = False) -> Any:
        """Return h(x_l): y without F."""
        return undisturbed(lambda skip: self.unit.add(skip, ops.zeros_like(terms.residual)), terms.skip, training)

    def added_term(self, terms: Terms, training: bool = False) -> Any:
        """Return F(x_l) as it is added: y without h(x_l). What scales F, scales it here; a gate sees x_l = 0."""
        return undisturbed(
            lambda residual: self.unit.add(ops.zeros_like(terms.skip), residual), terms.residual, training
        )


@dataclass(frozen=True)
class Terms:
    """What a unit computes of x_l.

    Attributes:
        skip: what the shortcut is given: x_l, or where a unit shares its pre-activation, that.
        residual: F(x_l).
        y: h(x_l) + F(x_l), Eq. (1).
        output: x_{l+1} = f(y_l), Eq. (2).
    """

    skip: Any
    residual: Any
    y: Any
    output: Any


@dataclass(frozen=True)
class Chain:
    """A network taken apart.

    Attributes:
        name: of the model.
        links: the units in order.
        activation: name of the model's last operation, or of its activation.
    """

    name: str
    links: tuple[Link, ...]
    _prepared: keras.Model | None
    _before: keras.Model | None
    _after: keras.Model | None
    activation: str = "linear"
    _dtype: str = "float32"

    @classmethod
    def of(cls, model: keras.Model | Chain) -> Chain:
        """Take a functional model apart whose residual units follow one another, rolled into stacks or not.

        Every function of the analysis begins with this. Of a thousand layers it takes seconds: who calls several
        functions takes the model apart once, and gives them the chain in its place.

        Args:
            model: the model; a chain is returned as it is.

        Raises:
            InputError: not a functional model, one without residual units, or with something between them.
        """
        if isinstance(model, Chain):
            return model
        check_functional(model, "analyzed")
        layers = [layer for layer in model.layers if units_in(layer)]
        if not layers:
            raise InputError(
                f"{model.name} has no residual units of this package; "
                "check_identity_path looks at networks of other layers"
            )
        for before, after in itertools.pairwise(layers):
            if input_of(after) is not before.output:
                raise InputError(f"something stands between {before.name} and {after.name}; units must form a chain")
        first, last, mask = input_of(layers[0]), layers[-1].output, mask_of(layers[0])
        # The images are to be seen as they are, also by batch norms that train.
        shown = next((layer.output for layer in model.layers if isinstance(layer, PadCropFlip)), None)
        inputs = model.inputs if shown is None else [shown]
        return cls(
            model.name,
            tuple(_links(layers)),
            None if shown is None else keras.Model(model.inputs, shown),
            None if any(first is x for x in inputs) else keras.Model(inputs, [first, *mask]),
            None if any(last is y for y in model.outputs) else keras.Model([last, *mask], model.outputs[0]),
            _last_activation(model),
            model.inputs[0].dtype,
        )

    def start(self, inputs: Any, training: bool = False) -> tuple[Chain, Any]:
        """Return the chain as it treats these inputs, with their mask where they are padded, and x_1 of the first unit.

        Args:
            inputs: of the model.
            training: whether batch norm uses the batch's statistics; images are not augmented in either case.

        Raises:
            InputError: images that are not uint8, of a model that takes such: it would cast pixels from 0 to 1 to 0.
        """
        x, mask = ops.convert_to_tensor(inputs), None
        given = keras.backend.standardize_dtype(x.dtype)
        if self._dtype == "uint8" and given != "uint8":
            raise InputError(f"{self.name} takes images as uint8, not {given}; give pixels from 0 to 255 as uint8")
        if self._prepared is not None:
            x = undisturbed(self._prepared, x, False)
        if self._before is not None:
            outputs = undisturbed(self._before, x, training)  # Keras makes one tensor of a list of one
            x, *masks = outputs if isinstance(outputs, list) else [outputs]
            mask = masks[0] if masks else None
        links = tuple(replace(link, mask=mask) for link in self.links)
        return replace(self, links=links), ops.cast(x, links[0].unit.compute_dtype)

    def for_copies(self, count: int) -> Chain:
        """Return the chain for a batch of `count` copies of the inputs, one after the other."""
        return replace(self, links=tuple(link.for_copies(count) for link in self.links))

    def after(self, x: Any, training: bool = False) -> Any:
        """Return the model's output, given that of the last unit."""
        if self._after is None:
            return x
        mask, after = self.links[-1].mask, self._after

        def compute(x: Any) -> Any:
            # `call`, because Keras puts the mask on x as well, and would warn that a model does not take it so.
            return after.call([x] if mask is None else [x, mask], training=training)

        return undisturbed(compute, x, training)

    def passes(self, x: Any, training: bool = False) -> Iterator[Pass]:
        """Yield each unit with its input x_l and its terms, in order, given x_1."""
        for link in self.links:
            terms = link.terms(x, training)
            yield link, x, terms
            x = terms.output


def _last_activation(model: keras.Model) -> str:
    """Return the name of the operation that makes a model's output, or of that operation's activation."""
    last = maker_of(model.outputs[0])
    if is_functional(last):
        return _last_activation(last)
    activation = getattr(last, "activation", None)
    return str(getattr(activation, "__name__", activation or type(last).__name__)).lower()


Pass = tuple[Link, Any, Terms]
"""A unit, its input x_l, and what it computes of it."""


def _links(layers: Sequence[keras.layers.Layer]) -> Iterator[Link]:
    stage, in_row = 0, Counter[str]()
    for layer in layers:
        row = re.sub(r"_(unit\d+|stack\d*)$", "", layer.name)
        is_named = re.fullmatch(r"(.*_)?stage\d+", row)  # by a builder; a stage may also end with a change of shape
        blocks = [layer.unit(k) for k in range(layer.repeats)] if isinstance(layer, UnitStack) else [layer]
        for block in blocks:
            units = block.residual_layers()
            starts = not in_row[row] if is_named else any(unit.changes_shape for unit in units.values())
            stage += starts or not stage
            is_unit = isinstance(block, ResidualLayer)
            in_row[row if is_unit else "block"] += 1
            name = f"{row}_unit{in_row[row]:02d}" if is_unit else f"block{in_row['block']:02d}"
            for suffix, unit in units.items():
                yield Link(layer.name if is_unit and layer is block else name + suffix, unit, stage)


def undisturbed(function: Callable[[Any], Any], x: Any, training: bool) -> Any:
    """Return `function(x)`, changing no variable: new moving averages and random states are dropped."""
    with keras.StatelessScope():
        # A function of its own, because Keras would take a model for a part of the layer.
        return _Part(lambda x: function(x), dtype="float32", autocast=False, name="part")(x, training=training)


class _Part(keras.layers.Layer):
    """A function called as a layer, so that the layers that it calls learn whether it is training."""

    def __init__(self, function: Callable[[Any], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.function(x)
