"""What nbval does not see: cells never run, figures that are missing, warnings, traces of the machine.

Run as a program it takes from stored notebooks what depends on who ran them: the kernel's name and version.
"""

import json
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted([*FOLDER.glob("*.ipynb"), *FOLDER.glob("solutions/*.ipynb")])
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MARKS = {"nbval-ignore-output", "nbval-skip", "raises-exception", "nbval-raises-exception"}
ALLOWED_MARKS: dict[str, int] = {}
"""How many cells of a notebook have outputs that are not compared, where there are any. Each says why."""


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def output_text(cell):
    return json.dumps([{k: v for k, v in output.items() if k != "data"} for output in cell["outputs"]]) + json.dumps(
        [{k: v for k, v in output.get("data", {}).items() if k.startswith("text/")} for output in cell["outputs"]]
    )


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
class TestStored:
    def test_every_cell_was_run_once_in_order(self, path):
        counts = [cell["execution_count"] for cell in code_cells(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_no_warning_no_error(self, path):
        for cell in code_cells(path):
            for output in cell["outputs"]:
                assert output["output_type"] != "error", source(cell)
                assert output.get("name") != "stderr", output["text"]
            assert "Warning" not in output_text(cell)

    def test_no_trace_of_a_machine(self, path):
        for cell in code_cells(path):
            found = re.findall(
                r"(?:/home|/root|/tmp|/work|/Users|[A-Z]:\\\\)[/\w.-]*", output_text(cell) + source(cell)
            )
            assert not found
        assert json.loads(path.read_text(encoding="utf-8"))["metadata"] == METADATA

    def test_cells_that_draw_hold_a_figure(self, path):
        for cell in code_cells(path):
            if "plt.show()" in source(cell) or "display(" in source(cell):
                assert any("image/png" in output.get("data", {}) for output in cell["outputs"]), source(cell)

    def test_nothing_that_nbval_gets_wrong(self, path):
        for cell in code_cells(path):
            assert not source(cell).rstrip().endswith(";")
            assert "clear_output" not in source(cell)
            assert "!pip" not in source(cell) and "%pip" not in source(cell)

    def test_no_more_unchecked_cells_than_stated(self, path):
        marked = [cell for cell in code_cells(path) if MARKS & set(cell["metadata"].get("tags", []))]
        comments = [c for c in code_cells(path) if re.search(r"(?m)^# *(NBVAL_|PYTEST_|RAISES)", source(c))]
        assert len(marked) + len(comments) == ALLOWED_MARKS.get(path.name, 0)


def clean(path):
    """Set the metadata of a notebook to what every notebook has, and drop the times of its cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["metadata"] = METADATA
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in NOTEBOOKS:
        clean(name)
    sys.exit(0)
