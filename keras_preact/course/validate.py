"""Validate notebooks of the course, or copies of them, with nbval and this package's settings.

    python -m keras_preact.course.validate [--jobs N] [--timeout SECONDS] [--ignore FOLDER] NOTEBOOK_OR_FOLDER …

Runs every cell in a fresh kernel and compares its output with the stored one. The exit status is pytest's: 0 if all
cells agree, 1 if one differs, 5 if there are no notebooks. Install nbval with `pip install "keras_preact[all]"`; with
pytest-xdist, `--jobs` runs several notebooks at once.

The kernels use TensorFlow on the CPU, unless `KERAS_BACKEND` or `CUDA_VISIBLE_DEVICES` is set to something else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_preact.errors import is_installed

SETTINGS = Path(__file__).with_name("nbval.cfg")
"""What nbval replaces in outputs before it compares them."""
DEFAULTS = {
    "CUDA_VISIBLE_DEVICES": "",  # the stored outputs are those of the CPU
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # By default, TensorFlow turns oneDNN off on processors without AVX-512, although it is faster there too.
    "TF_ENABLE_ONEDNN_OPTS": "1",
}
"""Environment variables of the kernels; those that are set already stay as they are."""


def command(paths: Sequence[str], jobs: int = 1, timeout: int = 300) -> list[str]:
    """Return the command that validates notebooks.

    Args:
        paths: notebooks, and folders to search for notebooks.
        jobs: notebooks to run at once; more than 1 needs pytest-xdist.
        timeout: seconds after which a cell counts as failed.

    >>> command(["notebooks"])[1:6]
    ['-m', 'pytest', '-p', 'no:python', '--nbval']
    """
    arguments = ["-p", "no:python", "--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(SETTINGS)]
    arguments += ["--nbval-cell-timeout", str(timeout)]
    if jobs > 1:
        arguments += ["--numprocesses", str(jobs), "--dist", "loadscope"]  # never splits a notebook
    return [sys.executable, "-m", "pytest", *arguments, *paths]


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate the notebooks named on the command line and return pytest's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m keras_preact.course.validate", description="Run notebooks and compare their outputs with nbval."
    )
    parser.add_argument("paths", nargs="+", metavar="NOTEBOOK_OR_FOLDER")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks to run at once (default: 1)")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS", help="limit of a cell (default: 300)")
    parser.add_argument("--ignore", action="append", default=[], metavar="FOLDER", help="folder to leave out")
    options = parser.parse_args(arguments)
    for name in ("jobs", "timeout"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be an integer of at least 1")
    for name in ("nbval", *(["xdist"] if options.jobs > 1 else [])):
        if not is_installed(name):
            package, source = {"xdist": ("pytest-xdist", "pytest-xdist")}.get(name, (name, '"keras_preact[all]"'))
            parser.error(f"{package} is not installed; run pip install {source}")
    for path in options.paths:
        if not Path(path).exists():
            parser.error(f"{path} does not exist; name notebooks, or folders of notebooks")
    ignored = [f"--ignore={folder}" for folder in options.ignore]
    run = [*command(options.paths, options.jobs, options.timeout), *ignored]
    return subprocess.run(run, env=DEFAULTS | dict(os.environ), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
