"""Save → load → predict, equal to the bit, in a process that only imports the package."""

import itertools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from harness import array, disturb

from keras_preact.layers import PLACEMENTS, SHORTCUTS, ResidualUnit
from keras_preact.models import cifar_resnet, imagenet_resnet, load_model, transformer

BLOCKS = ("basic", "bottleneck")
COMBINATIONS = list(itertools.product(PLACEMENTS, SHORTCUTS, BLOCKS))

LOAD = """
import json, pathlib, sys
import keras, numpy as np
import keras_preact

folder = pathlib.Path(sys.argv[1])
x = np.load(folder / "x.npy")
differing = []
for path in sorted(folder.glob("*.keras")):
    model = keras.models.load_model(path, safe_mode=True)
    y = keras.ops.convert_to_numpy(model(x, training=False))
    if y.dtype != np.float32 or not np.array_equal(y, np.load(path.with_suffix(".npy"))):
        differing.append(path.name)
print(json.dumps(differing))
"""


def network(placement, shortcut, block):
    """A unit that keeps the shape and one that changes it, between float32 ends."""
    inputs = keras.Input((8, 8, 8))
    filters = 2 if block == "bottleneck" else 8
    x = ResidualUnit(filters, block=block, placement=placement, shortcut=shortcut)(inputs)
    x = ResidualUnit(2 * filters, strides=2, block=block, placement=placement, shortcut=shortcut)(x)
    return keras.Model(inputs, x)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every combination, saved with disturbed weights, and its output."""
    folder = tmp_path_factory.mktemp("saved")
    x = np.random.default_rng(7).normal(size=(2, 8, 8, 8)).astype("float32")
    np.save(folder / "x.npy", x)
    for placement, shortcut, block in COMBINATIONS:
        model = network(placement, shortcut, block)
        disturb(model)
        path = folder / f"{placement}-{shortcut}-{block}.keras"
        model.save(path)
        np.save(path.with_suffix(".npy"), array(model(x, training=False)))
    return folder


@pytest.mark.thorough
def test_every_placement_shortcut_and_block_loads_equal_to_the_bit_in_a_fresh_process(saved):
    assert len(list(saved.glob("*.keras"))) == len(COMBINATIONS) == 2 * len(PLACEMENTS) * len(SHORTCUTS)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(saved)], capture_output=True, text=True, env=dict(os.environ), timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


@pytest.mark.thorough
def test_the_outputs_do_differ_between_combinations(saved):
    """Or the test above would pass on a network that ignores its choices."""
    outputs = {path.name: np.load(path).tobytes() for path in saved.glob("*-basic.npy")}
    assert len(set(outputs.values())) > 0.8 * len(outputs)


BUILDERS = {
    "cifar_resnet": lambda **options: cifar_resnet(8, input_shape=(8, 8, 3), **options),
    "imagenet_resnet": lambda **options: imagenet_resnet(18, input_shape=(32, 32, 3), classes=3, **options),
    "transformer": lambda **options: transformer(depth=1, dim=8, heads=2, **options),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_network_in_float16_is_compiled_with_a_loss_scale_and_loaded_with_it(builder, tmp_path):
    """Whether its dtype is an argument or Keras's setting; and of other dtypes there is none."""
    for dtype, as_setting in itertools.product(("mixed_float16", "mixed_bfloat16", "float32"), (False, True)):
        if as_setting:
            keras.config.set_dtype_policy(dtype)
        network = BUILDERS[builder](**({} if as_setting else {"dtype": dtype}))
        keras.config.set_dtype_policy("float32")
        network.compile("sgd", "mse")
        network.optimizer.build(network.trainable_variables)
        network.save(tmp_path / "network.keras")
        for model in (network, load_model(tmp_path / "network.keras")):
            scales = type(model.optimizer) is keras.optimizers.LossScaleOptimizer
            assert scales == (dtype == "mixed_float16"), (dtype, as_setting, model is network)
        assert keras.config.dtype_policy().name == "float32"
