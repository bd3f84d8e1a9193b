"""The paper's tables, and ours beside them, as data: which networks are trained, on what, and what was published."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from keras_preact import paper
from keras_preact.data.sequences import SEQUENCES
from keras_preact.errors import InputError, check_choice
from keras_preact.layers.placements import PLACEMENTS
from keras_preact.models.profiles import PROFILES, conventions
from keras_preact.training.recipe import RECIPES, CosineSchedule, Recipe, get_recipe
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
        builder: the function that builds the network, a name of `keras_preact.models.NETWORKS`.
        learning_rate: if it differs from the recipe's.
        warmup: share of the steps in which the learning rate rises from 0, if it differs from the recipe's.
    """

    name: str
    title: str
    network: str
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "cifar10"
    published: paper.Published | None = None
    builder: str = "cifar_resnet"
    learning_rate: float | None = None
    warmup: float | None = None

    @property
    def family(self) -> str:
        """Which of a profile's networks it is of: `"cifar"` or `"imagenet"`."""
        return "imagenet" if self.builder == "imagenet_resnet" else "cifar"

    def recipe(self, usual: Recipe) -> Recipe:
        """Return the recipe of this row, given that of its data set."""
        if self.learning_rate is None or self.warmup is None:
            return usual
        schedule = CosineSchedule(self.learning_rate, warmup_steps=round(self.warmup * usual.steps))
        name = f"{usual.name}-{self.learning_rate:g}-warmup{100 * self.warmup:.0f}"
        return dataclasses.replace(usual, name=name, schedule=schedule)


@dataclass(frozen=True)
class Experiment:
    """A table.

    Attributes:
        name: what the command line takes.
        title: what it is about.
        rows: its networks.
        failing: what it means that training fails, in words; `Run.fails_above` is the number.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    failing: str = f"an error above {paper.FAILS_ABOVE:g} % on CIFAR-10, the paper's criterion"

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
        judges: whether errors mean anything here, beyond that it runs.
        profile: whose networks and, where it has one, whose recipe. Runs of different profiles never stand in one
            column either.
        image_sizes: height and width in pixels of the images of our data sets, where not their own.
    """

    name: str
    what: str
    networks: dict[str, dict[str, Any]]
    datasets: dict[str, str]
    recipes: dict[str, Recipe]
    judges: bool = True
    profile: str = "paper"
    image_sizes: dict[str, int] = field(default_factory=lambda: {"imagenet2012": 224})

    def of(self, profile: str) -> Budget:
        """Return the budget for another profile: its networks and, for CIFAR, its recipe, of as many images as here.

        Raises:
            InputError: no such profile.

        >>> BUDGETS["paper"].of("fb_resnet_torch").recipes["cifar10"].nesterov
        True
        """
        if check_choice("profile", profile, PROFILES) == self.profile:
            return self
        return dataclasses.replace(
            self,
            profile=profile,
            networks={name: options for name, options in self.networks.items() if "dim" not in options},
            recipes={name: _recipe_of(profile, name, recipe) for name, recipe in self.recipes.items()},
        )

    def holds(self, row: Row) -> bool:
        """Return whether the row is part of this budget, and its profile has such networks."""
        has = getattr(PROFILES[self.profile], row.family) is not None
        return row.network in self.networks and row.dataset in self.datasets and has

    def check_profile(self, row: Row) -> None:
        """Raise InputError, which names the profiles that have them, where this one has no such networks."""
        conventions(self.profile, row.family, PLACEMENTS["full_preactivation"])

    def config(self, row: Row, seed: int, precision: str, data_dir: str | None = None) -> RunConfig:
        """Return the run of a row.

        Raises:
            InputError: the row is no part of this budget, or its profile has no such networks.
        """
        if row.network in self.networks:
            self.check_profile(row)
        if not self.holds(row):
            raise InputError(f"the row {row.name} is not part of the budget {self.name}; take --budget paper")
        dataset = self.datasets[row.dataset]
        return RunConfig(
            network=row.builder,
            options={**self.networks[row.network], **row.options, **self._whose()},
            dataset=dataset,
            data_dir=place_of(dataset, data_dir),
            image_size=self.image_sizes.get(dataset),
            recipe=row.recipe(self.recipes[dataset]),
            precision=precision,
            seed=seed,
        )

    def _whose(self) -> dict[str, str]:
        return {} if self.profile == "paper" else {"profile": self.profile}

    def network(self, row: Row) -> str:
        """Return the name of the network that stands for the row's."""
        options = self.networks[row.network]
        if "dim" in options:
            return f"{options['depth']} blocks of {options['dim']}"
        block = options.get("block") or ("bottleneck" if options.get("bottleneck") else "")
        return f"ResNet-{options['depth']}" + (f", {block}" if block else "")


