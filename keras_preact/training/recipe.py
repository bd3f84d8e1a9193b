"""Training recipes of the paper and of other code bases as data: batch size, schedule, optimizer, preprocessing."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Sequence
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
from keras_preact.losses import SmoothedCrossEntropy
from keras_preact.optimizers import DECAYS, CoupledSGD, KernelAdamW
from keras_preact.training.recorded import from_record, make_plain
from keras_preact.training.schedules import PAPERS_SCHEDULE, SCHEDULES, CosineSchedule, StepSchedule
from keras_preact.training.tasks import Task

INPUTS = ("per_pixel_mean", "per_channel", "per_image", "none")
"""How pixels are normalized. `per_pixel_mean`: subtract the mean training image, then divide by 255.
`per_channel`: standardize by the mean and standard deviation of each channel over the training images. `per_image`:
standardize each image by its own mean and standard deviation, after the crop. `none`: only divide by 255."""
ONE_SIZE = ("per_pixel_mean", "none")
"""The `INPUTS` that fit only one image size: the network subtracts a mean for each pixel, which is 0 for `none`."""


KINDS: dict[str, type[Recipe]] = {}
"""Subclasses of `Recipe` by the name that `run.json` uses."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, with SGD.

    A subclass may change the optimizer or the loss. `run.json` names it by the argument `kind` of the class, by default
    the class's name: `class Mine(Recipe, kind="mine")`. To resume or evaluate its runs, import it first.

    Attributes:
        name: name of the recipe.
        steps: length of the training, in mini-batches.
        batch_size: examples per mini-batch. Default 128.
        schedule: the learning rate schedule. Default: the paper's.
        momentum: momentum of SGD. Default 0.9.
        nesterov: use Nesterov momentum. Default `False`.
        weight_decay: λ of `CoupledSGD`, which adds the decay to the gradient. Default 1e-4.
        decays: which variables decay: `"all"` (default) or `"kernels"`.
        augment: crop the padded image at random and flip it horizontally at random. Default `True`.
        padding: pixels of zeros on each side before that crop. Default 4; use 0 for images that are already cropped
            at random, such as ImageNet's.
        inputs: how pixels are normalized, one of `INPUTS`. Default `"per_pixel_mean"`.
        reported: which result the recipe's source reports; a run here always reports the last epoch.

    Raises:
        InputError: an unknown choice, a number out of range, or a subclass with the `kind` of a recipe of the package.

    Example: a custom recipe.

    >>> mine = Recipe("mine", steps=5_000, batch_size=64, schedule=CosineSchedule(0.05))
    >>> Recipe.from_dict(mine.to_dict()) == mine
    True
    """

    name: str
    steps: int
    batch_size: int = 128
    schedule: StepSchedule | CosineSchedule = PAPERS_SCHEDULE
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    decays: str = "all"
    augment: bool = True
    padding: int = 4
    inputs: str = "per_pixel_mean"
    reported: str = "last epoch"

    def __init_subclass__(cls, kind: str | None = None) -> None:
        super().__init_subclass__()
        kind = kind or cls.__name__
        if kind in KINDS and KINDS[kind].__module__ == __name__:
            raise InputError(f"{kind!r} is the kind of {KINDS[kind].__name__}; define {cls.__name__} with another kind")
        KINDS[kind] = cls

    def __post_init__(self) -> None:
        _check_subclass(type(self))
        make_plain(self)
        check_choice("treatment of the inputs", self.inputs, INPUTS)
        check_choice("choice of decayed variables", self.decays, DECAYS)
        check_positive("the number of training steps", self.steps)
        check_positive("the batch size", self.batch_size)
        if type(self.schedule) not in SCHEDULES.values():  # run.json could not name a subclass
            kinds = " or ".join(kind.__name__ for kind in SCHEDULES.values())
            raise InputError(f"the schedule is {self.schedule!r}; it must be a {kinds}")
        check_rate("momentum", self.momentum)
        check_flag("nesterov", self.nesterov)
        check_number("weight_decay", self.weight_decay, 0)
        check_flag("augment", self.augment)
        check_count("padding", self.padding)

    def with_steps(self, steps: int) -> Recipe:
        """Return the recipe for another length, with warm-up and drops scaled in proportion.

        >>> RECIPES["paper"].with_steps(6400).schedule.drops
        (3200, 4800)
        """
        steps = check_positive("the number of training steps", steps)
        schedule = self.schedule.scaled(steps / self.steps)
        return dataclasses.replace(self, steps=steps, schedule=schedule)

    def epochs(self, steps_per_epoch: int) -> int:
        """Return the number of epochs, of which the last may be partial.

        >>> RECIPES["paper"].epochs(steps_per_epoch=390)
        165
        """
        return math.ceil(self.steps / steps_per_epoch)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Return a new optimizer with the recipe's schedule."""
        return CoupledSGD(
            self.schedule.to_keras(self.steps),
            momentum=self.momentum,
            nesterov=self.nesterov,
            decay=self.weight_decay,
            decays=self.decays,
        )

    def loss(self, task: Task) -> keras.losses.Loss:
        """Return the loss that is minimized and reported."""
        return task.loss()

    def crop_padding(self, image_shape: Sequence[int]) -> float:
        """Return the padding for `PadCropFlip`: an int of pixels, or a float below 1, a share of the shorter side.

        Args:
            image_shape: (height, width, channels) of images of full size.
        """
        return self.padding

    def image_scale(self, epoch: int, epochs: int) -> float:
        """Return the size of the images in an epoch (0, 1, …), as a share of their full size.

        A subclass may override it. The last epoch should have full size, that of the test images.
        """
        return 1.0

    @property
    def scales_images(self) -> bool:
        """Whether the size of the images may change during the training: the class overrides `image_scale`."""
        return type(self).image_scale is not Recipe.image_scale

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, for `run.json`.

        Raises:
            InputError: the recipe's class has been defined again.
        """
        schedule = {"kind": next(name for name, kind in SCHEDULES.items() if type(self.schedule) is kind)}
        fields = {**dataclasses.asdict(self), "schedule": {**schedule, **dataclasses.asdict(self.schedule)}}
        if type(self) is Recipe:
            return fields
        kind = next((name for name, kind in KINDS.items() if type(self) is kind), None)
        if kind is None:
            raise InputError(
                f"another class was defined with the kind of {type(self).__name__}; create the recipe again, or define "
                "its class with another kind"
            )
        return {"kind": kind, **fields}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """Return the recipe that `to_dict` wrote.

        Raises:
            InputError: its class is unknown, or a newer version wrote it.

        >>> Recipe.from_dict(RECIPES["paper"].to_dict()) == RECIPES["paper"]
        True
        """
        data, schedule = dict(data), dict(data["schedule"])
        name = data.pop("kind", None)
        if name not in (None, *KINDS):
            raise InputError(
                f"the recipe is of the kind {name!r}, which is not defined here; import its subclass of Recipe first, "
                "or update keras_preact if it is not yours"
            )
        schedule_type = SCHEDULES[check_choice("schedule", schedule.pop("kind"), SCHEDULES)]
        data["schedule"] = from_record(schedule_type, schedule)
        return from_record(KINDS[name] if name else Recipe, data)


def _check_subclass(kind: type[Recipe]) -> None:
    """Refuse a subclass that sets a field of its base as a plain class attribute, which a dataclass ignores."""
    fields = {field.name for field in dataclasses.fields(kind)}
    for base in itertools.takewhile(lambda base: base is not Recipe, kind.__mro__):
        decorated = "__dataclass_params__" in vars(base)
        annotated = inspect.get_annotations(base) if decorated else {}
        if ignored := sorted(fields & vars(base).keys() - set(annotated)):
            name = ignored[0]
            raise InputError(
                f"{base.__name__}.{name} has no effect; decorate the class with @dataclass(frozen=True) and write "
                f"`{name}: type = value`, or pass {name} when you create the recipe"
            )


@dataclass(frozen=True)
class AdamRecipe(Recipe, kind="adam"):
    """How a Transformer is trained: with AdamW.

    Attributes:
        momentum: β₁ of Adam. Default 0.9.
        beta_2: β₂ of Adam. Default 0.98.
        weight_decay: decoupled weight decay: each step multiplies decaying weights by 1 − learning rate × this.
            Default 1e-4.
        decays: `"all"` (default), or `"kernels"`: no biases, normalization parameters, embeddings or positions.
        clip_norm: clip the global norm of the gradient to this, or `None` (default) for no clipping.

    The other attributes are those of `Recipe`, without `nesterov`.

    >>> type(RECIPES["adam"].optimizer()).__name__
    'KernelAdamW'
    """

    beta_2: float = 0.98
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("beta_2", self.beta_2)
        if self.nesterov:
            raise InputError("AdamW has no Nesterov momentum; leave out nesterov")
        if self.clip_norm is not None and check_number("clip_norm", self.clip_norm, 0) == 0:
            raise InputError(
                "clip_norm is 0, which makes every gradient 0; use a larger number, or None for no clipping"
            )

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


@dataclass(frozen=True)
class FastRecipe(Recipe, kind="fast"):
    """How an image network reaches good accuracy in little time: smoothed labels, and small images first.

    The cost of a training step is proportional to the number of pixels. Early epochs on small images are cheap, and the
    last ones adapt the network to full size (progressive resizing: Howard 2018; Tan and Le 2021).

    Attributes:
        nesterov: as in `Recipe`, but `True` by default.
        weight_decay: as in `Recipe`, but 5e-4 by default.
        decays: as in `Recipe`, but `"kernels"` by default: biases and batch norms do not decay.
        padding: as in `Recipe`, for images of full size, but 2 by default; smaller images get proportionally less.
        inputs: as in `Recipe`, but `"per_channel"` by default. A mean per pixel would fit only one size.
        label_smoothing: ε of `SmoothedCrossEntropy`. Default 0.1.
        image_scales: sizes of the images during the training, as shares of full size. Default (0.5, 0.75, 1.0).
        scale_changes: shares of the training after which the next size follows, rounded to whole epochs. The last
            epoch always has full size. Default (0.5, 0.75).

    Example: the size of CIFAR-10's images in each of ten epochs.

    >>> recipe = FastRecipe("mine", steps=3_900)
    >>> [round(32 * recipe.image_scale(epoch, 10)) for epoch in range(10)]
    [16, 16, 16, 16, 16, 24, 24, 24, 32, 32]
    """

    nesterov: bool = True
    weight_decay: float = 5e-4
    decays: str = "kernels"
    padding: int = 2
    inputs: str = "per_channel"
    label_smoothing: float = 0.1
    image_scales: tuple[float, ...] = (0.5, 0.75, 1.0)
    scale_changes: tuple[float, ...] = (0.5, 0.75)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs in ONE_SIZE and self.image_scales != (1.0,):
            raise InputError(
                f"inputs={self.inputs!r} fits only one image size; use inputs='per_channel' or 'per_image', or "
                "image_scales=(1.0,) and scale_changes=()"
            )
        check_rate("label_smoothing", self.label_smoothing)
        for name, shares in (("image_scales", self.image_scales), ("scale_changes", self.scale_changes)):
            if not isinstance(shares, tuple):
                raise InputError(f"{name} is {shares!r}; it must be a tuple of shares, such as (0.5, 1.0)")
            for share in shares:
                check_number(f"a share in {name}", share, 0, 1)
        if len(self.scale_changes) != len(self.image_scales) - 1 or sorted(self.scale_changes) != [*self.scale_changes]:
            raise InputError(
                f"{len(self.image_scales)} image scales need {len(self.image_scales) - 1} scale changes in increasing "
                f"order, not {self.scale_changes}"
            )
        if self.image_scales[-1] != 1:
            raise InputError(
                f"the last of image_scales is {self.image_scales[-1]}; it must be 1, the size of test images"
            )

    def loss(self, task: Task) -> keras.losses.Loss:
        return SmoothedCrossEntropy(self.label_smoothing)

    def crop_padding(self, image_shape: Sequence[int]) -> float:
        return self.padding / min(image_shape[:2])

    def image_scale(self, epoch: int, epochs: int) -> float:
        changes = (min(round(share * epochs), epochs - 1) for share in self.scale_changes)  # the last has full size
        return self.image_scales[sum(epoch >= change for change in changes)]


def _paper_recipe(name: str, facts: dict[str, Any], reported: str, **choices: Any) -> Recipe:
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


def _cifar_recipe(name: str, epochs: int, drops: tuple[int, ...], batch_size: int = 128, **choices: Any) -> Recipe:
    """Return a recipe for CIFAR, given epochs. An epoch has only whole batches; the remaining images are dropped."""
    epoch = 50_000 // batch_size
    schedule = StepSchedule(drops=tuple(drop * epoch for drop in drops), warmup_steps=0)
    return Recipe(name, epochs * epoch, batch_size, schedule, **choices)


_FB_TRAINER: dict[str, Any] = {"nesterov": True, "inputs": "per_channel", "reported": "best epoch on test images"}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        _paper_recipe("paper", paper.CIFAR_RECIPE, "last epoch, median of 5 runs"),
        _paper_recipe("imagenet", paper.IMAGENET_RECIPE, "last epoch, one run", padding=0),
        # Its trainer (train.lua, opts.lua) lowers the rate when epochs 81 and 122 start, counted from 1. It reports the
        # smallest test error of all epochs (main.lua), so the epoch is selected on the test images.
        _cifar_recipe("fb_resnet_torch", 164, (80, 121), **_FB_TRAINER),
        # The authors' release is a network for that trainer; these are the settings in its README.
        _cifar_recipe("resnet_1k_layers", 200, (80, 121), batch_size=64, **_FB_TRAINER),
        # tensorflow/models, official/resnet, cifar10_main.py: it states that batch norm's variables decay too.
        _cifar_recipe("tensorflow_models", 182, (91, 136), weight_decay=2e-4, inputs="per_image", reported="not said"),
        # 30 epochs of CIFAR-10: half an hour for a ResNet-20 on two cores. So few steps call for cosine decay and for
        # the stronger weight decay that is common with it.
        Recipe("short", steps=11_700, schedule=CosineSchedule(0.1, warmup_steps=400), weight_decay=5e-4),
        # 12 epochs of CIFAR-10: six at 16×16 pixels, three at 24×24 and three at 32×32.
        FastRecipe("fast", steps=4_680, schedule=CosineSchedule(0.4, warmup_steps=936)),
        # About ten epochs of the bundled sequences: minutes on two cores.
        AdamRecipe(
            "adam",
            steps=1_500,
            batch_size=64,
            schedule=CosineSchedule(1e-3, warmup_steps=150),
            weight_decay=0.01,
            decays="kernels",
        ),
        # Two epochs of the 4,000 bundled images. Small batches allow more steps; so few epochs need only flips.
        Recipe("demo", steps=124, batch_size=64, schedule=CosineSchedule(0.1, warmup_steps=12), padding=0),
    )
}


def get_recipe(recipe: str | Recipe) -> Recipe:
    """Return a recipe by name; a `Recipe` is returned unchanged.

    Raises:
        InputError: no recipe has this name.

    >>> get_recipe("paper").batch_size
    128
    """
    return recipe if isinstance(recipe, Recipe) else RECIPES[check_choice("recipe", recipe, RECIPES)]
