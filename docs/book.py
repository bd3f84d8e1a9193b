"""The part of the site that Sphinx and its extensions do not bring.

* Formulas become MathML while the site is built, so that pages need no script for them.
* A figure's alternative text is the comment `# Figure: …` at the start of its cell.
* Docstrings, which are Markdown, become reStructuredText.
* A public name in code font links to its entry in the reference.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import unicodedata
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext import autosummary
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx.util.inspect import signature, stringify_signature
from sphinx.util.nodes import make_refnode

FIGURE = re.compile(r"\A# Figure: (.*(?:\n#  .*)*)")
MATHML = "http://www.w3.org/1998/Math/MathML"
LIMITS = {
    f"{{{MATHML}}}{beside}": f"{{{MATHML}}}{below}"
    for beside, below in (("msub", "munder"), ("msup", "mover"), ("msubsup", "munderover"))
}
STYLES = ("script", "bold", "double-struck", "fraktur")
MARKDOWN = re.compile(r"^ *(?:>>>|\.\.\.).*$|`(?P<code>[^`]+)`|\|", re.MULTILINE)
DOLLARS = re.compile(r"(?<![\\$\w])\$(?!\s)([^$\n]+?)\$")
NAME = re.compile(r"([A-Za-z_][\w.]*)(\(.*\))?", re.DOTALL)

logger = logging.getLogger(__name__)
ElementTree.register_namespace("", MATHML)


# ---- formulas -------------------------------------------------------------------------------------------------------


def mathml(formula: str, display: str = "inline") -> str:
    """Return a LaTeX formula as MathML."""
    root = ElementTree.fromstring(convert(formula, display=display))
    for node in root.iter():
        if (node.text or "").startswith("\\"):
            raise ValueError(f"unknown command {node.text}")
        if node.get("mathvariant") in STYLES and len(node.text or "") == 1:
            node.text = _letter(node.attrib.pop("mathvariant"), node.text)
        if display == "block" and node.tag in LIMITS and node[0].text in ("∑", "∏"):
            node.tag = LIMITS[node.tag]  # inside \left and \right, the converter sets limits beside the sign
    return ElementTree.tostring(root, encoding="unicode")


def _letter(style: str, letter: str) -> str:
    """Return a letter in a style, which browsers no longer apply. Some letters have older names in Unicode."""
    name = f"{style.upper()} {'CAPITAL' if letter.isupper() else 'SMALL'} {letter.upper()}"
    for known in (f"MATHEMATICAL {name}", name, name.replace("FRAKTUR", "BLACK-LETTER")):
        with contextlib.suppress(KeyError):
            return unicodedata.lookup(known)
    return letter


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_checked(node.astext(), node))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(
        translator.starttag(node, "div", CLASS="math") + _checked(node.astext(), node, "block") + "</div>\n"
    )
    raise nodes.SkipNode


def _checked(formula: str, node: nodes.Element, display: str = "inline") -> str:
    try:
        return mathml(formula, display)
    except Exception as error:  # the converter has errors of many kinds
        logger.warning("this formula cannot become MathML (%r): %s", error, formula, location=node)
        return ""


def convert_formulas_in_html(app: Sphinx, document: nodes.document) -> None:
    """Convert the formulas in HTML blocks such as `<details>`, which MyST leaves as they are."""
    for node in document.findall(nodes.raw):
        for text in node.findall(nodes.Text):
            converted = DOLLARS.sub(lambda match, node=text: _checked(match[1], node), text)
            text.parent.replace(text, nodes.Text(converted))


# ---- notebooks ------------------------------------------------------------------------------------------------------


def figure_text(source: str) -> str | None:
    """Return the figure's description from the comment at the start of a cell, or `None` without one."""
    match = FIGURE.match(source)
    return match and re.sub(r"\n#  ", " ", match[1])


def prepare_cells(app: Sphinx, document: nodes.document) -> None:
    """Set the alternative text of figures. Drop the outputs of widgets, which show nothing without a kernel."""
    for cell in list(document.findall(nodes.container)):
        if cell.get("nb_element") != "cell_code":
            continue
        source, *outputs = cell.children
        if "knobs" in cell["cell_metadata"].get("tags", []):
            cell.children = [source]
        for image in (image for output in outputs for image in output.findall(nodes.image)):
            image["alt"] = figure_text(source.astext()) or ""


# ---- the reference --------------------------------------------------------------------------------------------------


