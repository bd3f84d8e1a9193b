"""Every published number that this project quotes, with its source. No other file quotes one.

The source is He, Zhang, Ren, Sun: Identity Mappings in Deep Residual Networks, ECCV 2016 (arXiv 1603.05027), unless
another is named. Errors are test errors in percent. On CIFAR they are the median of 5 runs, after the last epoch.

This module imports nothing from the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

SOURCES = {
    "L": "checked against a reading of the paper's LaTeX source, table and line",
    "O": "published in the authors' code repository, resnet-1k-layers, or its README",
    "S": "quoted in secondary texts too",
    "M": "from memory of the paper, not checked against a copy",
    "T": "one transcription of the table agrees",
}
"""Meaning of the source marks."""

FAILS_ABOVE = 20.0
"""Tables 1 to 3 print "fails" for an error (%) above this. Source mark: M; one transcription agrees."""


@dataclass(frozen=True)
class Published:
    """A published number.

    Attributes:
        value: the number, or `None` if the paper says "fails".
        source: source marks, letters of `SOURCES`.
    """

    value: float | None
    source: str

    def __str__(self) -> str:
        return "fails" if self.value is None else f"{self.value:.2f}"


FAILS = Published(None, "L")


@dataclass(frozen=True)
class ShortcutRow:
    """A row of Table 1.

    Attributes:
        name: short name of the row, ours.
        shortcut: the `shortcut` argument of this package's layers.
        on_shortcut: the table's entry for the shortcut.
        on_residual: the table's entry for F.
        error: error of ResNet-110 on CIFAR-10.
    """

    name: str
    shortcut: str
    on_shortcut: str
    on_residual: str
    error: Published


TABLE_1 = (
    ShortcutRow("original", "identity", "1", "1", Published(6.61, "SL")),
    ShortcutRow("scaling-0-1", "constant_scaling(shortcut=0, residual=1)", "0", "1", FAILS),
    ShortcutRow("scaling-0.5-1", "constant_scaling(shortcut=0.5, residual=1)", "0.5", "1", FAILS),
    ShortcutRow("scaling-0.5-0.5", "constant_scaling", "0.5", "0.5", Published(12.35, "SL")),
    ShortcutRow("exclusive-gating-0", "exclusive_gating(gate_bias=0)", "1 − g(x)", "g(x), b = 0", FAILS),
    ShortcutRow("exclusive-gating-5", "exclusive_gating(gate_bias=-5)", "1 − g(x)", "g(x), b = −5", FAILS),
    ShortcutRow(
        "exclusive-gating-6", "exclusive_gating(gate_bias=-6)", "1 − g(x)", "g(x), b = −6", Published(8.70, "SL")
    ),
    ShortcutRow(
        "exclusive-gating-7", "exclusive_gating(gate_bias=-7)", "1 − g(x)", "g(x), b = −7", Published(9.81, "L")
    ),
    ShortcutRow(
        "shortcut-gating-0", "shortcut_only_gating(gate_bias=0)", "1 − g(x), b = 0", "1", Published(12.86, "L")
    ),
    ShortcutRow(
        "shortcut-gating-6", "shortcut_only_gating(gate_bias=-6)", "1 − g(x), b = −6", "1", Published(6.91, "L")
    ),
    ShortcutRow("conv", "conv", "1×1 convolution", "1", Published(12.22, "SL")),
    ShortcutRow("dropout", "dropout(rate=0.5)", "dropout 0.5", "1", FAILS),
)
"""Table 1: the shortcut h, in the original ResNet-110 (f = ReLU), CIFAR-10. g(x) = σ(W x + b), a 1×1 convolution.

