"""The command `keras-preact`: thin, it reads options and calls the package.

Exit status: 0 done; 2 bad input, in one sentence; 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by a closed terminal
(the run can be resumed); 1 a fault of the program or the machine, in one sentence (the traceback with --debug).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from keras_preact.errors import REMEDIES, InputError, WriteError, as_command, printable
from keras_preact.startup import import_tensorflow, is_the_command
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
    demo.set_defaults(run=_demo)

    train = commands.add_parser("train", help="train one network into a run folder")
    _add_network_options(train)
    _add_data_options(train)
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
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="measure the test error of a run again")
    evaluate.add_argument("folder", type=Path, metavar="RUN")
    evaluate.add_argument("--data-dir", type=_place, help="where the run's data are, if they have moved")
    evaluate.add_argument("--image-size", type=int, help="pixels of the test images' crop, as 320 (default: the run's)")
    evaluate.add_argument("--short-side", type=int, help="pixels of their short side before the crop")
    evaluate.set_defaults(run=_evaluate)

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
    reproduce.set_defaults(run=_reproduce)

    results = commands.add_parser("results", help="write the page of the results folder, README.md, from its runs")
    results.add_argument("folder", type=Path, nargs="?", default=Path("results"), metavar="DIR")
    results.add_argument(
        "--keep", type=Path, nargs="+", default=[], metavar="RUN", help="first copy these runs into it"
    )
    results.set_defaults(run=_results)

    export = commands.add_parser("export", help="write a run or a .keras file for other programs")
    export.add_argument("model", metavar="MODEL", help="a run folder or a .keras file")
    export.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="to write: NAME.safetensors (weights), NAME.onnx, NAME.tflite, or NAME (SavedModel)",
    )
    export.add_argument("--dtype", help="of .safetensors: float32 (default) or float16, half the size")
    export.set_defaults(run=_export)

    inspect = commands.add_parser("inspect", help="signal, gradient and identity path of a network: a page and JSON")
    inspect.add_argument("model", metavar="MODEL", help="a network's name, a .keras file or a run folder")
    _add_network_options(inspect, with_name=False)
    inspect.add_argument("--images", type=int, default=64, help="number of images to show it (default: 64)")
    inspect.add_argument("--data-dir", type=_place, help="where a run's data are, if they have moved")
    inspect.add_argument("--out", type=Path, help="folder of the report (default: the next free runs/inspection-NNN)")
    inspect.set_defaults(run=_inspect)

    info = commands.add_parser("info", help="parameters, multiply-adds and stages of a network")
    info.add_argument("model", metavar="MODEL", help="a network's name, a .keras file or a run folder")
    _add_network_options(info, with_name=False)
    info.add_argument("--classes", type=int, help="number of classes")
    info.add_argument("--image-size", type=int, help="pixels")
    info.add_argument("--against", metavar="PROFILE", help="say how that profile's network differs")
    info.set_defaults(run=_info)
    for command in commands.choices.values():  # after the command too, as one writes what one adds
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return main_parser


def _place(path: str) -> str:
    """Return the path of data in full: a run notes it, and may be resumed in another folder than it was begun in."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _add_network_options(to: argparse.ArgumentParser, with_name: bool = True) -> None:
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


def _add_data_options(to: argparse.ArgumentParser) -> None:
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


