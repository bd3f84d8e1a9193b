"""The results store: runs that have ended, in folders, looked up by configuration."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from keras_preact import paper
from keras_preact.data.folder import FOLDER_IMAGE_SIZE
from keras_preact.errors import InputError, as_command
from keras_preact.experiments.grid import BUDGETS
from keras_preact.experiments.tables import EXPERIMENTS
from keras_preact.files import writing
from keras_preact.models import get_entry, load_model
from keras_preact.models.saving.safetensors import as_arrays, tensors_checksum
from keras_preact.training.config import RunConfig
from keras_preact.training.recipe import RECIPES
from keras_preact.training.runs import ENDED, RunFolder

OWN_IMAGE_SIZES = dict.fromkeys(("bundled", "cifar10", "cifar100"), 32)
"""Height and width in pixels of the original images of a data set."""
STORED_FILES = ("metrics.csv", "curves.png", "inspection.json", "propagation.json")
"""Files of a run that are stored together with run.json; small enough for git."""


@dataclass(frozen=True)
class Run:
    """A run that has ended: it was completed, or it diverged.

    Attributes:
        folder: the run folder.
        record: contents of run.json.
    """

    folder: RunFolder
    record: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        """Configuration of the run."""
        try:
            return RunConfig.from_dict(self.record["config"])
        except InputError as error:  # for example, a newer version wrote it
            raise InputError(f"{self.folder.record_path}: {error}, or move the run to another folder") from None

    @property
    def error(self) -> float:
        """Test error of the last epoch (%); infinite if the training diverged."""
        return float(self.record["result"]["test_error"]) if "diverged" not in self.record else math.inf

    @property
    def chance(self) -> float:
        """Error (%) of a network that has learned nothing."""
        data = self.record.get("data", {})
        return max(data["baselines"].values()) if data.get("baselines") else 100 - 100 / data.get("classes", 10)

    @property
    def counted_error(self) -> float:
        """Test error of the last epoch (%), as counted in means; `chance` if the training diverged."""
        return self.error if math.isfinite(self.error) else self.chance

    @property
    def loss(self) -> float:
        """Test loss of the last epoch; infinite if the training diverged."""
        return float(self.record["result"]["test_loss"]) if "diverged" not in self.record else math.inf

    @property
    def fails_above(self) -> float:
        """Test error above which the training counts as failed; infinite if there is no such criterion.

        On sequences it is one point below the error of the worst simple rule. On CIFAR-10 it is the paper's 20 %, only
        after the paper's whole schedule: with fewer steps a network may just need more time.
        """
        if rules := self.record.get("data", {}).get("baselines"):
            return max(rules.values()) - 1
        recipe, papers = self.config.recipe, paper.CIFAR_RECIPE
        # Recipes that count whole epochs have slightly fewer steps.
        is_whole = recipe.steps * recipe.batch_size > 0.99 * papers["steps"] * papers["batch_size"]
        return paper.FAILS_ABOVE if is_whole and self.config.dataset == "cifar10" else math.inf


def run_key(config: RunConfig, with_seed: bool = True) -> str:
    """Return a key that is equal for runs that compute the same, however their configurations are spelled.

    Options are compared as the network's builder resolves them: with defaults, the choices of a profile, and the
    arguments of a shortcut. The key leaves out the name of the recipe, how its source reports errors, the precision,
    `deterministic`, how a stack runs, and the folder of the data, except for `dataset="folder"`.

    >>> run_key(RunConfig(data_dir="here")) == run_key(RunConfig(precision="mixed_bfloat16"))
    True
    >>> run_key(RunConfig(options={"shortcut": "dropout"})) == run_key(RunConfig(options={"depth": 110}))
    False
    >>> run_key(RunConfig(options={"depth": 110})) == run_key(RunConfig())
    True
    >>> run_key(RunConfig(seed=1)) == run_key(RunConfig(seed=2))
    False
    """
    resolved = _resolved_config(config, with_seed)
    del resolved["recipe"]["name"]
    return json.dumps(_plain(resolved), sort_keys=True)


def _resolved_config(config: RunConfig, with_seed: bool) -> dict[str, Any]:
    """Return the configuration in one canonical form, without options that do not change what is computed."""
    resolved = config.to_dict()
    for key in ("precision", "deterministic", *(() if with_seed else ("seed",))):
        del resolved[key]
    resolved["network"], resolved["options"] = _resolved(config.network, config.options)
    del resolved["recipe"]["reported"]
    if not config.recipe.augment:
        resolved["recipe"]["padding"] = 0  # there is no crop
    if config.devices == 1:
        resolved["sync_batch_norm"] = False  # there is nothing to synchronize
    if config.dataset == "folder":
        resolved["image_size"] = config.image_size or FOLDER_IMAGE_SIZE
    else:
        del resolved["data_dir"]
        resolved["skip_corrupt"] = False
    if config.dataset in OWN_IMAGE_SIZES and config.image_size == OWN_IMAGE_SIZES[config.dataset]:
        resolved["image_size"] = None
    return resolved


def _resolved(network: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return network and options with all defaults filled in; unchanged if the network rejects them."""
    try:
        entry = get_entry(network)
        return entry.base.__name__, entry.resolved(options)
    except (InputError, TypeError):
        return network, options


