"""How many threads share one operation of TensorFlow on a CPU.

TensorFlow splits each operation among all cores. Operations of small batches are too short for that: the threads wait
for each other. One thread per operation, with independent operations at the same time, is then faster; see "Defaults
chosen by measurement" on the benchmark page in `results/`.
"""

from __future__ import annotations

import os
from contextlib import suppress

import keras

from keras_preact.models import get_entry
from keras_preact.models.cifar import FILTERS
from keras_preact.training.config import RunConfig

ACTIVATIONS_PER_THREAD = 200_000
"""Activations of an operation that occupy one thread. Measured on two cores: with 131,000 activations one thread per
operation is faster, with 524,000 two threads are."""
VARIABLE = "TF_NUM_INTRAOP_THREADS"
"""TensorFlow's environment variable for the number of threads per operation."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(activations: int, cores: int) -> int:
    """Return how many threads should share an operation.

    Args:
        activations: number of activations of a 3×3 convolution: batch · height · width · filters.
        cores: number of cores.

    >>> threads_for(64 * 16 * 16 * 16, cores=2), threads_for(128 * 32 * 32 * 16, cores=2)
    (1, 2)
    """
    return min(cores, max(1, activations // ACTIVATIONS_PER_THREAD))


def choose_threads(config: RunConfig) -> int | None:
    """Set the number of threads per operation for a run, before TensorFlow starts; return it.

    It stays at TensorFlow's default, all cores, if `TF_NUM_INTRAOP_THREADS` is set, if TensorFlow has already computed
    something, for other networks than `cifar_resnet`, and on GPUs. TensorFlow has one setting for the whole process, so
    only the command `keras-preact` calls this; call it yourself at the start of a program if you wish.

    Returns:
        The number of threads that was set; `None` if it was left alone.

    Example: in this program TensorFlow has already started.

    >>> keras.ops.zeros(1) is not None and choose_threads(RunConfig()) is None
    True
    """
    activations = _activations(config)
    if keras.backend.backend() != "tensorflow" or VARIABLE in os.environ or activations is None:
        return None
    import tensorflow as tf

    threads = threads_for(activations, usable_cores())
    if _has_gpu() or threads == usable_cores():
        return None
    with suppress(RuntimeError):  # TensorFlow has started
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        return threads
    return None


def has_idle_cores() -> bool:
    """Return whether an operation of TensorFlow uses at most half of the cores. Two runs are then faster together.

    Call `choose_threads` first: TensorFlow's default is all cores. With a GPU, the answer is `False`.

    Example: `choose_threads(config)`, then `compare(orders(config), out, together=has_idle_cores())`.
    """
    threads = threads_per_operation()
    return threads is not None and 2 * threads <= usable_cores() and not _has_gpu()


def _has_gpu() -> bool:
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def _activations(config: RunConfig) -> int | None:
    """Return the activations of a 3×3 convolution in the first stage of a CIFAR network; `None` for other networks."""
    if config.network != "cifar_resnet":
        return None
    try:
        filters = FILTERS[0] * get_entry(config.network).resolved(config.options)["widen_factor"]
        return int(config.recipe.batch_size * (config.image_size or 32) ** 2 * filters)
    except (TypeError, ValueError, OverflowError):  # options that `build_model` rejects
        return None


def threads_per_operation() -> int | None:
    """Return the number of TensorFlow's threads per operation in this process; `None` on other backends."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    given = os.environ.get(VARIABLE, "")
    number = int(given) if given.isdecimal() else 0  # TensorFlow ignores other values
    return tf.config.threading.get_intra_op_parallelism_threads() or number or usable_cores()
