"""The comparisons, and the subjects of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DEPTHS = (20, 56, 110, 164, 326, 1001)
SHORT_DEPTHS = (20, 56, 110)
"""Depths at which plain Keras starts within a minute."""
MATRIX = "matrix product"
"""The subject whose rate bounds that of networks."""
PRECISIONS = ("float32", "mixed_bfloat16")


@dataclass(frozen=True)
class Subject:
    """One row of a comparison: a function of `subjects.py`, its arguments, and the settings of its process.

    `backend` is Keras's; by default the current one. `threads` limits the threads; by default there is no limit.
    """

    name: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    precision: str = "float32"
    backend: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Comparison:
    """Subjects that are measured in turn. With `restarts`, each round is a new process, to measure the first step."""

    name: str
    subjects: tuple[Subject, ...]
    restarts: bool = False
    images: int = 0
    """Images per step, if the result is images per second."""
    unit: str = "images"
    """The unit that `images` counts."""
    also: tuple[str, ...] = ()
    """Packages that only this comparison uses; their versions are recorded with it."""
    rounds: int | None = None
    """Number of rounds that suffices. `None`: unknown."""
    is_short: bool = True
    """Whether `make bench` runs it; if not, only `--full` or `--only` does."""


def comparisons(
    default: str, torch: bool, hub: bool = False, jax: bool = False, export: bool = False
) -> Iterator[Comparison]:
    """Yield all comparisons.

    Args:
        default: precision of the rows named "default": the one in which `keras-preact train` trains on this machine.
        torch, hub, jax, export: whether PyTorch, keras_hub, JAX and the runtimes of the extra "export" are installed.
    """
    for depth in DEPTHS:
        yield _start(depth, default, torch)
    yield _memory(1001, 64, default)
    for batch in (8, 32, 128):
        yield _threads(110, batch, default)
    # The shallowest network that is rolled by default: the smallest gain at the start, against any cost per step.
    yield _steps("step 56", 56, 128, dict.fromkeys(PRECISIONS, ("rolled", "unrolled")))
    yield _steps("step 164", 164, 32, {"float32": FORMS, "mixed_bfloat16": FORMS})
    # Two comparisons, because the subjects do not fit into memory together.
    yield _steps("step 1001", 1001, 8, {"float32": FORMS, "mixed_bfloat16": ("rolled",)})
    yield _steps("step 1001 mixed_bfloat16", 1001, 8, {"mixed_bfloat16": ("rolled", "unrolled", "rolled, one thread")})
    for depth in (20, 110):
        yield _throughput(depth, 128, torch)
        if torch:
            yield _on_torch(depth, 32)
    if jax:
        yield _on_jax(110, 32)
    yield _at_once(110, 128, default)
    for kind in ("training", "inference"):
        for precision in PRECISIONS:
            yield _imagenet(kind, precision)
    for network in ("cifar", "imagenet") if export else ():
        for batch in (1, 16):
            yield _serving(network, batch, torch)
    yield _fit(20, 100, 60, default)
    yield _xla(20, 128, default)
    yield _deterministic(20, 128, default)
    yield _encoders(hub, torch)
    yield _encoder_start(48, default)


FORMS = ("rolled", "unrolled", "plain Keras")


def _form(form: str, size: dict[str, int], precision: str = "float32", name: str | None = None) -> Subject:
    """Return a CIFAR network in one form as a subject."""
    if form == "plain Keras":
        return Subject(name or form, "cifar_plain", size, precision)
    options: dict[str, dict[str, Any]] = {
        "default": {},
        "default, one thread": {"intra_op_threads": 1},
        "default, optimizer not built": {"builds_optimizer": False},
        "rolled, remat": {"rolled": True, "remat": True},
        "rolled, one thread": {"rolled": True, "intra_op_threads": 1},
    }
    return Subject(name or form, "cifar", {**size, **options.get(form, {"rolled": form == "rolled"})}, precision)


def _start(depth: int, default: str, torch: bool) -> Comparison:
    size = {"depth": depth, "batch": 8}
    subjects = [_form(form, size, default) for form in ("default", "default, optimizer not built")]
    subjects += [_form(form, size) for form in FORMS]
    subjects.append(Subject("plain Keras, optimizer built", "cifar_plain", {**size, "builds_optimizer": True}))
    if depth == 1001:
        subjects.append(_form("rolled, remat", size))
        subjects.append(_form("rolled, remat", size, default, "default, remat"))
    if torch:
        subjects.append(_torch("PyTorch", depth, 8))
    return Comparison(f"start {depth}", tuple(subjects), restarts=True, is_short=depth in SHORT_DEPTHS)


def _memory(depth: int, batch: int, default: str) -> Comparison:
    size = {"depth": depth, "batch": batch}
    subjects = tuple(_form(form, size, default) for form in ("rolled", "rolled, remat", "unrolled"))
    # Memory is reproducible to a percent.
    return Comparison(f"memory {depth}", subjects, restarts=True, rounds=1, is_short=False)


def _threads(depth: int, batch: int, default: str) -> Comparison:
    """TensorFlow's default, each operation on all cores, against several operations at once on one thread each."""
    size = {"depth": depth, "batch": batch}
    subjects = tuple(_form(form, size, default) for form in ("default", "default, one thread"))
    return Comparison(f"threads {depth} batch {batch}", subjects, images=batch)


