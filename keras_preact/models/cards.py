"""Cards of the trained networks: what each was trained on, how good it is, and what it is not for."""

from __future__ import annotations

import math
import statistics

from keras_preact.models.catalogue import Pretrained, catalogue
from keras_preact.models.registry import get_entry


def card(about: Pretrained) -> str:
    """Return the card of a trained network as Markdown.

    >>> print(card(catalogue()["resnet20-preact-cifar10"]).splitlines()[0])
    ## resnet20-preact-cifar10
    """
    rows = [f"| {says} | {value} |" for says, value in facts(about).items()]
    return "\n".join([f"## {about.name}", "", "| | |", "|---|---|", *rows, "", limits(about)])


def page() -> str:
    """Return the page of all trained networks."""
    entries = catalogue().values()
    rows = [
        f"| [{about.name}](#{about.name}) | {about.dataset} | {about.test_error:.2f} | {about.parameters:,} | "
        f"{about.bytes / 1e6:.1f} MB |"
        for about in entries
    ]
    return "\n".join([_INTRODUCTION, *rows, "", *(f"{card(about)}\n" for about in entries)])


_INTRODUCTION = """# Trained networks

`pretrained(name)` returns a trained network that is ready to use. It accepts uint8 images (or tokens),
preprocesses them itself, and returns logits:

```python
from keras_preact.models import pretrained

network = pretrained("resnet20-preact-cifar10")
```

To get the network without its preprocessing, call its builder with the options on the card and the name of the data
as `weights`: `cifar_resnet(depth=20, weights="cifar10")`. Add `classes` if there are not 10, `input_shape` if the
images are not 32×32, and `include_top=False` for the features alone. Then normalize the inputs as the recipe does:
subtract the mean training image and divide by 255; for the recipe `fast`, standardize each channel.

Weights are stored in float16, in safetensors format. Files up to 1 MB are part of the package. Larger ones come with a
checkout of the repository: they are found if the package is installed from it with `pip install --editable`, or if you
work inside it. Elsewhere, they are downloaded on first use and their SHA-256 sum is checked.

To train the network on your own classes, add a new layer on top of its features and freeze the rest
(see notebook 12). `require_uint8` makes the new model reject images of other dtypes, as the trained one does:

```python
import keras

from keras_preact.models import require_uint8

trained = pretrained("resnet20-preact-cifar10")
trained.trainable = False
features = trained.get_layer("logits").input
network = require_uint8(keras.Model(trained.input, keras.layers.Dense(3)(features)))
```

On each card, the interval of the test error reflects the finite number of test images. "Confidence" is the mean
probability of the predicted class. The expected calibration error is the mean absolute difference between confidence
and accuracy over 15 bins of equal width, weighted by the share of predictions in each bin (0 is best). Errors by seed
come from all stored runs of the same configuration, as recorded in training. The published weights are rounded to
float16, so their test error can differ by a few hundredths of a point.

`python -m keras_preact.experiments.publish RUN NAME` adds a network and writes this page.

`cifar10_16px` is CIFAR-10 reduced to 16×16 pixels, `cifar10_5classes` has five classes of CIFAR-10, and `reviews` are
the bundled sentences from film reviews. The recipe `deep` belongs to [the laboratory](laboratory.md); the others are
described under [recipes](training.md#recipes).

The Transformer expects tokens. The `encode` method of its data set converts texts:

```python
from keras_preact.data import load_dataset

tokens = load_dataset("reviews").encode(["a dull film", "a moving, beautifully acted story"])
print(pretrained("transformer-reviews").predict(tokens).argmax(-1))  # [0 1]: negative, positive
```

Do not compare depths in this table: the ResNet-20 of all ten classes trained for 64,000 steps, the deeper networks
for at most 4,680.

| network | data | test error, % | parameters | file |
|---|---|---|---|---|"""


def facts(about: Pretrained) -> dict[str, str]:
    """Return the rows of a card: what each says, and its value."""
    low, high = binomial_interval(about.test_error, about.test_size)
    recipe = about.recipe
    options = {"placement": get_entry(about.network).resolved(about.options)["placement"], **about.options}
    return {
        "network": f"`{about.network}`, {', '.join(f'{key} {value!r}' for key, value in sorted(options.items()))}",
        "parameters": f"{about.parameters:,}",
        "trained on": f"{about.dataset}, "
        + (
            f"sequences of {about.input_shape[0]} tokens"
            if about.vocabulary
            else " × ".join(map(str, about.input_shape))
        ),
        "recipe": f"`{recipe['name']}`, {recipe['steps']:,} steps of {recipe['batch_size']} {about.example}s, seed "
        f"{recipe['seed']}, {recipe['precision']}",
        "test error": f"{about.test_error:.2f} % of {about.test_size:,} {about.example}s [{low:.2f}, {high:.2f}], "
        "last epoch",
        "test error by seed": _seeds(about.seeds),
        "test error by class": ", ".join(
            f"{name} {error:.1f}" for name, error in zip(about.classes, about.class_errors, strict=True)
        ),
        "confidence": f"{about.confidence:.1f} % on average, at an accuracy of "
        f"{100 - about.test_error:.1f} %; expected calibration error {about.calibration_error:.1f} %",
        "cost": "not recorded" if about.core_hours is None else f"{about.core_hours:.2f} core-hours on a CPU",
        "stored run": f"`{about.run}`",
        "license of the data": about.data_license,
        "file": f"{about.bytes / 1e6:.1f} MB, SHA-256 `{about.sha256}`",
    }


def _seeds(errors: tuple[float, ...]) -> str:
    spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
    return f"{statistics.mean(errors):.2f}{spread} %, n = {len(errors)}"


def limits(about: Pretrained) -> str:
    """Return the last paragraph of a card: what the network is not for."""
    worst = max(zip(about.class_errors, about.classes, strict=True))
    verb = "says" if about.vocabulary else "shows"
    return (
        f"Limits: the network knows {len(about.classes)} classes and assigns one of them to every {about.example}, "
        f"whatever it {verb}. The errors hold for {about.example}s like those of {about.dataset}. The worst class is "
        f"{worst[1]}, with {worst[0]:.1f} % errors. The network is meant for teaching and for experiments, not for "
        "decisions about people."
    )


def binomial_interval(error: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson interval of an error rate, with a coverage of 95 %.

    Args:
        error: error in percent.
        count: number of examples.
        z: quantile of the normal distribution.

    >>> [round(bound, 2) for bound in binomial_interval(10, 10_000)]
    [9.43, 10.6]
    """
    rate, share = error / 100, z * z / count
    center = (rate + share / 2) / (1 + share)
    half = math.sqrt(share * (rate * (1 - rate) + share / 4)) / (1 + share)
    return 100 * (center - half), 100 * (center + half)
