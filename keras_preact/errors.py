"""The exceptions that mean "the input, or the disk, is at fault, not the program"."""

from __future__ import annotations

import difflib
import errno
import importlib.util
import math
import numbers
import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path


def printable(text: object, keep: str = "") -> str:
    r"""Return text with all characters escaped that a terminal would act on instead of showing them.

    Names of layers and arrays come from files, and could move the cursor, retitle the window or reverse the text.

    Args:
        text: what is to be shown.
        keep: control characters that stay, for example the line breaks of a text of several lines.

    Example:

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1] for character in str(text)
    )


def shown(text: object, length: int = 80) -> str:
    """Return a name from a file as a sentence shows it: printable, and cut off where it is long.

    >>> shown("x" * 100)[-5:]
    'xxxx…'
    """
    # Cut first: a name of megabytes would otherwise be looked through.
    short = str(text)
    return printable(short if len(short) <= length else f"{short[: length - 1]}…")


class InputError(ValueError):
    """Bad input: one sentence that names the fault and the remedy.

    The command line prints the sentence and ends with status 2; in Python it is a `ValueError`. Control characters
    in it are escaped.

    Example:

    >>> raise InputError("depth 21 is not 6n+2; the nearest depths that are: 20, 26")
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: depth 21 is not 6n+2; the nearest depths that are: 20, 26
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__(printable(sentence, keep="\n"))


_SPACE = "free some space"
_RIGHTS = "make the folder writable, or name a folder that you may write to"
REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
}
"""What to do when the system refuses to write, by its error number."""


class MissingPackage(InputError, ImportError):
    """A package that a part of keras_preact needs is not installed; the sentence names the extra that brings it."""


EXTRAS = {
    **{name: name for name in ("tensorflow", "jax", "torch")},
    "tensorflow_datasets": "data",
    "matplotlib": "course",
    **dict.fromkeys(("tf2onnx", "onnxruntime", "ai_edge_litert"), "export"),
}
"""By module, the extra of this package that brings it."""


def missing_package(what: str, modules: Iterable[str]) -> MissingPackage:
    """Return the error that says which extra to install.

    >>> missing_package("plotting", ["matplotlib"])
    MissingPackage("plotting needs matplotlib, which is not installed; pip install 'keras_preact[course]'")
    """
    modules = list(modules)
    extras = ",".join(dict.fromkeys(EXTRAS[module] for module in modules))
    verb = "is" if len(modules) == 1 else "are"
    return MissingPackage(
        f"{what} needs {', '.join(modules)}, which {verb} not installed; pip install 'keras_preact[{extras}]'"
    )


def is_installed(module: str) -> bool:
    """Return whether a module can be imported.

    >>> is_installed("numpy"), is_installed("no_such_module")
    (True, False)
    """
    return importlib.util.find_spec(module) is not None


def check_installed(what: str, *modules: str) -> None:
    """Raise MissingPackage where a module is not installed.

    >>> check_installed("arithmetic", "numpy")
    """
    if missing := [module for module in modules if not is_installed(module)]:
        raise missing_package(what, missing)


def as_command(verb: str, path: object) -> str:
    """Return a command on a path as it is to be typed, for a sentence.

    >>> as_command("evaluate", "runs/my first")
    "`keras-preact evaluate 'runs/my first'`"
    """
    quoted = subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))
    return f"`keras-preact {verb} {quoted}`"


class WriteError(OSError):
    """The system refused to write a file of a run: one sentence that names the file and the remedy.

    Attributes:
        run: the run that can be resumed afterwards, if it had begun.

    Example:

    >>> error = WriteError(errno.ENOSPC, "No space left on device", "runs/mine/metrics.csv")
    >>> error.run = Path("runs/mine")
    >>> raise error
    Traceback (most recent call last):
        ...
    keras_preact.errors.WriteError: cannot write runs/mine/metrics.csv: No space left on device; free some space, \
then go on with `keras-preact train --resume runs/mine`
    """

    run: Path | None = None

    def __str__(self) -> str:
        others = {errno.ENOENT: "put the folder back"}
        remedy = {**REMEDIES, **others}.get(self.errno or 0, "see that the disk works")
        go_on = "" if self.run is None else f", then go on with {as_command('train --resume', self.run)}"
        return f"cannot write {self.filename}: {self.strerror}; {remedy}{go_on}"


