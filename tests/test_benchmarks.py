"""The benchmarks compare like with like, and say what they measured."""

import argparse
import dataclasses
import inspect
import itertools
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest

from benchmarks import __main__ as bench
from benchmarks import fast_torch, int8, profile, report, subjects
from benchmarks.comparisons import Comparison, Subject, comparisons
from benchmarks.subjects import plain_network
from keras_preact.data import load_dataset
from keras_preact.models import Classification, Series, cifar_resnet, preact_resnet50, prenorm_transformer
from keras_preact.models.catalogue import catalogue
from keras_preact.training import get_recipe

ROOT = Path(__file__).parents[1]


def sizes(model):
    return sorted(int(np.prod(variable.shape)) for variable in model.trainable_variables)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [20, 164])
def test_the_plain_network_is_the_same_network(depth):
    plain, ours = plain_network(depth), cifar_resnet(depth, rolled=False)
    assert sizes(plain) == sizes(ours)
    assert sum(sizes(plain)) == {20: 272_282, 164: 1_703_258}[depth]


HARDWARE = {"cores": 2, "processor": "P", "memory_gib": 16.0, "accelerators": []}
ENCODER = {"depth": 2, "dim": 16, "heads": 2, "length": 8}


@pytest.mark.parametrize("package", ["keras_hub", "torch"])
def test_the_encoders_of_others_have_the_same_parameters(package):
    pytest.importorskip(package)
    model = prenorm_transformer(Series(8, 16), Classification(10), depth=2, dim=16, heads=2)
    if package == "torch":
        count = sum(parameter.numel() for parameter in subjects.torch_encoder(**ENCODER).parameters())
    else:
        count = subjects.keras_hub_network(**ENCODER).count_params()
    assert count == model.count_params()


