"""The figures: what stands in them, what they say in words, and that their files are the same wherever drawn."""

import errno
import math
import os
from pathlib import Path

import numpy as np
import pytest
from harness import ended_runs

from keras_preact import InputError
from keras_preact.analysis import Lesion, forward_signal, gradient_signal, leave_out
from keras_preact.experiments import Line, Row
from keras_preact.models import cifar_resnet
from keras_preact.paper import FAILS, Published
from keras_preact.plots import (
    alt_text,
    curves_figure,
    depth_figure,
    draw,
    draw_curves,
    gradient_figure,
    lesions_figure,
    mechanism_figure,
    orders_figure,
    profiles_figure,
    propagation_figure,
    screening_figure,
    table_curves_figure,
    table_figure,
)

X = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
Y = np.arange(4)


def rows(*errors):
    return [{"step": 10.0 * k, "train_error": e + 5, "test_error": e} for k, e in enumerate(errors, 1)]


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


# ---- training -----------------------------------------------------------------------------------------------------


def test_two_lines_a_network_training_dashed():
    axes = curves_figure({"original": rows(80, 60), "full_preactivation": rows(70, 40)}).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "original, training", "original, test", "full pre-activation, training", "full pre-activation, test",
    ]  # fmt: skip
    assert [line.get_linestyle() for line in axes.get_lines()] == ["--", "-", "--", "-"]
    assert list(axes.get_lines()[3].get_ydata()) == [70, 40]


def test_everything_is_inside_the_axes():
    axes = curves_figure({"net": rows(99, 40)}).axes[0]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] >= 100
    assert axes.get_xlim()[1] >= 20


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("unit", ["%", "nats"])
def test_errors_that_are_nan_or_infinite_leave_gaps_and_do_not_set_the_limits(bad, unit, tmp_path):
    figure = curves_figure({"net": rows(40, 30, bad), "diverged": rows(20, bad, 10)}, unit)
    axes = figure.axes[0]
    assert axes.get_ylim() == (0, pytest.approx(45 * 1.05)) and axes.get_xlim()[1] >= 30
    alone = axes.get_lines()[2]  # training errors without a neighbor are no part of a line
    assert alone.get_marker() not in ("", "None") and alone.get_markevery() == [0, 2]
    assert axes.get_lines()[0].get_marker() in ("", "None")
    empty = curves_figure({"net": rows(bad, bad)}, unit)
    assert empty.axes[0].get_ylim() == (0, 1)
    for each in (figure, empty):
        draw(each, tmp_path / "a.png")


def test_a_figure_without_runs_is_an_empty_frame(recwarn):
    """All runs of a comparison may have diverged in their first epoch."""
    assert curves_figure({}).axes[0].get_ylim() == (0, 1) and not list(recwarn)


