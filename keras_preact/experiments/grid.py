"""The paper's tables, and ours beside them, as data: which networks are trained, on what, and what was published."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from keras_preact import paper
from keras_preact.errors import InputError, check_choice
from keras_preact.training.recipe import Recipe, get_recipe
from keras_preact.training.trainer import RunConfig


@dataclass(frozen=True)
class Row:
    """One network of a table.

    Attributes:
        name: what `--rows` takes.
        title: what the table says.
        network: which of a budget's networks: `"110"`, `"164"`, `"1001"`, …
        options: further arguments of the network: placement, shortcut, …
        dataset: the data set of the paper's row.
        published: the paper's error, if it has one.
    """

    name: str
    title: str
    network: str
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "cifar10"
    published: paper.Published | None = None


@dataclass(frozen=True)
class Experiment:
    """A table.

    Attributes:
        name: what the command line takes.
        title: what it is about.
        rows: its networks.
    """

    name: str
    title: str
    rows: tuple[Row, ...]

    def select(self, names: list[str] | None) -> tuple[Row, ...]:
        """Return the rows of these names, or all.

        Raises:
            InputError: there is no such row.
        """
        known = {row.name: row for row in self.rows}
        return self.rows if not names else tuple(known[check_choice("row", name, known)] for name in names)


@dataclass(frozen=True)
class Budget:
    """What a reproduction may cost. Runs of different budgets never stand in one column.

    Attributes:
        name: what `--budget` takes.
        what: in a sentence.
        networks: for each network of the paper the arguments of ours.
        datasets: for each data set of the paper ours; rows on others are left out.
        recipes: how to train, by our data set.
        judges: whether the paper's criterion, that an error above 20 % fails, means anything here.
    """

    name: str
    what: str
    networks: dict[str, dict[str, Any]]
    datasets: dict[str, str]
    recipes: dict[str, Recipe]
    judges: bool = True

    def holds(self, row: Row) -> bool:
        """Return whether the row is part of this budget."""
        return row.network in self.networks and row.dataset in self.datasets

    def config(self, row: Row, seed: int, precision: str, data_dir: str | None = None) -> RunConfig:
        """Return the run of a row.

        Raises:
            InputError: the row is no part of this budget.
        """
        if not self.holds(row):
            raise InputError(f"the row {row.name} is not part of the budget {self.name}; take --budget paper")
        dataset = self.datasets[row.dataset]
        return RunConfig(
            network="imagenet_resnet" if row.dataset == "imagenet" else "cifar_resnet",
            options={**self.networks[row.network], **row.options},
            dataset=dataset,
            data_dir=None if dataset == "bundled" else data_dir,
            image_size=224 if dataset == "imagenet2012" else None,
            recipe=self.recipes[dataset],
            precision=precision,
            seed=seed,
        )

    def network(self, row: Row) -> str:
        """Return the name of the network that stands for the row's."""
        options = self.networks[row.network]
        block = options.get("block") or ("bottleneck" if options.get("bottleneck") else "")
        return f"ResNet-{options['depth']}" + (f", {block}" if block else "")


def _shorter(recipe: str, name: str, steps: int) -> Recipe:
    return dataclasses.replace(get_recipe(recipe).with_steps(steps), name=name)


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke",
            "the bundled 4,000 images once, networks of 8 to 29 layers: minutes, and only to see that all of it runs",
            {
                "110": {"depth": 8},
                "110-single": {"depth": 8, "block": "single"},
                "164": {"depth": 11, "bottleneck": True},
                "1001": {"depth": 29, "bottleneck": True},
                "152": {"depth": 18, "stem": "3x3"},
                "200": {"depth": 34, "stem": "3x3"},
            },
            {"cifar10": "bundled", "imagenet": "bundled"},
            {"bundled": _shorter("demo", "smoke", 62)},
            judges=False,
        ),
        Budget(
            "cpu",
            "the whole of CIFAR, ten epochs, networks of 20 to 56 layers: a quarter of an hour to an hour a run",
            {
                "110": {"depth": 32},
                "110-single": {"depth": 32, "block": "single"},
                "164": {"depth": 29, "bottleneck": True},
                "1001": {"depth": 56, "bottleneck": True},
            },
            {"cifar10": "cifar10", "cifar100": "cifar100"},
            {name: _shorter("short", "cpu", 3_900) for name in ("cifar10", "cifar100")},
        ),
        Budget(
            "paper",
            "the paper's depths, data and schedule: hours to weeks on a GPU",
            {
                "110": {"depth": 110},
                "110-single": {"depth": 110, "block": "single"},
                "164": {"depth": 164},
                "1001": {"depth": 1001},
                "152": {"depth": 152},
                "200": {"depth": 200},
            },
            {"cifar10": "cifar10", "cifar100": "cifar100", "imagenet": "imagenet2012"},
            {"cifar10": get_recipe("paper"), "cifar100": get_recipe("paper"), "imagenet2012": get_recipe("imagenet")},
        ),
    )
}


