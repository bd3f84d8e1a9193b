"""Diagrams of residual units: every layer is a box, in the order of the computation, and every text can be read."""

import keras
import pytest

from keras_preact.errors import InputError
from keras_preact.layers import (
    PLACEMENTS,
    SHORTCUTS,
    FeedForwardUnit,
    Placement,
    PreActivation,
    ResidualUnit,
    Shortcut,
)
from keras_preact.paper import TABLE_2
from keras_preact.plots import alt_text, draw, placements_figure, unit_figure
from keras_preact.plots.boxes import kind_of
from keras_preact.plots.units import layer_labels, placement_parts, unit_parts

WORDS = {"norm": "BN", "relu": "ReLU"}


def built(channels=8, **options):
    unit = ResidualUnit(8, **options)
    unit.build((None, 8, 8, channels))
    return unit


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_unit_is_drawn_from_its_layers(placement, check_texts):
    figure = unit_figure({placement: built(placement=placement)})
    spec = PLACEMENTS[placement]
    steps = [*spec.first, "conv", *spec.between, "conv", *spec.last, *spec.after_addition]
    assert check_texts(figure) == [[WORDS.get(step, "3×3 conv, 8") for step in steps]]
    shown = texts(figure)
    assert {"$x_l$", "$x_{l+1}$", "$F$", "$h$ = identity"} <= set(shown)
    assert ("$f$ = identity" in shown) == spec.identity_after_addition == ("$f$" not in shown)


ON_PATHS = {
    "identity": ((), ()),
    "constant_scaling": (("× 0.5",), ("× 0.5",)),
    "constant_scaling(shortcut=0.5, residual=1)": (("× 0.5",), ()),
    "exclusive_gating": (("× (1 − g(x))",), ("× g(x)",)),
    "shortcut_only_gating": (("× (1 − g(x))",), ()),
    "conv": (("1×1 conv, 8",), ()),
    "dropout(rate=0.2)": (("dropout 0.2",), ()),
    "scaled_residual": ((), ("× α",)),
    "highway": (("× (1 − g(x))",), ("× g(x)",)),
}


def test_every_shortcut_is_known():
    assert {shortcut.split("(")[0] for shortcut in ON_PATHS} == set(SHORTCUTS)


@pytest.mark.parametrize("shortcut", ON_PATHS)
def test_what_a_shortcut_does_to_x_and_to_f_is_drawn(shortcut, check_texts):
    parts = unit_parts(built(shortcut=shortcut))
    assert (parts.shortcut, parts.scale) == ON_PATHS[shortcut]
    figure = unit_figure({shortcut: built(shortcut=shortcut)})
    (labels,) = check_texts(figure)
    assert sorted(labels) == sorted([*parts.branch, *parts.shortcut, *parts.scale])
    assert ("$h$ = identity" in texts(figure)) == (not parts.shortcut)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_units_that_change_the_shape(placement, shortcut, check_texts):
    """For all placements and shortcuts: one box per label, and no text over another."""
    units = {
        f"{block} {change} with a title of several lines": built(
            4, placement=placement, shortcut=shortcut, block=block, shape_change=change, strides=2
        )
        for block, change in (("single", "projection"), ("bottleneck", "option_a"))
    }
    figure = unit_figure(units)
    for unit, labels in zip(units.values(), check_texts(figure), strict=True):
        parts = unit_parts(unit)
        assert parts.before == tuple(WORDS[step] for step in PLACEMENTS[placement].first)
        assert parts.shortcut  # x does not have the shape of F
        every = [*parts.before, *parts.branch, *parts.shortcut, *parts.scale, *parts.after]
        assert sorted(labels) == sorted(every)


def test_a_shared_preactivation_is_named_as_part_of_h():
    shown = texts(unit_figure({"shared": built(preactivation="shared")}))
    assert "$h$ = BN, ReLU" in shown and "$h$ = identity" not in shown


def test_strides_and_the_norm_of_a_projection_are_drawn():
    assert unit_parts(built(4, strides=2, placement="original")).shortcut == ("1×1 conv, 8, /2", "BN")
    assert unit_parts(built(4, strides=2)).shortcut == ("1×1 conv, 8, /2",)
    assert unit_parts(built(4, shape_change="option_a")).shortcut == ("subsample, pad",)
    bottleneck = unit_parts(built(4, strides=2, block="bottleneck", stride_on="3x3")).branch
    assert bottleneck == ("1×1 conv, 8", "BN", "ReLU", "3×3 conv, 8, /2", "BN", "ReLU", "1×1 conv, 32")


@pytest.mark.parametrize(("kind", "word"), [("batch", "BN"), ("group", "group norm"), ("layer", "layer norm")])
def test_the_kind_of_normalization_is_drawn(kind, word):
    branch = unit_parts(built(normalization=kind, drop_path=0.1)).branch
    assert branch == (word, "ReLU", "3×3 conv, 8") * 2 + ("drop path",)


