"""What holds for every exercise and every notebook: answers, a frame, links, solutions."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from keras_preact import InputError
from keras_preact.course import check, results_folder
from keras_preact.course.exercise import EXERCISES, NOTEBOOKS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"


def all_exercises():
    for module in NOTEBOOKS.values():
        importlib.import_module(f"keras_preact.course.{module}")
    return set(EXERCISES)


def test_every_exercise_has_right_and_wrong_answers_in_the_tests_of_its_notebook():
    right, wrong = set(), set()
    for module in NOTEBOOKS.values():
        path = Path(__file__).with_name(f"test_{module}.py")
        spec = importlib.util.spec_from_file_location(f"answers_{module}", path)
        answers = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(answers)
        right |= set(answers.RIGHT)
        wrong |= {number for number, _, _ in answers.WRONG}
    assert right == wrong == all_exercises()


@pytest.mark.parametrize("number", sorted(all_exercises()))
def test_an_exercise_without_an_answer_is_open(number, capsys):
    check(number, ...)
    assert capsys.readouterr().out == f"{number} open: replace the dots with your answer.\n"


@pytest.mark.parametrize(
    "answer",
    [3, "many", [], {}, lambda: None, lambda *arguments: None, float("nan")],
    ids=["number", "text", "list", "dictionary", "no arguments", "function", "nan"],
)
def test_no_answer_stops_a_notebook(answer, capsys):
    for number in sorted(all_exercises()):
        check(number, answer)
        assert capsys.readouterr().out.startswith((f"{number} not yet: ", f"{number} right. "))


def test_the_results_are_found_from_the_notebooks_and_elsewhere_from_the_package(monkeypatch, tmp_path):
    monkeypatch.chdir(FOLDER / "solutions")
    assert results_folder() == ROOT / "results"
    monkeypatch.chdir(tmp_path)
    assert results_folder() == ROOT / "results"


def test_without_a_clone_one_sentence_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keras_preact.course.exercise.CHECKOUT", tmp_path)
    with pytest.raises(InputError, match="run the notebook in a clone of the repository"):
        results_folder()


def test_the_page_of_the_course_has_every_notebook_and_links_to_what_is_there():
    links = re.findall(r"\]\(([^)\s]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert all((FOLDER / link).exists() for link in links)
    notebooks = [*FOLDER.glob("[0-9]*.ipynb"), *FOLDER.glob("zh/[0-9]*.ipynb")]
    assert {path.relative_to(FOLDER).as_posix() for path in notebooks} <= set(links)


def test_an_unknown_exercise():
    with pytest.raises(InputError, match="unknown notebook '99'"):
        check("99.1", 0)
    with pytest.raises(InputError, match=r"unknown exercise '00\.9'"):
        check("00.9", 0)
    with pytest.raises(InputError, match=r'is text such as "02.3", not 0.2; put it in quotes'):
        check(00.2, 0)


def cells(path, kind):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[0-9]*.ipynb")), ids=lambda path: path.name)
class TestEveryNotebook:
    def test_has_its_frame(self, path):
        text = "\n".join(cells(path, "markdown"))
        for words in ("**In this notebook**", "does not show", "akeaways", "Recall", "urther reading"):
            assert words in text, words
        assert "runs on any laptop" in cells(path, "markdown")[0]

    def test_has_five_takeaways_five_recall_questions_and_links_to_read_on(self, path):
        text = "\n".join(cells(path, "markdown"))
        takeaways = re.split(r"\n(?=#|\*\*)", text[text.index("akeaways") :])[0]
        assert len(re.findall(r"(?m)^[*-] ", takeaways)) == 5
        recall = text[text.index("Recall") :]
        assert len(re.findall("<details>", recall)) >= 5
        assert len(re.findall(r"\]\(https://", text)) >= 3

    def test_links_to_what_is_there(self, path):
        links = re.findall(r"\]\(([^)\s]+)\)", "\n".join(cells(path, "markdown")))
        missing = [link for link in links if "://" not in link and not (path.parent / link.partition("#")[0]).exists()]
        assert links and not missing

    def test_has_graded_exercises_with_solutions(self, path):
        number, text = path.name[:2], "\n".join(cells(path, "markdown"))
        wanted = {n for n in all_exercises() if n.startswith(number)}
        asked = re.findall(r'check\("([\d.]+)", ', "\n".join(cells(path, "code")))
        assert len(asked) >= 3 and set(asked) == wanted
        grades = dict(re.findall(rf"### Exercise ({number}\.\d) \(([\w-]+)", text))
        assert wanted < set(grades) and set(grades.values()) == {"warm-up", "core", "open"}
        assert text.count("<summary>Hint") >= len(wanted)
        solutions = FOLDER / "solutions" / f"{number}_solutions.ipynb"
        solved = json.loads(solutions.read_text(encoding="utf-8"))["cells"]
        said = "".join("".join(o.get("text", "")) for c in solved for o in c.get("outputs", []))
        assert set(re.findall(r"([\d.]+) right\.", said)) == wanted and "not yet" not in said
        assert any("image/png" in o.get("data", {}) for c in solved for o in c.get("outputs", []))
        assert solutions.name in text
