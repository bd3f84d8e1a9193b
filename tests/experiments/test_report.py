"""Tables say what was published, what was measured, and how the two differ; the page of results is generated."""

import math
from pathlib import Path

import pytest
from harness import ended_runs
from matplotlib.figure import Figure

from keras_preact.experiments import (
    BUDGETS,
    EXPERIMENTS,
    Line,
    Row,
    Store,
    cells,
    lines,
    markdown,
    report,
    verdict,
)
from keras_preact.paper import FAILS, Published

ROOT = Path(__file__).parents[2]


def line(errors, published=None, reference=None, **record):
    return Line(Row("row", "a row", "110", published=published), "ResNet-32", ended_runs(*errors, **record), reference)


def test_a_line_says_mean_and_spread_and_the_difference_from_the_first_row():
    first = line((7.0, 6.0, 9.0), Published(6.61, "L"))
    assert cells(first, BUDGETS["cpu"]) == [
        "a row",
        "ResNet-32",
        "6.61",
        "",
        "7.33 ± 1.53",
        "3",
        *("", "", ""),
        "1.50",
        *("", ""),
    ]
    second = line((12.0, 13.0), Published(8.17, "L"), first)
    assert cells(second, BUDGETS["cpu"])[4:9] == ["12.50 ± 0.71", "2", "+1.56", "+5.17 [+1.87, +8.46]", "agrees"]
    assert cells(second, BUDGETS["smoke"])[6:9] == ["+1.56", "", ""]  # whose errors mean nothing
    assert cells(line((), FAILS, first), BUDGETS["cpu"])[2:9] == ["fails", "", "not run", "0", "fails", "", ""]


def test_a_label_says_what_was_run_where_its_depth_is_not_the_papers():
    def labels(table, budget):
        lines = [
            Line(row, budget.network(row), ended_runs(50.0)) for row in EXPERIMENTS[table].rows if budget.holds(row)
        ]
        return [(line.label, line.row.title) for line in lines]

    cpu = BUDGETS["cpu"]
    assert labels("table2", cpu)[0] == ("original, 110 (run: ResNet-32)", "original, 110")
    assert labels("table2", cpu)[-1][0] == "full pre-activation, 164 (run: ResNet-29, bottleneck)"
    for table, budget in (("table3", BUDGETS["deep"]), ("warmup", cpu), ("fast", BUDGETS["fast"])):
        assert all(label == title for label, title in labels(table, budget))
    assert line(()).label == "a row"  # not run


def test_only_networks_with_a_depth_are_replaced():
    cases = [("table1", "cpu", False), ("table1", "deep", True), ("fast", "fast", True)]
    cases += [("warmup", "cpu", True), ("warmup", "smoke", False)]
    for table, budget, expected in cases:
        chosen = BUDGETS[budget]
        rows = filter(chosen.holds, EXPERIMENTS[table].rows)
        assert {Line(row, chosen.network(row)).is_the_papers_network for row in rows} == {expected}


def test_seeds_needed_for_the_published_difference_come_from_the_spread_between_seeds(monkeypatch):
    """The spread within rows, pooled over this row and its reference; one run each says nothing of it."""
    first = line((), Published(6.61, "L"))
    assert (
        line((), Published(6.37, "L"), first).seeds_needed
        == ""
        == line((9.0,), Published(6.37, "L"), first).seeds_needed
    )
    assert line((9.0, 10.0, 11.0), Published(6.37, "L"), first).seeds_needed == "274"
    spread = line((19.0, 20.0, 21.0), Published(6.61, "L"))
    assert line((), Published(6.37, "L"), spread).seeds_needed == "274"
    assert line((9.0, 9.0, 9.0), Published(6.37, "L"), spread).seeds_needed == "138"  # half the variance
    assert line((9.0, 10.0, 11.0), FAILS, first).seeds_needed == "" == spread.seeds_needed
    for module in ("report", "statistics"):
        monkeypatch.setattr(f"keras_preact.experiments.{module}.MOST_SEEDS", 1_000)
    assert line((9.0, 10.0, 11.0), Published(6.60, "L"), first).seeds_needed == "more than 1,000"
    assert line((9.0, 9.0, 9.0), Published(6.37, "L"), first).seeds_needed == ""  # runs without a spread


def test_a_row_is_compared_with_the_first_of_its_network_and_data():
    found = {line.row.name: line.reference for line in lines(EXPERIMENTS["table3"], BUDGETS["paper"], Store([]))}
    assert found["cifar100-164-full_preactivation"].row.name == "cifar100-164-original"
    assert found["cifar10-1001-full_preactivation"].row.name == "cifar10-1001-original"
    assert found["cifar10-110-original"] is None is found["cifar100-164-original"]


def test_diverged_runs_count_as_chance_in_every_mean_and_are_named():
    several = line((6.5, math.inf, 6.9), Published(6.61, "L"))
    assert several.ours(judges=True) == "34.47 ± 48.09, 1 of 3 diverged" and several.counted == (6.5, 90.0, 6.9)
    assert line((math.inf, math.inf)).ours(judges=False) == "diverged"
    first = line((7.0, 8.0), Published(6.0, "L"))
    lost = line((math.inf, math.inf), FAILS, first)
    assert lost.verdict == "agrees" and lost.difference.mean == 82.5
    budget = BUDGETS["cpu"]
    assert [cells(each, budget)[9] for each in (lost, several, line((math.inf, 7.0)))] == [
        "diverged",
        "1.50",
        "1.50",
    ]


