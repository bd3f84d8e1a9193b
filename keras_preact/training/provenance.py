"""The environment of a run: versions, commit, hardware, time."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import keras

from keras_preact.training.device import computes_with_onednn, widest_instructions
from keras_preact.training.distribute import process
from keras_preact.training.threads import threads_per_operation, usable_cores
from keras_preact.version import __version__


def environment() -> dict[str, Any]:
    """Return the environment of a run: start time, versions, commit and hardware, but no host name.

    On TensorFlow, this includes whether it uses oneDNN and the number of threads per operation; with several processes,
    their number.

    >>> sorted(set(environment()) - {"onednn", "threads_per_operation"})
    ['commit', 'hardware', 'started', 'versions']
    """
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": commit(),
        "hardware": hardware(),
        **({"onednn": onednn} if (onednn := computes_with_onednn()) is not None else {}),
        **({"threads_per_operation": threads} if (threads := threads_per_operation()) is not None else {}),
        **({"processes": count} if (count := process()[1]) > 1 else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, this package, Keras and the numerical libraries, and the name of the backend."""
    found = {"python": platform.python_version(), "keras_preact": __version__, "backend": keras.backend.backend()}
    for package in ("keras", "tensorflow", "jax", "jaxlib", "torch", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> dict[str, Any] | None:
    """Return the git commit of this package and whether the package differs from it; `None` outside a checkout."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        # Git writes paths in UTF-8, whatever the encoding of the system.
        output = subprocess.run(command, capture_output=True, check=True, timeout=20).stdout
        return output.decode("utf-8", "replace").strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != package.parent:
            return None  # installed inside another repository
        return {"id": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", str(package)))}
    except (OSError, subprocess.SubprocessError):
        return None


def hardware() -> dict[str, Any]:
    """Return the CPU, its widest instruction set, the number of usable cores, memory in GiB, and accelerators."""
    import psutil

    return {
        "processor": _processor(),
        "instructions": widest_instructions(),
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "accelerators": _accelerators(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _accelerators() -> list[str]:
    """Return the names of the GPUs and TPUs that the backend sees."""
    if keras.backend.backend() == "jax":
        import jax

        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        devices = [device for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
        return [tf.config.experimental.get_device_details(d).get("device_name", d.device_type) for d in devices]
    if keras.backend.backend() == "torch":
        import torch

        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return []
