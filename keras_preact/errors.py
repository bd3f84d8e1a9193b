"""Exceptions for faults of the input or the machine rather than the program, and checks of arguments."""

from __future__ import annotations

import difflib
import errno
import importlib.util
import math
import numbers
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def printable(text: object, keep: str = "") -> str:
    r"""Return text with control characters escaped.

    Names of layers and arrays come from files. Unescaped, they could move the terminal's cursor, change the window
    title or reverse the text.

    Args:
        text: converted with `str`.
        keep: control characters to leave as they are, for example `"\n"`.

    Example:

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1] for character in str(text)
    )


def shown(text: object, length: int = 80) -> str:
    """Return a name from a file, printable and truncated, for an error message.

    >>> shown("x" * 100)[-5:]
    'xxxx…'
    """
    name = str(text)  # truncated before it is escaped: it may have megabytes
    return printable(name if len(name) <= length else f"{name[: length - 1]}…")


class InputError(ValueError):
    """Bad input. The message names the fault and the remedy.

    The command line prints the message and exits with status 2; in Python it is a `ValueError`. Control characters
    in the message are escaped.

    Example:

    >>> raise InputError("depth 21 is not 6n+2; the nearest depths that are: 20, 26")
    Traceback (most recent call last):
        ...
    keras_preact.errors.InputError: depth 21 is not 6n+2; the nearest depths that are: 20, 26
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message, keep="\n"))


_SPACE = "free some space"
_PERMISSION = "make the folder writable, or choose one that you can write to"
REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the file size limit (`ulimit -f`)",
    errno.EROFS: _PERMISSION,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
}
"""Remedies by error number, for when the system refuses to write."""
_PATH = "choose another path"
_WRITE_REMEDIES = {
    **REMEDIES,
    errno.ENOENT: "create or restore the folder",
    errno.EISDIR: _PATH,
    errno.ENOTDIR: _PATH,
    errno.ENAMETOOLONG: _PATH,
}
"""Those of `WriteError`: the other errors need another remedy if they come from reading."""


class MissingPackage(InputError, ImportError):
    """An optional dependency is not installed. The message names the extra that installs it."""


EXTRAS = {
    **{name: name for name in ("tensorflow", "jax", "torch")},
    "tensorflow_datasets": "data",
    "matplotlib": "course",
    **dict.fromkeys(("ai_edge_litert", "onnxruntime", "openvino", "tf2onnx"), "export"),
}
"""Extras of keras_preact, by the module that each installs."""


def missing_package(what: str, modules: Iterable[str]) -> MissingPackage:
    """Return the error that says which extra to install.

    >>> missing_package("plotting", ["matplotlib"])
    MissingPackage('plotting needs matplotlib, which is not installed; pip install "keras_preact[course]"')
    """
    modules = list(modules)
    extras = ",".join(dict.fromkeys(EXTRAS[module] for module in modules))
    verb = "is" if len(modules) == 1 else "are"
    return MissingPackage(
        f'{what} needs {", ".join(modules)}, which {verb} not installed; pip install "keras_preact[{extras}]"'
    )


def is_installed(module: str) -> bool:
    """Return whether a module can be imported.

    >>> is_installed("numpy"), is_installed("no_such_module")
    (True, False)
    """
    return importlib.util.find_spec(module) is not None


def check_installed(what: str, *modules: str) -> None:
    """Raise MissingPackage unless all modules are installed.

    >>> check_installed("arithmetic", "numpy")
    """
    if missing := [module for module in modules if not is_installed(module)]:
        raise missing_package(what, missing)


def as_command(verb: str, path: object) -> str:
    """Return a command line with the path quoted for the shell, for a message.

    >>> as_command("evaluate", "runs/my first"), as_command("evaluate", "-c")
    ("`keras-preact evaluate 'runs/my first'`", '`keras-preact evaluate ./-c`')
    """
    if str(path).startswith("-"):  # else the command would take it for an option
        path = f"./{path}"
    quoted = subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))
    return f"`keras-preact {verb} {quoted}`"


class WriteError(OSError):
    """The system refused to write a file. The message names the file and the remedy.

    Attributes:
        run: folder of the run to resume afterwards; `None` if the run had not started, or is finished.

    Example:

    >>> error = WriteError(errno.ENOSPC, "No space left on device", "runs/mine/metrics.csv")
    >>> error.run = Path("runs/mine")
    >>> raise error
    Traceback (most recent call last):
        ...
    keras_preact.errors.WriteError: cannot write runs/mine/metrics.csv: No space left on device; free some space, \
then resume with `keras-preact train --resume runs/mine`
    """

    run: Path | None = None

    def __str__(self) -> str:
        remedy = _WRITE_REMEDIES.get(self.errno or 0, "check that the disk works")
        resume = "" if self.run is None else f", then resume with {as_command('train --resume', self.run)}"
        return f"cannot write {self.filename}: {self.strerror}; {remedy}{resume}"


