"""A residual network as a chain: the layers before its units, the units one by one, the layers after them."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.analysis.differentiation import vjp, without_graph
from keras_preact.errors import InputError, first_line
from keras_preact.keras_private import layers_inside, mask_of, nodes_of, producer_of
from keras_preact.layers.copies import copy_frozen
from keras_preact.layers.graph import graph_of
from keras_preact.layers.preprocessing import PadCropFlip
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.stack import UnitStack, model_of_units, units_in
from keras_preact.models.rewiring import check_functional, is_functional


@dataclass(frozen=True)
class Link:
    """One unit of a chain, as pure functions of its input: moving averages and random states do not change.

    Attributes:
        name: name of the layer, for example `stage2_unit07` or `encoder_block07_attention`. A unit of a stack is
            named like an unrolled one.
        unit: the layer of the model, or a copy of a stack's unit.
        stage: number, from 1, of its stage: a row of units of equal shape.
        mask: bool (batch, steps), `False` for padding; or `None`.
    """

    name: str
    unit: ResidualLayer
    stage: int
    mask: Any = None

    @property
    def passes_x_on(self) -> bool:
        """Whether the shortcut receives x_l itself, in the shape of x_{l+1}.

        The first unit of a stage changes the shape. The first unit of a network may activate x before the split.
        """
        return not self.unit.changes_shape and not (self.unit.shares_preactivation and self.unit.preact)

    def __call__(self, x: Any, training: bool = False) -> Any:
        """Return x_{l+1} for x_l."""
        return self.terms(x, training).output

    def terms(self, x: Any, training: bool = False) -> Terms:
        """Return the terms of Eq. (1) and (2) for x_l."""
        return Terms(*without_updates(lambda x: self.unit.terms(x, self.mask), x, training))

    def along_shortcut(self, x: Any, residual: Any, training: bool = False) -> Any:
        """Return x_{l+1} for x_l with F held constant: only h and f depend on x_l.

        With a `residual` of zeros, this is the unit without F.
        """
        unit = self.unit

        def compute(x: Any) -> Any:
            skip = unit.preactivate(x) if unit.shares_preactivation else x
            return unit.after_addition(unit.add(skip, residual))

        return without_updates(compute, x, training)

    def through_branch(self, x: Any, skip: Any, training: bool = False) -> Any:
        """Return x_{l+1} for x_l with the shortcut's input held constant: only F depends on x_l."""
        unit = self.unit

        def compute(x: Any) -> Any:
            return unit.after_addition(unit.add(skip, unit.residual(unit.preactivate(x), self.mask)))

        return without_updates(compute, x, training)

    def for_copies(self, count: int) -> Link:
        """Return the link for a batch that repeats the inputs `count` times; its mask is repeated too."""
        return self if self.mask is None else replace(self, mask=ops.concatenate([self.mask] * count))

    def gradient(self, x: Any, upstream: Any, training: bool = False) -> Any:
        """Return ∂E/∂x_l for ∂E/∂x_{l+1}."""
        return vjp(lambda x: self(x, training), x, upstream)

    def direct_gradient(self, x: Any, terms: Terms, upstream: Any, training: bool = False) -> Any:
        """Return the part of ∂E/∂x_l that comes back along the shortcut alone."""
        return vjp(lambda x: self.along_shortcut(x, terms.residual, training), x, upstream)

    def branch_gradient(self, x: Any, terms: Terms, upstream: Any, training: bool = False) -> Any:
        """Return the part of ∂E/∂x_l that comes back through F alone."""
        return vjp(lambda x: self.through_branch(x, terms.skip, training), x, upstream)

    def shortcut_term(self, terms: Terms, training: bool = False) -> Any:
        """Return h(x_l): y without F."""
        return without_updates(lambda skip: self.unit.add(skip, ops.zeros_like(terms.residual)), terms.skip, training)

    def added_term(self, terms: Terms, training: bool = False) -> Any:
        """Return F(x_l) as added, with any scaling of F: y without h(x_l). A gate is that of x_l = 0."""
        return without_updates(
            lambda residual: self.unit.add(ops.zeros_like(terms.skip), residual), terms.residual, training
        )