The paper reports that exclusive gating fails for b from 0 to −5; the table here has the two ends."""

TABLE_2 = {
    "original": {110: Published(6.61, "SL"), 164: Published(5.93, "SL")},
    "bn_after_addition": {110: Published(8.17, "L"), 164: Published(6.50, "L")},
    "relu_before_addition": {110: Published(7.84, "L"), 164: Published(6.14, "L")},
    "relu_only_preactivation": {110: Published(6.71, "L"), 164: Published(5.91, "L")},
    "full_preactivation": {110: Published(6.37, "SL"), 164: Published(5.46, "SL")},
}
"""Table 2: the placement of the activations, by placement and depth; identity shortcuts, CIFAR-10."""


@dataclass(frozen=True)
class DepthRow:
    """A row of Table 3."""

    dataset: str
    network: str
    original: Published
    full_preactivation: Published


TABLE_3 = (
    DepthRow("cifar10", "ResNet-110, one layer per unit", Published(9.90, "L"), Published(8.91, "L")),
    DepthRow("cifar10", "ResNet-110", Published(6.61, "S"), Published(6.37, "S")),
    DepthRow("cifar10", "ResNet-164", Published(5.93, "S"), Published(5.46, "S")),
    DepthRow("cifar10", "ResNet-1001", Published(7.61, "SL"), Published(4.92, "SL")),
    DepthRow("cifar100", "ResNet-164", Published(25.16, "L"), Published(24.33, "L")),
    DepthRow("cifar100", "ResNet-1001", Published(27.82, "L"), Published(22.71, "SL")),
)
"""Table 3: depth."""


@dataclass(frozen=True)
class Spread:
    """Median, mean and standard deviation of several runs; `None` where the paper has none."""

    median: float
    mean: float | None
    deviation: float | None
    source: str


TABLE_4 = {
    ("cifar10", "ResNet-164", 128): Spread(5.46, None, None, "S"),
    ("cifar10", "ResNet-1001", 128): Spread(4.92, 4.89, 0.14, "O"),
    ("cifar10", "ResNet-1001", 64): Spread(4.62, 4.69, 0.20, "O"),
    ("cifar100", "ResNet-1001", 128): Spread(22.71, 22.68, 0.22, "T"),
}
"""Table 4, only the paper's own networks (full pre-activation), by data set, network and mini-batch size."""
TIE_BELOW = max(spread.deviation for (data, *_), spread in TABLE_4.items() if data == "cifar10" and spread.deviation)
"""The largest standard deviation of the paper's runs on CIFAR-10, in points; smaller published differences are ties."""


@dataclass(frozen=True)
class ImageNetRow:
    """A row of Table 5: single crop, top-1 and top-5 error (%)."""

    network: str
    placement: str
    crop: int
    top1: float
    top5: float
    source: str
    augmentation: str = "scale"


TABLE_5 = (
    ImageNetRow("ResNet-152", "original", 224, 23.0, 6.7, "T"),
    ImageNetRow("ResNet-152", "original", 320, 21.3, 5.5, "MT"),
    ImageNetRow("ResNet-152", "full_preactivation", 320, 21.1, 5.5, "MT"),
    ImageNetRow("ResNet-200", "original", 320, 21.8, 6.0, "SMT"),
    ImageNetRow("ResNet-200", "full_preactivation", 320, 20.7, 5.3, "SMT"),
    ImageNetRow("ResNet-200", "full_preactivation", 320, 20.1, 4.8, "MT", "scale and aspect ratio"),
    ImageNetRow("Inception v3", "", 299, 21.2, 5.6, "T"),
    # In the text:
    ImageNetRow("ResNet-101", "bn_after_addition", 224, 24.6, 7.5, "T"),
    ImageNetRow("ResNet-101", "original", 224, 23.6, 7.1, "T"),
)
"""Table 5: ImageNet."""