def test_training_fails_where_the_criterion_says_so_or_all_runs_diverged():
    """Without a criterion, half of the runs diverging is no failure. The note above the table says which rule holds."""
    assert line((7.0, math.inf)).ours(judges=True) == "48.50 ± 58.69, 1 of 2 diverged"
    assert line((math.inf, math.inf)).ours(judges=True) == "diverged, fails"
    table, cpu, paper = EXPERIMENTS["table3"], BUDGETS["cpu"], BUDGETS["paper"]
    judged = Line(
        table.rows[0],
        "ResNet-110",
        ended_runs(7.0, math.inf, config=paper.config(table.rows[0], 0, "float32").to_dict()),
    )
    lost = line((math.inf,))
    assert judged.ours(judges=True).endswith("1 of 2 diverged, fails")
    environment = {"environment": {"hardware": {"accelerators": [], "cores": 2, "processor": "P"}}}
    for each in (*judged.runs, *lost.runs):
        each.record.update(environment)
    criterion = f'In our column, "fails" means: {table.failing}'
    assert f"{criterion}. Runs" in markdown(table, paper, [judged])
    assert f"{criterion}, or all runs diverged. Runs" in markdown(table, paper, [judged, lost])
    assert f'{cpu.what} In our column, "fails" means: all runs diverged. Runs' in markdown(table, cpu, [lost])


def test_the_cost_of_a_row_is_that_of_the_runs_that_recorded_it():
    runs = ended_runs(7.0, 8.0, 9.0)
    runs[1].record.update(cpu_seconds=600.0, training_flops=7.6e13)
    runs[2].record.update(cpu_seconds=1800.0, training_flops=7.6e13)
    assert cells(Line(Row("row", "a row", "110"), "ResNet-110", runs), BUDGETS["deep"])[10:] == ["20", "0.076"]
    assert cells(line((7.0,)), BUDGETS["deep"])[10:] == ["", ""]


def test_failing_is_an_error_above_20_percent_after_the_whole_schedule_on_cifar_10(tmp_path, made_up_run):
    """The paper says it of CIFAR-10 and 64k steps: its own rows of CIFAR-100 stand above 20 %."""
    said = []
    for k, (budget, row, error) in enumerate(
        [("paper", 0, 20.1), ("paper", 0, 19.9), ("cpu", 0, 25.0), ("smoke", 0, 50.0), ("paper", -1, 22.7)]
    ):
        budget, row = BUDGETS[budget], EXPERIMENTS["table3"].rows[row]
        made_up_run(tmp_path / str(k) / "run", budget.config(row, 0, "float32"), error)
        (found,) = lines(EXPERIMENTS["table3"], budget, Store([tmp_path / str(k)]), [row])
        said.append(cells(found, budget)[4])
    assert said == ["20.10, fails", "19.90", "25.00", "50.00", "22.70"]


def test_the_verdict_counts_what_agrees_what_differs_and_what_is_undecided():
    published = {"first": 6.0, "worse": 8.0, "better": 5.0, "lost": None, "alone": 7.0, "near": 6.5, "later": 7.0}
    errors = {
        "worse": (13.0, 13.1),
        "better": (14.0, 14.1),
        "lost": (30.0, 31.0),
        "alone": (20.0,),
        "near": (9.0, 15.0),
    }
    first = line((12.0, 12.1), Published(6.0, "L"))
    found = [first]
    for name, value in list(published.items())[1:]:
        row = Row(name, name, "110", published=Published(value, "L"))
        found.append(Line(row, "ResNet-32", ended_runs(*errors.get(name, ())), first))
    assert [each.verdict for each in found] == ["", "agrees", "differs", "agrees", "undecided", "undecided", ""]
    assert verdict(found) == "Verdicts: agrees 2, differs 1, undecided 2, not run 1.\n"
    assert verdict([first]) == "" == verdict([first, line((9.0, 9.1), None, first)])


@pytest.mark.parametrize(("published", "said"), [(6.1, "tie"), (5.81, "tie"), (6.2, "agrees"), (5.8, "differs")])
def test_a_published_difference_smaller_than_the_papers_spread_is_a_tie(published, said):
    first = line((12.0, 12.1), Published(6.0, "L"))
    found = line((13.0, 13.1), Published(published, "L"), first)
    assert found.verdict == said and verdict([first, found]) == f"Verdicts: {said} 1.\n"


def test_what_one_run_cannot_say_is_said():
    first = line((13.25,), Published(6.0, "L"))
    said = verdict([first, line((20.0,), Published(7.0, "L"), first)])
    assert "agrees" not in said and "undecided 1" in said
    assert "standard deviation" not in said
    images = {"data": {"test_images": 10_000}}
    first, diverged = (line(errors, Published(6.0, "L"), **images) for errors in ((13.25,), (math.inf,)))
    other = line((20.0,), Published(7.0, "L"), first, **images)
    assert "a standard deviation of 0.34 to 0.40 points" in verdict([first, other, diverged])
    more = line((13.0, 13.1), Published(6.0, "L"), **images)
    assert "one run" not in verdict([more, line((20.0, 20.1), Published(7.0, "L"), more, **images)])


def test_a_table_has_a_line_for_each_row_run_or_not(tmp_path):
    text = markdown(EXPERIMENTS["table2"], BUDGETS["cpu"], lines(EXPERIMENTS["table2"], BUDGETS["cpu"], Store([])))
    assert text.count("not run") == 10


def test_a_description_is_shown_as_it_is_whatever_it_quotes(tmp_path):
    (tmp_path / "figures").mkdir()
    figure = Figure()
    figure.set_label("Error of mine [2]: a|b")
    assert report.drawn(figure, tmp_path, "mine").startswith(r"![Error of mine \[2\]: a\|b](figures/mine.svg)")
