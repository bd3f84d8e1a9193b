"""Settings of the site, which `make site` builds with Sphinx; `book.py` is the part written for this project.

The source folder is the root of the repository, so that links between notebooks, guides and results work on the site
as they do in the repository:

    sphinx-build -c docs . build/site
"""

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]  # for `book` and `keras_preact`
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

repository = re.search(r'(?m)^Repository = "(.+)"$', (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))[1]

project = "keras_preact"
author = copyright = "the keras_preact authors"
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/**.md",
    "examples/README.md",
    "examples/*/README.md",
    "notebooks/**.md",
    "notebooks/**.ipynb",
    "results/README.md",
    "results/benchmarks/*/README.md",
    "keras_preact/data/bundled/README.md",
]
exclude_patterns = [".*", "**/.ipynb_checkpoints", "build", "data", "runs", "tests"]
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.githubpages",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "book",
]

# Text and notebooks. Outputs are the stored ones.
nb_execution_mode = "off"
nb_ipywidgets_js = {}
nb_merge_streams = True  # as Jupyter shows them
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 4
myst_update_mathjax = False
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# The reference. An undocumented method that overrides one of Keras would otherwise show Keras's docstring.
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "no-value": True}
autosummary_generate = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "sphinx_book_theme"
html_title = "keras_preact"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_extra_path = ["_root"]
html_theme_options = {
    "repository_url": repository,
    "repository_branch": "main",
    "use_repository_button": True,
    "use_issues_button": True,
    "launch_buttons": {
        "notebook_interface": "jupyterlab",
        "colab_url": "https://colab.research.google.com",
        "binderhub_url": "https://mybinder.org",
    },
    "show_toc_level": 2,
    "navbar_persistent": [],  # the sidebar has the search field
}