def check_choice(what: str, value: object, known: Iterable[str]) -> str:
    """Return `value` if it is one of the `known` names.

    Args:
        what: the kind of name, for example `"placement"`.
        value: the caller's value.
        known: the valid names.

    Raises:
        InputError: `value` is not one of them. The message lists them and suggests the closest.

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
    """Return `value` if it is in [0, 1): a drop probability, a momentum or a decay rate.

    Raises:
        InputError: it is not. With 1, everything would be dropped, or nothing would decay.

    Example:

    >>> check_rate("drop_path", 0.2)
    0.2
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise InputError(f"{what} is {value!r}; it must be at least 0 and less than 1")
    return float(value)


FLOAT32_MAX = (2 - 2**-23) * 2.0**127
"""The largest finite float32."""
INT32_MAX = 2**31 - 1


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if there is none.

    Keras puts a line that names the layer above the message, and prints the message in bold.

    >>> first_line(ValueError("one\\ntwo")), first_line(RuntimeError())
    ('one', 'RuntimeError')
    >>> first_line(ValueError("Exception encountered when calling D.call().\\n\\n\\x1b[1mno shape\\x1b[0m"))
    'no shape'
    """
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[1] if len(lines) > 1 and lines[0].startswith("Exception encountered when calling") else lines[0]


def check_number(what: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` if it is a number from `low` to `high` that is finite in float32.

    Raises:
        InputError: it is not.

    Example:

    >>> check_number("momentum", 0.9, 0, 1)
    0.9
    """
    if not _is_number(value) or not low <= value <= high or abs(value) > FLOAT32_MAX:
        valid = f"number from {low:g} to {high:g}"
        if math.isinf(high):
            valid = "finite number" + ("" if math.isinf(low) else f" of at least {low:g}")
        raise InputError(f"{what} is {value!r}; it must be a {valid}")
    return float(value)


def check_count(what: str, value: int) -> int:
    """Return `value` if it is an integer of at least 0.

    Raises:
        InputError: it is not.

    Example:

    >>> check_count("warmup_steps", 0)
    0
    """
    return _check_integer(what, value, 0)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(what: str, value: int) -> int:
    """Return `value` if it is an integer of at least 1 that fits 32 bits, as in TensorFlow's shapes and loops.

    Raises:
        InputError: it is not.

    Example:

    >>> check_positive("depth", 6)
    6
    """
    if _check_integer(what, value, 1) > INT32_MAX:
        raise InputError(f"{what} is {value!r}; it must be at most {INT32_MAX:,}")
    return int(value)


def _check_integer(what: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise InputError(f"{what} is {value!r}; it must be an integer of at least {low}")
    return int(value)


def check_model_name(name: object) -> None:
    """Raise InputError unless Keras accepts the name of a model; `None` is the default.

    >>> check_model_name("encoder")
    """
    if name is not None and (not isinstance(name, str) or "/" in name):
        raise InputError(f"name is {name!r}; pass a string without /")


def check_flag(what: str, value: bool) -> bool:
    """Return `value` if it is `True` or `False`.

    Raises:
        InputError: it is not. The string `"False"`, for example, would count as true.

    Example:

    >>> check_flag("nesterov", False)
    False
    """
    if not isinstance(value, bool):
        raise InputError(f"{what} is {value!r}; it must be True or False")
    return value


class Stopped(KeyboardInterrupt):
    """A signal stopped the command.

    Attributes:
        signal_number: number of the signal; the exit status is 128 more.
        saved: what the message adds about saved work.
    """

    def __init__(self, signal_number: int, saved: str = "") -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}{saved}")
        self.signal_number = signal_number
        self.saved = saved

    def __reduce__(self) -> tuple[Any, ...]:  # the default would pass the message to the constructor
        return type(self), (self.signal_number, self.saved)


class Interrupted(Exception):
    """A signal stopped training. The state is saved, and the run can be resumed.

    Attributes:
        signal_number: number of the signal.
        step: completed steps.
        path: the run folder.
    """

    def __init__(self, signal_number: int, step: int, path: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name} after step {step}; resume with {as_command('train --resume', path)}")
        self.signal_number = signal_number
        self.step = step
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:  # processes of a pool send their exceptions
        return type(self), (self.signal_number, self.step, self.path)


class Diverged(Exception):
    """The loss or a weight became NaN or infinite. The run ended, and its record says so.

    Overflowing float16 *gradients* do not count: the loss scale skips such a step, and the loss stays finite.

    Attributes:
        step: the step after which it was noticed.
        examples: indices of that step's batch in the training data; empty if the data are a stream.
        path: the run folder.
        checkpoint_step: the step of the last checkpoint, or `None`.
    """

    def __init__(self, what: str, step: int, examples: Sequence[int], path: Path, checkpoint_step: int | None) -> None:
        is_saved = checkpoint_step is not None
        saved = f"the state after step {checkpoint_step} is saved" if is_saved else "no checkpoint was saved"
        batch = inspect = ""
        if examples:
            batch = f" (training examples {', '.join(map(str, examples[:8]))}{', …' if len(examples) > 8 else ''})"
            inspect = " or inspect these examples"
        super().__init__(f"{what} at step {step}{batch}; {saved} in {path}; lower the learning rate{inspect}")
        self.step = step
        self.examples = list(examples)
        self.path = path
        self.checkpoint_step = checkpoint_step
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._what, self.step, self.examples, self.path, self.checkpoint_step)