def _steps(name: str, depth: int, batch: int, forms: dict[str, tuple[str, ...]]) -> Comparison:
    size = {"depth": depth, "batch": batch}
    pairs = [(form, precision) for precision, chosen in forms.items() for form in chosen]
    subjects = tuple(_form(f, size, p, f"{f}, {p}") for f, p in pairs)
    return Comparison(name, subjects, images=batch, is_short=depth < 1001)


def _throughput(depth: int, batch: int, torch: bool) -> Comparison:
    size = {"depth": depth, "batch": batch}
    subjects = [_form(form, size, p, f"{form}, {p}") for form in ("default", "plain Keras") for p in PRECISIONS]
    if torch:
        subjects.append(_torch("PyTorch, compiled, bfloat16", depth, batch, compiled=True, bfloat16=True))
    return Comparison(f"throughput {depth}", tuple(subjects), images=batch)


def _on_torch(depth: int, batch: int) -> Comparison:
    """The same network in plain PyTorch and in Keras on PyTorch, on one thread."""
    size = {"depth": depth, "batch": batch}
    subjects = (_torch("PyTorch", depth, batch), _form("default", size), _form("plain Keras", size))
    on_torch = (dataclasses.replace(subject, backend="torch", threads=1) for subject in subjects)
    return Comparison(f"on PyTorch {depth}", tuple(on_torch), images=batch)


def _on_jax(depth: int, batch: int) -> Comparison:
    size = {"depth": depth, "batch": batch}
    subjects = tuple(dataclasses.replace(_form(form, size), backend="jax") for form in ("rolled", "unrolled"))
    return Comparison(f"on JAX {depth}", subjects, restarts=True, also=("jax",), is_short=False)


def _at_once(depth: int, batch: int, default: str) -> Comparison:
    """Two steps of one run on all cores, against one step of each of two parallel runs with one thread each."""
    size = {"depth": depth, "batch": batch}
    subjects = (
        Subject("one run, all threads", "cifar_twice", size, default),
        Subject("two runs, one thread each", "cifar_at_once", {**size, "runs": 2, "precision": default}, default),
    )
    return Comparison(f"at once {depth}", subjects, images=2 * batch)


def _imagenet(kind: str, precision: str) -> Comparison:
    size = {"batch": 16, "inference": kind == "inference"}
    subjects = (
        Subject("default", "imagenet", size, precision),
        Subject("default, stride in the last unit", "imagenet", {**size, "stride_in": "last"}, precision),
        Subject("keras.applications", "imagenet_applications", size, precision),
        Subject(MATRIX, "matrix_product", {"size": 4096}, precision),
    )
    return Comparison(f"ImageNet-50 {kind} {precision}", subjects, images=16)


