"""Several devices of one machine: the batch shared among them, by TensorFlow's and Keras's own engines.

TensorFlow: `tf.distribute.MirroredStrategy`. JAX: `keras.distribution.DataParallel`. With both, a step computes what it
computes on one device, but for the batch norms: see `on_devices`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from keras_preact.errors import InputError, check_positive


def devices() -> list[str]:
    """Return the names of the devices that can share a batch: the accelerators, or where there is none the processor.

    >>> len(devices()) >= 1
    True
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cards = tf.config.list_logical_devices("GPU")
        return [device.name for device in cards or tf.config.list_logical_devices("CPU")]
    return keras.distribution.list_devices() or ["cpu:0"]


@contextmanager
def on_devices(count: int) -> Iterator[None]:
    """Build and train on the first `count` devices, each with its share of every batch.

    The weights are the same on all. Batch norms take their statistics over the whole batch on JAX, and on TensorFlow
    over the share of each device, as is usual there, or over all after `synchronize`.

    Args:
        count: number of devices; with 1 nothing is done.

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
        with keras.distribution.DataParallel(devices=devices()[:count]).scope():
            yield


def check_devices(count: int) -> None:
    """Raise InputError unless the backend can share a batch among `count` devices here."""
    check_positive("number of devices", count)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
            raise InputError(
                "TensorFlow's strategy for several machines fails with Keras 3; use KERAS_BACKEND=jax, with "
                "keras.distribution.initialize on each of them"
            )
    elif count > 1 and keras.backend.backend() != "jax":
        raise InputError(f"the {keras.backend.backend()} backend trains on one device; use tensorflow or jax")
    if count > len(devices()):
        raise InputError(f"there are {len(devices())} devices here, not {count}; give --distribute {len(devices())}")


def check_shares(count: int, batch_size: int, test_examples: int) -> None:
    """Raise InputError unless batches and test examples can be shared equally among the devices.

    >>> check_shares(2, 128, 10_000)
    """
    for what, number in (("the batch size", batch_size), ("the number of test examples", test_examples)):
        if number % count:
            raise InputError(f"{what} is {number}, which {count} devices cannot share equally; change one of the two")


def synchronize(model: keras.Model) -> None:
    """Have all batch norms of a model take their statistics over the shares of all devices, from now on."""
    for layer in model._flatten_layers():  # Keras has no public way to the layers inside layers
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
