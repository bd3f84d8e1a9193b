"""What nbval does not see: cells never run, figures that are missing, warnings, traces of the machine.

Run as a program it takes from stored notebooks what depends on who ran them, the kernel's name and version, and gives
the translated ones the code and the outputs of those that they translate.
"""

import json
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
sys.path.insert(0, str(FOLDER.parent / "docs"))

from book import figure_text  # noqa: E402 (docs/ is no package)

NOTEBOOKS = sorted([*FOLDER.glob("*.ipynb"), *FOLDER.glob("solutions/*.ipynb")])
TRANSLATED = sorted(FOLDER.glob("zh/*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MARKS = {"nbval-ignore-output", "nbval-skip", "raises-exception", "nbval-raises-exception"}
ALLOWED_MARKS = {
    "00_start_here.ipynb": 2,
    "00_solutions.ipynb": 1,
    "01_residual_units_from_scratch.ipynb": 2,
    "02_propagation_equations.ipynb": 2,
    "03_scaling_the_shortcut.ipynb": 1,
    "06_a_thousand_layers.ipynb": 1,
    "09_the_pre_norm_transformer.ipynb": 1,
}
"""How many cells of a notebook have outputs that are not compared, where there are any. Each says why."""
ADDRESS = re.search(r'(?m)^Repository = "(.*)"$', (FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))[1]
SETUP = f"""# On Colab, get the repository and install the package first.
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("keras_preact") is None:
    address = "{ADDRESS}"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", address, "repository"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--editable", "repository[all]"], check=True)
    print("Installed keras_preact. Restart the session, then run all cells.")"""
KNOBS = "knobs"
"""The tag of cells with widgets, whose output is not stored: without a kernel it would be a line of text."""


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
            if KNOBS in cell["metadata"].get("tags", []):
                assert not cell["outputs"]
            elif "plt.show()" in source(cell) or "display(" in source(cell):
                assert any("image/png" in output.get("data", {}) for output in cell["outputs"]), source(cell)

    def test_figures_are_told_to_those_who_do_not_see_them(self, path):
        for cell in code_cells(path):
            if any("image/png" in output.get("data", {}) for output in cell["outputs"]):
                assert len(figure_text(source(cell)) or "") > 40, source(cell)

    def test_shows_findings(self, path):
        """A number, a sentence or a figure, never a bare truth value."""
        for cell in code_cells(path):
            text = output_text(cell).replace("return True or False", "")  # what an exercise asks for
            assert not re.search(r"\b(True|False)\b", text), source(cell)

    def test_begins_with_the_cell_that_installs_the_package_where_it_is_missing(self, path):
        first = code_cells(path)[0]
        assert (first["id"], first["metadata"]["tags"], first["outputs"]) == ("setup", ["hide-input"], [])
        assert source(first) == SETUP

    def test_nothing_that_nbval_gets_wrong(self, path):
        for cell in code_cells(path):
            assert not source(cell).rstrip().endswith(";")
            assert "clear_output" not in source(cell)
            assert "!pip" not in source(cell) and "%pip" not in source(cell)

    def test_widgets_are_not_compared(self, path):
        for cell in code_cells(path):
            tags = cell["metadata"].get("tags", [])
            assert KNOBS not in tags or "nbval-ignore-output" in tags, source(cell)

    def test_no_more_unchecked_cells_than_stated(self, path):
        marked = [cell for cell in code_cells(path) if MARKS & set(cell["metadata"].get("tags", []))]
        comments = [c for c in code_cells(path) if re.search(r"(?m)^# *(NBVAL_|PYTEST_|RAISES)", source(c))]
        assert len(marked) + len(comments) == ALLOWED_MARKS.get(path.name, 0)


@pytest.mark.parametrize("path", TRANSLATED, ids=lambda path: path.name)
class TestTranslated:
    """The code runs where it stands in English; here it is compared, and its outputs."""

    def test_has_the_cells_of_the_english_edition(self, path):
        english = json.loads((FOLDER / path.name).read_text(encoding="utf-8"))
        translated = json.loads(path.read_text(encoding="utf-8"))
        assert translated["metadata"] == english["metadata"]
        for ours, theirs in zip(translated["cells"], english["cells"], strict=True):
            assert (ours["id"], ours["cell_type"]) == (theirs["id"], theirs["cell_type"])
            if ours["cell_type"] == "code":
                assert ours == theirs

    def test_is_translated_with_its_formulas(self, path):
        english = json.loads((FOLDER / path.name).read_text(encoding="utf-8"))
        translated = json.loads(path.read_text(encoding="utf-8"))
        for ours, theirs in zip(translated["cells"], english["cells"], strict=True):
            if ours["cell_type"] == "markdown":
                assert re.search(r"[\u4e00-\u9fff]", source(ours)), ours["id"]
                displayed = [re.findall(r"\$\$(.*?)\$\$", source(cell), re.DOTALL) for cell in (ours, theirs)]
                without_words = [[re.sub(r"\\text\{[^}]*\}", "", formula) for formula in found] for found in displayed]
                assert without_words[0] == without_words[1], ours["id"]

    def test_links_to_what_is_there(self, path):
        text = "".join(source(cell) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])
        links = re.findall(r"\]\(([^)\s]+)\)", text)
        local = [link for link in links if "://" not in link]
        assert local and not [link for link in local if not (path.parent / link).exists()]


def clean(path):
    """Set the metadata of a notebook to what every notebook has; drop the times of its cells, and widgets.

    Join printed lines that a slow machine delivered in several pieces.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["metadata"] = METADATA
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        if KNOBS in cell["metadata"].get("tags", []):
            cell["outputs"] = []
        joined = []
        for output in cell.get("outputs", []):
            is_printed = output["output_type"] == "stream"
            if is_printed and joined and joined[-1].get("name") == output["name"]:
                joined[-1]["text"] += output["text"]
            else:
                joined.append(output)
        if joined:
            cell["outputs"] = joined
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def carry_over(path):
    """Give a translated notebook the code and the outputs of the English one."""
    english = json.loads((FOLDER / path.name).read_text(encoding="utf-8"))
    text = {cell["id"]: cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    english["cells"] = [text[cell["id"]] if cell["cell_type"] == "markdown" else cell for cell in english["cells"]]
    path.write_text(json.dumps(english, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def set_up(path):
    """Write the first code cell."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    first["source"] = SETUP.splitlines(keepends=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in NOTEBOOKS:
        clean(name)
        set_up(name)
    for name in TRANSLATED:
        carry_over(name)
    sys.exit(0)
