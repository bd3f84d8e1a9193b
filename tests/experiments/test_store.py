"""Which runs are the same, and what their folders are called."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.errors import WriteError
from keras_preact.experiments import BUDGETS, EXPERIMENTS, Store, keep
from keras_preact.experiments.store import folder_name, run_key, table_of
from keras_preact.layers import get_shortcut
from keras_preact.layers.registry import shortcut_config
from keras_preact.models.registry import ENTRIES
from keras_preact.training import CosineSchedule, Recipe, RunConfig, RunFolder

CHOICES = {
    "cifar_resnet": {
        "depth": [110, 20, 164],
        "placement": ["full_preactivation", "original", "bn_only_preactivation"],
        "shortcut": [
            *("identity", "exclusive_gating", "exclusive_gating(gate_bias=6)", "constant_scaling", "dropout"),
            *("constant_scaling(shortcut=0.5, residual=1)", "constant_scaling(shortcut=1, residual=0.5)"),
            *("shortcut_only_gating(gate_bias=-1e-05)", "scaled_residual(initial=0.1, per_channel=True)"),
        ],
        "block": [None, "single"],
        "widen_factor": [1, 2, 0.5],
        "profile": ["paper", "resnet_1k_layers", "fb_resnet_torch"],
        "shape_change": [None, "option_a", "projection"],
        "normalization": ["batch", "group"],
        "momentum": [None, 0.9, 0.99],
        "epsilon": [None, 1e-5, 1e-3],
        "biases": [None, "none", "all"],
        "groups": [1, 2],
        "drop_path": [0.0, 0.1, 0.25],
        "zero_init_residual": [False, True],
        "output_stride": [4, 2],
    },
    "imagenet_resnet": {
        "depth": [50, 18, 101],
        "placement": ["full_preactivation", "original"],
        "shortcut": ["identity", "conv", "dropout(rate=0.1)"],
        "stem": ["7x7", "3x3"],
        "profile": ["paper", "timm", "keras_applications"],
        "stride_in": [None, "first", "last"],
        "output_stride": [None, 32, 16],
        "drop_path": [0.0, 0.1],
    },
    "transformer": {
        "depth": [6, 12],
        "dim": [128, 64],
        "heads": [4, 8],
        "feed_forward_dim": [None, 512, 256],
        "placement": ["pre_norm", "post_norm"],
        "dropout": [0.0, 0.3],
        "gain": [1.0, 0.5],
        "patch": [4, 8],
    },
}
"""Options with their defaults first."""
DEFAULTS_OF_PAPER = {"shape_change": "projection", "momentum": 0.9, "epsilon": 1e-5, "biases": "none"}


def configurations(count=1500):
    rng = np.random.default_rng(0)
    for _ in range(count):
        network = str(rng.choice(list(CHOICES)))
        choices = CHOICES[network]
        keys = rng.permutation(list(choices))[: rng.integers(0, len(choices) + 1)]
        yield network, {str(key): choices[key][rng.integers(len(choices[key]))] for key in keys}


def config(network="cifar_resnet", options=None, **others):
    return RunConfig(network, options or {}, **others)


@pytest.mark.thorough
def test_a_default_that_is_given_changes_nothing():
    """Of random options: with any of the defaults written out, the run is the same."""
    rng = np.random.default_rng(1)
    for network, options in configurations():
        choices = CHOICES[network]
        left = [key for key in choices if key not in options and rng.random() < 0.5]
        spelled = {**{key: choices[key][0] for key in left}, **options}
        without = {key: value for key, value in options.items() if value != choices[key][0]}
        same = {run_key(config(network, each)) for each in (options, spelled, without)}
        assert len(same) == 1, (network, options, spelled)


def network_of(network, options):
    """Return what the values of random options come to: computed here without the code under test."""
    choices = CHOICES[network]
    full = {key: options.get(key, values[0]) for key, values in choices.items()}
    profile = full.pop("profile", None)
    if network == "cifar_resnet":
        chosen = {
            "paper": DEFAULTS_OF_PAPER,
            "resnet_1k_layers": {**DEFAULTS_OF_PAPER, "authors": True},
            "fb_resnet_torch": {**DEFAULTS_OF_PAPER, "shape_change": "option_a"},
        }[profile]
        full |= {key: value for key, value in chosen.items() if full.get(key) is None}
        full["block"] = full["block"] or ("bottleneck" if full["depth"] == 164 else "basic")
    elif network == "imagenet_resnet":
        full["profile"] = (
            "keras_original"
            if (profile, full["placement"]) == ("keras_applications", "original")
            else ("paper" if (profile, full["placement"]) == ("timm", "original") else profile)
        )
        usual = "last" if full["profile"] == "keras_applications" else "first"
        full["stride_in"] = full["stride_in"] or usual
        full["output_stride"] = full["output_stride"] or (32 if full["stem"] == "7x7" else 8)
    else:
        full["feed_forward_dim"] = full["feed_forward_dim"] or 4 * full["dim"]
    return json.dumps([network, full], sort_keys=True)


def is_valid(network, options):
    depth, block = options.get("depth", 110), options.get("block")
    return not (network == "cifar_resnet" and block == "single" and (depth - 2) % 9) and not (
        network == "cifar_resnet" and depth == 164 and block == "single"
    )


def test_runs_are_the_same_exactly_where_their_networks_are():
    """Of random options, each pair: what computes the same is one run, what does not is two."""
    to_ours, to_theirs = {}, {}
    for network, options in filter(lambda each: is_valid(*each), configurations(3000)):
        ours, expected = run_key(config(network, options)), network_of(network, options)
        assert to_ours.setdefault(expected, ours) == ours, options
        assert to_theirs.setdefault(ours, expected) == expected, options
    assert len(to_ours) > 1000


def test_no_two_different_runs_share_a_folder():
    """Of random options, of each other argument, and of texts that are made to look like others."""
    odd = [{"placement": "a-b"}, {"placement": "a_b"}, {"a_b": "c"}, {"a": "b_c"}, {"shortcut": "a(b=1)"}]
    odd += [{"shortcut": "a_b_1"}, {"shortcut": "a(b='1')"}, {"epsilon": 1}, {"epsilon": -1}, {"epsilon": "1"}]
    odd += [{"kernel_initializer": {"class_name": "Zeros"}}, {"kernel_initializer": "class_name_zeros"}]
    others = [
        *({"image_size": 64}, {"image_size": 32}, {"only": ("cat", "dog")}, {"only": ("dog", "cat")}, {"devices": 2}),
        *({"devices": 2, "sync_batch_norm": True}, {"skip_corrupt": True}, {"seed": 1}, {"dataset": "cifar10"}),
        *({"recipe": Recipe("paper", steps=5)}, {"recipe": Recipe("paper", steps=6)}, {"dataset": "folder"}),
        *({"dataset": "folder", "data_dir": "cats"}, {"dataset": "folder", "data_dir": "dogs"}),
    ]
    made = [config(network, options) for network, options in configurations()]
    made += [config(options=options) for options in odd] + [config(**options) for options in others]
    named = {}
    for each in made:
        name = folder_name(each)
        assert named.setdefault(name, run_key(each)) == run_key(each), name
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum()


@pytest.mark.parametrize("bias", [5, 6.0, 0.5])
def test_the_sign_of_a_number_is_in_the_name(bias):
    names = [folder_name(config(options={"shortcut": f"exclusive_gating(gate_bias={b})"})) for b in (bias, -bias)]
    assert names[1] == names[0].replace("bias_", "bias_-") and names[0] != names[1]


def test_equal_shortcuts_are_equal_however_they_are_said():
    """By name, with its defaults, as a layer, as a layer's configuration."""
    import keras

    layer = get_shortcut("exclusive_gating")
    said = ["exclusive_gating", "exclusive_gating(gate_bias=-6)", "exclusive_gating( gate_bias = -6.0 )", layer]
    said.append(keras.saving.serialize_keras_object(layer))
    runs = {run_key(config(options={"shortcut": each})) for each in said}
    assert len(runs) == 1
    assert shortcut_config("exclusive_gating(gate_bias=6)") != shortcut_config("exclusive_gating")


