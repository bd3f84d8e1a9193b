"""Settings that depend on the device: precision, compilation by XLA, random seeds, determinism.

The defaults were chosen by measurement; see the benchmark page in `results/`. Which stages are rolled is decided in
`keras_preact.layers.stack.default_rolled`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import keras
import numpy as np

from keras_preact.errors import InputError, check_choice
from keras_preact.keras_private import own_random_state, without_tensorflow_seed

XLA_DETERMINISM = "--xla_gpu_deterministic_ops=true"
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


def default_precision() -> str:
    """Return `"mixed_bfloat16"` if the device multiplies bfloat16 faster than float32, else `"float32"`.

    bfloat16 is faster on GPUs of compute capability 8.0 or higher, on TPUs, and, with TensorFlow and PyTorch, on CPUs
    with AVX512-BF16 or AMX. It has the range of float32, so unlike float16 it needs no loss scale.

    >>> default_precision() in PRECISIONS
    True
    """
    if keras.backend.backend() == "jax":
        import jax

        device = jax.devices()[0]
        # On CPUs, XLA computes bfloat16 convolutions in float32.
        fast = device.platform == "tpu" or (device.platform == "gpu" and _is_ampere(device.compute_capability))
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        fast = all(d.get("compute_capability", (0, 0)) >= (8, 0) for d in details) if gpus else _multiplies_bfloat16()
    elif keras.backend.backend() == "torch":
        import torch

        is_gpu = torch.cuda.is_available()
        fast = torch.cuda.get_device_capability() >= (8, 0) if is_gpu else _multiplies_bfloat16()
    else:
        fast = False
    return "mixed_bfloat16" if fast else "float32"


def _is_ampere(compute_capability: str) -> bool:
    """Whether a compute capability such as "9.0" includes bfloat16 matrix units; AMD's are names such as "gfx90a".

    >>> _is_ampere("7.5"), _is_ampere("10.0"), _is_ampere("gfx90a")
    (False, True, False)
    """
    major = compute_capability.split(".")[0]
    return major.isdigit() and int(major) >= 8


def _multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has bfloat16 instructions; `False` if unknown."""
    return widest_instructions(cpuinfo) in ("AMX", "AVX512-BF16")


def widest_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the widest instruction set that affects speed, or `None` if unknown.

    CPUs with the same name can differ in it.
    """
    try:
        flags = cpuinfo.read_text().split()
    except OSError:
        return None
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX-512", "avx2": "AVX2"}
    return next((name for flag, name in known.items() if flag in flags), None)


def computes_with_onednn() -> bool | None:
    """Return whether TensorFlow uses oneDNN in this process; `None` on other backends.

    oneDNN changes the last bits of results. TensorFlow chooses at import, by `TF_ENABLE_ONEDNN_OPTS` if set, else by
    the CPU.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    try:  # TensorFlow has no public API for this
        from tensorflow.python.util._pywrap_util_port import IsMklEnabled
    except ImportError:
        return None
    return bool(IsMklEnabled())


def check_precision(precision: str) -> None:
    """Raise InputError unless the backend can train in this precision on this device.

    >>> check_precision("float32")
    """
    check_choice("precision", precision, PRECISIONS)
    if precision == "float32":
        return
    dtype = precision.removeprefix("mixed_")
    try:
        x = keras.ops.ones((1, 8, 8, 8), dtype)
        kernel = keras.ops.ones((3, 3, 8, 8), dtype)
        keras.ops.convert_to_numpy(keras.ops.conv(x, kernel, padding="same", data_format="channels_last"))
    except Exception as error:
        raise InputError(
            f'the {keras.backend.backend()} backend cannot compute in {dtype} on this device; pass precision="float32" '
            "(--precision)"
        ) from error


@contextmanager
def precision_policy(precision: str) -> Iterator[None]:
    """Set Keras's global dtype policy within a block."""
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all global random generators within a block; after it, they are as they were before.

    Without that, a program that draws random settings for each of its runs would draw the same ones every time.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.enter_context(own_random_state())
        stack.enter_context(without_tensorflow_seed())
        if keras.backend.backend() == "torch":
            import torch

            stack.enter_context(torch.random.fork_rng(range(torch.cuda.device_count())))
        keras.utils.set_random_seed(seed)
        yield


def make_deterministic() -> None:
    """Make the backend deterministic for the rest of the process: equal runs on one machine compute equal bits.

    TensorFlow and PyTorch then refuse operations without a deterministic version. JAX is always deterministic on CPUs.
    On GPUs, JAX and PyTorch must be configured by an environment variable before they start.

    Raises:
        InputError: on a GPU, the environment variable of JAX or PyTorch is not set.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    elif keras.backend.backend() == "jax":
        import jax

        if jax.default_backend() == "gpu" and XLA_DETERMINISM not in os.environ.get("XLA_FLAGS", ""):
            raise InputError(f"JAX on a GPU is not deterministic by default; restart with XLA_FLAGS={XLA_DETERMINISM}")
    elif keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
            raise InputError(
                "PyTorch on a GPU is not deterministic by default; restart with CUBLAS_WORKSPACE_CONFIG=:4096:8"
            )
        torch.use_deterministic_algorithms(True)


def compiles_with_xla() -> bool:
    """Whether XLA compiles training steps: always on JAX, on TensorFlow only with a GPU, never on PyTorch.

    On CPUs, XLA makes TensorFlow's convolutions slower.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))
    return keras.backend.backend() == "jax"
