"""keras_preact: identity mappings in deep residual networks (He et al., 2016), in Keras 3.

Importing the package registers its layers, so that `keras.models.load_model` finds them.
"""

from keras_preact.startup import is_the_command, take_onednn, without_log_lines

if is_the_command():
    take_onednn()
    with without_log_lines():
        from keras_preact import data, layers, models
else:
    from keras_preact import data, layers, models

from keras_preact.errors import InputError
from keras_preact.version import __version__

__all__ = ["InputError", "__version__", "data", "layers", "models"]
