"""The start of the command `keras-preact`, before anything heavy is imported.

Importing TensorFlow writes half a dozen lines about its build to the standard error, some of them whatever
`TF_CPP_MIN_LOG_LEVEL` says. They would stand above every answer of the command. It also leaves oneDNN off on
processors without AVX-512, where training takes several times as long without it. The command changes both; in a
program or notebook of your own nothing is touched. Each run records whether it computed with oneDNN.

Little is imported here before `stop_in_one_line` has run: until then Ctrl-C prints a traceback.
"""

import contextlib
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG_LINES = re.compile(rb"^([IW][0-9]{4} |WARNING: All log messages before absl)|oneDNN custom operations are on")
"""Lines of information and warning; errors (E) and fatal ones (F) pass."""


def is_the_command() -> bool:
    """Return whether this process is `keras-preact` or `python -m keras_preact`."""
    arguments = sys.orig_argv[1:]
    started = Path(sys.argv[0]) if sys.argv else Path()
    is_module = started.name in ("-m", "__main__.py") and "-m" in arguments
    return started.stem == "keras-preact" or (is_module and arguments[arguments.index("-m") + 1] == "keras_preact")


def prepare() -> None:
    """Have Ctrl-C end the command in one line, and TensorFlow compute with oneDNN."""
    stop_in_one_line()
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def stop_in_one_line() -> None:
    """Have Ctrl-C end the command without the traceback of whatever it was importing.

    A `KeyboardInterrupt` would not do: some packages catch whatever is raised while they are imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell started it in the background
        signal.signal(signal.SIGINT, _stop)


_standard_error = [2]
"""Descriptors of the standard error, the last one in use: while log lines are held back, 2 is a file of them."""


def _stop(number: int, frame: Any) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(_standard_error[-1], b"keras-preact: stopped\n")
    os._exit(128 + number)


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Hold back what is written to the standard error, and write it at the end without the log lines.

    Ends by importing TensorFlow, where it is installed: on other backends Keras does so when it first seeds or
    serializes. With `--debug` everything is written at once: also the last words of an import that ends the process.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "--debug" in sys.argv:
        yield
        return
    import tempfile

    with tempfile.TemporaryFile() as held:
        before = os.dup(2)
        _standard_error.append(before)
        os.dup2(held.fileno(), 2)
        try:
            yield
            with contextlib.suppress(ImportError):
                importlib.import_module("tensorflow")
        finally:
            _standard_error.pop()
            os.dup2(before, 2)
            os.close(before)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not LOG_LINES.search(line)))
