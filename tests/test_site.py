"""The site that `make site` builds: complete, without broken links, and loading nothing from elsewhere."""

import html
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from filelock import FileLock

import keras_preact

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from book import figure_text, mathml, restructured  # noqa: E402 (docs/ is no package)

NOTEBOOKS = [
    path.relative_to(ROOT) for path in ROOT.glob("notebooks/**/*.ipynb") if ".ipynb_checkpoints" not in path.parts
]
PAGES = ("docs/**/*.md", "examples/**/README.md", "results/README.md", "README.md")
GUIDES = [path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern)]
REPOSITORY = re.search(r'Repository = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[1]
CODE = re.compile(r"<(pre|code|script|style|math)\b.*?</\1>", re.DOTALL)
METADATA = {"kernelspec": {"name": "python3"}, "language_info": {"name": "python"}}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
SHOWN = ["docs/index", "docs/api/layers", "results/README", *(path.with_suffix("").as_posix() for path in NOTEBOOKS)]
REPORT = """<script>window.addEventListener("load", () => { document.body.dataset.report = JSON.stringify({
  images: [...document.images].filter(image => image.checkVisibility()).map(image => image.naturalWidth),
  formulas: [...document.querySelectorAll("math")].map(formula => formula.getBoundingClientRect().height),
  excess: document.documentElement.scrollWidth - window.innerWidth,
}) })</script></body>"""


def sphinx(source, target):
    """Build a site as `make site` does; return its warnings."""
    options = ["-q", "-E", "-W", "--keep-going", "-c", ROOT / "docs", "-d", target.with_name("doctrees")]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, source, target], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, built once for all of pytest's processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(folder / "site.lock"):
        if not (folder / "warnings.txt").exists():
            built = sphinx(ROOT, folder / "site")
            (folder / "warnings.txt").write_text(f"{built.stderr}\n" if built.returncode else "")
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    """The text of each page by its path on the site."""
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    return {name: text for name, text in texts.items() if not name.startswith("_")}


def built_cells(site, path):
    """The cells of a notebook as they were built; the site offers that file for download."""
    return json.loads((site / "_sources" / path).read_text(encoding="utf-8"))["cells"]


@pytest.mark.thorough
def test_the_build_has_no_warnings(site):
    assert site.with_name("warnings.txt").read_text() == ""


@pytest.mark.thorough
def test_every_notebook_and_guide_has_a_page_in_the_navigation(pages):
    contents = pages["docs/index.html"]
    for path in (*NOTEBOOKS, *GUIDES):
        page = path.with_suffix(".html").as_posix()
        assert page in pages
        if path.parent.name not in ("solutions", "zh", "api") and page != "docs/index.html":
            assert f'href="{os.path.relpath(page, "docs")}"' in contents


@pytest.mark.thorough
def test_links_and_their_anchors_exist(site, pages):
    anchors = {name: set(re.findall(r'<[^>]+ id="([^"]+)"', text)) for name, text in pages.items()}
    broken = []
    for name, text in pages.items():
        for link in re.findall(r'<[^>]+ (?:href|src)="([^"]*)"', text):
            path, _, anchor = html.unescape(unquote(link)).partition("#")
            if re.match(r"\w+:", path):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), path.partition("?")[0])) if path else name
            if not (site / target).is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append((name, link))
    assert not broken


@pytest.mark.thorough
def test_nothing_is_loaded_from_elsewhere(site, pages):
    for name, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe|source|video)[^>]* src="([^"]+)"', text)
        loaded += re.findall(r'<link (?![^>]*rel="(?:next|prev|search|canonical)")[^>]*href="([^"]+)"', text)
        assert not [link for link in loaded if re.match("(https?:)?//", link)], name
        assert not re.search("require|mathjax", " ".join(loaded), re.IGNORECASE), name
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path


@pytest.mark.thorough
def test_formulas_are_mathml(site, pages):
    for path in NOTEBOOKS:
        cells = built_cells(site, path)
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        formulas = len(re.findall(r"\$\$.+?\$\$", re.sub(r"`[^`]*`", "", prose), re.DOTALL))
        assert pages[path.with_suffix(".html").as_posix()].count('display="block"') >= formulas
    for name, text in pages.items():
        assert "<merror" not in text and not re.search(r"\\(?:mathcal|frac|sum|lambda)|\$\$", CODE.sub("", text)), name


@pytest.mark.thorough
def test_every_figure_has_alternative_text(site, pages):
    for name, text in pages.items():
        images = re.findall(r"<img [^>]*>", text)
        assert not [image for image in images if not re.search(r'alt="[^"]', image)], name
    for path in NOTEBOOKS:
        figures = [
            html.escape(figure_text("".join(cell["source"])))
            for cell in built_cells(site, path)
            for output in cell.get("outputs", ())
            if "image/png" in output.get("data", {}) and "remove-cell" not in cell["metadata"].get("tags", ())
        ]
        page = html.unescape(pages[path.with_suffix(".html").as_posix()])
        assert not [figure for figure in figures if html.unescape(figure) not in page], path


@pytest.mark.thorough
def test_the_reference_has_every_public_name(pages):
    packages = {path.parent.name for path in Path(keras_preact.__file__).parent.glob("*/__init__.py")} - {"cli"}
    assert len(packages) > 5
    for package in packages:
        module = importlib.import_module(f"keras_preact.{package}")
        page = pages[f"docs/api/{package}.html"]
        missing = {name for name in module.__all__ if f'id="keras_preact.{package}.{name}"' not in page}
        # The preprocessing layers have their entries with the layers; the page of the data links there.
        elsewhere = {"PadCropFlip", "PerPixelMean"} if package == "data" else set()
        assert module.__all__ and missing == elsewhere
        for name in elsewhere:
            assert getattr(module, name) is getattr(keras_preact.layers, name)
            assert f'id="keras_preact.layers.{name}"' in pages["docs/api/layers.html"] and name in page


