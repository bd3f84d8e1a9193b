"""Files that ask for every public name of Keras in every position of a configuration; run as a process of its own.

`python tests/models/saving/hostile.py COUNT` loads COUNT of them, evenly chosen (0: all), and prints what it saw as
JSON: the files that came as far as Keras, what was opened, started or connected to meanwhile, and the global settings
after it.
"""

import copy
import inspect
import itertools
import json
import re
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import keras
import numpy as np

import keras_preact.models.saving.loading as loading
from keras_preact.errors import InputError
from keras_preact.models import load_model

WATCHED = ("open", "os.", "shutil.", "subprocess.", "socket.", "urllib.", "ctypes.dlopen", "pickle.", "tempfile.")
HARMLESS = ("os.listdir", "os.scandir")


def public_names():
    """Yield (module, name, object) for everything that `keras` and its public modules export."""
    modules, seen = [keras], set()
    while modules:
        module = modules.pop()
        if module.__name__ in seen or ".src" in module.__name__:
            continue
        seen.add(module.__name__)
        for name in sorted(set(dir(module))):
            if name.startswith("_"):
                continue
            found = getattr(module, name)
            if isinstance(found, types.ModuleType):
                if found.__name__.startswith("keras."):
                    modules.append(found)
            elif callable(found):
                yield module.__name__, name, found


def short_name(name):
    """Return what Keras also calls a class: `sum` for `Sum`, `mean_squared_error` for `MeanSquaredError`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


NAMES = {}
for _entry in public_names():
    for _name in {_entry[1], short_name(_entry[1])}:
        NAMES.setdefault(_name, []).append(_entry)


def sound():
    """Return the members of a file with a graph: two inputs, a layer in a wrapper, an operation, compiled."""
    one, other = keras.Input((4, 3), name="one"), keras.Input((4, 3), name="other")
    x = keras.layers.Dense(2, activation="relu", kernel_regularizer="l2", name="dense")(one + other)
    x = keras.layers.TimeDistributed(keras.layers.Dense(2, name="inner"), name="wrapper")(x)
    model = keras.Model([one, other], keras.layers.Flatten(name="flat")(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    path = Path(tempfile.mkdtemp()) / "sound.keras"
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def layer(config, name):
    return next(each for each in config["config"]["layers"] if each["name"] == name)


def argument(name):
    return lambda config, thing: layer(config, "dense")["config"].update({name: thing})


def as_layer(config, thing):
    """Put an object where the first layer was, called on the same tensors."""
    place = layer(config, "dense")
    thing = thing if isinstance(thing, dict) else {"class_name": thing, "module": "keras", "registered_name": None}
    place.update({**thing, "config": thing.get("config") or {"name": "dense"}})
    place.pop("build_config", None)


def registered(config, thing):
    name = thing if isinstance(thing, str) else f"{thing.get('module')}>{thing['class_name']}"
    layer(config, "dense")["registered_name"] = name


def within(*path):
    """Return a function that puts an object at a place below the configuration's `dense` layer, or its compilation."""

    def put(config, thing):
        place = config if path[0] == "compile_config" else layer(config, path[0])
        for key in path[bool(place is not config) : -1]:
            place = place[key]
        place[path[-1]] = thing

    return put


POSITIONS = {
    "the model": lambda config, thing: config.update(thing if isinstance(thing, dict) else {"class_name": thing}),
    "a layer": as_layer,
    "a registered name": registered,
    **{
        f"its {name}": argument(name)
        for name in (
            *("activation", "kernel_initializer", "kernel_regularizer", "kernel_constraint", "dtype", "units"),
            *("quantization_config", "name", "unknown", "function"),
        )
    },
    "a layer in a wrapper": within("wrapper", "config", "layer"),
    "a cell": lambda config, thing: layer(config, "dense").update(
        module="keras.layers", class_name="RNN", config={"name": "dense", "cell": thing}
    ),
    "an input of a call": within("dense", "inbound_nodes", 0, "args", 0),
    "a second input of a call": lambda config, thing: layer(config, "add")["inbound_nodes"][0]["args"].append(thing),
    "an argument of a call": lambda config, thing: layer(config, "dense")["inbound_nodes"][0]["kwargs"].update(x=thing),
    "a shape": within("dense", "build_config", "input_shape"),
    **{f"compiled {name}": within("compile_config", name) for name in ("optimizer", "loss", "metrics", "loss_weights")},
    "a schedule": within("compile_config", "optimizer", "config", "learning_rate"),
}
KINDS = {
    "the model": keras.Model,
    "a layer": (keras.layers.Layer, keras.Operation),
    "its activation": keras.layers.Layer,
    "its kernel_initializer": keras.initializers.Initializer,
    "its kernel_regularizer": keras.regularizers.Regularizer,
    "its kernel_constraint": keras.constraints.Constraint,
    "its dtype": keras.dtype_policies.DTypePolicy,
    "its quantization_config": (keras.quantizers.Quantizer, getattr(keras.quantizers, "QuantizationConfig", ())),
    "a layer in a wrapper": keras.layers.Layer,
    "a cell": keras.layers.Layer,
    "compiled optimizer": keras.optimizers.Optimizer,
    "compiled loss": keras.losses.Loss,
    "compiled metrics": (keras.metrics.Metric, keras.losses.Loss),
    "a schedule": keras.optimizers.schedules.LearningRateSchedule,
}
"""The classes that may come as far as Keras in a position, by what they are derived from."""
FUNCTIONS = {
    "its activation": (keras.activations,),
    "compiled loss": (keras.losses,),
    "compiled metrics": (keras.metrics, keras.losses),
}
PLAIN = {
    *("its name", "its dtype", "its unknown", "its units", "its function", "its quantization_config", "a shape"),
    *("a layer in a wrapper", "a cell", "compiled loss_weights", "a schedule"),
}
"""Positions of plain text: Keras looks up nothing by it."""
CODE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}


