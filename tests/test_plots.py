"""The figures: what stands in them, and that their files are the same wherever they are drawn."""

from keras_preact.plots import curves_figure, draw_curves


def rows(*errors):
    return [{"step": 10.0 * k, "train_error": e + 5, "test_error": e} for k, e in enumerate(errors, 1)]


def test_two_lines_a_network_training_dashed():
    axes = curves_figure({"original": rows(80, 60), "full_preactivation": rows(70, 40)}).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "original, training", "original, test", "full_preactivation, training", "full_preactivation, test",
    ]  # fmt: skip
    assert [line.get_linestyle() for line in axes.get_lines()] == ["--", "-", "--", "-"]
    assert list(axes.get_lines()[3].get_ydata()) == [70, 40]


def test_everything_is_inside_the_axes():
    axes = curves_figure({"net": rows(99, 40)}).axes[0]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] >= 100
    assert axes.get_xlim()[1] >= 20


def test_the_file_does_not_say_where_and_when_it_was_made(tmp_path):
    first, second = (draw_curves({"net": rows(50, 30)}, tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second
    assert b"Software" not in first
