"""The configuration of a run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from keras_preact.data import ImageDataset, SequenceDataset, load_dataset
from keras_preact.errors import InputError, check_flag, shown
from keras_preact.training.recipe import Recipe, get_recipe
from keras_preact.training.recorded import check_recordable, from_record, make_plain

Dataset = ImageDataset | SequenceDataset


def check_dataset(dataset: object) -> Any:
    """Return a data set unchanged.

    Raises:
        InputError: it is something else, such as a pair of arrays.
    """
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"dataset is a {type(dataset).__name__}; pass a data set, for example from keras_preact.data.from_arrays"
        )
    return dataset


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run, as recorded in `run.json`.

    Attributes:
        network: a name in `keras_preact.models.NETWORKS`. Default `"cifar_resnet"`.
        options: arguments of the network, as plain data (`depth`, `placement`, `shortcut`, …). Default `{}`.
        dataset: a name that `load_dataset` accepts: `"bundled"` (default), `"folder"`, `"reviews"`, `"characters"`,
            `"weather"`, or a tensorflow-datasets name.
        data_dir: the image folder, required by `"folder"`, or the data folder of tensorflow-datasets. Default `None`:
            that of tensorflow-datasets. Bundled data have none.
        image_size: height and width of the images in pixels, for example 16 to reduce those of CIFAR. Default: as in
            `load_dataset`.
        only: names of the classes to train on. Default: all.
        skip_corrupt: skip and count unreadable images of a folder. Default `False`.
        recipe: the training recipe, or its name in `RECIPES`. Default `"demo"`.
        precision: `"float32"` (default), `"mixed_float16"` or `"mixed_bfloat16"`; `default_precision()` returns
            `"mixed_bfloat16"` where it is faster than float32.
        seed: seed of initialization, data order and augmentation. Default 0.
        deterministic: compute the same weights each time, bit for bit, on one machine. Default `False`. The backend
            stays deterministic for the rest of the process. On GPUs, JAX and PyTorch need an environment variable,
            which the error names.
        devices: number of devices that share each batch. It must divide the batch size and the number of test
            examples. Default 1. With PyTorch, Keras trains on one.
        sync_batch_norm: with several devices on TensorFlow, batch norms use the statistics of the whole batch, as they
            always do on JAX. Default `False`: those of each device's share.

    Raises:
        InputError: an unknown recipe, a seed that is not an integer from 0 to 2³² − 1, or a `network`, `dataset`,
            `options`, `only` or flag of the wrong type. `load_dataset` and `start` check the other values.

    Example:

    >>> config = RunConfig(options={"depth": 20})
    >>> RunConfig.from_dict(config.to_dict()) == config
    True
    """

    network: str = "cifar_resnet"
    options: dict[str, Any] = field(default_factory=dict)
    dataset: str = "bundled"
    data_dir: str | None = None
    image_size: int | None = None
    only: tuple[str, ...] | None = None
    skip_corrupt: bool = False
    recipe: Recipe = field(default_factory=lambda: get_recipe("demo"))
    precision: str = "float32"
    seed: int = 0
    deterministic: bool = False
    devices: int = 1
    sync_batch_norm: bool = False

    def __post_init__(self) -> None:
        make_plain(self)
        object.__setattr__(self, "recipe", get_recipe(self.recipe))
        for what, example in (("network", "cifar_resnet"), ("dataset", "bundled")):
            if not isinstance(value := getattr(self, what), str):
                raise InputError(f"the {what} is {shown(value)}; a configuration names it, for example {example!r}")
        if not isinstance(self.options, dict) or not all(isinstance(name, str) for name in self.options):
            raise InputError(f"options is {shown(self.options)}; it must be a dictionary such as {{'depth': 20}}")
        if self.only is not None:
            if not isinstance(self.only, (list, tuple)):
                raise InputError(f"only is {self.only!r}; it must be a tuple of names, such as ('cat', 'dog')")
            object.__setattr__(self, "only", tuple(self.only))
        for flag in ("skip_corrupt", "deterministic", "sync_batch_norm"):
            check_flag(flag, getattr(self, flag))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise InputError(f"the seed is {self.seed!r}; it must be an integer from 0 to {2**32 - 1}")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, for `run.json`."""
        return {**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, "recipe": self.recipe.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunConfig:
        """Return the configuration that `to_dict` wrote.

        Raises:
            InputError: the data are not from `to_dict`.
        """
        try:
            return from_record(cls, {**data, "recipe": Recipe.from_dict(data["recipe"])})
        except InputError as error:
            raise InputError(f"a recorded configuration cannot be read: {error}") from None
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InputError(f"a recorded configuration cannot be read ({error}); restore its run.json") from None

    def check_recordable(self) -> None:
        """Raise InputError unless `run.json` can hold the configuration; to be called before its folder is created."""
        data = self.to_dict()
        options, recipe = data.pop("options"), data.pop("recipe")
        check_recordable("option", options)
        check_recordable("recipe's", recipe)
        check_recordable("configuration's", data)
        try:
            is_equal = Recipe.from_dict(json.loads(json.dumps(recipe))) == self.recipe
        except TypeError:  # a subclass with its own `__init__`
            is_equal = False
        if not is_equal:
            raise InputError(
                f"the recipe cannot be restored from run.json; make everything that {type(self.recipe).__name__} adds "
                "a field of a frozen dataclass"
            )

    def check_selection(self, dataset: object) -> None:
        """Raise InputError unless an object is a data set of the classes and image size that are configured, if any."""
        check_dataset(dataset)
        names, shape = getattr(dataset, "class_names", ()), getattr(dataset, "image_shape", ())
        if self.only is not None and self.only != tuple(names):
            raise InputError(
                f"only is {self.only}, but the data that were passed have the classes {', '.join(names) or 'none'}; "
                "select them with dataset.only(…), or set only to None"
            )
        if (size := self.image_size) is not None and tuple(shape[:2]) != (size, size):
            raise InputError(
                f"image_size is {size}, but the data that were passed have "
                f"{f'images of {shape[0]}×{shape[1]} pixels' if shape else 'no images'}; "
                f"{f'scale them with dataset.at({size}), or ' if shape else ''}set image_size to None"
            )

    def load_dataset(self, data_dir: str | None = None) -> Dataset:
        """Load the run's data.

        Args:
            data_dir: the data's current folder, if it has moved.

        Raises:
            InputError: as in `keras_preact.data.load_dataset`, or `only` is set for sequences.
        """
        dataset = load_dataset(self.dataset, data_dir or self.data_dir, self.image_size, self.skip_corrupt)
        return dataset if self.only is None else dataset.only(self.only)

    @property
    def label(self) -> str:
        """A short name: the network, depth and placement."""
        parts = [self.options.get("depth", ""), self.options.get("placement", "")]
        return "-".join([self.network, *(str(part) for part in parts if part)])