@pytest.mark.thorough
def test_it_lists_its_comparisons():
    command = [sys.executable, "-m", "benchmarks", "--list", "--only", "start"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    assert listed[:2] == ["start 20", "start 56"]
    assert listed[5] == "start 1001"


@pytest.mark.thorough
def test_workers_answer(tmp_path):
    size = {"depth": 8, "batch": 2}
    comparison = Comparison("start 8", (Subject("ours", "cifar", size),), restarts=True, images=2)
    values = bench.measure(comparison, rounds=1)
    assert set(values["ours"]) == {"first_step", "step", "peak_gib"}
    assert all(value > 0 for row in values["ours"].values() for value in row)


@pytest.mark.thorough
def test_runs_at_once_take_their_steps_side_by_side():
    """Their step ends when both have taken one, each with a thread of its own."""
    from benchmarks.worker import Worker

    size = {"depth": 8, "batch": 2}
    worker = Worker("cifar_at_once", {**size, "runs": 2, "precision": "float32"}, "float32")
    try:
        children = psutil.Process(worker.process.pid).children()
        settings = [child.environ()["TF_NUM_INTRAOP_THREADS"] for child in children]
        assert settings == ["1", "1"] and worker.steps(2)["seconds"] > 0
    finally:
        worker.stop()
    _, left = psutil.wait_procs(children, timeout=60)
    assert left == []


@pytest.mark.thorough
def test_a_worker_that_fails_says_how():
    comparison = Comparison("none", (Subject("ours", "cifar", {"depth": 21, "batch": 2}),), restarts=True)
    with pytest.raises(RuntimeError, match="6n\\+2"):
        bench.measure(comparison, rounds=1)


def results(**comparisons):
    hardware = {"cores": 2, "processor": "P", "memory_gib": 1, "accelerators": []}
    environment = {"hardware": hardware, "versions": {"keras": "3"}, "commit": None}
    entries = {
        name: {"commit": None, "rounds": 3, "images": 8, "values": values} for name, values in comparisons.items()
    }
    return {"environment": environment, "comparisons": entries}


def test_the_report_gives_medians_and_ratios():
    text = report.report(results(a={"ours": {"step": [1.0, 2.0, 9.0]}, "theirs": {"step": [4.0, 5.0, 3.0]}}))
    assert "| ours | 2 | 1.00 | 4 |" in text
    assert "| theirs | 4 | 2.00 | 2 |" in text
    assert "fit ÷ bare step" not in text and "Defaults" not in text  # of comparisons that are not in the series


def test_a_claim_takes_the_best_of_the_others_and_says_whether_it_holds():
    made_up = results(a={"ours": {"step": [1.0]}, "x": {"step": [3.0]}, "y": {"step": [1.5]}})
    claim = report.Claim("faster", "a", "x | y", "ours", at_least=1.5)
    assert claim.ratio(made_up) == report.Ratio(1.5, 1.5, 1.5)
    assert report.Claim("smaller", "a", "x", "ours", under_comparison="b").ratio(made_up) is None


def test_a_claim_holds_if_all_rounds_satisfy_it():
    made_up = results(a={"ours": {"step": [1.0, 1.0, 1.0]}, "x": {"step": [3.0, 1.0, 2.0]}})
    ratio = report.Claim("faster", "a", "x", "ours").ratio(made_up)
    assert ratio == report.Ratio(2.0, 1.0, 3.0) and ratio.range == "1.00 to 3.00"
    bounds = {"holds": {"at_least": 1.0}, "undecided": {"at_least": 1.1}, "does not hold": {"at_least": 3.1}}
    bounds |= {"holds ": {"at_most": 3.0}, "undecided ": {"at_most": 2.9}, "does not hold ": {"at_most": 0.9}}
    for verdict, bound in bounds.items():
        assert report.Claim("faster", "a", "x", "ours", **bound).verdict(ratio) == verdict.strip()
    assert report.Ratio(2.0, 2.0, 2.0).range == ""  # one round


def test_every_claim_is_about_something_that_is_measured():
    known = {
        c.name: {s.name for s in c.subjects} for c in comparisons("mixed_bfloat16", torch=True, hub=True, jax=True)
    }
    for claim in (*report.CLAIMS, *(ratio for default in report.DEFAULTS for ratio in default.ratios)):
        assert set(claim.over.split(" | ")) <= known[claim.comparison]
        assert set(claim.under.split(" | ")) <= known[claim.under_comparison or claim.comparison]


def test_every_subject_can_be_called_as_it_is_compared():
    for comparison in comparisons("float32", torch=True, hub=True, jax=True):
        for subject in comparison.subjects:
            inspect.signature(getattr(subjects, subject.function)).bind(**subject.arguments)


def test_results_on_record_are_whole():
    for path in ROOT.glob("results/benchmarks/*/bench.json"):
        assert report.report(json.loads(path.read_text())) == (path.parent / "README.md").read_text()


def test_the_readme_quotes_the_results_on_record():
    """Each of its ratios is on the generated page, number and all."""
    text = (ROOT / "README.md").read_text().split("## How fast it is")[1].split("\n## ")[0]
    quoted = [line for line in text.splitlines() if line.startswith("| ") and "measured" not in line]
    page = (ROOT / "results/benchmarks/2-cores/README.md").read_text()
    assert len(quoted) == 5
    assert [line for line in quoted if line not in page] == []


@pytest.mark.thorough
def test_a_profile_has_every_kind_and_adds_up():
    """A network of convolutions spends its time on them, forward and backward."""
    times = profile.in_new_process(profile.profile, "cifar", {"depth": 8, "batch": 16}, "float32")
    assert set(times) == {*(kind for kind, _ in profile.KINDS), "the rest"}
    assert min(times[kind] for kind in ("weight gradients", "input gradients", "convolutions")) > 0
    assert sum(times.values()) < 60_000
    text = report.report({**results(), "profiles": {"net": {"convolutions": 75.0, "the rest": 25.0}}})
    assert "| net | 75 | 25 | 100 |" in text


@pytest.mark.thorough
def test_every_part_of_a_first_step_takes_time():
    """A part that is not measured, or traced twice, would show as 0 or as a negative rest."""
    parts = profile.in_new_process(profile.profile_first_step, 8, 4)
    assert min(parts.values()) > 0 and sum(parts.values()) < 60
    assert parts["run the step"] < parts["optimize the graph"]
    total = f"{sum(parts.values()):.1f}"
    text = report.report({**results(), "first_steps": {"net": parts}})
    assert f"| net | {parts['build the network']:.2f} | {parts['compile']:.2f} | " in text and f" | {total} |" in text


def test_the_guide_to_formats_quotes_the_results_on_record():
    record = json.loads((ROOT / "results/benchmarks/2-cores/bench.json").read_text())["comparisons"]
    names = [
        "serving 110 batch 1",
        "serving 110 batch 16",
        "serving ImageNet-50 batch 1",
        "serving ImageNet-50 batch 16",
    ]
    seconds = {name: {k: statistics.median(v["step"]) for k, v in record[name]["values"].items()} for name in names}
    text = (ROOT / "docs/weights.md").read_text(encoding="utf-8")
    for runtime in seconds[names[0]]:
        ratios = [f"{at['TensorFlow'] / at[runtime]:.2f}" if runtime in at else "" for at in seconds.values()]
        assert f"| {runtime} | {' | '.join(ratios)} |" in text
    # What the guide concludes from them.
    fastest = [min(at, key=at.__getitem__) for at in seconds.values()]
    assert fastest == ["OpenVINO, bfloat16"] * 4
    for small, at in zip((True, False, False, False), seconds.values(), strict=True):
        best = min(v for k, v in at.items() if k != "OpenVINO, bfloat16")
        assert at["ONNX Runtime"] <= 1.05 * best
        assert (at["TensorFlow"] > 4 * best) == small
    frozen = [at["TensorFlow"] / at["TensorFlow, frozen"] for at in seconds.values()]
    assert min(frozen[::2]) > 1.1 and max(frozen) < 1.25 and max(frozen[1::2]) < 1


def test_a_share_compares_operations_per_second():
    """Half the time for a quarter of the operations is half the rate."""
    values = {"ours": {"step": [1.0], "flops": [100.0]}, report.MATRIX: {"step": [2.0], "flops": [400.0]}}
    made_up = results(a=values)
    share = report.Share("share", "a", "ours", report.MATRIX, at_least=0.5)
    assert share.ratio(made_up) == report.Ratio(0.5, 0.5, 0.5)
    assert report.Share("share", "a", "ours", "theirs").ratio(made_up) is None
    row = next(line for line in report.report(made_up).splitlines() if line.startswith(f"| {report.MATRIX}"))
    assert row.endswith("|  |")  # it has no images


@pytest.mark.thorough
def test_the_operations_of_a_subject_are_those_of_its_network():
    """A training step has three forward passes' worth; folding and inference do not change the count."""
    from keras_preact.models.summary import multiply_adds

    network = preact_resnet50()
    step, inference = subjects.imagenet(2), subjects.imagenet(2, inference=True)
    assert inference.flops == 4 * multiply_adds(network) and step.flops == 3 * inference.flops


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_the_matrix_product_waits_for_a_number_in_both_precisions(precision):
    keras.config.set_dtype_policy(precision)
    product = subjects.matrix_product(64)
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(64, 64)) for _ in range(2))
    assert product.flops == 2 * 64**3
    np.testing.assert_allclose(product(), (a @ b)[0, 0], rtol=1e-5 if precision == "float32" else 0.05)


