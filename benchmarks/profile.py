"""Where the time of a step goes, by kind of operation, and that of the first step, by what Keras and TensorFlow do.

    python -m benchmarks.profile --out results/benchmarks/2-cores

adds to the series in the folder. TensorFlow runs on one thread, so that the times of operations add up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import read_series, report
from keras_preact.files import write_atomically
from keras_preact.training.provenance import environment

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "ResNet-20, batch 128, training": ("cifar", {"depth": 20, "batch": 128}, "mixed_bfloat16"),
    "ResNet-110, batch 128, training": ("cifar", {"depth": 110, "batch": 128}, "mixed_bfloat16"),
    "ResNet-1001, batch 8, training": ("cifar", {"depth": 1001, "batch": 8}, "mixed_bfloat16"),
    "ImageNet-50, batch 16, training": ("imagenet", {"batch": 16}, "mixed_bfloat16"),
    "ImageNet-50, folded, batch 16, inference": ("imagenet", {"batch": 16, "inference": True}, "float32"),
}
FIRST_STEPS = (20, 164, 1001)
"""Depths of the CIFAR networks whose first step is taken apart."""
KINDS = (
    ("weight gradients", ("Conv2DBackpropFilter",)),
    ("input gradients", ("Conv2DBackpropInput",)),
    ("convolutions", ("Conv2D", "MatMul")),
    ("batch norm and ReLU", ("FusedBatchNorm", "Relu")),
    ("additions", ("Add",)),
)
"""Kinds by words in the type of an operation; the first match counts. Batch norm and ReLU include their gradients."""


def kind_of(operation: str) -> str:
    """Return the kind of an operation from its type.

    >>> kind_of("_MklNativeConv2DBackpropFilter"), kind_of("ReluGrad"), kind_of("Mul")
    ('weight gradients', 'batch norm and ReLU', 'the rest')
    """
    return next((kind for kind, words in KINDS if any(word in operation for word in words)), "the rest")


def profile(function: str, arguments: dict[str, Any], precision: str) -> dict[str, float]:
    """Return the milliseconds of one step by kind of operation."""
    import keras
    import tensorflow as tf

    from benchmarks import subjects

    _use_one_thread()
    keras.config.set_dtype_policy(precision)
    step = getattr(subjects, function)(**arguments)
    for _ in range(3):
        step()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            step()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        return _by_kind(trace)


def _use_one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def profile_first_step(depth: int, batch: int = 8) -> dict[str, float]:
    """Return the seconds of each part of the first training step of a rolled CIFAR network, and of a later step.

    Call it in a new process: TensorFlow does some work only once.
    """
    import tensorflow as tf

    from benchmarks import subjects
    from keras_preact.models import cifar_resnet

    spent: Counter[str] = Counter()

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - began

        return call

    _use_one_thread()
    model = timed("build the network", cifar_resnet)(depth, rolled=None)
    step = timed("compile", subjects.training_step)(model, batch, 32, 10)
    # While TensorFlow traces the step, Python runs these once; a traced step does not call them again.
    model.train_step = timed("trace", model.train_step)
    model.optimizer.apply = timed("trace the weight updates", model.optimizer.apply)
    tf.GradientTape.gradient = timed("trace the gradients", tf.GradientTape.gradient)
    timed("first", step)()
    for _ in range(3):
        timed("later", step)()
    later = spent["later"] / 3
    inner = ("trace the gradients", "trace the weight updates")
    parts = {
        "build the network": spent["build the network"],
        "compile": spent["compile"],
        "trace the forward pass": spent["trace"] - sum(spent[part] for part in inner),
        **{part: spent[part] for part in inner},
        "optimize the graph": spent["first"] - spent["trace"] - later,
        "run the step": later,
    }
    return {part: round(seconds, 2) for part, seconds in parts.items()}


def _by_kind(trace: Path) -> dict[str, float]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(trace.read_bytes())
    times: Counter[str] = Counter()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name, _, operation = plane.event_metadata[event.metadata_id].name.rpartition(":")
                # Operations are "node name:operation type"; "Class::method" is a caller of operations.
                if name and not name.endswith(":") and operation.isidentifier():
                    times[kind_of(operation)] += event.duration_ps / 1e9
    return {kind: round(times[kind], 1) for kind in [*(kind for kind, _ in KINDS), "the rest"]}


def in_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a new process, because TensorFlow accepts a number of threads only before it starts."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.profile", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder of the series (default: %(default)s)"
    )
    file = parser.parse_args().out / "bench.json"
    if not file.exists():
        parser.error(f"{file.parent} has no series; run python -m benchmarks --out {file.parent} first")
    here = environment()
    results = read_series(file, parser, here, "comparisons")
    results["commit_of_profiles"] = here["commit"]
    for name, case in CASES.items():
        results.setdefault("profiles", {})[name] = in_new_process(profile, *case)
        print(name, results["profiles"][name], flush=True)
    for depth in FIRST_STEPS:
        parts = in_new_process(profile_first_step, depth)
        results.setdefault("first_steps", {})[f"ResNet-{depth}, batch 8"] = parts
        print(f"first step of ResNet-{depth}", parts, flush=True)
    write_atomically(file, json.dumps(results, indent=1) + "\n")
    write_atomically(file.parent / "README.md", report(results))


if __name__ == "__main__":
    main()
