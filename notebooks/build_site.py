"""The course and the API reference as a static site that loads nothing from other sites.

Run `make site` or `python notebooks/build_site.py [FOLDER]` (default: build/site). Every notebook becomes a page with
its stored outputs. Formulas become MathML, which browsers show without a script. The alternative text of a figure is
the comment `# Figure: …` in its cell. pdoc writes the reference from the docstrings.
"""

from __future__ import annotations

import html
import importlib
import re
import shutil
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pdoc
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import markdown2html
from pygments.formatters import HtmlFormatter

COURSE = Path(__file__).parent
ROOT = COURSE.parent
PARTS = ("layers", "models", "data", "training", "analysis", "experiments", "interop", "course", "paper", "plots")
"""Subpackages and modules with their own page in the reference."""
RESULT_FILES = ("*.svg", "*.json", "*.csv", "*.png", "*.md")
"""Files that the page of the results links to."""
REFERENCE = Path("reference", "index.html")

CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$\n]+?)\$", re.DOTALL)
SCRIPT_LETTER = re.compile(r'<mi mathvariant="script">([A-Z])</mi>')
LINK = re.compile(r'(href|src)="([^"#:]+)(#[^"]*)?"')
FIGURE = re.compile(r"(?m)\A# Figure: (.*(?:\n#  .*)*)")

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #f4f5f7; --line: #d8dce2; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --paper: #16191d; --soft: #20252b; --line: #39404a; --link: #7db8f5; }
  .jp-RenderedImage img, p img { background: #fff; border-radius: 4px; }
  .highlight, .highlight span { color: var(--ink) !important; }
}
body { margin: 0; color: var(--ink); background: var(--paper); font: 17px/1.6 system-ui, sans-serif; }
header, main { max-width: 52rem; margin: 0 auto; padding: 0 1rem; }
header { display: flex; flex-wrap: wrap; gap: 1.2rem; padding-top: 1rem; font-size: 0.9rem; }
main { padding-bottom: 5rem; }
a { color: var(--link); }
h1, h2, h3 { line-height: 1.25; margin-top: 2em; }
h1 { margin-top: 1em; }
pre, code { font: 0.86em/1.5 ui-monospace, monospace; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.highlight { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: 0.7rem 0.9rem; }
.output_wrapper { border-left: 3px solid var(--line); margin: 0.6rem 0 1.4rem; padding-left: 0.9rem; }
img { max-width: 100%; height: auto; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: 0.35rem 0.7rem; text-align: left; vertical-align: top; }
math { font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", math; }
math[display="block"] { margin: 1.2em 0; overflow-x: auto; overflow-y: hidden; }
.anchor-link { display: none; }
"""

PAGE = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>{links}</header>
<main>
{body}
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Page:
    """A page of the site.

    Attributes:
        source: the notebook or Markdown file.
        target: path of the page, relative to the site.
        language: language of the text.
    """

    source: Path
    target: Path
    language: str = "en"


def pages() -> list[Page]:
    """Return all pages: index, notebooks in order, solutions, translations, results."""
    notebooks = [*sorted(COURSE.glob("[0-9]*.ipynb")), *sorted(COURSE.glob("*/*.ipynb"))]
    return [
        Page(COURSE / "README.md", Path("index.html")),
        *(
            Page(path, path.relative_to(COURSE).with_suffix(".html"), "zh" if path.parent.name == "zh" else "en")
            for path in notebooks
            if ".ipynb_checkpoints" not in path.parts
        ),
        Page(ROOT / "results" / "README.md", Path("results", "index.html")),
    ]


def build(folder: Path) -> list[Path]:
    """Write the site into a folder; an earlier site in it is deleted first.

    Returns:
        The paths of the pages.

    Raises:
        FileExistsError: the folder contains other files.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / REFERENCE).exists() or (folder / ".git").exists():
            raise FileExistsError(f"{folder} contains other files; choose an empty folder")
        shutil.rmtree(folder)
    site = pages()
    targets = {page.source.resolve(): page.target for page in site}
    for page in site:
        title, body = notebook(page) if page.source.suffix == ".ipynb" else markdown(page)
        path = folder / page.target
        path.parent.mkdir(parents=True, exist_ok=True)
        text = PAGE.format(
            language=page.language, title=html.escape(title), style=_style(), links=_links(page.target), body=body
        )
        path.write_text(LINK.sub(lambda match, page=page: _site_link(match, page, targets), text), encoding="utf-8")
    for pattern in RESULT_FILES:
        for file in (ROOT / "results").rglob(pattern):
            target = folder / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    reference(folder / REFERENCE.parent)
    return [folder / page.target for page in site]


def reference(folder: Path) -> None:
    """Write the reference: a page for each part of the package, with its public names and their docstrings."""
    import keras_preact

    names = [f"keras_preact.{part}" for part in PARTS]
    for name in names:
        importlib.import_module(name)  # pdoc blocks subprocesses while it imports a module; numpy runs `uname`
    pdoc.render.configure(docformat="google", show_source=False)
    unlisted = [name for name in names if name.rpartition(".")[2] not in keras_preact.__all__]  # pdoc finds the listed
    # The function `transformer` hides the module of that name.
    pdoc.pdoc("keras_preact", *unlisted, "!keras_preact.models.transformer", output_directory=folder)


def notebook(page: Page) -> tuple[str, str]:
    """Return the title and the body of a notebook's page."""
    content = nbformat.read(page.source, as_version=4)
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = with_mathml(cell.source)
        else:
            _describe_figures(cell)
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True)
    body, _ = exporter.from_notebook_node(content)
    return _title(content.cells[0].source), body


