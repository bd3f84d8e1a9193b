"""The wheel and the source distribution: what they hold, and that they work without the checkout."""

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from keras_preact.models.catalogue import ADDRESS
from keras_preact.version import __version__

ROOT = Path(__file__).parents[1]
DATA = {"labels.json", "reviews.txt.gz", "weather.csv.gz", "README.md", "LICENSE-vaderSentiment"}
DATA |= {"test-0.webp", *(f"train-{k}.webp" for k in range(4))}


@pytest.fixture(scope="session")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"keras_preact-{__version__}.dist-info/METADATA"))


@pytest.mark.thorough
def test_twine_accepts_both(dist):
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("PASSED") == 2


@pytest.mark.thorough
class TestWheel:
    def test_holds_every_module_and_nothing_else_of_the_repository(self, wheel):
        package = [path for path in files(wheel) if path.parts[0] == "keras_preact"]
        modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "keras_preact").rglob("*.py")}
        modules = {name for name in modules if "/bundled/" not in name}
        assert {path.as_posix() for path in package if path.suffix == ".py"} == modules
        assert {path.parts[0] for path in files(wheel)} == {"keras_preact", f"keras_preact-{__version__}.dist-info"}

    def test_holds_the_data_that_run_time_needs(self, wheel):
        package = [path for path in files(wheel) if path.parts[0] == "keras_preact" and path.suffix != ".py"]
        assert {path.name for path in package if "bundled" in path.parts} == DATA
        others = {path.as_posix() for path in package if "bundled" not in path.parts}
        weights = {p.relative_to(ROOT).as_posix() for p in (ROOT / "keras_preact" / "weights").iterdir()}
        assert others == {"keras_preact/py.typed", "keras_preact/course/nbval.cfg"} | weights

    def test_has_at_most_11_megabytes(self, wheel):
        assert wheel.stat().st_size < 11e6

    def test_metadata_are_complete(self, wheel):
        found = metadata(wheel)
        assert found["Version"] == __version__
        assert found["License-Expression"] == "Apache-2.0"
        assert len(found.get_all("License-File")) == 2
        for word in ("Homepage", "Documentation", "Repository", "Issues", "Changelog"):
            assert any(url.startswith(word + ", https://") for url in found.get_all("Project-URL"))
        assert "Programming Language :: Python :: 3.13" in found.get_all("Classifier")


@pytest.mark.thorough
def test_the_source_distribution_builds_the_package_and_leaves_out_the_rest(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        top = {PurePosixPath(name).parts[1] for name in archive.getnames() if "/" in name}
    assert {"keras_preact", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= top
    assert not top & {"tests", "notebooks", "results", "benchmarks", "docs", "examples", "weights", ".github", ".ci"}


def test_the_address_of_the_repository_is_in_one_place():
    """Every other address in the repository begins with the one in pyproject.toml."""
    urls = dict(re.findall(r'(?m)^(\w+) = "(https://[^"]+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    assert ADDRESS.startswith(urls["Repository"] + "/")
    assert urls["Issues"].startswith(urls["Repository"] + "/")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".md", ".yml", ".toml", ".py", ".cff", ".ipynb"} and path.is_file():
            for found in re.findall(r"github\.com/keras.?preact/[\w.-]+", path.read_text(encoding="utf-8")):
                assert f"https://{found}".removesuffix(".git").startswith(urls["Repository"]), name


EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="session")
def run(wheel, tmp_path_factory):
    target, empty = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("empty")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=empty, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, target, empty

    return run


@pytest.mark.thorough
class TestInstalled:
    """The wheel in a folder of its own, in front of everything else, run from an empty folder."""

    def test_is_what_runs(self, run):
        printed, target, _ = run("-c", "import keras_preact; print(keras_preact.__file__)")
        assert Path(printed.strip()).is_relative_to(target)

    def test_says_its_version(self, run):
        printed, _, _ = run("-m", "keras_preact", "--version")
        assert printed.strip() == f"keras_preact {__version__}"

    def test_runs_the_example_of_the_readme(self, run):
        small = EXAMPLE[1].replace("depth=1001", "depth=29")  # the example builds; its depth decides only the time
        run("-c", small)

    def test_runs_the_demo(self, run):
        printed, _, empty = run("-m", "keras_preact", "demo", "--depth", "8", "--steps", "4", "--out", "runs")
        assert "test error" in printed and list((empty / "runs").rglob("run.json"))
