"""Several devices, of one machine or of several: the batch shared among them, by TensorFlow's and Keras's own engines.

TensorFlow: `tf.distribute.MirroredStrategy`, one machine. JAX: `keras.distribution.DataParallel`, one process each.
With both, a step computes what it computes on one device, but for the batch norms: see `on_devices`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np

from keras_preact.errors import InputError, check_positive
from keras_preact.keras_private import layers_inside
from keras_preact.layers.composite import batch_norms
from keras_preact.layers.stack import UnitStack

MACHINES = ("KERAS_DISTRIBUTION_JOB_ADDRESSES", "KERAS_DISTRIBUTION_NUM_PROCESSES", "KERAS_DISTRIBUTION_PROCESS_ID")
"""Keras's own environment variables: address and port of the first process, number of processes, this one's number."""
PATIENCE = 240
"""Seconds that a process waits for the first to answer."""


def devices() -> list[str]:
    """Return the names of the devices that can share a batch: the accelerators, or where there is none the processor.

    >>> len(devices()) >= 1
    True
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cards = tf.config.list_logical_devices("GPU")
        return [device.name for device in cards or tf.config.list_logical_devices("CPU")]
    if keras.backend.backend() == "torch":
        return ["cpu:0"]  # or a GPU: one, which Keras chooses
    return keras.distribution.list_devices() or ["cpu:0"]


def join() -> None:
    """Join the other processes of a training, where the environment variables `MACHINES` name them; else do nothing.

    To be called before anything is computed: the devices of all processes are one set from then on.

    Raises:
        InputError: not all variables are there, the first process does not answer, or the backend is not JAX.
    """
    given = [name for name in MACHINES if os.environ.get(name)]
    if not given:
        return
    if missing := [name for name in MACHINES if name not in given]:
        raise InputError(f"{given[0]} is set, {missing[0]} is not; set all three on each machine, or none")
    if keras.backend.backend() != "jax":
        raise InputError(f"{keras.backend.backend()} trains on one machine; set KERAS_BACKEND=jax for several")
    try:
        if int(os.environ[MACHINES[2]]):
            _await_first(os.environ[MACHINES[0]].split(",")[0])
        keras.distribution.initialize()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes did not find each other ({str(error).splitlines()[0]}); see that {', '.join(MACHINES)} are "
            "the address and port of the first, the same number on all, and each one's own number from 0"
        ) from None


def _await_first(address: str) -> None:
    """Wait until the first process answers: JAX itself ends a process that waits in vain, with a stack trace.

    Raises:
        OSError: it does not.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def process() -> tuple[int, int]:
    """Return this process's number, from 0, and how many train together. The first is the only one that writes.

    >>> process()
    (0, 1)
    """
    if keras.backend.backend() != "jax":
        return 0, 1
    import jax

    return jax.process_index(), jax.process_count()


def is_chief() -> bool:
    """Whether this process is the one that writes."""
    return process()[0] == 0


def all_reduce_max(number: int) -> int:
    """Return the largest of the numbers that all processes call this with, at the same point of their way.

    >>> all_reduce_max(15)
    15
    """
    if process()[1] == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.asarray(number, "int32"))))


@contextmanager
def collective_errors() -> Iterator[None]:
    """All processes come out of this block, or none: an InputError of one ends the others too.

    Raises:
        InputError: this process's own, or one that says that another had one.
    """
    try:
        yield
    except InputError:
        all_reduce_max(1)
        raise
    if all_reduce_max(0):
        raise InputError("another process of this training cannot begin; see its own message")


@contextmanager
def on_devices(count: int) -> Iterator[None]:
    """Build and train on the first `count` devices, each with its share of every batch.

    The weights are the same on all. Batch norms take their statistics over the whole batch on JAX, and on TensorFlow
    over the share of each device, as is usual there, or over all after `synchronize`. TensorFlow cannot do the latter
    twice in one process ("Shape mismatch in the collective instance"): start another for a second training.

    Args:
        count: number of devices, of all machines together; with 1 nothing is done.

    Raises:
        InputError: there are fewer, or a TensorFlow strategy for several machines is set.
    """
    check_devices(count)
    if count == 1:
        yield
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.distribute.MirroredStrategy(devices()[:count]).scope():
            yield
    else:
        # Each process is given its own part of every batch (keras_preact.data.part_of): Keras divides tf.data alone.
        with keras.distribution.DataParallel(devices=devices()[:count], auto_shard_dataset=False).scope():
            yield


def check_devices(count: int) -> None:
    """Raise InputError unless the backend can share a batch among `count` devices here."""
    check_positive("number of devices", count)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
            raise InputError(
                "TensorFlow's strategy for several machines fails with Keras 3; set KERAS_BACKEND=jax, and on each of "
                f"them {', '.join(MACHINES)}"
            )
    elif keras.backend.backend() == "torch":
        if count > 1:
            raise InputError(
                f"this asks for {count} devices, and Keras trains on one with PyTorch; set KERAS_BACKEND=tensorflow or "
                "jax for several"
            )
    elif keras.backend.backend() != "jax":
        raise InputError(
            f"runs are not trained on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow, jax or torch"
        )
    if count > (here := len(devices())):
        raise InputError(f"this asks for {count} devices, and here are {here}; give --distribute {here}")
    if process()[1] > 1 and count < here:
        raise InputError(
            f"the {process()[1]} processes have {here} devices and share each batch among all; give --distribute {here}"
        )


def check_shares(count: int, batch_size: int, test_examples: int) -> None:
    """Raise InputError unless batches and test examples can be shared equally among the devices.

    >>> check_shares(2, 128, 10_000)
    """
    for what, number in (("the batch size", batch_size), ("the number of test examples", test_examples)):
        if number % count:
            raise InputError(f"{what} is {number}, which {count} devices cannot share equally; change one of the two")


def synchronize(model: keras.Model) -> None:
    """Have all batch norms of a model take their statistics over the shares of all devices, from now on.

    Raises:
        InputError: some units run in a loop, which does not exchange statistics between devices.
    """
    rolled = [layer for layer in layers_inside(model) if isinstance(layer, UnitStack) and layer.rolled]
    if loops := ", ".join(stack.name for stack in rolled if batch_norms(stack)):
        raise InputError(f"batch norms in the loops {loops} cannot be synchronized; build with rolled=False")
    for norm in batch_norms(model):
        norm.synchronized = True
