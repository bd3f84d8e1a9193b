"""What is chosen for the device, and that a choice it cannot follow is refused."""

import os
import random
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.training import device
from keras_preact.training.device import make_deterministic, seeded


def drawn():
    """Return a number of each global generator."""
    numbers = [random.random(), np.random.uniform(), float(keras.random.uniform(()))]
    if keras.backend.backend() == "torch":
        import torch

        numbers.append(float(torch.rand(())))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        numbers.append(float(tf.random.uniform(())))
    return numbers


def test_a_block_has_its_seed_and_the_program_goes_on_with_its_own_numbers():
    keras.utils.set_random_seed(1)
    expected = [drawn(), drawn()]
    keras.utils.set_random_seed(1)
    assert drawn() == expected[0]
    with pytest.raises(ZeroDivisionError), seeded(1):
        assert drawn() == expected[0]
        raise ZeroDivisionError
    assert drawn() == expected[1]


def test_a_precision_that_the_backend_lacks_is_refused(monkeypatch):
    def fail(*args, **kwargs):
        raise NotImplementedError

    monkeypatch.setattr(keras.ops, "conv", fail)
    with pytest.raises(InputError, match="cannot compute in float16 on this device; pass precision="):
        device.check_precision("mixed_float16")


@pytest.mark.parametrize(
    ("flags", "widest"),
    [
        ("sse2 avx avx2", "AVX2"),
        ("avx2 avx512f avx512_bf16", "AVX512-BF16"),
        ("avx2 avx512f", "AVX-512"),
        ("vfp", None),
    ],
)
def test_the_widest_instructions_of_a_processor(tmp_path, flags, widest):
    (tmp_path / "cpuinfo").write_text(f"model name : P\nflags : {flags}\n")
    assert device.widest_instructions(tmp_path / "cpuinfo") == widest
    assert device.widest_instructions(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "flags, multiplies", [("fpu avx512f avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f", False)]
)
def test_a_processor_multiplies_bfloat16_where_its_flags_say_so(flags, multiplies, tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags : {flags}\n")
    assert device._multiplies_bfloat16(cpuinfo) is multiplies
    assert device._multiplies_bfloat16(tmp_path / "none") is False


def test_the_default_precision_is_one_that_the_device_computes_in():
    device.check_precision(device.default_precision())


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="how TensorFlow names its cards")
@pytest.mark.parametrize("capability, precision", [((7, 5), "float32"), ((8, 0), "mixed_bfloat16")])
def test_a_card_computes_in_bfloat16_from_capability_8_on(capability, precision, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["card"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda card: {"compute_capability": capability})
    assert device.default_precision() == precision
    assert device.compiles_with_xla()


DETERMINISTIC_RUN = """
import sys
from keras_preact.training import RunConfig, get_recipe, start
recipe = get_recipe("demo").with_steps(4)
start(RunConfig(options={"depth": 8}, recipe=recipe, precision="PRECISION", deterministic=True), sys.argv[1])
if "BACKEND" == "tensorflow":
    from tensorflow.python.framework.config import is_op_determinism_enabled
    assert is_op_determinism_enabled()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("backend", "precision"), [("tensorflow", "mixed_bfloat16"), ("jax", "float32")])
def test_two_deterministic_runs_have_the_same_weights_to_the_bit(tmp_path, backend, precision):
    pytest.importorskip(backend)
    code = DETERMINISTIC_RUN.replace("PRECISION", precision).replace("BACKEND", backend)
    checkpoints = []
    for name in ("first", "second"):
        environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_ENABLE_COMPILATION_CACHE": "false"}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment)
        newest = max((tmp_path / name).rglob("step-*.npz"))
        with np.load(newest) as data:
            checkpoints.append({key: data[key] for key in data.files if key != "about"})  # which has the time in it
    first, second = checkpoints
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_jax_on_a_gpu_must_be_told_before_it_starts(monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("keras_preact.training.device.keras.backend.backend", lambda: "jax")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.raises(InputError, match="restart with XLA_FLAGS=--xla_gpu_deterministic_ops=true"):
        make_deterministic()
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    make_deterministic()
