"""The shortcut h of Eq. (1): the variants of Table 1, and scaled residuals.

Each shortcut is a layer called on (x, residual) that returns y of Eq. (1). It receives both because gating couples
them; the other variants add the residual, scaled or not.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_preact.errors import check_flag, check_number, check_rate
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.convolutions import HE_NORMAL, Conv2D
from keras_preact.layers.dropout import seeded_dropout
from keras_preact.layers.preactivation import channel_axis, check_data_format
from keras_preact.layers.products import convolution_multiply_adds


@keras.saving.register_keras_serializable(package="keras_preact")
class Shortcut(CompositeLayer):
    """Base class of all shortcuts: `call(x, residual)` returns y, with the residual's shape and dtype.

    To write a custom shortcut, override `call` (and `build`, if it has weights, and `get_config`, if its constructor
    has arguments, because a unit copies its shortcut):

    >>> import numpy as np
    >>> class HalfAndHalf(Shortcut):
    ...     def call(self, x, residual):
    ...         return (x + residual) / 2
    >>> float(HalfAndHalf()(np.array([1.0]), np.array([2.0]))[0])
    1.5

    `build` receives the shapes of x and of the residual. A shortcut that sets `changes_shape = True` receives the
    unit's `strides` if its constructor accepts them. It also receives the unit's `kernel_initializer` and `use_bias`
    and, if F ends in a normalization, its `normalize`, `momentum` and `epsilon`. Each of these is passed only if the
    constructor accepts it and the configuration holds `None`, so make `None` the default.

    Args:
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Input: x and the residual, in the compute dtype: images (batch, height, width, channels) or, in a Transformer,
    sequences (batch, steps, width). Both have the same shape unless `changes_shape` is set. Output: the shape and dtype
    of the residual.
    """

    changes_shape = False
    """Whether the shortcut itself maps x to the residual's shape, so that the unit adds no projection."""
    keeps_identity = False
    """Whether h(x) = x; F may be scaled. `check_identity_path` tests this claim of a custom shortcut numerically."""

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(data_format)
        self.supports_masking = True

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        raise NotImplementedError

    def compute_output_shape(self, x_shape: Any, residual_shape: Any) -> Any:
        return residual_shape

    def multiply_adds(self, x_shape: Any) -> int:
        """Return the multiply-adds of the shortcut's convolutions on one image, or 0."""
        return 0

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "data_format": self.data_format}


@keras.saving.register_keras_serializable(package="keras_preact")
class IdentityShortcut(Shortcut):
    """h(x) = x: y = x + F, the proposed shortcut (row "original" of Table 1).

    Example:

    >>> import numpy as np
    >>> float(IdentityShortcut()(np.array([3.0]), np.array([4.0]))[0])
    7.0
    """

    keeps_identity = True

    def call(self, x: Any, residual: Any) -> Any:
        return x + residual


