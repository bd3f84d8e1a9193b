"""Rows, experiments and budgets: the networks of a table, and how long their training may take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_preact import paper
from keras_preact.data.load import is_bundled
from keras_preact.errors import InputError, check_choice
from keras_preact.layers.placements import PLACEMENTS
from keras_preact.models.profiles import PROFILES, conventions
from keras_preact.training.config import RunConfig
from keras_preact.training.recipe import RECIPES, FastRecipe, Recipe, get_recipe
from keras_preact.training.schedules import CosineSchedule


@dataclass(frozen=True)
class Row:
    """One network of a table.

    Attributes:
        name: name for `--rows`.
        title: title in the table.
        network: key of the budget's `networks`: `"110"`, `"164"`, `"1001"`, …
        options: further arguments of the network: placement, shortcut, …
        dataset: the paper's data set.
        published: the paper's error, if it has one.
        others: independent results for this network, as text.
        builder: the function that builds the network, a name of `keras_preact.models.NETWORKS`.
        learning_rate: replaces the recipe's learning rate.
        warmup: share of the steps for warm-up; replaces the recipe's schedule by a cosine with this warm-up.
        warmup_learning_rate: constant learning rate of that warm-up; needs `warmup`. Default: the rate rises from 0.
        steps: replaces the recipe's number of steps; warm-up and drops keep their proportions.
        changes: replaces other fields of the recipe.
    """

    name: str
    title: str
    network: str
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "cifar10"
    published: paper.Published | None = None
    others: str = ""
    builder: str = "cifar_resnet"
    learning_rate: float | None = None
    warmup: float | None = None
    warmup_learning_rate: float | None = None
    steps: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The family of networks in a profile: `"cifar"` or `"imagenet"`."""
        return "imagenet" if self.builder == "imagenet_resnet" else "cifar"

    def recipe(self, base: Recipe) -> Recipe:
        """Return the recipe of this row, given the budget's recipe for its data set."""
        if self.steps is not None or self.changes:
            base = dataclasses.replace(base.with_steps(self.steps or base.steps), name=f"{base.name}-{self.name}")
            base = dataclasses.replace(base, **self.changes)
        rate = base.schedule.learning_rate if self.learning_rate is None else self.learning_rate
        schedule, suffix = dataclasses.replace(base.schedule, learning_rate=rate), f"{rate:g}"
        if self.warmup is not None:
            schedule = CosineSchedule(rate, round(self.warmup * base.steps), self.warmup_learning_rate)
            suffix += f"-warmup{100 * self.warmup:.0f}"
        if self.warmup_learning_rate is not None:
            suffix += f"-at{self.warmup_learning_rate:g}"
        if schedule == base.schedule:
            return base
        return dataclasses.replace(base, name=f"{base.name}-{suffix}", schedule=schedule)


