"""Residual networks as ensembles of paths (Veit, Wilber, Belongie 2016): units left out, units swapped, path lengths.

A unit that is left out keeps its shortcut and loses F: its output is f(h(x_l)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.analysis.chain import Chain, Link, Pass
from keras_preact.analysis.gradients import class_numbers, loss_gradient, loss_scale
from keras_preact.analysis.propagation import as_float64
from keras_preact.errors import InputError, check_count, check_positive


def leave_out(model: keras.Model | Chain, images: Any, labels: Any) -> list[Lesion]:
    """Return the test error of the whole network, then with each unit left out in turn.

    The network runs at inference: batch norm uses its moving averages, which mean nothing before training.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        labels: class numbers (batch,) or (batch, 1).

    Raises:
        InputError: the model has no chain of residual units, or the labels do not fit its outputs.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> rng = np.random.default_rng(0)
    >>> lesions = leave_out(cifar_resnet(depth=14), rng.normal(size=(8, 32, 32, 3)), np.arange(8))
    >>> [lesion.unit for lesion in lesions][:3]
    ['none', 'stage1_unit01', 'stage1_unit02']
    """
    chain, x = Chain.of(model).start(images)
    passes = list(chain.passes(x))
    lesions = [Lesion("none", 0, *_errors(chain, passes[-1][2].output, labels))]
    for first in range(0, len(passes), _LESIONS_AT_ONCE):
        group = range(first, min(first + _LESIONS_AT_ONCE, len(passes)))
        links = [chain.links[place] for place in group]
        errors = _errors(chain, _each_left_out(passes, group), labels, len(group))
        lesions += [Lesion(link.name, link.stage, error) for link, error in zip(links, errors, strict=True)]
    return lesions


_LESIONS_AT_ONCE = 16
"""Lesions that share a pass through later units: at a thousand layers, small batches spend most time on overhead."""


def _each_left_out(passes: Sequence[Pass], group: range) -> Any:
    """Return the outputs of the last unit with each unit of the group left out in turn, as one batch."""
    outputs = None
    for place, (link, x, terms) in enumerate(passes[group.start :], start=group.start):
        batches = [] if outputs is None else [link.for_copies(min(place - group.start, len(group)))(outputs)]
        if place in group:
            batches.append(link.along_shortcut(x, ops.zeros_like(terms.residual)))
        outputs = ops.concatenate(batches)
    return outputs


@dataclass(frozen=True)
class Lesion:
    """The test error without one unit.

    Attributes:
        unit: name of the unit left out, or `none`.
        stage: number of its stage, from 1; 0 for none.
        error: test error, %.
    """

    unit: str
    stage: int
    error: float


def swap(
    model: keras.Model | Chain, images: Any, labels: Any, swaps: Sequence[int] = (1, 2, 4, 8), seed: int = 0
) -> list[Swap]:
    """Return the test error after random swaps of units of equal shape.

    Each pair is drawn independently, so a later swap may undo an earlier one; `order_kept` says how much of the order
    remains.

    The network runs at inference: batch norm uses its moving averages.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        labels: class numbers (batch,) or (batch, 1).
        swaps: numbers of pairs to exchange; one result for each.
        seed: seed of the choice of pairs. Default 0.

    Raises:
        InputError: the model has no chain of residual units, or no two units of equal shape, or a number of pairs is
            negative.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> rng = np.random.default_rng(0)
    >>> swapped = swap(cifar_resnet(depth=20), rng.normal(size=(8, 32, 32, 3)), np.arange(8), swaps=[0, 3])
    >>> [(entry.swaps, entry.order_kept) for entry in swapped][0]
    (0, 1.0)
    """
    swaps = [check_count("an entry of swaps", count) for count in swaps]
    chain, start = Chain.of(model).start(images)
    rows: dict[int, list[int]] = {}
    for place, link in enumerate(chain.links):
        if not link.unit.changes_shape:
            rows.setdefault(link.stage, []).append(place)
    pairs = [(a, b) for row in rows.values() for i, a in enumerate(row) for b in row[i + 1 :]]
    if not pairs:
        raise InputError(f"{chain.name} has no two units of equal shape to swap; use a deeper network")
    rng = np.random.default_rng(seed)
    results = []
    for count in swaps:
        order = list(range(len(chain.links)))
        for a, b in rng.choice(pairs, size=count):
            order[a], order[b] = order[b], order[a]
        output = _run([chain.links[place] for place in order], start)
        results.append(Swap(count, _kendall_tau(order, list(rows.values())), *_errors(chain, output, labels)))
    return results


@dataclass(frozen=True)
class Swap:
    """The test error after swaps.

    Attributes:
        swaps: number of pairs exchanged.
        order_kept: Kendall's τ between the orders of the units before and after, over pairs within a stage: 1 if they
            are equal, −1 if one is the reverse of the other.
        error: test error, %.
    """

    swaps: int
    order_kept: float
    error: float


def _kendall_tau(order: Sequence[int], rows: Sequence[Sequence[int]]) -> float:
    signs = [np.sign(order[b] - order[a]) for row in rows for i, a in enumerate(row) for b in row[i + 1 :]]
    return float(np.mean(signs))


def path_lengths(
    model: keras.Model | Chain,
    images: Any,
    labels: Any,
    samples: int = 10,
    training: bool = True,
    seed: int = 0,
    loss: Callable[[Any, Any], Any] | None = None,
) -> list[PathLength]:
    """Return, for each path length, the share of paths that have it and the gradient along them.

    At each unit a path takes either the shortcut or F; its length is the number of times that it takes F. A network
    of n units has 2ⁿ paths, C(n, k) of them of length k. The gradient along a path is measured from the loss back to
    the input of the first unit, at each unit through F alone or along the shortcut alone, with the activations of an
    ordinary forward pass.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        labels: first argument of the loss; for the default one, class numbers (batch,) or (batch, 1).
        samples: number of random paths of each length. Default 10.
        training: whether batch norm uses the batch's statistics. Default `True`.
        seed: seed of the choice of paths. Default 0.
        loss: as in `gradient_signal`.

    Raises:
        InputError: as in `gradient_signal`, or `samples` is not at least 1.

    Example:

    >>> from keras_preact.models import cifar_resnet
    >>> rng = np.random.default_rng(0)
    >>> lengths = path_lengths(cifar_resnet(depth=14), rng.normal(size=(8, 32, 32, 3)), np.arange(8), samples=2)
    >>> round(sum(entry.paths for entry in lengths), 9), round(sum(entry.share for entry in lengths), 9)
    (1.0, 1.0)
    """
    check_positive("samples", samples)
    chain, x = Chain.of(model).start(images, training)
    passes = list(chain.passes(x, training))
    scale = loss_scale(passes[-1][2].output)
    end = loss_gradient(chain, passes[-1][2].output, labels, training, loss, scale)
    n, rng = len(passes), np.random.default_rng(seed)
    mean_norms = []
    for length in range(n + 1):
        norms = []
        for _ in range(samples if 0 < length < n else 1):  # lengths 0 and n have one path each
            through, gradient = set(rng.choice(n, size=length, replace=False).tolist()), end
            for k in reversed(range(n)):
                link, x, terms = passes[k]
                back = link.branch_gradient if k in through else link.direct_gradient
                gradient = back(x, terms, gradient, training)
            norms.append(np.linalg.norm(as_float64(gradient)) / scale)
        mean_norms.append(float(np.mean(norms)))
    paths = [math.comb(n, k) / 2**n for k in range(n + 1)]
    total = sum(p * g for p, g in zip(paths, mean_norms, strict=True))
    shares = [p * g / total if total else 0.0 for p, g in zip(paths, mean_norms, strict=True)]
    return [PathLength(k, *entry) for k, entry in enumerate(zip(paths, mean_norms, shares, strict=True))]


@dataclass(frozen=True)
class PathLength:
    """The paths of one length.

    Attributes:
        length: number of residual branches on a path.
        paths: share of all paths that have this length.
        norm: mean norm of the gradient along such a path.
        share: share of the gradient along paths of this length: paths × norm over its sum for all lengths; 0 if the
            loss has no gradient.
    """

    length: int
    paths: float
    norm: float
    share: float


def _run(links: Sequence[Link], x: Any) -> Any:
    for link in links:
        x = link(x)
    return x


def _errors(chain: Chain, x: Any, labels: Any, count: int = 1) -> list[float]:
    """Return the test error (%) of each of `count` batches, concatenated in x, the output of the last unit."""
    outputs = as_float64(chain.for_copies(count).after(x))
    if outputs.shape[-1] == 1:
        raise InputError(f"{chain.name} has one output, not a score for each class; use a network with two classes")
    predicted = np.split(np.argmax(outputs, axis=-1), count)
    expected = class_numbers(labels, (*predicted[0].shape, outputs.shape[-1]))
    kept = ~chain.is_padding(expected.shape)
    return [float(100 * np.mean((batch != expected)[kept])) for batch in predicted]