def test_the_file_does_not_say_where_and_when_it_was_made(tmp_path):
    first, second = (draw_curves({"net": rows(50, 30)}, tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second
    assert b"Software" not in first
    vectors = [draw(curves_figure({"net": rows(50, 30)}), tmp_path / name).read_bytes() for name in ("a.svg", "b.svg")]
    assert vectors[0] == vectors[1] and b"<svg" in vectors[0]
    assert "At the end: net 35.0 and 30.0" in vectors[0].decode()


@pytest.mark.parametrize("name", ["a.jpg", "a.pdf", "a.txt", "v0.1"])
def test_other_files_than_png_and_svg_are_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"unknown image format '(jpg|pdf|txt|1)'.*; known: png, svg"):
        draw_curves({"net": rows(50, 30)}, tmp_path / name)
    assert not list(tmp_path.iterdir())
    assert draw(curves_figure({"net": rows(50, 30)}), tmp_path / "A.PNG").exists()


# ---- empty input --------------------------------------------------------------------------------------------------

EMPTY = {
    "no orders": (lambda: orders_figure({}), "no orders to draw; pass at least one"),
    "an order without runs": (lambda: orders_figure({"original": []}), "no runs of original to draw"),
    "no screening": (lambda: screening_figure({}, 80), "no orders to draw"),
    "an order without cells": (lambda: screening_figure({"original": {}}, 80), "no depths to draw"),
    "no rates": (lambda: screening_figure({"original": {}}, 80, {20: 56.0}), "no learning rates to draw"),
    "no units": (lambda: propagation_figure([], []), "no units to draw"),
    "no gradients": (lambda: propagation_figure([None], []), "no gradients to draw"),
    "no profiles": (lambda: profiles_figure({}), "no networks to draw"),
    "a profile without units": (lambda: profiles_figure({"net": ([], [])}), "no units of net to draw"),
    "no networks": (lambda: gradient_figure({}), "no networks to draw"),
    "a network without gradients": (lambda: gradient_figure({"net": []}), "no gradients of net to draw"),
    "no lesions": (lambda: lesions_figure([]), "no lesions to draw"),
    "the whole network alone": (lambda: lesions_figure([Lesion("none", 0, 8.0)]), "no lesions to draw"),
    "no rows": (lambda: table_figure([]), "no rows to draw"),
    "no runs at a depth": (
        lambda: depth_figure({"loss": {"at 0.1": {"original": {20: []}}}}),
        "no runs of original at 20 layers to draw",
    ),
    "fewer columns": (
        lambda: depth_figure({"loss": {"at 0.1": {}}, "error": {}}),
        "error has 0 columns and loss has 1; pass the same for both",
    ),
    "fewer moments": (lambda: mechanism_figure({"a": {"before": {}}, "b": {}}), "b has 0 columns and a has 1"),
}


@pytest.mark.parametrize("what", EMPTY)
def test_without_data_there_is_no_figure(what):
    figure, message = EMPTY[what]
    with pytest.raises(InputError, match=message):
        figure()


def test_panels_without_data_are_empty():
    for figure in (depth_figure({"loss": {}}), mechanism_figure({"direct term": {}})):
        assert len(figure.axes) == 1 and not figure.axes[0].get_lines()
    assert [axes.get_title() for axes in table_curves_figure({"a": rows(9)}, {}).axes] == ["a"]


# ---- propagation --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    model = cifar_resnet(14, input_shape=(16, 16, 3))
    return forward_signal(model, X), gradient_signal(model, X, Y), leave_out(model, X, Y)


def test_the_propagation_figure_shows_what_was_measured(measured):
    forward, gradient, _ = measured
    figure = propagation_figure(forward, gradient, "net")
    left, right = figure.axes
    assert list(left.get_lines()[0].get_ydata()) == [entry.x.variance for entry in forward]
    assert list(right.get_lines()[0].get_ydata()) == [entry.norm for entry in gradient]
    assert left.get_yscale() == "log"
    assert np.isnan(right.get_lines()[2].get_ydata()[-1])  # nothing comes through weights after the last unit
    assert f"{gradient[0].norm:.3g} at the first unit" in alt_text(figure)


def test_profiles_are_drawn_side_by_side(measured):
    forward, gradient, _ = measured
    figure = profiles_figure(dict.fromkeys("abcdefgh", (forward, gradient)), "units")  # more than there are colours
    left, right = figure.axes
    assert [line.get_label() for line in left.get_lines()] == list("abcdefgh")
    assert len({(line.get_color(), line.get_marker()) for line in left.get_lines()}) == 8
    assert list(left.get_lines()[0].get_ydata()) == [entry.x.variance for entry in forward]
    assert right.get_lines()[0].get_ydata()[-1] == 1
    assert f"b {forward[-1].x.variance / forward[0].x.variance:.3g}" in alt_text(figure)


def test_the_heat_map_is_the_logarithm_of_the_norms(measured):
    _, gradient, _ = measured
    figure = gradient_figure({"a": gradient, "b": gradient})
    image = figure.axes[0].get_images()[0].get_array()
    assert image.shape == (2, 7)
    np.testing.assert_allclose(image[1], np.log10([entry.norm for entry in gradient]))


@pytest.mark.parametrize("figure", ["profiles", "heat map"])
def test_networks_of_several_depths_are_refused(measured, figure):
    forward, gradient, _ = measured
    with pytest.raises(InputError, match="different numbers of units; draw networks of one depth"):
        if figure == "profiles":
            profiles_figure({"deep": (forward, gradient), "shallow": (forward[1:], gradient[1:])})
        else:
            gradient_figure({"deep": gradient, "shallow": gradient[1:]})


def test_the_lesions_stand_against_the_whole(measured):
    lesions = measured[2]
    figure = lesions_figure(lesions)
    shown = [y for line in figure.axes[0].get_lines()[:3] for y in line.get_ydata()]
    assert shown == [lesion.error for lesion in lesions[1:]]
    assert f"Whole network {lesions[0].error:.1f} percent" in alt_text(figure)


def test_a_run_without_an_epoch_is_named_and_not_drawn():
    figure = curves_figure({"diverged at once": []})
    assert "diverged at once: no epoch" in alt_text(figure)
    assert "the table" in alt_text(table_curves_figure({}, {}, "the table"))


def test_a_tables_curves_have_a_panel_a_row_before_that_which_it_is_compared_with():
    runs = {name: rows(k + 9.0, k + 8.0) for k, name in enumerate("abcde")}
    for names, shape in (("ab", (1, 1)), ("abcd", (1, 3)), ("abcde", (2, 3))):
        figure = table_curves_figure({name: runs[name] for name in names}, dict.fromkeys(names, "a"))
        panels = [axes for axes in figure.axes if axes.axison]
        assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == shape
        assert [axes.get_title() for axes in panels] == list(names[1:])
        for k, axes in enumerate(panels, start=1):
            drawn = [list(line.get_ydata()) for line in axes.get_lines()]
            assert drawn == [[14, 13], [9, 8], [14 + k, 13 + k], [9 + k, 8 + k]]
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        assert words == ["this row, first run", "reference row, first run", "training", "test"]


def test_the_only_epoch_of_a_run_is_a_point():
    figure = table_curves_figure({"a": rows(9), "b": rows(8, 7)}, dict.fromkeys("ab", "b"))
    markers = [line.get_marker() for line in figure.axes[0].get_lines()]
    assert markers == ["", "", "o", "o"]
    for count, is_marked in ((1, True), (2, False)):
        training = curves_figure({"net": rows(*range(count))}).axes[0].get_lines()[0]
        assert (training.get_marker() not in ("", "None")) == is_marked


# ---- tables ------------------------------------------------------------------------------------------------------


def test_a_table_shows_every_run_and_the_published_value_as_differences_from_the_first_row():
    first = Line(Row("a", "first", "110", published=Published(6.5, "L")), "ResNet-32", ended_runs(8.0, 9.0, 7.0))
    second = Line(Row("b", "second", "110", published=Published(7.0, "L")), "", ended_runs(10.0, 11.0), reference=first)
    third = Line(Row("c", "third", "110", published=FAILS), "", ended_runs(12.0, math.inf), reference=first)
    fourth = Line(Row("d", "fourth", "110", published=FAILS), "", (), reference=first)
    figure = table_figure([first, second, third, fourth], "a table")
    axes = figure.axes[0]
    points = {
        (line.get_marker(), tuple(line.get_xdata()), round(line.get_ydata()[0]))
        for line in axes.get_lines()[1:]
        if len(line.get_xdata())
    }
    assert ("D", (0.0,), 0) in points and ("o", (0.0, 1.0, -1.0), 0) in points
    assert ("D", (0.5,), 1) in points and ("o", (2.0, 3.0), 1) in points and ("o", (4.0,), 2) in points
    (interval,) = [ends for marker, ends, _ in points if marker == "None"]
    assert interval == pytest.approx((second.difference.low, second.difference.high))
    assert texts(axes) == ["published: fails →", "1 of 2 diverged →", "published: fails →"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "first (run: ResNet-32)",
        "second",
        "third",
        "fourth",
    ]
    assert alt_text(figure).startswith("a table: 3 of 4 rows run; ") and "second +2.50 [" in alt_text(figure)
    assert len(figure.legends[0].get_texts()) == 3
    alone = table_figure([first])  # nothing published to compare with
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["ours, each run"]
    assert "D" not in [line.get_marker() for line in alone.axes[0].get_lines()]


# ---- the depth study ----------------------------------------------------------------------------------------------


def test_orders_are_thin_lines_of_runs_and_a_thick_one_of_their_mean():
    figure = orders_figure({"original": [rows(90, 88), rows(80, 84)], "full_preactivation": [rows(70, 50)]}, "both")
    axes = figure.axes[0]
    thin = [
        list(line.get_ydata()) for line in axes.get_lines() if line.get_linewidth() < 1 and line.get_linestyle() != ":"
    ]
    thick = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines() if line.get_linewidth() > 2}
    assert thin == [[90, 88], [80, 84], [70, 50]]
    assert thick == {"original (n = 2)": [85, 86], "full pre-activation (n = 1)": [70, 50]}
    assert alt_text(figure) == (
        "both: test error (%) against training steps. At the end: original 86.0 (84.0 to 88.0, n = 2); "
        "full pre-activation 50.0 (50.0 to 50.0, n = 1)."
    )