@dataclass(frozen=True)
class Experiment:
    """A table.

    Attributes:
        name: name on the command line.
        title: subject of the table.
        rows: the networks.
        failing: the criterion for failed training, in words; `Run.fails_above` is the number.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    failing: str = f"an error above {paper.FAILS_ABOVE:g} % on CIFAR-10, the paper's criterion"

    @property
    def heading(self) -> str:
        """The name of the table on the page of results.

        >>> [Experiment(name, "", ()).heading for name in ("table1", "warmup", "resnet20")]
        ['Table 1', 'Warmup', 'ResNet-20']
        """
        return re.sub(r"(?<=[a-z])(?=\d)", " ", self.name).capitalize().replace("Resnet ", "ResNet-")

    def select(self, names: list[str] | None) -> tuple[Row, ...]:
        """Return the rows with these names, or all rows.

        Raises:
            InputError: a name is unknown.
        """
        known = {row.name: row for row in self.rows}
        return self.rows if not names else tuple(known[check_choice("row", name, known)] for name in names)


@dataclass(frozen=True)
class Budget:
    """The networks, data and recipes of a reproduction, by cost. A column never mixes runs of different budgets.

    Attributes:
        name: name for `--budget`.
        what: description, one or more sentences.
        networks: arguments of our network, by the paper's network.
        datasets: our data set, by the paper's data set; rows on other data sets are left out.
        recipes: recipe, by our data set.
        judges: whether the errors are comparable at all; `False` if the runs only show that everything works.
        profile: code base whose networks and, if it has one, recipe are used. A column never mixes profiles either.
        image_sizes: height and width of the images in pixels by our data set, if not the original size.
        probes: whether to measure signal and gradient during the runs; see `PropagationProbe`.
    """

    name: str
    what: str
    networks: dict[str, dict[str, Any]]
    datasets: dict[str, str]
    recipes: dict[str, Recipe]
    judges: bool = True
    profile: str = "paper"
    image_sizes: dict[str, int] = field(default_factory=lambda: {"imagenet2012": 224})
    probes: bool = False

    def of(self, profile: str) -> Budget:
        """Return this budget with the networks of another profile.

        On CIFAR, the profile's recipe, if it has one, replaces this budget's, cut to the same number of images.

        Raises:
            InputError: the profile is unknown.

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
        """Return whether this budget has the row and its profile has such networks."""
        has_family = getattr(PROFILES[self.profile], row.family) is not None
        return row.network in self.networks and row.dataset in self.datasets and has_family

    def check_profile(self, row: Row) -> None:
        """Raise InputError if the profile has no such networks; the message names the profiles that have."""
        if row.builder == "transformer" and self.profile != "paper":
            raise InputError(f"{row.name} is a Transformer, which has no profile; leave out --profile")
        conventions(self.profile, row.family, PLACEMENTS["full_preactivation"])

    def config(self, row: Row, seed: int, precision: str, data_dir: str | None = None) -> RunConfig:
        """Return the configuration of a row's run.

        Raises:
            InputError: the row is not part of this budget, or the profile has no such networks.
        """
        if row.network in self.networks or row.builder == "transformer":  # a profile's budget has no Transformers
            self.check_profile(row)
        if not self.holds(row):
            raise InputError(
                f"the row {row.name} is not part of the budget {self.name}; {budgets_of(row, self.profile)}"
            )
        dataset = self.datasets[row.dataset]
        return RunConfig(
            network=row.builder,
            options={
                **self.networks[row.network],
                **row.options,
                **({} if self.profile == "paper" else {"profile": self.profile}),
            },
            dataset=dataset,
            data_dir=data_dir_of(dataset, data_dir),
            image_size=self.image_sizes.get(dataset),
            recipe=row.recipe(self.recipes[dataset]),
            precision=precision,
            seed=seed,
        )

    def network(self, row: Row) -> str:
        """Return the name of the network that this budget trains for the row."""
        options = self.networks[row.network]
        if "dim" in options:
            return f"{options['depth']} blocks, width {options['dim']}"
        block = options.get("block") or ("bottleneck" if options.get("bottleneck") else "")
        return f"ResNet-{options['depth']}" + (f", {block}" if block else "")


def data_dir_of(dataset: str, data_dir: str | None) -> str | None:
    """Return the data folder of a data set; `None` if the data come with the package."""
    return None if is_bundled(dataset) else data_dir


def _shorter(recipe: str, name: str, steps: int) -> Recipe:
    return dataclasses.replace(get_recipe(recipe).with_steps(steps), name=name)


