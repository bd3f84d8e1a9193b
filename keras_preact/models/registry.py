"""Networks by name, as runs, the command line and stored results use them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import keras

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.convolutions import INITIALIZERS, check_kernel_initializer
from keras_preact.layers.placements import NORM_PLACEMENTS, PLACEMENTS, Placement, get_placement, placement_config
from keras_preact.layers.registry import shortcut_config
from keras_preact.models import imagenet
from keras_preact.models.cifar import cifar_resnet, cifar_units
from keras_preact.models.imagenet import imagenet_resnet
from keras_preact.models.profiles import conventions
from keras_preact.models.transformer import (
    Classification,
    Patches,
    postnorm_transformer,
    prenorm_transformer,
    transformer,
)

_SET_BY_PROGRAMS = {"input_tensor", "input_shape", "classes", "inputs", "head"}
_COMPUTES_THE_SAME = {"rolled", "remat", "dtype", "name"}


@dataclass(frozen=True)
class Entry(ABC):
    """A network that has a name.

    Attributes:
        builder: the function of that name, which returns a Keras model.
        base: the builder with all arguments, which `builder` calls.
        fixed: arguments of `base` that the name decides.
        default_dataset: name of the data set for training.
        placements: the placements that have names.
        has_batch_norm: whether several devices may need to share batch statistics.
    """

    builder: Callable[..., keras.Model]
    base: Callable[..., keras.Model]
    fixed: dict[str, Any] = field(default_factory=dict)

    default_dataset: ClassVar[str]
    placements: ClassVar[dict[str, Placement]]
    has_batch_norm: ClassVar[bool]

    @property
    def name(self) -> str:
        """The name of the builder."""
        return self.builder.__name__

    @property
    def options(self) -> set[str]:
        """The names of the arguments that `builder` accepts, including those that it passes on.

        >>> options = get_entry("preact_resnet50").options
        >>> "shortcut" in options, "depth" in options
        (True, False)
        """
        own, passed_on = (set(inspect.signature(function).parameters) for function in (self.builder, self.base))
        return (own | passed_on) - {"options"} - self.fixed.keys()

    def resolved(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of `base` that decide what the network computes, with all defaults filled in.

        Raises:
            InputError: a value is unknown or out of range.
        """
        defaults = {key: parameter.default for key, parameter in inspect.signature(self.base).parameters.items()}
        full = {**defaults, **options, **self.fixed}
        full = {key: value for key, value in full.items() if key not in _SET_BY_PROGRAMS | _COMPUTES_THE_SAME}
        placement = placement_config(get_placement(full["placement"], self.placements), self.placements)
        return {**full, "placement": placement, "shortcut": shortcut_config(full["shortcut"])}

    def facts(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return what the record of a run says of the network besides its options."""
        return {}

    @abstractmethod
    def default_recipe(self, dataset: str) -> str:
        """Return the name of the recipe for training on the data set of that name."""

    @abstractmethod
    def on_its_own(self, image_size: int | None, classes: int | None, options: dict[str, Any]) -> keras.Model:
        """Build the network without data.

        Args:
            image_size: height and width in pixels. `None`: the network's default.
            classes: number of classes. `None`: the network's default.
            options: arguments of the builder.

        Raises:
            InputError: the network rejects the options, or has no image size.
        """

    @abstractmethod
    def on_images(self, images: Any, classes: int, options: dict[str, Any]) -> keras.Model:
        """Build the network on a Keras tensor (batch, height, width, channels), with logits for `classes`."""

    def on_sequences(self, inputs: Any, head: Any, options: dict[str, Any]) -> keras.Model:
        """Build the network for an input and a head of `keras_preact.models`, such as `Tokens` and `NextToken`.

        Raises:
            InputError: the network accepts images only.
        """
        raise InputError(f"{self.name} accepts images, not sequences; use one of {', '.join(TRANSFORMERS)}")


class ResNetEntry(Entry):
    """A residual network for images."""

    default_dataset, placements, has_batch_norm = "bundled", PLACEMENTS, True

    @property
    def family(self) -> str:
        """The family of the network in a profile: `"cifar"` or `"imagenet"`."""
        return self.base.__name__.removesuffix("_resnet")

    def resolved(self, options: dict[str, Any]) -> dict[str, Any]:
        full = super().resolved(options)
        chosen = asdict(conventions(full.pop("profile"), self.family, get_placement(full["placement"])))
        del chosen["inputs"]  # the preparation of images is part of the recipe
        full |= {key: value for key, value in chosen.items() if full.get(key) is None}
        full["kernel_initializer"] = _initializer_config(full["kernel_initializer"])
        full["data_format"] = full["data_format"] or "channels_last"  # the layout of the data
        if self.family == "cifar":
            full["block"], _ = cifar_units(full["depth"], full.pop("bottleneck"), full["block"])
        elif full["output_stride"] is None:
            full["output_stride"] = 32 if full["stem"] == "7x7" else 8
        return full

    def default_recipe(self, dataset: str) -> str:
        return "demo" if dataset == "bundled" else "short"

    def on_its_own(self, image_size: int | None, classes: int | None, options: dict[str, Any]) -> keras.Model:
        given = {
            **({} if classes is None else {"classes": classes}),
            **({} if image_size is None else {"input_shape": (image_size, image_size, 3)}),
        }
        return self.builder(**given, **options)

    def facts(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"profile": options.get("profile", "paper")}

    def on_images(self, images: Any, classes: int, options: dict[str, Any]) -> keras.Model:
        # The data's format, whatever Keras's default.
        return self.builder(input_tensor=images, classes=classes, **{"data_format": "channels_last", **options})


class TransformerEntry(Entry):
    """A Transformer for sequences, or for images as patches: it has the option `patch` too."""

    default_dataset, placements, has_batch_norm = "reviews", NORM_PLACEMENTS, False

    @property
    def options(self) -> set[str]:
        return super().options | {"patch"}

    def resolved(self, options: dict[str, Any]) -> dict[str, Any]:
        full = super().resolved({"patch": Patches.size, **options})
        return {**full, "feed_forward_dim": full["feed_forward_dim"] or 4 * full["dim"]}

    def default_recipe(self, dataset: str) -> str:
        return "adam"

    def on_its_own(self, image_size: int | None, classes: int | None, options: dict[str, Any]) -> keras.Model:
        inputs, options = None, dict(options)
        if (patch := options.pop("patch", None)) is not None:
            inputs = Patches(Patches.image_shape if image_size is None else (image_size, image_size, 3), patch)
        elif image_size is not None:
            raise InputError(f"{self.name} accepts sequences unless patch is set; set it, or leave out the image size")
        return self.builder(inputs, Classification(Classification.classes if classes is None else classes), **options)

    def on_images(self, images: Any, classes: int, options: dict[str, Any]) -> keras.Model:
        options = {"patch": Patches.size, **options}
        inputs = Patches(images.shape[1:], options.pop("patch"))
        return self.builder(inputs, Classification(classes), input_tensor=images, **options)

    def on_sequences(self, inputs: Any, head: Any, options: dict[str, Any]) -> keras.Model:
        if "patch" in options:
            raise InputError("patch divides images, but the data are sequences; leave it out")
        return self.builder(inputs, head, **options)


def _initializer_config(initializer: Any) -> Any:
    """Return the configuration of a kernel initializer; one of our own names unchanged."""
    checked = check_kernel_initializer(initializer)
    if isinstance(checked, str) and checked in INITIALIZERS:
        return checked
    return keras.initializers.serialize(keras.initializers.get(checked))


def _imagenet_entries() -> list[Entry]:
    orders = {"preact": "full_preactivation", "postact": "original"}
    return [
        ResNetEntry(
            getattr(imagenet, f"{prefix}_resnet{depth}"), imagenet_resnet, {"depth": depth, "placement": placement}
        )
        for prefix, placement in orders.items()
        for depth in imagenet.UNITS
    ]


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        ResNetEntry(cifar_resnet, cifar_resnet),
        ResNetEntry(imagenet_resnet, imagenet_resnet),
        *_imagenet_entries(),
        TransformerEntry(transformer, transformer),
        TransformerEntry(prenorm_transformer, transformer, {"placement": "pre_norm"}),
        TransformerEntry(postnorm_transformer, transformer, {"placement": "post_norm"}),
    )
}
NETWORKS: dict[str, Callable[..., keras.Model]] = {name: entry.builder for name, entry in ENTRIES.items()}
"""Every network by the name that the command line and run.json use."""
TRANSFORMERS = tuple(name for name, entry in ENTRIES.items() if isinstance(entry, TransformerEntry))
"""The networks that accept sequences, and images as patches."""


def get_entry(name: str) -> Entry:
    """Return the entry of that name; hyphens count as underscores.

    Raises:
        InputError: there is no such network.

    >>> get_entry("preact-resnet50").fixed
    {'depth': 50, 'placement': 'full_preactivation'}
    """
    return ENTRIES[check_choice("network", name.replace("-", "_") if isinstance(name, str) else name, ENTRIES)]


def get_network(name: str) -> Callable[..., Any]:
    """Return the function that builds the network of that name; hyphens count as underscores.

    Raises:
        InputError: there is no such network.

    >>> get_network("preact_resnet50").__name__
    'preact_resnet50'
    """
    return get_entry(name).builder
