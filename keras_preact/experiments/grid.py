"""Rows, experiments and budgets: what a table is made of, and what its runs may cost."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_preact import paper
from keras_preact.data.sequences import SEQUENCES
from keras_preact.errors import InputError, check_choice
from keras_preact.layers.placements import PLACEMENTS
from keras_preact.models.profiles import PROFILES, conventions
from keras_preact.training.config import RunConfig
from keras_preact.training.recipe import RECIPES, CosineSchedule, Recipe, get_recipe


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
        others: what others measured of this network, in words.
        builder: the function that builds the network, a name of `keras_preact.models.NETWORKS`.
        learning_rate: if it differs from the recipe's.
        warmup: share of the steps that the warm-up takes, if it differs from the recipe's.
        warmup_learning_rate: constant rate of that warm-up; default: the rate rises from 0.
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

    @property
    def family(self) -> str:
        """Which of a profile's networks it is of: `"cifar"` or `"imagenet"`."""
        return "imagenet" if self.builder == "imagenet_resnet" else "cifar"

    def recipe(self, usual: Recipe) -> Recipe:
        """Return the recipe of this row, given that of its data set."""
        rate = usual.schedule.learning_rate if self.learning_rate is None else self.learning_rate
        schedule, words = dataclasses.replace(usual.schedule, learning_rate=rate), f"{rate:g}"
        if self.warmup is not None:
            schedule = CosineSchedule(rate, round(self.warmup * usual.steps), self.warmup_learning_rate)
            words += f"-warmup{100 * self.warmup:.0f}"
        if self.warmup_learning_rate is not None:
            words += f"-at{self.warmup_learning_rate:g}"
        if schedule == usual.schedule:
            return usual
        return dataclasses.replace(usual, name=f"{usual.name}-{words}", schedule=schedule)


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

    @property
    def heading(self) -> str:
        """What a page calls it.

        >>> Experiment("table1", "", ()).heading, Experiment("warmup", "", ()).heading
        ('Table 1', 'Warmup')
        """
        return re.sub(r"(?<=[a-z])(?=\d)", " ", self.name).capitalize()

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
        probes: whether signal and gradient are measured during the runs; see `PropagationProbe`.
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
            raise InputError(f"the row {row.name} is not part of the budget {self.name}; {budgets_of(row)}")
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

DEPTHS = (20, 56, 110, 218, 434, 1001)
"""Of the depth study: 6n + 2 layers, each about twice as many as before; and the paper's deepest network, 9n + 2."""


def by_depth(depths: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the networks of the depth study, for which these depths stand: of basic blocks, but for the deepest."""
    options: list[dict[str, Any]] = [{"depth": depth} for depth in depths]
    for each in options:
        if each["depth"] in (218, 434):  # where bottlenecks would fit as well, and are usual from 164 layers on
            each["bottleneck"] = False
    return {f"depth-{name}": each for name, each in zip(DEPTHS, options, strict=False)}


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
            f"what `keras-preact demo` does: the bundled 4,000 images at 16×16 pixels, {get_recipe('demo').steps} "
            "steps, after which an error says how easily a network trains, not how good it gets: seconds to minutes a "
            "run",
            by_depth(DEPTHS[:-1]),
            {"4,000 images": "bundled"},
            {"bundled": get_recipe("demo")},
            image_sizes={"bundled": 16},
            probes=True,
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
            "paper",
            "the paper's depths, data and schedule: hours to weeks on a GPU",
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


def budgets_of(row: Row) -> str:
    """Say which budgets a row is part of, as a remedy."""
    held = [f"--budget {budget.name}" for budget in BUDGETS.values() if budget.holds(row)]
    return f"take {' or '.join(held)}"
