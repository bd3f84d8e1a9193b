"""A subject in its own process, which builds the network, runs the first step, and then runs steps on request.

`Worker` starts the process and requests steps; `main` runs in it and answers in JSON lines.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Worker:
    """A subject in its own process."""

    def __init__(
        self,
        function: str,
        arguments: dict[str, Any],
        precision: str,
        backend: str | None = None,
        threads: int | None = None,
    ) -> None:
        spec = {"subject": function, "arguments": arguments, "precision": precision}
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        settings = {"TF_CPP_MIN_LOG_LEVEL": "3", **(dict.fromkeys(names, str(threads)) if threads else {})}
        settings |= {"KERAS_BACKEND": backend} if backend else {}
        # A file, because an unread pipe would fill and block the worker. `stop` closes it.
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **settings},
        )
        self.start = self.answer()

    def steps(self, count: int) -> dict[str, float]:
        self.ask(count)
        return self.answer()

    def ask(self, count: int) -> None:
        """Request steps without waiting; `answer` waits for them."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(self.log.read()[-2000:])
        return json.loads(line)

    def stop(self) -> None:
        self.process.communicate("")
        self.log.close()


def main() -> None:
    spec = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    step, measured = first_step(spec)
    answer(answers, **measured)
    for line in sys.stdin:
        count = int(line)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        answer(answers, seconds=statistics.median(times), peak_gib=peak_gib())


def first_step(spec: dict[str, Any]) -> tuple[Callable[[], Any], dict[str, float]]:
    """Import the libraries, then time the building of the network and its first step together."""
    from benchmarks import subjects

    if spec["subject"].endswith("_torch"):
        import torch  # noqa: F401
    else:
        import keras

        import keras_preact  # noqa: F401

        keras.config.set_dtype_policy(spec["precision"])
    began = time.perf_counter()
    step = getattr(subjects, spec["subject"])(**spec["arguments"])
    step()
    seconds = time.perf_counter() - began
    flops = getattr(step, "flops", None)
    return step, {"first_step": seconds, **({} if flops is None else {"flops": flops})}


def peak_gib() -> float:
    """Peak resident memory of this process, in GiB.

    On Linux, `getrusage` includes the process from which this one was forked; /proc/self/status does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def answer(file: Any, **values: float) -> None:
    file.write(json.dumps(values) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
