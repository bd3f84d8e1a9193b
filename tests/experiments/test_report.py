"""Tables say what was published, what was measured, and how the two differ; the page of results is generated."""

import dataclasses
import json
import shutil
from pathlib import Path

from keras_preact.experiments import (
    BUDGETS,
    EXPERIMENTS,
    Line,
    Row,
    Store,
    cells,
    lines,
    markdown,
    verdict,
    write_results,
)
from keras_preact.experiments.store import identity
from keras_preact.paper import FAILS, Published
from keras_preact.training import RunFolder

ROOT = Path(__file__).parents[2]


def line(errors, published=None):
    return Line(Row("row", "a row", "110", published=published), "ResNet-32", errors)


def test_median_spread_and_difference():
    several = line((7.0, 6.0, 9.0), Published(6.61, "L"))
    assert cells(several, BUDGETS["cpu"]) == ["a row", "ResNet-32", "6.61", "7.00 (6.00 to 9.00)", "3", "+0.39", ""]
    assert cells(line((), FAILS), BUDGETS["cpu"])[2:] == ["fails", "not run", "0", "", ""]
    assert line((5.0,), FAILS).difference == ""


def test_failing_is_an_error_above_20_percent_where_that_means_something():
    assert line((20.1,)).ours(judges=True) == "20.10, fails"
    assert line((19.9,)).ours(judges=True) == "19.90"
    assert cells(line((50.0,)), BUDGETS["smoke"])[3] == "50.00"


def test_a_verdict_tells_what_agrees_from_what_does_not_and_what_was_not_run():
    published = {"first": 6.0, "worse": 8.0, "better": 5.0, "lost": None, "half lost": None, "later": 7.0}
    errors = {"first": (12.0,), "worse": (13.0,), "better": (12.5,), "lost": (30.0,), "half lost": (15.0,), "later": ()}
    found = [
        Line(Row(name, name, "110", published=Published(value, "L")), "ResNet-32", errors[name])
        for name, value in published.items()
    ]
    agrees, differs, missing = verdict(found).split("* as published:")[1].replace("not run:", "* not").split("* not")
    assert "worse: published +2.00, ours +1.00" in agrees and "lost: published fails, ours +18.00 (fails)" in agrees
    assert "better: published -1.00, ours +0.50" in differs and "half lost: published fails, ours +3.00" in differs
    assert "later" in missing and "first" not in agrees + differs + missing
    assert verdict([Line(Row("ours", "ours", "110"), "ResNet-32", (9.0,))]) == ""


def made_up_run(folder, config, error):
    folder.mkdir(parents=True)
    record = {
        "kind": "training",
        "status": "finished",
        "config": config.to_dict(),
        "result": {"test_error": error, "test_loss": 1.5},
    }
    hardware = {"accelerators": [], "cores": 2, "processor": "P"}
    record |= {"model": {"name": "net"}, "seconds": 120.0, "environment": {"hardware": hardware}}
    RunFolder(folder).update_record(**record)


def test_budgets_never_share_a_column(tmp_path):
    table = EXPERIMENTS["table1"]
    for k, name in enumerate(("smoke", "cpu")):
        made_up_run(tmp_path / name, BUDGETS[name].config(table.rows[0], 0, "float32"), 10.0 + k)
    store = Store([tmp_path])
    assert [lines(table, BUDGETS[name], store)[0].errors for name in BUDGETS] == [(10.0,), (11.0,), ()]
    assert cells(lines(table, BUDGETS["cpu"], store)[0], BUDGETS["cpu"])[-1] == "1.50"
    page = write_results(tmp_path).read_text()
    assert "table1, budget smoke" in page and "table1, budget cpu" in page and "budget paper" not in page
    assert "![table1, budget smoke: 1 of 12 rows run" in page and (tmp_path / "table1-cpu.svg").exists()
    for table in page.split("## ")[2:]:  # after the list of the runs
        assert ("10.00" in table) == ("budget smoke" in table) and ("11.00" in table) == ("budget cpu" in table)


def test_the_page_names_every_machine_of_a_run_that_was_resumed(tmp_path):
    config = BUDGETS["cpu"].config(EXPERIMENTS["table1"].rows[0], 0, "float32")
    made_up_run(tmp_path / "run", config, 10.0)
    parts = [{"hardware": {"accelerators": [], "cores": cores, "processor": "P"}} for cores in (2, 1)]
    RunFolder(tmp_path / "run").update_record(resumed=parts)
    assert "Runs: 1 on 2 cores of P, then 1 core of P, float32." in write_results(tmp_path).read_text()


def test_profiles_and_recipes_never_share_a_column(tmp_path):
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
    assert "## table1, budget cpu: " in page and "## table1, budget cpu, profile fb_resnet_torch: " in page
    assert (tmp_path / "table1-cpu-fb_resnet_torch.svg").exists()


def test_how_others_took_their_number_makes_no_other_run():
    config = BUDGETS["paper"].config(EXPERIMENTS["table1"].rows[0], 0, "float32")
    recipe = dataclasses.replace(config.recipe, reported="in other words")
    assert identity(config) == identity(dataclasses.replace(config, recipe=recipe))


def test_a_table_has_a_line_for_each_row_run_or_not(tmp_path):
    text = markdown(EXPERIMENTS["table2"], BUDGETS["cpu"], lines(EXPERIMENTS["table2"], BUDGETS["cpu"], Store([])))
    assert text.count("not run") == 10


def test_the_page_of_the_results_on_record_is_the_generated_one(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    assert write_results(tmp_path / "results").read_text() == (ROOT / "results/README.md").read_text()
    for path in (ROOT / "results").glob("*/run.json"):
        assert json.loads(path.read_text()).get("config", {}).get("data_dir") in (None, "data")