# ---- the tables ---------------------------------------------------------------------------------------------------

_WORDS = {
    "original": "original: BN after each convolution, ReLU after the addition",
    "bn_after_addition": "BN after addition",
    "relu_before_addition": "ReLU before addition",
    "relu_only_preactivation": "ReLU-only pre-activation",
    "full_preactivation": "full pre-activation",
    "bn_only_preactivation": "BN-only pre-activation (ours)",
}


def _table_1() -> Experiment:
    rows = [
        Row(
            row.name,
            f"{row.shortcut.split('(')[0].replace('_', ' ')}: {row.on_shortcut}, F: {row.on_residual}",
            "110",
            {"placement": "original", **({} if row.shortcut == "identity" else {"shortcut": row.shortcut})},
            published=row.error,
        )
        for row in paper.TABLE_1
    ]
    return Experiment("table1", "the shortcut h; original ResNet-110, CIFAR-10", tuple(rows))


def _table_2() -> Experiment:
    rows = [
        Row(
            f"{placement}-{depth}",
            f"{_WORDS[placement]}, {depth}",
            str(depth),
            {"placement": placement},
            published=error,
        )
        for depth in (110, 164)
        for placement, errors in paper.TABLE_2.items()
        for error in [errors[depth]]
    ]
    return Experiment("table2", "where the activations stand; identity shortcuts, CIFAR-10", tuple(rows))


def _table_3() -> Experiment:
    rows = []
    for row in paper.TABLE_3:
        network = row.network.removeprefix("ResNet-").replace(", one layer a unit", "-single")
        for placement in ("original", "full_preactivation"):
            rows.append(
                Row(
                    f"{row.dataset}-{network}-{placement}",
                    f"{row.dataset}, {row.network}, {placement.replace('_', ' ')}",
                    network,
                    {"placement": placement},
                    row.dataset,
                    getattr(row, placement),
                )
            )
    return Experiment("table3", "depth; CIFAR-10 and CIFAR-100", tuple(rows))


def _table_5() -> Experiment:
    # Tested on crops of another size than those trained on: none of these errors is that of our runs' 224 crops.
    rows = [
        Row(
            f"{depth}-{placement}",
            f"ResNet-{depth}, {placement.replace('_', ' ')}, trained on crops of 224",
            depth,
            {"placement": placement},
            "imagenet",
        )
        for depth in ("152", "200")
        for placement in ("original", "full_preactivation")
    ]
    return Experiment("table5", "ImageNet, top-1", tuple(rows))


def _extensions() -> Experiment:
    pre = {"placement": "full_preactivation"}
    rows = [
        Row("full_preactivation", "full pre-activation, as in Table 2", "110", pre),
        Row("bn_only", _WORDS["bn_only_preactivation"], "110", {"placement": "bn_only_preactivation"}),
        Row("rezero", "ReZero: x + αF, α = 0 at first", "110", {**pre, "shortcut": "scaled_residual"}),
        Row(
            "skipinit",
            "SkipInit: the same without normalization",
            "110",
            {**pre, "shortcut": "scaled_residual", "normalization": "none"},
        ),
        Row(
            "layerscale",
            "LayerScale: an α for each channel, 0.1 at first",
            "110",
            {**pre, "shortcut": "scaled_residual(initial=0.1, per_channel=True)"},
        ),
        # The critics of Table 1 also have gates of two 3×3 convolutions, and other widths: those are not here.
        Row(
            "highway",
            "Highway: exclusive gates, b = −6, with nothing after the addition",
            "110",
            {**pre, "shortcut": "exclusive_gating(gate_bias=-6)"},
        ),
    ]
    return Experiment("extensions", "what is not in the paper; CIFAR-10", tuple(rows))


EXPERIMENTS = {
    experiment.name: experiment for experiment in (_table_1(), _table_2(), _table_3(), _table_5(), _extensions())
}
