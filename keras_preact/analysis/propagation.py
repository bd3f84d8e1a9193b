"""The paper's equations, measured on a real network: how signal and gradient pass through its units.

The network's own layers and automatic differentiation compute all values. The network does not change: moving averages
and random states stay as they are. With `training=True`, batch norm uses the batch's statistics, as in a training step.
That is the default because moving averages mean nothing before training.

x_L in Eq. (4) to (8) is the output of the last unit of a stage: the equations require equal shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.analysis.chain import Chain, Link, Pass
from keras_preact.errors import InputError
from keras_preact.layers.placements import RELU
from keras_preact.layers.preactivation import channel_axis
from keras_preact.layers.residual import ResidualLayer
from keras_preact.layers.shortcuts import ConstantScaling


def forward_signal(model: keras.Model | Chain, images: Any, training: bool = True) -> list[ForwardSignal]:
    """Return norm, mean and variance of x_l and F(x_l) at every unit, in order; padding of sequences is left out.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        training: whether batch norm uses the batch's statistics. Default `True`.

    Raises:
        InputError: the model has no chain of residual units.

    Example: in a pre-activation network with F = 0, the signal does not change.

    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(depth=14, zero_init_residual=True)
    >>> signal = forward_signal(network, np.random.default_rng(0).normal(size=(8, 32, 32, 3)))
    >>> signal[1].unit, signal[1].identity_share, signal[1].residual.norm
    ('stage1_unit02', 1.0, 0.0)
    """
    signals = []
    for link, x, terms in _passes(model, images, training):
        h, y = (_unpadded(term, link.mask) for term in (link.shortcut_term(terms, training), terms.y))
        shortcut, branch = np.linalg.norm(h), np.linalg.norm(y - h)
        share = float(shortcut / (shortcut + branch)) if shortcut + branch else 1.0
        before, residual = Moments.of(x, link.mask), Moments.of(terms.residual, link.mask)
        signals.append(ForwardSignal(link.name, link.stage, before, residual, share))
    return signals


@dataclass(frozen=True)
class Moments:
    """Moments of a batch of feature maps or sequences.

    Attributes:
        norm: root mean square of the norms of the images or sequences.
        mean: mean of all values.
        variance: variance of all values.
    """

    norm: float
    mean: float
    variance: float

    @classmethod
    def of(cls, tensor: Any, mask: Any = None) -> Moments:
        """Return the moments of a tensor (batch, …), or only of the steps where `mask` (batch, steps) is true."""
        values = _unpadded(tensor, mask)
        return cls(float(np.sqrt((values**2).sum() / len(tensor))), float(values.mean()), float(values.var()))


@dataclass(frozen=True)
class ForwardSignal:
    """The signal at one unit.

    Attributes:
        unit: name of the unit, for example `stage2_unit07`.
        stage: number of its stage, from 1.
        x: moments of its input x_l.
        residual: moments of F(x_l).
        identity_share: ‖h(x_l)‖ / (‖h(x_l)‖ + ‖y_l − h(x_l)‖): the share of the sum from the shortcut.
    """

    unit: str
    stage: int
    x: Moments
    residual: Moments
    identity_share: float


def unrolled_sum(model: keras.Model | Chain, images: Any, training: bool = True) -> list[UnrolledSum]:
    """Return the relative error of Eq. (4), x_L = x_l + Σ F(x_i), for every unit whose shortcut receives x_l.

    In full pre-activation networks it is a rounding error. It is large if the shortcut is scaled, or if a layer
    follows the addition. Padding of sequences is left out.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        training: whether batch norm uses the batch's statistics. Default `True`.

    Raises:
        InputError: the model has no chain of residual units.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> images = np.random.default_rng(0).normal(size=(8, 32, 32, 3))
    >>> max(entry.error for entry in unrolled_sum(cifar_resnet(depth=20), images)) < 1e-6
    True
    >>> max(entry.error for entry in unrolled_sum(cifar_resnet(depth=20, placement="original"), images)) > 0.1
    True
    """
    results: list[UnrolledSum] = []
    for passes in _rows(_passes(model, images, training)):
        mask = passes[-1][0].mask
        end = _unpadded(passes[-1][2].output, mask)
        total = np.zeros_like(end)
        row = []
        for link, x, terms in reversed(passes):
            total = total + _unpadded(link.added_term(terms, training), mask)
            error = np.linalg.norm(end - _unpadded(x, mask) - total) / np.linalg.norm(end)
            row.append(UnrolledSum(link.name, link.stage, float(error)))
        results += row[::-1]
    return results


@dataclass(frozen=True)
class UnrolledSum:
    """The relative error of Eq. (4) between a unit and the end of its stage.

    Attributes:
        unit: name of the unit whose input is x_l.
        stage: number of its stage; x_L is the output of its last unit that passes x on.
        error: ‖x_L − x_l − ΣF(x_i)‖ / ‖x_L‖.
    """

    unit: str
    stage: int
    error: float


def scaling_factor(model: keras.Model | Chain, images: Any, training: bool = True) -> list[ScalingFactor]:
    """Measure how the shortcuts alone scale signal and gradient, Eq. (7) and (8), at every unit that passes x_l on.

    Padding of sequences is left out.

    Args:
        model: functional model whose units have constant shortcuts, the identity or `ConstantScaling`; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        training: whether batch norm uses the batch's statistics. Default `True`.

    Raises:
        InputError: the model has no chain of residual units, or other shortcuts, for which Eq. (7) has no factor.

    Example: 0.9 twice is 0.81, forward and backward.

    >>> from keras_preact.layers import ConstantScaling
    >>> from keras_preact.models import cifar_resnet
    >>> network = cifar_resnet(depth=20, shortcut="constant_scaling(shortcut=0.9, residual=1)")
    >>> factors = scaling_factor(network, np.random.default_rng(0).normal(size=(4, 32, 32, 3)))
    >>> factors[0].unit, round(factors[0].backward_predicted, 3), round(factors[0].backward, 3)
    ('stage1_unit02', 0.81, 0.81)
    """
    results: list[ScalingFactor] = []
    for passes in _rows(_passes(model, images, training)):
        scales = [_scale(link) for link, _, _ in passes]
        forward, backward = _factors(passes, training)
        for k, (link, _, _) in enumerate(passes):
            predicted = math.prod(scales[: k + 1]), math.prod(scales[k:])
            results.append(ScalingFactor(link.name, link.stage, predicted[0], forward[k], predicted[1], backward[k]))
    return results


@dataclass(frozen=True)
class ScalingFactor:
    """Factors between a unit and the ends of its stage, among the units whose shortcut receives x_l itself.

    Attributes:
        unit: name of the unit.
        stage: number of its stage.
        forward_predicted: Πλ_i from the first of these units in the stage to this one, inclusive.
        forward: the measured factor: the output of this unit over the input of the first, along the shortcuts alone.
        backward_predicted: Πλ_i from this unit to the last one of the stage, inclusive.
        backward: the measured factor: the gradient at the input of this unit over that at the output of the last, along
            the shortcuts alone.
    """

    unit: str
    stage: int
    forward_predicted: float
    forward: float
    backward_predicted: float
    backward: float


def _scale(link: Link) -> float:
    """Return λ of a unit."""
    shortcut = link.unit.shortcut
    if shortcut.keeps_identity:
        return 1.0
    if isinstance(shortcut, ConstantScaling):
        return shortcut.shortcut
    raise InputError(f"{link.name} has a {type(shortcut).__name__}, not a constant scaling; Eq. (7) requires one")


def _factors(passes: Sequence[Pass], training: bool) -> tuple[list[float], list[float]]:
    forward, backward = [], []
    signal = start = passes[0][1]
    for link, _, terms in passes:
        signal = link.along_shortcut(signal, ops.zeros_like(terms.residual), training)
        forward.append(_ratio(signal, start, link.mask))
    gradient = end = passes[-1][2].output  # any direction serves
    for link, x, terms in reversed(passes):
        gradient = link.direct_gradient(x, terms, gradient, training)
        backward.append(_ratio(gradient, end, link.mask))
    return forward, backward[::-1]


def _ratio(tensor: Any, reference: Any, mask: Any) -> float:
    """Return the least-squares factor between `reference` and `tensor`, without padding."""
    a, b = _unpadded(tensor, mask), _unpadded(reference, mask)
    return float(np.vdot(a, b) / np.vdot(b, b))


def identity_error(unit: ResidualLayer, x: Any = None) -> float:
    """Return max |x' − x| / max |x| of a built unit with F left out: 0 if h and f are the identity.

    It is the larger of inference and training, which differ for a shortcut with dropout.

    Args:
        unit: a built unit that does not change the shape.
        x: input, for example (batch, height, width, channels), not all zeros. Default: normally distributed values.

    Raises:
        InputError: the layer is not a single residual unit, is not built, or changes the shape.

    Example:

    >>> from keras_preact.layers import ResidualUnit
    >>> unit, original = ResidualUnit(16), ResidualUnit(16, placement="original")
    >>> for each in (unit, original):
    ...     each.build((None, 8, 8, 16))
    >>> identity_error(unit), identity_error(original) > 0.5
    (0.0, True)
    """
    if not isinstance(unit, ResidualLayer):
        raise InputError(
            f"{unit.name} is not a single residual unit; pass a ResidualUnit, one of the residual_layers() of a block, "
            "or unit(k) of a stack"
        )
    if not unit.built:
        raise InputError(f"{unit.name} is not built yet; call it once, or build it for an input shape")
    if unit.changes_shape:
        raise InputError(f"{unit.name} changes the shape, so its output cannot equal its input; pass another unit")
    if x is None:
        shape = [size or 8 for size in unit.get_build_config()["input_shape"][1:]]
        x = np.random.default_rng(0).normal(size=(4, *shape))
    x = ops.cast(ops.convert_to_tensor(x), unit.compute_dtype)
    link = Link(unit.name, unit, 1)
    zero, before = ops.zeros_like(link.terms(x).residual), as_float64(x)
    outputs = [as_float64(link.along_shortcut(x, zero, training)) for training in (False, True)]
    return float(max(np.abs(after - before).max() for after in outputs) / np.abs(before).max())


def dead_fraction(model: keras.Model | Chain, images: Any, training: bool = True) -> list[DeadFraction]:
    """Return the share of zeros in the output of every unit that ends in a ReLU; other units have no entry.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        training: whether batch norm uses the batch's statistics. Default `True`.

    Raises:
        InputError: the model has no chain of residual units.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> images = np.random.default_rng(0).normal(size=(8, 32, 32, 3))
    >>> dead = dead_fraction(cifar_resnet(depth=14, placement="original"), images)
    >>> len(dead), all(0 <= entry.zeros <= 1 for entry in dead)
    (6, True)
    >>> dead_fraction(cifar_resnet(depth=14), images)
    []
    """
    results = []
    for link, _, terms in _passes(model, images, training):
        if link.unit.placement.after_addition[-1:] == (RELU,):
            zero = as_float64(terms.output) == 0
            axes = tuple(axis for axis in range(4) if axis != channel_axis(link.unit.data_format))
            results.append(DeadFraction(link.name, link.stage, float(zero.mean()), float(zero.all(axes).mean())))
    return results


@dataclass(frozen=True)
class DeadFraction:
    """The zeros after the ReLU that follows an addition.

    Attributes:
        unit: name of the unit.
        stage: number of its stage.
        zeros: share of the values that are 0.
        channels: share of the channels that are 0 at every pixel of every image.
    """

    unit: str
    stage: int
    zeros: float
    channels: float


def _passes(model: keras.Model | Chain, inputs: Any, training: bool) -> Iterator[Pass]:
    chain, x = Chain.of(model).start(inputs, training)
    return chain.passes(x, training)


def _rows(passes: Iterable[Pass]) -> Iterator[list[Pass]]:
    """Yield, for each stage, the units that pass x_l on."""
    for _, entries in itertools.groupby(passes, key=lambda entry: entry[0].stage):
        row = [entry for entry in entries if entry[0].passes_x_on]
        if row:
            yield row


def _unpadded(tensor: Any, mask: Any) -> np.ndarray:
    """Return the values (batch, …); with a mask, only those of steps that are not padding, as (steps, …)."""
    values = as_float64(tensor)
    return values if mask is None else values[ops.convert_to_numpy(mask)]


def as_float64(tensor: Any) -> np.ndarray:
    """Return a tensor of any backend and floating dtype as a NumPy array of float64."""
    wide = keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return ops.convert_to_numpy(tensor if wide else ops.cast(tensor, "float32")).astype(np.float64)