def convert_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring to reStructuredText; the napoleon extension then converts its sections.

    A package also gets a table of its public names, and the entries of its constants, which autodoc leaves out.
    """
    if what == "data":
        lines[:] = _constant_docstring(name.rpartition(".")[2], thing)
    lines[:] = restructured("\n".join(lines)).split("\n")
    if what == "module" and options.get("members"):
        public = getattr(thing, "__all__", [])
        lines += ["", ".. autosummary::", "   :nosignatures:", "", *(f"   {each}" for each in public), ""]
        lines += [f".. autodata:: {each}\n" for each in public if not callable(getattr(thing, each))]
        lines[:] = "\n".join(lines).split("\n")


def restructured(text: str) -> str:
    """Return Markdown as reStructuredText. Input lines of examples stay as they are."""
    return MARKDOWN.sub(_restructured, text)


def _restructured(match: re.Match[str]) -> str:
    if match["code"]:
        return f"``{match['code']}``"
    return r"\|" if match[0] == "|" else match[0]


def _constant_docstring(name: str, thing: Any) -> list[str]:
    """Return the text below a constant in the module that defines it, which is not the package that exports it."""
    keys = [f"`{key}`" for key in thing if isinstance(key, str)] if isinstance(thing, (dict, tuple)) else []
    contents = ["", f"Contains {', '.join(keys)}."] if keys else []
    for module in [module for module in sys.modules if module.startswith("keras_preact.")]:
        found = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", name))
        if found and getattr(sys.modules[module], name, None) is thing:
            return found + contents
    return contents


def class_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, shown: str | None, returns: str | None
) -> tuple[str, None] | None:
    """Show the arguments of `__init__`: Keras's layers have a `__new__` that hides them."""
    if what != "class" or shown != "(*args, **kwargs)":
        return None
    arguments = signature(thing.__init__, bound_method=True)
    return stringify_signature(arguments, show_return_annotation=False, unqualified_typehints=True), None


def link_names(app: Sphinx, document: nodes.document, page: str) -> None:
    """Link `ResidualUnit`, `check_identity_path(model)` or `Chain.split` in code font to the reference."""
    known = _entries(app.env)
    for code in list(document.findall(nodes.literal)):
        match = NAME.fullmatch(code.astext())
        if not match or isinstance(code.parent, (nodes.reference, nodes.title)):
            continue
        # A word such as `lines` or `start` may be anything; with brackets it is a function.
        name, call = match.groups()
        if re.fullmatch("[a-z]+", name) and not call:
            continue
        entry = known.get(f"keras_preact.{name}") or known.get(name)
        if entry:
            code.replace_self(make_refnode(app.builder, page, *entry, code.deepcopy()))


@functools.cache
def _entries(env: Any) -> dict[str, tuple[str, str]]:
    """Return page and anchor of everything in the reference, by its full name and by a short one."""
    objects = env.domains["py"].objects
    entries = {}
    for name, entry in objects.items():
        parent, _, last = name.rpartition(".")
        # The short name of a method contains that of its class.
        in_module = parent not in objects or objects[parent].objtype == "module"
        short = last if in_module else f"{parent.rpartition('.')[2]}.{last}"
        entries[name] = entries[short] = (entry.docname, entry.node_id)
    return entries


# ---- pages ----------------------------------------------------------------------------------------------------------


def prepare_contents(app: Sphinx, document: nodes.document) -> None:
    """Number the notebooks in the navigation. Drop links to files from headings there: Sphinx expects none."""
    page, contents = app.env.docname, app.env.tocs[app.env.docname]
    for link in list(contents.findall(addnodes.download_reference)):
        link.replace_self(link.children)
    if number := re.match(r"notebooks/(?:zh/)?(\d\d)_", page):
        for title in (app.env.titles[page], next(contents.findall(nodes.reference))):
            title.insert(0, nodes.Text(f"{number[1]} "))


def use_short_titles(app: Sphinx, env: Any) -> None:
    """Give pages the titles of the tables of contents, which differ from their headings, in every link to them."""
    for contents in env.tocs.values():
        for tree in contents.findall(addnodes.toctree):
            for title, page in tree["entries"]:
                if title and page in env.titles:
                    env.titles[page] = nodes.title("", title)


def set_language(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Tell browsers and screen readers which pages are Chinese."""
    if page.startswith("notebooks/zh/"):
        context["language"] = "zh-CN"


def setup(app: Sphinx) -> dict[str, Any]:
    autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.", "Eqs.", "Fig.")  # they end no sentence
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.connect("doctree-read", convert_formulas_in_html)
    app.connect("doctree-read", prepare_cells)
    app.connect("doctree-read", prepare_contents, priority=600)  # after the contents are collected
    app.connect("autodoc-process-signature", class_signature)
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)  # before napoleon
    app.connect("env-updated", use_short_titles)
    app.connect("doctree-resolved", link_names)
    app.connect("html-page-context", set_language)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
