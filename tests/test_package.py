"""The package as a whole: its public names, its dependencies, what importing it costs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_preact

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
    tomllib = pytest.importorskip("tomllib", reason="came with Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_yml_has_the_dependencies_of_pyproject():
    """Those for the Python that the environment asks for, each with the same bounds, and no others."""
    project = pyproject()
    every = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    wanted = {line.split(";")[0].strip() for line in every if "python_version <" not in line}
    environment = (ROOT / "environment.yml").read_text()
    assert re.search(r"- python=3\.1[1-9]\b", environment)
    pip = environment.split("- pip:\n")[1].splitlines()
    found = {line.strip().removeprefix("- ") for line in pip if line.strip()}
    assert found == {*wanted, "--editable ."}


def test_the_version_stands_in_one_place_and_in_the_changelog():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", keras_preact.__version__)
    assert "version" not in pyproject()
    assert keras_preact.__version__.split(".dev")[0] in (ROOT / "CHANGELOG.md").read_text()
    assert keras_preact.__version__.split(".dev")[0] in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    import importlib

    found = importlib.import_module(module)
    missing = [name for name in PUBLIC[module] if not hasattr(found, name)]
    assert not missing


def test_importing_the_package_imports_little_beyond_keras():
    """No plotting, no data sets, no notebook machinery for somebody who wants a layer."""
    code = (
        "import sys, keras; before = set(sys.modules); import keras_preact\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before if not name.startswith('_')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not set(eval(done.stdout)) & {"matplotlib", "tensorflow_datasets", "rich", "PIL", "psutil", "IPython"}


def test_nothing_goes_over_the_network_unasked():
    """Every module imported, a network built, the bundled images loaded: no address is looked up, none is called."""
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


def test_the_readmes_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(block, {})


@pytest.mark.parametrize(
    ("run", "begins"),
    [
        ("resnet20-cifar10-short", "| ResNet-20, full"),
        ("paper-cifar10-cifar_resnet-20-original-seed0", "| ResNet-20, original"),
        (
            "paper-cifar10-cifar_resnet-20-full_preactivation-seed0",
            "| ResNet-20, full pre-activation | CIFAR-10 | paper",
        ),
    ],
)
def test_the_readmes_figures_are_those_of_the_run(run, begins):
    (path,) = (ROOT / "results" / "runs").glob(f"*/{run}/run.json")
    record = json.loads(path.read_text())
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(begins))
    hardware = record["environment"]["hardware"]
    assert f"| {record['result']['test_error']:.2f} % |" in row
    assert f"| {record['seconds'] / 60:.0f} min |" in row
    assert f"{hardware['cores']} cores of {hardware['processor']}, {record['config']['precision']} |" in row
    assert record["status"] == "finished" and not record["environment"]["commit"]["changed"]