def markdown(page: Page) -> tuple[str, str]:
    """Return the title and the body of a Markdown file's page."""
    text = page.source.read_text(encoding="utf-8")
    return _title(text), markdown2html(with_mathml(text))


def with_mathml(text: str) -> str:
    """Return Markdown with formulas as MathML and code unchanged."""
    parts = CODE.split(text)
    return "".join(part if number % 2 else FORMULA.sub(_mathml, part) for number, part in enumerate(parts))


def _mathml(match: re.Match[str]) -> str:
    display = match[1] is not None
    formula = convert(match[1] if display else match[2], display="block" if display else "inline")
    return SCRIPT_LETTER.sub(_script, formula)


def _script(match: re.Match[str]) -> str:
    # Browsers no longer support mathvariant. Unicode has the letters, some of them under older names.
    for name in (f"SCRIPT CAPITAL {match[1]}", f"MATHEMATICAL SCRIPT CAPITAL {match[1]}"):
        try:
            return f"<mi>{unicodedata.lookup(name)}</mi>"
        except KeyError:
            continue
    return match[0]


def figure_text(source: str) -> str | None:
    """Return the figure's description from the comment at the start of a cell, or `None` without one."""
    match = FIGURE.match(source)
    return match and re.sub(r"\n#  ", " ", match[1])


def _describe_figures(cell: nbformat.NotebookNode) -> None:
    text = figure_text(cell.source) or ""
    for output in cell.outputs:
        if "image/png" in output.get("data", {}):
            pixels = output.data["image/png"].replace("\n", "")
            image = f'<img src="data:image/png;base64,{pixels}" alt="{html.escape(text)}">'
            output.data = nbformat.from_dict({"text/html": image})


def _title(text: str) -> str:
    heading = re.search(r"(?m)^# (.+)$", text)
    return heading[1] if heading else "The course"


def _style() -> str:
    return STYLE + HtmlFormatter(style="default").get_style_defs(".highlight")


def _links(target: Path) -> str:
    course = "" if target == Path("index.html") else f'<a href="{_up(target)}index.html">The course</a>'
    return f'{course}<a href="{_up(target)}{REFERENCE.as_posix()}">The reference</a>'


def _up(target: Path) -> str:
    return "../" * (len(target.parts) - 1)


def _site_link(match: re.Match[str], page: Page, targets: dict[Path, Path]) -> str:
    """Replace a link to a file of the repository by a link to its page on the site."""
    attribute, link, fragment = match[1], match[2], match[3] or ""
    path = (page.source.parent / link).resolve()
    path = path / "README.md" if path.is_dir() else path
    target = targets.get(path)
    if target is None and path.is_relative_to(ROOT / "results"):
        target = path.relative_to(ROOT)
    return f'{attribute}="{_up(page.target)}{target.as_posix()}{fragment}"' if target else match[0]


if __name__ == "__main__":
    try:
        written = build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site"))
    except FileExistsError as error:
        sys.exit(str(error))
    print(f"{len(written)} pages; open {written[0]}")
