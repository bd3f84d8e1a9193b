"""The results store: folders of finished runs, found again by what was run."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any

import keras

from keras_preact import paper
from keras_preact.data.folder import FOLDER_IMAGE_SIZE
from keras_preact.errors import InputError, as_command
from keras_preact.experiments.grid import BUDGETS
from keras_preact.experiments.tables import EXPERIMENTS
from keras_preact.layers.convolutions import INITIALIZERS, check_kernel_initializer
from keras_preact.layers.placements import NORM_PLACEMENTS, get_placement, placement_config
from keras_preact.layers.registry import shortcut_config
from keras_preact.models import NETWORKS, TRANSFORMERS, Patches, cifar_units
from keras_preact.models.imagenet import UNITS as IMAGENET_DEPTHS
from keras_preact.models.profiles import conventions
from keras_preact.training.config import RunConfig
from keras_preact.training.recipe import RECIPES, AdamRecipe
from keras_preact.training.runs import RunFolder

ENDED = ("finished", "diverged")
"""Status of the runs that are a result: a training whose loss is no number any more is one too."""
OWN_IMAGE_SIZES = dict.fromkeys(("bundled", "cifar10", "cifar100"), 32)
"""Height and width in pixels that images of a data set have anyway."""
KEPT = ("metrics.csv", "curves.png", "inspection.json", "propagation.json")
"""What of a run is kept beside its run.json: small enough for git."""


@dataclass(frozen=True)
class Run:
    """A run that has ended, at its last step or where its loss was no number any more.

    Attributes:
        folder: where it is.
        record: contents of its run.json.
    """

    folder: RunFolder
    record: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        """What was run."""
        return RunConfig.from_dict(self.record["config"])

    @property
    def error(self) -> float:
        """Test error of the last epoch (%); infinite where the training has diverged."""
        return float(self.record["result"]["test_error"]) if "diverged" not in self.record else math.inf

    @property
    def chance(self) -> float:
        """Error (%) of a network that has learned nothing, at which a diverged run is counted in means."""
        data = self.record.get("data", {})
        return max(data["baselines"].values()) if data.get("baselines") else 100 - 100 / data.get("classes", 10)

    @property
    def loss(self) -> float:
        """Test loss of the last epoch; infinite where the training has diverged."""
        return float(self.record["result"]["test_loss"]) if "diverged" not in self.record else math.inf

    @property
    def fails_above(self) -> float:
        """Test error above which training has failed; infinite where no error says so.

        On sequences a point below that of the poorest simple rule; on CIFAR-10 the paper's 20 %, which it says of its
        whole schedule: after less of it, a network may just not be there yet.
        """
        if rules := self.record.get("data", {}).get("baselines"):
            return max(rules.values()) - 1
        recipe, papers = self.config.recipe, paper.CIFAR_RECIPE
        # Whole epochs, as others count, come to a little less.
        is_whole = recipe.steps * recipe.batch_size > 0.99 * papers["steps"] * papers["batch_size"]
        return paper.FAILS_ABOVE if is_whole and self.config.dataset == "cifar10" else math.inf


def identity(config: RunConfig, with_seed: bool = True) -> str:
    """Return what makes two runs the same: what is computed, however the configuration is spelled.

    Options are those that the network's builder resolves: defaults filled in, the choices of a profile, a shortcut
    with its arguments. The name of the recipe, where the data are (unless they are a folder of images, which nothing
    else tells apart), the precision, whether to be deterministic, and how a stack runs are no part of it; nor is how
    others took the number that they published.

    >>> identity(RunConfig(data_dir="here")) == identity(RunConfig(precision="mixed_bfloat16"))
    True
    >>> identity(RunConfig(options={"shortcut": "dropout"})) == identity(RunConfig(options={"depth": 110}))
    False
    >>> identity(RunConfig(options={"depth": 110})) == identity(RunConfig())
    True
    >>> identity(RunConfig(seed=1)) == identity(RunConfig(seed=2))
    False
    """
    made = _resolved_config(config, with_seed)
    del made["recipe"]["name"]
    return json.dumps(_plain(made), sort_keys=True)


def _resolved_config(config: RunConfig, with_seed: bool) -> dict[str, Any]:
    """Return what a run computes, with the name of its recipe."""
    made = config.to_dict()
    for key in ("precision", "deterministic", *(() if with_seed else ("seed",))):
        del made[key]
    made["network"], made["options"] = _resolved(config.network, config.options)
    del made["recipe"]["reported"]
    if not config.recipe.augment:
        made["recipe"]["padding"] = 0  # there is no crop
    if isinstance(config.recipe, AdamRecipe):
        made["recipe"]["nesterov"] = False
    if config.devices == 1:
        made["sync_batch_norm"] = False  # there is nothing to synchronize
    if config.dataset == "folder":
        made["image_size"] = config.image_size or FOLDER_IMAGE_SIZE
    else:
        del made["data_dir"]
        made["skip_corrupt"] = False
    if config.dataset in OWN_IMAGE_SIZES and config.image_size == OWN_IMAGE_SIZES[config.dataset]:
        made["image_size"] = None
    return made


_CHOSEN_BY_THE_RUN = {"input_tensor", "input_shape", "classes", "inputs", "head"}
_COMPUTES_THE_SAME = {"rolled", "remat", "dtype", "name"}
_NAMED = {
    **{f"preact_resnet{depth}": ("imagenet_resnet", depth, "full_preactivation") for depth in IMAGENET_DEPTHS},
    **{f"postact_resnet{depth}": ("imagenet_resnet", depth, "original") for depth in IMAGENET_DEPTHS},
}
"""Builders that are another one with some arguments given."""
_NORMS = {"prenorm_transformer": "pre_norm", "postnorm_transformer": "post_norm"}


def _resolved(network: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return network and options with all defaults filled in; as they are, where the network does not take them."""
    name, given = network.replace("-", "_"), dict(options)
    if name in _NAMED:
        name, given["depth"], given["placement"] = _NAMED[name]
    elif name in _NORMS:
        name, given["placement"] = "transformer", _NORMS[name]
    if name not in NETWORKS:
        return network, options
    defaults = {key: parameter.default for key, parameter in signature(NETWORKS[name]).parameters.items()}
    left_out = _CHOSEN_BY_THE_RUN | _COMPUTES_THE_SAME
    full = {key: value for key, value in {**defaults, **given}.items() if key not in left_out}
    try:
        resolve = _resolve_transformer if name in TRANSFORMERS else _resolve_resnet
        return name, resolve(name, full)
    except (InputError, TypeError):
        return network, options


