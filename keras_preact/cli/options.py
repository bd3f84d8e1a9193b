"""The commands and their options. Imports no Keras: `--help` and the error for a mistyped option appear at once."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, NoReturn

from keras_preact.errors import InputError
from keras_preact.version import __version__

RUNS = Path("runs")
RESNET_OPTIONS = {"depth", "placement", "shortcut", "shape_change", "bottleneck", "widen_factor", "profile"}
TRANSFORMER_OPTIONS = {"depth", "placement", "shortcut", "dim", "heads", "dropout", "patch"}
_MODEL = "name of a network, name of a trained network, run folder, or .keras file"
_MOVED_DATA = "where the run's data are now, if they have moved"
_PRECISION = "float32, mixed_float16 or mixed_bfloat16 (default: float32, or mixed_bfloat16 where it is faster)"


class _Parser(argparse.ArgumentParser):
    """Reports an error in one sentence, without the usage; accepts no abbreviated options."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    main_parser = _Parser(
        prog="keras-preact",
        description="Original and pre-activation residual networks in Keras. `keras-preact demo` is a good start.",
    )
    main_parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    main_parser.add_argument("--version", action="version", version=f"keras_preact {__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for add in (
        _add_demo,
        _add_train,
        _add_evaluate,
        _add_reproduce,
        _add_results,
        _add_export,
        _add_inspect,
        _add_info,
    ):
        add(commands)
    for command in commands.choices.values():  # also after the command, where people add it
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return main_parser


def _command(commands: Any, name: str, summary: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")


def _add_demo(commands: Any) -> None:
    demo = _command(
        commands, "demo", "train a deep network in both orders, original and full pre-activation, side by side"
    )
    demo.add_argument("--depth", type=int, default=218, help="layers, 6n+2 (default: %(default)s; shallow control: 20)")
    demo.add_argument("--learning-rate", type=float, default=0.1, help="default: %(default)s, as in the paper")
    demo.add_argument("--steps", type=int, help="mini-batches to train (default: the demo recipe's)")
    demo.add_argument("--precision", help=_PRECISION)
    demo.add_argument("--seed", type=int, default=0, help="seed of weights, data order and augmentation (default: 0)")
    demo.add_argument("--out", type=_path, help="new run folder (default: the next free runs/demo-NNN)")


def _add_train(commands: Any) -> None:
    train = _command(commands, "train", "train one network; all of its files go into one run folder")
    add_network_options(train)
    add_data_options(train)
    train.add_argument(
        "--recipe",
        help="paper, imagenet, short, demo, fast, adam, or one named after a code base such as fb_resnet_torch "
        "(default: adam for a Transformer, demo for the bundled images, short otherwise)",
    )
    length = train.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, help="passes over the training data, instead of the recipe's steps")
    length.add_argument("--steps", type=int, help="mini-batches to train (default: the recipe's)")
    train.add_argument(
        "--learning-rate", type=float, help="learning rate after the warm-up, before it decays (default: the recipe's)"
    )
    train.add_argument("--batch-size", type=int, help="examples per mini-batch (default: the recipe's)")
    train.add_argument("--precision", help=_PRECISION)
    train.add_argument("--seed", type=int, help="seed of weights, data order and augmentation (default: 0)")
    train.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="make training reproducible: bit-identical weights in every run on one machine",
    )
    train.add_argument(
        "--distribute",
        type=int,
        metavar="N",
        help="split each batch across N devices (default: 1). On JAX they may be in several machines: start the "
        "command on each with KERAS_DISTRIBUTION_JOB_ADDRESSES, _NUM_PROCESSES and _PROCESS_ID set",
    )
    train.add_argument(
        "--sync-batch-norm",
        action="store_true",
        default=None,
        help="with --distribute on TensorFlow: synchronize batch norm across devices (default: statistics per device)",
    )
    where = train.add_mutually_exclusive_group()
    where.add_argument("--out", type=_path, help="new run folder (default: the next free one in runs/)")
    where.add_argument("--resume", type=_path, metavar="RUN", help="resume an interrupted run")