PARAMETERS = {
    ("cifar10", 110, "original"): 1_730_714,
    ("cifar10", 110, "full_preactivation"): 1_730_522,
    ("cifar10", 164, "original"): 1_704_154,
    ("cifar10", 164, "full_preactivation"): 1_703_258,
    ("cifar10", 1001, "original"): 10_328_602,
    ("cifar10", 1001, "full_preactivation"): 10_327_706,
    ("cifar100", 164, "original"): 1_727_284,
    ("cifar100", 164, "full_preactivation"): 1_726_388,
    ("cifar100", 1001, "original"): 10_351_732,
    ("cifar100", 1001, "full_preactivation"): 10_350_836,
    ("imagenet", 18, "full_preactivation"): 11_687_720,
    ("imagenet", 34, "full_preactivation"): 21_795_880,
    ("imagenet", 50, "full_preactivation"): 25_549_352,
    ("imagenet", 101, "full_preactivation"): 44_541_480,
    ("imagenet", 152, "full_preactivation"): 60_185_128,
    ("imagenet", 200, "full_preactivation"): 64_666_152,
}
"""Trainable parameters by data set, depth and placement, with projections in units that change the shape."""

PARAMETERS_OPTION_A = {("cifar10", 110, "original"): 1_727_962, ("cifar10", 110, "full_preactivation"): 1_727_962}
"""The same with option A shortcuts instead of projections."""

CIFAR_RECIPE: dict[str, Any] = {
    "batch_size": 128,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "learning_rate": 0.1,
    "drops": (32_000, 48_000),
    "steps": 64_000,
    "warmup_learning_rate": 0.01,
    "warmup_steps": 400,
}
"""From the appendix. Each drop divides the rate by 10; the warm-up is "not necessary" for the proposed unit."""

_EPOCH = 1_281_167 // 256
IMAGENET_RECIPE: dict[str, Any] = {
    "batch_size": 256,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "learning_rate": 0.1,
    "drops": (30 * _EPOCH, 60 * _EPOCH),
    "steps": 90 * _EPOCH,
    "warmup_learning_rate": 0.1,
    "warmup_steps": 0,
}
"""The same for ImageNet: 90 epochs, drops after 30 and 60. Source mark of momentum, decay and epochs: M."""

IMAGENET_SHORT_SIDE = (256, 480)
IMAGENET_CROP = 224
"""Scale jitter: the short side of a training image in pixels, and the crop."""


@dataclass(frozen=True)
class Reproduction:
    """An independent result for one of the paper's networks on CIFAR-10.

    Attributes:
        who: name of the code base.
        network: the network that was trained.
        errors: test error (%), or the two ends of a range.
        parameters: number of trainable parameters, if published.
    """

    who: str
    network: str
    errors: tuple[float, ...]
    parameters: int | None = None


REPRODUCTIONS = (
    Reproduction("hysts/pytorch_image_classification", "original 110, median of 3", (6.52,)),
    Reproduction("hysts/pytorch_resnet_preact", "full pre-activation 110, median of 3", (6.47,)),
    Reproduction("hysts/pytorch_resnet_preact", "full pre-activation 164, median of 3", (5.90,)),
    Reproduction("a Lasagne reproduction", "full pre-activation 110", (6.06, 6.38)),
    Reproduction("a Lasagne reproduction", "full pre-activation 164", (5.66, 6.07)),
    Reproduction("kuangliu/pytorch-cifar", "PreActResNet18", (4.89,)),
    Reproduction("flukeskywalker/highway-resnet-comparison", "Highway 110, gate bias −6, one run", (6.04,), 2_649_918),
    Reproduction("flukeskywalker/highway-resnet-comparison", "ResNet 110, one run", (6.25,), 1_727_962),
)
"""Independent results. The last two dispute Table 1; their networks also differ in size and projections."""


def reproduced(network: str) -> str:
    """Return the independent results for a network as text; an empty text if there are none.

    >>> reproduced("full pre-activation 110")
    '6.47 (hysts), 6.06 to 6.38 (Lasagne)'
    """
    found = [entry for entry in REPRODUCTIONS if entry.network.split(",")[0] == network]
    names = [entry.who.split("/")[0].removeprefix("a ").removesuffix(" reproduction") for entry in found]
    errors = [" to ".join(f"{error:.2f}" for error in entry.errors) for entry in found]
    return ", ".join(f"{error} ({name})" for error, name in zip(errors, names, strict=True))


