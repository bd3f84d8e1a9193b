"""Start-up of the command `keras-preact`, before any heavy import.

Importing TensorFlow writes half a dozen log lines to standard error, some of them regardless of
`TF_CPP_MIN_LOG_LEVEL`. They would precede every answer of the command. TensorFlow also leaves oneDNN off on processors
without AVX-512, where training without it takes several times as long. The command changes both; importing the package
in a program or notebook changes neither. Each run records whether it used oneDNN.

Import little here: until `prepare` has run, Ctrl-C prints a traceback.
"""

import contextlib
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG_LINES = re.compile(rb"^([IW][0-9]{4} |WARNING: All log messages before absl)|oneDNN custom operations are on")
"""Lines that inform or warn. Errors (E) and fatal errors (F) do not match."""


def is_the_command() -> bool:
    """Return whether this process is `keras-preact` or `python -m keras_preact`."""
    arguments = sys.orig_argv[1:]
    started = Path(sys.argv[0]) if sys.argv else Path()
    is_module = started.name in ("-m", "__main__.py") and "-m" in arguments
    return started.stem == "keras-preact" or (is_module and arguments[arguments.index("-m") + 1] == "keras_preact")


def prepare() -> None:
    """End the command on Ctrl-C with one line instead of a traceback, and let TensorFlow use oneDNN.

    Where the encoding of the output lacks a character such as ×, a question mark takes its place.

    A `KeyboardInterrupt` would not do: some packages catch every exception while they are imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise a shell started it in the background
        signal.signal(signal.SIGINT, _stop)
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error escapes such characters already
        sys.stdout.reconfigure(errors="replace")


_standard_error = [2]
"""Descriptors of standard error, the current one last. While log lines are held back, descriptor 2 is a file."""


def _stop(number: int, frame: Any) -> None:
    with contextlib.suppress(OSError):  # standard output may be closed
        if os.isatty(1):
            os.write(1, b"\x1b[?25h")  # show the cursor, which a live table hides
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(_standard_error[-1], b"keras-preact: stopped\n")
    os._exit(128 + number)


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Hold back standard error, and write it at the end without the log lines.

    TensorFlow, if installed, is imported at the end: on other backends Keras would import it later, when it first
    seeds or serializes. With `--debug` everything is written at once, so that an import that ends the process can
    still report why.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "--debug" in sys.argv:
        yield
        return
    import tempfile

    with tempfile.TemporaryFile() as held:
        terminal = os.dup(2)
        _standard_error.append(terminal)
        os.dup2(held.fileno(), 2)
        try:
            yield
            with contextlib.suppress(ImportError):
                importlib.import_module("tensorflow")
        finally:
            _standard_error.pop()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not LOG_LINES.search(line)))
