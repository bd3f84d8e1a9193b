"""The course's site: pages that are whole, load nothing from elsewhere, and are shown by a real browser, if any."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))

from build_site import PARTS, REFERENCE, build, figure_text, pages, with_mathml

import keras_preact

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
REPORT = """<script>window.onload = () => { document.body.dataset.report = JSON.stringify({
  images: [...document.images].map(image => image.naturalWidth),
  formulas: [...document.querySelectorAll("math")].map(formula => formula.getBoundingClientRect().height),
  broken: [...document.querySelectorAll("merror")].length,
}) }</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build") / "site"
    (folder / REFERENCE).parent.mkdir(parents=True)
    (folder / REFERENCE).write_text("of a site that was built before")
    (folder / "old.html").write_text("a page that there is no more")
    build(folder)
    assert not (folder / "old.html").exists()
    return folder


PAGES = [page.target.as_posix() for page in pages()]


def test_every_notebook_has_a_page():
    course = Path(__file__).parents[1] / "notebooks"
    written = {path.stem for path in course.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts}
    assert written == {Path(p).stem for p in PAGES} - {"index"}


@pytest.mark.parametrize("name", PAGES)
class TestEveryPage:
    def test_links_to_what_is_there(self, site, name):
        page = site / name
        found = re.findall(r'(?:href|src)="([^"]+)"', page.read_text(encoding="utf-8"))
        local = [unquote(link).partition("#")[0] for link in found if not re.match(r"\w+:|#", link)]
        assert not [link for link in local if not (page.parent / link).is_file()]

    def test_loads_nothing_from_elsewhere(self, site, name):
        text = (site / name).read_text(encoding="utf-8")
        assert "<script" not in text and not re.search(r'(?:src|rel="stylesheet" href)="(?:https?:)?//', text)

    def test_has_its_formulas_and_a_text_for_each_figure(self, site, name):
        text = (site / name).read_text(encoding="utf-8")
        prose = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", text, flags=re.DOTALL)
        assert "$$" not in prose and not re.search(r"\\(?:mathcal|frac|sum|lambda)", prose)
        assert "<title>" in text and not re.search(r'<img [^>]*alt=""', text)
        assert re.search(r"<h1", text)

    def test_is_shown_by_a_browser(self, site, name, tmp_path):
        if BROWSER is None:
            pytest.skip("no Chromium here")
        page = (site / name).with_name(f"reporting-{Path(name).name}")
        page.write_text((site / name).read_text(encoding="utf-8").replace("</body>", REPORT), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
        shown = subprocess.run([BROWSER, *options, page.as_uri()], capture_output=True, text=True, timeout=120)
        page.unlink()
        found = re.search(r'data-report="([^"]+)"', shown.stdout)
        assert found, shown.stderr[-500:]
        report = json.loads(found[1].replace("&quot;", '"'))
        assert all(width > 0 for width in report["images"])
        assert all(height > 5 for height in report["formulas"]) and not report["broken"]


def test_the_reference_has_every_public_name(site):
    folder = site / REFERENCE.parent
    for part in PARTS:
        module = importlib.import_module(f"keras_preact.{part}")
        text = (folder / "keras_preact" / f"{part}.html").read_text(encoding="utf-8")
        defined = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
        public = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
        assert public and not [name for name in public if f'<section id="{name}"' not in text]
    overview = (folder / "keras_preact.html").read_text(encoding="utf-8")
    assert not [part for part in PARTS if f'href="keras_preact/{part}.html"' not in overview]
    rooms = {path.parent.name for path in Path(keras_preact.__file__).parent.glob("*/__init__.py")}
    assert rooms - {"cli"} <= set(PARTS)  # the command is not imported


def test_the_reference_says_nothing_of_where_it_was_made(site):
    for page in (site / REFERENCE.parent).rglob("*.*"):
        text = page.read_text(encoding="utf-8")
        assert str(Path(__file__).parents[1]) not in text and str(Path.home()) not in text
        assert not re.search(r" object at 0x|(?:src|rel=\"stylesheet\" href)=\"(?:https?:)?//", text), page


def test_formulas_become_mathml_and_code_stays():
    assert with_mathml("price `$x$` and $x$").count("<math") == 1
    assert 'display="block"' in with_mathml("$$\\mathcal F(x)$$") and "ℱ" in with_mathml("$$\\mathcal F(x)$$")
    assert with_mathml("5 $ and 6 $") == "5 $ and 6 $"


def test_the_text_of_a_figure():
    assert figure_text("# Figure: a line,\n#  and a dot.\nplot()") == "a line, and a dot."
    assert figure_text("plot()") is None


def test_other_files_are_not_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="contains other files"):
        build(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