@dataclass(frozen=True)
class Terms:
    """The terms of a unit for one x_l.

    Attributes:
        skip: input of the shortcut: x_l, or its pre-activation if the unit shares it.
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
    """A network split into its residual units and the layers before and after them.

    Attributes:
        name: name of the model.
        links: the units in order.
        activation: name of the model's last operation, or of that operation's activation.
    """

    name: str
    links: tuple[Link, ...]
    _prepared: keras.Model | None
    _before: keras.Model | None
    _after: keras.Model | None
    _copies: tuple[_Copies, ...] = ()
    activation: str = "linear"
    _dtype: str = "float32"
    _shape: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, model: keras.Model | Chain) -> Chain:
        """Split a functional model whose residual units form a chain, rolled into stacks or not.

        Every function of the analysis does this first. It takes seconds for a thousand layers: before you call
        several functions, split the model once and pass them the chain.

        Args:
            model: the model; a chain is returned unchanged.

        Raises:
            InputError: the model is not functional, has no residual units, or has layers between them.
        """
        if isinstance(model, Chain):
            return model
        check_functional(model, "analyzed")
        if len(model.inputs) != 1 or len(model.outputs) != 1:
            raise InputError(f"{model.name} has several inputs or outputs; analyze a model with one of each")
        every = list(nodes_of(graph_of(model)))
        nodes = [node for node in every if units_in(node.operation)]
        layers = [node.operation for node in nodes]
        if not layers:
            inner = model_of_units(model)
            remedy = f"pass the model inside it, get_layer({inner!r})" if inner else "use check_identity_path"
            raise InputError(f"{model.name} itself has no residual units of this package; {remedy}")
        if shared := [layer.name for layer, count in Counter(layers).items() if count > 1]:
            raise InputError(f"{model.name} calls {shared[0]} more than once; analyze a model of different units")
        for before, after in itertools.pairwise(nodes):
            if after.input_tensors[0] is not before.outputs[0]:
                names = f"{before.operation.name} and {after.operation.name}"
                raise InputError(
                    f"there are layers between {names}, but units must form a chain; use check_identity_path, which "
                    "accepts any residual network"
                )
        (first, *mask), last = nodes[0].input_tensors, nodes[-1].outputs[0]
        if not mask and mask_of(first) is not None and "mask" in inspect.signature(layers[0].call).parameters:
            mask = [mask_of(first)]  # Keras records it as an argument only if it need not cast the input
        # The layers up to the last augmentation always run in inference mode, which leaves the images as they are.
        leading = every[: every.index(nodes[0])]
        augmented = next((node.outputs[0] for node in reversed(leading) if _augments(node.operation)), None)
        inputs = model.inputs if augmented is None else [augmented]
        copies = tuple(_Copies(layer) for layer in layers if isinstance(layer, UnitStack))
        try:
            return cls(
                model.name,
                tuple(_links(layers, {copy.stack: copy.units for copy in copies})),
                None if augmented is None else keras.Model(model.inputs, augmented),
                None if any(first is x for x in inputs) else keras.Model(inputs, [first, *mask]),
                None if last is model.outputs[0] else _model_after([last, *mask], model.outputs[0]),
                copies,
                _last_activation(model),
                model.inputs[0].dtype,
                tuple(model.inputs[0].shape),
            )
        except ValueError as error:  # Keras finds a path around the units
            raise InputError(
                f"{model.name} has connections around its chain of units ({first_line(error)}); analyze a model "
                "without them"
            ) from None

    def start(self, inputs: Any, training: bool = False) -> tuple[Chain, Any]:
        """Return the chain with the mask of these inputs, and x_1, the input of its first unit.

        Args:
            inputs: inputs of the model.
            training: whether batch norm uses the batch's statistics. Keras's layers and `PadCropFlip` never augment
                the images.

        Raises:
            InputError: the inputs are empty or of another shape than the model expects; or it expects uint8 images and
                these have another dtype: pixels in [0, 1] would become 0.
        """
        x, mask = ops.convert_to_tensor(inputs), None
        self._check_inputs(x)
        for copies in self._copies:
            copies.update()
        if self._prepared is not None:
            x = without_updates(self._prepared, x, False)
        if self._before is not None:
            outputs = without_updates(self._before, x, training)  # Keras unpacks a list of one tensor
            x, *masks = outputs if isinstance(outputs, list) else [outputs]
            mask = masks[0] if masks else None
        links = tuple(replace(link, mask=mask) for link in self.links)
        return replace(self, links=links), ops.cast(x, links[0].unit.compute_dtype)

    def _check_inputs(self, x: Any) -> None:
        dtype, shape = keras.backend.standardize_dtype(x.dtype), tuple(x.shape)
        sizes = self._shape[1:]
        if len(shape) != len(sizes) + 1 or any(
            expected not in (None, found) for expected, found in zip(sizes, shape[1:], strict=True)
        ):
            pattern = ", ".join(["batch", *("any" if size is None else str(size) for size in sizes)])
            raise InputError(f"{self.name} expects inputs of shape ({pattern}), not {shape}; pass such a batch")
        if not shape[0]:
            raise InputError(f"the batch is empty; pass at least one input of {self.name}")
        if self._dtype == "uint8" and dtype != "uint8":
            raise InputError(f"{self.name} expects uint8 images, not {dtype}; pass pixels from 0 to 255 as uint8")

    def for_copies(self, count: int) -> Chain:
        """Return the chain for a batch that repeats the inputs `count` times."""
        return replace(self, links=tuple(link.for_copies(count) for link in self.links))

    def after(self, x: Any, training: bool = False) -> Any:
        """Return the model's output for the output of the last unit."""
        if self._after is None:
            return x
        after = self._after
        mask = self.links[-1].mask if len(after.inputs) > 1 else None

        def compute(x: Any) -> Any:
            # `__call__` would attach the mask to x too, and Keras would warn that the model ignores it.
            return after.call([x] if mask is None else [x, mask], training=training)

        return without_updates(compute, x, training)

    def is_padding(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return which entries of an array with one value per output belong to padding, as bool of this shape."""
        mask = self.links[-1].mask
        if mask is None or tuple(mask.shape) != shape:  # no padding, or one output per example
            return np.zeros(shape, bool)
        return ~np.asarray(ops.convert_to_numpy(mask), bool)

    def passes(self, x: Any, training: bool = False) -> Iterator[Pass]:
        """Yield each unit with its input x_l and its terms, in order, starting from x_1."""
        for link in self.links:
            terms = link.terms(x, training)
            yield link, x, terms
            x = terms.output


class _Copies:
    """Copies of a stack's units, whose weights follow those of the stack."""

    def __init__(self, stack: UnitStack) -> None:
        self.stack = stack
        self.units = [stack.unit(k) for k in range(stack.repeats)]
        self._weights = self._weights_of_stack()

    def _weights_of_stack(self) -> list[np.ndarray]:
        return [np.array(ops.convert_to_numpy(ops.cast(weight, "float32"))) for weight in self.stack.weights]

    def update(self) -> None:
        """Copy the weights again if they have changed, for example in training, and freeze what has been frozen."""
        for k, unit in enumerate(self.units):
            copy_frozen(self.stack.own_unit(k), unit)
        weights = self._weights_of_stack()
        if not all(map(np.array_equal, weights, self._weights)):
            self._weights = weights
            for k, unit in enumerate(self.units):
                self.stack.update_copy(k, unit)


_AUGMENTATIONS = ("Random", "AugMix", "CutMix", "MixUp", "Solarization", "Equalization")
"""How the names of Keras's layers begin that change images in training alone."""


def _augments(operation: Any) -> bool:
    """Return whether a layer or operation, or a layer inside it, augments images."""
    parts = [operation, *(layers_inside(operation) if isinstance(operation, keras.layers.Layer) else [])]
    kinds = {kind for part in parts for kind in type(part).__mro__}  # subclasses augment too
    return any(
        kind is PadCropFlip or (kind.__module__.startswith("keras.") and kind.__name__.startswith(_AUGMENTATIONS))
        for kind in kinds
    )


def _model_after(inputs: list[Any], output: Any) -> keras.Model:
    """Return the part of a model from the last unit's output and the mask, if there is one and it is used there."""
    try:
        return keras.Model(inputs, output)
    except ValueError:  # before Keras 3.13, an input must be used
        return keras.Model(inputs[:1], output)


def _last_activation(model: keras.Model) -> str:
    """Return the name of the activation that produces a model's output, or else of the operation."""
    last = producer_of(model.outputs[0])
    if is_functional(last):
        return _last_activation(last)
    activation = getattr(last, "activation", None)
    return str(getattr(activation, "__name__", activation or type(last).__name__)).lower()


Pass = tuple[Link, Any, Terms]
"""A unit, its input x_l, and its terms."""


def _links(
    layers: Sequence[keras.layers.Layer], units_of: Mapping[keras.layers.Layer, list[keras.layers.Layer]]
) -> Iterator[Link]:
    """Yield the units of layers in order; `units_of` has the units of the stacks among them."""
    stage, in_row = 0, Counter[str]()
    for layer in layers:
        row = re.sub(r"_((unit|block)\d+|stack\d*)$", "", layer.name)
        # In the networks of the builders, a stage may also end with a change of shape.
        is_named = re.fullmatch(r"(.*_)?stage\d+", row)
        for block in units_of.get(layer, [layer]):
            units = block.residual_layers()
            starts = not in_row[row] if is_named else any(unit.changes_shape for unit in units.values())
            stage += starts or not stage
            in_row[row] += 1
            word = "unit" if isinstance(block, ResidualLayer) else "block"
            name = layer.name if layer is block else f"{row}_{word}{in_row[row]:02d}"
            for suffix, unit in units.items():
                yield Link(name + suffix, unit, stage)


def without_updates(function: Callable[[Any], Any], x: Any, training: bool) -> Any:
    """Return `function(x)` and discard its updates of variables: moving averages and random states."""
    with keras.StatelessScope(), without_graph(x):
        # The lambda hides a model from Keras, which would track it as a sublayer.
        return _Part(lambda x: function(x), dtype="float32", autocast=False, name="part")(x, training=training)


class _Part(keras.layers.Layer):
    """A function called as a layer, which passes `training` on to the layers inside."""

    def __init__(self, function: Callable[[Any], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.function(x)
