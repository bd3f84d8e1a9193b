"""h: the shortcuts of Table 1 and two that are not in it, and what a shortcut does where a unit changes the shape.

Each shortcut is a layer called on (x, residual) that returns their combination, the y of Eq. (1). It takes both
because gating couples them; the others leave the residual as it is, or scale it.
"""

from __future__ import annotations

import ast
import inspect
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_choice, check_number, check_positive, check_rate
from keras_preact.layers.branches import residual_branch, seeded_dropout, weight_layers
from keras_preact.layers.composite import CompositeLayer
from keras_preact.layers.convolutions import (
    HE_BY_FAN_OUT,
    HE_NORMAL,
    Conv2D,
    check_kernel_initializer,
    for_keras,
    subsampled_shape,
)
from keras_preact.layers.placements import Placement
from keras_preact.layers.preactivation import NORMALIZATIONS, channel_axis, check_data_format, normalization
from keras_preact.layers.products import convolution_multiply_adds, sequence_multiply_adds


@keras.saving.register_keras_serializable(package="keras_preact")
class Shortcut(CompositeLayer):
    """Base of all shortcuts: `call(x, residual)` returns y, of the residual's shape and dtype.

    Write your own variant by overriding `call` (and `build`, where it has weights):

    >>> import numpy as np
    >>> class HalfAndHalf(Shortcut):
    ...     def call(self, x, residual):
    ...         return (x + residual) / 2
    >>> float(HalfAndHalf()(np.array([1.0]), np.array([2.0]))[0])
    1.5

    A variant that sets `changes_shape = True` receives the unit's `strides` if its constructor accepts them, and the
    unit's `normalize`, `momentum`, `epsilon`, `kernel_initializer` and `use_bias` for those of these arguments that
    its configuration holds as `None`: let `None`, "not given", be their default. `build` receives the shapes of x and
    of the residual.

    Args:
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.
    """

    changes_shape = False
    """Whether the shortcut itself can map x to another shape (those with convolutions of their own do)."""
    keeps_identity = False
    """Whether h(x) = x, whatever becomes of F."""

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = check_data_format(data_format)
        self.supports_masking = True

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        super().build(x_shape)

    def call(self, x: Any, residual: Any) -> Any:
        raise NotImplementedError

    def compute_output_shape(self, x_shape: Any, residual_shape: Any) -> Any:
        return residual_shape

    def multiply_adds(self, x_shape: Any) -> int:
        """Return the multiply-adds of the shortcut's own convolution on one image, or 0."""
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
        shortcut: λ, the factor on x. Default 0.5. 0 gives a plain network.
        residual: μ, the factor on the residual. Default 0.5; Table 1 has 1 too.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> float(ConstantScaling(shortcut=0.5, residual=1.0)(np.array([3.0]), np.array([4.0]))[0])
    5.5
    """

    def __init__(self, shortcut: float = 0.5, residual: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shortcut = float(shortcut)
        self.residual = float(residual)

    def call(self, x: Any, residual: Any) -> Any:
        return self.shortcut * x + self.residual * residual

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shortcut": self.shortcut, "residual": self.residual}


class _Gating(Shortcut):
    """g(x) = σ(W_g x + b_g) by a 1×1 convolution, with b_g initialized to `gate_bias`."""

    def __init__(self, gate_bias: float = -6.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate_bias = float(gate_bias)

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
        gate_bias: initial b_g. Default -6, the best of the paper's range 0 to -10; the more negative, the
            closer the shortcut starts to the identity (and the residual to 0).
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
        gate_bias: initial b_g. Default -6; Table 1 has 0 too.
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


class _Projecting(Shortcut):
    """A shortcut with convolutions of its own, which changes the shape where the unit does."""

    changes_shape = True

    def __init__(
        self,
        strides: int | None = None,
        normalize: str | None = None,
        momentum: float | None = None,
        epsilon: float | None = None,
        kernel_initializer: Any = None,
        use_bias: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strides = None if strides is None else check_positive("the shortcut's strides", strides)
        self.normalize = None if normalize is None else check_choice("normalization", normalize, NORMALIZATIONS)
        self.momentum = None if momentum is None else check_number("momentum", momentum, 0, 1)
        self.epsilon = None if epsilon is None else check_number("epsilon", epsilon, 0)
        self.kernel_initializer = None if kernel_initializer is None else check_kernel_initializer(kernel_initializer)
        self.use_bias = None if use_bias is None else bool(use_bias)

    def _resolved(self) -> dict[str, Any]:
        """Return the arguments of the convolutions, with the defaults of a `Projection` for those not given."""
        given = {name: value for name, value in self._projection_config().items() if value is not None}
        return {**_PROJECTION_DEFAULTS, **given}

    def _build_projection(self, x_shape: Any, residual_shape: Any) -> Projection:
        projection = Projection(
            residual_shape[channel_axis(self.data_format)],
            **self._resolved(),
            data_format=self.data_format,
            dtype=self.dtype_policy,
            name="projection",
        )
        projection.build(x_shape)
        return projection

    def _projection_config(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "normalize": self.normalize,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "kernel_initializer": self.kernel_initializer,
            "use_bias": self.use_bias,
        }

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._projection_config()}


@keras.saving.register_keras_serializable(package="keras_preact")
class ConvShortcut(_Projecting):
    """h(x) = W x by a 1×1 convolution on every unit (section 3.1; option C of the first ResNet paper).

    Where the unit changes the shape, this convolution does that too: no other projection stands before it.

    The default of each argument is `None`: the unit's own value inside a unit, and the default of `Projection`
    elsewhere. A value that you give stays as it is.

    Args:
        strides: of the convolution.
        normalize: kind of normalization after the convolution, as in `normalization`. The unit's own is that of F
            where F ends in a normalization, else `"none"`.
        momentum: of batch norm.
        epsilon: of the normalization.
        kernel_initializer: as in `ResidualUnit`.
        use_bias: whether the convolution has a bias.
        **kwargs: as in `Shortcut`.

    Example:

    >>> import numpy as np
    >>> tuple(ConvShortcut(strides=2)(np.ones((1, 8, 8, 4)), np.ones((1, 4, 4, 16))).shape)
    (1, 4, 4, 16)
    """

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        self.projection = self._build_projection(x_shape, residual_shape)
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        return self.projection(x) + residual

    def multiply_adds(self, x_shape: Any) -> int:
        return self.projection.multiply_adds(x_shape)


@keras.saving.register_keras_serializable(package="keras_preact")
class HighwayGating(_Projecting):
    """y = h + g (F − h) with g = σ(T(x) + b) and a T as large as F: Highway networks as the paper's critics have them.

    T is two 3×3 convolutions, each with its normalization, and a ReLU between them; h is x, or where the unit
    changes the shape a projection of x. The gate reads the unit's own input there too. Those who dispute the rows
    of gating in Table 1 (`paper.REPRODUCTIONS`) have it so, and nothing after the addition; the gate of the paper
    is one 1×1 convolution, `ExclusiveGating`.

    Args:
        gate_bias: initial b, one for each channel. Default -6: at first g is about 0.002, and y about h.
        **kwargs: as in `ConvShortcut`, for its convolutions (the stride is that of the gate's first).

    Example:

    >>> import numpy as np
    >>> x, residual = np.full((1, 2, 2, 4), 3.0), np.full((1, 2, 2, 4), 5.0)
    >>> y = HighwayGating(gate_bias=-50)(x, residual)
    >>> bool(np.allclose(keras.ops.convert_to_numpy(y), 3.0))
    True
    """

    def __init__(self, gate_bias: float = -6.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gate_bias = float(gate_bias)

    def build(self, x_shape: Any, residual_shape: Any) -> None:
        axis = channel_axis(self.data_format)
        filters = residual_shape[axis]
        chosen = self._resolved()
        normalize = partial(
            normalization,
            chosen["normalize"],
            axis=axis,
            momentum=chosen["momentum"],
            epsilon=chosen["epsilon"],
            dtype=self.dtype_policy,
        )
        convolutions = residual_branch(
            weight_layers("basic", filters, strides=chosen["strides"]),
            Placement("gate", "extension"),
            normalize,
            data_format=self.data_format,
            dtype=self.dtype_policy,
            kernel_initializer=chosen["kernel_initializer"],
            biases="all" if chosen["use_bias"] else "none",
        )
        self.gate = [*convolutions, *normalize(channels=filters, center=False, name="norm_last")]
        shape = x_shape
        for layer in self.gate:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        start = keras.initializers.Constant(self.gate_bias)
        self.bias = self.add_weight(shape=(filters,), initializer=start, name="gate_bias")
        keeps_shape = chosen["strides"] == 1 and x_shape[axis] == filters
        self.projection = None if keeps_shape else self._build_projection(x_shape, residual_shape)
        super().build(x_shape, residual_shape)

    def call(self, x: Any, residual: Any) -> Any:
        h = x if self.projection is None else self.projection(x)
        logit = x
        for layer in self.gate:
            logit = layer(logit)
        bias = ops.convert_to_tensor(self.bias)
        g = ops.sigmoid(logit + (bias[:, None, None] if self.data_format == "channels_first" else bias))
        return h + g * (residual - h)

    def multiply_adds(self, x_shape: Any) -> int:
        projection = 0 if self.projection is None else self.projection.multiply_adds(x_shape)
        return sequence_multiply_adds(self.gate, x_shape) + projection

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gate_bias": self.gate_bias}


@keras.saving.register_keras_serializable(package="keras_preact")
class DropoutShortcut(Shortcut):
    """h(x) = dropout(x) (section 3.1, "dropout shortcut"): in expectation a scaling of the shortcut.

    Args:
        rate: share of the shortcut's values set to 0 in training (the others are divided by 1 − rate). Default 0.5.
        seed: of the random draws; `None` takes Keras's.
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
    """h(x) = x, and F times a learned α: y = x + αF. Not in the paper: what came after it.

    With α = 0 at the beginning every unit begins as the identity: ReZero (Bachlechner et al. 2020), and without
    normalization SkipInit (De and Smith 2020). With an α for each channel it is LayerScale (Touvron et al. 2021).

    Args:
        initial: value of α before training. Default 0.
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
        self.initial = float(initial)
        self.per_channel = bool(per_channel)

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


SHORTCUTS: dict[str, type[Shortcut]] = {
    "identity": IdentityShortcut,
    "constant_scaling": ConstantScaling,
    "exclusive_gating": ExclusiveGating,
    "shortcut_only_gating": ShortcutOnlyGating,
    "conv": ConvShortcut,
    "dropout": DropoutShortcut,
    # Not in the paper:
    "scaled_residual": ScaledResidual,
    "highway": HighwayGating,
}


def get_shortcut(shortcut: str | Shortcut | dict[str, Any], **overrides: Any) -> Shortcut:
    """Return a new shortcut layer.

    Args:
        shortcut: a name of `SHORTCUTS`, with arguments in parentheses where the defaults do not do; a shortcut
            layer, which is copied without its weights; or a layer's serialized configuration.
        **overrides: arguments that replace those of the configuration (dtype, name, data_format, …).

    Raises:
        InputError: unknown name, or arguments that the shortcut does not take.

    Example:

    >>> layer = get_shortcut("exclusive_gating(gate_bias=-7)", name="h")
    >>> type(layer).__name__, layer.gate_bias, layer.name
    ('ExclusiveGating', -7.0, 'h')
    """
    if isinstance(shortcut, dict):
        shortcut = keras.saving.deserialize_keras_object(shortcut)
    if isinstance(shortcut, Shortcut):
        config = {key: value for key, value in shortcut.get_config().items() if key != "name"}
        return type(shortcut).from_config({**config, **overrides})
    name, arguments = _parse(str(shortcut))
    known = _own_arguments(SHORTCUTS[name])
    try:
        if fixed := sorted(arguments.keys() & overrides.keys() - set(known)):
            raise TypeError(f"{fixed[0]} is the unit's")
        return SHORTCUTS[name](**{**arguments, **overrides})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).rstrip(".")
        raise InputError(
            f"the shortcut {shortcut!r} does not take these arguments: {reason}; {name} takes "
            f"{', '.join(known) or 'none'}"
        ) from None


def shortcut_config(shortcut: str | Shortcut | dict[str, Any]) -> dict[str, Any]:
    """Return a shortcut as data: its name and all its arguments, equal for all that `get_shortcut` makes the same of.

    >>> shortcut_config("constant_scaling") == shortcut_config("constant_scaling(shortcut=0.5, residual=0.5)")
    True
    >>> shortcut_config("exclusive_gating(gate_bias=-7)")
    {'name': 'exclusive_gating', 'gate_bias': -7.0}
    """
    layer = get_shortcut(shortcut, name="shortcut")  # a name, so that Keras does not count one more of the kind
    config, own = layer.get_config(), _own_arguments(type(layer))
    name = next((name for name, kind in SHORTCUTS.items() if kind is type(layer)), type(layer).__name__)
    return {"name": name, **{key: config[key] for key in own if key in config}}


def fitted_shortcut(shortcut: Shortcut, strides: int, **arguments: Any) -> Shortcut:
    """Return a copy of a shortcut that changes the shape, with the unit's values for arguments it was not given.

    Args:
        shortcut: arguments that it was given stay as they are; those not given are `None` in its configuration.
        strides: of the unit.
        **arguments: of the unit's convolutions and normalization.

    Raises:
        InputError: the shortcut was given strides that differ from the unit's.

    Example:

    >>> shortcut = get_shortcut("conv(use_bias=False)")
    >>> shortcut = fitted_shortcut(shortcut, strides=2, use_bias=True, normalize="group")
    >>> shortcut.strides, shortcut.use_bias, shortcut.normalize
    (2, False, 'group')
    """
    own, config = _own_arguments(type(shortcut)), shortcut.get_config()
    given = {name: config[name] for name in own if config.get(name) is not None}
    if isinstance(shortcut, _Projecting) and given.get("strides", strides) != strides:
        raise InputError(
            f"the shortcut has strides={given['strides']} and its unit has strides={strides}; "
            "leave out the shortcut's, and it takes the unit's"
        )
    fitting = {name: value for name, value in arguments.items() if name in own and name not in given}
    if "strides" in own:
        fitting["strides"] = strides
    return get_shortcut(shortcut, name=shortcut.name, **fitting)


def _own_arguments(kind: type[Shortcut]) -> list[str]:
    """Return the names of the arguments that a kind of shortcut has beyond those of all shortcuts."""
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    names: dict[str, None] = {}
    for constructor in constructors[: constructors.index(Shortcut.__init__)]:
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                names.setdefault(parameter.name)
    return list(names)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and keyword arguments of `"name"` or `"name(key=value, …)"`, values being literals."""
    try:
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Name):
            return check_choice("shortcut", call.id, SHORTCUTS), {}
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            return check_choice("shortcut", call.func.id, SHORTCUTS), arguments
    except (SyntaxError, ValueError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(
        f"cannot read the shortcut {text!r}; write a name or name(key=number), for example "
        "exclusive_gating(gate_bias=-7)"
    )


# ---- what stands on the shortcut where the unit changes the shape -------------------------------------------------


@keras.saving.register_keras_serializable(package="keras_preact")
class Projection(CompositeLayer):
    """A strided 1×1 convolution to the residual's shape (option B of the first ResNet paper).

    Args:
        filters: number of output channels.
        strides: of the convolution. Default 1.
        normalize: kind of normalization after the convolution. Default `"none"`: the pre-activation nets of the
            paper project with a plain convolution; the original ResNet has batch norm after it.
        momentum: of batch norm.
        epsilon: of the normalization.
        kernel_initializer: as in `ResidualUnit`.
        use_bias: whether the convolution has a bias. Default `False`.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Example:

    >>> import numpy as np
    >>> tuple(Projection(16, strides=2)(np.ones((1, 8, 8, 4))).shape)
    (1, 4, 4, 16)
    """

    def __init__(
        self,
        filters: int,
        strides: int = 1,
        normalize: str = "none",
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        kernel_initializer: Any = HE_BY_FAN_OUT,
        use_bias: bool = False,
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = int(filters)
        self.strides = int(strides)
        self.normalize = normalize
        self.momentum = float(momentum)
        self.epsilon = float(epsilon)
        self.kernel_initializer = check_kernel_initializer(kernel_initializer)
        self.use_bias = bool(use_bias)
        self.data_format = check_data_format(data_format)

    def build(self, input_shape: Any) -> None:
        self.conv = Conv2D(
            self.filters,
            1,
            strides=self.strides,
            use_bias=self.use_bias,
            data_format=self.data_format,
            kernel_initializer=for_keras(self.kernel_initializer),
            dtype=self.dtype_policy,
            name="conv",
        )
        self.conv.build(input_shape)
        self.norm = normalization(
            self.normalize,
            self.filters,
            axis=channel_axis(self.data_format),
            momentum=self.momentum,
            epsilon=self.epsilon,
            dtype=self.dtype_policy,
        )
        for layer in self.norm:
            layer.build(self.conv.compute_output_shape(input_shape))
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        x = self.conv(x)
        for layer in self.norm:
            x = layer(x)
        return x

    def compute_output_shape(self, input_shape: Any) -> Any:
        return subsampled_shape(input_shape, self.filters, self.strides, self.data_format)

    def multiply_adds(self, x_shape: Any) -> int:
        """Return the multiply-adds of the convolution on one image."""
        return convolution_multiply_adds(self.conv, x_shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "normalize": self.normalize,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "kernel_initializer": self.kernel_initializer,
            "use_bias": self.use_bias,
            "data_format": self.data_format,
        }


_PROJECTION_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(Projection.__init__).parameters.items()
    if name in ("strides", "normalize", "momentum", "epsilon", "kernel_initializer", "use_bias")
}


@keras.saving.register_keras_serializable(package="keras_preact")
class OptionA(keras.layers.Layer):
    """Every `strides`-th pixel, and zeros for the new channels: no weights (option A of the first ResNet paper).

    Args:
        filters: number of output channels, at least the input's.
        strides: distance of the pixels taken. Default 1.
        data_format: `"channels_last"` or `"channels_first"`; default Keras's setting.
        **kwargs: as in `keras.layers.Layer`.

    Raises:
        InputError: the input has more channels than `filters`.

    Example:

    >>> import numpy as np
    >>> y = OptionA(3, strides=2)(np.arange(8.0).reshape(1, 2, 4, 1))
    >>> keras.ops.convert_to_numpy(y)[0, 0].tolist()
    [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    """

    def __init__(self, filters: int, strides: int = 1, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = int(filters)
        self.strides = int(strides)
        self.data_format = check_data_format(data_format)

    def build(self, input_shape: Any) -> None:
        channels = input_shape[channel_axis(self.data_format)]
        if channels > self.filters:
            raise InputError(
                f"option A pads channels with zeros and cannot go from {channels} to {self.filters}; "
                "use shape_change='projection'"
            )
        super().build(input_shape)

    def call(self, x: Any) -> Any:
        axis = channel_axis(self.data_format)
        if self.strides > 1:
            # Means of single pixels: the pixels themselves, and on TensorFlow many times faster than a strided slice.
            x = ops.average_pool(x, 1, self.strides, data_format=self.data_format)
        new = self.filters - x.shape[axis]
        if not new:
            return x
        widths = [(0, 0)] * 4
        widths[axis] = (0, new)
        return ops.pad(x, widths)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return subsampled_shape(input_shape, self.filters, self.strides, self.data_format)

    def multiply_adds(self, x_shape: Any) -> int:
        """Return 0: there is nothing to multiply."""
        return 0

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "data_format": self.data_format,
        }
