"""The start of the command `keras-preact`, before anything heavy is imported: what TensorFlow reads when it is.

Importing TensorFlow writes half a dozen lines about its build to the standard error, some of them whatever
`TF_CPP_MIN_LOG_LEVEL` says. They would stand above every answer of the command. And without being told to, it leaves
oneDNN alone on processors without AVX-512: every training step takes longer for it. In somebody's own
program or notebook nothing is touched.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LOG_LINES = r"^([IW][0-9]{4} |WARNING: All log messages before absl)|oneDNN custom operations are on"
"""Lines of information and warning; errors (E) and fatal ones (F) pass."""


def is_the_command() -> bool:
    """Whether this process is `keras-preact` or `python -m keras_preact`."""
    started = sys.orig_argv[1:]
    return started[:2] == ["-m", "keras_preact"] or bool(started and Path(started[0]).name == "keras-preact")


def take_onednn() -> None:
    """Have TensorFlow compute with oneDNN on any x86-64 processor, unless the environment says otherwise."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


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
    filtering = subprocess.Popen([grep, "-v", "-E", LOG_LINES], stdin=subprocess.PIPE, stdout=2)
    assert filtering.stdin is not None
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