def _resolve_transformer(name: str, options: dict[str, Any]) -> dict[str, Any]:
    options = {"patch": Patches.size, **options}
    options["placement"] = placement_config(get_placement(options["placement"], NORM_PLACEMENTS), NORM_PLACEMENTS)
    options["shortcut"] = shortcut_config(options["shortcut"])
    options["feed_forward_dim"] = options["feed_forward_dim"] or 4 * options["dim"]
    return options


def _resolve_resnet(name: str, options: dict[str, Any]) -> dict[str, Any]:
    family = name.removesuffix("_resnet")
    placement = get_placement(options["placement"])
    chosen = asdict(conventions(options.pop("profile"), family, placement))
    del chosen["inputs"]  # says how images are to be prepared; a recipe does that
    options = {**options, **{key: value for key, value in chosen.items() if options.get(key) is None}}
    options["placement"], options["shortcut"] = placement_config(placement), shortcut_config(options["shortcut"])
    options["kernel_initializer"] = _initializer(options["kernel_initializer"])
    options["data_format"] = options["data_format"] or "channels_last"  # as the data
    if family == "cifar":
        options["block"], _ = cifar_units(options["depth"], options.pop("bottleneck"), options["block"])
    elif options["output_stride"] is None:
        options["output_stride"] = 32 if options["stem"] == "7x7" else 8
    return options


def _initializer(initializer: Any) -> Any:
    """Return a kernel initializer as its configuration, which has one spelling; a name of ours as it is."""
    checked = check_kernel_initializer(initializer)
    if isinstance(checked, str) and checked in INITIALIZERS:
        return checked
    return keras.initializers.serialize(keras.initializers.get(checked))


def _plain(value: Any) -> Any:
    """Return data in the one form that JSON has for equal values: 1 and 1.0 are the same number."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return value if value is None or isinstance(value, (bool, str)) else repr(value)


def folder_name(config: RunConfig) -> str:
    """Return the name of a run's folder: recipe, network and seed, with every option that is not as usual.

    Runs that differ in more than the words of their names can say have a digest of their identity in it. A recipe
    goes by its name, and data by that of the data set.

    >>> folder_name(RunConfig(options={"depth": 32, "placement": "original", "shortcut": "dropout(rate=0.5)"}, seed=2))
    'demo-bundled-cifar_resnet-32-original-dropout_rate_0.5-seed2'
    >>> folder_name(RunConfig(options={"shortcut": "exclusive_gating(gate_bias=-6)"}))
    'demo-bundled-cifar_resnet-exclusive_gating_gate_bias_-6-seed0'
    >>> folder_name(RunConfig(options={"depth": 218, "bottleneck": False}, image_size=16))
    'demo-bundled_16px-cifar_resnet-218-no_bottleneck-seed0'
    """
    data = config.dataset if config.image_size is None else f"{config.dataset}_{config.image_size}px"
    words = [config.recipe.name, data, config.network, *itertools.starmap(_word, config.options.items())]
    if not _words_say_all(config):
        resolved = json.dumps(_plain(_resolved_config(config, with_seed=False)), sort_keys=True)
        words.append(hashlib.sha256(resolved.encode()).hexdigest()[:8])
    return "-".join(word for word in [*words, f"seed{config.seed}"] if word)


def _word(key: str, value: Any) -> str:
    if key in ("depth", "placement", "shortcut"):
        return "" if value == "identity" else _readable(str(value))
    if isinstance(value, bool):
        return key if value else f"no_{key}"
    return _readable(f"{key}_{value}")


def _readable(text: str) -> str:
    """Return a text as a part of a file's name; signs of numbers stay.

    >>> _readable("exclusive_gating(gate_bias=-6)")
    'exclusive_gating_gate_bias_-6'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_")


