"""SGD with the paper's weight decay, AdamW that decays only kernels, and a schedule that Keras lacks.

The package imports this module, so that loading a compiled network finds these classes.
"""

from __future__ import annotations

import math
from typing import Any

import keras

from keras_preact.errors import (
    InputError,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_positive,
    check_rate,
)
from keras_preact.keras_private import decay_exclusions, is_decayed, variable_index

DECAYS = ("all", "kernels")


@keras.saving.register_keras_serializable(package="keras_preact")
class CoupledSGD(keras.optimizers.SGD):
    """SGD with momentum whose weight decay is part of the gradient: g ← g + λw, then v ← μv − ηg, w ← w + v.

    This is the weight decay of the paper, Caffe and PyTorch's `SGD`: λw is the gradient of ½λ‖w‖². Keras's own
    `weight_decay` is decoupled: it subtracts ηλw from the weights, outside the momentum. Keras's L2 penalty is λ‖w‖²
    without the ½, so it decays twice as fast, and it is part of the reported loss.

    Args:
        learning_rate: η, a number or a schedule. Default 0.1.
        momentum: μ. Default 0.9.
        decay: λ. Default 1e-4.
        decays: which trainable variables decay: `"all"` (default), including biases and batch norm's scale and offset,
            as in the authors' Torch code; or only the `"kernels"` of convolutions and dense layers.
        nesterov: use Nesterov momentum. Default `False`.
        **kwargs: as in `keras.optimizers.SGD`, except `weight_decay`, which would be a second decay.

    Raises:
        InputError: an argument is out of range, or `weight_decay` is set.

    Example: one step from w = 2 with gradient 1, η = 0.5, λ = 0.1.

    >>> w = keras.Variable([2.0], name="kernel")
    >>> CoupledSGD(0.5, momentum=0.0, decay=0.1).apply([keras.ops.array([1.0])], [w])
    >>> round(float(w[0]), 6)  # 2 - 0.5 (1 + 0.1 * 2)
    1.4
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        decay: float = 1e-4,
        decays: str = "all",
        nesterov: bool = False,
        name: str = "coupled_sgd",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("weight_decay") is not None:
            raise InputError("weight_decay would add Keras's decoupled decay to decay; use decay alone")
        momentum = check_rate("momentum", momentum)
        check_flag("nesterov", nesterov)
        super().__init__(learning_rate=_rate(learning_rate), momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        self.decay = check_number("decay", decay, 0)
        self.decays = check_choice("choice of decayed variables", decays, DECAYS)

    def build(self, variables: Any) -> None:
        if self.built:  # as in Keras: for the first variables alone
            return
        # Decided here, because `update_step` receives TensorFlow's own variables, which have other names.
        self._is_decayed = [
            (self.decays == "all" or _is_kernel(variable)) and is_decayed(self, variable) for variable in variables
        ]
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if self.decay and self._is_decayed[variable_index(self, variable)]:
            gradient = gradient + self.decay * keras.ops.cast(variable, gradient.dtype)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay": self.decay, "decays": self.decays}


@keras.saving.register_keras_serializable(package="keras_preact")
class KernelAdamW(keras.optimizers.AdamW):
    """AdamW (decoupled weight decay) that decays kernels only: no biases, scales, offsets or embeddings.

    A variable decays if its name ends in `kernel` and its layer is not called `embedding`. Keras's own
    `exclude_from_weight_decay(var_names=["embedding"])` compares other names on TensorFlow than on JAX, so such a
    kernel would decay on one backend and not on the other.

    Arguments and defaults as in `keras.optimizers.AdamW`.

    Raises:
        InputError: an argument is out of range.

    Example: an update with no gradient, η = 0.5, λ = 0.1.

    >>> kernel, bias = keras.Variable([2.0], name="kernel"), keras.Variable([2.0], name="bias")
    >>> KernelAdamW(0.5, weight_decay=0.1).apply([keras.ops.zeros((1,))] * 2, [kernel, bias])
    >>> round(float(kernel[0]), 6), float(bias[0])  # 2 - 0.5 * 0.1 * 2
    (1.9, 2.0)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            _rate(learning_rate),
            check_number("weight_decay", weight_decay, 0),
            check_rate("beta_1", beta_1),
            check_rate("beta_2", beta_2),
            **kwargs,
        )

    def build(self, variables: Any) -> None:
        if self.built:
            return
        self.excluded_names = decay_exclusions(self)  # the next call replaces them
        excluded = [variable for variable in variables if not (_decays(variable) and is_decayed(self, variable))]
        self.exclude_from_weight_decay(var_list=excluded)
        super().build(variables)

    def _apply_weight_decay(self, variables: Any) -> None:
        if any(is_decayed(self, variable) for variable in variables):  # PyTorch fails on an empty list
            super()._apply_weight_decay(variables)


@keras.saving.register_keras_serializable(package="keras_preact")
class CosineAfterHold(keras.optimizers.schedules.LearningRateSchedule):
    """A constant warm-up learning rate, then a half cosine from another rate down to 0.

    Args:
        warmup_learning_rate: the rate of the warm-up.
        warmup_steps: number of warm-up steps.
        learning_rate: the rate at the first step after the warm-up.
        decay_steps: length of the half cosine, in steps, at least 1.
        name: name of the schedule.

    Raises:
        InputError: a number is out of range.

    >>> rate = CosineAfterHold(0.01, 10, 0.1, 20)
    >>> [round(float(rate(step)), 4) for step in (0, 9, 10, 20, 30)]
    [0.01, 0.01, 0.1, 0.05, 0.0]
    """

    def __init__(
        self,
        warmup_learning_rate: float,
        warmup_steps: int,
        learning_rate: float,
        decay_steps: int,
        name: str = "cosine_after_hold",
    ) -> None:
        super().__init__()
        self.warmup_learning_rate = check_number("warmup_learning_rate", warmup_learning_rate, 0)
        self.warmup_steps = check_count("warmup_steps", warmup_steps)
        self.learning_rate = check_number("learning_rate", learning_rate, 0)
        self.decay_steps = check_positive("decay_steps", decay_steps)
        self.name = name

    def __call__(self, step: Any) -> Any:
        done = keras.ops.cast(step, "float32") - self.warmup_steps
        share = keras.ops.clip(done / self.decay_steps, 0.0, 1.0)
        cosine = self.learning_rate * 0.5 * (1.0 + keras.ops.cos(math.pi * share))
        return keras.ops.where(done < 0, self.warmup_learning_rate, cosine)

    def get_config(self) -> dict[str, Any]:
        names = ("warmup_learning_rate", "warmup_steps", "learning_rate", "decay_steps", "name")
        return {name: getattr(self, name) for name in names}


def _rate(learning_rate: Any) -> Any:
    """Return a learning rate after checking it, unless it is a schedule or a function."""
    return learning_rate if callable(learning_rate) else check_number("learning_rate", learning_rate, 0)


def _decays(variable: Any) -> bool:
    layers = getattr(variable, "path", variable.name).split("/")  # a `tf.Variable` has no path
    is_embedding = "embedding" in layers or variable.name.startswith("embedding_")  # in a stack
    return _is_kernel(variable) and not is_embedding


def _is_kernel(variable: Any) -> bool:
    return variable.name.split(":")[0].endswith("kernel")  # in a stack: unit_conv1_kernel; a `tf.Variable`: kernel:0
