"""ResNet variants by code base: the choices that the paper leaves open or that others made differently, as data.

At least six different networks are called "pre-activation ResNet". They differ in function, in parameters, or in both.
`Conventions` is one set of choices; `PROFILES` has those of the code bases that people compare with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from keras_preact.errors import InputError, check_choice
from keras_preact.layers.placements import Placement


@dataclass(frozen=True)
class Preprocessing:
    """How a code base prepares a test image: short side to `resize` pixels, center crop, normalization of each channel.

    Attributes:
        resize: length of the short side in pixels.
        crop: height and width of the center crop in pixels.
        interpolation: of the resizing, with antialiasing: `"bilinear"` or `"bicubic"`.
        mean: subtracted from the channels; pixels are in [0, 255].
        deviation: divisor of the channels.
        bgr: whether the channels are reversed before the normalization.
    """

    resize: int = 256
    crop: int = 224
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (123.675, 116.28, 103.53)
    deviation: tuple[float, ...] = (58.395, 57.12, 57.375)
    bgr: bool = False

    def __str__(self) -> str:
        """Return the preprocessing in words.

        >>> str(Preprocessing(mean=(127.5,) * 3, deviation=(127.5,) * 3))
        'short side 256, crop 224, bilinear, (x − 127.5) / 127.5'
        """
        mean, deviation = (", ".join(f"{value:g}" for value in dict.fromkeys(v)) for v in (self.mean, self.deviation))
        mean = f"({mean})" if "," in mean else mean
        divided = {"1": ""}.get(deviation, f" / ({deviation})" if "," in deviation else f" / {deviation}")
        x = "BGR" if self.bgr else "x"
        return f"short side {self.resize}, crop {self.crop}, {self.interpolation}, ({x} − {mean}){divided}"


IMAGENET = Preprocessing()
"""Preprocessing of most code bases for ImageNet, torchvision among them."""


def _choice(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class Conventions:
    """The choices that the paper leaves open, for one network. The defaults are the paper's.

    A field with the name of an argument of `ResidualUnit` or `imagenet_resnet` has its values. `first_preactivation`
    says when the first unit has norm and ReLU before the split: `"shared"`, always; `"by_shape"`, only if it changes
    the shape, like all other units.

    The metadata of each field has a `description`, which `keras-preact info --against` prints.
    """

    shape_change: str = _choice("projection", "change of shape")
    stride_on: str = _choice("3x3", "strided convolution of a bottleneck")
    stride_in: str = _choice("first", "strided unit of a stage")
    first_preactivation: str = _choice("shared", "norm and ReLU of the first unit, for both paths")
    stem_activation: bool = _choice(True, "norm and ReLU before the max-pooling")
    pool_padding: float = _choice(0.0, "max-pooling's padding")
    head_activation: bool = _choice(True, "norm and ReLU after the last unit")
    biases: str = _choice("none", "convolutions with a bias")
    kernel_initializer: str = _choice("he_by_fan_out", "initial kernels")
    momentum: float = _choice(0.9, "momentum of batch norm")
    epsilon: float = _choice(1e-5, "epsilon of batch norm")
    inputs: Preprocessing | str = _choice(IMAGENET, "test images")  # noqa: RUF009 (it is frozen)

    def unit_options(self, **options: Any) -> dict[str, Any]:
        """Return the given arguments, with the convention in place of each that is `None`.

        >>> PAPER.unit_options(stride_on=None, epsilon=1e-3)
        {'stride_on': '3x3', 'epsilon': 0.001}
        """
        return {name: getattr(self, name) if value is None else value for name, value in options.items()}


PAPER = Conventions()
_PIXEL_MEAN, _STANDARDIZED = "mean of each pixel subtracted", "mean and deviation of the channels"


@dataclass(frozen=True)
class Profile:
    """A code base and its networks.

    Attributes:
        name: as the builders and the command line accept it.
        source: where the choices come from.
        cifar: conventions of its CIFAR networks; `None` if it has none.
        imagenet: conventions of its pre-activation ImageNet networks; `None` if it has none.
        imagenet_original: conventions of its original ImageNet networks, if they differ.
    """

    name: str
    source: str
    cifar: Conventions | None = None
    imagenet: Conventions | None = None
    imagenet_original: Conventions | None = None


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("paper", "He et al. 2016, text and appendix", replace(PAPER, inputs=_PIXEL_MEAN), PAPER),
        Profile(
            "resnet_1k_layers",
            "github.com/KaimingHe/resnet-1k-layers, the authors' code for CIFAR",
            cifar=Conventions(stride_on="1x1", first_preactivation="by_shape", inputs=_STANDARDIZED),
        ),
        Profile(
            "fb_resnet_torch",
            "github.com/facebookarchive/fb.resnet.torch, models/preresnet.lua and resnet.lua",
            cifar=Conventions(shape_change="option_a", inputs=_STANDARDIZED),
            imagenet=PAPER,
        ),
        Profile(
            "keras_applications",
            "keras.applications, ResNet50V2, ResNet50 and their deeper variants",
            imagenet=Conventions(
                stride_in="last",
                stem_activation=False,
                biases="unnormalized",
                kernel_initializer="glorot_uniform",
                momentum=0.99,
                epsilon=1.001e-5,
                inputs=Preprocessing(interpolation="bicubic", mean=(127.5,) * 3, deviation=(127.5,) * 3),
            ),
            imagenet_original=Conventions(
                stride_on="1x1",
                biases="all",
                kernel_initializer="glorot_uniform",
                momentum=0.99,
                epsilon=1.001e-5,
                inputs=Preprocessing(
                    interpolation="bicubic", mean=(103.939, 116.779, 123.68), deviation=(1.0,) * 3, bgr=True
                ),
            ),
        ),
        Profile(
            "timm",
            "github.com/huggingface/pytorch-image-models, resnetv2_18 to resnetv2_152, and resnet18 to resnet152",
            imagenet=Conventions(
                first_preactivation="by_shape",
                stem_activation=False,
                pool_padding=float("-inf"),
                inputs=Preprocessing(235, 224, "bicubic", (127.5,) * 3, (127.5,) * 3),  # resnetv2_50.a1h_in1k
            ),
            imagenet_original=replace(PAPER, inputs=Preprocessing(235, 224, "bicubic")),  # resnet50.a1_in1k
        ),
        Profile(
            "pytorch_cifar",
            "github.com/kuangliu/pytorch-cifar, preact_resnet.py: the ImageNet stages on 32-pixel images",
            imagenet=Conventions(
                first_preactivation="by_shape",
                head_activation=False,
                kernel_initializer="uniform_by_fan_in",
                inputs=_STANDARDIZED,
            ),
            imagenet_original=Conventions(kernel_initializer="uniform_by_fan_in", inputs=_STANDARDIZED),
        ),
    )
}


def conventions(profile: str, family: str, placement: Placement) -> Conventions:
    """Return the conventions of a profile for a network.

    Args:
        profile: a name in `PROFILES`.
        family: `"cifar"` or `"imagenet"`.
        placement: of the network. One without pre-activation uses the conventions for original networks.

    Raises:
        InputError: the profile is unknown or has no networks of the family.

    Example:

    >>> from keras_preact.layers import PLACEMENTS
    >>> conventions("keras_applications", "imagenet", PLACEMENTS["full_preactivation"]).stride_in
    'last'
    """
    chosen = PROFILES[check_choice("profile", profile, PROFILES)]
    found = getattr(chosen, family)
    if family == "imagenet" and not placement.first:
        found = chosen.imagenet_original or found
    if found is None:
        profiles = ", ".join(name for name, other in PROFILES.items() if getattr(other, family) is not None)
        title = {"cifar": "CIFAR", "imagenet": "ImageNet"}[family]
        raise InputError(f"the profile {profile} has no {title} networks; choose one of {profiles}")
    return found


def differences(one: Conventions, other: Conventions) -> list[tuple[str, Any, Any]]:
    """Return the differences between two sets of choices: (description, value in `one`, value in `other`).

    Truth values are "yes" and "no".

    >>> differences(PAPER, Conventions(stride_on="1x1"))
    [('strided convolution of a bottleneck', '3x3', '1x1')]
    """

    def said(value: Any) -> Any:
        return ("yes" if value else "no") if isinstance(value, bool) else value

    pairs = ((choice, getattr(one, choice.name), getattr(other, choice.name)) for choice in fields(Conventions))
    return [(choice.metadata["description"], said(a), said(b)) for choice, a, b in pairs if a != b]