@pytest.mark.parametrize("runs", [[rows(90), rows(80, 84)], [rows(80, 84), rows(90)]])
def test_the_mean_covers_the_steps_that_all_runs_have(runs):
    figure = orders_figure({"original": runs, "full_preactivation": [rows(70, 50)]})
    thick = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[0].get_lines()
        if line.get_linewidth() > 2
    }
    assert thick == {
        "original (n = 2, mean to step 10)": ([10], [85]),
        "full pre-activation (n = 1)": ([10, 20], [70, 50]),
    }
    thin = {line.get_marker(): len(line.get_xdata()) for line in figure.axes[0].get_lines()[:2]}
    assert thin == {".": 1, "": 2}  # a run with one row is a dot
    assert alt_text(figure).endswith(
        "At the end: original 85.0 (80.0 to 90.0, n = 2, at step 10, the last with all runs); "
        "full pre-activation 50.0 (50.0 to 50.0, n = 1)."
    )


def test_means_belong_to_steps_not_to_rows():
    resumed = [{"step": step, "test_error": error} for step, error in ((10, 80.0), (15, 70.0), (20, 60.0))]
    mean = orders_figure({"original": [rows(90, 80), resumed]}).axes[0].get_lines()[2]
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([10, 20], [85, 70])


@pytest.mark.parametrize("other", [[], [{"step": 15, "test_error": 80.0}]])
def test_runs_without_a_common_step_have_no_mean(other):
    with pytest.raises(InputError, match="runs of original have no step in common; pass only runs tested at the same"):
        orders_figure({"original": [rows(90, 80), other]})


