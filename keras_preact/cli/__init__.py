"""The command `keras-preact`: parses the options and runs the module of the command, one module per command.

Exit status: 0 success; 2 bad input; 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by a closed terminal (the run can be
resumed); 1 a fault of the program or the machine, or a run that diverged. An error is one sentence;
--debug adds the traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from keras_preact.cli.options import parser
from keras_preact.errors import (
    EXTRAS,
    REMEDIES,
    Diverged,
    InputError,
    WriteError,
    check_choice,
    missing_package,
    printable,
)
from keras_preact.startup import is_the_command, prepare, without_log_lines

BACKENDS = ("tensorflow", "jax", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    >>> main(["info", "cifar_resnet", "--depth", "21"])
    2
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if is_the_command():
        prepare()
    try:
        options = parser().parse_args(arguments)
        if backend := os.environ.get("KERAS_BACKEND"):
            check_choice("KERAS_BACKEND", backend, BACKENDS)
        if options.command == "reproduce":
            options.arguments = arguments  # for its workers
        with without_log_lines() if is_the_command() else contextlib.nullcontext():
            command = importlib.import_module(f"keras_preact.cli.{options.command}")  # imports Keras
        try:
            command.run(options)
        finally:
            _close_bar()
    except SystemExit as error:  # --help
        return int(error.code or 0)
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _report_error(error)
    except KeyboardInterrupt as error:
        return _report(str(error) or "stopped", 128 + getattr(error, "signal_number", signal.SIGINT))
    return 0


def _close_bar() -> None:
    """Close the open progress bar, if any, so that the terminal shows its cursor again."""
    if "keras_preact.console" in sys.modules:
        with contextlib.suppress(OSError):  # the terminal is closed
            sys.modules["keras_preact.console"].close_bar()


def _report_error(error: Exception) -> int:
    """Print one sentence about the error and return the exit status."""
    stopped = getattr(error, "signal_number", None)
    if isinstance(error, InputError):
        message, status = f"error: {error}", 2
    elif stopped is not None:
        message, status = str(error), 128 + stopped
    elif isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        message, status = f"error: {missing_package('this command', [error.name])}", 2
    elif isinstance(error, (Diverged, WriteError)):
        message, status = f"error: {error}", 1
    elif isinstance(error, OSError):
        remedy = f"; {REMEDIES[error.errno]}" if error.errno in REMEDIES else ""
        if isinstance(error, PermissionError):  # perhaps of a file to read: REMEDIES are for writing
            remedy = "; check the permissions of this file or folder"
        message, status = f"error: {error.strerror or error}: {error.filename or 'a file'}{remedy}", 1
    elif str(error).startswith("Unable to import backend"):
        message = "error: the backend in keras.json, in KERAS_HOME or ~/.keras, is unknown; correct it, or set "
        message, status = f"{message}KERAS_BACKEND to {', '.join(BACKENDS)}", 2
    elif _is_out_of_memory(error):
        message, status = "error: out of memory; use smaller batches (train --batch-size), images or networks", 1
    else:
        first_line = (str(error).splitlines() or [""])[0]
        message, status = f"internal error, please report it ({type(error).__name__}: {first_line}); see --debug", 1
    return _report(message, status)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether Python, TensorFlow, JAX or PyTorch reports that memory is short."""
    names = ("ResourceExhaustedError", "OutOfMemoryError")
    is_said = any(word in str(error) for word in ("RESOURCE_EXHAUSTED", "DefaultCPUAllocator"))  # JAX; PyTorch on CPUs
    return isinstance(error, MemoryError) or type(error).__name__ in names or is_said


def _report(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # the terminal is closed
        print(f"keras-preact: {printable(message)}", file=sys.stderr)
    return status
