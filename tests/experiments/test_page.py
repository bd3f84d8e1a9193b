"""The page of the results is generated from the runs: what they show first, every run last."""

import dataclasses
import json
import os
import re
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_preact import InputError
from keras_preact.analysis import inspect_model, write_inspection
from keras_preact.experiments import BUDGETS, EXPERIMENTS, Store, cells, lines, write_results
from keras_preact.experiments.depth import DEEP_FROM, confirmed, counted, screened, share_of_tuning, tuning
from keras_preact.experiments.page import RATE_COLUMNS, demo_claim, depth_rows, headline, rate_rows
from keras_preact.experiments.probe import PROPAGATION
from keras_preact.experiments.report import markdown_table
from keras_preact.experiments.statistics import difference
from keras_preact.experiments.tables import DEMO_DEPTH, ORDERS, PAPERS_RATE, RATES
from keras_preact.models import cifar_resnet
from keras_preact.training import RunConfig, RunFolder

ROOT = Path(__file__).parents[2]


def run_of(made_up_run, results, table, row, seed, error, budget="deep", precision="float32"):
    """Make up a run of a row, where `keep` would put it."""
    (chosen,) = EXPERIMENTS[table].select([row])
    config = BUDGETS[budget].config(chosen, seed, precision)
    folder = results / "runs" / table / f"{budget}-{row}-{seed}"
    made_up_run(folder, config, error)
    return folder


def test_the_page_begins_with_what_the_deep_runs_show(tmp_path, made_up_run):
    errors = {("original", 110): (38.0, 39.0, 35.5), ("full_preactivation", 110): (35.0, 35.5, 36.0)}
    errors |= {("original", 20): (40.0, 41.0), ("full_preactivation", 20): (39.0, 39.1)}  # fewer than planned
    for (order, depth), found in errors.items():
        for seed, error in enumerate(found):
            run_of(made_up_run, tmp_path, "depth", f"{order}-{depth}-0.1", seed, error)
    page = write_results(str(tmp_path)).read_text()
    first = page.split("## ")[0]
    gap = difference(*list(errors.values())[:2])
    said = f"* 110 layers: {gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}], undecided (n = 3 and 3)"
    assert said in first and "* 20 layers" not in first and "**At" not in first
    assert "](figures/depth.svg)" in first and (tmp_path / "figures" / "depth.svg").exists()
    assert "| at 20 and 56 layers the order makes no difference | 20 layers +1.45 | undecided |" in first
    assert "Total: 10 runs, 0 hours of wall-clock time. By machine: 10 on 2 cores of P." in page
    # Tables 2 and 3 have the same network at 110 layers, and so its runs. The budget is explained once.
    assert page.index("## How to read the tables") < page.index("## Table 1, budget deep: ")
    assert page.index("## Table 1, budget deep: ") < page.index("Budget deep trains") < page.index("## Table 2, budget")
    assert page.count("Budget deep trains") == 1
    assert page.index("## Table 2, budget") < page.index("## How to read the runs") < page.index("Total: 10 runs")
    assert page.index("Total: 10 runs") < page.index("## Every run on images")
    assert "| [deep-original-110-0.1-0](runs/depth/deep-original-110-0.1-0/run.json) |" in page


def test_the_headline_names_the_depths_whose_intervals_exclude_0(tmp_path, made_up_run):
    """A depth without an interval is not claimed, and one that is undecided ends the claim about all above it."""

    def claim(gaps):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for depth, errors in gaps.items():
            for seed, error in enumerate(errors):
                run_of(made_up_run, folder, "depth", f"original-{depth}-0.1", seed, error)
                run_of(made_up_run, folder, "depth", f"full_preactivation-{depth}-0.1", seed, 35.0 + 0.1 * seed)
        return headline(Store([folder]))

    ahead, undecided, single = (45.0, 45.1, 45.2), (35.0, 35.1, 35.2), (60.0,)
    said = "layers, full pre-activation reaches a lower test error than the original order."
    assert claim({20: undecided, 56: ahead, 110: single, 218: ahead, 434: ahead}) == f"At 56, 218 and 434 {said}"
    assert claim({20: undecided, 56: ahead, 110: single}) == f"At 56 {said}"
    assert claim({56: ahead, 110: undecided}) == "" == claim({110: single}) == claim({})