def forms(module, name):
    """Yield what a configuration may write for a name."""
    yield "class", {"module": module, "class_name": name, "config": {}, "registered_name": None}
    yield "function", {"module": module, "class_name": "function", "config": name, "registered_name": name}
    yield "builtin", {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}
    first, *rest = f"{module}.{name}".split(".")
    yield "dotted", {"module": first, "class_name": ".".join(rest), "config": {}, "registered_name": None}
    yield "short", {"class_name": name, "config": {}}
    yield "word", name


def allowed(position, form, name, found):
    """Whether such a thing may come as far as Keras; said independently of the check."""
    if form == "word" and position in PLAIN:
        return True
    if name in CODE or name in ("get", "serialize", "deserialize"):
        return False
    if form in ("word", "short", "builtin"):  # a name alone: what else has it
        alias = position == "its kernel_initializer" and name in ("normal", "uniform", "one", "zero")
        return alias or any(_fits(position, whole, other) for _, whole, other in NAMES[name] if whole not in CODE)
    return _fits(position, name, found)


def _fits(position, name, found):
    if inspect.isclass(found):
        return position in KINDS and issubclass(found, KINDS[position])
    parts = FUNCTIONS.get(position, ())
    return any(getattr(part, name, None) is found for part in parts)


def cases(count):
    """Return `count` of all cases, evenly chosen; 0 for all."""
    every = [
        (position, form, name, found, thing)
        for (module, name, found), position in itertools.product(public_names(), POSITIONS)
        for form, thing in forms(module, name)
    ]
    if not count:
        return every
    return [every[int(k)] for k in np.linspace(0, len(every) - 1, count)]


def settings():
    return [
        *(keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format()),
        *(keras.config.dtype_policy().name, keras.config.backend(), len(keras.saving.get_custom_objects())),
    ]


def main(count):
    members, folder = sound(), Path(tempfile.mkdtemp())
    path, events, watching = folder / "hostile.keras", [], []
    own = {str(path), str(folder)}

    def hook(event, arguments):
        if watching and event.startswith(WATCHED) and event not in HARMLESS:
            where = str(arguments[0]) if arguments else ""
            if event != "open" or (where not in own and not where.endswith((".py", ".pyc"))):
                events.append(f"{watching[0]}: {event} {where}"[:200])

    sys.addaudithook(hook)
    reached, unclear, before = [], [], settings()
    build = loading._built

    def built(archive, compile):
        reached.append(watching[0])
        return build(archive, compile)

    loading._built = built
    every, wrong, kinds = cases(count), [], {}
    sound_config = json.loads(members["config.json"])
    for position, form, name, found, thing in [(None,) * 5, *every]:
        config = copy.deepcopy(sound_config)
        if position is not None:  # the first is sound: what Keras imports late, it imports now
            POSITIONS[position](config, copy.deepcopy(thing))
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in {**members, "config.json": json.dumps(config)}.items():
                archive.writestr(member, content)
        what = f"{name} ({form}) as {position}"
        watching[:] = [what]
        try:
            load_model(path)
            outcome = "loaded"
        except InputError as error:
            outcome = "refused"
            if "\n" in str(error) or not str(error).isprintable():
                unclear.append(f"{what}: {error}")
        except BaseException as error:
            outcome = "raised"
            unclear.append(f"{what}: {type(error).__name__} {error}"[:300])
        watching.clear()
        if position is None:
            assert outcome == "loaded", outcome
            reached.clear()
            events.clear()
            continue
        came = bool(reached)
        reached.clear()
        kinds[outcome] = kinds.get(outcome, 0) + 1
        if came and not allowed(position, form, name, found):
            wrong.append(what)
        if settings() != before:
            wrong.append(f"{what} changed the settings to {settings()}")
            break
    print(json.dumps({"files": len(every), **kinds, "wrong": wrong, "events": events, "unclear": unclear}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
