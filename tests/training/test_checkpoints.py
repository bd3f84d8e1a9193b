"""Checkpoints: whole or not there, and everything that a run needs."""

import json
import os
import zipfile

import keras
import numpy as np
import pytest
from harness import SOME_OR_MANY, array, assert_refused_or_equal

from keras_preact import InputError
from keras_preact.layers.composite import batch_norms
from keras_preact.models import cifar_resnet
from keras_preact.training import Checkpoint
from keras_preact.training.checkpoints import _read, newest_notes, save_model


def model(units=3):
    inputs = keras.Input((4,))
    x = keras.layers.Dropout(0.5, seed=1)(keras.layers.BatchNormalization()(inputs))
    made = keras.Model(inputs, keras.layers.Dense(units)(x))
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
    train(made)  # builds optimizer and metrics
    return made


def train(made, steps=1):
    for k in range(steps):
        x = np.random.default_rng(k).normal(size=(8, 4)).astype("float32")
        made.train_on_batch(x, np.ones((8, made.output.shape[-1])))


def test_everything_comes_back_to_the_bit(tmp_path):
    """Weights, statistics, momentum, the counter of steps, metrics, and the state of the random draws."""
    first, second = model(), model()
    train(first, 3)
    Checkpoint(tmp_path, first).save(3)
    checkpoint = Checkpoint(tmp_path, second)
    train(second, 1)
    assert checkpoint.restore() == 3
    for a, b in zip(Checkpoint(tmp_path, first).variables(), checkpoint.variables(), strict=True):
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(each) for each in (a, b)))
    train(first, 2), train(second, 2)
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_layer_in_bfloat16_comes_back_to_the_bit(tmp_path):
    made, other = (model_in_bfloat16(seed) for seed in (1, 2))
    Checkpoint(tmp_path, made).save(step=3)
    assert Checkpoint(tmp_path, other).restore() == 3
    for found, expected in zip(other.variables, made.variables, strict=True):
        np.testing.assert_array_equal(array(found), array(expected))


def model_in_bfloat16(seed):
    initializer = keras.initializers.RandomNormal(seed=seed)
    dense = keras.layers.Dense(3, kernel_initializer=initializer, dtype="bfloat16")
    made = keras.Sequential([keras.Input((2,)), dense])
    made.compile("sgd", "mse")
    return made


def test_the_random_state_is_part_of_it(tmp_path):
    made = model()
    names = [variable.path for variable in Checkpoint(tmp_path, made).variables()]
    assert any("seed" in name for name in names)
    assert any("iteration" in name for name in names)
    assert len(names) == len(set(map(id, Checkpoint(tmp_path, made).variables())))