RUNTIME_PACKAGES = ("tf2onnx", "onnxruntime", "openvino", "ai_edge_litert")
"""Modules that the comparisons "serving" import."""
RUNTIMES = (
    "TensorFlow",
    "TensorFlow, frozen",
    "ONNX Runtime",
    "OpenVINO, float32",
    "OpenVINO, bfloat16",
    "LiteRT",
)


def _serving(network: str, batch: int, torch: bool) -> Comparison:
    """A folded network in the runtimes that it can be exported to; each uses all cores."""
    size = {"network": network, "batch": batch}
    subjects = [Subject(runtime, "served", {**size, "runtime": runtime}) for runtime in RUNTIMES]
    if torch and network == "cifar":
        block, n = _units(110)
        subjects.append(Subject("PyTorch, compiled", "cifar_torch_served", {"block": block, "n": n, "batch": batch}))
    name = {"cifar": "110", "imagenet": "ImageNet-50"}[network]
    packages = ("onnxruntime", "openvino", "ai-edge-litert")
    title = f"serving {name} batch {batch}"
    return Comparison(title, tuple(subjects), images=batch, also=packages, is_short=False)


def _units(depth: int) -> tuple[str, int]:
    from keras_preact.models import cifar_units

    return cifar_units(depth)


def _fit(depth: int, batch: int, steps: int, default: str) -> Comparison:
    size = {"depth": depth, "batch": batch, "steps": steps}
    subjects = (
        Subject("fit", "fit", size, default),
        Subject("fit, 10 steps per execution", "fit", {**size, "steps_per_execution": 10}, default),
        Subject("bare step", "bare", size, default),
    )
    return Comparison(f"fit {depth}", subjects, images=batch * steps)


def _xla(depth: int, batch: int, default: str) -> Comparison:
    size = {"depth": depth, "batch": batch}
    choices = {"without": False, "XLA": True}
    subjects = tuple(Subject(name, "cifar", {**size, "xla": xla}, default) for name, xla in choices.items())
    return Comparison(f"XLA {depth}", subjects, images=batch)


def _deterministic(depth: int, batch: int, default: str) -> Comparison:
    size = {"depth": depth, "batch": batch}
    choices = {"default": False, "deterministic": True}
    subjects = tuple(Subject(name, "cifar", {**size, "deterministic": on}, default) for name, on in choices.items())
    return Comparison(f"deterministic {depth}", subjects, images=batch)


ENCODER = {"dim": 256, "heads": 4, "length": 128}


def _encoders(hub: bool, torch: bool) -> Comparison:
    size = {"depth": 6, "batch": 16, **ENCODER}
    subjects = [Subject(f"default, {p}", "encoder", size, p) for p in PRECISIONS]
    if hub:
        subjects += [Subject(f"keras_hub, {p}", "encoder_keras_hub", size, p) for p in PRECISIONS]
    if torch:
        kinds = {"float32": {"bfloat16": False}, "bfloat16": {"bfloat16": True}}
        kinds["compiled, bfloat16"] = {"bfloat16": True, "compiled": True}
        subjects += [Subject(f"PyTorch, {n}", "encoder_torch", {**size, **k}) for n, k in kinds.items()]
    return Comparison(
        "encoder 6", tuple(subjects), images=16 * ENCODER["length"], unit="tokens", also=("keras-hub",) if hub else ()
    )


def _encoder_start(depth: int, default: str) -> Comparison:
    size = {"depth": depth, "batch": 8, **ENCODER}
    forms: dict[str, dict[str, Any]] = {"default": {}, "unrolled": {"rolled": False}}
    subjects = tuple(Subject(name, "encoder", {**size, **form}, default) for name, form in forms.items())
    return Comparison(f"encoder start {depth}", subjects, restarts=True, rounds=2)  # the ratio is about ten


def _torch(name: str, depth: int, batch: int, compiled: bool = False, bfloat16: bool = False) -> Subject:
    block, n = _units(depth)
    arguments = {"block": block, "n": n, "batch": batch, "compiled": compiled, "bfloat16": bfloat16}
    return Subject(name, "cifar_torch", arguments)