# ---- commands -----------------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> None:
    import dataclasses

    from keras_preact.console import say
    from keras_preact.experiments.tables import DEMO_DEPTH, PAPERS_RATE, TUNED_ORIGINAL
    from keras_preact.training import RunConfig, compare, default_precision, get_recipe, next_free_folder, orders

    recipe = get_recipe("demo")
    recipe = recipe if options.steps is None else recipe.with_steps(options.steps)
    schedule = dataclasses.replace(recipe.schedule, learning_rate=options.learning_rate)
    config = RunConfig(
        options={"depth": options.depth, "bottleneck": False},
        image_size=16,
        recipe=dataclasses.replace(recipe, schedule=schedule),
        precision=options.precision or default_precision(),
        seed=options.seed,
    )
    out = options.out or next_free_folder(RUNS, "demo")
    with _side_by_side(orders(config)) as display:
        folder = compare(orders(config), out, lambda name, _: [display.callback(name)])
    _say_comparison(folder)
    say(_finding(folder, options.depth, options.learning_rate))
    rate, error = TUNED_ORIGINAL
    if (options.depth, options.learning_rate, options.steps) == (DEMO_DEPTH, PAPERS_RATE, None):
        say(
            f"{PAPERS_RATE:g} is the paper's rate. Tuning helps the original: at {rate:g}, the best of five "
            f"rates, a stored run reached {error:g} %."
        )
    shallow = "--depth 20     the shallow control"
    say(
        "Try next:\n"
        f"  keras-preact demo {shallow if options.depth > 56 else '--depth 218    eleven times as deep'}\n"
        f"  keras-preact demo --learning-rate {rate:g}    the original order at its best rate\n"
        "  keras-preact inspect cifar_resnet --depth 218 --basic --placement original"
    )


def _side_by_side(configs: dict[str, Any]) -> Any:
    """Return the display of runs that take turns."""
    from keras_preact.console import SideBySide
    from keras_preact.training.comparison import in_words

    return SideBySide(
        {name: in_words(name) for name in configs}, sum(config.recipe.steps for config in configs.values())
    )


def _finding(folder: Any, depth: int, rate: float) -> str:
    """Say in a sentence what the demonstration's figure shows."""
    results = folder.record()["results"]
    original, full = (results[name]["test_error"] for name in ("original", "full_preactivation"))
    steps = folder.open(folder.path / "original").record()["steps"]
    if abs(original - full) < 5:
        shown = f"the order hardly matters: test error {original:.1f} % in the original order, {full:.1f} % in full"
        return f"At {depth} layers and learning rate {rate:g}, {shown} pre-activation after {steps:,} steps."
    first, second = ("full pre-activation", "the original order")[:: 1 if full < original else -1]
    low, high = sorted((original, full))
    return (
        f"At {depth} layers and learning rate {rate:g}, {first} reaches a test error of {low:.1f} % after {steps:,} "
        f"steps, {second} {high:.1f} %: {high - low:.1f} points apart."
    )


def _say_comparison(folder: Any) -> None:
    """Print the results of several networks trained alike."""
    from keras_preact.console import console, say, table
    from keras_preact.training.comparison import in_words

    runs = {name: folder.open(folder.path / name) for name in folder.record()["runs"]}
    records = {name: run.record() for name, run in runs.items()}
    rows = [
        [
            in_words(name),
            *(f"{record['result'][key]:.1f}" for key in ("train_error", "test_error")),
            f"{record['seconds']:.0f}",
        ]
        for name, record in records.items()
    ]
    first, about = next(iter(runs.values())), next(iter(records.values()))
    data, depth = about["data"], about["config"]["options"].get("depth")
    unit, of = first.unit(), "sequences" if "task" in data else "images"
    heads = [
        "" if depth is None else f"{depth} layers",
        f"training error {unit}",
        f"test error {unit}",
        "seconds",
    ]
    title = f"{data['name']}: {data[f'train_{of}']:,} training {of}, {data[f'test_{of}']:,} test {of}"
    console.print()
    console.print(table(heads, rows, title=title))
    say(f"\nEverything is in {folder.path}: curves.png, metrics.csv, run.json, and model.keras of each.")