def test_the_screening_and_its_explanation_are_shown(tmp_path, made_up_run):
    for order, error in (("original", 86.0), ("full_preactivation", 57.0)):
        run_of(made_up_run, tmp_path, "screening", f"{order}-218-0.3", 0, error + 10, "demo")
        folder = run_of(made_up_run, tmp_path, "screening", f"{order}-218-0.1", 0, error, "demo")
        moment = {"step": 0, "stage": [1.0, 1.0], "variance": [1.0, 2.0], "direct": [1.0, 0.5], "dead": [0.0, 0.1]}
        (folder / PROPAGATION).write_text(json.dumps([{**moment, "gradient": [1.0, 1.0, 1.0]}]))
    page = write_results(tmp_path).read_text()
    # 0.3 works in full pre-activation; in the original order, a rate that was not run may work.
    assert "that works: original: 218 layers not all run; full pre-activation: 218 layers 0.3." in page
    assert "## Signal and gradient in the screening" in page
    words = "Values at the smallest and the largest depth. direct term left, Eq. (5), before the first step, original: "
    assert words + "0.5 at 218 layers; direct" in page
    assert "budget demo" not in page.split("## Every run")[0]  # no table of a hundred rows


def test_the_warm_up_is_shown_with_the_original_order_and_named_where_it_was_run(tmp_path, made_up_run):
    run_of(made_up_run, tmp_path, "screening", "full_preactivation-20-0.1", 0, 60.0, "demo")
    words = "In the row with warm-up, the original order trains at 0.01"
    assert words not in write_results(tmp_path).read_text()
    run_of(made_up_run, tmp_path, "screening", "original-20-warmup", 0, 50.0, "demo")
    page = write_results(tmp_path).read_text()
    assert words in page and "that works: original: 20 layers not all run; full pre-activation" in page


