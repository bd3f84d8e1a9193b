"""Any input leads to a result or to a documented error, never to a traceback from inside a library."""

import contextlib
import gc
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from keras_preact import InputError
from keras_preact.cli import main
from keras_preact.data import ArraySplit, from_arrays, from_folder
from keras_preact.layers import PLACEMENTS, SHORTCUTS, EncoderBlock, ResidualUnit, UnitStack, get_shortcut
from keras_preact.models import cifar_resnet, imagenet_resnet, prenorm_transformer
from keras_preact.training import Recipe, RunConfig, get_recipe

# `derandomize`: the same draws every time, so that a failure is reproducible.
CASES = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def cases(number):
    return settings(CASES, max_examples=number)


def drawn(few, many, **strategies):
    """Make two tests of a property: `few` draws, and `many` as a thorough test."""

    def decorate(check):
        @pytest.mark.parametrize("draws", [few, pytest.param(many, marks=pytest.mark.thorough)])
        def test(self, draws):
            cases(draws)(given(**strategies)(check))(self)

        return test

    return decorate


def number(low=-2, high=40):
    """A valid or invalid number, or something that is not a number."""
    strange = st.sampled_from([0, -1, 1.5, 1e9, float("nan"), float("inf"), None, "8", True, (3,), [2, 2]])
    return st.one_of(st.integers(low, high), strange)


def rate():
    return st.one_of(st.floats(-0.5, 1.5), st.sampled_from([None, "0.5", float("nan"), 1, True]))


def name(known):
    return st.one_of(st.sampled_from(sorted(known)), st.sampled_from(["", "none", "Identity", 3, None, True]))


@contextlib.contextmanager
def refusing_or_released():
    """Suppress an InputError, and free the memory of a network at once."""
    try:
        with contextlib.suppress(InputError):
            yield
    finally:
        keras.backend.clear_session()
        gc.collect()


def some(**choices):
    """A dictionary of some of these arguments."""
    return st.fixed_dictionaries({}, optional=choices)


SHORTCUT = st.one_of(
    st.sampled_from(sorted(SHORTCUTS)),
    st.from_regex(r"\A(constant_scaling|exclusive_gating|dropout)\((gate_bias|shortcut|rate)=(-?\d|0\.5|'a'|x)\)?\Z"),
    st.text(alphabet="abc_()=,.'1-é\n ", max_size=20),
)
UNIT = some(
    block=name(["basic", "bottleneck", "single"]),
    strides=number(0, 3),
    placement=name(PLACEMENTS),
    shortcut=SHORTCUT,
    shape_change=name(["projection", "option_a"]),
    dilation=number(0, 3),
    groups=number(0, 5),
    width_per_group=number(0, 80),
    normalization=name(["batch", "group", "layer", "none"]),
    momentum=rate(),
    epsilon=st.sampled_from([1e-5, 0, -1, "small", None]),
    drop_path=rate(),
    zero_init_residual=st.booleans(),
    data_format=st.sampled_from([None, "channels_last", "channels_first", "last"]),
)


class TestConstructors:
    @cases(500)
    @given(filters=number(), options=UNIT)
    def test_a_unit(self, filters, options):
        with contextlib.suppress(InputError):
            ResidualUnit(filters, **options)

    @cases(80)
    @given(filters=st.integers(1, 9), channels=st.integers(1, 9), size=st.integers(1, 9), options=UNIT)
    def test_a_unit_on_images(self, filters, channels, size, options):
        with contextlib.suppress(InputError):
            unit = ResidualUnit(filters, **{**options, "data_format": "channels_last"})
            y = unit(np.ones((2, size, size, channels), "float32"))
            assert tuple(y.shape) == tuple(unit.compute_output_shape((2, size, size, channels)))

    @cases(300)
    @given(text=SHORTCUT)
    def test_a_shortcut_by_name(self, text):
        with contextlib.suppress(InputError):
            get_shortcut(text)

    @cases(150)
    @given(repeats=number(-1, 4), rolled=st.sampled_from([None, True, False, "yes"]))
    def test_a_stack(self, repeats, rolled):
        with contextlib.suppress(InputError):
            UnitStack(ResidualUnit(2), repeats, rolled=rolled)

    @cases(200)
    @given(options=some(heads=number(0, 5), causal=st.booleans(), dropout=rate(), placement=name(["pre_norm"])))
    def test_an_encoder_block(self, options):
        with contextlib.suppress(InputError):
            EncoderBlock(**{"heads": 2, **options})

    @drawn(2, 25, depth=number(6, 32), classes=number(0, 5), options=UNIT)
    def test_a_network_for_cifar(self, depth, classes, options):
        options = {key: value for key, value in options.items() if key not in ("strides", "dilation", "data_format")}
        with refusing_or_released():
            cifar_resnet(depth, classes=classes, **options)

    @drawn(
        2,
        25,
        depth=st.sampled_from([18, 34, 19, 0, None, "18"]),
        options=some(
            input_shape=st.sampled_from([(32, 32, 3), (1, 1, 3), (32, 32), None, "32", (0, 0, 3)]),
            output_stride=number(0, 33),
            stride_in=name(["first", "last"]),
            stem=name(["7x7", "3x3"]),
            pooling=st.sampled_from([None, "avg", "max", "mean"]),
            include_top=st.booleans(),
        ),
    )
    def test_a_network_for_imagenet(self, depth, options):
        with refusing_or_released():
            imagenet_resnet(depth, **options)

    @drawn(2, 25, options=some(depth=number(0, 3), dim=number(0, 20), heads=number(0, 5), dropout=rate()))
    def test_a_transformer(self, options):
        with refusing_or_released():
            prenorm_transformer(**options)


