"""Reading an untrusted `.keras` file: checked as a whole first, so that nothing in it is executed.

Keras's own `safe_mode` has had holes in most of its releases of 2025, and lets a file call functions of Keras.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, shown
from keras_preact.keras_private import forget_uninitialized, initialize, safe_mode, shared_objects
from keras_preact.models.allowed import MOST
from keras_preact.models.archive import Archive, read_archive
from keras_preact.models.configuration import check_configuration, name_publicly, objects
from keras_preact.models.stored import finite, load_state
from keras_preact.models.trained import refuse_other_pixels


def load_model(path: str | Path, compile: bool = True) -> keras.Model:
    """Return the model of a `.keras` file of layers of Keras and of this package.

    Args:
        path: of the file.
        compile: whether to compile it as it was saved. Default `True`.

    Raises:
        InputError: no such file, one that is damaged, or one that contains more than a network needs: code, a foreign
            class, a path out of the archive, a link to another file, sizes that it has no data for, or weights that
            are not finite.

    Example:

    >>> import tempfile
    >>> from keras_preact.models import cifar_resnet
    >>> path = Path(tempfile.mkdtemp()) / "network.keras"
    >>> cifar_resnet(8).save(path)
    >>> load_model(path).name
    'resnet8_full_preactivation'
    """
    name = shown(Path(path).name)
    try:
        archive = read_archive(Path(path))
        name_publicly(archive.config)
        check_configuration(archive.name, archive.config, archive.size)
        with _policy_of(archive):
            model = refuse_other_pixels(_built(archive, compile))
    except InputError:
        raise
    except Exception as error:  # what a damaged file brings up in Keras can be anything
        reason = shown((str(error).splitlines() or [type(error).__name__])[0], 200)
        raise InputError(f"{name} cannot be loaded as a Keras model ({reason}); save it again") from None
    for variable in model.weights:
        if keras.backend.is_float_dtype(variable.dtype):
            finite(keras.ops.convert_to_numpy(variable), variable.dtype, f"{shown(variable.path)} in {name}")
    return model


@contextlib.contextmanager
def _policy_of(archive: Archive) -> Iterator[None]:
    """Have Keras compile the model of a file with a loss scale, as before, where its layers compute in float16.

    A model's own policy is not in its file: Keras takes the global one. All layers' are.
    """
    policies = [
        found["config"].get("name") for found in objects(archive.config) if found["class_name"] == "DTypePolicy"
    ]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16" if "mixed_float16" in policies else before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _built(archive: Archive, compile: bool) -> keras.Model:
    """Return the model of a checked archive: built without values, which are then those of the file."""
    compiled = archive.config.get("compile_config") if compile else None
    for found in objects(archive.config):  # only the outermost model is trained
        found.pop("compile_config", None)
    try:
        with safe_mode():
            if compiled:
                _check_metrics(archive, compiled)
            with keras.StatelessScope(initialize_variables=False) as scope, shared_objects():
                model = keras.saving.deserialize_keras_object(archive.config)
                _check_size(archive, model.variables)
                visited = load_state(model, archive.weights, set())
            initialize(scope.state_mapping)
            if compiled:
                model.compile_from_config(compiled)
                # What compiling has added: the optimizer, the metrics.
                load_state(model, archive.weights, visited - {id(model)})
    finally:
        forget_uninitialized()
    return model


def _check_size(archive: Archive, variables: list[Any]) -> None:
    """Refuse variables that are far larger than the arrays of the file, before they have values."""
    needed = sum(math.prod(variable.shape) for variable in variables)
    if needed > max(archive.stored, MOST):
        raise InputError(
            f"{archive.name} describes {needed:,} numbers and holds {archive.stored:,} bytes; save the model again"
        )


def _check_metrics(archive: Archive, compiled: dict[str, Any]) -> None:
    """Refuse metrics with huge variables, which are made with them and need not be in the file."""
    with keras.StatelessScope(initialize_variables=False):
        made = keras.saving.deserialize_keras_object([compiled.get("metrics"), compiled.get("weighted_metrics")])
        metrics = [metric for metric in keras.tree.flatten(made) if isinstance(metric, keras.metrics.Metric)]
        _check_size(archive, [variable for metric in metrics for variable in metric.variables])
    forget_uninitialized()


# ---- variables without values -------------------------------------------------------------------------------------
# In a stateless scope variables have shapes and no values, and what is assigned to them stays in the scope. So their
# sizes are checked before anything is allocated, and no initial value is computed in vain: an orthogonal matrix can
# take minutes.


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Have networks built with shapes alone, to be described and not to be run: of any depth within seconds.

    >>> from keras_preact.models import cifar_resnet
    >>> with without_values():
    ...     network = cifar_resnet(10001, rolled=True)
    >>> network.count_params()
    104556922
    """
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        forget_uninitialized()
