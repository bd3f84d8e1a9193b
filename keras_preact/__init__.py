"""Identity mappings in deep residual networks (He et al., 2016), in Keras 3.

A residual unit is y = h(x) + F(x), followed by f(y); here h, F and f are arguments.

* `keras_preact.layers`: residual units of every shortcut and placement of the paper, stacks, Transformer blocks.
* `keras_preact.models`: whole networks of these, as functional Keras models.
* `keras_preact.data`: images and sequences, in batches whose order is a function of seed and step.
* `keras_preact.training`: recipes, runs that can be stopped and resumed, several devices.
* `keras_preact.analysis`: the paper's equations measured on a network; the linter `check_identity_path`.
* `keras_preact.experiments`: the paper's tables, run and compared with what was published.
* `keras_preact.interop`: weights to and from other libraries; networks exported.
* `keras_preact.course`: the exercises of the notebooks.
* `keras_preact.paper`: published numbers, each with its source.
* `keras_preact.plots`: every figure.

* `keras_preact.optimizers`: those that the recipes train with.

Importing the package imports `layers`, `models`, `data` and `optimizers` and registers what they hold, so that
`keras.models.load_model` finds it; the other parts are imported by their names.
"""

from keras_preact.startup import is_the_command, stop_in_one_line, use_onednn, without_log_lines

if is_the_command():
    stop_in_one_line()
    use_onednn()
    with without_log_lines():
        from keras_preact import data, layers, models, optimizers
else:
    from keras_preact import data, layers, models, optimizers

from keras_preact.errors import InputError
from keras_preact.version import __version__

__all__ = ["InputError", "__version__", "data", "layers", "models", "optimizers"]
