"""The parts of diagrams: boxes, arrows, and the space that a unit needs."""

import itertools
import math

import pytest

from keras_preact.plots.base import COLOURS
from keras_preact.plots.boxes import (
    ACTIVATION,
    CONVOLUTION,
    NORM,
    OTHER,
    Parts,
    arrow,
    box,
    box_height,
    canvas,
    column,
    draw_unit,
    kind_of,
    panel,
    text_width,
    tint,
    unit_height,
    wrapped,
    write,
)

LABELS = {CONVOLUTION: "conv", NORM: "BN", ACTIVATION: "ReLU", OTHER: "× 0.5"}


def test_kinds_of_layers_differ_in_color_and_black_text_is_legible_on_each():
    axes = panel(canvas("", 5, 5), 0, 0, 5, 5)
    for label in LABELS.values():
        box(axes, 1, 1, label, 1)
    faces = [patch.get_facecolor()[:3] for patch in axes.patches]
    assert {kind_of(label) for label in LABELS.values()} == set(LABELS) and len(set(faces)) == len(LABELS)

    def luminance(color):  # WCAG 2
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    for color in [*faces, *map(tint, COLOURS)]:
        assert (luminance(color) + 0.05) / 0.05 > 7


def test_a_long_label_has_a_higher_box(check_texts):
    long = "a label that is longer than a line"
    assert box_height(long) > box_height("short")
    assert max(map(len, wrapped(long, 20).split("\n"))) <= 20
    figure = canvas("", 3, 3)
    box(panel(figure, 0, 0, 3, 3), 1.5, 1.5, long, 1.5)
    assert check_texts(figure) == [[long]]


def test_the_measured_width_of_a_text_is_the_drawn_one(check_texts):
    figure = canvas("", 5, 5)
    axes = panel(figure, 0, 0, 5, 5)
    for y, (text, size) in enumerate([("full pre-activation", 8), ("$x_{l+1}$", 9.5), ("two\nlonger lines", 12)], 1):
        write(axes, 2, y, text, size)
        check_texts(figure)
        shown = max(t.get_window_extent().width for t in axes.texts if t.get_text() in text.split("\n")) / figure.dpi
        assert shown == pytest.approx(text_width(text, size), abs=0.05)


def test_an_arrow_ends_where_it_is_told():
    axes = panel(canvas("", 5, 5), 0, 0, 5, 5)
    arrow(axes, [(1, 4), (0.5, 4), (0.5, 1), (1, 1)])
    (patch,) = axes.patches
    start, *_, end = patch._path_original.vertices.tolist()
    assert (start, end) == ([1, 4], [1, 1]) and patch.get_arrowstyle().__class__.__name__ == "CurveFilledB"


def test_a_unit_is_as_high_as_announced_and_all_its_parts_are_drawn(parts, check_texts):
    """For combinations of few and many layers in each place."""
    several = ((), ("BN",), ("BN", "ReLU", "3×3 conv, 512, /2"))
    places = itertools.product(several[::2], several[1:], several, several[:2], several[::2])
    for before, branch, shortcut, scale, after in places:
        unit = Parts(before, branch, shortcut, scale, after)
        at = column([unit])
        figure = canvas("", at.width, unit_height(unit))
        axes = panel(figure, 0, 0, at.width, unit_height(unit))
        assert draw_unit(axes, 0, unit_height(unit), at, unit) == pytest.approx(0)
        boxes = [patch.get_extents() for patch in parts(axes, "box")]
        assert len(boxes) == sum(map(len, (before, branch, shortcut, scale, after)))
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert len(parts(axes, "plus")) == 1
        assert len(parts(axes, "area")) == 1 + bool(shortcut) + bool(after)  # F, h and f
        shown = {text.get_text() for text in axes.texts}
        h = "$h$" if shortcut else f"$h$ = {', '.join(before) or 'identity'}"
        assert {"$F$", h} <= shown and ("$f$" in shown) == bool(after)
        arrows = [patch._path_original.vertices for patch in parts(axes, "arrow")]
        assert len(arrows) == len(boxes) + 2  # one into each box, and two into the addition
        (circle,) = parts(axes, "plus")
        distances = [math.dist(vertices[-1], circle.center) for vertices in arrows]
        assert sum(distance == pytest.approx(circle.radius) for distance in distances) == 2