def test_the_short_series_leaves_out_what_takes_long():
    short = [c.name for c in comparisons("float32", torch=True, hub=True, jax=True) if c.is_short]
    assert "start 20" in short and "ImageNet-50 training float32" in short
    assert not {"start 1001", "memory 1001", "step 1001", "serving 110 batch 1"} & set(short)


def test_the_page_of_int8_shows_what_was_measured():
    row = {
        "images": 10000,
        "changed": 25,
        "float32": {"test_error": 9.5, "bytes": 400, "cpu_seconds": 0.3},
        "int8": {"test_error": 9.75, "bytes": 100, "cpu_seconds": 0.1},
    }
    here = {"hardware": HARDWARE, "versions": {"keras": "3"}}
    page = int8.report({"environment": here, "networks": {"net": row}})
    assert page.splitlines()[-1] == "| net | 9.50 | 9.75 | 0.25 | 0.25 | 3.00 |"
    assert set(int8.NETWORKS) <= set(catalogue())


def test_the_guide_says_what_int8_costs_as_measured():
    networks = json.loads((ROOT / "results/benchmarks/2-cores-int8/int8.json").read_text())["networks"].values()
    guide = (ROOT / "docs/weights.md").read_text(encoding="utf-8")
    sizes = [f"{row['int8']['bytes'] / row['float32']['bytes']:.2f}" for row in networks]
    speeds = [f"{row['float32']['cpu_seconds'] / row['int8']['cpu_seconds']:.1f}" for row in networks]
    growth = sorted(f"{row['int8']['test_error'] - row['float32']['test_error']:.2f}" for row in networks)
    changed = [f"{100 * row['changed'] / row['images']:.1f}" for row in networks]
    assert f"({min(sizes)} to {max(sizes)})" in guide and f"({min(speeds)} to {max(speeds)} times as fast)" in guide
    assert f"by {growth[0]}, {growth[1]} and {growth[2]} points" in guide
    assert f"{min(changed)} to {max(changed)} % of the predictions change" in guide


def test_the_network_of_the_recipe_fast_is_the_same_in_pytorch():
    pytest.importorskip("torch")
    ours = cifar_resnet(fast_torch.DEPTH, widen_factor=fast_torch.WIDTH)
    theirs = [tuple(parameter.shape) for parameter in fast_torch.network().parameters()]
    assert sorted(map(math.prod, theirs)) == sizes(ours)


