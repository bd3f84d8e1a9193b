"""Which small faults do the tests of a module notice? Run as a process of its own.

`python tests/mutants.py keras_preact/experiments/depth.py --count 10` changes a comparison, an operator, a constant or
a condition of the module at random, or leaves out a keyword argument, one at a time, in a copy of the repository, and
runs the test file that mirrors the module, with the module's own examples. It prints each change and whether a test
failed, and exits with 1 if fewer than nine in ten were noticed.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
SECONDS = 600
"""A mutant whose tests run longer counts as noticed: it hangs."""


def changes(node):
    """Return functions that each change one thing of a node."""
    found = []
    if isinstance(node, ast.Compare):
        known = [k for k, op in enumerate(node.ops) if type(op) in SWAPS]
        found += [lambda n, k=k: n.ops.__setitem__(k, SWAPS[type(n.ops[k])]()) for k in known]
    if isinstance(node, ast.Call):  # a keyword argument is left out
        found += [lambda n, k=k: n.keywords.pop(k) for k, keyword in enumerate(node.keywords) if keyword.arg]
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPS:
        found.append(lambda n: setattr(n, "op", SWAPS[type(n.op)]()))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.append(lambda n: setattr(n, "operand", _negated(n.operand)))
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        found.append(lambda n: setattr(n, "test", _negated(n.test)))
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        found.append(lambda n: setattr(n, "value", not n.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        found.append(lambda n: setattr(n, "value", n.value + 1))
    return found


def _negated(test):
    return ast.UnaryOp(ast.Not(), test)


def places(tree):
    """Return (number of the node, number of the change) for everything that can be changed; annotations left out."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    nodes = [(k, node) for k, node in enumerate(ast.walk(tree)) if id(node) not in skipped]
    return [(k, which) for k, node in nodes for which in range(len(changes(node)))]


def mutant(tree, place):
    """Return a changed copy of a module's tree, and what was changed, in words."""
    tree = copy.deepcopy(tree)
    node = list(ast.walk(tree))[place[0]]
    before = ast.unparse(node).splitlines()[0]
    changes(node)[place[1]](node)
    return tree, f"line {node.lineno}: {before}  →  {ast.unparse(node).splitlines()[0]}"


STACK = {"rolled", "unrolled", "loop_unit", "initial_values", "variables", "functional", "scan", "remat"}
"""The modules of `layers` that are parts of `UnitStack`, whose tests are in its file."""


MIRRORS = {
    **{f"layers/{name}.py": "layers/test_stack.py" for name in STACK},
    **{f"layers/{name}.py": "layers/test_shortcuts.py" for name in ("projection", "registry")},
    **{f"layers/{name}.py": "layers/test_units.py" for name in ("residual", "dropout")},
    "layers/native.py": "layers/test_preactivation.py",
    "layers/attention.py": "layers/test_transformer.py",
    "layers/graph.py": "layers/test_products.py",
    **{f"analysis/{name}.py": "analysis/test_identity_path.py" for name in ("additions", "identity_rules")},
    **{f"analysis/{name}.py": "analysis/test_propagation.py" for name in ("gradients", "differentiation")},
    "experiments/tables.py": "experiments/test_grid.py",
    "experiments/profiles.py": "experiments/test_page.py",
    "interop/naming.py": "interop/test_keras_applications.py",
    "models/rewiring.py": "models/test_rolling.py",  # what `roll`, `unroll` and `fold` have in common
    **{f"models/saving/{name}.py": "models/saving/test_loading.py" for name in ("allowlist", "archive")},
    "models/saving/named_weights.py": "models/saving/test_weights.py",
    "training/schedules.py": "training/test_recipe.py",
    **{
        f"training/{name}.py": "training/test_trainer.py"
        for name in ("build", "callbacks", "config", "evaluation", "parts", "provenance", "tasks")
    },
    "errors.py": "test_inputs.py",
    "files.py": "training/test_runs.py",
    "startup.py": "test_cli.py",
    "version.py": "test_package.py",
}
"""Test files of modules that have none of their own name."""


def test_file(module):
    """Return the test file of a module: the one in `MIRRORS`, the one of its own name, or that of its package."""
    inner = module.relative_to("keras_preact")
    own = Path(*inner.parts[:-1], f"test_{inner.name}")
    for path in (MIRRORS.get(inner.as_posix(), own), f"test_{inner.parts[0].removesuffix('.py')}.py"):
        if (ROOT / "tests" / path).is_file():
            return Path("tests", path)
    sys.exit(f"no test file is known for {module}; add it to MIRRORS")


def is_noticed(copied, module):
    """Whether a test of the module fails in the copied repository."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    files = [str(path) for path in (test_file(module), module) if (copied / path).exists()]
    environment = {**os.environ, "PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run([*command, *files], cwd=copied, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return True
    if ran.returncode in (4, 5):  # pytest's codes for a wrong command line, and for no tests
        sys.exit(f"{module}: pytest ran no test")
    return ran.returncode != 0


def sample(modules, count, seed):
    """Try `count` mutants of each module; yield (module, change, whether it was noticed)."""
    chooser = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder)
        for name in ("keras_preact", "tests", "results", "notebooks", "pyproject.toml", "README.md"):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, copied / name)
        for module in modules:
            source = (ROOT / module).read_text(encoding="utf-8")
            tree = ast.parse(source)
            every = places(tree)
            (copied / module).write_text(ast.unparse(tree), encoding="utf-8")
            if is_noticed(copied, module):
                sys.exit(f"the tests of {module} fail although nothing is changed")
            for place in chooser.sample(every, min(count, len(every))):
                changed, what = mutant(tree, place)
                (copied / module).write_text(ast.unparse(changed), encoding="utf-8")
                yield module, what, is_noticed(copied, module)
            (copied / module).write_text(source, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=10, help="mutants a module (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    noticed = []
    for module, what, found in sample(options.modules, options.count, options.seed):
        noticed.append(found)
        print(f"{'noticed ' if found else 'SURVIVED'} {module} {what}", flush=True)
    print(f"{sum(noticed)} of {len(noticed)} noticed")
    return int(sum(noticed) < 0.9 * len(noticed))


if __name__ == "__main__":
    sys.exit(main())
