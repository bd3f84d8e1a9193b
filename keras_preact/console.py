"""What the command line shows: progress, tables, one-sentence errors. Everything by rich."""

from __future__ import annotations

import time
from typing import Any

import keras
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from keras_preact.errors import printable
from keras_preact.training.tasks import errors

console = Console()
_open_bar: ProgressBar | None = None
"""The one that shows what is being done, if any: a run that was stopped or has diverged leaves it open."""


class ProgressBar(keras.callbacks.Callback):
    """One bar for a training run; where the output is not a terminal, one line an epoch.

    Args:
        name: of the run.
        steps: of the whole run.
        batch_size: examples a step, for the speed shown.
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
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TextColumn("step {task.completed}/{task.total}  {task.fields[news]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._done = int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))
            self._task = self._progress.add_task(self.name, total=self.steps, completed=self._done, news="compiling")
            self._seen = (time.perf_counter(), self._done)
            if console.is_terminal:
                _show(self)
                self._progress.start()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done += 1
        assert self._progress is not None
        self._progress.update(self._task, completed=self._done)
        if self._done >= self.steps:
            self._progress.update(self._task, news="testing")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self._progress is not None
        now = time.perf_counter()
        speed = (self._done - self._seen[1]) * self.batch_size / (now - self._seen[0])
        self._seen = (now, self._done)
        unit = " %" if "accuracy" in logs else ""
        train, test = (f"{error:.{1 if unit else 2}f}{unit}" for error in errors(logs))
        news = f"error: training {train}, test {test}  ({speed:,.0f} examples/s)"
        self._progress.update(self._task, news=news)
        if not console.is_terminal:
            console.print(f"{self.name}  epoch {epoch + 1}  step {self._done}/{self.steps}  {news}", soft_wrap=True)
        if self._done >= self.steps:
            self.close()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()


def _show(bar: ProgressBar | None) -> None:
    global _open_bar
    if _open_bar is not None:
        _open_bar.close()
    _open_bar = bar


def close_bar() -> None:
    """Leave the bar that is open, if one is, as it is, and give the terminal its cursor back."""
    _show(None)


def say(text: str) -> None:
    """Print text as it is: a command in it can be copied whole. Control characters are escaped."""
    console.print(printable(text, keep="\n\t"), highlight=False, markup=False, soft_wrap=True)


def table(columns: list[str], rows: list[list[str]], title: str | None = None) -> Table:
    """Return a table with its first column to the left and its numbers to the right.

    Names in it may come from files: they are text, without control characters and not rich's markup.
    """
    heading = None if title is None else Text(printable(title))
    made = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(printable(cell, keep="\n")) for cell in row))
    return made