def test_a_damaged_measurement_is_named(tmp_path, made_up_run):
    folder = run_of(made_up_run, tmp_path, "screening", "original-20-0.1", 0, 60.0, "demo")
    (folder / PROPAGATION).write_text('[{"step": 0, "stage')
    with pytest.raises(InputError, match=r"propagation.json cannot be read .*; restore it from a copy, or remove it"):
        write_results(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode")
def test_a_run_folder_may_have_any_name(tmp_path, made_up_run):
    made_up_run(tmp_path / os.fsdecode(b"l\xe4uf"), RunConfig(), 60.0)
    assert "(l%E4uf/run.json)" in write_results(tmp_path).read_text()


def test_what_tuning_does_is_a_table(tmp_path, made_up_run):
    """A gap of 20 points at the paper's rate, of 5 where each order has its best."""
    for order, errors in (("original", (75, 70, 80, 85, 88)), ("full_preactivation", (80, 75, 70, 65, 66))):
        for rate, error in zip(RATES, errors, strict=True):
            run_of(made_up_run, tmp_path, "screening", f"{order}-218-{rate:g}", 0, float(error), "demo")
    page = write_results(tmp_path).read_text()
    assert "| 218 | 85.0 | 65.0 | +20.0 | 70.0 (rate 0.01) | 65.0 (rate 0.1) | +5.0 |" in page
    assert "At 110 and more layers, tuning closes 75 % of the gap at 0.1." in page
    assert "10 runs, n = 1 per cell." in page and "a mean of few runs (n = 1);" in page


def test_the_page_says_which_rates_are_best_after_the_steps_of_the_depth_study(tmp_path, made_up_run):
    run_of(made_up_run, tmp_path, "screening", "original-218-0.1", 0, 85.0, "demo")
    for rate, errors in ((0.03, (46.0, 47.0)), (0.1, (42.0, 43.0, 44.0))):
        for seed, error in enumerate(errors):
            run_of(made_up_run, tmp_path, "depth", f"original-110-{rate:g}", seed, error)
    run_of(made_up_run, tmp_path, "depth", "full_preactivation-110-0.1", 0, 35.0)
    page = write_results(tmp_path).read_text().split("## Screening: which")[1]
    assert "after 124 steps need not be the best later" in page and "after 1,560 steps on all of CIFAR-10" in page
    assert "| original | 110 | 43.0 % (n = 3) | 0.03 | 46.5 % (n = 2) | +3.50 |" in page
    assert "| full pre-activation | 110 |" not in page  # one rate
    assert "differ in precision" not in page
    run_of(made_up_run, tmp_path, "depth", "original-110-0.03", 2, 46.0, precision="mixed_bfloat16")
    page = write_results(tmp_path).read_text()
    assert (
        "also differ in precision from those at 0.1: original, 110 layers, 0.03 (float32 and mixed_bfloat16)." in page
    )
    change = difference((46.0, 47.0, 46.0), (42.0, 43.0, 44.0))
    assert f"| original | 110 | 43.0 % (n = 3) | 0.03 | 46.3 % (n = 3) | {change} |" in page and change.is_known


def test_runs_of_a_row_in_another_precision_are_counted(tmp_path, made_up_run):
    for seed, precision in enumerate(("mixed_bfloat16", "mixed_bfloat16", "float32")):
        run_of(made_up_run, tmp_path, "table1", "original", seed, 42.0 + seed, precision=precision)
    assert "| 43.00 ± 1.00 | 3, 1 in float32 |" in write_results(tmp_path).read_text()


@pytest.mark.thorough
def test_runs_on_sequences_have_a_list_of_their_own(tmp_path, made_up_run):
    folder = run_of(made_up_run, tmp_path, "warmup", "12-pre_norm-0.001-none", 0, 60.0, "cpu")
    RunFolder(folder).update_record(data={"task": "next_token", "baselines": {"the most frequent": 80.0}})
    run_of(made_up_run, tmp_path, "table1", "original", 0, 10.0)
    images, sequences = write_results(tmp_path).read_text().split("## Every run on images")[1].split("## Every run on")
    assert "warmup" in sequences and "warmup" not in images and "deep-original-0" in images


def test_every_run_on_sequences_of_no_table_is_compared_with_baselines(tmp_path, made_up_run):
    """Whatever its recipe; runs of a table are not."""
    config = RunConfig(recipe="adam", dataset="characters", network="transformer")
    for name, recipe, diverged in (
        ("usual", config.recipe, {}),
        ("batches", dataclasses.replace(config.recipe, batch_size=8), {}),
        ("lost", dataclasses.replace(config.recipe, batch_size=4), {"diverged": {"step": 7}}),
    ):
        made_up_run(tmp_path / name, dataclasses.replace(config, recipe=recipe), 60.0)
        data = {"task": "next_token", "baselines": {"the most frequent": 80.0}}
        RunFolder(tmp_path / name).update_record(data=data, **diverged)
    row = run_of(made_up_run, tmp_path, "warmup", "12-pre_norm-0.001-none", 0, 60.0, "cpu")
    RunFolder(row).update_record(data=data)
    page = write_results(tmp_path).read_text()
    baseline = "80.00 %, the most frequent"
    assert [line for line in page.splitlines() if baseline in line] == [
        f"| batches | characters | 60.00 % | {baseline} | beats it |",
        f"| lost | characters | diverged at step 7 | {baseline} | does not beat it |",
        f"| usual | characters | 60.00 % | {baseline} | beats it |",
    ]


def test_equal_inspections_and_folder_names_have_rows_and_curves_of_their_own(tmp_path):
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    found = inspect_model(cifar_resnet(8, input_shape=(8, 8, 3)), images, np.arange(2), "noise")
    for folder in ("a/net", "b/net"):
        run = RunFolder.create(tmp_path / "profiles" / folder)
        write_inspection(found, run.path)
        run.update_record(kind="inspection", status="finished", config={})
    page = write_results(tmp_path).read_text()
    assert "](profiles/a/net/run.json)" in page and "](profiles/b/net/run.json)" in page
    assert "(profiles/a/net)" in page and "(profiles/b/net)" in page


def test_the_demo_counts_diverged_runs_as_chance(tmp_path, made_up_run):
    for order, errors in (("original", (86.0, 50.0)), ("full_preactivation", (57.0, 58.0))):
        for seed, error in enumerate(errors):
            folder = run_of(made_up_run, tmp_path, "screening", f"{order}-218-0.1", seed, error, "demo")
            if error == 50.0:
                RunFolder(folder).update_record(diverged={"step": 3})
    assert "is 88.0 % in the original order and 57.5 %" in demo_claim(Store([tmp_path]))


def test_headings_have_no_links_and_all_links_lead_somewhere(tmp_path):
    """A link in a heading becomes part of its anchor, and cannot be clicked in lists of contents."""
    norms = {str(blocks): [1.0 / blocks] for blocks in (6, 12, 24)}
    found = [{"order": "pre_norm", "norms": norms, "exponent": -1.0, "standard_error": 0.0}]
    RunFolder.create(tmp_path / "profiles" / "untrained").update_record(
        kind="initialization", status="finished", result=found
    )
    RunFolder.create(tmp_path / "profiles" / "stopped").update_record(kind="initialization", status="running")
    page = write_results(tmp_path).read_text()
    stored = (ROOT / "results/README.md").read_text(encoding="utf-8")
    assert "## Transformers before training\n" in page and "](profiles/untrained/run.json)" in page
    for folder, text in ((tmp_path, page), (ROOT / "results", stored)):
        assert not re.search(r"^#.*\]\(", text, re.MULTILINE)
        assert not [link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text) if not (folder / link).exists()]


