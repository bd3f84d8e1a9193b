"""What suits the device that training runs on: precision, and compilation by XLA. Chosen by measurement.

The measurements stand under `results/`, in the page of the benchmarks. Which stages are rolled is decided where they
are made: `keras_preact.layers.stack.default_rolled`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keras

from keras_preact.errors import InputError, check_choice

XLA_DETERMINISM = "--xla_gpu_deterministic_ops=true"
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


def default_precision() -> str:
    """Return `"mixed_bfloat16"` where the device multiplies bfloat16 faster than float32, else `"float32"`.

    That is on GPUs of compute capability 8.0 or more, on TPUs, and with TensorFlow and PyTorch on processors that
    have instructions for it (AVX512-BF16, AMX). bfloat16 has float32's range: it needs no loss scale, as float16 does.

    >>> default_precision() in PRECISIONS
    True
    """
    if keras.backend.backend() == "jax":
        import jax

        device = jax.devices()[0]
        # XLA computes bfloat16 convolutions on processors by way of float32.
        fast = device.platform == "tpu" or (device.platform == "gpu" and _is_ampere(device.compute_capability))
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cards = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(card) for card in cards]
        fast = all(d.get("compute_capability", (0, 0)) >= (8, 0) for d in details) if cards else _multiplies_bfloat16()
    elif keras.backend.backend() == "torch":
        import torch

        is_gpu = torch.cuda.is_available()
        fast = torch.cuda.get_device_capability() >= (8, 0) if is_gpu else _multiplies_bfloat16()
    else:
        fast = False
    return "mixed_bfloat16" if fast else "float32"


def _is_ampere(compute_capability: str) -> bool:
    """Whether a version such as "9.0" is that of a card with bfloat16 matrix units.

    >>> _is_ampere("7.5"), _is_ampere("10.0")
    (False, True)
    """
    return int(compute_capability.split(".")[0]) >= 8


def _multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has instructions for bfloat16; `False` where it does not say so."""
    return widest_instructions(cpuinfo) in ("AMX", "AVX512-BF16")


def widest_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the widest instructions that speed depends on, or `None` where the processor does not say.

    Processors of one name differ in them.
    """
    try:
        flags = cpuinfo.read_text().split()
    except OSError:
        return None
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
    return next((name for flag, name in known.items() if flag in flags), None)


def computes_with_onednn() -> bool | None:
    """Return whether TensorFlow computes with oneDNN in this process; `None` on other backends.

    The results differ in their last bits. TensorFlow decides when it is imported: by `TF_ENABLE_ONEDNN_OPTS`, or else
    by the processor.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    try:  # TensorFlow has no public way to ask
        from tensorflow.python.util._pywrap_util_port import IsMklEnabled
    except ImportError:
        return None
    return bool(IsMklEnabled())


def check_precision(precision: str) -> None:
    """Raise InputError unless the backend can train in that precision on this device.

    >>> check_precision("float32")
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "float32":
        return
    dtype = precision.removeprefix("mixed_")
    try:
        x = keras.ops.ones((1, 8, 8, 8), dtype)
        keras.ops.convert_to_numpy(keras.ops.conv(x, keras.ops.ones((3, 3, 8, 8), dtype), padding="same"))
    except Exception as error:
        raise InputError(
            f"the {keras.backend.backend()} backend cannot compute in {dtype} on this device; use --precision float32"
        ) from error


@contextmanager
def precision_policy(precision: str) -> Iterator[None]:
    """Set Keras's global dtype policy, and set it back afterwards."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def make_deterministic() -> None:
    """Have the backend compute the same bits in each run on this machine: for the whole process, for good.

    On TensorFlow and PyTorch that is their own mode, which refuses operations that have no such form. JAX computes so
    on processors anyway; on GPUs it must be told before it starts, and so must PyTorch.

    Raises:
        InputError: JAX or PyTorch has started on a GPU without being told.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif keras.backend.backend() == "jax":
        import jax

        if jax.default_backend() == "gpu" and XLA_DETERMINISM not in os.environ.get("XLA_FLAGS", ""):
            raise InputError(
                f"JAX on a GPU is deterministic only if it starts so; set XLA_FLAGS={XLA_DETERMINISM} first"
            )
    elif keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
            raise InputError(
                "PyTorch on a GPU is deterministic only if it starts so; set CUBLAS_WORKSPACE_CONFIG=:4096:8 first"
            )
        torch.use_deterministic_algorithms(True)


def compiles_with_xla() -> bool:
    """Whether training steps are compiled by XLA: always on JAX; on TensorFlow on GPUs alone; never on PyTorch.

    On processors XLA makes TensorFlow's convolutions slower, and Keras's own "auto" would choose it.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return keras.backend.backend() == "jax"
