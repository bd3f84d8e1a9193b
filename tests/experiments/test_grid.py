"""The grids hold the paper's rows, and every row is a network that can be built."""

import re

import pytest

from keras_preact import InputError, paper
from keras_preact.experiments import BUDGETS, EXPERIMENTS, plan
from keras_preact.experiments.store import folder_name, run_key
from keras_preact.layers import PLACEMENTS
from keras_preact.models import get_network
from keras_preact.models.profiles import PROFILES, conventions
from keras_preact.training import RECIPES

ALL = [
    (experiment, budget, row)
    for experiment in EXPERIMENTS.values()
    for budget in BUDGETS.values()
    for row in experiment.rows
    if budget.holds(row)
]


def test_the_rows_of_tables_1_to_3_train_what_their_published_errors_are_of():
    for row, published in zip(EXPERIMENTS["table1"].rows, paper.TABLE_1, strict=True):
        assert row.options.get("shortcut", "identity") == published.shortcut
        assert (row.options["placement"], row.published) == ("original", published.error)
    for row in EXPERIMENTS["table2"].rows:
        assert row.published == paper.TABLE_2[row.options["placement"]][int(row.network)]
    assert len(EXPERIMENTS["table2"].rows) == 10 and len(EXPERIMENTS["table3"].rows) == 2 * len(paper.TABLE_3)
    for k, row in enumerate(EXPERIMENTS["table3"].rows):
        published = paper.TABLE_3[k // 2]
        assert (row.dataset, row.published) == (published.dataset, getattr(published, row.options["placement"]))
        assert row.network.endswith("-single") == ("one layer" in published.network)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("screening", "fast")])
def test_no_two_rows_of_a_table_are_one_run(name):
    keys = [run_key(BUDGETS["paper"].config(row, 0, "float32")) for row in EXPERIMENTS[name].rows]
    assert len(set(keys)) == len(keys)


def test_published_errors_are_those_of_the_same_network_and_crop():
    assert all(row.published is None for row in EXPERIMENTS["extensions"].rows)
    fifth = {row.name: row.published for row in EXPERIMENTS["table5"].rows if row.published}
    tested_on_224 = [row for row in paper.TABLE_5 if row.crop == 224 and row.network == "ResNet-152"]
    assert [(row.top1, row.placement) for row in tested_on_224] == [(fifth["152-original"].value, "original")]
    assert list(fifth) == ["152-original"]


def test_what_a_budget_sets_besides_networks_and_recipes():
    assert [budget.name for budget in BUDGETS.values() if budget.probes] == ["demo", "deep"]
    assert [budget.name for budget in BUDGETS.values() if not budget.judges] == ["smoke"]
    assert BUDGETS["paper"].config(EXPERIMENTS["table5"].rows[0], 0, "float32").image_size == 224
    row = EXPERIMENTS["table1"].rows[0]
    assert [BUDGETS[name].config(row, 0, "float32", "data").data_dir for name in ("smoke", "cpu")] == [None, "data"]


def test_the_papers_budget_has_every_row_and_the_papers_training():
    for experiment in EXPERIMENTS.values():
        # The screening is of the demo's images, and `fast` is not the paper's training.
        for row in experiment.rows if experiment.name not in ("screening", "fast") else ():
            config = BUDGETS["paper"].config(row, 0, "float32")
            assert config.recipe.name.split("-")[0] == ("imagenet" if row.dataset == "imagenet" else "paper")
            depth = re.sub("^(transformer|depth)-|-single$", "", row.network)
            assert str(config.options["depth"]) == depth


def test_one_folder_name_for_one_run():
    names = {}
    for _, budget, row in ALL:
        config = budget.config(row, 0, "float32")
        assert names.setdefault(folder_name(config), run_key(config)) == run_key(config)
    assert len(set(names.values())) == len(names)


def test_tables_share_their_common_rows():
    """The original ResNet-110 stands in Tables 1, 2 and 3, and is run once."""
    rows = [EXPERIMENTS["table1"].rows[0], EXPERIMENTS["table2"].rows[0]]
    rows += EXPERIMENTS["table3"].select(["cifar10-110-original"])
    for budget in filter(lambda budget: budget.holds(rows[0]), BUDGETS.values()):
        assert len({run_key(budget.config(row, 0, "float32")) for row in rows}) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["table1", "table2", "table3", "resnet20", "extensions"])