def check_choice(what: str, value: object, known: Iterable[str]) -> str:
    """Return `value` if it is one of the `known` names.

    Args:
        what: the word for the thing chosen, for example `"placement"`.
        value: what the caller gave.
        known: the names that exist.

    Raises:
        InputError: `value` is not among them; the message lists them and guesses the one that was meant.

    Example:

    >>> check_choice("shortcut", "identity", ["identity", "conv"])
    'identity'
    >>> check_choice("shortcut", "identiti", ["identity", "conv"])
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: unknown shortcut 'identiti' (did you mean 'identity'?); known: identity, conv
    """
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    close = difflib.get_close_matches(str(value), names, n=1)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    raise InputError(f"unknown {what} {value!r}{guess}; known: {', '.join(names)}")


def check_rate(what: str, value: float) -> float:
    """Return `value` if it is at least 0 and below 1: a probability of dropping something, or a share that is kept.

    Raises:
        InputError: it is not. With 1, everything would be dropped, or nothing would ever decay.

    Example:

    >>> check_rate("drop_path", 0.2)
    0.2
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise InputError(f"{what} is {value!r}; give a number from 0 up to, but not including, 1")
    return float(value)


LARGEST = (2 - 2**-23) * 2.0**127
"""Beyond this number a float32 is infinite."""


def check_number(what: str, value: float, low: float, high: float = math.inf) -> float:
    """Return `value` if it is a number, finite as a float32, and within the bounds.

    Raises:
        InputError: it is not.

    Example:

    >>> check_number("momentum", 0.9, 0, 1)
    0.9
    """
    if not _is_number(value) or not low <= value <= high or abs(value) > LARGEST:
        bounds = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise InputError(f"{what} is {value!r}; give a number {bounds}")
    return float(value)


def check_count(what: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 0.

    Raises:
        InputError: it is not.

    Example:

    >>> check_count("warmup_steps", 0)
    0
    """
    return _check_whole(what, value, 0)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(what: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1.

    Raises:
        InputError: it is not.

    Example:

    >>> check_positive("depth", 6)
    6
    """
    return _check_whole(what, value, 1)


def _check_whole(what: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise InputError(f"{what} is {value!r}; give a whole number of at least {low}")
    return int(value)


def check_flag(what: str, value: bool) -> bool:
    """Return `value` if it is `True` or `False`.

    Raises:
        InputError: it is not: of the string "False", for example, Python would make true.

    Example:

    >>> check_flag("nesterov", False)
    False
    """
    if not isinstance(value, bool):
        raise InputError(f"{what} is {value!r}; give True or False")
    return value


class Interrupted(Exception):
    """Training was asked to stop; the state is saved, and the run can be resumed.

    Attributes:
        signal_number: of the signal that asked.
        step: steps done.
        path: the run's folder.
    """

    def __init__(self, signal_number: int, step: int, path: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name} after step {step}; go on with {as_command('train --resume', path)}")
        self.signal_number = signal_number
        self.step = step
        self.path = path


class Diverged(Exception):
    """The loss or a weight became NaN or infinite; the run ended there, and its record says so.

    (An overflow of float16's *gradients* is none of this: the loss scale skips such a step, and the loss stays finite.)

    Attributes:
        step: after which it was seen.
        examples: indices of that step's batch in the training data, where they have an order.
        path: the run's folder.
        kept: the step after which the state in it was kept, or `None`.
    """

    def __init__(self, what: str, step: int, examples: Sequence[int], path: Path, kept: int | None) -> None:
        shown = ", ".join(map(str, examples[:8])) + (", …" if len(examples) > 8 else "")
        good = "no state was kept before it" if kept is None else f"the state after step {kept} is kept"
        batch = f", of the training examples {shown}" if examples else ""
        super().__init__(
            f"{what} at step {step}{batch}; {good} in {path}; lower the learning rate, or look at these examples"
        )
        self.step = step
        self.examples = list(examples)
        self.path = path
        self.kept = kept