def test_equal_initializers_are_equal_however_they_are_said():
    import keras

    said = ["he_normal", "HeNormal", keras.initializers.HeNormal()]
    said.append(keras.saving.serialize_keras_object(said[-1]))
    assert len({run_key(config(options={"kernel_initializer": each})) for each in said}) == 1
    seeds = {run_key(config(options={"kernel_initializer": keras.initializers.HeNormal(seed)})) for seed in (1, 2)}
    assert len(seeds) == 2


def test_arguments_of_a_recipe_that_do_nothing_make_no_other_run():
    recipe = Recipe("mine", 10, augment=False)
    changed = config(recipe=dataclasses.replace(recipe, padding=2))
    assert run_key(changed) == run_key(config(recipe=recipe))
    assert run_key(config(recipe=Recipe("mine", 10, padding=2))) != run_key(config(recipe=Recipe("mine", 10)))


def test_what_changes_nothing_of_the_result_makes_no_other_run():
    one = config(options={"depth": 20})
    for change in (
        *({"deterministic": True}, {"precision": "mixed_bfloat16"}, {"data_dir": "elsewhere"}),
        *({"options": {"depth": 20, "rolled": True}}, {"options": {"depth": 20, "remat": "unit"}}),
        *({"options": {"depth": 20, "dtype": "mixed_bfloat16"}}, {"options": {"depth": 20, "name": "mine"}}),
        *({"options": {"depth": 20, "bottleneck": False}}, {"options": {"depth": 20, "block": "basic"}}),
        *({"options": {"depth": 20, "widen_factor": 1.0}}, {"sync_batch_norm": True}),
        *({"image_size": 32}, {"skip_corrupt": True}, {"recipe": dataclasses.replace(one.recipe, name="mine")}),
    ):
        assert run_key(dataclasses.replace(one, **change)) == run_key(one), change
    folder = config(dataset="folder", data_dir="cats")
    assert run_key(dataclasses.replace(folder, image_size=32)) == run_key(folder)
    assert run_key(dataclasses.replace(folder, data_dir="dogs")) != run_key(folder)
    for change in ({"devices": 2}, {"only": ("cat", "dog")}, {"image_size": 64}, {"recipe": Recipe("demo", 5)}):
        assert run_key(dataclasses.replace(one, **change)) != run_key(one), change


