"""Optimizers and schedules: arguments out of range are refused."""

import keras
import pytest

from keras_preact import InputError
from keras_preact.optimizers import CosineAfterHold, CoupledSGD, KernelAdamW


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.01, 10, 0.1, 0), "decay_steps is 0"),
        ((0.01, -1, 0.1, 20), "warmup_steps is -1"),
        ((-0.01, 10, 0.1, 20), "warmup_learning_rate is -0.01"),
        ((0.01, 10, float("nan"), 20), "learning_rate is nan"),
    ],
)
def test_a_schedule_with_numbers_out_of_range_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        CosineAfterHold(*arguments)


@pytest.mark.parametrize("make", [lambda: CoupledSGD(1.0, 0.0, 0.5, decays="kernels"), lambda: KernelAdamW(0.5, 0.5)])
def test_a_second_build_changes_nothing_as_in_keras(make):
    kernel, bias, other = (keras.Variable([1.0], name=name) for name in ("kernel", "bias", "kernel"))
    optimizer = make()
    optimizer.build([kernel, bias, other])
    optimizer.build([bias, other])
    optimizer.apply([keras.ops.zeros((1,))] * 3, [kernel, bias, other])
    assert [float(v[0]) < 1 for v in (kernel, bias, other)] == [True, False, True]


def test_no_kernel_at_all_decays_nothing():
    bias = keras.Variable([1.0], name="bias")
    KernelAdamW(0.5, 0.5).apply([keras.ops.zeros((1,))], [bias])
    assert float(bias[0]) == 1.0


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="variables of TensorFlow")
@pytest.mark.parametrize("make", [lambda: CoupledSGD(1.0, 0.0, 0.5, decays="kernels"), lambda: KernelAdamW(0.5, 0.5)])
def test_kernels_of_a_module_of_tensorflow_decay(make):
    import tensorflow as tf

    kernel, bias = tf.Variable([2.0], name="kernel"), tf.Variable([2.0], name="bias")
    make().apply([tf.zeros(1)] * 2, [kernel, bias])
    assert float(kernel[0]) < 2 and float(bias[0]) == 2