def _train(options: argparse.Namespace) -> None:
    from keras_preact.console import console, say, table
    from keras_preact.training import RunFolder, resume
    from keras_preact.training.distribute import is_first, join, together

    if options.resume is not None:
        _refuse_changes(options)
        join()
        with together():
            several = RunFolder.open(options.resume).record().get("kind") == "comparison"
            progress = [] if several else _progress_of_run(options.resume)
        if several:
            if options.data_dir is not None:
                raise InputError("a folder of several runs finds its data as it did before; drop --data-dir")
            _say_comparison(_resumed_comparison(options.resume))
            return
        folder = resume(options.resume, data_dir=options.data_dir, callbacks=progress)
    else:
        join()
        with together():
            if options.out is not None and is_first():
                RunFolder.check_free(options.out)  # before the data are loaded
            config, dataset = _config(options)
        if skipped := getattr(dataset, "skipped", ()):
            shown = ", ".join(skipped[:5]) + (", …" if len(skipped) > 5 else "")
            say(f"Left out, because they cannot be read: {len(skipped)} images ({shown}).")
        folder = _started(config, dataset, options.out)
    if not is_first():
        return  # the first process says it
    record = folder.record()
    result = record["result"]
    unit = folder.unit()
    columns = ["", f"training error {unit}", f"test error {unit}", "seconds"]
    row = [record["model"]["name"], *(f"{result[k]:.2f}" for k in ("train_error", "test_error"))]
    console.print(table(columns, [[*row, f"{record['seconds']:.0f}"]]))
    for rule, error in record["data"].get("baselines", {}).items():
        say(f"{rule}: test error {error:.2f} {unit}")
    say(f"The run is in {folder.path}; measure it again with {as_command('evaluate', folder.path)}.")


def _resumed_comparison(path: Path) -> Any:
    from keras_preact.training import RunConfig, RunFolder, resume_comparison

    record = RunFolder.open(path).record()
    configs = {name: RunConfig.from_dict(data) for name, data in record["runs"].items()}
    with _side_by_side(configs) as display:
        for name in configs:
            run = RunFolder(path / name)
            display.resume(name, run.metrics() if run.metrics_path.exists() else [])
        return resume_comparison(path, lambda name, _: [display.callback(name)])


def _started(config: Any, dataset: Any, out: Path | None) -> Any:
    """Train into a new folder: the one named, or the next free one, if no other process has taken it meanwhile."""
    from keras_preact.training import next_free_folder, start
    from keras_preact.training.runs import Taken

    while True:
        try:
            free = out or next_free_folder(RUNS, config.label)
            return start(config, free, dataset=dataset, callbacks=_progress(config.label, config))
        except Taken:
            if out is not None:
                raise