@pytest.mark.thorough
def test_the_reference_says_nothing_of_where_it_was_made(pages):
    for name, text in pages.items():
        assert str(ROOT) not in text and str(Path.home()) + "/" not in text and " object at 0x" not in text, name


@pytest.mark.thorough
def test_names_in_code_font_link_to_the_reference(pages):
    linked = re.compile(r'href="(?:\.\./docs/)?api/[a-z]+\.html#keras_preact\.[\w.]+"[^>]*><code')
    assert len(linked.findall(pages["docs/networks.html"])) > 3
    assert sum(bool(linked.search(pages[path.with_suffix(".html").as_posix()])) for path in NOTEBOOKS) > 3


@pytest.mark.thorough
def test_pages_have_dark_mode_search_copy_buttons_neighbors_and_launch_buttons(site, pages):
    for path in (*NOTEBOOKS, *GUIDES):
        text = pages[path.with_suffix(".html").as_posix()]
        for part in ("theme-switch-button", "search-button", "copybutton.js", "prev-next-area"):
            assert part in text, (path, part)
    for path in NOTEBOOKS:
        text = pages[path.with_suffix(".html").as_posix()]
        address = REPOSITORY.removeprefix("https://github.com/")
        assert f"https://colab.research.google.com/github/{address}/blob/main/{path.as_posix()}" in text
        assert f"https://mybinder.org/v2/gh/{address}/main" in text
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(path.with_suffix("").as_posix() in index for path in (*NOTEBOOKS, *GUIDES))


@pytest.mark.thorough
def test_translated_pages_say_their_language(pages):
    for name, text in pages.items():
        assert (f'<html lang="{"zh-CN" if name.startswith("notebooks/zh/") else "en"}"') in text, name


def test_the_home_page_says_of_the_demo_what_the_readme_says():
    home, readme = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("docs/index.md", "README.md")
    )
    claim = re.search(r"After 124 steps the mean test error .*?\(n = 5 and 5\)\.", readme)
    assert claim and claim[0] in home


def test_tags_of_cells_and_wrong_formulas(tmp_path):
    source = tmp_path / "source"
    for folder in ("docs", "notebooks"):
        (source / folder).mkdir(parents=True)
    (source / "docs" / "index.md").write_text(
        "# Home\n\n```{toctree}\n../notebooks/a\n```\n\n$\\fraction{1}$ and $x_l$\n\n<p>$y$</p>\n"
    )
    cells = [{"cell_type": "markdown", "id": "0", "metadata": {}, "source": "# Title"}]
    for number, tag in enumerate(("plain", "hide-input", "remove-cell", "knobs"), 1):
        data = {"text/plain": f"output of {tag}"}
        output = {"output_type": "display_data", "metadata": {}, "data": data}
        cell = {
            "cell_type": "code",
            "id": str(number),
            "execution_count": number,
            "source": f"'{tag}'",
            "outputs": [output],
        }
        cells.append(cell | {"metadata": {"tags": [tag]}})
    notebook = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    (source / "notebooks" / "a.ipynb").write_text(json.dumps(notebook))
    built = sphinx(source, tmp_path / "site")
    assert built.returncode == 1 and built.stderr.count("WARNING") == 1, built.stderr
    assert re.search(r"index\.md.*WARNING: this formula cannot become MathML.*fraction", built.stderr)
    assert (tmp_path / "site" / "docs" / "index.html").read_text(encoding="utf-8").count("<math") == 2
    page = (tmp_path / "site" / "notebooks" / "a.html").read_text(encoding="utf-8")
    found = [f"output of {tag}" in page for tag in ("plain", "hide-input", "remove-cell", "knobs")]
    assert found == [True, True, False, False]
    assert page.count("<details") == 1 and "remove-cell" not in page and "tag_knobs" in page


def test_mathml():
    assert "ℱ" in mathml(r"\mathcal F") and "𝐱" in mathml(r"\mathbf x") and "ℜ" in mathml(r"\mathfrak R")
    assert 'display="block"' in mathml("x", "block") and "&lt;" in mathml("a<b")
    assert "munderover" in mathml(r"\left(\sum_{i=1}^n x\right)", "block")


def test_docstrings_become_restructured_text():
    assert restructured("`x` is |x|\n>>> `x` | y\n`a\nb`") == "``x`` is \\|x\\|\n>>> `x` | y\n``a\nb``"


def test_the_text_of_a_figure():
    assert figure_text("# Figure: a line,\n#  and a dot.\nplot()") == "a line, and a dot."
    assert figure_text("plot()") is None


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.thorough
def test_a_browser_shows_images_and_formulas_on_a_narrow_page(site, name, tmp_path):
    if BROWSER is None:
        pytest.skip("no Chromium here")
    page = (site / name).with_name(f"reporting-{Path(name).name}.html")
    text = (site / f"{name}.html").read_text(encoding="utf-8").replace('loading="lazy"', "")
    page.write_text(text.replace("</body>", REPORT), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900", f"--user-data-dir={tmp_path}"]
    shown = subprocess.run(
        [BROWSER, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120
    )
    page.unlink()
    found = re.search(r'data-report="([^"]+)"', shown.stdout)
    assert found, shown.stderr[-500:]
    report = json.loads(html.unescape(found[1]))
    assert all(width > 0 for width in report["images"]) and all(height > 5 for height in report["formulas"])
    assert report["excess"] <= 0