def test_a_table_shows_the_names_of_folders_and_classes_as_they_are(tmp_path, made_up_run):
    config = BUDGETS["deep"].config(EXPERIMENTS["table1"].rows[0], 0, "float32")
    made_up_run(tmp_path / "a|b (1) [x] <i>", dataclasses.replace(config, only=("cat|dog", "<b>")), 10.0)
    page = write_results(tmp_path).read_text()
    assert "| [a\\|b (1) \\[x\\] \\<i>](a%7Cb%20%281%29%20%5Bx%5D%20%3Ci%3E/run.json) |" in page
    assert "(cat\\|dog, \\<b>) |" in page


def test_budgets_never_share_a_column(tmp_path, made_up_run):
    table = EXPERIMENTS["table1"]
    for k, name in enumerate(("smoke", "cpu")):
        made_up_run(tmp_path / name, BUDGETS[name].config(table.rows[0], 0, "float32"), 10.0 + k)
    store = Store([tmp_path])
    assert [lines(table, budget, store)[0].errors for budget in BUDGETS.values() if budget.holds(table.rows[0])] == [
        (10.0,),
        (11.0,),
        (),
        (),
    ]
    assert cells(lines(table, BUDGETS["cpu"], store)[0], BUDGETS["cpu"])[9] == "1.50"
    page = write_results(tmp_path).read_text()
    assert "Table 1, budget smoke" in page and "Table 1, budget cpu" in page and "budget paper" not in page
    assert "![Table 1, budget smoke: error (%)" in page and (tmp_path / "figures/table1-cpu-curves.svg").exists()
    assert not (tmp_path / "figures/table1-cpu.svg").exists()  # no row has a difference
    for table in page.split("## How to read")[0].split("## ")[1:]:
        assert ("10.00" in table) == ("budget smoke" in table) and ("11.00" in table) == ("budget cpu" in table)


def test_a_budget_whose_errors_say_nothing_has_no_verdicts(tmp_path, made_up_run):
    for budget in ("smoke", "cpu"):
        for row in ("original", "conv"):
            for seed in (0, 1):
                run_of(made_up_run, tmp_path, "table1", row, seed, 10.0 + seed, budget)
    page = write_results(tmp_path).read_text()
    smoke, cpu = (page.split(f"## Table 1, budget {name}")[1].split("\n## ")[0] for name in ("smoke", "cpu"))
    assert "Verdicts:" in cpu and "Verdicts:" not in smoke


def test_the_page_names_every_machine_of_a_run_that_was_resumed(tmp_path, made_up_run):
    config = BUDGETS["cpu"].config(EXPERIMENTS["table1"].rows[0], 0, "float32")
    made_up_run(tmp_path / "run", config, 10.0)
    parts = [{"hardware": {"accelerators": [], "cores": cores, "processor": "P"}} for cores in (2, 1)]
    RunFolder(tmp_path / "run").update_record(resumed=parts)
    assert "Runs: 1 on 2 cores of P, then 1 core of P, float32." in write_results(tmp_path).read_text()