def _config(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the configuration that the options ask for, and the data, which it needs to count epochs."""
    import dataclasses

    from keras_preact.models import TRANSFORMERS, get_network
    from keras_preact.training import RunConfig, default_precision, get_recipe

    network = (options.model or "cifar_resnet").replace("-", "_")
    get_network(network)  # a name that is none is refused before its options and its data are looked at
    name = options.dataset or ("reviews" if network in TRANSFORMERS else "bundled")
    usual = "adam" if network in TRANSFORMERS else "demo" if name == "bundled" else "short"
    recipe = get_recipe(options.recipe or usual)
    if options.batch_size is not None:
        recipe = dataclasses.replace(recipe, batch_size=options.batch_size)
    config = RunConfig(
        network=network,
        options=_network_options(network, options),
        dataset=name,
        data_dir=options.data_dir,
        image_size=options.image_size,
        only=None if options.only is None else tuple(options.only),
        skip_corrupt=bool(options.skip_corrupt),
        recipe=recipe,
        precision=options.precision or default_precision(),
        seed=options.seed or 0,
        deterministic=bool(options.deterministic),
        devices=1 if options.distribute is None else options.distribute,
        sync_batch_norm=bool(options.sync_batch_norm),
    )
    dataset = config.load_dataset()
    steps = options.steps
    if options.epochs is not None:
        steps = options.epochs * dataset.train.steps_per_epoch(recipe.batch_size)
    if steps is not None:
        config = dataclasses.replace(config, recipe=recipe.with_steps(steps))
    return config, dataset


def _network_options(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the network's arguments that were given, with the default depth of `cifar_resnet`."""
    from keras_preact.layers import NORM_PLACEMENTS, get_placement, get_shortcut
    from keras_preact.models import TRANSFORMERS

    given = {
        key: getattr(options, key)
        for key in (*RESNET_OPTIONS, *TRANSFORMER_OPTIONS)
        if getattr(options, key) is not None
    }
    get_shortcut(given.get("shortcut", "identity"))
    refused = RESNET_OPTIONS - TRANSFORMER_OPTIONS if network in TRANSFORMERS else TRANSFORMER_OPTIONS - RESNET_OPTIONS
    for key in sorted(refused & given.keys()):
        raise InputError(f"{network} has no {key.replace('_', ' ')}; drop --{key.replace('_', '-')}")
    if network in TRANSFORMERS:
        if network != "transformer" and "placement" in given:
            raise InputError(f"{network} has its placement in its name; drop --placement, or take --model transformer")
        get_placement(given.get("placement", "pre_norm"), NORM_PLACEMENTS)
        return given
    get_placement(given.get("placement", "original"))
    if network == "cifar_resnet":
        return {"depth": 20, "placement": "full_preactivation", **given}
    fixed = {"depth", "placement", "bottleneck"} if network != "imagenet_resnet" else {"bottleneck"}
    for key in sorted(fixed & given.keys()):
        why = "has bottlenecks by its depth" if key == "bottleneck" else f"has its {key} in its name"
        raise InputError(f"{network} {why}; drop --{key}, or choose --model cifar_resnet")
    return given


def _refuse_changes(options: argparse.Namespace) -> None:
    """A resumed run keeps its configuration: refuse options that would seem to change it."""
    unchanging = {"command", "debug", "run", "resume", "out", "data_dir"}
    for key, value in vars(options).items():
        if key not in unchanging and value is not None:
            raise InputError(f"a resumed run keeps its configuration; drop --{key.replace('_', '-')}")


def _evaluate(options: argparse.Namespace) -> None:
    from keras_preact.console import console, table
    from keras_preact.training import RunFolder, evaluate

    folder = RunFolder.open(options.folder)
    record = folder.record()
    names = list(record["runs"]) if record.get("kind") == "comparison" else [""]
    rows = []
    for name in names:
        run = folder.open(folder.path / name)
        measured = evaluate(
            run.path, data_dir=options.data_dir, image_size=options.image_size, short_side=options.short_side
        )
        recorded = run.record()["result"]["test_error"]
        unit = run.unit()
        rows.append([run.record()["model"]["name"], f"{measured['test_error']:.2f}", f"{recorded:.2f}"])
    console.print(table(["", f"test error {unit}, now", "when trained"], rows))


def _reproduce(options: argparse.Namespace) -> None:
    from keras_preact.console import console, say, table
    from keras_preact.errors import check_choice
    from keras_preact.experiments import (
        BUDGETS,
        COLUMNS,
        EXPERIMENTS,
        Store,
        cells,
        lines,
        without_empty_columns,
    )

    if options.table == "initialization":
        _refuse_for_initialization(options)
        _initialization(options)
        return
    name = check_choice("table", options.table, [*EXPERIMENTS, "initialization", "all"])
    budget = BUDGETS[check_choice("budget", options.budget, BUDGETS)].of(options.profile)
    if name == "all" and options.rows:
        raise InputError("each table has its own rows; name one table, or leave out --rows")
    experiments = (
        [e for e in EXPERIMENTS.values() if any(map(budget.holds, e.rows))] if name == "all" else [EXPERIMENTS[name]]
    )
    if not options.results.is_dir():
        say(f"There is no folder {options.results} here, so that no kept run is known; name it by --results.")
    jobs = _jobs(options, experiments, budget)
    if options.list or options.cost:
        store = Store([options.out, options.results])
        found = [line for experiment in experiments for line in lines(experiment, budget, store)]
        _list(options, jobs, {line.row.name: line.seeds_needed for line in found} if budget.judges else {})
        return
    _run(options, [job for _, job in jobs])
    store = Store([options.out, options.results])
    for experiment in experiments:
        found = lines(experiment, budget, store, experiment.select(options.rows))
        # A terminal has 80 columns: names instead of titles; without networks, published differences and losses.
        shown = [COLUMNS.index(head) for head in ("published", "ours", "n", "our difference [95 %]", "verdict")]
        texts = [(line.row.name, cells(line, budget)) for line in found]
        rows = [[name, *(text[k] for k in shown)] for name, text in texts]
        heads = ["row", "published", "ours", "n", "difference [95 %]", "verdict"]
        console.print(table(*without_empty_columns(heads, rows), title=experiment.title))
        others = {f" {line.network} stands for {line.row.network}." for line in found if not line.is_the_papers_network}
        says = f"Test errors in %. Budget {budget.name}: {budget.what}. Profile {budget.profile}."
        say(says + "".join(sorted(others)))


def _run(options: argparse.Namespace, jobs: Sequence[Any]) -> None:
    """Run what is missing: here, one after the other, or in several processes at once."""
    from keras_preact.console import Status, say
    from keras_preact.errors import check_positive
    from keras_preact.experiments import default_workers, run_in_workers, run_missing

    missing = [job for job in jobs if job.run is None]
    workers = default_workers(len(missing)) if options.jobs is None else check_positive("--jobs", options.jobs)
    if (workers := min(workers, len(missing))) > 1:
        arguments = [word for word in options.arguments if word != "--debug"]
        with Status() as status:
            run_in_workers(
                jobs, [sys.executable, "-m", "keras_preact", *arguments, "--jobs", "1"], workers, status.show
            )
    run_missing(jobs, options.data_dir, _progress, say)  # with workers, what they have left: nothing, as a rule


def _jobs(options: argparse.Namespace, experiments: Sequence[Any], budget: Any) -> list[tuple[str, Any]]:
    """Return the runs of some tables, each once, with the name of its first table."""
    from keras_preact.experiments import plan
    from keras_preact.experiments.store import identity
    from keras_preact.training import default_precision

    found: dict[str, tuple[str, Any]] = {}
    for experiment in experiments:
        planned = plan(
            experiment,
            budget,
            rows=options.rows,
            seeds=options.seeds,
            out=options.out,
            results=[options.results],
            precision=options.precision or default_precision(),
            data_dir=options.data_dir,
        )
        for job in planned:
            found.setdefault(identity(job.config), (experiment.name, job))
    return list(found.values())


def _list(options: argparse.Namespace, jobs: Sequence[tuple[str, Any]], seeds: dict[str, int | None]) -> None:
    """Print which runs are finished, begun and missing, what those would cost, and how many seeds would decide."""
    from keras_preact.console import console, say, table
    from keras_preact.experiments import costs, duration

    rows = [[name, job.row.name, str(job.config.seed), job.state] for name, job in jobs]
    heads = ["table", "row", "seed", ""]
    if options.cost:
        seconds = costs([job for _, job in jobs], say)
        rows = [[*row, "" if cost is None else duration(cost)] for row, cost in zip(rows, seconds, strict=True)]
        heads.append("time here")
        if any(seeds.values()):
            rows = [[*row, str(seeds.get(row[1]) or "")] for row in rows]
            heads.append("seeds needed")
    console.print(table(heads, rows))
    missing = sum(job.run is None for _, job in jobs)
    say(f"{missing} of {len(jobs)} runs are not finished.")
    if options.cost and missing:
        total = sum(cost for cost in seconds if cost is not None)
        say(f"From their first step they would take {duration(total)} on this machine, timed just now.")
    if options.cost and any(seeds.values()):
        say("Seeds needed: runs a row for the published difference to show in four cases of five.")


def _refuse_for_initialization(options: argparse.Namespace) -> None:
    usual = parser().parse_args(["reproduce", "initialization"])
    for key in ("budget", "profile", "rows", "seeds", "precision", "data_dir", "list", "cost", "results"):
        if getattr(options, key) != getattr(usual, key):
            raise InputError(f"initialization trains nothing, and takes minutes; leave out --{key.replace('_', '-')}")


def _initialization(options: argparse.Namespace) -> None:
    """Gradient norms of untrained Transformers: no training, so no budget and no rows."""
    from keras_preact import paper
    from keras_preact.console import console, say, table
    from keras_preact.experiments import record_initial_gradients
    from keras_preact.training import next_free_folder

    out = next_free_folder(options.out, "initialization")
    found = record_initial_gradients(out, say)
    rows = [
        [
            f"{entry.order.replace('_', '-')}, {depth} blocks",
            f"{min(norms):.3g} to {max(norms):.3g}",
            f"{entry.exponent:.2f} ± {entry.standard_error:.2f}",
            f"{paper.INITIAL_GRADIENT_EXPONENTS[entry.order]:g}",
        ]
        for entry in found
        for depth, norms in entry.norms.items()
    ]
    console.print(table(["untrained", "gradient norm", "exponent of depth", "bound"], rows))
    say(f"Everything is in {out}.")


def _results(options: argparse.Namespace) -> None:
    from keras_preact.console import say
    from keras_preact.experiments import keep, write_results
    from keras_preact.training import RunFolder

    if not options.folder.is_dir():
        raise InputError(f"{options.folder} is no folder; name the folder of the results")
    for path in options.keep:
        say(f"kept {keep(RunFolder.open(path), options.folder)}")
    say(f"wrote {write_results(options.folder)}")


def _info(options: argparse.Namespace) -> None:
    from keras_preact.console import console, say, table
    from keras_preact.models.loading import without_values
    from keras_preact.models.summary import summarize

    options.model = _as_known(options.model)
    with contextlib.nullcontext() if _saved(options.model) else without_values():
        summary = summarize(_model_to_inspect(options))
    say(summary.title)
    rows = [[row.name, str(row.units), row.output, f"{row.parameters:,}", row.multiply_adds] for row in summary.rows]
    console.print(table(["", "units", "output", "parameters", "multiply-adds"], rows))
    if summary.uncounted:
        say(f"Multiply-adds not counted (+ ?): those of {', '.join(summary.uncounted)}.")
    if options.against is not None:
        _compare_profiles(options, summary.rows[-1])


def _compare_profiles(options: argparse.Namespace, total: Any) -> None:
    """Print what a profile's network has otherwise than the one that `info` has described."""
    from keras_preact.console import console, say, table
    from keras_preact.layers.placements import get_placement
    from keras_preact.models import NETWORKS, TRANSFORMERS
    from keras_preact.models.loading import without_values
    from keras_preact.models.profiles import conventions, differences
    from keras_preact.models.summary import summarize

    if options.model not in NETWORKS or options.model in TRANSFORMERS:
        raise InputError(f"--against compares residual networks by name, as preact_resnet50, not {options.model}")
    profiles = [options.profile or "paper", options.against]
    with without_values():
        model = _new_network(argparse.Namespace(**{**vars(options), "profile": options.against}))
    other = summarize(model).rows[-1]
    family = "cifar" if options.model == "cifar_resnet" else "imagenet"
    default = "original" if options.model.startswith("postact") else "full_preactivation"
    placement = get_placement(options.placement or default)
    rows = [
        [says, str(one), str(another)]
        for says, one, another in differences(*(conventions(name, family, placement) for name in profiles))
    ]
    rows.append(["trainable parameters", f"{total.parameters:,}", f"{other.parameters:,}"])
    rows.append(["multiply-adds", total.multiply_adds, other.multiply_adds])
    say("")
    console.print(table(["what differs", *profiles], rows))


def _inspect(options: argparse.Namespace) -> None:
    import keras

    from keras_preact.analysis import Chain, inspect_model, write_inspection
    from keras_preact.console import say
    from keras_preact.training import RunFolder, next_free_folder
    from keras_preact.training.runs import environment

    if options.images < 1:
        raise InputError(f"--images is {options.images}; give at least 1")
    if options.out is not None:
        RunFolder.check_free(options.out)
    options.model = _as_known(options.model)
    about = environment()
    keras.utils.set_random_seed(0)  # an untrained network is the same one each time
    model = _model_to_inspect(options)
    images, labels, shown = _images_for(model, options)
    config, state = _origin(options)
    config.setdefault("precision", Chain.of(model).links[0].unit.dtype_policy.name)
    found = inspect_model(model, images, labels, shown, state)
    folder = RunFolder.create(options.out or next_free_folder(RUNS, "inspection"))
    page = write_inspection(found, folder.path)
    folder.update_record(kind="inspection", status="finished", environment=about, config=config)
    say(f"{found.path}\nThe report is in {page}.")


def _origin(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what a model to inspect was made of, and how far it is trained, in words."""
    from keras_preact.training import RunConfig, RunFolder

    path = _saved(options.model)
    if path is None:
        return {"network": options.model, "options": _network_options(options.model, options)}, "at initialization"
    if not path.is_dir():
        return {"file": path.name}, f"as saved in {path.name}"
    config = RunConfig.from_dict(RunFolder.open(path).training()["config"])
    trained = f"trained for {config.recipe.steps:,} steps of {config.recipe.batch_size} on {config.dataset}"
    return {**config.to_dict(), "data_dir": None}, trained


def _images_for(model: Any, options: argparse.Namespace) -> tuple[Any, Any, str]:
    """Return images and labels to show a model: of its run, or the bundled ones, or where those do not fit noise."""
    import numpy as np

    from keras_preact.data import bundled_cifar10
    from keras_preact.models import Tokens
    from keras_preact.training import RunFolder
    from keras_preact.training.trainer import data_of

    shape, classes, count = tuple(model.input_shape[1:]), model.output_shape[-1], options.images
    path = _saved(options.model)
    if path is not None and path.is_dir():
        data = data_of(RunFolder.open(path), options.data_dir)
        if data.task == "forecast":
            raise InputError(f"{options.model} forecasts numbers; inspect tells classes apart: take a classification")
        images, labels = map(np.asarray, next(iter(data.test.test_batches(count))))
        what = "images" if len(shape) == 3 else "sequences"
        return images, labels, f"{len(labels)} test {what} of {data.name}"
    if len(shape) == 1:
        tokens = np.random.default_rng(0).integers(1, Tokens.vocabulary, size=(count, *shape)).astype("int32")
        return tokens, np.arange(count) % classes, f"{count} sequences of random tokens, and labels at random"
    if None in shape:
        raise InputError(f"the network takes images of any size {shape}; build and save it for one size")
    if shape == (32, 32, 3) and classes == 10:
        images, labels = bundled_cifar10().test.batch(np.arange(min(count, 1000)))
        if model.inputs[0].dtype == "uint8":
            return images, labels, f"{len(labels)} bundled test images"
        standard = (images.astype("float32") - images.mean()) / images.std()
        return standard, labels, f"{len(labels)} bundled test images, standardized"
    noise = np.random.default_rng(0).normal(size=(count, *shape)).astype("float32")
    return noise, np.arange(count) % classes, f"{count} images of normal noise, and labels at random"


def _export(options: argparse.Namespace) -> None:
    from keras_preact.console import say
    from keras_preact.interop import export_model, save_safetensors

    if _saved(options.model) is None:
        there = Path(options.model).exists()
        remedy = f"give ./{options.model}" if there else "train one with `keras-preact train`"
        raise InputError(f"there is no run folder or file {options.model}; {remedy}")
    if options.file.exists():
        raise InputError(f"{options.file} exists already and is not overwritten; name another")
    model = _model_to_inspect(options)
    if options.file.suffix == ".safetensors":
        save_safetensors(model, options.file, options.dtype or "float32")
        say(f"{options.file}: {model.count_params():,} weights of {model.name}, {options.dtype or 'float32'}")
        return
    if options.dtype is not None:
        raise InputError(f"--dtype is of .safetensors files; leave it out for {options.file}, which is float32")
    difference = export_model(model, options.file)
    say(f"{options.file}: {model.name}; its output differs from Keras's by {difference:.0e} of the largest, at most")


def _saved(model: str) -> Path | None:
    """Return the run folder or file that is meant, if one is: a network's name means that network, ./name a file."""
    from keras_preact.models import NETWORKS

    path = Path(model)
    return path if model not in NETWORKS and path.exists() else None


def _as_known(model: str) -> str:
    """Return the name of a network as it is known, where it was written with hyphens; a path as it is."""
    from keras_preact.models import NETWORKS

    name = model.replace("-", "_")
    return name if name in NETWORKS and not Path(model).exists() else model


def _model_to_inspect(options: argparse.Namespace) -> Any:
    from keras_preact.models import load_model
    from keras_preact.training import RunFolder

    path = _saved(options.model)
    if path is None:
        return _new_network(options)
    for key in sorted({*RESNET_OPTIONS, *TRANSFORMER_OPTIONS, "image_size", "classes"}):
        if getattr(options, key, None) is not None:
            raise InputError(f"{path} is built already; leave out --{key.replace('_', '-')}")
    return load_model(RunFolder.open(path).trained_model() if path.is_dir() else path)


def _new_network(options: argparse.Namespace) -> Any:
    """Build the network that the options name."""
    from keras_preact.models import TRANSFORMERS, Classification, Patches, get_network

    size, classes = getattr(options, "image_size", None), getattr(options, "classes", None)
    network = get_network(options.model)
    arguments = {"rolled": None, **_network_options(options.model, options)}  # as a run has it
    if options.model in TRANSFORMERS:
        patch = arguments.pop("patch", None)
        if size is not None and patch is None:
            raise InputError(f"{options.model} takes words unless --patch makes it take images; leave out --image-size")
        shape = Patches.image_shape if size is None else (size, size, 3)
        inputs = None if patch is None else Patches(shape, patch)
        return network(inputs, Classification(Classification.classes if classes is None else classes), **arguments)
    if classes is not None:
        arguments["classes"] = classes
    if size is not None:
        arguments["input_shape"] = (size, size, 3)
    return network(**arguments)


def _progress(name: str, config: Any) -> list[Any]:
    from keras_preact.console import ProgressBar
    from keras_preact.training.distribute import is_first

    if not is_first():
        return []
    return [ProgressBar(name, config.recipe.steps, config.recipe.batch_size)]


def _progress_of_run(path: Path) -> list[Any]:
    from keras_preact.training import RunConfig, RunFolder

    return _progress(path.name, RunConfig.from_dict(RunFolder.open(path).training()["config"]))


# ---- errors -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status.

    >>> main(["info", "cifar_resnet", "--depth", "21"])
    2
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser().parse_args(arguments)
        if options.command == "reproduce":
            options.arguments = arguments  # for its workers
        if is_the_command():
            import_tensorflow()
        try:
            options.run(options)
        finally:
            _close_bar()
    except SystemExit as error:  # --help
        return int(error.code or 0)
    except Exception as error:
        if "--debug" in arguments:
            raise
        return _say(error)
    except KeyboardInterrupt as error:
        return _report(str(error) or "stopped", 128 + getattr(error, "signal_number", signal.SIGINT))
    return 0


def _close_bar() -> None:
    """Give the terminal its cursor back, where a progress bar has it; what shows one has been imported then."""
    if "keras_preact.console" in sys.modules:
        with contextlib.suppress(OSError):  # the terminal is closed
            sys.modules["keras_preact.console"].close_bar()


def _say(error: Exception) -> int:
    """Print one sentence about the error; return the exit status."""
    stopped = getattr(error, "signal_number", None)
    if isinstance(error, InputError):
        message, status = f"error: {error}", 2
    elif type(error).__name__ == "Diverged":  # known by its name: to import it would import Keras
        message, status = f"error: {error}", 1
    elif stopped is not None:
        message, status = str(error), 128 + stopped
    elif isinstance(error, WriteError):
        message, status = f"error: {error}", 1
    elif isinstance(error, OSError):
        remedy = f"; {REMEDIES[error.errno]}" if error.errno in REMEDIES else ""
        message, status = f"error: {error.strerror or error}: {error.filename or 'a file'}{remedy}", 1
    else:
        first_line = (str(error).splitlines() or [""])[0]
        message, status = f"internal error, please report it ({type(error).__name__}: {first_line}); see --debug", 1
    return _report(message, status)


def _report(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # the terminal is closed
        print(f"keras-preact: {printable(message)}", file=sys.stderr)
    return status
