"""Identity mappings in deep residual networks (He et al., 2016), in Keras 3.

A residual unit is y = h(x) + F(x), followed by f(y); here h, F and f are arguments.

* `keras_preact.layers`: residual units with every shortcut and placement of the paper, stacks, Transformer blocks.
* `keras_preact.models`: whole networks, as functional Keras models.
* `keras_preact.data`: images and sequences, in batches whose order is a function of seed and step.
* `keras_preact.optimizers` and `keras_preact.losses`: the optimizers and the loss of the recipes.
* `keras_preact.training`: recipes, runs that can be stopped and resumed, several devices.
* `keras_preact.analysis`: the paper's equations measured on a network; the linter `check_identity_path`.
* `keras_preact.experiments`: the paper's tables, run and compared with the published numbers.
* `keras_preact.interop`: weights from and to other libraries, and export.
* `keras_preact.course`: the exercises of the notebooks.
* `keras_preact.paper`: published numbers, each with its source.
* `keras_preact.plots`: every figure.

`import keras_preact` imports `layers`, `models`, `data`, `optimizers` and `losses` and registers their classes, so
that `keras.models.load_model` finds them. The other modules are imported on first use.
"""

import importlib
from typing import Any

from keras_preact.errors import EXTRAS, InputError, missing_package
from keras_preact.startup import is_the_command
from keras_preact.version import __version__

__all__ = ["InputError", "__version__", "data", "layers", "losses", "models", "optimizers"]
_PARTS = {"analysis", "course", "data", "experiments", "interop", "layers", "losses", "models", "optimizers", "paper"}
_PARTS |= {"plots", "training"}

if not is_the_command():  # the command answers `--help` without importing Keras
    try:
        from keras_preact import data, layers, losses, models, optimizers
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise missing_package("Keras's backend", [error.name]) from None


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"keras_preact.{name}")
    raise AttributeError(f"module 'keras_preact' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