@pytest.mark.thorough
def test_profiles_and_recipes_never_share_a_column(tmp_path, made_up_run):
    table, budget = EXPERIMENTS["table1"], BUDGETS["cpu"]
    config = budget.config(table.rows[0], 0, "float32")
    made_up_run(tmp_path / "ours", config, 10.0)
    made_up_run(tmp_path / "theirs", budget.of("fb_resnet_torch").config(table.rows[0], 0, "float32"), 11.0)
    nesterov = dataclasses.replace(config.recipe, nesterov=True)
    made_up_run(tmp_path / "nesterov", dataclasses.replace(config, recipe=nesterov), 12.0)
    inputs = dataclasses.replace(config.recipe, inputs="per_channel")
    made_up_run(tmp_path / "inputs", dataclasses.replace(config, recipe=inputs), 13.0)
    store = Store([tmp_path])
    assert lines(table, budget, store)[0].errors == (10.0,)
    assert lines(table, budget.of("fb_resnet_torch"), store)[0].errors == (11.0,)
    page = write_results(tmp_path).read_text()
    assert "## Table 1, budget cpu: " in page and "## Table 1, budget cpu, profile fb_resnet_torch: " in page
    assert (tmp_path / "figures/table1-cpu-fb_resnet_torch-curves.svg").exists()