def place_of(dataset: str, data_dir: str | None) -> str | None:
    """Return the folder of a data set: none, where it comes with the package."""
    return None if dataset in ("bundled", *SEQUENCES) else data_dir


def _shorter(recipe: str, name: str, steps: int) -> Recipe:
    return dataclasses.replace(get_recipe(recipe).with_steps(steps), name=name)


def _recipe_of(profile: str, dataset: str, usual: Recipe) -> Recipe:
    """Return the recipe of a profile's code base, which is for CIFAR; or the usual one, where it has none."""
    if profile not in RECIPES or dataset not in ("cifar10", "cifar100", "bundled"):
        return usual
    recipe = get_recipe(profile)
    if usual.name == "paper":
        return recipe
    return _shorter(profile, f"{usual.name}-{profile}", usual.steps * usual.batch_size // recipe.batch_size)


DEEP = dataclasses.replace(
    get_recipe("paper"),
    name="deep",
    steps=1_560,
    schedule=CosineSchedule(0.1, warmup_steps=100),
    padding=2,
    reported="last epoch",
)
"""The paper's recipe cut to four passes over CIFAR: its learning rate, decayed to zero, and half its padding."""

BUDGETS = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke",
            "the bundled data once or less, networks of 8 to 29 layers: minutes, and only to see that all of it runs",
            {
                "20": {"depth": 8},
                "110": {"depth": 8},
                "110-single": {"depth": 8, "block": "single"},
                "164": {"depth": 11, "bottleneck": True},
                "1001": {"depth": 29, "bottleneck": True},
                "152": {"depth": 18, "stem": "3x3"},
                "200": {"depth": 34, "stem": "3x3"},
                "transformer-12": {"depth": 2, "dim": 32, "heads": 2},
                "transformer-48": {"depth": 4, "dim": 32, "heads": 2},
            },
            {"cifar10": "bundled", "imagenet": "bundled", "characters": "characters"},
            {"bundled": _shorter("demo", "smoke", 62), "characters": _shorter("adam", "smoke", 20)},
            judges=False,
        ),
        Budget(
            "cpu",
            "the shallow control: ten passes over the whole of CIFAR, networks of 29 to 56 layers, or 600 steps of "
            "narrow Transformers: minutes to hours a run",
            {
                "110": {"depth": 32},
                "110-single": {"depth": 32, "block": "single"},
                "164": {"depth": 29, "bottleneck": True},
                "1001": {"depth": 56, "bottleneck": True},
                "transformer-12": {"depth": 12, "dim": 64, "heads": 4},
                "transformer-48": {"depth": 48, "dim": 64, "heads": 4},
            },
            {"cifar10": "cifar10", "cifar100": "cifar100", "characters": "characters"},
            {
                **{name: _shorter("short", "cpu", 3_900) for name in ("cifar10", "cifar100")},
                "characters": dataclasses.replace(_shorter("adam", "cpu", 600), batch_size=32),
            },
        ),
        Budget(
            "deep",
            "the paper's networks, batch size, optimizer and weight decay; CIFAR's images averaged down to 16×16 "
            f"pixels, {DEEP.steps:,} steps, after which an error says how easily a network trains, not how good it "
            "gets: minutes a run, half an hour for ResNet-1001",
            {
                "20": {"depth": 20},
                "110": {"depth": 110},
                "110-single": {"depth": 110, "block": "single"},
                "164": {"depth": 164},
                "1001": {"depth": 1001},
            },
            {"cifar10": "cifar10", "cifar100": "cifar100"},
            {"cifar10": DEEP, "cifar100": DEEP},
            image_sizes={"cifar10": 16, "cifar100": 16},
        ),
        Budget(
            "paper",
            "the paper's depths, data and schedule: hours to weeks on a GPU",
            {
                "20": {"depth": 20},
                "110": {"depth": 110},
                "110-single": {"depth": 110, "block": "single"},
                "164": {"depth": 164},
                "1001": {"depth": 1001},
                "152": {"depth": 152},
                "200": {"depth": 200},
                "transformer-12": {"depth": 12, "dim": 512, "heads": 8},
                "transformer-48": {"depth": 48, "dim": 512, "heads": 8},
            },
            {"cifar10": "cifar10", "cifar100": "cifar100", "imagenet": "imagenet2012", "characters": "characters"},
            {
                "cifar10": get_recipe("paper"),
                "cifar100": get_recipe("paper"),
                "imagenet2012": get_recipe("imagenet"),
                "characters": _shorter("adam", "paper", 6_000),
            },
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


def _resnet_20() -> Experiment:
    """The one network whose whole schedule a processor gets through; its budget is `paper`."""
    published = {"original": paper.FIRST_RESNET_ERRORS[20], "full_preactivation": None}
    rows = [
        Row(placement, f"ResNet-20, {placement.replace('_', ' ')}", "20", {"placement": placement}, published=error)
        for placement, error in published.items()
    ]
    return Experiment("resnet20", "the smallest network, for all of the paper's 64k steps; CIFAR-10", tuple(rows))


def _table_5() -> Experiment:
    # Tested on crops of another size than those trained on: none of these errors is that of our runs' 224 crops.
    rows = [
        Row(
            f"{depth}-{placement}",
            f"ResNet-{depth}, {placement.replace('_', ' ')}, trained on crops of 224",
            depth,
            {"placement": placement},
            "imagenet",
            builder="imagenet_resnet",
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
        Row(
            "highway",
            "Highway: exclusive gates, b = −6, with nothing after the addition",
            "110",
            {**pre, "shortcut": "exclusive_gating(gate_bias=-6)"},
        ),
        # Theirs has half as many parameters again as the residual network it is compared with: hence a narrower one.
        Row(
            "highway-critics",
            "Highway of the critics: gates of two 3×3 convolutions, b = −6, ReLU at the end of F, width × 0.875",
            "110",
            {"placement": "relu_before_addition", "shortcut": "highway(gate_bias=-6)", "widen_factor": 0.875},
        ),
        Row(
            "highway-critics-matched",
            "the same, width × 0.71: not more parameters than the residual network",
            "110",
            {"placement": "relu_before_addition", "shortcut": "highway(gate_bias=-6)", "widen_factor": 0.71},
        ),
    ]
    return Experiment("extensions", "what is not in the paper; CIFAR-10", tuple(rows))


def _warmup() -> Experiment:
    """Xiong et al. 2020: in which order does a Transformer need a warm-up of the learning rate?"""
    grid = [
        (12, order, rate, warmup)
        for order in ("post_norm", "pre_norm")
        for rate in (5e-4, 1e-3, 2e-3, 8e-3)
        for warmup in (0.0, 0.2)
    ]
    grid += [(48, "post_norm", 2e-3, 0.0), (48, "post_norm", 2e-3, 0.2), (48, "pre_norm", 2e-3, 0.0)]
    rows = [
        Row(
            f"{depth}-{order}-{rate:g}-{'warmup' if warmup else 'none'}",
            f"{depth} blocks, {order.replace('_', '-')}, learning rate {rate:g}, "
            + ("warm-up" if warmup else "no warm-up"),
            f"transformer-{depth}",
            {"placement": order},
            "characters",
            builder="transformer",
            learning_rate=rate,
            warmup=warmup,
        )
        for depth, order, rate, warmup in grid
    ]
    return Experiment(
        "warmup",
        "warm-up (over a fifth of the steps), learning rate and order of a Transformer; next character of film reviews",
        tuple(rows),
        "an error less than a point below that of always naming the most frequent character",
    )


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (_table_1(), _table_2(), _table_3(), _table_5(), _resnet_20(), _extensions(), _warmup())
}