def test_third_party_layers_are_drawn_by_name(check_texts):
    class AveragedWithTheResidualOfTheBranch(Shortcut):
        def call(self, x, residual):
            return (x + residual) / 2

    (labels,) = check_texts(unit_figure({"a": built(shortcut=AveragedWithTheResidualOfTheBranch())}))
    assert "averaged with the residual of the branch" in labels
    assert layer_labels([PreActivation("gelu"), keras.layers.ReLU()]) == ["BN", "GELU", "ReLU"]


def test_dense_layers_and_their_activation_are_drawn():
    unit = FeedForwardUnit(feed_forward_dim=16)
    unit.build((None, 5, 8))
    found = [*unit_parts(unit).before, *unit_parts(unit).branch]
    assert found == ["layer norm", "dense, 16", "GELU", "dense, 8"]
    assert [kind_of(label) for label in found] == ["normalization", "weights", "activation", "weights"]


def test_an_activation_may_be_an_object():
    unit = FeedForwardUnit(activation=keras.layers.LeakyReLU())
    unit.build((None, 5, 8))
    assert "LeakyReLU" in unit_parts(unit).branch
    assert kind_of("silu") == "activation"


def test_many_units_and_long_titles_fill_several_rows(check_texts):
    titles = [f"a title that is longer than its unit is wide, and has the number {number}" for number in range(6)]
    figure = unit_figure(dict.fromkeys([*titles, "averyveryveryverylongtitlewithoutspaces"], built()))
    assert check_texts(figure) == [["BN", "ReLU", "3×3 conv, 8"] * 2] * 7
    assert len({axes.get_position().y0 for axes in figure.axes}) > 1
    words = " ".join(texts(figure)[:8])
    assert "a title that is" in words and titles[0] in alt_text(figure)


def test_a_title_is_centered_over_its_unit():
    (axes,) = unit_figure({"gated": built(shortcut="exclusive_gating")}).axes
    title = next(text for text in axes.texts if text.get_text() == "gated")
    drawing = [patch.get_bbox() for patch in axes.patches if patch.get_gid() == "area"]
    left, right = min(area.x0 for area in drawing), max(area.x1 for area in drawing)
    assert title.get_position()[0] == pytest.approx((left + right) / 2, abs=0.03)


def test_the_description_has_all_layers():
    figure = unit_figure({"projection": built(4, strides=2), "gated": built(shortcut="exclusive_gating")})
    assert "projection: on the shortcut 1×1 conv, 8, /2; before the split BN, ReLU; on the branch" in alt_text(figure)
    assert "gated: on the shortcut × (1 − g(x)); before the split nothing;" in alt_text(figure)
    assert "conv, 8; times F × g(x); after the addition nothing." in alt_text(figure)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({}, "there are no units to draw"),
        ({"a": ResidualUnit(8, name="mine")}, "mine is not built"),
        ({"a": PreActivation()}, "not PreActivation; pass a ResidualUnit"),
    ],
)
def test_what_cannot_be_drawn_is_refused(units, message):
    with pytest.raises(InputError, match=message):
        unit_figure(units)


# ---- Fig. 4 -------------------------------------------------------------------------------------------------------


def test_fig_4_has_the_papers_panels_with_its_errors(check_texts, tmp_path):
    figure = placements_figure()
    shown = [name for name, placement in PLACEMENTS.items() if placement.figure in "abcde"]
    assert len(shown) == len(TABLE_2) == 5
    for name, axes, labels in zip(shown, figure.axes[-5:], check_texts(figure)[-5:], strict=True):
        placement = PLACEMENTS[name]
        parts = placement_parts(placement)
        assert labels == [*parts.branch, *parts.after]
        words = [text.get_text() for text in axes.texts]
        assert words[0].startswith(f"({placement.figure}) ")
        errors = {text.get_text(): text.get_fontweight() for text in axes.texts if "ResNet" in text.get_text()}
        lowest = name == "full_preactivation"
        weight = "bold" if lowest else "normal"
        assert errors == {f"ResNet-{depth}: {error} %": weight for depth, error in TABLE_2[name].items()}
        assert f"ResNet-110 {TABLE_2[name][110]} %" in alt_text(figure)
    assert "bn_only" not in alt_text(figure) and "BN-only" not in alt_text(figure)
    first, second = (draw(placements_figure(), tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_and_its_unit_have_the_same_parts(placement):
    assert placement_parts(PLACEMENTS[placement], ["3×3 conv, 8"] * 2) == unit_parts(built(placement=placement))


def test_a_custom_placement():
    mine = Placement("mine", "mine", first=("relu",), between=(), last=("norm",), after_addition=("norm", "relu"))
    parts = placement_parts(mine, ["a", "b", "c"])
    assert parts.branch == ("ReLU", "a", "b", "c", "BN") and parts.after == ("BN", "ReLU")


def test_diagrams_are_readable_in_a_dark_style(tmp_path):
    from matplotlib import style

    units = {"unit": built(placement="original")}
    light = draw(unit_figure(units), tmp_path / "light.png").read_bytes()
    with style.context("dark_background"):
        assert draw(unit_figure(units), tmp_path / "dark.png").read_bytes() == light
