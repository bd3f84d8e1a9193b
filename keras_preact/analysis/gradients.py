"""The gradient at every unit, and the two terms of Eq. (5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_preact.analysis.chain import Chain
from keras_preact.analysis.differentiation import vjp
from keras_preact.analysis.propagation import as_float64
from keras_preact.errors import InputError


def gradient_signal(
    model: keras.Model | Chain,
    images: Any,
    labels: Any,
    training: bool = True,
    loss: Callable[[Any, Any], Any] | None = None,
) -> list[GradientSignal]:
    """Return the exact ∂E/∂x_l at the input of every unit, in order, then at the output of the last unit.

    Args:
        model: functional model whose residual units form a chain, rolled or not; or its `Chain`.
        images: batch of model inputs, for example images (batch, height, width, channels).
        labels: first argument of the loss; for the default one, class numbers (batch,) or (batch, 1).
        training: whether batch norm uses the batch's statistics. Default `True`.
        loss: function of (labels, output) that returns one number, one per example, or one per step; E is their mean,
            without steps of padding. Default: sparse categorical cross-entropy, from logits or from probabilities,
            whichever the model returns.

    Raises:
        InputError: the model has no chain of residual units, the labels do not fit its outputs, or `loss` is missing
            and the outputs are neither logits nor probabilities: those of a sigmoid or a scaled softmax.

    Example: along identity shortcuts, the gradient at the end of a stage reaches all its units unchanged.

    >>> from keras_preact.models import cifar_resnet
    >>> rng = np.random.default_rng(0)
    >>> signal = gradient_signal(cifar_resnet(depth=14), rng.normal(size=(8, 32, 32, 3)), np.arange(8))
    >>> [entry.unit for entry in signal[-3:]]
    ['stage3_unit01', 'stage3_unit02', 'output']
    >>> signal[-2].direct == signal[-1].norm
    True
    """
    chain, x = Chain.of(model).start(images, training)
    passes = list(chain.passes(x, training))
    scale = loss_scale(passes[-1][2].output)
    gradient = loss_gradient(chain, passes[-1][2].output, labels, training, loss, scale)
    stage, end, direct = passes[-1][0].stage, gradient, gradient
    signals = [GradientSignal.of("output", stage, gradient, direct, end, scale)]
    for link, x, terms in reversed(passes):
        if link.stage != stage:
            stage, end, direct = link.stage, gradient, gradient
        gradient, direct = link.gradient(x, gradient, training), link.direct_gradient(x, terms, direct, training)
        signals.append(GradientSignal.of(link.name, stage, gradient, direct, end, scale))
    return signals[::-1]


@dataclass(frozen=True)
class GradientSignal:
    """The gradient at one unit's input, and its split by Eq. (5).

    Attributes:
        unit: name of the unit, or `output` for the output of the last one.
        stage: number of its stage, from 1.
        norm: ‖∂E/∂x_l‖ over the whole batch, where E is the mean loss.
        cosine: cosine of the angle between ∂E/∂x_l and ∂E/∂x_L; `None` if their shapes differ or one is zero.
        direct: norm of the first term: the part that comes back from x_L along the shortcuts alone, with F held
            constant. If h and f are the identity, the term is ∂E/∂x_L itself.
        through_weights: norm of the second term, the rest.
    """

    unit: str
    stage: int
    norm: float
    cosine: float | None
    direct: float
    through_weights: float

    @classmethod
    def of(cls, unit: str, stage: int, gradient: Any, direct: Any, end: Any, scale: float = 1.0) -> GradientSignal:
        """Return the entry of a unit for ∂E/∂x_l, its direct term and ∂E/∂x_L, all multiplied by `scale`."""
        g, d, last = (as_float64(tensor) for tensor in (gradient, direct, end))
        lengths = float(np.linalg.norm(g) * np.linalg.norm(last))
        cosine = float(np.vdot(g, last)) / lengths if g.shape == last.shape and lengths else None
        norms = [float(np.linalg.norm(part)) / scale for part in (g, d, g - d)]
        return cls(unit, stage, norms[0], cosine, norms[1], norms[2])


def loss_scale(x: Any) -> float:
    """Return the factor of E during differentiation at x.

    In float16, gradients of a mean over many images underflow, especially in a trained network. The factor is the
    initial scale of Keras's `LossScaleOptimizer`, a power of two, which changes no digit.
    """
    return 2.0**15 if keras.backend.standardize_dtype(x.dtype) == "float16" else 1.0


def loss_gradient(
    chain: Chain,
    x: Any,
    labels: Any,
    training: bool,
    loss: Callable[[Any, Any], Any] | None = None,
    scale: float = 1.0,
) -> Any:
    """Return ∂(scale · E)/∂x at the output of the last unit; the other arguments are those of `gradient_signal`."""
    if loss is None:
        outputs = chain.after(x, training)
        loss = _cross_entropy(chain, outputs)
        labels = class_numbers(labels, tuple(outputs.shape))

    def error(x: Any) -> Any:
        values = loss(ops.convert_to_tensor(labels), chain.after(x, training))
        padding = chain.is_padding(tuple(values.shape))
        share = 1 - float(padding.mean())
        return ops.mean(ops.where(padding, ops.zeros_like(values), values)) / (share or 1.0)

    return vjp(error, x, ops.full((), scale, error(x).dtype))


def class_numbers(labels: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return labels for the sparse cross-entropy of outputs of this shape: one number for each output.

    Labels of shape (batch, 1), as in `keras.datasets`, become (batch,).

    Raises:
        InputError: there is only one score, or the labels are not integers, not one per output, or outside the classes.
    """
    array = np.asarray(ops.convert_to_numpy(ops.convert_to_tensor(labels)))
    *outputs, classes = shape
    if classes == 1:
        raise InputError(
            "the network has one output, not a score for each class; use one with two classes, or pass the training "
            "loss to `gradient_signal` or `path_lengths` as loss="
        )
    if array.shape == (*outputs, 1):
        array = array[..., 0]
    if array.shape == shape:
        raise InputError("the labels are one-hot; pass class numbers: labels.argmax(-1)")
    if array.shape != tuple(outputs):
        raise InputError(f"the labels have shape {array.shape}; pass one label for each output, shape {tuple(outputs)}")
    if not np.issubdtype(array.dtype, np.integer) and (array != np.floor(array)).any():
        raise InputError("the labels are not integers; pass class numbers")
    if array.size and not (array.min() >= 0 and array.max() < classes):
        wrong = array.min() if array.min() < 0 else array.max()
        raise InputError(f"label {wrong:g} is outside [0, {classes}); pass class numbers from 0 to {classes - 1}")
    return array


