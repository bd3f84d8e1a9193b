"""The package as a whole: public names, dependencies, imports, and the pages of the documentation."""

import ast
import importlib
import inspect
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import keras_preact
from keras_preact.cli.options import parser

ROOT = Path(__file__).parents[1]

PUBLIC = {
    "keras_preact": ["__version__", "InputError", "layers", "models", "data"],
    "keras_preact.layers": [
        "ResidualUnit", "PreActivation", "PreActBasicBlock", "PreActBottleneck", "PostActBasicBlock",
        "PostActBottleneck", "IdentityShortcut", "ConstantScaling", "ExclusiveGating", "ShortcutOnlyGating",
        "ConvShortcut", "DropoutShortcut", "PLACEMENTS", "UnitStack",
    ],
    "keras_preact.models": [
        "cifar_resnet",
        *(f"{order}_resnet{depth}" for order in ("preact", "postact") for depth in (18, 34, 50, 101, 152, 200)),
    ],
    "keras_preact.analysis": ["forward_signal", "gradient_signal", "identity_error", "unrolled_sum"],
    "keras_preact.data": ["load_dataset", "from_arrays", "PadCropFlip", "PerPixelMean"],
    "keras_preact.training": ["RECIPES", "RunConfig", "RunFolder", "compare", "evaluate", "resume", "start"],
}  # fmt: skip


def pyproject():
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_yml_has_the_dependencies_of_pyproject():
    """Exactly those for the environment's Python version, with the same bounds.

    `make demo` and `make test` install them.
    """
    project = pyproject()
    extras = project["optional-dependencies"]
    assert extras["all"] == ["keras_preact[tensorflow,data,course]"]
    chosen = ("tensorflow", "data", "course", "test")
    every = [*project["dependencies"], *(line for extra in chosen for line in extras[extra])]
    wanted = {line.split(";")[0].strip() for line in every if "python_version <" not in line}
    environment = (ROOT / "environment.yml").read_text()
    assert re.search(r"- python=3\.1[1-9]\b", environment)
    pip = environment.split("- pip:\n")[1].splitlines()
    found = {line.strip().removeprefix("- ") for line in pip if line.strip()}
    assert found == {*wanted, "--editable ."}


def test_the_version_is_in_the_changelog_and_the_citation():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", keras_preact.__version__)
    assert "version" not in pyproject()
    assert keras_preact.__version__.split(".dev")[0] in (ROOT / "CHANGELOG.md").read_text()
    assert keras_preact.__version__.split(".dev")[0] in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    found = importlib.import_module(module)
    missing = [name for name in PUBLIC[module] if not hasattr(found, name)]
    assert not missing


def functions_of_a_model():
    """Return the public functions whose first argument is a Keras model, with the number of required arguments."""
    found = {}
    for name in ("layers", "models", "analysis", "interop", "training"):
        module = importlib.import_module(f"keras_preact.{name}")
        for function in filter(inspect.isfunction, (getattr(module, each) for each in module.__all__)):
            parameters = list(inspect.signature(function).parameters.values())
            if parameters and parameters[0].annotation in ("keras.Model", "keras.Model | Chain"):
                found[function] = sum(
                    each.default is each.empty and each.kind < each.VAR_POSITIONAL for each in parameters
                )
    return found


def test_what_is_not_a_model_is_named():
    """For example a builder that was not called."""
    functions = functions_of_a_model()
    assert len(functions) > 20
    for function, required in functions.items():
        for wrong in (None, keras_preact.models.cifar_resnet, "resnet"):
            with pytest.raises(keras_preact.InputError, match=r"[mM]odel"):
                function(wrong, *["x.weights.h5"] * (required - 1))


def test_importing_the_package_imports_little_beyond_keras():
    """No plotting, data or notebook packages for users who only want a layer."""
    code = (
        "import sys, keras; before = set(sys.modules); import keras_preact\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before if not name.startswith('_')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not set(eval(done.stdout)) & {"matplotlib", "tensorflow_datasets", "rich", "PIL", "psutil", "IPython"}


ORDER = (
    {"errors", "keras_private", "version", "paper", "startup"},
    {"files", "layers", "losses", "optimizers"},
    {"data", "models", "plots"},
    {"analysis", "interop", "training"},
    {"course", "console", "experiments"},
    {"cli"},
)
"""Parts of the package. Each may import those of earlier lines, and itself."""


def imports():
    """Return the modules of the package that each module imports, including inside functions."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "keras_preact").rglob("*.py")
        if "bundled" not in path.parts
    }
    found = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_types = {id(node) for test in ast.walk(tree) if isinstance(test, ast.If) for node in ast.walk(test)}
        found[module] = {
            full if (full := f"{node.module}.{alias.name}") in files else node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "keras_preact"
            if id(node) not in for_types  # under `if TYPE_CHECKING`, the only condition of imports
            for alias in node.names
        }
    return found


def test_there_are_no_circular_imports():
    found = imports()
    left = dict(found)
    while leaves := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in leaves:
            del left[module]
    assert list(left) == [], "these modules are part of a circular import, or import one"


def test_the_parts_of_the_package_import_only_earlier_ones():
    rank = {part: number for number, parts in enumerate(ORDER) for part in parts}
    wrong = []
    for module, needs in imports().items():
        if module in ("keras_preact", "keras_preact.__main__"):
            continue
        own, *others = (name.split(".")[1] for name in (module, *(need for need in needs if "." in need)))
        wrong += [f"{module} imports {other}" for other in others if other != own and rank[other] >= rank[own]]
    assert wrong == []


GLOBAL = {"set_random_seed", "clear_session", "set_dtype_policy", "set_floatx", "set_image_data_format"}
RESTORED = {"device.py", "loading.py"}  # they change them for the length of a block


def test_no_module_changes_keras_s_global_settings_of_a_program():
    """`clear_session` would also reset the program's dtype policy and its device distribution."""
    wrong = []
    for path in (ROOT / "keras_preact").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in GLOBAL and path.name not in RESTORED:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}")
    assert wrong == []