def _recipe_of(profile: str, dataset: str, default: Recipe) -> Recipe:
    """Return the CIFAR recipe of a profile's code base for as many images as `default`; else `default`."""
    is_fast = isinstance(default, FastRecipe)  # no code base's
    if profile not in RECIPES or dataset not in ("cifar10", "cifar100", "bundled") or is_fast:
        return default
    recipe = get_recipe(profile)
    if default.name == "paper":
        return recipe
    return _shorter(profile, f"{default.name}-{profile}", default.steps * default.batch_size // recipe.batch_size)


DEEP = dataclasses.replace(
    get_recipe("paper"),
    name="deep",
    steps=1_560,
    schedule=CosineSchedule(0.1, warmup_steps=100),
    padding=2,
    reported="last epoch",
)
"""The paper's recipe for four epochs of CIFAR, with cosine decay of its learning rate and half its padding."""

DEPTHS = (20, 56, 110, 218, 434, 1001)
"""Depths of the depth study: 6n + 2, each about twice the one before, and the paper's deepest network, 9n + 2."""


def by_depth(depths: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the networks of the depth study at these depths: basic blocks, except for the deepest network."""
    options: list[dict[str, Any]] = [{"depth": depth} for depth in depths]
    for each in options:
        if each["depth"] in (218, 434):  # also 9n + 2, for which bottlenecks are the default at 164 layers and more
            each["bottleneck"] = False
    return {f"depth-{name}": each for name, each in zip(DEPTHS, options, strict=False)}


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke",
            "Budget smoke trains networks of 8 to 34 layers for at most one epoch of the bundled data, only to see "
            "that everything runs. A run takes seconds to a minute.",
            {
                "20": {"depth": 8},
                "110": {"depth": 8},
                "110-single": {"depth": 8, "block": "single"},
                "164": {"depth": 11, "bottleneck": True},
                "1001": {"depth": 29, "bottleneck": True},
                "152": {"depth": 18, "stem": "3x3"},
                "200": {"depth": 34, "stem": "3x3"},
                **by_depth((8,) * 6),
                "transformer-12": {"depth": 2, "dim": 32, "heads": 2},
                "transformer-48": {"depth": 4, "dim": 32, "heads": 2},
            },
            {"cifar10": "bundled", "4,000 images": "bundled", "imagenet": "bundled", "characters": "characters"},
            {"bundled": _shorter("demo", "smoke", 62), "characters": _shorter("adam", "smoke", 20)},
            judges=False,
        ),
        Budget(
            "demo",
            "Budget demo is the setting of `keras-preact demo`: the bundled 4,000 images at 16×16 pixels, "
            f"{get_recipe('demo').steps} steps. Such a short schedule shows how easily a network trains, not how "
            "accurate it becomes. A run takes seconds to minutes.",
            by_depth(DEPTHS[:-1]),
            {"4,000 images": "bundled"},
            {"bundled": get_recipe("demo")},
            image_sizes={"bundled": 16},
            probes=True,
        ),
        Budget(
            "cpu",
            "Budget cpu is the shallow control: networks of 29 to 56 layers in place of the paper's, for ten epochs of "
            "all of CIFAR, or narrow Transformers for 600 steps. A ResNet takes half an hour to two and a half hours, "
            "a Transformer 3 to 23 minutes.",
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
            "Budget deep trains the paper's networks with its batch size, optimizer and weight decay, for "
            f"{DEEP.steps:,} steps on CIFAR images, reduced to 16×16 pixels. The learning rate warms up for 100 steps "
            "and then decays along a cosine. Such a short schedule shows how easily a network trains, not how accurate "
            "it becomes. A run takes 10 to 22 core-minutes at 110 and 164 layers with bfloat16 instructions, about "
            "twice as long without.",
            {
                **{str(depth): {"depth": depth} for depth in (20, 110, 164, 1001)},
                "110-single": {"depth": 110, "block": "single"},
                **by_depth(DEPTHS),
            },
            {"cifar10": "cifar10", "cifar100": "cifar100"},
            {"cifar10": DEEP, "cifar100": DEEP},
            image_sizes={"cifar10": 16, "cifar100": 16},
            probes=True,
        ),
        Budget(
            "fast",
            "Budget fast trains wide, shallow networks with the recipe `fast` on all of CIFAR-10. A ResNet-14 of twice "
            "the usual width takes about 20 core-minutes.",
            {
                "wide": {"depth": 14, "widen_factor": 2},
                "wider": {"depth": 14, "widen_factor": 4},
                "wider-20": {"depth": 20, "widen_factor": 4},
            },
            {"cifar10": "cifar10"},
            {"cifar10": get_recipe("fast")},
        ),
        Budget(
            "paper",
            "Budget paper uses the paper's depths, data and schedule. A ResNet-20 takes about 3 hours on one or "
            "two CPU cores; for deeper networks, we estimate hours to weeks per run on a GPU.",
            {
                **{str(depth): {"depth": depth} for depth in (20, 110, 152, 164, 200, 1001)},
                "110-single": {"depth": 110, "block": "single"},
                **by_depth(DEPTHS),
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


def budgets_of(row: Row, profile: str) -> str:
    """Return the remedy that names the budgets with this row, if there are any for the profile."""
    names = [budget.name for budget in BUDGETS.values() if budget.of(profile).holds(row)]
    return f"choose the budget (--budget) {' or '.join(names)}" if names else "choose another profile (--profile)"