def _cross_entropy(chain: Chain, outputs: Any) -> Callable[[Any, Any], Any]:
    """Return the cross-entropy from probabilities, if the outputs are distributions, or else from logits.

    The values decide: a softmax can be a layer, an activation, an operation, or inside a nested model.
    """
    values = as_float64(outputs)
    sums, fault = values.sum(-1), ""
    is_distribution = (values >= 0).all() and np.allclose(sums, 1, rtol=0, atol=1e-2)
    if "sigmoid" in chain.activation:
        fault = f"ends in a {chain.activation}"
    elif not is_distribution and _are_scaled_distributions(values):
        fault = f"has outputs that each sum to {sums.mean():.3g}, like a scaled or shifted softmax"
    if fault:
        raise InputError(
            f"{chain.name} {fault}, so its outputs are neither logits nor class probabilities; "
            "pass the training loss to `gradient_signal` or `path_lengths` as loss="
        )
    return partial(ops.sparse_categorical_crossentropy, from_logits=not is_distribution)


def _are_scaled_distributions(values: np.ndarray) -> bool:
    """Return whether outputs are non-negative, differ from each other, and have the same sum.

    Equal outputs, such as those of a single image, may be logits.
    """
    rows, sums = values.reshape(-1, values.shape[-1]), values.sum(-1)
    return bool((rows >= 0).all() and (rows != rows[0]).any() and np.allclose(sums, sums.mean(), rtol=1e-2, atol=0))
