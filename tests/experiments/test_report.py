"""Tables say what was published, what was measured, and how the two differ; the page of results is generated."""

import dataclasses
import json
import math
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
from keras_preact.experiments.report import UNTOLD
from keras_preact.experiments.store import identity
from keras_preact.paper import FAILS, Published
from keras_preact.plots import table_figure
from keras_preact.training import RunFolder

ROOT = Path(__file__).parents[2]


def line(errors, published=None):
    return Line(Row("row", "a row", "110", published=published), "ResNet-32", errors)


def test_median_spread_and_difference():
    several = line((7.0, 6.0, 9.0), Published(6.61, "L"))
    assert cells(several, BUDGETS["cpu"]) == ["a row", "ResNet-32", "6.61", "7.00 (6.00 to 9.00)", "3", "+0.39", ""]
    assert cells(line((), FAILS), BUDGETS["cpu"])[2:] == ["fails", "not run", "0", "", ""]
    assert line((5.0,), FAILS).difference == ""


def test_a_seed_that_diverged_is_counted_and_hides_no_other():
    """To the median it is the worst, so that all that is said of a row is of one number; the spread leaves it out."""
    several = line((6.5, math.inf, 6.9), Published(6.61, "L"))
    assert several.ours(judges=True) == "6.90 (6.50 to 6.90), 1 of 3 diverged" and several.difference == "+0.29"
    assert line((7.0, math.inf)).ours(judges=True) == "7.00, 1 of 2 diverged, fails"
    assert line((7.0, math.inf, 6.0, math.inf)).ours(judges=True) == "6.00 to 7.00, 2 of 4 diverged, fails"
    assert line((math.inf, math.inf)).ours(judges=False) == "diverged"
    axes = table_figure([several, line((7.0, math.inf))]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["1 of 3 diverged", "1 of 2 diverged"]
    drawn = [(one.get_marker(), *one.get_xydata().tolist()) for one in axes.get_lines()]
    assert ("|", [6.5, 0], [6.9, 0]) in drawn and ("o", [6.9, 0]) in drawn
    assert ("|", [7.0, 1]) in drawn and all((marker, y) != ("o", 1) for marker, *points in drawn for _, y in points)


def test_failing_is_an_error_above_20_percent_after_the_whole_schedule_on_cifar_10(tmp_path):
    """The paper says it of CIFAR-10 and 64k steps: its own rows of CIFAR-100 stand above 20 %."""
    said = []
    for k, (budget, row, error) in enumerate(
        [("paper", 0, 20.1), ("paper", 0, 19.9), ("cpu", 0, 25.0), ("smoke", 0, 50.0), ("paper", -1, 22.7)]
    ):
        budget, row = BUDGETS[budget], EXPERIMENTS["table3"].rows[row]
        made_up_run(tmp_path / str(k) / "run", budget.config(row, 0, "float32"), error)
        (found,) = lines(EXPERIMENTS["table3"], budget, Store([tmp_path / str(k)]), [row])
        said.append(cells(found, budget)[3])
    assert said == ["20.10, fails", "19.90", "25.00", "50.00", "22.70"]


def test_a_verdict_tells_what_agrees_from_what_does_not_and_what_was_not_run():
    published = {"first": 6.0, "worse": 8.0, "better": 5.0, "lost": None, "half lost": None, "later": 7.0}
    errors = {"first": (12.0,), "worse": (13.0,), "better": (12.5,), "lost": (30.0,), "half lost": (15.0,), "later": ()}

    def found(fails_above, **others):
        made = {**errors, **others}
        return [
            Line(Row(name, name, "110", published=Published(value, "L")), "ResNet-32", made[name], fails_above)
            for name, value in published.items()
        ]

    def parts(lines):
        kind, said = "", {}
        for text in verdict(lines).splitlines()[2:]:
            kind = text.strip("* :") if text.startswith("* ") else kind
            said[kind] = said.get(kind, "") + text
        return said

    whole = parts(found(20.0))
    assert "worse: published +2.00, ours +1.00" in whole["as published"]
    assert "lost: published fails, ours +18.00 (fails)" in whole["as published"]
    assert "better: published -1.00, ours +0.50" in whole["not as published"]
    assert "half lost: published fails, ours +3.00" in whole["not as published"]
    assert "later" in whole["not run"] and "first" not in "".join(whole.values())
    short = parts(found(math.inf))
    assert list(short) == ["as published", "not as published", UNTOLD, "not run"]
    assert "half lost" in short[UNTOLD] and "* lost: published fails, ours +18.00" in short[UNTOLD]
    diverged = parts(found(math.inf, lost=(math.inf,)))
    assert "* lost: published fails, ours fails" in diverged["as published"]
    assert verdict(found(20.0, first=(math.inf,))) == ""  # nothing to compare with
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
    assert "As published" not in page.split("budget smoke")[1].split("## ")[0]  # its errors say nothing
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
