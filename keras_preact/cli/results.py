"""`keras-preact results`."""

from __future__ import annotations

import argparse

from keras_preact.console import say
from keras_preact.errors import InputError, check_installed
from keras_preact.experiments import keep, write_results
from keras_preact.experiments.report import check_is_page
from keras_preact.training import RunFolder


def run(options: argparse.Namespace) -> None:
    check_installed("the page of results", "matplotlib")
    if not options.folder.is_dir():
        raise InputError(f"{options.folder} is not a folder; name a folder of results")
    check_is_page(options.folder / "README.md")  # before anything is copied
    for path in options.keep:
        say(f"{path} is stored in {keep(RunFolder.open(path), options.folder)}")
    say(f"wrote {write_results(options.folder)}")
