"""Optimizers and schedules: arguments out of range are refused."""

import pytest

from keras_preact import InputError
from keras_preact.optimizers import CosineAfterHold


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
