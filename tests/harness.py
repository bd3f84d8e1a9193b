"""One set of checks for every layer of the package; each layer's test calls it with what is special to it."""

from __future__ import annotations

import math
import signal
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
TO_CHANNELS_FIRST = (0, 3, 1, 2)


def array(x):
    """Return a backend's tensor as a float32 NumPy array."""
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")))


def ended_runs(*errors, **record):
    """Return runs of ten classes with these test errors; those with an infinite error diverged."""
    from keras_preact.experiments import Run
    from keras_preact.training import RunConfig, RunFolder

    def run(error):
        entry = (
            {"result": {"test_error": error, "test_loss": 1.5}} if math.isfinite(error) else {"diverged": {"step": 3}}
        )
        return Run(RunFolder(Path("none")), {"config": RunConfig().to_dict(), **entry, **record})

    return tuple(map(run, errors))


def check_layer(make, inputs, *, trainable=True, channels_first=True, tolerance=1e-4):
    """Check a layer in every way that all layers of the package have in common.

    Args:
        make: a function of keyword arguments (`dtype`, and `data_format` where the layer has one) to a new layer.
        inputs: one array, or several where the layer takes several, images channels_last, float32.
        trainable: whether the layer has weights that training must change.
        channels_first: whether the layer has a data format.
        tolerance: between data formats, relative and absolute.
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    check_config(make())
    check_symbolic_call(make(), inputs)
    for policy in POLICIES:
        check_policy(make(dtype=policy), inputs, policy)
    check_saving(make(), inputs)
    check_training(make(), inputs, trainable)
    if channels_first:
        check_data_formats(make, inputs, tolerance)


def check_config(layer):
    """A layer made from another's configuration has that configuration, alone and through Keras's serialization."""
    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is type(layer)
    assert again.get_config() == config


def symbolic(layer, inputs):
    """Return the model of the layer alone, batch size open."""
    symbols = [keras.Input(x.shape[1:]) for x in inputs]
    return keras.Model(symbols, layer(*symbols))


def check_symbolic_call(layer, inputs):
    """Shapes agree: promised, symbolic and real."""
    model = symbolic(layer, inputs)
    real = layer(*inputs)
    promised = layer.compute_output_shape(*[x.shape for x in inputs])
    assert tuple(promised) == tuple(real.shape)
    assert tuple(model.output.shape) == (None, *real.shape[1:])
    assert np.isfinite(array(real)).all()


def check_policy(layer, inputs, policy):
    """Computation in the policy's compute dtype, weights in its variable dtype, in training and inference."""
    compute = keras.dtype_policies.get(policy).compute_dtype
    for training in (False, True):
        output = layer(*inputs, training=training)
        assert keras.backend.standardize_dtype(output.dtype) == compute
        assert np.isfinite(array(output)).all()
    for variable in layer.trainable_variables:
        assert keras.backend.standardize_dtype(variable.dtype) == "float32"


def check_saving(layer, inputs, tmp=None):
    """Saved and loaded in safe mode, the layer gives the same output to the bit."""
    import tempfile
    from pathlib import Path

    model = symbolic(layer, inputs)
    disturb(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path, safe_mode=True)
    np.testing.assert_array_equal(array(loaded(list(inputs))), array(model(list(inputs))))


def disturb(model):
    """Give every float weight another value than its initial one, so that a weight that is not saved is noticed."""
    rng = np.random.default_rng(1)
    for variable in model.weights:
        if "float" in keras.backend.standardize_dtype(variable.dtype):
            value = array(variable)
            variable.assign(value + rng.uniform(0.01, 0.1, value.shape))


def check_training(layer, inputs, trainable=True):
    """One step of plain SGD changes every trainable weight: each has a gradient, and none is zero everywhere."""
    model = symbolic(layer, inputs)
    assert bool(model.trainable_variables) == trainable
    if not trainable:
        return
    before = [array(variable) for variable in model.trainable_variables]
    model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
    target = np.random.default_rng(2).normal(size=(len(inputs[0]), *model.output.shape[1:]))
    model.train_on_batch(list(inputs), target)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert not np.array_equal(array(variable), old), f"{variable.path} has no gradient"


def check_data_formats(make, inputs, tolerance):
    """Both data formats give the same output from the same weights."""
    last, first = make(data_format="channels_last"), make(data_format="channels_first")
    moved = [x.transpose(TO_CHANNELS_FIRST) for x in inputs]
    expected, _ = last(*inputs), first(*moved)
    first.set_weights(last.get_weights())
    output = array(first(*moved)).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(output, array(expected), rtol=tolerance, atol=tolerance)


# ---- stacks --------------------------------------------------------------------------------------------------------


def train_stack(stack, images, steps=1):
    """Take steps of SGD on the stack alone; return the loss before each."""
    inputs = keras.Input(images.shape[1:], dtype=images.dtype.name)
    model = keras.Model(inputs, stack(inputs))
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    target = np.random.default_rng(4).normal(size=images.shape)
    return [float(model.train_on_batch(images, target)) for _ in range(steps)]


def all_weights(stack):
    return [
        {name: np.asarray(keras.ops.convert_to_numpy(v), "float64") for name, v in stack.unit_weights(k).items()}
        for k in range(stack.repeats)
    ]