def test_crops_in_pytorch_are_parts_of_the_padded_image():
    torch = pytest.importorskip("torch")
    images = torch.arange(2.0 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    padded = np.pad(images.numpy(), [(0, 0), (0, 0), (1, 1), (1, 1)])
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(50):
        for k, crop in enumerate(fast_torch.augmented(images, 1, generator).numpy()):
            for i, j, flip in itertools.product(range(3), range(3), (1, -1)):
                if (padded[k, :, i : i + 4, j : j + 4][..., ::flip] == crop).all():
                    seen.add((i, j, flip))
    assert len(seen) == 18


@pytest.mark.thorough
def test_a_run_in_pytorch_follows_the_recipe_and_learns():
    pytest.importorskip("torch")
    data = load_dataset("bundled")
    recipe = dataclasses.replace(get_recipe("fast"), batch_size=64).with_steps(186)
    run = fast_torch.Run(recipe, data, seed=0, compiles=False)
    decayed, others = run._optimizer.param_groups
    assert decayed["weight_decay"] == 5e-4 and others["weight_decay"] == 0
    assert all(p.ndim == 1 for p in others["params"]) and decayed["nesterov"]
    errors = run.test_errors()
    assert len(errors) == 3 and errors[-1] < 75  # chance: 90
    assert decayed["lr"] == others["lr"] == run.rates[-1] and max(run.rates) == pytest.approx(0.4, rel=0.05)


def test_a_run_in_pytorch_reduces_its_images_once_per_size(monkeypatch):
    pytest.importorskip("torch")
    data = load_dataset("bundled")
    recipe = dataclasses.replace(get_recipe("fast"), batch_size=1000).with_steps(40)
    sizes = []

    def at_scale(dataset, scale):
        sizes.append(scale)
        return dataset

    monkeypatch.setattr(type(data), "at_scale", at_scale)
    monkeypatch.setattr(fast_torch.Run, "_train", lambda run, images, labels, rate: None)
    monkeypatch.setattr(fast_torch.Run, "_test_error", lambda run, images: 90.0)
    assert len(fast_torch.Run(recipe, data, seed=0, compiles=False).test_errors()) == 10
    assert sizes == [0.5, 0.75, 1.0]


def test_the_page_of_the_recipe_in_pytorch_shows_what_was_measured():
    runs = {str(k): {"test_error": 9.0 + k, "cpu_seconds": 600 * (k + 1), "seconds": 300} for k in range(3)}
    here = {"hardware": HARDWARE, "versions": {"torch": "2"}}
    page = fast_torch.report({"environment": here, "runs": runs})
    assert "10.00 ± 1.00 % (n = 3). Median cost: 20.0 core-minutes." in page
    assert page.splitlines()[-1] == "| 2 | 11.00 | 30.0 | 5.0 |"


def test_a_series_goes_on_only_where_it_was_begun(tmp_path, capsys):
    file, parser = tmp_path / "bench.json", argparse.ArgumentParser(prog="bench")
    here = {"versions": {"keras": "3"}, "hardware": {"cores": 2}, "commit": "a"}
    begun = report.read_series(file, parser, here, "comparisons")
    assert begun == {"environment": here, "comparisons": {}}
    file.write_text(json.dumps(begun | {"comparisons": {"step": 1}}))
    assert report.read_series(file, parser, here | {"commit": "b"}, "comparisons")["comparisons"] == {"step": 1}
    for other in ({"hardware": {"cores": 4}}, {"versions": {"keras": "4"}}, {"onednn": False}):
        with pytest.raises(SystemExit):
            report.read_series(file, parser, here | other, "comparisons")
        assert "choose another --out" in capsys.readouterr().err


def test_a_single_depth_is_not_drawn(tmp_path):
    values = {"rolled": {key: [1.0, 2.0] for key in ("first_step", "step", "peak_gib")}}
    for depths in ((20,), (20, 1001)):
        results = {"comparisons": {f"start {depth}": {"values": values} for depth in depths}}
        report.draw(results, tmp_path / "depth.png")
        assert (tmp_path / "depth.png").exists() == (len(depths) > 1)


def test_the_guide_to_depth_quotes_the_first_step_on_record():
    record = json.loads((ROOT / "results/benchmarks/2-cores/bench.json").read_text())["comparisons"]["start 1001"]
    plain, rolled = (statistics.median(record["values"][name]["first_step"]) for name in ("plain Keras", "rolled"))
    text = " ".join((ROOT / "docs/depth.md").read_text(encoding="utf-8").split())
    assert f"completes its first step after {plain:.0f} s in plain Keras layers, and after {rolled:.1f} s in" in text
    first, later = (statistics.median(record["values"]["default"][key]) for key in ("first_step", "step"))
    assert f"its first step of 8 images after {first:.1f} s, and a later step takes {later:.1f} s" in text