def _add_evaluate(commands: Any) -> None:
    evaluate = _command(commands, "evaluate", "measure the test error of a finished run again")
    evaluate.add_argument("folder", type=_path, metavar="RUN", help="run folder")
    evaluate.add_argument("--data-dir", type=_absolute, help=_MOVED_DATA)
    evaluate.add_argument("--image-size", type=int, help="size of the test crop in pixels (default: the run's)")
    evaluate.add_argument(
        "--short-side",
        type=int,
        help="short side of the test images in pixels, before the crop (default: the run's ratio to the crop)",
    )


def _add_reproduce(commands: Any) -> None:
    reproduce = _command(commands, "reproduce", "train the missing runs of a table of the paper and print the table")
    reproduce.add_argument(
        "table",
        metavar="TABLE",
        help="table1, table2, table3, table5, resnet20, screening, depth, fast, extensions, warmup, initialization or "
        "all",
    )
    reproduce.add_argument(
        "--budget", default="smoke", help="smoke (default), demo, cpu, deep, fast or paper; --cost estimates the time"
    )
    reproduce.add_argument(
        "--profile", default="paper", help="code base whose networks and recipe to use (default: paper)"
    )
    reproduce.add_argument(
        "--rows", nargs="+", metavar="ROW", help="rows to run, by the names that --list prints (default: all)"
    )
    reproduce.add_argument("--seeds", type=int, default=1, help="runs per row (default: 1)")
    reproduce.add_argument("--precision", help=_PRECISION)
    reproduce.add_argument("--data-dir", type=_absolute, help="data folder of tensorflow-datasets")
    reproduce.add_argument(
        "--out", type=_path, default=RUNS / "reproduce", help="folder for the runs (default: %(default)s)"
    )
    reproduce.add_argument(
        "--results", type=_path, default=Path("results"), help="folder of stored runs to reuse (default: %(default)s)"
    )
    reproduce.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs to train at once, each on an equal share of the cores (default: one per core if memory allows; one "
        "on a GPU)",
    )
    reproduce.add_argument("--list", action="store_true", help="list the runs and their state without training")
    reproduce.add_argument("--cost", action="store_true", help="like --list, and estimate the time on this machine")


def _add_results(commands: Any) -> None:
    results = _command(commands, "results", "write the README.md of a results folder from its runs")
    results.add_argument(
        "folder", type=_path, nargs="?", default=Path("results"), metavar="DIR", help="default: %(default)s"
    )
    results.add_argument(
        "--keep", type=_path, nargs="+", default=[], metavar="RUN", help="first copy these finished runs into DIR"
    )


def _add_export(commands: Any) -> None:
    export = _command(
        commands, "export", "convert a trained network: safetensors, SavedModel, ONNX, OpenVINO or LiteRT"
    )
    export.add_argument("model", metavar="MODEL", help="name of a trained network, run folder, or .keras file")
    export.add_argument(
        "file",
        type=_path,
        metavar="FILE",
        help="new file: NAME.safetensors (weights only), NAME.onnx, NAME.xml (OpenVINO), NAME.tflite (LiteRT), or NAME "
        "(a SavedModel folder)",
    )
    export.add_argument(
        "--dtype", help="dtype of the weights: float32 (default), float16 in .safetensors, int8 in .tflite"
    )


def _add_inspect(commands: Any) -> None:
    inspect = _command(commands, "inspect", "write a report on the signal, gradients and identity path of a network")
    inspect.add_argument("model", metavar="MODEL", help=_MODEL)
    add_network_options(inspect, with_name=False)
    inspect.add_argument("--images", type=int, default=64, help="images to measure on (default: %(default)s)")
    inspect.add_argument("--data-dir", type=_absolute, help=_MOVED_DATA)
    inspect.add_argument(
        "--out", type=_path, help="new folder for the report (default: the next free runs/inspection-NNN)"
    )


def _add_info(commands: Any) -> None:
    info = _command(commands, "info", "list the networks, or print stages, parameters and multiply-adds of one")
    info.add_argument("model", metavar="MODEL", nargs="?", help=f"{_MODEL} (default: list all names)")
    add_network_options(info, with_name=False)
    info.add_argument("--classes", type=int, help="number of classes")
    info.add_argument("--image-size", type=int, help="height and width of the images in pixels")
    info.add_argument("--against", metavar="PROFILE", help="compare with the same network in this profile")