def test_the_screening_marks_what_fails_and_shows_the_largest_rate_that_works():
    errors = {
        "original": {(20, 0.1): 55.0, (20, 0.3): 79.9, (218, 0.1): 80.0, (218, 0.3): 90.0},
        "full_preactivation": {(20, 0.1): 54.0, (218, 0.1): 57.0},  # not all of it run
    }
    figure = screening_figure(errors, 80.0, {20: 56.0, 218: 71.0})
    first, second, beside = figure.axes[:3]
    assert texts(first) == ["55", "80 ✕", "80", "90 ✕", "56", "71"] and texts(second) == ["54", "57", "not run"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["0.1", "0.3", "0.1, warm-up"]
    assert [label.get_text() for label in beside.get_yticklabels()] == ["0.1", "≥ 0.3"]
    lines = {line.get_label(): np.array(line.get_ydata(), float) for line in beside.get_lines()}
    np.testing.assert_equal(lines["original"], [0.3, np.nan])  # none works at 218 layers
    assert len(lines["full pre-activation"]) == 0  # 0.3 was not tried, and may work
    assert alt_text(figure).endswith(
        "original: 20 layers 0.3, 218 layers none; full pre-activation: 20 layers not all run, 218 layers not all run."
    )
    image = first.get_images()[0].get_array()
    np.testing.assert_equal(np.asarray(image), [[55, 80], [79.9, 90], [56, 71]])
    figure = screening_figure({"original": {(20, 0.1): 55.0, (218, 0.1): 90.0}}, 80.0, rates=(0.03, 0.1, 0.3))
    assert alt_text(figure).endswith("that works: original: 20 layers not all run, 218 layers not all run.")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0.03", "0.1", "0.3"]


def test_the_screening_of_warm_up_alone_has_its_depths():
    figure = screening_figure({"original": {}}, 80.0, {20: 56.0, 218: 71.0}, (0.1, 0.3))
    assert texts(figure.axes[0]) == ["56", "71"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["20", "218"]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_error_that_is_nan_or_infinite_is_marked_as_a_failure(bad):
    axes = screening_figure({"original": {(20, 0.1): bad, (110, 0.1): 80.0}}, 80.0).axes[0]
    assert texts(axes) == [f"{bad} ✕", "80 ✕"]
    assert [text.get_color() for text in axes.texts] == ["black", "white"]  # the first is on a blank cell


def test_depth_has_a_panel_for_each_quantity_and_rate_with_a_dot_a_run():
    points = {"original": {110: [38.0, 40.0], 20: [30.0]}, "full_preactivation": {20: [31.0], 110: [35.0, 36.0]}}
    series = {what: {"at 0.1": points, "tuned": points} for what in ("training loss", "test error (%)")}
    figure = depth_figure(series)
    assert len(figure.axes) == 4
    axes = figure.axes[2]
    means = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines() if line.get_linewidth() > 1.5}
    assert means["original"] == [30.0, 39.0] and means["full pre-activation"] == [31.0, 35.5]
    dots = sorted(y for line in axes.get_lines() if line.get_marker() == "." for y in line.get_ydata())
    assert dots == [30.0, 31.0, 35.0, 36.0, 38.0, 40.0]
    low, high = (sorted(axes.collections[0].get_paths()[0].vertices[:, 1])[k] for k in (0, -1))
    assert (low, high) == (30.0, 40.0) and axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["20", "110"]
    assert "test error (%), tuned, original: 30 at 20 layers to 39 at 110 layers" in alt_text(figure)
    series["test error (%)"]["tuned"] = {"original": {20: [30.0]}}
    for axes in depth_figure(series).axes:  # panels share their ticks: all have those of the fullest
        assert [round(tick) for tick in axes.get_xticks()] == [20, 110]
    assert depth_figure({}).axes  # before anything has been run


def test_the_mechanism_has_a_row_a_quantity_and_a_column_a_moment():
    found = {
        "direct term": {"before": {"original": {20: 0.5, 110: 0.001}}, "end": {"original": {110: 0.1, 20: 0.4}}},
        "dead channels": {"before": {"original": {20: 0.0, 110: 0.3}}, "end": {}},
    }
    figure = mechanism_figure(found)
    assert [axes.get_title() for axes in figure.axes] == ["before", "end", "", ""]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear", "linear"]
    assert list(figure.axes[1].get_lines()[0].get_xdata()) == [20, 110]
    assert figure.axes[0].get_ylabel() == "direct term"
    assert alt_text(figure) == (
        "Values at the smallest and the largest depth. direct term, end, original: 0.4 at 20 layers to 0.1 at 110 "
        "layers; dead channels, before, original: 0 at 20 layers to 0.3 at 110 layers."
    )
    assert mechanism_figure({}).axes
    nothing = mechanism_figure({"dead channels": {"before": {"original": {20: 0.0, 110: 0.0}}}})
    assert nothing.axes[0].get_ylim()[1] == 1


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_values_that_are_nan_or_infinite_do_not_choose_the_axis_of_the_mechanism(bad):
    def axes(*values):
        return mechanism_figure({"a": {"before": {"original": dict(zip((20, 56, 110), values, strict=True))}}}).axes[0]

    assert axes(bad, 1.0, 2.0).get_yscale() == "linear"
    assert axes(bad, 100.0, 1.0).get_yscale() == "log"
    assert axes(bad, 0.0, 0.0).get_ylim()[1] == 1


def test_an_order_has_one_color_in_all_panels_of_the_mechanism():
    line = {20: 0.5, 110: 0.1}
    panels = {"before": {"original": line}, "end": {"full_preactivation": line}}
    figure = mechanism_figure(
        {"direct term": panels, "variance": {**panels, "end": {"original": line, **panels["end"]}}}
    )
    looks = {(each.get_label(), each.get_color()) for axes in figure.axes for each in axes.get_lines()}
    assert len(looks) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["original", "full pre-activation"]


def test_a_figure_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = draw_curves({"net": rows(50, 30)}, tmp_path / "a.svg")
    before = path.read_bytes()

    def full(file, **options):
        Path(file).write_text("<svg")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    figure = curves_figure({"net": rows(50, 40)})
    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(OSError, match=r"a\.svg"):
        draw(figure, path)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["a.svg"]


def test_names_that_read_alike_are_two_curves():
    rows = [{"step": 1, "train_error": 80.0, "test_error": 90.0}]
    figure = curves_figure({"run_1": rows, "run 1": rows})
    assert len(figure.axes[0].get_lines()) == 4
