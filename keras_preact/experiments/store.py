"""The results store: folders of finished runs, found again by what was run."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preact import paper
from keras_preact.errors import InputError
from keras_preact.training.runs import RunFolder
from keras_preact.training.trainer import RunConfig

ENDED = ("finished", "diverged")
"""Status of the runs that are a result: a training whose loss is no number any more is one too."""
KEPT = ("metrics.csv", "curves.png", "inspection.json")
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
    """Return what makes two runs the same: network, data, recipe and seed; not where the data are, nor the precision.

    The profile is part of the network; how others took the number that they published is no part of the recipe.

    >>> identity(RunConfig(data_dir="here")) == identity(RunConfig(precision="mixed_bfloat16"))
    True
    >>> identity(RunConfig(seed=1)) == identity(RunConfig(seed=2))
    False
    """
    left_out = {"data_dir", "precision", *(() if with_seed else ("seed",))}
    made = {key: value for key, value in config.to_dict().items() if key not in left_out}
    made["recipe"].pop("reported")
    return json.dumps(made, sort_keys=True)


def folder_name(config: RunConfig) -> str:
    """Return the name of a run's folder: recipe, network and seed, with every option that is not as usual.

    >>> folder_name(RunConfig(options={"depth": 32, "placement": "original", "shortcut": "dropout(rate=0.5)"}, seed=2))
    'demo-bundled-cifar_resnet-32-original-dropout_rate_0.5-seed2'
    """
    options = [_word(key, value) for key, value in config.options.items()]
    words = [config.recipe.name, config.dataset, config.network, *options, f"seed{config.seed}"]
    return "-".join(word for word in words if word)


def _word(key: str, value: Any) -> str:
    if key in ("depth", "placement", "shortcut"):
        return "" if value == "identity" else re.sub(r"[^A-Za-z0-9.]+", "_", str(value)).strip("_")
    if isinstance(value, bool):
        return key if value else f"no_{key}"
    return re.sub(r"[^A-Za-z0-9.]+", "_", f"{key}_{value}").strip("_")


class Store:
    """Finished runs below some folders.

    Args:
        folders: each holds run folders; one that does not exist holds none.

    Raises:
        InputError: a run.json in them cannot be read.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.runs = sorted(_finished(folders), key=lambda run: run.folder.path.name)

    def find(self, config: RunConfig) -> Run | None:
        """Return the finished run of a configuration, if there is one."""
        return next((run for run in self.runs if identity(run.config) == identity(config)), None)

    def with_any_seed(self, config: RunConfig) -> list[Run]:
        """Return the finished runs of a configuration, one for each seed that was run."""
        wanted = identity(config, with_seed=False)
        found = {run.config.seed: run for run in self.runs if identity(run.config, with_seed=False) == wanted}
        return [found[seed] for seed in sorted(found)]


def _finished(folders: Sequence[Path]) -> Iterator[Run]:
    for folder in folders:
        for path in sorted(Path(folder).glob("*/run.json")):
            run = RunFolder(path.parent)
            record = run.record()
            if record.get("kind") == "training" and record.get("status") in ENDED:
                yield Run(run, record)


def keep(run: RunFolder, results: Path) -> Path:
    """Copy what is kept of a finished run into the results; return its folder there.

    Raises:
        InputError: the run is not finished, is a comparison of several, or the results have a folder of its name.
    """
    record = run.record()
    if record.get("kind") == "comparison":
        runs = " ".join(str(run.path / name) for name in record["runs"])
        raise InputError(f"{run.path} holds several runs; rename each as the page is to call it, and keep them: {runs}")
    if record.get("status") not in ENDED:
        raise InputError(f"{run.path} is not finished; finish it first with `train --resume {run.path}`")
    kept = RunFolder(results / run.path.name)
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
