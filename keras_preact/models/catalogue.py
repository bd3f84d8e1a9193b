"""Trained networks by name: their weights, and the card that says how good they are.

`keras_preact/weights/catalogue.json` describes them. Weights of at most 1 MB are in that folder too. Larger ones are in
the folder `weights/` of the repository, and elsewhere they are downloaded once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, check_choice, first_line
from keras_preact.layers.preprocessing import PerPixelMean
from keras_preact.models.registry import get_entry
from keras_preact.models.resnet import built_on
from keras_preact.models.saving.named_weights import assign_checked
from keras_preact.models.saving.safetensors import read_safetensors
from keras_preact.models.trained import require_uint8
from keras_preact.models.transformer import Classification, Tokens

FOLDER = Path(__file__).parents[1] / "weights"
"""Folder of the catalogue and the small files, part of the package."""
LARGE_FOLDER = Path(__file__).parents[2] / "weights"
"""Folder of the large files, if the package runs from a checkout of the repository."""
ADDRESS = "https://github.com/keras-preact/keras_preact/raw/main/weights"
"""Address of the large files."""
MEAN = "per_pixel_mean/"
"""Start of the name of the weight that belongs to the preprocessing."""
_FREE_OPTIONS = {"weights", "include_top", "pooling", "classifier_activation", "drop_path", "zero_init_residual"}
_FREE_OPTIONS |= {"kernel_initializer", "momentum", "output_stride", "data_format"}
"""Options that do not affect which weights fit."""


@dataclass(frozen=True, repr=False)
class Pretrained:
    """A trained network.

    Attributes:
        name: for example `"resnet20-preact-cifar10"`.
        network: name of the builder, for example `"cifar_resnet"`.
        options: arguments of the builder.
        dataset: name of the data set it was trained on.
        input_shape: (height, width, channels) of its images, or (length,) of its sequences of tokens.
        classes: names of the classes, in the order of the logits.
        moments: mean and standard deviation of each channel, which the images are standardized with; `None` if the mean
            of each pixel, one of the weights, is subtracted instead, or if the inputs are tokens.
        parameters: number of trainable parameters.
        run: name of the stored run that trained it.
        recipe: name of the recipe, number of steps, batch size, seed and precision of the run.
        seeds: test errors of all stored runs of this configuration, one per seed, in percent.
        test_size: number of test images or sentences.
        test_error: test error of these weights, which are those of the last epoch, in percent.
        class_errors: test error of each class in percent.
        confidence: mean probability of the predicted class in percent, over the test data.
        calibration_error: expected calibration error in percent, over 15 bins of equal width.
        bundled_errors: number of the 1,000 bundled test images, or of the bundled test sentences, that are classified
            wrongly.
        core_hours: CPU time of the training in hours; `None` if the run did not record it.
        data_license: terms of the training data.
        vocabulary: number of tokens; 0 if the inputs are images.
        bytes: size of the weights file.
        sha256: checksum of the weights file.
    """

    name: str
    network: str
    options: dict[str, Any]
    dataset: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None
    parameters: int
    run: str
    recipe: dict[str, Any]
    seeds: tuple[float, ...]
    test_size: int
    test_error: float
    class_errors: tuple[float, ...]
    confidence: float
    calibration_error: float
    bundled_errors: int
    core_hours: float | None
    data_license: str
    bytes: int
    sha256: str
    vocabulary: int = 0
    file: str = field(init=False)
    """Name of the weights file."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", f"{self.name}.safetensors")

    def __repr__(self) -> str:
        """Return one line, so that the list of all networks can be read."""
        return (
            f"<{self.name}: {self.test_error:.2f} % test error on {self.dataset}, {self.parameters:,} parameters, "
            f"{self.bytes / 1e6:.1f} MB; license of the data: {self.data_license.split(';')[0]}>"
        )

    @property
    def example(self) -> str:
        """What the network classifies: "image" or "sentence"."""
        return "sentence" if self.vocabulary else "image"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of the catalogue."""
        return {key: value for key, value in asdict(self).items() if key not in ("name", "file")}

    @classmethod
    def from_dict(cls, name: str, data: Mapping[str, Any]) -> Pretrained:
        """Return the network that an entry of the catalogue describes."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(name=name, **{key: value for key, value in values.items() if key in known})


@functools.cache
def catalogue() -> dict[str, Pretrained]:
    """Return all trained networks by name."""
    entries = json.loads((FOLDER / "catalogue.json").read_text(encoding="utf-8"))
    return {name: Pretrained.from_dict(name, entry) for name, entry in entries.items()}