def test_the_newest_two_are_kept(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    for step in (1, 5, 10, 200):
        checkpoint.save(step)
    assert [path.name for path in checkpoint.files()] == ["step-000000010.npz", "step-000000200.npz"]


def test_a_checkpoint_that_is_cut_short_is_passed_over_for_the_one_before(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    newest = checkpoint.save(2)
    newest.write_bytes(newest.read_bytes()[:-200])
    assert checkpoint.restore() == 1


def test_a_damaged_checkpoint_does_not_stay_the_newest(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(40)
    damaged = checkpoint.save(60)
    damaged.write_bytes(damaged.read_bytes()[:-200])
    assert checkpoint.restore() == 40
    checkpoint.save(45)
    checkpoint.save(50)
    assert [path.name for path in checkpoint.files()] == ["step-000000045.npz", "step-000000050.npz"]
    assert checkpoint.last_step() == 50


def test_a_flipped_byte_is_noticed(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    newest = checkpoint.save(2)
    contents = bytearray(newest.read_bytes())
    with np.load(newest) as data:
        kernel = data[data.files[1]].tobytes()
    place = bytes(contents).index(kernel)
    contents[place] ^= 1
    newest.write_bytes(contents)
    assert checkpoint.restore() == 1


def test_altered_bytes_of_the_archives_directory_are_passed_over_too(tmp_path):
    """Encrypted, it would say, or packed by a method that does not exist."""
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    newest = checkpoint.save(2)
    whole = newest.read_bytes()
    entry = whole.index(b"PK\x01\x02")
    for offset, value in ((8, 1), (10, 99), (6, 255)):  # flags, method, version needed
        newest.write_bytes(whole[: entry + offset] + bytes([value]) + whole[entry + offset + 1 :])
        assert checkpoint.restore() == 1


def test_where_none_can_be_read_it_says_so(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1).write_bytes(b"")
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read"):
        checkpoint.restore()


def test_without_a_checkpoint_the_step_is_zero(tmp_path):
    assert Checkpoint(tmp_path / "none", model()).restore() == 0


def test_the_checkpoint_of_another_network_is_refused_and_changes_nothing(tmp_path):
    Checkpoint(tmp_path, model()).save(1)
    other = model(units=5)
    before = other.get_weights()
    with pytest.raises(InputError, match="belongs to another network"):
        Checkpoint(tmp_path, other).restore()
    for a, b in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_failed_save_leaves_the_old_one_and_no_rubbish(tmp_path):
    """The file size limit does what a full disk does."""
    resource = pytest.importorskip("resource")
    import signal

    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(OSError):
            checkpoint.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path) == ["step-000000001.npz"]
    assert checkpoint.restore() == 1


def test_what_a_killed_save_left_is_in_nobodys_way(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    (tmp_path / "step-000000002.partial").write_bytes(b"half")
    assert checkpoint.restore() == 1
    assert checkpoint.save(2).exists()
    assert array(checkpoint.model.weights[0]).shape == (4,)


def test_a_checkpoint_that_unpacks_to_more_than_it_is_is_passed_over(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    np.savez_compressed(tmp_path / "step-000000002.npz", about=np.zeros(1 << 26, "uint8"))
    assert checkpoint.restore() == 1


def test_a_checkpoint_that_is_a_pickle_is_not_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    np.savez(tmp_path / "step-000000002.npz", about=np.array([Trap()], dtype=object))
    assert checkpoint.restore() == 1
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_without_its_description_is_passed_over(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    np.savez(tmp_path / "step-000000002.npz", weights=np.zeros(3))
    assert checkpoint.restore() == 1


def test_the_leftovers_of_killed_saves_do_not_pile_up(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    for step in (1, 2, 3):
        (tmp_path / f"step-{step:09d}.partial").write_bytes(b"half")
    newest = checkpoint.save(9)
    assert list(tmp_path.iterdir()) == [newest]


def test_a_folder_that_was_removed_does_not_come_back(tmp_path):
    """Only the checkpoints' own folder is made, never the run's above it."""
    with pytest.raises(OSError, match=r"cannot write .*step-000000001.npz: No such file or directory"):
        Checkpoint(tmp_path / "removed" / "checkpoints", model()).save(1)
    assert list(tmp_path.iterdir()) == []


def test_notes_come_back_with_the_state_that_they_were_saved_with(tmp_path):
    checkpoint = Checkpoint(tmp_path, model())
    assert newest_notes(tmp_path) == {}
    checkpoint.save(1, {"rows": [1.5]})
    newest = checkpoint.save(2, {"rows": [1.5, 2.5]})
    assert newest_notes(tmp_path) == {"rows": [1.5, 2.5]}
    assert checkpoint.restore() == 2 and checkpoint.notes == {"rows": [1.5, 2.5]}
    newest.write_bytes(newest.read_bytes()[:-100])
    assert newest_notes(tmp_path) == {"rows": [1.5]}
    assert checkpoint.restore() == 1 and checkpoint.notes == {"rows": [1.5]}


def test_an_array_whose_header_asks_for_less_than_was_written_is_noticed(tmp_path):
    """NumPy would read half of the numbers, and stop before the checksum is compared."""
    checkpoint = Checkpoint(tmp_path, model())
    checkpoint.save(1)
    newest = checkpoint.save(2)
    content = newest.read_bytes()
    newest.write_bytes(content.replace(b"'<f4'", b"'<f2'"))
    assert newest.read_bytes() != content and checkpoint.restore() == 1


def state(checkpoint):
    return [array(variable).tobytes() for variable in checkpoint.variables()]


@SOME_OR_MANY
def test_a_damaged_checkpoint_is_passed_over_or_equal(times, tmp_path):
    """Never another state than one of the two, with the notes that belong to it."""
    made = model()
    checkpoint = Checkpoint(tmp_path, made)
    states = {}
    for step in (1, 3):
        newest = checkpoint.save(step, {"step": step})
        states[step] = state(checkpoint)
        train(made, 2)

    def restored():
        step = checkpoint.restore()
        assert state(checkpoint) == states[step] and checkpoint.notes == {"step": step}
        if step != 3:
            raise InputError("passed over")
        return step

    assert assert_refused_or_equal(newest, restored, times) > 0.5 * times


# ---- the trained model -----------------------------------------------------------------------------------------------


def test_a_model_file_of_a_run_on_several_devices_loads_on_every_backend(tmp_path):
    network = cifar_resnet(8)
    for norm in batch_norms(network):
        norm.synchronized = True
    save_model(network, tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not any(norm.synchronized for norm in batch_norms(loaded))


def test_a_model_file_has_neither_times_nor_addresses(tmp_path):
    save_model(model(), tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert "date_saved" not in json.loads(archive.read("metadata.json"))
        config = archive.read("config.json").decode()
    assert '"shared_object_id": 0' in config and str(id(model))[:6] not in config


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\x03\x00(((",  # NumPy's own search for old headers fails on it
        b"\x93NUMPY\x01\x00\x04\x00'''x",
        {"step": 1, "names": 5, "notes": {}},
        {"step": 1, "names": None, "notes": {}},
    ],
)
def test_checkpoints_that_describe_nothing_are_refused_in_a_sentence(tmp_path, content):
    file = tmp_path / "step-000000001.npz"
    if isinstance(content, dict):
        np.savez(file, about=np.frombuffer(json.dumps(content).encode(), np.uint8))
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("about.npy", content)
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read"):
        Checkpoint(tmp_path, model()).restore()
    assert newest_notes(tmp_path) == {}


def test_a_checkpoint_with_a_false_size_is_not_unpacked(tmp_path):
    file, size = tmp_path / "step-000000001.npz", 10**7
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.npy", bytes(size))
    file.write_bytes(file.read_bytes().replace(size.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    with pytest.raises(InputError, match="unpacks to more than its size"):
        _read(file)
