"""What the paper did, and what others did, as data: batch size, schedule, optimizer, augmentation, inputs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras

from keras_preact import paper
from keras_preact.errors import (
    InputError,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_positive,
    check_rate,
)
from keras_preact.optimizers import DECAYS, CosineAfterHold, CoupledSGD, KernelAdamW

INPUTS = ("per_pixel_mean", "per_channel", "per_image", "none")
"""What is done to the pixels first, all of them then being numbers of order 1: the training images' mean at each
pixel subtracted, the rest over 255; their mean and deviation of each channel; those of each image by itself, taken
after the crop; nothing but to divide by 255."""


@dataclass(frozen=True)
class StepSchedule:
    """A constant learning rate, divided at given steps, with a constant warm-up: the paper's.

    Attributes:
        learning_rate: after the warm-up.
        drops: steps at which it is divided by 10.
        warmup_learning_rate: during the warm-up.
        warmup_steps: length of the warm-up.

    Raises:
        InputError: a number out of its range, or a drop before the end of the warm-up or before an earlier drop.

    Example: the paper's, at the ends of its parts.

    >>> rate = StepSchedule().to_keras(64_000)
    >>> [round(float(rate(step)), 4) for step in (0, 399, 400, 31_999, 32_000, 48_000)]
    [0.01, 0.01, 0.1, 0.1, 0.01, 0.001]
    """

    learning_rate: float = 0.1
    drops: tuple[int, ...] = (32_000, 48_000)
    warmup_learning_rate: float = 0.01
    warmup_steps: int = 400

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate, 0)
        check_number("warmup_learning_rate", self.warmup_learning_rate, 0)
        check_count("warmup_steps", self.warmup_steps)
        if not isinstance(self.drops, (tuple, list)):
            raise InputError(f"drops is {self.drops!r}; give a tuple of steps, such as (32000, 48000)")
        for drop in self.drops:
            check_count("a step in drops", drop)
        # Equal steps are in order: a schedule that is scaled to a few steps has them.
        if list(self.drops) != sorted(self.drops):
            raise InputError(f"the steps in drops are {self.drops}; give them in increasing order")
        if self.drops and self.drops[0] < self.warmup_steps:
            raise InputError(
                f"the learning rate drops at step {self.drops[0]}, inside the warm-up of {self.warmup_steps} steps; "
                "move the drop or shorten the warm-up"
            )

    def scaled(self, factor: float) -> StepSchedule:
        """Return the schedule with every length multiplied by `factor`."""
        drops = tuple(round(drop * factor) for drop in self.drops)
        return dataclasses.replace(self, drops=drops, warmup_steps=round(self.warmup_steps * factor))

    def to_keras(self, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """Return the learning rate as a function of the step (0, 1, …); `steps` is not needed here."""
        # Keras's boundary is the last step with the value before it: of a warm-up of 0 steps it is -1, which none is.
        rates = [float(self.warmup_learning_rate), *(self.learning_rate / 10**k for k in range(len(self.drops) + 1))]
        boundaries = [step - 1 for step in (self.warmup_steps, *self.drops)]
        return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)


@dataclass(frozen=True)
class CosineSchedule:
    """A warm-up, then half a cosine down to 0 at the last step: for short runs.

    Attributes:
        learning_rate: at the end of the warm-up.
        warmup_steps: length of the warm-up.
        warmup_learning_rate: constant rate during the warm-up, as in the paper. Default `None`: it rises from 0.

    Raises:
        InputError: a number out of its range.

    Example:

    >>> rate = CosineSchedule(0.1, warmup_steps=100).to_keras(300)
    >>> [round(float(rate(step)), 4) for step in (0, 50, 100, 200, 300)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    learning_rate: float = 0.1
    warmup_steps: int = 200
    warmup_learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate, 0)
        check_count("warmup_steps", self.warmup_steps)
        if self.warmup_learning_rate is not None:
            check_number("warmup_learning_rate", self.warmup_learning_rate, 0)

    def scaled(self, factor: float) -> CosineSchedule:
        """Return the schedule with the warm-up's length multiplied by `factor`."""
        return dataclasses.replace(self, warmup_steps=round(self.warmup_steps * factor))

    def to_keras(self, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """Return the learning rate as a function of the step (0, 1, …, `steps` − 1)."""
        rate, warmup = float(self.learning_rate), min(self.warmup_steps, steps - 1)  # Keras would compute in integers
        if warmup < 1:
            return keras.optimizers.schedules.CosineDecay(rate, max(steps, 1))
        if self.warmup_learning_rate is not None:
            return CosineAfterHold(float(self.warmup_learning_rate), warmup, rate, max(steps - warmup, 1))
        return keras.optimizers.schedules.CosineDecay(
            0.0, max(steps - warmup, 1), warmup_target=rate, warmup_steps=warmup
        )


SCHEDULES: dict[str, type[StepSchedule] | type[CosineSchedule]] = {
    "steps": StepSchedule,
    "cosine": CosineSchedule,
}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        name: the name that `--recipe` takes.
        steps: length of the training, in mini-batches.
        batch_size: images a mini-batch.
        schedule: the learning rate.
        momentum: of SGD.
        nesterov: whether the momentum looks ahead.
        weight_decay: λ of `CoupledSGD`: part of the gradient.
        decays: which variables decay.
        augment: random crop of the padded image, random horizontal flip.
        padding: pixels of zeros on each side before that crop. 0 where the data come cropped at random, as ImageNet's.
        inputs: what is done to the pixels, one of `INPUTS`.
        reported: which number its source reports; ours is always that of the last epoch.

    Raises:
        InputError: an unknown choice, or a number out of its range.

    Example: a recipe of one's own.

    >>> mine = Recipe("mine", steps=5_000, batch_size=64, schedule=CosineSchedule(0.05))
    >>> Recipe.from_dict(mine.to_dict()) == mine
    True
    """

    name: str
    steps: int
    batch_size: int = 128
    schedule: StepSchedule | CosineSchedule = StepSchedule()
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    decays: str = "all"
    augment: bool = True
    padding: int = 4
    inputs: str = "per_pixel_mean"
    reported: str = "last epoch"

    def __post_init__(self) -> None:
        check_choice("treatment of the inputs", self.inputs, INPUTS)
        check_choice("choice of decayed variables", self.decays, DECAYS)
        check_positive("the number of training steps", self.steps)
        check_positive("the batch size", self.batch_size)
        if not isinstance(self.schedule, tuple(SCHEDULES.values())):
            kinds = " or ".join(kind.__name__ for kind in SCHEDULES.values())
            raise InputError(f"the schedule is {self.schedule!r}; give a {kinds}")
        check_rate("momentum", self.momentum)
        check_flag("nesterov", self.nesterov)
        check_number("weight_decay", self.weight_decay, 0)
        check_flag("augment", self.augment)
        check_count("padding", self.padding)

    def with_steps(self, steps: int) -> Recipe:
        """Return the recipe for another length; warm-up and drops keep their share of it.

        >>> RECIPES["paper"].with_steps(6400).schedule.drops
        (3200, 4800)
        """
        steps = check_positive("the number of training steps", steps)
        schedule = self.schedule.scaled(steps / self.steps)
        return dataclasses.replace(self, steps=steps, schedule=schedule)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return a new optimizer with the recipe's schedule."""
        return CoupledSGD(
            self.schedule.to_keras(self.steps),
            momentum=self.momentum,
            nesterov=self.nesterov,
            decay=self.weight_decay,
            decays=self.decays,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, for `run.json`."""
        schedule = {"kind": next(k for k, kind in SCHEDULES.items() if isinstance(self.schedule, kind))}
        fields = {**dataclasses.asdict(self), "schedule": {**schedule, **dataclasses.asdict(self.schedule)}}
        return {"kind": "adam", **fields} if isinstance(self, AdamRecipe) else fields

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """Return the recipe that `to_dict` wrote.

        >>> Recipe.from_dict(RECIPES["paper"].to_dict()) == RECIPES["paper"]
        True
        """
        data, schedule = dict(data), dict(data["schedule"])
        if "per_pixel_mean" in data:  # as the first runs have it, which had this choice alone
            data["inputs"] = "per_pixel_mean" if data.pop("per_pixel_mean") else "none"
        recipe_type = AdamRecipe if data.pop("kind", "sgd") == "adam" else Recipe
        kind = SCHEDULES[schedule.pop("kind")]
        fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in schedule.items()}
        return recipe_type(**{**data, "schedule": kind(**fields)})


@dataclass(frozen=True)
class AdamRecipe(Recipe):
    """How a Transformer is trained: by Adam, with decoupled weight decay of the kernels (AdamW).

    Attributes:
        momentum: β₁ of Adam.
        beta_2: β₂.
        weight_decay: in each step, weights lose the learning rate times this share of themselves.
        decays: `"kernels"`: not biases, normalization's scales and offsets, embeddings and positions; or `"all"`.
        clip_norm: largest norm of the whole gradient, or `None`.

    The other attributes are those of `Recipe`; `nesterov` has no meaning here.

    >>> type(RECIPES["adam"].optimizer()).__name__
    'KernelAdamW'
    """

    beta_2: float = 0.98
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("beta_2", self.beta_2)
        if self.clip_norm is not None and check_number("clip_norm", self.clip_norm, 0) == 0:
            raise InputError("clip_norm is 0, which makes every gradient 0; give a larger number, or None to clip none")

    def optimizer(self) -> keras.optimizers.Optimizer:
        optimizer_class = KernelAdamW if self.decays == "kernels" else keras.optimizers.AdamW
        return optimizer_class(
            self.schedule.to_keras(self.steps),
            weight_decay=self.weight_decay,
            beta_1=self.momentum,
            beta_2=self.beta_2,
            epsilon=1e-8,
            global_clipnorm=self.clip_norm,
        )


def _of_the_paper(name: str, facts: dict[str, Any], reported: str, **choices: Any) -> Recipe:
    schedule = StepSchedule(
        facts["learning_rate"], tuple(facts["drops"]), facts["warmup_learning_rate"], facts["warmup_steps"]
    )
    return Recipe(
        name,
        facts["steps"],
        facts["batch_size"],
        schedule,
        momentum=facts["momentum"],
        weight_decay=facts["weight_decay"],
        reported=reported,
        **choices,
    )


def _of_epochs(name: str, epochs: int, drops: tuple[int, ...], batch_size: int = 128, **choices: Any) -> Recipe:
    """Return a recipe for CIFAR that counts in epochs: here of whole batches, the images left over in none."""
    epoch = 50_000 // batch_size
    schedule = StepSchedule(drops=tuple(drop * epoch for drop in drops), warmup_steps=0)
    return Recipe(name, epochs * epoch, batch_size, schedule, **choices)


_FB_TRAINER: dict[str, Any] = {"nesterov": True, "inputs": "per_channel", "reported": "best epoch on test images"}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _of_the_paper("paper", paper.CIFAR_RECIPE, "last epoch, median of 5 runs"),
        _of_the_paper("imagenet", paper.IMAGENET_RECIPE, "last epoch, one run", padding=0),
        # Its trainer (train.lua, opts.lua) begins epochs 81 and 122, counted from 1, at the lower rate; and it prints,
        # as the result, the smallest test error of all epochs (main.lua): one picked on the test images.
        _of_epochs("fb_resnet_torch", 164, (80, 121), **_FB_TRAINER),
        # The authors' release is a network for that trainer, run as its README says.
        _of_epochs("resnet_1k_layers", 200, (80, 121), batch_size=64, **_FB_TRAINER),
        # tensorflow/models, official/resnet, cifar10_main.py: decays batch norm's variables too, and says so.
        _of_epochs("tensorflow_models", 182, (91, 136), weight_decay=2e-4, inputs="per_image", reported="not said"),
        # 30 epochs of CIFAR-10: half an hour for a ResNet-20 on two cores. So few steps want a rate that falls all
        # the way, and the stronger decay that is common with it.
        Recipe("short", steps=11_700, schedule=CosineSchedule(0.1, warmup_steps=400), weight_decay=5e-4),
        # The bundled sequences, some ten times: minutes on two cores.
        AdamRecipe(
            "adam",
            steps=1_500,
            batch_size=64,
            schedule=CosineSchedule(1e-3, warmup_steps=150),
            weight_decay=0.01,
            decays="kernels",
        ),
        # The bundled 4,000 images, twice. Small batches, because steps are scarce; flips alone, because passes are.
        Recipe("demo", steps=124, batch_size=64, schedule=CosineSchedule(0.1, warmup_steps=12), padding=0),
    )
}


def get_recipe(recipe: str | Recipe) -> Recipe:
    """Return the recipe of that name; a `Recipe` is returned as it is.

    Raises:
        InputError: no recipe has that name.

    >>> get_recipe("paper").batch_size
    128
    """
    return recipe if isinstance(recipe, Recipe) else RECIPES[check_choice("recipe", recipe, RECIPES)]
