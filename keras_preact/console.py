"""What the command line shows: progress, tables, one-sentence errors. Everything by rich."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from keras_preact.errors import printable
from keras_preact.training.tasks import errors, training_error

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


class SideBySide:
    """Trainings that take turns: a live table of their errors, an epoch a row, above one bar for all of them.

    The last row is the epoch that is being trained: its training error so far changes with each step.

    Where the output is not a terminal, one line an epoch.

    Args:
        names: of the trainings, with what the columns call them.
        steps: of all trainings together.
    """

    def __init__(self, names: Mapping[str, str], steps: int) -> None:
        self.names = dict(names)
        self.epochs: dict[int, dict[str, tuple[float, float]]] = {}
        self._running: dict[str, float] = {}
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

    def callback(self, name: str) -> keras.callbacks.Callback:
        """Return what tells this display how the training of that name goes."""
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self._step(name, logs),
            on_epoch_end=lambda epoch, logs: self._add(epoch + 1, name, errors(logs)),
        )

    def resume(self, name: str, rows: Sequence[Mapping[str, float]]) -> None:
        """Take up a training where it was stopped: rows of its metrics.csv."""
        for row in rows:
            self.epochs.setdefault(int(row["epoch"]), {})[name] = row["train_error"], row["test_error"]
        self._bar.advance(self._task, rows[-1]["step"] if rows else 0)

    def _step(self, name: str, logs: Any) -> None:
        self._bar.advance(self._task)
        self._running[name] = training_error(logs)

    def _add(self, epoch: int, name: str, found: tuple[float, float]) -> None:
        self.epochs.setdefault(epoch, {})[name] = found
        self._running.pop(name, None)
        if not console.is_terminal and len(self.epochs[epoch]) == len(self.names):
            said = ", ".join(f"{words} {self.epochs[epoch][each][1]:.1f}" for each, words in self.names.items())
            say(f"epoch {epoch}: test error (%) {said}{self._gap(epoch, '; gap ')}")

    def _gap(self, epoch: int, before: str = "") -> str:
        """Return by how many points the first training's test error is above the last one's."""
        found = self.epochs.get(epoch, {})
        if len(self.names) < 2 or len(found) < len(self.names):
            return ""
        first, *_, last = self.names
        return f"{before}{found[first][1] - found[last][1]:+.1f}"

    def _shown(self) -> Group:
        heads = ["epoch", *(f"{words}: training / test error" for words in self.names.values()), "gap"]
        rows = []
        for epoch in range(1, max(self._epoch(name) for name in self.names) + 1):
            rows.append([str(epoch), *(self._cell(epoch, name) for name in self.names), self._gap(epoch)])
        return Group(table(heads, rows), self._bar)

    def _epoch(self, name: str) -> int:
        """Return the last epoch of a training of which there is something to show."""
        return sum(name in found for found in self.epochs.values()) + (name in self._running)

    def _cell(self, epoch: int, name: str) -> str:
        found = self.epochs.get(epoch, {}).get(name)
        if found is not None:
            return " / ".join(f"{error:.1f}" for error in found)
        return f"{self._running[name]:.1f} / …" if name in self._running and epoch == self._epoch(name) else ""


class Status:
    """One line that says how far something is; where the output is not a terminal, a line for each change."""

    def __init__(self) -> None:
        self._status = console.status("starting")
        self._said = ""

    def __enter__(self) -> Status:
        if console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._status.stop()

    def show(self, what: Any) -> None:
        """Show this text from now on."""
        text = str(what)
        if console.is_terminal:
            self._status.update(text)
        elif text.split(";")[0] != self._said.split(";")[0]:  # not for each new estimate of the time
            say(text)
        self._said = text


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
        # Numbers stay whole; where the terminal is too narrow, names take two lines.
        made.add_column(column, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell, keep="\n")) for cell in row))
    return made