def _plain(value: Any) -> Any:
    """Return data for JSON such that equal values have equal text: 1 becomes 1.0."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return value if value is None or isinstance(value, (bool, str)) else repr(value)


def folder_name(config: RunConfig) -> str:
    """Return the name of a run's folder: recipe, data set, network, options and seed.

    If another configuration would have the same name, a digest of the configuration is added.

    >>> folder_name(RunConfig(options={"depth": 32, "placement": "original", "shortcut": "dropout(rate=0.5)"}, seed=2))
    'demo-bundled-cifar_resnet-32-original-dropout_rate_0.5-seed2'
    >>> folder_name(RunConfig(options={"shortcut": "exclusive_gating(gate_bias=-6)"}))
    'demo-bundled-cifar_resnet-exclusive_gating_gate_bias_-6-seed0'
    >>> folder_name(RunConfig(options={"depth": 218, "bottleneck": False}, image_size=16))
    'demo-bundled_16px-cifar_resnet-218-no_bottleneck-seed0'
    """
    data = config.dataset if config.image_size is None else f"{config.dataset}_{config.image_size}px"
    words = [config.recipe.name, data, config.network, *itertools.starmap(_word, config.options.items())]
    if not _is_unambiguous(config):
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
    """Return a text as part of a file name; signs of numbers are preserved.

    >>> _readable("exclusive_gating(gate_bias=-6)")
    'exclusive_gating_gate_bias_-6'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_")


def _is_unambiguous(config: RunConfig) -> bool:
    """Return whether no other configuration has the same words in its name."""
    default = RunConfig(recipe=config.recipe)
    unnamed = ("only", "skip_corrupt", "devices", "sync_batch_norm")
    if config.dataset == "folder" or any(getattr(config, key) != getattr(default, key) for key in unnamed):
        return False
    known = RECIPES.get(config.recipe.name, config.recipe)
    bases = (get_entry(name) for name in ("cifar_resnet", "imagenet_resnet", "transformer"))
    parameters = set().union(*(entry.options for entry in bases))
    return known == config.recipe and all(
        key in parameters and _is_plain(key, value) for key, value in config.options.items()
    )


def _is_plain(key: str, value: Any) -> bool:
    if key == "shortcut" and isinstance(value, str):
        return re.fullmatch(r"[a-z_]+(\(([a-z_]+=[\w.+-]+(, [a-z_]+=[\w.+-]+)*)?\))?", value) is not None
    if isinstance(value, str):
        return re.fullmatch(r"[a-z0-9_]+", value) is not None and not _is_number(value)
    return value is None or isinstance(value, (bool, int, float))


