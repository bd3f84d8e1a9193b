"""keras_preact: identity mappings in deep residual networks (He et al., 2016), in Keras 3.

Importing the package registers its layers, so that `keras.models.load_model` finds them.
"""

import os
import sys
from pathlib import Path


def _is_the_command() -> bool:
    """Whether this process is `keras-preact` or `python -m keras_preact`, not somebody's program or notebook."""
    started = sys.orig_argv[1:]
    return started[:2] == ["-m", "keras_preact"] or bool(started and Path(started[0]).name == "keras-preact")


if _is_the_command():
    # TensorFlow's start-up lines would stand above every answer of the command; they come while it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from keras_preact import data, layers, models
from keras_preact.errors import InputError
from keras_preact.version import __version__

__all__ = ["InputError", "__version__", "data", "layers", "models"]