def test_a_builder_by_name_is_the_one_that_it_calls():
    """The named networks, as `preact_resnet50`, and that with its arguments: built, they are called the same."""
    for entry in ENTRIES.values():
        base = entry.base.__name__
        assert run_key(config(entry.name)) == run_key(config(base, entry.fixed))
        assert run_key(config(entry.name.replace("_", "-"), {"drop_path": 0})) == run_key(config(entry.name))
    for name in ("preact_resnet18", "postact_resnet18"):
        entry = ENTRIES[name]
        built = [entry.builder(include_top=False), entry.base(**entry.fixed, include_top=False)]
        assert built[0].name == built[1].name


def test_no_network_is_built_to_tell_runs_apart(monkeypatch):
    monkeypatch.setattr("keras_preact.models.resnet.build_network", None)
    monkeypatch.setattr("keras.Model", None)
    for network, options in configurations(50):
        run_key(config(network, options)), folder_name(config(network, options))


def test_the_rows_of_all_tables_have_folders_of_their_own():
    named = {}
    for budget in BUDGETS.values():
        for experiment in EXPERIMENTS.values():
            for row in filter(budget.holds, experiment.rows):
                each = budget.config(row, 0, "float32")
                assert named.setdefault(folder_name(each), run_key(each)) == run_key(each)


def test_a_run_is_found_however_it_is_spelled(tmp_path):
    recipe = Recipe("mine", 10, schedule=CosineSchedule(0.1))
    said = {"depth": 20, "shortcut": "exclusive_gating"}
    for seed in (1, 0):
        record = {"kind": "training", "status": "finished", "config": config(options=said, recipe=recipe, seed=seed)}
        record["config"] = record["config"].to_dict()
        RunFolder.create(tmp_path / f"run{seed}").update_record(**record)
    again = {"shortcut": "exclusive_gating(gate_bias=-6)", "depth": 20, "placement": "full_preactivation"}
    wanted = config(options=again, recipe=recipe, deterministic=True)
    store = Store([tmp_path])
    assert store.find(wanted).folder.path.name == "run0"
    assert [run.config.seed for run in store.with_any_seed(wanted)] == [0, 1]
    assert store.find(config(options={**again, "shortcut": "exclusive_gating(gate_bias=6)"}, recipe=recipe)) is None


