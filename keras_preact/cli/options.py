"""The commands and their options. Imports no Keras, so that `--help` and a mistyped option are answered at once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from keras_preact.errors import InputError
from keras_preact.version import __version__

RUNS = Path("runs")
RESNET_OPTIONS = {"depth", "placement", "shortcut", "shape_change", "bottleneck", "profile"}
TRANSFORMER_OPTIONS = {"depth", "placement", "shortcut", "dim", "heads", "dropout", "patch"}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of repeating the usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    main_parser = _Parser(prog="keras-preact", description="Original and pre-activation residual networks in Keras.")
    main_parser.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    main_parser.add_argument("--version", action="version", version=f"keras_preact {__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train both orders of a deep network side by side: the paper's effect")
    demo.add_argument("--depth", type=int, default=218, help="6n+2 (default: %(default)s; 20: the shallow control)")
    demo.add_argument("--learning-rate", type=float, default=0.1, help="default: %(default)s, the paper's")
    demo.add_argument("--steps", type=int, help="mini-batches (default: the recipe's)")
    demo.add_argument("--precision", help="float32, mixed_float16 or mixed_bfloat16 (default: the faster here)")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--out", type=Path, help="run folder (default: the next free runs/demo-NNN)")

    train = commands.add_parser("train", help="train one network into a run folder")
    add_network_options(train)
    add_data_options(train)
    train.add_argument(
        "--recipe",
        help="paper, imagenet, short, demo, adam, or a code base's, as fb_resnet_torch (default: adam for a "
        "Transformer, demo for bundled images, else short)",
    )
    length = train.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, help="length of the training, in passes over the training images")
    length.add_argument("--steps", type=int, help="length of the training, in mini-batches")
    train.add_argument("--batch-size", type=int, help="images a mini-batch (default: the recipe's)")
    train.add_argument("--precision", help="float32, mixed_float16 or mixed_bfloat16 (default: the faster here)")
    train.add_argument("--seed", type=int, help="of weights, data order and augmentation (default: 0)")
    train.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="the same weights to the bit each time, on one machine",
    )
    train.add_argument(
        "--distribute",
        type=int,
        metavar="N",
        help="share each batch among N devices (default: 1); of several machines, on JAX, if each is started with "
        "Keras's variables KERAS_DISTRIBUTION_JOB_ADDRESSES, _NUM_PROCESSES and _PROCESS_ID",
    )
    train.add_argument(
        "--sync-batch-norm",
        action="store_true",
        default=None,
        help="with --distribute on TensorFlow: batch norm over the whole batch (default: over each device's share)",
    )
    where = train.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, help="run folder (default: the next free one in runs/)")
    where.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped")

    evaluate = commands.add_parser("evaluate", help="measure the test error of a run again")
    evaluate.add_argument("folder", type=Path, metavar="RUN")
    evaluate.add_argument("--data-dir", type=_place, help="where the run's data are, if they have moved")
    evaluate.add_argument("--image-size", type=int, help="pixels of the test images' crop, as 320 (default: the run's)")
    evaluate.add_argument("--short-side", type=int, help="pixels of their short side before the crop")

    reproduce = commands.add_parser("reproduce", help="run what is missing of a table of the paper, and print it")
    reproduce.add_argument(
        "table",
        metavar="TABLE",
        help="table1, table2, table3, table5, resnet20, screening, depth, extensions, warmup, initialization or all",
    )
    reproduce.add_argument(
        "--budget", default="smoke", help="smoke (default), demo, cpu, deep or paper; --cost says how long"
    )
    reproduce.add_argument(
        "--profile", default="paper", help="whose networks and recipe, in a table of their own (default: paper)"
    )
    reproduce.add_argument("--rows", nargs="+", metavar="ROW", help="rows by name (default: all of the budget)")
    reproduce.add_argument("--seeds", type=int, default=1, help="runs a row (default: 1)")
    reproduce.add_argument("--precision", help="as in train")
    reproduce.add_argument("--data-dir", type=_place, help="tensorflow-datasets' data_dir")
    reproduce.add_argument(
        "--out", type=Path, default=RUNS / "reproduce", help="folder of the runs (default: %(default)s)"
    )
    reproduce.add_argument("--results", type=Path, default=Path("results"), help="folder of results that are kept")
    reproduce.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs to train at once, each on its share of the cores (default: one a core)",
    )
    reproduce.add_argument("--list", action="store_true", help="name the rows and what is missing, and stop")
    reproduce.add_argument("--cost", action="store_true", help="as --list, with the time it would take on this machine")

    results = commands.add_parser("results", help="write the page of the results folder, README.md, from its runs")
    results.add_argument("folder", type=Path, nargs="?", default=Path("results"), metavar="DIR")
    results.add_argument(
        "--keep", type=Path, nargs="+", default=[], metavar="RUN", help="first copy these runs into it"
    )

    export = commands.add_parser("export", help="write a run or a .keras file for other programs")
    export.add_argument("model", metavar="MODEL", help="a run folder or a .keras file")
    export.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="to write: NAME.safetensors (weights), NAME.onnx, NAME.tflite, or NAME (SavedModel)",
    )
    export.add_argument("--dtype", help="of .safetensors: float32 (default) or float16, half the size")

    inspect = commands.add_parser("inspect", help="signal, gradient and identity path of a network: a page and JSON")
    inspect.add_argument("model", metavar="MODEL", help="a network's name, a .keras file or a run folder")
    add_network_options(inspect, with_name=False)
    inspect.add_argument("--images", type=int, default=64, help="number of images to show it (default: 64)")
    inspect.add_argument("--data-dir", type=_place, help="where a run's data are, if they have moved")
    inspect.add_argument("--out", type=Path, help="folder of the report (default: the next free runs/inspection-NNN)")

    info = commands.add_parser("info", help="parameters, multiply-adds and stages of a network")
    info.add_argument("model", metavar="MODEL", help="a network's name, a .keras file or a run folder")
    add_network_options(info, with_name=False)
    info.add_argument("--classes", type=int, help="number of classes")
    info.add_argument("--image-size", type=int, help="pixels")
    info.add_argument("--against", metavar="PROFILE", help="say how that profile's network differs")
    for command in commands.choices.values():  # after the command too, as one writes what one adds
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return main_parser


def _place(path: str) -> str:
    """Return the path of data in full: a run notes it, and may be resumed in another folder than it was begun in."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def add_network_options(to: argparse.ArgumentParser, with_name: bool = True) -> None:
    group = to.add_argument_group("network")
    if with_name:
        group.add_argument(
            "--model", help="cifar_resnet (default), preact_resnet50, postact_resnet18, prenorm-transformer, …"
        )
    group.add_argument(
        "--depth", type=int, help="weight layers: 6n+2 or 9n+2 for cifar_resnet (default: 20); blocks of a Transformer"
    )
    group.add_argument("--placement", help="where the activations stand, Table 2 (default: full_preactivation)")
    group.add_argument(
        "--shortcut", help="h, Table 1, for example 'exclusive_gating(gate_bias=-6)' (default: identity)"
    )
    group.add_argument("--shape-change", help="projection (default) or option_a, where a unit changes the shape")
    group.add_argument("--profile", help="whose network, where code bases differ: paper (default), timm, …")
    group.add_argument("--dim", type=int, help="width of a Transformer (default: 128)")
    group.add_argument("--heads", type=int, help="attention heads of a Transformer (default: 4)")
    group.add_argument("--dropout", type=float, help="of a Transformer (default: 0)")
    group.add_argument("--patch", type=int, help="pixels of a Transformer's image patches (default: 4)")
    blocks = group.add_mutually_exclusive_group()
    blocks.add_argument("--bottleneck", action="store_true", default=None, help="bottleneck blocks (depth 9n+2)")
    blocks.add_argument("--basic", action="store_false", dest="bottleneck", help="basic blocks (depth 6n+2)")


def add_data_options(to: argparse.ArgumentParser) -> None:
    group = to.add_argument_group("data")
    group.add_argument(
        "--dataset",
        help="bundled (default), folder, or a tensorflow-datasets name such as cifar10; "
        "sequences: reviews (a Transformer's default), characters, weather",
    )
    group.add_argument("--data-dir", type=_place, help="folder of class folders, or tensorflow-datasets' data_dir")
    group.add_argument(
        "--image-size",
        type=int,
        help="pixels: CIFAR's and the bundled images are averaged down (16: a quarter of the pixels), others scaled "
        "and cropped (default: the images' own size; of a folder 32)",
    )
    group.add_argument("--only", nargs="+", metavar="CLASS", help="train on the images of these classes alone")
    group.add_argument(
        "--skip-corrupt",
        action="store_true",
        default=None,
        help="leave out images of a folder that cannot be read, and count them (default: stop at the first)",
    )
