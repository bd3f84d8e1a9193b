"""The configuration of a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from keras_preact.data import ImageDataset, SequenceDataset, load_dataset
from keras_preact.errors import InputError
from keras_preact.training.recipe import Recipe, get_recipe

Dataset = ImageDataset | SequenceDataset


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run, as recorded in `run.json`.

    Attributes:
        network: a name in `keras_preact.models.NETWORKS`. Default `"cifar_resnet"`.
        options: arguments of the network, as plain data (`depth`, `placement`, `shortcut`, …). Default `{}`.
        dataset: a name that `load_dataset` accepts: `"bundled"` (default), `"folder"`, `"reviews"`, `"characters"`,
            `"weather"`, or a tensorflow-datasets name.
        data_dir: folder of the data; `None` (default) for the default of each kind.
        image_size: height and width of the images in pixels, for example 16 to average CIFAR's down. Default: as in
            `load_dataset`.
        only: names of the classes to train on. Default: all.
        skip_corrupt: skip and count unreadable images of a folder. Default `False`.
        recipe: the training recipe. Default `"demo"`.
        precision: `"float32"` (default), `"mixed_float16"` or `"mixed_bfloat16"`; `default_precision()` returns the
            fastest on this machine.
        seed: seed of initialization, data order and augmentation. Default 0.
        deterministic: compute the same weights each time, bit for bit, on one machine; see `make_deterministic`.
            Default `False`.
        devices: number of devices that share each batch; see `on_devices`. Default 1.
        sync_batch_norm: with several devices on TensorFlow, batch norms use the statistics of the whole batch, as they
            always do on JAX. Default `False`: those of each device's share.

    Raises:
        InputError: the seed is not an integer from 0 to 2³² − 1.

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
            only = None if data.get("only") is None else tuple(data["only"])
            return cls(**{**data, "only": only, "recipe": Recipe.from_dict(data["recipe"])})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InputError(f"a recorded configuration cannot be read ({error}); restore its run.json") from None

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