def _is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class Store:
    """Runs that have ended, finished or diverged, in folders and their subfolders.

    Args:
        folders: folders to search; a missing folder has no runs.

    Raises:
        InputError: a run.json cannot be read, or another version wrote a configuration that this one cannot read.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.runs = sorted(_ended(folders), key=lambda run: run.folder.path.name)
        self._by_seed: dict[str, dict[int, Run]] = {}
        for run in self.runs:
            config = run.config
            self._by_seed.setdefault(run_key(config, with_seed=False), {}).setdefault(config.seed, run)

    def find(self, config: RunConfig) -> Run | None:
        """Return the ended run of a configuration; `None` if there is none."""
        return self._by_seed.get(run_key(config, with_seed=False), {}).get(config.seed)

    def with_any_seed(self, config: RunConfig) -> list[Run]:
        """Return the ended runs of a configuration, one per seed, in order of the seed."""
        found = self._by_seed.get(run_key(config, with_seed=False), {})
        return [found[seed] for seed in sorted(found)]


def _ended(folders: Sequence[Path]) -> Iterator[Run]:
    for folder in folders:
        for path in sorted(Path(folder).rglob("run.json")):
            run = RunFolder(path.parent)
            record = run.record()
            if record.get("kind") == "training" and record.get("status") in ENDED:
                yield Run(run, record)


def table_of(config: RunConfig) -> str:
    """Return the name of the first table of `EXPERIMENTS` that contains a run; it names the folder in the results.

    A run of several tables is stored once: those of the depth study at 20 layers are in the folder of the table
    `resnet20`. A run that is in no table has `"others"`.

    >>> table_of(RunConfig(options={"depth": 218, "bottleneck": False}, image_size=16))
    'screening'
    >>> table_of(BUDGETS["deep"].config(EXPERIMENTS["depth"].rows[0], 0, "float32"))
    'resnet20'
    """
    key = run_key(config, with_seed=False)
    return next((name for name, rows in _rows_of_tables().items() if key in rows), "others")


@functools.cache
def _rows_of_tables() -> dict[str, set[str]]:
    return {
        experiment.name: {
            run_key(budget.config(row, 0, "float32"), with_seed=False)
            for budget in BUDGETS.values()
            for row in experiment.rows
            if budget.holds(row)
        }
        for experiment in EXPERIMENTS.values()
    }


def keep(run: RunFolder, results: Path) -> Path:
    """Copy the small files of a finished run into a folder of results; return the new folder.

    A run that is in the results already stays as it is there, so a whole folder of runs can be passed again.

    The copy's `run.json` holds the SHA-256 of the weights as float16, which identify published ones.
    Training runs go to `runs/TABLE/`, measurements without training to `profiles/`.

    Raises:
        InputError: the run is not finished, is a comparison of several runs, or the results have another one of its
            name.
    """
    record = run.record()
    is_training = record.get("kind") == "training"
    if record.get("kind") == "comparison":
        runs = " ".join(str(run.path / name) for name in record["runs"])
        raise InputError(
            f"{run.path} holds several runs; give each folder its own name, then copy them one by one: {runs}"
        )
    if record.get("status") not in ENDED:
        remedy = f"finish it first with {as_command('train --resume', run.path)}" if is_training else "measure it again"
        raise InputError(f"{run.path} is not finished; {remedy}")
    if results.resolve() in run.path.resolve().parents:
        return run.path
    parent = Path("runs", table_of(Run(run, record).config)) if is_training else Path("profiles")
    copy = RunFolder(results / parent / Path(os.path.abspath(run.path)).name)  # "." and ".." have none
    if copy.record_path.exists():
        if _facts(copy.record()) == _facts(record):
            return copy.path
        raise InputError(f"{copy.path} exists already and is not overwritten; rename one of the two")
    copy.path.mkdir(parents=True, exist_ok=True)
    for name in STORED_FILES:
        if (run.path / name).exists():
            with writing(copy.path / name):
                shutil.copyfile(run.path / name, copy.path / name)
    if (digest := _checksum_of_weights(run)) is not None:
        record["weights"] = {"dtype": "float16", "sha256": digest}
    if "data_dir" in record.get("config", {}):
        record["config"]["data_dir"] = None  # a machine-specific path
    copy.update_record(**record)  # last, so that an interrupted copy can be repeated
    return copy.path


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of run.json that a run and its stored copy have in common."""
    config = {**record.get("config", {}), "data_dir": None}
    return {key: value for key, value in record.items() if key != "weights"} | {"config": config}


def _checksum_of_weights(run: RunFolder) -> str | None:
    """Return the checksum of a run's final weights as float16; `None` without a model, or if float16 is too small."""
    if not run.model_path.exists():
        return None
    try:
        return tensors_checksum(as_arrays(load_model(run.model_path, compile=False), "float16"))
    except InputError:
        return None