def test_help_and_a_mistyped_option_are_answered_without_keras():
    for arguments, status in ((["--help"], 0), (["train", "--help"], 0), (["train", "--dpth", "3"], 2)):
        command = [sys.executable, "-X", "importtime", "-m", "keras_preact", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        imported = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
        assert done.returncode == status
        assert "keras_preact" in imported and not imported & {"keras", "tensorflow", "numpy", "jax", "torch", "rich"}


def test_other_modules_are_imported_on_first_use():
    code = (
        "import keras_preact, sys; assert 'keras_preact.analysis' not in sys.modules;"
        "print(keras_preact.analysis.check_identity_path.__name__, 'training' in dir(keras_preact));"
        "print(hasattr(keras_preact, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["check_identity_path", "True", "False"]


def test_importing_building_and_loading_bundled_data_need_no_network():
    code = """
import importlib, pkgutil, socket, sys

def refuse(*arguments, **options):
    raise SystemExit(f"network: {arguments}")

for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
import keras_preact
for module in pkgutil.walk_packages(keras_preact.__path__, "keras_preact."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from keras_preact import data, models
models.cifar_resnet(8)
data.load_dataset("bundled")
print(sum(name.startswith("keras_preact") for name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page):
    """Blocks run in order and share their names."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)


@pytest.mark.parametrize("page", PAGES)
def test_the_local_links_of_a_page_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("http")]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_can_be_parsed(page):
    """Running them is tested elsewhere."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
        for line in re.findall(r"^(?:\S+=\S+ )*keras-preact (.*)$", block, re.MULTILINE):
            parser().parse_args(shlex.split(line, comments=True))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_test_errors_in_the_readme_are_those_of_the_runs():
    errors = defaultdict(list)
    for path in (ROOT / "results" / "runs").glob("*/paper-cifar10-cifar_resnet-20-*-seed?/run.json"):
        record = json.loads(path.read_text())
        errors[record["config"]["options"]["placement"]].append(record["result"]["test_error"])
    original, ours = errors["original"], errors["full_preactivation"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    means = f"{statistics.mean(original):.2f} % and {statistics.mean(ours):.2f} %"
    assert f"{means} (n = {len(original)} and {len(ours)})" in readme


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hidden", "arguments", "sentence"),
    [
        ("tensorflow", ["info", "cifar_resnet"], "needs tensorflow, which is not installed; pip install"),
        ("matplotlib", ["inspect", "cifar_resnet"], "a report needs matplotlib, which is not installed; pip install"),
        (
            "tensorflow_datasets",
            ["train", "--dataset", "cifar10"],
            "the data set 'cifar10' needs tensorflow_datasets, which is not installed; pip install",
        ),
    ],
)
def test_an_error_about_a_missing_package_names_the_extra(tmp_path, hidden, arguments, sentence):
    code = f"""
import importlib.machinery, sys
find_spec = importlib.machinery.PathFinder.find_spec
def find_others(name, path=None, target=None):
    return None if name.split(".")[0] == {hidden!r} else find_spec(name, path, target)
importlib.machinery.PathFinder.find_spec = find_others
sys.argv[0] = "keras-preact"
from keras_preact.cli import main
raise SystemExit(main({arguments!r}))
"""
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_finished_without_matplotlib(tmp_path, monkeypatch, tiny_dataset):
    from keras_preact.training import Recipe, RunConfig, runs, start

    monkeypatch.setattr(runs, "is_installed", lambda module: module != "matplotlib")
    config = RunConfig(options={"depth": 8}, recipe=Recipe("mine", steps=1, batch_size=8))
    run = start(config, tmp_path / "run", tiny_dataset)
    assert run.record()["status"] == "finished" and not run.curves_path.exists()


def test_only_plots_and_the_catalogue_are_imported_inside_functions():
    """Plots need matplotlib, which is optional. Builders look up trained weights in the catalogue, which uses builders.

    All other imports are at the top.
    """
    found = {
        (path.name, node.module)
        for path in (ROOT / "keras_preact").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "keras_preact"
    }
    assert {module for _, module in found} == {"keras_preact.plots", "keras_preact.models.catalogue"}


def test_no_file_is_long():
    long = {
        path.name: n
        for path in (ROOT / "keras_preact").rglob("*.py")
        if (n := len(path.read_text().splitlines())) > 470
    }
    assert long == {}
