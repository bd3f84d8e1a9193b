"""What every test starts from: one seed, Keras's default settings, and, when asked, no TensorFlow."""

import importlib.machinery
import os
from pathlib import Path


def _hide(*packages: str) -> None:
    """Make installed packages look as if they were not."""
    finder = importlib.machinery.PathFinder
    find_spec = finder.find_spec

    def find_others(fullname, path=None, target=None):
        return None if fullname.split(".")[0] in packages else find_spec(fullname, path, target)

    finder.find_spec = find_others


if os.environ.get("KERAS_PREACT_TESTS_HIDE_TENSORFLOW"):
    _hide("tensorflow", "tensorflow_datasets")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# On processors without AVX-512 TensorFlow leaves it alone: slower, and no convolutions of channels_first images.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# JAX compiles in every process anew, a second for each shape of random weights: the tests' processes share it.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import keras
import numpy as np
import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items):
    """Mark all but n cases of each test marked `sampled(n)` as `thorough`: those n are spread evenly over its cases."""
    cases = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault((item.path, item.originalname, item.cls), []).append(item)
    for group in cases.values():
        (n,) = group[0].get_closest_marker("sampled").args
        kept = {round(i * len(group) / n) for i in range(n)}
        for index, item in enumerate(group):
            if index not in kept:
                item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def keras_as_it_was():
    """Seed everything before each test; set the global settings back after it."""
    keras.utils.set_random_seed(0)
    data_format, policy = keras.config.image_data_format(), keras.config.dtype_policy()
    yield
    keras.config.set_image_data_format(data_format)
    keras.config.set_dtype_policy(policy)


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_released():
    """JAX keeps every compiled program; over the whole suite those of one process grow to more than 7 GiB."""
    yield
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()


@pytest.fixture
def tmp_path(tmp_path):
    """A folder whose path has a blank and a letter beyond ASCII, as many users' folders have."""
    folder = tmp_path / "my folder é"
    folder.mkdir()
    return folder


@pytest.fixture
def images():
    """A batch of eight small images with 16 channels, float32, of both signs."""
    return np.random.default_rng(0).normal(size=(8, 8, 8, 16)).astype("float32")


@pytest.fixture(scope="session")
def tiny_dataset():
    """60 training and 20 test images of 8×8 pixels in 3 classes that are easy to tell apart."""
    from keras_preact.data import from_arrays

    rng = np.random.default_rng(0)

    def split(count):
        labels = np.arange(count) % 3
        pixels = rng.integers(0, 60, size=(count, 8, 8, 3)) + 80 * labels[:, None, None, None]
        return pixels.astype("uint8"), labels

    return from_arrays(*split(60), *split(20), name="tiny")


@pytest.fixture
def made_up_run():
    """A function that writes the record of a finished run: its folder, configuration and test error."""
    from keras_preact.training import RunFolder

    def make(folder, config, error):
        folder.mkdir(parents=True)
        record = {
            "kind": "training",
            "status": "finished",
            "config": config.to_dict(),
            "result": {"test_error": error, "test_loss": 1.5},
        }
        hardware = {"accelerators": [], "cores": 2, "processor": "P"}
        record |= {"model": {"name": "net"}, "seconds": 120.0, "environment": {"hardware": hardware}}
        (folder / "metrics.csv").write_text(
            f"epoch,step,train_loss,train_error,test_error\n1,10,1.25,{error},{error}\n"
        )
        RunFolder(folder).update_record(**record)

    return make


@pytest.fixture
def kinds(monkeypatch):
    """The table of the subclasses of `Recipe`, which is set back after the test."""
    from keras_preact.training import recipe

    monkeypatch.setattr(recipe, "KINDS", dict(recipe.KINDS))