def test_every_network_can_be_built(name):
    budget = BUDGETS["smoke"]
    for row in EXPERIMENTS[name].rows:
        if budget.holds(row):
            config = budget.config(row, 0, "float32")
            model = get_network(config.network)(**config.options, classes=10, input_shape=(32, 32, 3))
            assert model.output.shape == (None, 10)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_its_own_runs(profile):
    """Not one of them is a run of another profile, and the names of their folders differ."""
    for table, row in (("table1", 0), ("table2", 9), ("table5", 1)):
        row = EXPERIMENTS[table].rows[row]
        for budget in BUDGETS.values():
            other = budget.of(profile)
            assert other.holds(row) <= budget.holds(row)
            if other.holds(row) and profile != "paper":
                ours, theirs = (one.config(row, 0, "float32") for one in (budget, other))
                assert theirs.options["profile"] == profile and "profile" not in ours.options
                assert folder_name(ours) != folder_name(theirs)
                # A profile that chooses as the paper does, for the same recipe, makes the same runs.
                made = [
                    conventions(name, row.family, PLACEMENTS[row.options["placement"]]) for name in ("paper", profile)
                ]
                assert (run_key(ours) != run_key(theirs)) == (made[0] != made[1] or ours.recipe != theirs.recipe)


def test_a_profile_brings_its_recipe_at_the_budgets_length():
    row = EXPERIMENTS["table1"].rows[0]
    budgets = {name: budget.of("resnet_1k_layers") for name, budget in BUDGETS.items() if budget.holds(row)}
    recipes = {name: budget.config(row, 0, "float32").recipe for name, budget in budgets.items()}
    assert recipes["paper"] == RECIPES["resnet_1k_layers"]
    usual = BUDGETS["cpu"].recipes["cifar10"]
    assert recipes["cpu"].name == "cpu-resnet_1k_layers" and recipes["cpu"].nesterov
    assert recipes["cpu"].steps * recipes["cpu"].batch_size == usual.steps * usual.batch_size
    imagenet = BUDGETS["paper"].of("fb_resnet_torch").config(EXPERIMENTS["table5"].rows[0], 0, "float32")
    assert imagenet.recipe == RECIPES["imagenet"]  # the profile's recipe is for CIFAR
    assert not BUDGETS["cpu"].of("timm").holds(EXPERIMENTS["warmup"].rows[0])  # a Transformer is nobody's ResNet


def test_transformers_have_no_profile(tmp_path):
    for name in ("timm", "resnet_1k_layers"):
        with pytest.raises(InputError, match="is a Transformer, which has no profile; leave out --profile"):
            plan(EXPERIMENTS["warmup"], BUDGETS["smoke"].of(name), out=tmp_path)
        with pytest.raises(InputError, match="is a Transformer, which has no profile; leave out --profile"):
            plan(EXPERIMENTS["warmup"], BUDGETS["cpu"].of(name), rows=["12-post_norm-0.0005-none"], out=tmp_path)


def test_what_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"unknown row 'orignal' \(did you mean 'original'\?\)"):
        EXPERIMENTS["table1"].select(["orignal"])
    row = EXPERIMENTS["table3"].select(["cifar100-164-original"])[0]
    with pytest.raises(InputError, match=r"not part of the budget smoke; choose the budget \(--budget\) cpu or deep"):
        BUDGETS["smoke"].config(row, 0, "float32")