def pretrained(name: str | None = None, dtype: Any = None) -> Any:
    """Return a trained network, or, without a name, the list of all of them.

    Args:
        name: name of a trained network.
        dtype: dtype or dtype policy of the network's layers. Default: Keras's setting.

    Returns:
        A functional `keras.Model`. Input: uint8 images (batch, height, width, 3), with the preprocessing inside; or
        int32 tokens (batch, length), which `encode` of the data set makes from texts. Output: logits (batch, classes),
        float32. Without a name, a list of `Pretrained`.

    Raises:
        InputError: there is no such network, or its weights are not on this computer and cannot be downloaded.

    Example: a network makes as many errors on the bundled test images as its entry records.

    >>> from keras_preact.data import load_dataset
    >>> about = pretrained()[0]
    >>> images, labels = load_dataset("bundled", image_size=about.input_shape[0]).test.batch(range(1000))
    >>> logits = pretrained(about.name, dtype="float32").predict(images, verbose=0)
    >>> int((logits.argmax(-1) != labels).sum()) == about.bundled_errors
    True
    """
    if name is None:
        return list(catalogue().values())
    about = catalogue()[check_choice("trained network", name, catalogue())]
    model = untrained(about, dtype)
    assign_checked(about.file, model, read_safetensors(weights_file(about)))
    return model


def untrained(about: Pretrained, dtype: Any = None) -> keras.Model:
    """Build the network of a catalogue's entry, from uint8 pixels or tokens to logits, with random weights."""
    entry, options = get_entry(about.network), {"rolled": None, "dtype": dtype, **about.options}
    if about.vocabulary:
        tokens = Tokens(about.vocabulary, about.input_shape[0])
        return entry.on_sequences(tokens, Classification(len(about.classes)), options)
    images = keras.Input(about.input_shape, dtype="uint8", name="images")
    if about.moments is None:
        x = PerPixelMean(name=MEAN.rstrip("/"))(images)
    else:
        mean, deviation = about.moments
        moments = {"mean": list(mean), "variance": [value**2 for value in deviation]}
        x = keras.layers.Normalization(**moments, dtype="float32", name="standardization")(images)
    return require_uint8(entry.on_images(x, len(about.classes), options))


def weights_file(about: Pretrained) -> Path:
    """Return the path of a network's weights; download them if they are not on this computer.

    Raises:
        InputError: they cannot be downloaded, or the file is not the one of the catalogue.
    """
    # An installed copy of the package finds the large files if Python runs inside a checkout, as notebooks do.
    for folder in (FOLDER, LARGE_FOLDER, *_folders_above()):
        path = folder / about.file
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() == about.sha256:
                return path
            if folder in (FOLDER, LARGE_FOLDER):  # elsewhere it may be of another version
                raise InputError(f"{path} is damaged or of another version; restore it or install the package again")
    try:
        options = {"cache_subdir": "keras_preact", "file_hash": about.sha256, "hash_algorithm": "sha256"}
        return Path(keras.utils.get_file(about.file, f"{ADDRESS}/{about.file}", **options))
    except Exception as error:
        raise InputError(
            f"the weights of {about.name} are not on this computer and cannot be downloaded "
            f"({first_line(error)}); connect to the internet, or clone the repository, which contains them"
        ) from None


def _folders_above() -> Iterator[Path]:
    """Yield the folders `weights` in the working directory and above it."""
    with contextlib.suppress(OSError):  # the working directory was removed
        yield from (place / "weights" for place in (Path.cwd(), *Path.cwd().parents))


def build_trained(builder: Callable[..., keras.Model], arguments: Mapping[str, Any]) -> keras.Model:
    """Build a network with trained weights, without the preprocessing.

    Args:
        builder: the builder.
        arguments: its arguments; `weights` is the name of a data set.

    Raises:
        InputError: no such network was trained, or the trained one has another number of classes.
    """
    about = _find(builder.__name__, arguments, arguments["weights"])
    model = builder(**{**arguments, "weights": None})
    values = {n: value for n, value in read_safetensors(weights_file(about)).items() if not n.startswith(MEAN)}
    if not arguments.get("include_top", True):
        values = {name: value for name, value in values.items() if not name.startswith("logits/")}
    elif (classes := model.get_layer("logits").units) != len(about.classes):
        raise InputError(
            f"{about.name} has {len(about.classes)} classes, not {classes}; set include_top=False and add a layer"
        )
    assign_checked(about.file, built_on(arguments.get("input_tensor"), model), values)
    return model


def _find(network: str, arguments: Mapping[str, Any], dataset: str) -> Pretrained:
    """Return the trained network that a builder's arguments describe.

    Raises:
        InputError: no such network was trained; the message names those that were.
    """
    wanted = _layers(network, arguments)
    on_dataset = [about for about in catalogue().values() if about.dataset == dataset]
    for about in on_dataset:
        if about.network == network and _layers(network, about.options) == wanted:
            return about
    names = ", ".join(about.name for about in on_dataset)
    raise InputError(f"no trained weights for {dataset!r} fit these options; use the options of one of {names}")


def _layers(network: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide which weights fit a network."""
    resolved = get_entry(network).resolved(dict(arguments))
    return {key: value for key, value in resolved.items() if key not in _FREE_OPTIONS}


def datasets() -> set[str]:
    """Return the names of the data sets that `weights=` of the builders accepts."""
    return {about.dataset for about in catalogue().values()}