class TestData:
    @cases(300)
    @given(
        shape=st.lists(st.integers(0, 4), max_size=5),
        dtype=st.sampled_from(["uint8", "float32", "int64", "bool", "object", "<U3"]),
        labels=st.one_of(
            st.lists(st.integers(-1, 3), max_size=4),
            st.lists(st.floats(), max_size=4),
            st.sampled_from([None, "cat", [[0], [1]], [[0, 1]], ["a"], {}, 3]),
        ),
    )
    def test_arrays(self, shape, dtype, labels):
        images = np.zeros(shape, dtype)
        with contextlib.suppress(InputError):
            assert len(ArraySplit(images, labels)) == len(images)
        with contextlib.suppress(InputError):
            data = from_arrays(images, labels, images, labels)
            assert data.fingerprint() and data.train.steps_per_epoch(1) == len(images)

    @cases(60)
    @given(
        files=st.dictionaries(
            st.from_regex(r"\A(train|test|val)/([ab]/)?[xyz]\.(png|jpg|txt)\Z"),
            st.sampled_from(["image", "small", "empty", "text", "half"]),
            max_size=7,
        ),
        size=number(6, 12),
    )
    def test_folders(self, files, size):
        with tempfile.TemporaryDirectory() as folder:
            for path, kind in files.items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.full((1, 1, 3) if kind == "small" else (9, 12, 3), 7, "uint8")
                if kind in ("image", "small", "half"):
                    Image.fromarray(pixels).save(target, format="PNG")
                else:
                    target.write_text("" if kind == "empty" else "no image")
                if kind == "half":
                    target.write_bytes(target.read_bytes()[:40])
            with contextlib.suppress(InputError):
                data = from_folder(folder, size)
                for split in (data.train, data.test):
                    split.batch(np.arange(len(split)))


class TestRecipes:
    @cases(200)
    @given(
        name=name(["paper", "short", "demo"]),
        steps=number(),
        changes=some(steps=number(), batch_size=number(), momentum=rate(), weight_decay=rate()),
    )
    def test_recipes(self, name, steps, changes):
        with contextlib.suppress(InputError):
            recipe = get_recipe(name).with_steps(steps)
            assert Recipe.from_dict({**recipe.to_dict(), **changes}).optimizer() is not None

    @cases(100)
    @given(precision=st.sampled_from(["float32", "float8", "", None, 16]), seed=number())
    def test_configurations_come_back(self, precision, seed):
        with contextlib.suppress(InputError):
            config = RunConfig(precision=precision, seed=seed)
            assert str(RunConfig.from_dict(config.to_dict())) == str(config)


OPTIONS = st.sampled_from(["depth", "placement", "shortcut", "dataset", "steps", "epochs", "only", "resume", "seed"])
VALUES = st.sampled_from(["8", "-1", "20.5", "original", "bundled", "cat", "dog", "nowhere", "", "é", "--", "identity"])
FITTING = st.sampled_from(["--depth=8", "--placement=original", "--shortcut=conv", "--dataset=bundled", "--steps=2"])
WORDS = st.one_of(FITTING, st.builds("--{}={}".format, OPTIONS, VALUES), OPTIONS.map("--{}".format), VALUES)
COMMANDS = ["train", "train", "info cifar_resnet", "inspect cifar_resnet", "reproduce table2", "evaluate", "export"]


class TestCommandLine:
    @drawn(12, 250, command=st.sampled_from(COMMANDS), words=st.lists(WORDS, max_size=4))
    def test_a_line_ends_in_a_status_and_at_most_one_sentence(self, command, words):
        def enough(*arguments, **keywords):
            raise InputError("all options have been read; what they ask for is tested elsewhere")

        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch().context() as patch:
            patch.chdir(folder)
            for work in ("train.start", "inspect.inspect_model", "reproduce.run_missing", "reproduce.run_in_workers"):
                patch.setattr(f"keras_preact.cli.{work}", enough)
            lines = []
            patch.setattr("sys.stderr", type("Errors", (), {"write": lambda self, x: lines.append(x), "flush": id})())
            status = main([*command.split(), *words])
            assert status in (0, 2), (status, "".join(lines))
            assert "internal error" not in "".join(lines)