def test_a_configuration_of_another_version_is_named(tmp_path):
    record = {"kind": "training", "status": "finished", "config": {**config().to_dict(), "colour": "red"}}
    run = RunFolder.create(tmp_path / "later")
    run.update_record(**record)
    for action in (lambda: Store([tmp_path]), lambda: keep(run, tmp_path / "results")):
        with pytest.raises(InputError, match=r"later/run.json: .*colour.* update it, or move the run"):
            action()


def test_of_two_copies_of_a_run_every_question_finds_the_same(tmp_path):
    for name in ("b", "a"):
        record = {"kind": "training", "status": "finished", "config": config().to_dict()}
        RunFolder.create(tmp_path / name).update_record(**record)
    store = Store([tmp_path])
    assert store.find(config()).folder.path.name == "a"
    assert [run.folder.path.name for run in store.with_any_seed(config())] == ["a"]


def test_a_store_builds_each_shortcut_once(tmp_path, monkeypatch):
    """Building a layer for every run took most of the time to open a store."""
    built = []
    monkeypatch.setattr(
        "keras_preact.layers.registry.get_shortcut", lambda *a, **k: built.append(a) or get_shortcut(*a, **k)
    )
    options = {"shortcut": "exclusive_gating(gate_bias=-3.25)"}
    for seed in range(3):
        record = {"kind": "training", "status": "finished", "config": config(options=options, seed=seed).to_dict()}
        RunFolder.create(tmp_path / f"run{seed}").update_record(**record)
    store = Store([tmp_path])
    assert len(store.with_any_seed(config(options=options))) == 3 and len(built) == 1
    shortcut_config(options["shortcut"])["gate_bias"] = 5.0  # a copy
    assert shortcut_config(options["shortcut"])["gate_bias"] == -3.25


def test_every_stored_run_is_in_the_folder_of_its_first_table():
    for run in Store([Path(__file__).parents[2] / "results"]).runs:
        assert run.folder.path.parent.name == table_of(run.config), run.folder.path


def test_options_that_the_network_no_longer_takes_are_left_as_they_are():
    odd = [config("gone", {"depth": 3}), config(options={"placement": "gone"}), config(options={"colour": "red"})]
    assert len({run_key(each) for each in [*odd, config()]}) == 4


@pytest.mark.parametrize("path", [".", "../mine", "../mine/."])
def test_a_run_is_stored_under_the_name_of_its_folder_however_that_is_written(path, tmp_path, monkeypatch, made_up_run):
    made_up_run(tmp_path / "mine", RunConfig(), 50.0)
    monkeypatch.chdir(tmp_path / "mine")
    stored = keep(RunFolder.open(path), tmp_path / "results")
    assert (stored.name, stored.parent.parent.name) == ("mine", "runs")


def test_a_run_is_stored_once_and_not_over_another_of_its_name(tmp_path, made_up_run):
    for name, error in (("a", 50.0), ("b", 60.0)):
        made_up_run(tmp_path / name / "mine", RunConfig(), error)
    stored = keep(RunFolder.open(tmp_path / "a" / "mine"), tmp_path / "results")
    before = (stored / "run.json").read_bytes()
    assert keep(RunFolder.open(tmp_path / "a" / "mine"), tmp_path / "results") == stored
    with pytest.raises(InputError, match="exists already and is not overwritten; rename one of the two"):
        keep(RunFolder.open(tmp_path / "b" / "mine"), tmp_path / "results")
    assert (stored / "run.json").read_bytes() == before


def test_a_run_that_lies_in_the_results_stays_where_it_is(tmp_path, made_up_run):
    made_up_run(tmp_path / "results" / "mine", RunConfig(), 50.0)
    assert keep(RunFolder.open(tmp_path / "results" / "mine"), tmp_path / "results") == tmp_path / "results" / "mine"
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["mine"]


def test_a_run_that_cannot_be_stored_names_the_file_that_could_not_be_written(tmp_path, made_up_run, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))  # as `shutil` does on some systems

    made_up_run(tmp_path / "mine", RunConfig(), 50.0)
    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(WriteError, match=rf"cannot write {tmp_path}/results/.*metrics.csv: .*; free some space"):
        keep(RunFolder.open(tmp_path / "mine"), tmp_path / "results")


def test_how_others_took_their_number_makes_no_other_run():
    config = BUDGETS["paper"].config(EXPERIMENTS["table1"].rows[0], 0, "float32")
    recipe = dataclasses.replace(config.recipe, reported="in other words")
    assert run_key(config) == run_key(dataclasses.replace(config, recipe=recipe))
