"""Data parallelism: each batch is shared among the devices of one or several machines.

TensorFlow: `tf.distribute.MirroredStrategy`, one machine. JAX: `keras.distribution.DataParallel`, one process per
machine. With both, a step computes the same as on one device, except for batch norms: see `device_scope`.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from keras_preact.errors import InputError, check_positive, first_line
from keras_preact.keras_private import layers_inside
from keras_preact.layers.composite import batch_norms
from keras_preact.layers.stack import UnitStack

MACHINES = ("KERAS_DISTRIBUTION_JOB_ADDRESSES", "KERAS_DISTRIBUTION_NUM_PROCESSES", "KERAS_DISTRIBUTION_PROCESS_ID")
"""Keras's environment variables: address and port of the first process, number of processes, number of this one."""
CONNECT_TIMEOUT = 240
"""Seconds that a process waits for the first process to answer."""


def devices() -> list[str]:
    """Return the names of the devices that can share a batch: the accelerators, or the CPU without any.

    >>> len(devices()) >= 1
    True
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_logical_devices("GPU")
        return [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    if keras.backend.backend() == "torch":
        device = keras.ops.zeros(()).device  # the one that Keras selects
        return [f"{device.type}:{device.index or 0}"]
    return keras.distribution.list_devices() or ["cpu:0"]


def join() -> None:
    """Connect to the other processes of a run if the environment variables `MACHINES` are set.

    Call this before any computation. Afterwards, the devices of all processes form one set.

    Raises:
        InputError: only some of the variables are set, the first process does not answer, or the backend is not JAX.
    """
    defined = [name for name in MACHINES if os.environ.get(name)]
    if not defined:
        return
    if missing := [name for name in MACHINES if name not in defined]:
        raise InputError(f"{defined[0]} is set, but {missing[0]} is not; set all three on each machine, or none")
    if keras.backend.backend() != "jax":
        raise InputError(f"{keras.backend.backend()} trains on one machine only; set KERAS_BACKEND=jax for several")
    try:
        if int(os.environ[MACHINES[2]]):
            _wait_for_first_process(os.environ[MACHINES[0]].split(",")[0])
        keras.distribution.initialize()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes could not connect ({first_line(error)}); set {MACHINES[0]} to the address and "
            f"port of the first process, {MACHINES[1]} to the number of processes, and {MACHINES[2]} to each process's "
            "own number from 0"
        ) from None


def _wait_for_first_process(address: str) -> None:
    """Wait until the first process answers. If it never does, JAX itself would end this process with a stack trace.

    Raises:
        OSError: no answer within `CONNECT_TIMEOUT` seconds.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def process() -> tuple[int, int]:
    """Return the number of this process, from 0, and the number of processes that train together.

    >>> process()
    (0, 1)
    """
    if keras.backend.backend() != "jax":
        return 0, 1
    import jax

    return jax.process_index(), jax.process_count()


def is_chief() -> bool:
    """Whether this is the first process, the only one that writes files."""
    return process()[0] == 0


def all_reduce_max(number: int) -> int:
    """Return the largest of the processes' numbers. All processes must call this at the same point.

    >>> all_reduce_max(15)
    15
    """
    if process()[1] == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.asarray(number, "int32"))))


@contextmanager
def collective_errors() -> Iterator[None]:
    """Make an InputError or an OSError, such as a full disk, in one process end all processes.

    Raises:
        InputError: raised in this block, or in that of another process.
    """
    try:
        yield
    except (InputError, OSError):
        all_reduce_max(1)
        raise
    if all_reduce_max(0):
        raise InputError("another process of this run could not start; see its error message")


def device_scope(count: int) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that opens the scope of the first `count` devices, each with its share of every batch.

    Build the model in one scope, and train each part of the run in another: runs that take turns must not be inside one
    another's scopes.

    The weights are the same on all devices. On JAX, batch norms use the statistics of the whole batch. On TensorFlow,
    they use those of each device's share, or of the whole batch after `synchronize`.

    Args:
        count: total number of devices on all machines. With 1, the scopes have no effect.

    Raises:
        InputError: fewer devices are available, or the active TensorFlow strategy is `MultiWorkerMirroredStrategy`.
    """
    check_devices(count)
    if count == 1:
        return nullcontext
    if keras.backend.backend() == "tensorflow":
        scope: Callable[[], AbstractContextManager[Any]] = _strategy(tuple(devices()[:count])).scope
        return scope
    # `keras_preact.data.part_of` gives each process its part of every batch; Keras would divide only tf.data.
    return keras.distribution.DataParallel(devices=devices()[:count], auto_shard_dataset=False).scope


@functools.cache
def _strategy(names: tuple[str, ...]) -> Any:
    """Return TensorFlow's strategy for these devices, the same for all runs.

    With two of them, the sums of two runs meet: "Shape mismatch in the collective instance".
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(names)


def check_devices(count: int) -> None:
    """Raise InputError unless the backend can share a batch among `count` devices here."""
    check_positive("number of devices", count)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
            raise InputError(
                "MultiWorkerMirroredStrategy fails with Keras 3; set KERAS_BACKEND=jax and, on each machine, "
                f"{', '.join(MACHINES)}"
            )
    elif keras.backend.backend() == "torch":
        if count > 1:
            raise InputError(
                f"{count} devices were requested, but with PyTorch Keras trains on one; set KERAS_BACKEND=tensorflow "
                "or jax for several"
            )
    elif keras.backend.backend() != "jax":
        raise InputError(
            f"the {keras.backend.backend()} backend cannot train; set KERAS_BACKEND=tensorflow, jax or torch"
        )
    available = len(devices())
    if count > available:
        raise InputError(
            f"{count} devices were requested, but {available} found; pass devices={available} (--distribute)"
        )
    if process()[1] > 1 and count < available:
        raise InputError(
            f"{process()[1]} processes must use all of their {available} devices; pass devices={available} "
            "(--distribute)"
        )


def check_shares(count: int, batch_size: int, test_examples: int) -> None:
    """Raise InputError unless batches and test examples can be shared equally among the devices.

    >>> check_shares(2, 128, 10_000)
    """
    for what, number in (("the batch size", batch_size), ("the number of test examples", test_examples)):
        if number % count:
            raise InputError(f"{what} is {number}, which is not divisible by {count} devices; change one of the two")


def synchronize(model: keras.Model) -> None:
    """Make all batch norms of a model use the statistics of the whole batch, not of each device's share.

    Raises:
        InputError: some batch norms run in a rolled stack, which cannot exchange statistics between devices.
    """
    rolled = [layer for layer in layers_inside(model) if isinstance(layer, UnitStack) and layer.rolled]
    if stacks := ", ".join(stack.name for stack in rolled if batch_norms(stack)):
        raise InputError(f"batch norms in the rolled stacks {stacks} cannot be synchronized; build with rolled=False")
    for norm in batch_norms(model):
        norm.synchronized = True
