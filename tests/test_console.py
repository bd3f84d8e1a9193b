"""What the command shows while it works."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_preact import console
from keras_preact.console import ProgressBar, SideBySide, show, table
from keras_preact.training import RunFolder

NAMES = {"original": "original", "full": "full pre-activation"}


def logs(train, test=None):
    found = {"loss": 1.0, "accuracy": 1 - train / 100}
    return found if test is None else {**found, "val_accuracy": 1 - test / 100}


def shown(display):
    """Return the rows of the live table, cells by column."""
    page = Console(file=io.StringIO(), width=120)
    page.print(display._shown())
    lines = [line for line in page.file.getvalue().splitlines() if line[:1].isspace() or line[:1].isdigit()]
    return [line.split() for line in lines if line.split() and line.split()[0].isdigit()]


@pytest.fixture
def display():
    return SideBySide(NAMES, steps=8)


@pytest.mark.parametrize("width", [1, 20, 45, 120])
def test_no_terminal_is_too_narrow_for_a_number(width, monkeypatch):
    """A number that is cut off looks like another number; only the names of the first column may be wrapped."""
    rows = [["resnet50_full_preactivation", "25,549,352", "1,218\n-3"], ["x", "7 × 7 × 2048", "0"]]
    page = Console(file=io.StringIO(), width=width)
    monkeypatch.setattr(console, "console", page)
    show(table(["network", "parameters", "multiply-adds"], rows, title="two networks"))
    printed = page.file.getvalue()
    lines = printed.splitlines()
    for found in ("parameters", "multiply-adds", "25,549,352", "1,218", "-3", "7 × 7 × 2048"):
        assert any(found in line for line in lines), printed
    names = "".join(line[:12] for line in lines if line.strip())
    assert "resnet50_ful" in names
    if width == 120:
        assert "resnet50_full_preactivation  " in printed


@pytest.mark.parametrize("name", ["net[seed=1]", "a[/b]", "[bold]net", ":smile:", "a\x1b[2Jb"])
def test_names_in_the_head_of_a_table_are_plain_text(name, monkeypatch):
    page = Console(file=io.StringIO(), width=120)
    monkeypatch.setattr(console, "console", page)
    show(table(["epoch", name], [["1", "2"]]))
    page.print(SideBySide({"first": name, "second": "other"}, steps=8)._shown())
    head, _, live = (line.rstrip() for line in page.file.getvalue().splitlines()[:3])
    plain = name.replace("\x1b", "\\x1b")
    assert head == f"epoch  {plain}" and f"{plain}: training / test error" in live


def test_the_epoch_that_is_trained_shows_its_error_so_far(display):
    original, full = (display.callback(name) for name in NAMES)
    original.on_train_batch_end(0, logs(90.0))
    assert shown(display) == [["1", "90.0", "/", "…"]]
    original.on_train_batch_end(1, logs(80.0))
    assert shown(display) == [["1", "80.0", "/", "…"]]
    original.on_epoch_end(0, logs(80.0, 85.0))
    full.on_train_batch_end(0, logs(70.0))
    assert shown(display) == [["1", "80.0", "/", "85.0", "70.0", "/", "…"]]


def test_the_gap_stands_beside_the_epochs_that_both_have_finished(display):
    original, full = (display.callback(name) for name in NAMES)
    for epoch, (first, second) in enumerate([(85.0, 80.5), (84.0, 64.0)]):
        original.on_epoch_end(epoch, logs(80.0, first))
        full.on_epoch_end(epoch, logs(70.0, second))
    original.on_train_batch_end(0, logs(60.0))
    assert [row[-1] for row in shown(display)] == ["+4.5", "+20.0", "…"]


def test_a_display_that_is_taken_up_again_knows_the_epochs_before(display):
    for name in NAMES:
        display.resume(name, [{"epoch": 1.0, "step": 2.0, "train_error": 80.0, "test_error": 82.0}], 2)
    display.callback("full").on_train_batch_end(0, logs(75.0))
    assert shown(display) == [
        ["1", "80.0", "/", "82.0", "80.0", "/", "82.0", "+0.0"],
        ["2", "75.0", "/", "…"],
    ]
    assert display._bar.tasks[0].completed == 5


def test_a_display_that_is_taken_up_again_counts_the_steps_of_an_unfinished_epoch(display):
    display.resume("full", [], 3)
    assert display._bar.tasks[0].completed == 3 and shown(display) == []


def test_without_a_terminal_a_finished_epoch_is_a_line(display, monkeypatch):
    page = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=page, width=120))
    display.callback("original").on_epoch_end(0, logs(80.0, 85.0))
    assert page.getvalue() == ""
    display.callback("full").on_epoch_end(0, logs(70.0, 60.0))
    assert page.getvalue() == "epoch 1: test error (%) original 85.0, full pre-activation 60.0; gap +25.0\n"
    display.callback("original").on_epoch_end(1, logs(80.0, 84.0))
    display.callback("original").on_epoch_end(2, logs(80.0, 83.0))  # the other run has diverged
    assert page.getvalue().splitlines()[1:] == ["epoch 2: test error (%) original 84.0"]
    with display:
        pass  # at the end
    assert page.getvalue().splitlines()[2:] == ["epoch 3: test error (%) original 83.0"]


def test_a_line_of_a_run_has_its_whole_name_and_the_speed_of_its_steps_alone(tmp_path, monkeypatch):
    """Compiling, testing and saving take 100 s here, a step one second."""
    now = [0.0]
    monkeypatch.setattr(console, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    printed = io.StringIO()
    monkeypatch.setattr(console, "console", Console(file=printed, width=200))
    bar = ProgressBar("net[seed=1]", steps=6, batch_size=10)
    bar.run_folder = RunFolder.create(tmp_path / "run")
    bar.run_folder.update_record(step=0)
    bar.on_train_begin()
    for epoch in range(2):
        bar.on_epoch_begin(epoch)
        for batch in range(3):
            now[0] += 100 if batch == 0 else 1
            bar.on_train_batch_end(batch)
        now[0] += 100
        bar.on_epoch_end(epoch, logs(50, 60))
    first, last = printed.getvalue().splitlines()[:2]
    assert first == "net[seed=1]  epoch 1  step 3/6  error: training 50.0 %, test 60.0 %  (10 examples/s)"
    assert "net[seed=1]" in last and "(10 examples/s)" in last
