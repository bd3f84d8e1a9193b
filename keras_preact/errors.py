"""The one exception that means "the input is at fault, not the program"."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable


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
    """Return `value` if it is a probability of leaving something out.

    Raises:
        InputError: it is below 0, or 1 or more, which would leave out everything.

    Example:

    >>> check_rate("drop_path", 0.2)
    0.2
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise InputError(f"{what} is {value!r}; give a probability from 0 up to, but not including, 1")
    return float(value)


def check_number(what: str, value: float, low: float, high: float = math.inf) -> float:
    """Return `value` if it is a number, finite, and within the bounds.

    Raises:
        InputError: it is not.

    Example:

    >>> check_number("momentum", 0.9, 0, 1)
    0.9
    """
    if not _is_number(value) or not low <= value <= high or math.isinf(value):
        bounds = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise InputError(f"{what} is {value!r}; give a number {bounds}")
    return float(value)


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
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise InputError(f"{what} is {value!r}; give a whole number of at least 1")
    return int(value)