INITIAL_GRADIENT_EXPONENTS = {"pre_norm": -0.5, "post_norm": 0.0}
"""Exponent s of ‖∂E/∂W‖ ∝ L^s at initialization: L Transformer blocks, W the last feed-forward weights.

Xiong et al. 2020, Theorem 1: O(d √(ln d / L)) in the pre-norm order, O(d √ln d) in the post-norm order; both are
upper bounds.
"""

WARMUP_BLEU = {("post_norm", 0): 8.45, ("post_norm", 4000): 34.0}
"""Xiong et al. 2020: BLEU on IWSLT14 De-En with Adam, by order and warm-up steps; the second is "about 34"."""

FIRST_RESNET_ERRORS = {20: Published(8.75, "M"), 1202: Published(7.93, "M")}
"""Errors of the original ResNet on CIFAR-10, by depth (He et al., Deep Residual Learning, 2015)."""


SAME_RECIPE_IMAGENET = {
    "ResNet-18-D": (74.356, 74.422),
    "ResNet-34": (77.492, 77.626),
    "ResNet-101": (81.950, 82.042),
}
"""Top-1 accuracy on ImageNet in percent, original and pre-activation order, trained with one recipe, one run each.

timm, results-imagenet.csv at 224 pixels: weights ra4 of ResNet-18-D and ResNet-34, a1h of ResNet-101.
"""


@dataclass(frozen=True)
class Misquotation:
    """A number or claim that other texts attribute to the paper.

    Attributes:
        claim: the claim.
        right: the correction.
    """

    claim: str
    right: str


KERAS_EXAMPLE_PARAMETERS = 3_302_442
"""Parameters of ResNet110v2 in Keras's example cifar10_resnet, which has bottlenecks and other widths."""

MISQUOTATIONS = (
    Misquotation(
        "the original ResNet-1001 failed to converge",
        f"it trains, to a test error of {TABLE_3[3].original} on CIFAR-10",
    ),
    Misquotation(
        f"ResNet-1001 reaches {TABLE_4['cifar10', 'ResNet-1001', 64].median} with the paper's recipe",
        "that is with mini-batches of 64, in the code released later; with the paper's 128 it reaches "
        f"{TABLE_3[3].full_preactivation}",
    ),
    Misquotation(
        "ReLU-only pre-activation reaches 5.71 at 164 layers",
        f"it reaches {TABLE_2['relu_only_preactivation'][164]}",
    ),
    Misquotation("BN-only pre-activation reaches 5.63", "the paper has no such row"),
    Misquotation(
        f"ResNet-200 reaches {TABLE_5[4].top1} / {TABLE_5[4].top5} on ImageNet, on crops of 224 as usual",
        "that is on crops of 320; the paper has no error on crops of 224 for it",
    ),
    Misquotation(
        "Keras's example ResNet110v2 is the paper's ResNet-110",
        f"it has {KERAS_EXAMPLE_PARAMETERS:,} parameters in bottlenecks; the paper's, two 3×3 convolutions per unit, "
        f"{PARAMETERS['cifar10', 110, 'full_preactivation']:,}",
    ),
    Misquotation(
        "by Eq. (5) the gradient can never vanish",
        "the first term reaches every unit unchanged, but the sum vanishes if the second term is minus the first",
    ),
)
"""Claims in other texts, and their corrections."""


def in_words(name: str) -> str:
    """Return the name of a network, placement or shortcut as a label, in the words of the paper.

    >>> in_words("resnet20_full_preactivation"), in_words("bn_after_addition"), in_words("relu_only_preactivation")
    ('ResNet-20, full pre-activation', 'BN after addition', 'ReLU-only pre-activation')
    """
    name = re.sub(r"^resnet(\d+)_", r"ResNet-\1, ", name).replace("_", " ").replace("preactivation", "pre-activation")
    return re.sub(r"\brelu\b", "ReLU", re.sub(r"\bbn\b", "BN", name)).replace(" only pre", "-only pre")