def option(key: str, value: object = None) -> str:
    """Return the option as the user writes it.

    >>> option("image_size"), option("bottleneck", False)
    ('--image-size', '--basic')
    """
    return "--basic" if key == "bottleneck" and value is False else f"--{key.replace('_', '-')}"


def _absolute(path: str) -> str:
    """Return the absolute path of data: the run records it, and may be resumed from another working folder."""
    return path if "://" in path else str(_path(path).absolute())


def _path(text: str) -> Path:
    """Return a path with ~ expanded: the shell leaves it alone in `--out=~/run`."""
    return Path(os.path.expanduser(text))


def number(text: str) -> float:
    """Return a number; a whole one as an integer, as stored runs have it."""
    number = float(text)
    return int(number) if number.is_integer() else number


def add_network_options(to: argparse.ArgumentParser, with_name: bool = True) -> None:
    group = to.add_argument_group("network")
    if with_name:
        group.add_argument(
            "--model",
            help="cifar_resnet (default), preact_resnet50, prenorm_transformer, …; `keras-preact info` lists all",
        )
    group.add_argument(
        "--depth",
        type=int,
        help="layers: 6n+2 or 9n+2 for cifar_resnet (default: 20); 18, 34, 50 (default), 101, 152 or 200 for "
        "imagenet_resnet; blocks for a Transformer (default: 6)",
    )
    group.add_argument(
        "--placement",
        help="order of normalization, ReLU and addition: original, bn_after_addition, relu_before_addition, "
        "relu_only_preactivation, full_preactivation (default) or bn_only_preactivation; for a Transformer pre_norm "
        "(default), post_norm, sandwich or no_norm",
    )
    group.add_argument(
        "--shortcut", help="shortcut h, Table 1, for example 'exclusive_gating(gate_bias=-6)' (default: identity)"
    )
    group.add_argument(
        "--shape-change",
        help="how units change the shape: projection or option_a (default: the profile's; projection for paper)",
    )
    group.add_argument("--widen-factor", type=number, help="factor on a ResNet's number of filters (default: 1)")
    group.add_argument(
        "--profile",
        help="ResNet variant of a code base: paper (default), keras_applications, timm, pytorch_cifar, "
        "resnet_1k_layers or fb_resnet_torch",
    )
    group.add_argument("--dim", type=int, help="width of a Transformer (default: 128)")
    group.add_argument("--heads", type=int, help="attention heads of a Transformer (default: 4)")
    group.add_argument("--dropout", type=float, help="dropout rate of a Transformer (default: 0)")
    group.add_argument(
        "--patch",
        type=int,
        help="size of a Transformer's image patches in pixels (default: 4 in train; info and inspect need it for a "
        "network on images)",
    )
    blocks = group.add_mutually_exclusive_group()
    blocks.add_argument(
        "--bottleneck",
        action="store_true",
        default=None,
        help="use bottleneck blocks (depth 9n+2; default if the depth is not 6n+2, or fits both and is at least 164)",
    )
    blocks.add_argument("--basic", action="store_false", dest="bottleneck", help="use basic blocks (depth 6n+2)")


def add_data_options(to: argparse.ArgumentParser) -> None:
    group = to.add_argument_group("data")
    group.add_argument(
        "--dataset",
        help="images: bundled (default), folder, or a tensorflow-datasets name such as cifar10; "
        "sequences: reviews (default for a Transformer), characters, weather",
    )
    group.add_argument(
        "--data-dir", type=_absolute, help="folder with train/CLASS/ and test/CLASS/, or that of tensorflow-datasets"
    )
    group.add_argument(
        "--image-size",
        type=int,
        help="height and width in pixels: CIFAR and bundled images are reduced by area averaging, others scaled "
        "and cropped (default: the images' own size; 32 for a folder; required if sizes differ, as in ImageNet)",
    )
    group.add_argument("--only", nargs="+", metavar="CLASS", help="train on these classes only")
    group.add_argument(
        "--skip-corrupt",
        action="store_true",
        default=None,
        help="skip unreadable images of a folder and report how many (default: stop at the first)",
    )