def assert_equal_stacks(stack, other, images, tolerance):
    """Outputs in inference and training, then weights and state after a step, of every unit."""
    np.testing.assert_allclose(array(stack(images)), array(other(images)), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(train_stack(stack, images), train_stack(other, images), rtol=tolerance)
    for mine, others in zip(all_weights(stack), all_weights(other), strict=True):
        assert mine.keys() == others.keys()
        for name in mine:
            np.testing.assert_allclose(mine[name], others[name], rtol=tolerance, atol=tolerance, err_msg=name)


# ---- files ---------------------------------------------------------------------------------------------------------


def members_of(model, folder):
    """Return the members of the `.keras` file that a model is saved as, by name."""
    model.save(folder / "sound.keras")
    with zipfile.ZipFile(folder / "sound.keras") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


SOME_OR_MANY = pytest.mark.parametrize("times", [50, pytest.param(1000, marks=pytest.mark.slow)])
"""For tests of damaged files: a sample each time, many in the slow tests (`pytest -m slow -s` prints the counts)."""


def damaged(content, rng):
    """Return a file's content with one bit flipped, or cut short, at a place drawn from all of it."""
    if rng.random() < 0.2:
        return content[: rng.integers(len(content))]
    changed = bytearray(content)
    changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def assert_refused_or_equal(path, read, times):
    """Damage a file at random places: it must be refused in one sentence, or read as before. Return how many are."""
    rng, content = np.random.default_rng(0), path.read_bytes()
    return assert_each_refused_or_equal(path, read, {k: damaged(content, rng) for k in range(times)})


def assert_each_refused_or_equal(path, read, contents):
    """Put each content in the place of a file's: it must be refused in one sentence, or read as before.

    Args:
        path: the file, which is left as it was.
        read: a function that returns what it holds.
        contents: bytes by the name of the damage.

    Returns:
        How many of the contents are refused.
    """
    from keras_preact import InputError

    content, expected, refused = path.read_bytes(), read(), 0
    for damage, other in contents.items():
        path.write_bytes(other)
        try:
            found = read()
        except InputError as error:
            assert "\n" not in str(error), damage
            refused += 1
        else:
            assert found == expected, damage
    path.write_bytes(content)
    print(f"{path.name}: of {len(contents)} damaged files {refused} refused, {len(contents) - refused} equal")
    return refused


def damaged_metrics(content):
    """Return what can become of a metrics.csv of five rows, by name: the content as bytes."""
    header, *rows = content.splitlines(keepends=True)
    names, pairs = header.strip().split(b","), range(len(rows) - 1)
    made = {
        "header missing": rows,
        "header twice": [header, header, *rows],
        "header last": [*rows, header],
        "a column renamed": [header.replace(b"test_loss", b"tset_loss"), *rows],
        "two columns renamed": [b",".join([names[1], names[0], *names[2:]]) + b"\r\n", *rows],
        "a column less": [header.replace(b",seconds", b""), *rows],
        "empty": [],
        "header alone": [header],
        "zeros": [bytes(len(content))],
        "binary": [bytes(range(256))],
        "an image": [b"\x89PNG\r\n\x1a\n", content],
        "UTF-16": [content.decode().encode("utf-16")],
        "a byte-order mark": [b"\xef\xbb\xbf", content],
        "semicolons": [content.replace(b",", b";")],
        "an open quote": [header, b'"', *rows],
    }
    for k, row in enumerate(rows):
        cells = row.split(b",")
        kinds = {
            "missing": [],
            "cut short": [row[: len(row) // 2]],
            "twice": [row, row],
            "no number": [b",".join([*cells[:5], b"none", *cells[6:]])],
            "a cell empty": [b",".join([*cells[:5], b"", *cells[6:]])],
            "NaN": [b",".join([*cells[:5], b"nan", *cells[6:]])],
            "a digit changed": [row.replace(cells[5], cells[5][:-1] + (b"1" if cells[5][-1:] != b"1" else b"2"))],
            "a cell more": [row.replace(b",", b",0,", 1)],
        }
        made |= {f"row {k} {kind}": [header, *rows[:k], *lines, *rows[k + 1 :]] for kind, lines in kinds.items()}
    made |= {f"rows {k} and on cut": [header, *rows[:k]] for k in pairs}
    made |= {f"row {k} swapped": [header, *rows[:k], rows[k + 1], rows[k], *rows[k + 2 :]] for k in pairs}
    return {damage: b"".join(lines) for damage, lines in made.items()}


def damaged_record(content):
    """Return what can become of a run.json, by name: the content as bytes."""
    import json

    record, text = json.loads(content), content.decode()
    seed = text.index('"seed": ') + len('"seed": ')
    made = {f"seed {digit}": text[:seed] + digit + text[seed + 1 :] for digit in "0123456789" if digit != text[seed]}
    made |= {f"cut at {k}/10": text[: len(text) * k // 10] for k in range(10)}
    made |= {f"without {key}": json.dumps({k: v for k, v in record.items() if k != key}) for key in record}
    made |= {f"{key} of another type": json.dumps({**record, key: [1]}) for key in record}
    others = ("null", "3", '"text"', "[]", "{}", "[" * 100_000, "NaN", "{'status': 1}", text + text, text + "x", "\0")
    made |= {f"{other[:20]!r}": other for other in others}
    encoded = {damage: other.encode() for damage, other in made.items()}
    return encoded | {"UTF-16": text.encode("utf-16"), "binary": bytes(range(256)), "zeros": bytes(len(content))}


# ---- runs ----------------------------------------------------------------------------------------------------------


class StopAfter(keras.callbacks.Callback):
    """Sends this process a signal after so many steps: Ctrl-C, as seen from inside."""

    def __init__(self, step, number=signal.SIGINT):
        super().__init__()
        self.step, self.number, self.done = step, number, 0

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if self.done == self.step:
            signal.raise_signal(self.number)


def write_weights(model, path):
    """Write a model to a file of weights of the kind that its name ends in; return the path."""
    if path.suffix == ".safetensors":
        from keras_preact.interop import save_safetensors

        save_safetensors(model, path)
    elif path.suffix == ".keras":
        model.save(path)
    else:
        model.save_weights(path)
    return path