@keras.saving.register_keras_serializable(package="keras_preact")
class ConstantScaling(Shortcut):
    """h(x) = λx with a constant λ: y = λx + μF (section 3.1, "constant scaling").

    Args:
        shortcut: λ, the factor on x. Default 0.5; 0 makes a plain network.
        residual: μ, the factor on the residual. Default 0.5; Table 1 also has 1.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> float(ConstantScaling(shortcut=0.5, residual=1.0)(np.array([3.0]), np.array([4.0]))[0])
    5.5
    """

    def __init__(self, shortcut: float = 0.5, residual: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shortcut = check_number("constant_scaling's shortcut", shortcut)
        self.residual = check_number("constant_scaling's residual", residual)

    def call(self, x: Any, residual: Any) -> Any:
        return self.shortcut * x + self.residual * residual

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shortcut": self.shortcut, "residual": self.residual}


class _Gating(Shortcut):
    """g(x) = σ(W_g x + b_g) by a 1×1 convolution, with b_g initialized to `gate_bias`."""

    def __init__(self, gate_bias: float = -6.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate_bias = check_number("gate_bias", gate_bias)

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        self.gate = Conv2D(
            x_shape[channel_axis(self.data_format)],
            1,
            data_format=self.data_format,
            activation="sigmoid",
            kernel_initializer=HE_NORMAL,
            bias_initializer=keras.initializers.Constant(self.gate_bias),
            dtype=self.dtype_policy,
            name="gate",
        )
        self.gate.build(x_shape)
        super().build(x_shape, residual_shape)

    def multiply_adds(self, x_shape: Any) -> int:
        return convolution_multiply_adds(self.gate, x_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gate_bias": self.gate_bias}


@keras.saving.register_keras_serializable(package="keras_preact")
class ExclusiveGating(_Gating):
    """y = (1 − g(x)) x + g(x) F with g(x) = σ(W_g x + b_g), the gate of Highway networks (section 3.1).

    Args:
        gate_bias: initial b_g. Default -6, the best in the paper's range of 0 to -10. A more negative bias starts
            with the shortcut closer to the identity, and the residual closer to 0.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> x, residual = np.full((1, 2, 2, 4), 3.0), np.full((1, 2, 2, 4), 5.0)
    >>> y = ExclusiveGating(gate_bias=-50)(x, residual)
    >>> bool(np.allclose(keras.ops.convert_to_numpy(y), 3.0))
    True
    """

    def call(self, x: Any, residual: Any) -> Any:
        g = self.gate(x)
        return (1.0 - g) * x + g * residual


@keras.saving.register_keras_serializable(package="keras_preact")
class ShortcutOnlyGating(_Gating):
    """y = (1 − g(x)) x + F with g(x) = σ(W_g x + b_g): the gate on the shortcut alone (section 3.1).

    Args:
        gate_bias: initial b_g. Default -6; Table 1 also has 0.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> x, residual = np.full((1, 2, 2, 4), 3.0), np.full((1, 2, 2, 4), 5.0)
    >>> y = ShortcutOnlyGating(gate_bias=-50)(x, residual)
    >>> bool(np.allclose(keras.ops.convert_to_numpy(y), 8.0))
    True
    """

    def call(self, x: Any, residual: Any) -> Any:
        return (1.0 - self.gate(x)) * x + residual


@keras.saving.register_keras_serializable(package="keras_preact")
class DropoutShortcut(Shortcut):
    """h(x) = dropout(x): a random scaling of each value of x by 0 or 1 / (1 − rate) (section 3.1, "dropout shortcut").

    Args:
        rate: fraction of the shortcut's values set to 0 in training; the others are divided by 1 − rate. Default 0.5.
        seed: random seed. Default `None`: drawn from Keras's global one. With a seed, units that are separate layers of
            a network drop the same positions; those of a `UnitStack` do not.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> float(DropoutShortcut(rate=0.5)(np.array([3.0]), np.array([4.0]), training=False)[0])
    7.0
    """

    def __init__(self, rate: float = 0.5, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("the dropout shortcut's rate", rate)
        self.seed = seed

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        self.dropout = seeded_dropout(self.rate, len(x_shape), self.seed, dtype=self.dtype_policy, name="dropout")
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        return self.dropout(x) + residual

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="keras_preact")
class ScaledResidual(Shortcut):
    """h(x) = x, and F times a learned α: y = x + αF. Later work, not in the paper.

    If α starts at 0, every unit starts as the identity, as in ReZero (Bachlechner et al. 2020) and, for convolutional
    units without normalization, SkipInit (De and Smith 2020). LayerScale (Touvron et al. 2021) has one α per channel,
    which starts at a small positive value such as 0.1.

    Args:
        initial: initial value of α. Default 0.
        per_channel: whether each channel has its own α. Default `False`.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> float(ScaledResidual()(np.array([[3.0]]), np.array([[4.0]]))[0, 0])
    3.0
    """

    keeps_identity = True

    def __init__(self, initial: float = 0.0, per_channel: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = check_number("initial", initial)
        self.per_channel = check_flag("per_channel", per_channel)

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        axis = channel_axis(self.data_format) if len(residual_shape) == 4 else -1
        shape = (residual_shape[axis],) if self.per_channel else ()
        self.alpha = self.add_weight(shape=shape, initializer=keras.initializers.Constant(self.initial), name="alpha")
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        alpha = ops.convert_to_tensor(self.alpha)
        if self.per_channel and self.data_format == "channels_first" and len(residual.shape) == 4:
            alpha = alpha[:, None, None]
        return x + alpha * residual

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initial": self.initial, "per_channel": self.per_channel}
