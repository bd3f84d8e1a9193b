"""Published numbers stand in one place."""

import re
from pathlib import Path

from keras_preact import paper
from keras_preact.layers import PLACEMENTS

ROOT = Path(__file__).parents[1]


def test_every_number_has_a_source():
    marks = "".join(
        [row.error.source for row in paper.TABLE_1]
        + [error.source for errors in paper.TABLE_2.values() for error in errors.values()]
        + [row.original.source + row.full_preactivation.source for row in paper.TABLE_3]
        + [spread.source for spread in paper.TABLE_4.values()]
        + [row.source for row in paper.TABLE_5]
    )
    assert set(marks) == set(paper.SOURCES)


def test_the_tables_agree_with_each_other():
    original, full = paper.TABLE_2["original"], paper.TABLE_2["full_preactivation"]
    assert paper.TABLE_1[0].error == original[110]
    third = {(row.dataset, row.network): row for row in paper.TABLE_3}
    for depth in (110, 164):
        row = third["cifar10", f"ResNet-{depth}"]
        assert (row.original.value, row.full_preactivation.value) == (original[depth].value, full[depth].value)
    assert (
        paper.TABLE_4["cifar10", "ResNet-1001", 128].median == third["cifar10", "ResNet-1001"].full_preactivation.value
    )
    assert set(paper.TABLE_2) < set(PLACEMENTS)


def test_nothing_else_in_the_repository_quotes_one():
    errors = {f"{row.error.value:.2f}" for row in paper.TABLE_1 if row.error.value}
    errors |= {f"{error.value:.2f}" for errors in paper.TABLE_2.values() for error in errors.values()}
    errors |= {f"{error.value:.2f}" for row in paper.TABLE_3 for error in (row.original, row.full_preactivation)}
    quoted = re.compile(r"(?<![\d.])(" + "|".join(map(re.escape, sorted(errors))) + r") ?%")
    files = [*ROOT.glob("*.md"), *ROOT.glob("keras_preact/**/*.py"), *ROOT.glob("notebooks/*.ipynb")]
    found = [path.name for path in files if path.name != "paper.py" and quoted.search(path.read_text(encoding="utf-8"))]
    assert found == []
