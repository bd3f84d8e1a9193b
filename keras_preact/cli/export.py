"""`keras-preact export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_preact.cli.networks import model_to_inspect, saved, trained
from keras_preact.console import say
from keras_preact.errors import InputError
from keras_preact.interop import export_model, save_safetensors


def run(options: argparse.Namespace) -> None:
    if saved(options.model) is None and trained(options.model) is None:
        if Path(options.model).exists():
            raise InputError(
                f"{options.model} is the name of a network; for the run folder or file use ./{options.model}"
            )
        raise InputError(
            f"there is no run folder, file or trained network {options.model}; `keras-preact info` lists the trained "
            "networks, and `keras-preact train` makes a run folder"
        )
    if options.file.exists():
        raise InputError(f"{options.file} exists already and is not overwritten; choose another name")
    model = model_to_inspect(options)
    if options.file.suffix == ".safetensors":
        save_safetensors(model, options.file, options.dtype or "float32")
        say(f"{options.file}: {model.count_params():,} weights of {model.name}, {options.dtype or 'float32'}")
        return
    difference = export_model(model, options.file, options.dtype or "float32")
    say(f"{options.file}: {model.name}; outputs differ from Keras's by at most {difference:.0e} of the largest")
