"""Signal and gradient by unit, and test errors without each unit."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from keras_preact.errors import InputError
from keras_preact.plots.base import check_some, look, named_in_words, new_figure


def propagation_figure(forward: Sequence[Any], gradient: Sequence[Any], title: str = "") -> Figure:
    """Return signal and gradient by unit: variances of x_l and F(x_l), norms of ∂E/∂x_l and its two terms.

    Args:
        forward: result of `keras_preact.analysis.forward_signal`.
        gradient: result of `keras_preact.analysis.gradient_signal`.
        title: title of the figure.

    Raises:
        InputError: there are no units.

    Example:

    >>> import numpy as np
    >>> from keras_preact.analysis import forward_signal, gradient_signal
    >>> from keras_preact.models import cifar_resnet
    >>> network, images = cifar_resnet(8), np.random.default_rng(0).normal(size=(4, 32, 32, 3))
    >>> figure = propagation_figure(forward_signal(network, images), gradient_signal(network, images, [0, 1, 2, 3]))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['variance', 'norm']
    """
    check_some("units", forward)
    check_some("gradients", gradient)
    first, last = gradient[0].norm, gradient[-1].norm
    alt = (
        f"{title + ': ' if title else ''}by depth, on the left the variance of the signal, from "
        f"{forward[0].x.variance:.3g} at the first unit to {forward[-1].x.variance:.3g} at the last; on the right the "
        f"norm of the gradient, {first:.3g} at the first unit and {last:.3g} after the last."
    )
    figure = new_figure(alt, 9.5, 3.8, title)
    left, right = figure.subplots(1, 2)
    units = range(1, len(forward) + 1)
    variances = {
        "signal $x_l$": [e.x.variance for e in forward],
        "residual $F(x_l)$": [e.residual.variance for e in forward],
    }
    _lines(left, units, variances)
    left.set(xlabel="unit $l$", ylabel="variance", yscale="log")
    terms = {
        r"gradient $\partial E/\partial x_l$": [e.norm for e in gradient],
        "direct term": [e.direct for e in gradient],
        "term through the weights": [e.through_weights for e in gradient],
    }
    _lines(right, range(1, len(gradient) + 1), terms)
    right.set(xlabel="unit $l$ (last: after all units)", ylabel="norm", yscale="log")
    for axes in (left, right):
        for number, (before, after) in enumerate(itertools.pairwise(forward), start=2):
            if before.stage != after.stage:
                axes.axvline(number - 0.5, color="0.7", linewidth=0.8, linestyle=":")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def profiles_figure(profiles: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], title: str = "") -> Figure:
    """Return signal and gradient of several networks by unit: variance of x_l, and ‖∂E/∂x_l‖ over ‖∂E/∂x_L‖.

    Args:
        profiles: results of `keras_preact.analysis.forward_signal` and `gradient_signal` by name, for networks with
            equal numbers of units. Names with the same text before a comma, as in "original, untrained" and "original,
            trained", share a color and differ in the kind of line.
        title: title of the figure.

    Raises:
        InputError: there is no network or no unit, or the networks have different numbers of units.

    Example:

    >>> import numpy as np
    >>> from keras_preact.analysis import forward_signal, gradient_signal
    >>> from keras_preact.models import cifar_resnet
    >>> network, images = cifar_resnet(8), np.random.default_rng(0).normal(size=(4, 32, 32, 3))
    >>> profile = forward_signal(network, images), gradient_signal(network, images, [0, 1, 2, 3])
    >>> [len(line.get_ydata()) for axes in profiles_figure({"ResNet-8": profile}).axes for line in axes.get_lines()]
    [3, 4]
    """
    check_some("networks", profiles)
    for name, (forward, gradient) in profiles.items():
        check_some(f"units of {name}", forward)
        check_some(f"gradients of {name}", gradient)
    profiles = named_in_words(profiles)
    signals = {name: [entry.x.variance for entry in forward] for name, (forward, _) in profiles.items()}
    last = {name: gradient[-1].norm or math.nan for name, (_, gradient) in profiles.items()}
    gradients = {name: [entry.norm / last[name] for entry in gradient] for name, (_, gradient) in profiles.items()}
    _check_equal_depth(gradients)
    ends = [
        f"{name} {signals[name][-1] / (signals[name][0] or math.nan):.3g} and {gradients[name][0]:.3g}"
        for name in profiles
    ]
    alt = (
        f"{title + ': ' if title else ''}by depth, variance of the signal and norm of the gradient. The last unit's "
        f"variance over the first's, and the first unit's gradient over that after the last: {'; '.join(ends)}."
    )
    figure = new_figure(alt, 9.5, 4.4, title)
    left, right = figure.subplots(1, 2)
    for axes, series in ((left, signals), (right, gradients)):
        _lines(axes, range(1, len(next(iter(series.values()))) + 1), series)
        axes.grid(alpha=0.3)
    left.set(xlabel="unit $l$", ylabel="variance of $x_l$", yscale="log")
    right.set(xlabel="unit $l$ (last: after all units)", ylabel="gradient norm, relative to the last", yscale="log")
    columns = 1 if max(map(len, profiles)) > 50 else 2  # two long labels would not fit side by side
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _lines(axes: Any, xs: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    networks = list(dict.fromkeys(label.split(", ")[0] for label in series))
    drawn: Counter[str] = Counter()
    for label, values in series.items():
        network = label.split(", ")[0]
        style = {**look(networks.index(network)), "linestyle": ("-", "--", ":", "-.")[drawn[network] % 4]}
        drawn[network] += 1
        # A logarithmic axis cannot show zero.
        shown = [value if value > 0 else float("nan") for value in values]
        every = max(1, len(shown) // 20)
        axes.plot(xs, shown, label=label, markevery=every, markersize=3, linewidth=1.2, **style)


def _check_equal_depth(signals: Mapping[str, Sequence[Any]]) -> None:
    if len({len(signal) for signal in signals.values()}) > 1:
        raise InputError("the networks have different numbers of units; draw networks of one depth")


def gradient_figure(signals: Mapping[str, Sequence[Any]]) -> Figure:
    """Return a heat map of gradient norms on a logarithmic scale: one row per network or moment, one column per unit.

    Args:
        signals: results of `keras_preact.analysis.gradient_signal` by name, for networks with equal numbers of units.

    Raises:
        InputError: there is no network or no unit, or the networks have different numbers of units.

    Example:

    >>> from keras_preact.analysis import GradientSignal
    >>> norms = {"original": (0.1, 1.0), "full_preactivation": (0.9, 1.0)}
    >>> signals = {name: [GradientSignal("", 1, norm, 1.0, 1.0, 0.0) for norm in row] for name, row in norms.items()}
    >>> [label.get_text() for label in gradient_figure(signals).axes[0].get_yticklabels()]
    ['original', 'full pre-activation']
    """
    import numpy as np

    check_some("networks", signals)
    for name, signal in signals.items():
        check_some(f"gradients of {name}", signal)
    signals = named_in_words(signals)
    _check_equal_depth(signals)
    norms = np.array([[entry.norm for entry in signal] for signal in signals.values()])
    ratios = [f"{name} {row[0] / (row[-1] or math.nan):.3g}" for name, row in zip(signals, norms, strict=True)]
    alt = (
        f"Heat map of the gradient's norm by unit. The first unit's norm over that after the last: {'; '.join(ratios)}."
    )
    figure = new_figure(alt, 8.0, 1.2 + 0.45 * len(signals))
    axes = figure.add_subplot()
    with np.errstate(divide="ignore"):
        edges = (0.5, norms.shape[1] + 0.5, len(norms) - 0.5, -0.5)
        image = axes.imshow(np.log10(norms), aspect="auto", cmap="cividis", interpolation="nearest", extent=edges)
    axes.set_yticks(range(len(signals)), list(signals))
    axes.set_xlabel("unit $l$ (last: after all units)")
    axes.set_title("gradient norm by unit", fontsize=10)
    figure.colorbar(image, label=r"$\log_{10}\,\|\partial E/\partial x_l\|$")
    return figure


def lesions_figure(lesions: Sequence[Any]) -> Figure:
    """Return the test error with each unit left out, compared with that of the whole network.

    Args:
        lesions: result of `keras_preact.analysis.leave_out`.

    Raises:
        InputError: there are no lesions, or only the entry of the whole network.

    Example:

    >>> from keras_preact.analysis import Lesion
    >>> from keras_preact.plots import alt_text
    >>> lesions = [Lesion("none", 0, 8.0), Lesion("stage1_unit01", 1, 30.0), Lesion("stage1_unit02", 1, 9.0)]
    >>> alt_text(lesions_figure(lesions))
    'Test error with each unit left out. Whole network 8.0 percent; worst without stage1_unit01, 30.0 percent.'
    """
    check_some("lesions", lesions[1:])
    whole, *rest = lesions
    worst = max(rest, key=lambda lesion: lesion.error)
    alt = (
        f"Test error with each unit left out. Whole network {whole.error:.1f} percent; worst without {worst.unit}, "
        f"{worst.error:.1f} percent."
    )
    figure = new_figure(alt, 8.0, 3.4)
    axes = figure.add_subplot()
    for stage in sorted({lesion.stage for lesion in rest}):
        points = [(k, lesion.error) for k, lesion in enumerate(rest, start=1) if lesion.stage == stage]
        axes.plot(*zip(*points, strict=True), linestyle="", label=f"stage {stage}", **look(stage - 1))
    axes.axhline(whole.error, color="0.4", linewidth=1, label="whole network")
    axes.set(xlabel="unit left out", ylabel="test error (%)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
