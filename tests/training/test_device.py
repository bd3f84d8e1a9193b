"""What is chosen for the device, and that a choice it cannot follow is refused."""

import keras
import pytest

from keras_preact import InputError
from keras_preact.training import device


def test_a_precision_that_the_backend_lacks_is_refused(monkeypatch):
    def fail(*args, **kwargs):
        raise NotImplementedError

    monkeypatch.setattr(keras.ops, "conv", fail)
    with pytest.raises(InputError, match="cannot compute in float16 on this device; use --precision float32"):
        device.check_precision("mixed_float16")


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