def test_the_depth_study_differs_in_order_depth_and_rate_alone():
    """The screening in the demo's setting, the confirmation in that of the tables, whose runs at 110 layers it has."""
    screening = {row.name: BUDGETS["demo"].config(row, 0, "float32") for row in EXPERIMENTS["screening"].rows}
    cells = {(c.options["depth"], c.options["placement"], c.recipe.schedule) for c in screening.values()}
    assert len(cells) == len(screening) == 5 * (3 * 5 + 1)
    assert {(c.dataset, c.image_size, c.recipe.steps, c.recipe.batch_size) for c in screening.values()} == {
        ("bundled", 16, 124, 64)
    }
    assert screening["original-218-0.1"].recipe == RECIPES["demo"]
    warmed = screening["original-218-warmup"].recipe.schedule
    assert (warmed.learning_rate, warmed.warmup_learning_rate, warmed.warmup_steps) == (0.1, 0.01, 31)
    deep = {row.name: BUDGETS["deep"].config(row, 0, "float32") for row in EXPERIMENTS["depth"].rows}
    assert {config.options["depth"] for config in deep.values()} == {20, 56, 110, 218, 434, 1001}
    for order in ("original", "full_preactivation"):
        (row,) = EXPERIMENTS["table2"].select([f"{order}-110"])
        assert run_key(deep[f"{order}-110-0.1"]) == run_key(BUDGETS["deep"].config(row, 0, "float32"))
    blocks = {
        depth: get_network("cifar_resnet")(**deep[f"original-{depth}-0.1"].options, rolled=True).count_params()
        for depth in (218, 434)
    }
    assert blocks[434] / blocks[218] == pytest.approx(2, rel=0.01)  # of basic blocks both, as the smaller ones


def test_a_row_says_which_budgets_have_it():
    (row,) = EXPERIMENTS["screening"].select(["original-20-0.1"])
    with pytest.raises(InputError, match=r"not part of the budget deep; choose the budget \(--budget\) smoke or demo"):
        BUDGETS["deep"].config(row, 0, "float32")


def test_the_warm_up_grid_differs_in_order_rate_and_warm_up_alone():
    table, budget = EXPERIMENTS["warmup"], BUDGETS["cpu"]
    configs = {row.name: budget.config(row, 0, "float32") for row in table.rows}
    twelve = [config for config in configs.values() if config.options["depth"] == 12]
    schedules = {(config.recipe.schedule.learning_rate, config.recipe.schedule.warmup_steps) for config in twelve}
    assert len(twelve) == 16 and len(schedules) == 8
    assert {steps for _, steps in schedules} == {0, 120}  # none, or a fifth
    assert {config.options["placement"] for config in twelve} == {"pre_norm", "post_norm"}
    assert {(config.recipe.steps, config.recipe.batch_size, config.dataset) for config in configs.values()} == {
        (600, 32, "characters")
    }
    assert configs["48-post_norm-0.002-none"].recipe.schedule.warmup_steps == 0
    assert len({folder_name(config) for config in configs.values()}) == len(table.rows)


def test_each_row_of_the_fast_recipe_changes_what_its_title_says():
    rows = {row.name: BUDGETS["fast"].config(row, 0, "float32") for row in EXPERIMENTS["fast"].rows}
    fast = rows["fast"].recipe
    assert fast == RECIPES["fast"]

    def changed(name):
        other, mine = rows[name].recipe.to_dict(), fast.to_dict()
        return {key: other[key] for key in mine if key != "name" and other[key] != mine[key]}

    full_size = {"image_scales": (1.0,), "scale_changes": ()}
    assert changed("no-smoothing") == {"label_smoothing": 0.0}
    assert changed("full-size") == full_size
    assert changed("decay-all") == {"decays": "all"}
    assert changed("no-nesterov") == {"nesterov": False}
    assert changed("rate-0.1")["schedule"]["learning_rate"] == 0.1 and len(changed("rate-0.1")) == 1
    assert rows["accurate"].recipe.steps == 2 * fast.steps
    assert rows["accurate"].options["widen_factor"] == 2 * rows["fast"].options["widen_factor"]

    def pixels(recipe):
        """Pixels of the whole training, of images of one pixel."""
        epochs = recipe.steps / 390
        return sum(recipe.image_scale(epoch, round(epochs)) ** 2 for epoch in range(round(epochs))) * 390

    same_cost = rows["full-size-same-cost"].recipe
    assert same_cost.image_scales == (1.0,)
    assert same_cost.steps == pytest.approx(pixels(fast), rel=1e-3)
    assert same_cost.schedule.warmup_steps / same_cost.steps == pytest.approx(0.2, rel=1e-2)


def test_a_profile_keeps_the_fast_recipe():
    """No code base has such a recipe; its networks are used."""
    row = EXPERIMENTS["fast"].rows[0]
    config = BUDGETS["fast"].of("fb_resnet_torch").config(row, 0, "float32")
    assert config.recipe == RECIPES["fast"] and config.options["profile"] == "fb_resnet_torch"
