"""Terminal output of the command line, written with rich: progress bars, live tables, text."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from keras_preact.errors import printable
from keras_preact.training.callbacks import RunFolderCallback
from keras_preact.training.tasks import errors, training_error


class _Console(Console):
    """A console whose reader may go away: `train | head` goes on training without output."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


console = _Console()
NARROWEST_NAMES = 12
"""Width of the first column of a table in a narrow terminal; longer names are wrapped."""
_open_bar: ProgressBar | None = None
"""The bar on the terminal, if any. A run that was stopped or has diverged leaves its bar open."""


class ProgressBar(RunFolderCallback):
    """The progress bar of a training run. If the output is not a terminal, prints one line per epoch instead.

    Args:
        name: name of the run.
        steps: number of steps of the whole run.
        batch_size: examples per step, to compute the speed.
    """

    def __init__(self, name: str, steps: int, batch_size: int) -> None:
        super().__init__()
        self.name = name
        self.steps = steps
        self.batch_size = batch_size
        self._progress: Progress | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),  # a run folder may be called net[seed=1]
                BarColumn(bar_width=30),
                TextColumn("step {task.completed}/{task.total}  {task.fields[news]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._done = int(self.run_folder.record().get("step", 0))
            self._task = self._progress.add_task(self.name, total=self.steps, completed=self._done, news="compiling")
            if console.is_terminal:
                _show(self)
                self._progress.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first: tuple[float, int] | None = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done += 1
        self._last = (time.perf_counter(), self._done)
        self._first = self._first or self._last  # the speed is that of the steps after this one, which may compile
        assert self._progress is not None
        self._progress.update(self._task, completed=self._done)
        if self._done >= self.steps:
            self._progress.update(self._task, news="testing")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self._progress is not None and self._first is not None
        seconds, steps = self._last[0] - self._first[0], self._last[1] - self._first[1]
        speed = f"  ({steps * self.batch_size / seconds:,.0f} examples/s)" if seconds else ""
        unit = " %" if "accuracy" in logs else ""
        train, test = (f"{error:.{1 if unit else 2}f}{unit}" for error in errors(logs))
        news = f"error: training {train}, test {test}{speed}"
        self._progress.update(self._task, news=news)
        if not console.is_terminal:
            say(f"{self.name}  epoch {epoch + 1}  step {self._done}/{self.steps}  {news}")
        if self._done >= self.steps:
            self.close()

    def close(self) -> None:
        """Stop updating the bar and leave it on the screen."""
        if self._progress is not None:
            self._progress.stop()


class SideBySide:
    """Runs that train in turns or together: a live table of their errors, one row per epoch, above one progress bar.

    The last row is the current epoch; its training error is updated after each step.

    If the output is not a terminal, prints one line per epoch instead.

    Args:
        names: the column title of each run, by name.
        steps: number of steps of all runs together.
    """

    def __init__(self, names: Mapping[str, str], steps: int) -> None:
        self.names = dict(names)
        self.epochs: dict[int, dict[str, tuple[float, float]]] = {}
        self._running: dict[str, float] = {}
        self._said = 0  # the last epoch that was printed
        self._lock = threading.Lock()  # the runs and the live table may be in different threads
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task("training steps", total=steps)
        self._live = Live(console=console, get_renderable=self._shown, refresh_per_second=4)

    def __enter__(self) -> SideBySide:
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if console.is_terminal:
            self._live.stop()
        else:  # an epoch that a run has not reached, because it diverged or was stopped
            self._say(max(self.epochs, default=0))

    def callback(self, name: str) -> keras.callbacks.Callback:
        """Return a Keras callback that reports the progress of a run to this display."""
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self._step(name, logs),
            on_epoch_end=lambda epoch, logs: self._add(epoch + 1, name, errors(logs)),
        )

    def resume(self, name: str, rows: Sequence[Mapping[str, float]], steps: int) -> None:
        """Show the finished epochs of a resumed run, given the rows of its metrics.csv, and the steps done so far."""
        for row in rows:
            self.epochs.setdefault(int(row["epoch"]), {})[name] = row["train_error"], row["test_error"]
        self._said = max((epoch for epoch, found in self.epochs.items() if len(found) == len(self.names)), default=0)
        self._bar.advance(self._task, steps)

    def _step(self, name: str, logs: Any) -> None:
        self._bar.advance(self._task)
        with self._lock:
            self._running[name] = training_error(logs)

    def _add(self, epoch: int, name: str, found: tuple[float, float]) -> None:
        with self._lock:
            self.epochs.setdefault(epoch, {})[name] = found
            self._running.pop(name, None)
            if not console.is_terminal:
                complete = len(self.epochs[epoch]) == len(self.names)
                self._say(epoch if complete else epoch - 1)

    def _say(self, last: int) -> None:
        """Print the epochs up to the last one. A run that has diverged is missing from the later ones."""
        for epoch in range(self._said + 1, last + 1):
            found = self.epochs.get(epoch, {})
            shown = ", ".join(f"{title} {found[each][1]:.1f}" for each, title in self.names.items() if each in found)
            say(f"epoch {epoch}: test error (%) {shown}{self._gap(epoch, '; gap ')}")
        self._said = max(self._said, last)

    def _gap(self, epoch: int, prefix: str = "") -> str:
        """Return the test error of the first run minus that of the last, in points."""
        found = self.epochs.get(epoch, {})
        if len(self.names) < 2 or len(found) < len(self.names):
            return ""
        first, *_, last = self.names
        return f"{prefix}{found[first][1] - found[last][1]:+.1f}"

    def _shown(self) -> Group:
        heads = ["epoch", *(f"{title}: training / test error" for title in self.names.values()), "gap"]
        rows = []
        with self._lock:
            for epoch in range(1, max(self._epoch(name) for name in self.names) + 1):
                rows.append([str(epoch), *(self._cell(epoch, name) for name in self.names), self._gap(epoch)])
        return Group(table(heads, rows), self._bar)

    def _epoch(self, name: str) -> int:
        """Return the last epoch of a run that has an error to show."""
        return sum(name in found for found in self.epochs.values()) + (name in self._running)

    def _cell(self, epoch: int, name: str) -> str:
        found = self.epochs.get(epoch, {}).get(name)
        if found is not None:
            return " / ".join(f"{error:.1f}" for error in found)
        return f"{self._running[name]:.1f} / …" if name in self._running and epoch == self._epoch(name) else ""


