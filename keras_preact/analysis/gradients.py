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
    """Return the exact ∂E/∂x_l at every unit's input, in order, and at last that at the output of the last unit.

    Args:
        model: a functional model whose residual units follow one another, rolled or not; or its chain.
        images: float (batch, height, width, channels), as the model takes them.
        labels: what the loss is given with the model's output.
        training: whether batch norm uses the batch's statistics. Default `True`.
        loss: function of (labels, output) that gives one number, or one an image; E is their mean. Default: sparse
            categorical cross-entropy, of logits or of a softmax's probabilities, whichever the model returns.

    Raises:
        InputError: a model without such units, or one that ends in a sigmoid and no loss given.

    Example: along identity shortcuts, the gradient at the end of a stage comes back to all its units unchanged.

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
        unit: the unit's name, or `output` for what follows the last one.
        stage: number of its stage.
        norm: ‖∂E/∂x_l‖ over the whole batch, whose mean loss is E.
        cosine: of the angle between ∂E/∂x_l and ∂E/∂x_L; `None` where their shapes differ.
        direct: norm of the first term: what comes back from x_L along the shortcuts alone, with F held constant.
            Where h and f are the identity, this is ∂E/∂x_L itself.
        through_weights: norm of the rest, the second term.
    """

    unit: str
    stage: int
    norm: float
    cosine: float | None
    direct: float
    through_weights: float

    @classmethod
    def of(cls, unit: str, stage: int, gradient: Any, direct: Any, end: Any, scale: float = 1.0) -> GradientSignal:
        """Return the entry of a unit from ∂E/∂x_l, its direct term, and ∂E/∂x_L, each times `scale`."""
        g, d, last = (as_float64(tensor) for tensor in (gradient, direct, end))
        lengths = float(np.linalg.norm(g) * np.linalg.norm(last))
        cosine = float(np.vdot(g, last)) / lengths if g.shape == last.shape and lengths else None
        norms = [float(np.linalg.norm(part)) / scale for part in (g, d, g - d)]
        return cls(unit, stage, norms[0], cosine, norms[1], norms[2])


def loss_scale(x: Any) -> float:
    """Return what to multiply E by while it is differentiated at x.

    That of a mean over many images has values that float16 rounds to zero, the more so in a trained network: they are
    lifted by as much as Keras's `LossScaleOptimizer` begins with. A power of two changes no digit.
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
    """Return ∂(scale · E)/∂x at the output of the last unit; the other arguments as in `gradient_signal`."""
    if loss is None:
        outputs = chain.after(x, training)
        loss = _cross_entropy(chain, outputs)
        check_labels(labels, tuple(outputs.shape))

    def error(x: Any) -> Any:
        return ops.mean(loss(ops.convert_to_tensor(labels), chain.after(x, training)))

    return vjp(error, x, ops.full((), scale, error(x).dtype))


def check_labels(labels: Any, shape: tuple[int, ...]) -> None:
    """Refuse labels that the cross-entropy of outputs of this shape cannot be computed with.

    Raises:
        InputError: not whole numbers, not one an output, or one that is no class.
    """
    found = np.asarray(ops.convert_to_numpy(ops.convert_to_tensor(labels)))
    *outputs, classes = shape
    if found.shape == shape:
        raise InputError("the labels are one-hot; give the number of each class, labels.argmax(-1)")
    if found.shape != tuple(outputs):
        raise InputError(f"there are labels of shape {found.shape} for outputs of {tuple(outputs)}; give one for each")
    if not np.issubdtype(found.dtype, np.integer) and (found != np.floor(found)).any():
        raise InputError("the labels are no whole numbers; give the number of each class")
    if found.size and not (found.min() >= 0 and found.max() < classes):
        wrong = found.min() if found.min() < 0 else found.max()
        raise InputError(f"label {wrong:g} is none of {classes} classes; give numbers from 0 to {classes - 1}")


def _cross_entropy(chain: Chain, outputs: Any) -> Callable[[Any, Any], Any]:
    """Return the cross-entropy of what the model's outputs are: probabilities, or else logits.

    The outputs themselves say which: a softmax can be a layer, an activation, an operation, or inside another model.
    """
    if "sigmoid" in chain.activation:
        raise InputError(
            f"{chain.name} ends in a {chain.activation}, whose outputs are neither logits nor the probabilities of "
            "one class out of several; give the loss that it is trained with (loss=)"
        )
    values = as_float64(outputs)
    is_distribution = (values >= 0).all() and np.allclose(values.sum(-1), 1, rtol=0, atol=1e-2)
    return partial(ops.sparse_categorical_crossentropy, from_logits=not is_distribution)
