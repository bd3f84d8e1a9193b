"""Loading an untrusted `.keras` file: the whole file is checked before Keras builds anything from it.

Keras's own `safe_mode` had security holes in most releases of 2025, and lets a file call functions of Keras.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_preact.errors import InputError, first_line, shown
from keras_preact.keras_private import forget_uninitialized, initialize, safe_mode, shared_objects
from keras_preact.models.saving.allowlist import SIZE_LIMIT
from keras_preact.models.saving.archive import Archive, read_archive
from keras_preact.models.saving.configuration import check_configuration, name_publicly, objects
from keras_preact.models.saving.hdf5 import cast_checked, has_loss_scale, load_state
from keras_preact.models.trained import require_uint8


def load_model(path: str | Path, compile: bool = True) -> keras.Model:
    """Load an untrusted `.keras` file with layers of Keras and of this package, without executing code from it.

    Args:
        path: path of the file.
        compile: whether to compile the model as it was saved. Default `True`.

    Raises:
        InputError: the file is missing or damaged, or contains code, a class of another package, a path outside the
            archive, a link to another file, sizes larger than its data, or weights that are not finite.

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
        with _loss_scale_policy(archive):
            model = require_uint8(_built(archive, compile))
    except InputError:
        raise
    except Exception as error:  # for a damaged file, Keras may raise any exception
        reason = shown(first_line(error), 200)
        raise InputError(f"{name} cannot be loaded as a Keras model ({reason}); save it again") from None
    for variable in model.weights:
        if keras.backend.is_float_dtype(variable.dtype):
            cast_checked(keras.ops.convert_to_numpy(variable), variable.dtype, f"{shown(variable.path)} in {name}")
    return model


@contextlib.contextmanager
def _loss_scale_policy(archive: Archive) -> Iterator[None]:
    """Set the global policy to mixed_float16 if a layer has it, so that Keras compiles the model with a loss scale.

    A file stores the policies of the layers but not that of the model, for which Keras uses the global policy. If the
    stored optimizer has no loss scale, the model had another policy than that layer.
    """
    policies = [each["config"].get("name") for each in objects(archive.config) if each["class_name"] == "DTypePolicy"]
    before = keras.config.dtype_policy()
    is_scaled = "mixed_float16" in policies and has_loss_scale(archive.weights) is not False
    keras.config.set_dtype_policy("mixed_float16" if is_scaled else before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _built(archive: Archive, compile: bool) -> keras.Model:
    """Build the model of a checked archive without initial values, and load those of the file."""
    compiled = archive.config.get("compile_config") if compile else None
    for each in objects(archive.config):  # only the outermost model is compiled
        each.pop("compile_config", None)
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
                load_state(model, archive.weights, visited - {id(model)})  # the optimizer and the metrics
    finally:
        forget_uninitialized()
    return model


def _check_size(archive: Archive, variables: list[Any]) -> None:
    """Refuse variables far larger than the arrays of the file, before they are allocated."""
    needed = sum(math.prod(variable.shape) for variable in variables)
    if needed > max(archive.weight_bytes, SIZE_LIMIT):
        stored = f"{archive.weight_bytes:,} bytes"
        raise InputError(f"{archive.name} declares {needed:,} values but stores {stored}; save the model again")


def _check_metrics(archive: Archive, compiled: dict[str, Any]) -> None:
    """Refuse metrics with huge variables: creating a metric allocates them, and the file need not contain them."""
    with keras.StatelessScope(initialize_variables=False):
        found = keras.saving.deserialize_keras_object([compiled.get("metrics"), compiled.get("weighted_metrics")])
        metrics = [metric for metric in keras.tree.flatten(found) if isinstance(metric, keras.metrics.Metric)]
        _check_size(archive, [variable for metric in metrics for variable in metric.variables])
    forget_uninitialized()


# ---- variables without values -------------------------------------------------------------------------------------
# In a stateless scope, variables have shapes but no values, and assignments stay in the scope. Sizes are therefore
# checked before anything is allocated, and no initial values are computed: an orthogonal matrix can take minutes.


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Build networks with shapes but no values: they can be summarized but not run, at any depth within seconds.

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
