"""The configuration of a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from keras_preact.data import (
    ImageDataset,
    SequenceDataset,
    load_dataset,
)
from keras_preact.errors import InputError
from keras_preact.training.recipe import Recipe, get_recipe

Dataset = ImageDataset | SequenceDataset


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run; `run.json` holds it whole.

    Attributes:
        network: a name of `keras_preact.models.NETWORKS`. Default `"cifar_resnet"`.
        options: arguments of the network, as plain data (`depth`, `placement`, `shortcut`, …).
        dataset: as in `load_dataset`: `"bundled"`, `"folder"`, or a tensorflow-datasets name.
        data_dir: where the data are; `None` for the default of each kind.
        image_size: height and width of the images in pixels, for example 16 to average CIFAR's down; default their
            own, where they have one.
        only: names of the classes to train on; default: all.
        skip_corrupt: whether images of a folder that cannot be read are left out, and counted. Default `False`.
        recipe: how to train.
        precision: `"float32"` (default), `"mixed_float16"` or `"mixed_bfloat16"`; `default_precision` says which is
            fastest here.
        seed: of initialization, data order and augmentation. Default 0.
        deterministic: whether the run gives the same weights to the bit each time on one machine; see
            `make_deterministic`. Default `False`.
        devices: of this machine that share each batch; see `on_devices`. Default 1.
        sync_batch_norm: whether, with several devices on TensorFlow, batch norms take their statistics over the whole
            batch; on JAX they always do. Default `False`: over the share of each device.

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
            raise InputError(f"the seed is {self.seed!r}; give a whole number from 0 to {2**32 - 1}")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data, for `run.json`."""
        return {**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}, "recipe": self.recipe.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunConfig:
        """Return the configuration that `to_dict` wrote.

        Raises:
            InputError: data that `to_dict` never wrote.
        """
        try:
            only = None if data.get("only") is None else tuple(data["only"])
            return cls(**{**data, "only": only, "recipe": Recipe.from_dict(data["recipe"])})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InputError(f"a recorded configuration cannot be read ({error}); restore its run.json") from None

    def load_dataset(self, data_dir: str | None = None) -> Dataset:
        """Return the run's data.

        Args:
            data_dir: where they are now, if they have moved.

        Raises:
            InputError: as in `keras_preact.data.load_dataset`; `only` with sequences.
        """
        dataset = load_dataset(self.dataset, data_dir or self.data_dir, self.image_size, self.skip_corrupt)
        if self.only is None:
            return dataset
        if isinstance(dataset, SequenceDataset):
            raise InputError(f"{self.dataset} has sequences, not images; leave out --only")
        return dataset.only(self.only)

    @property
    def label(self) -> str:
        """A short name: the network, its depth and its placement."""
        parts = [self.options.get("depth", ""), self.options.get("placement", "")]
        return "-".join([self.network, *(str(part) for part in parts if part)])
