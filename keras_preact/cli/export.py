"""`keras-preact export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_preact.cli.networks import model_to_inspect, saved
from keras_preact.console import say
from keras_preact.errors import InputError
from keras_preact.interop import export_model, save_safetensors


def run(options: argparse.Namespace) -> None:
    if saved(options.model) is None:
        there = Path(options.model).exists()
        remedy = f"give ./{options.model}" if there else "train one with `keras-preact train`"
        raise InputError(f"there is no run folder or file {options.model}; {remedy}")
    if options.file.exists():
        raise InputError(f"{options.file} exists already and is not overwritten; name another")
    model = model_to_inspect(options)
    if options.file.suffix == ".safetensors":
        save_safetensors(model, options.file, options.dtype or "float32")
        say(f"{options.file}: {model.count_params():,} weights of {model.name}, {options.dtype or 'float32'}")
        return
    if options.dtype is not None:
        raise InputError(f"--dtype is of .safetensors files; leave it out for {options.file}, which is float32")
    difference = export_model(model, options.file)
    say(f"{options.file}: {model.name}; its output differs from Keras's by {difference:.0e} of the largest, at most")
