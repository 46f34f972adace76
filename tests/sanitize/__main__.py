"""Runs the tests of the C kernels with AddressSanitizer and UndefinedBehaviorSanitizer: `make sanitize`.

The first read or write outside of what was allocated, or what C leaves undefined, ends the run with its place.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / ".cache" / "sanitized"
LIBRARY = "sanitized_cpu_kernels"
TESTS = (
    "tests/engine/model/test_cpu_kernels.py",
    "tests/engine/model/test_cpu_attention.py",
    "tests/engine/model/test_cpu_linear.py",
    "tests/engine/model/test_cpu_model.py",
    "tests/engine/execution/test_draw.py",
)
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
)


def compiled() -> list[str]:
    """Compile the library as the package does, with what watches it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    (extension,) = settings["ext-modules"]
    BUILT.mkdir(parents=True, exist_ok=True)
    target = BUILT / f"{LIBRARY}.so"
    # The sanitizers' -O1 stands behind the package's -O3. OpenMP stays torch's: compiled for, not linked.
    objects = []
    for source in extension["sources"]:
        objects.append(str(BUILT / f"{Path(source).stem}.o"))
        flags = [*extension["extra-compile-args"], *SANITIZERS, "-fPIC", "-c", source, "-o", objects[-1]]
        subprocess.run(["gcc", *flags], cwd=ROOT, check=True)
    subprocess.run(
        ["gcc", "-shared", "-fsanitize=address,undefined", *objects, "-o", str(target)], check=True
    )
    return objects


def preloaded() -> str:
    """Return the sanitizers' libraries: Python itself is not instrumented, so they have to be there before it."""
    names = "libasan.so", "libubsan.so"
    requested = (["gcc", f"-print-file-name={name}"] for name in names)
    return ":".join(
        subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip() for ask in requested
    )


def main() -> int:
    """Compile, and run the tests."""
    compiled()
    environment = os.environ | {
        "LD_PRELOAD": preloaded(),
        # Python and torch keep memory until they end, and free with their own hands what others allocated.
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(BUILT), str(ROOT)]),
        "PYTHONMALLOC": "malloc",
        "HF_HUB_OFFLINE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.sanitize.plugin",
        "-p",
        "no:faulthandler",
        "--capture=sys",
        *TESTS,
    ]
    return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