def _words_say_all(config: RunConfig) -> bool:
    """Whether no other configuration has the same words."""
    usual = RunConfig(recipe=config.recipe)
    others = ("only", "skip_corrupt", "devices", "sync_batch_norm")
    if config.dataset == "folder" or any(getattr(config, key) != getattr(usual, key) for key in others):
        return False
    known = RECIPES.get(config.recipe.name, config.recipe)
    builders = (NETWORKS[name] for name in ("cifar_resnet", "imagenet_resnet", "transformer"))
    parameters = {"patch", *itertools.chain.from_iterable(signature(builder).parameters for builder in builders)}
    return known == config.recipe and all(
        key in parameters and _is_plain(key, value) for key, value in config.options.items()
    )


def _is_plain(key: str, value: Any) -> bool:
    if key == "shortcut" and isinstance(value, str):
        return re.fullmatch(r"[a-z_]+(\(([a-z_]+=[\w.+-]+(, [a-z_]+=[\w.+-]+)*)?\))?", value) is not None
    if isinstance(value, str):
        return re.fullmatch(r"[a-z0-9_]+", value) is not None and not _is_literal(value)
    return value is None or isinstance(value, (bool, int, float))


def _is_literal(text: str) -> bool:
    """Whether a text reads like a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class Store:
    """Finished runs below some folders.

    Args:
        folders: each holds run folders; one that does not exist holds none.

    Raises:
        InputError: a run.json in them cannot be read.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.runs = sorted(_finished(folders), key=lambda run: run.folder.path.name)
        self._by_identity: dict[str, Run] = {}
        self._by_network: dict[str, dict[int, Run]] = {}
        for run in self.runs:
            config = run.config
            self._by_identity.setdefault(identity(config), run)
            self._by_network.setdefault(identity(config, with_seed=False), {})[config.seed] = run

    def find(self, config: RunConfig) -> Run | None:
        """Return the finished run of a configuration, if there is one."""
        return self._by_identity.get(identity(config))

    def with_any_seed(self, config: RunConfig) -> list[Run]:
        """Return the finished runs of a configuration, one for each seed that was run."""
        found = self._by_network.get(identity(config, with_seed=False), {})
        return [found[seed] for seed in sorted(found)]


def _finished(folders: Sequence[Path]) -> Iterator[Run]:
    for folder in folders:
        for path in sorted(Path(folder).rglob("run.json")):
            run = RunFolder(path.parent)
            record = run.record()
            if record.get("kind") == "training" and record.get("status") in ENDED:
                yield Run(run, record)


def table_of(config: RunConfig) -> str:
    """Return the name of the first table that a run is part of, or `"others"`: its folder among the results.

    >>> table_of(RunConfig(options={"depth": 218, "bottleneck": False}, image_size=16))
    'screening'
    """
    sought = identity(config, with_seed=False)
    return next((name for name, rows in _rows_of_tables().items() if sought in rows), "others")


@functools.cache
def _rows_of_tables() -> dict[str, set[str]]:
    return {
        experiment.name: {
            identity(budget.config(row, 0, "float32"), with_seed=False)
            for budget in BUDGETS.values()
            for row in experiment.rows
            if budget.holds(row)
        }
        for experiment in EXPERIMENTS.values()
    }


def keep(run: RunFolder, results: Path) -> Path:
    """Copy what is kept of a finished run into the results; return its folder there.

    Runs go to `runs/TABLE/`, what was measured without training to `profiles/`.

    Raises:
        InputError: the run is not finished, is a comparison of several, or the results have a folder of its name.
    """
    record = run.record()
    if record.get("kind") == "comparison":
        runs = " ".join(str(run.path / name) for name in record["runs"])
        raise InputError(f"{run.path} holds several runs; rename each as the page is to call it, and keep them: {runs}")
    if record.get("status") not in ENDED:
        raise InputError(f"{run.path} is not finished; finish it first with {as_command('train --resume', run.path)}")
    is_training = record.get("kind") == "training"
    place = Path("runs", table_of(RunConfig.from_dict(record["config"]))) if is_training else Path("profiles")
    kept = RunFolder(results / place / run.path.name)
    if kept.record_path.exists():
        raise InputError(f"{kept.path} exists already and is not overwritten; rename one of the two")
    kept.path.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (run.path / name).exists():
            shutil.copyfile(run.path / name, kept.path / name)
    # Where the data lay is nobody's business, and differs from machine to machine.
    if "data_dir" in record.get("config", {}):
        record["config"]["data_dir"] = None
    kept.update_record(**record)  # last: without it there is no run, and the same command begins again
    return kept.path