@pytest.mark.thorough
def test_the_page_of_the_results_on_record_is_the_generated_one(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    assert write_results(tmp_path / "results").read_text() == (ROOT / "results/README.md").read_text()
    for path in (ROOT / "results").rglob("run.json"):
        assert json.loads(path.read_text()).get("config", {}).get("data_dir") in (None, "data")


def test_the_readme_says_of_the_demo_what_its_runs_show():
    store = Store([ROOT / "results"])
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert demo_claim(store) in readme


def test_the_readme_has_a_row_for_each_depth_of_the_confirmation_and_what_tuning_does():
    store = Store([ROOT / "results"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| ResNet-")]
    assert rows == depth_rows(store) and len(rows) > 2
    assert [line.rsplit("| ", 1)[1] for line in rows] == ["undecided |", *["ahead |"] * 4]
    assert headline(store).rstrip(".") in readme
    closed = {tuned.depth: share_of_tuning([tuned]) for tuned in tuning(screened(store)) if tuned.depth >= DEEP_FROM}
    assert list(closed) == [110, 218, 434]
    shares = "{:.0f}, {:.0f} and {:.0f} %".format(*(100 * share for share in closed.values()))
    said = f"tuning the rate per order closes {shares} of the gap at 110, 218 and 434 layers."
    assert said in " ".join(readme.split())


def test_the_readme_says_what_another_rate_does_to_each_order():
    """All rates with three runs."""
    store = Store([ROOT / "results"])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = markdown_table(RATE_COLUMNS, rate_rows(store))
    enough = [line for line in table.splitlines() if "(n = 1)" not in line and "(n = 2)" not in line]
    assert "\n".join(enough) in readme and len(enough) > 5
    runs = {key: counted(found) for key, found in confirmed(store).items()}
    others = {(at, rate) for order, at, rate in runs if order == "original" and rate != PAPERS_RATE}
    changes = [difference(runs["original", at, rate], runs["original", at, PAPERS_RATE]) for at, rate in others]
    assert all(change.high > 0 for change in changes) and sum(change.low > 0 for change in changes) == 2
    text = " ".join(readme.split())
    assert "no other rate lowers the original's error with an interval below 0: two rates raise it, the others" in text
    assert difference(*(runs["full_preactivation", 110, rate] for rate in (0.3, PAPERS_RATE))).high < 0
    assert {(at, rate) for order, at, rate in runs if order == "full_preactivation" and rate > PAPERS_RATE} == {
        (110, 0.3)
    }


def test_the_readme_has_the_error_of_each_order_at_110_layers():
    found = lines(EXPERIMENTS["table2"], BUDGETS["deep"], Store([ROOT / "results"]))
    original, after, before, relu_only, full = found[:5]
    assert all(line.row.title.endswith(", 110") for line in found[:5])
    others = [f"{line.mean:.1f} % ({line.row.title.removesuffix(', 110')}" for line in (relu_only, before, after)]
    assert {len(line.runs) for line in (after, before, relu_only)} == {3}
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"at 110 layers {full.mean:.1f} % (n = {len(full.runs)}), against {original.mean:.1f} % (original" in text
    assert f"(original, n = {len(original.runs)}), {others[0]}), {others[1]}) and {others[2]}; n = 3 each)." in text
    at_164 = next(line for line in found if line.row.name == "full_preactivation-164")
    apart, counts = at_164.difference, f"(n = {len(at_164.reference.runs)} and {len(at_164.runs)})"
    lead = f"leads by {-apart.mean:.1f} points [{-apart.high:.1f}, {-apart.low:.1f}] {counts}"
    relu = next(line for line in found if line.row.name == "relu_only_preactivation-164").difference
    second = f"ReLU-only (n = 3) leads the original by {-relu.mean:.1f} [{-relu.high:.1f}, {-relu.low:.1f}]"
    assert f"At 164 layers, with bottlenecks, it {lead.replace('by', 'the original by')}; {second};" in text


def test_each_seed_of_the_demo_has_a_gap_of_ten_points():
    """Each original run against each run of full pre-activation, for a seed makes no pair of them."""
    runs = screened(Store([ROOT / "results"]))
    errors = {order: [run.error for run in runs[order, DEMO_DEPTH, PAPERS_RATE]] for order in ORDERS}
    assert min(map(len, errors.values())) >= 5
    assert min(errors["original"]) - max(errors["full_preactivation"]) >= 10


def test_the_guide_to_training_says_what_the_runs_of_recipe_fast_reached():
    runs = [
        json.loads(path.read_text()) for path in ROOT.glob("results/runs/fast/fast-*14-widen_factor_2-seed*/run.json")
    ]
    found = [run["result"]["test_error"] for run in runs]
    minutes = statistics.mean(run["cpu_seconds"] for run in runs) / 60
    guide = " ".join((ROOT / "docs/training.md").read_text(encoding="utf-8").split())
    said = f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} % (n = {len(found)}, last epoch"
    assert said in guide and max(found) < 10
    assert f"{minutes:.1f} core-minutes" in guide
    assert f"{runs[0]['training_flops'] / 1e12:.0f}·10¹² floating-point operations" in guide


def test_the_demo_of_one_seed_has_no_interval(tmp_path, made_up_run):
    for order, error in (("original", 89.0), ("full_preactivation", 71.5)):
        run_of(made_up_run, tmp_path, "screening", f"{order}-218-0.1", 0, error, "demo")
    assert demo_claim(Store([tmp_path])).endswith("a difference of 17.50 points (n = 1 and 1).")


def test_the_guide_to_transformers_has_the_errors_of_the_stored_runs():
    """Those that are in no table, with the best of their simple baselines."""
    found = {"weather": [], "reviews": []}
    for path in ROOT.glob("results/runs/others/transformer-*/run.json"):
        record = json.loads(path.read_text())
        best = min(record["data"]["baselines"].values())
        found[record["config"]["dataset"]].append((record["result"]["test_error"], best))
    guide = " ".join((ROOT / "docs/transformers.md").read_text(encoding="utf-8").split())
    ((weather, hour),) = found["weather"]
    assert f"({weather:.2f} against {hour:.2f} °C)" in guide and weather < hour
    errors = [error for error, _ in found["reviews"]]
    (words,) = {best for _, best in found["reviews"]}
    assert f"({min(errors):.1f} to {max(errors):.1f} against {words:.1f} %)" in guide and min(errors) > words


def test_a_table_whose_runs_another_has_shown_is_left_out(tmp_path, made_up_run):
    run_of(made_up_run, tmp_path, "table2", "full_preactivation-110", 0, 36.0)
    page = write_results(tmp_path).read_text()
    assert "## Table 2, budget deep" in page and "## Extensions, budget deep" not in page
    run_of(made_up_run, tmp_path, "extensions", EXPERIMENTS["extensions"].rows[1].name, 0, 37.0)
    assert "## Extensions, budget deep" in write_results(tmp_path).read_text()