class Status:
    """A status line. If the output is not a terminal, prints a line for each change instead."""

    def __init__(self) -> None:
        self._status = console.status("starting")
        self._shown = ""

    def __enter__(self) -> Status:
        if console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._status.stop()

    def show(self, status: Any) -> None:
        """Show `str(status)` until the next call."""
        text = str(status)
        if console.is_terminal:
            self._status.update(text)
        elif text.split(";")[0] != self._shown.split(";")[0]:  # a new estimate of the time is no change
            say(text)
        self._shown = text


def _show(bar: ProgressBar | None) -> None:
    global _open_bar
    if _open_bar is not None:
        _open_bar.close()
    _open_bar = bar


def close_bar() -> None:
    """Stop the open bar, if any; the terminal shows its cursor again."""
    _show(None)


def say(text: str) -> None:
    """Print text without wrapping or markup, so that commands in it can be copied. Control characters are escaped."""
    console.print(printable(text, keep="\n\t"), highlight=False, markup=False, soft_wrap=True)


def show(content: Table) -> None:
    """Print a table. In a terminal that is too narrow for its numbers, the lines run over, and no digit is lost."""
    names, *numbers = (
        [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
        for column in content.columns
    )
    widest = [max(map(cell_len, lines), default=0) for lines in (names, *numbers)]
    needed = min(widest[0], NARROWEST_NAMES) + sum(width + 2 for width in widest[1:])  # two spaces between columns
    options = console.options.update_width(max(console.width, needed))
    console.print(Segments(console.render(content, options)), soft_wrap=True)


def table(columns: list[str], rows: list[list[str]], title: str | None = None) -> Table:
    """Return a table with the first column aligned left and the others right.

    Names in it may come from files: they are shown as plain text, without rich markup or control characters.
    """
    heading = None if title is None else Text(printable(title))
    result = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        head = Text(printable(column, keep="\n"))
        # Numbers are never wrapped; in a narrow terminal the first column is.
        result.add_column(head, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell, keep="\n")) for cell in row))
    return result
