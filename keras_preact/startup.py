"""The start of the command `keras-preact`, before anything heavy is imported: what TensorFlow reads when it is.

Importing TensorFlow writes half a dozen lines about its build to the standard error, some of them whatever
`TF_CPP_MIN_LOG_LEVEL` says. They would stand above every answer of the command. And without being told to, it leaves
oneDNN alone on processors without AVX-512: every training step takes longer for it. In somebody's own
program or notebook nothing is touched.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG_LINES = r"^([IW][0-9]{4} |WARNING: All log messages before absl)|oneDNN custom operations are on"
"""Lines of information and warning; errors (E) and fatal ones (F) pass."""


def is_the_command() -> bool:
    """Whether this process is `keras-preact` or `python -m keras_preact`."""
    started = sys.orig_argv[1:]
    return started[:2] == ["-m", "keras_preact"] or bool(started and Path(started[0]).name == "keras-preact")


def take_onednn() -> None:
    """Have TensorFlow compute with oneDNN on any x86-64 processor, unless the environment says otherwise."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def stop_in_one_line() -> None:
    """Have Ctrl-C end the command without the traceback of whatever it was importing.

    A `KeyboardInterrupt` would not do: some packages catch whatever is raised while they are imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell started it in the background
        signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: Any) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more
        os.write(2, b"keras-preact: stopped\n")
    os._exit(128 + number)


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    """Send what is written to the standard error through `grep`, which leaves out the log lines.

    A process of its own, so that even the last words of an import that aborts are seen. Where there is no `grep`,
    the lines are.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    grep = shutil.which("grep")
    if grep is None or "--debug" in sys.argv:
        yield
        return
    filtering = subprocess.Popen([grep, "-v", "-E", LOG_LINES], stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    assert filtering.stdin is not None  # (a session of its own: Ctrl-C is not meant for it)
    before = os.dup(2)
    os.dup2(filtering.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        filtering.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # something imported may have kept the pipe open
            filtering.wait(timeout=2)
