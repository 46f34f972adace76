"""`make test-pythons`: what needs no torch, on every Python from 3.11 on that is there.

Each has an environment of its own under `.cache/pythons`, without torch and what only the engine's process imports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
MADE = ROOT / ".cache" / "pythons"
PROJECTS = ("midstream", "distributions/gateway", ".")
HEAVY = frozenset({"torch", "transformers", "safetensors", "midstream", "midstream-gateway"})
TOOLS = ("hypothesis", "pytest", "pytest-", "pyyaml", "setuptools", "trustme", "pyte")
"""Of the group `dev`: what the tests below import."""
TESTS = (
    *("tests/midstream/test_tool_calls.py", "tests/midstream/test_client.py", "tests/midstream/test_main.py"),
    *(
        "tests/connections/protocol",
        "tests/connections/limits",
        "tests/connections/middleware",
        "tests/app/test_settings.py",
    ),
    *("tests/sessions/turn", "tests/sessions/filters", "tests/deploy/test_backend.py", "tests/examples"),
)
NEWEST = 20


def main() -> int:
    """Test on each; return 1 where one failed, or where there is none."""
    ended = {label: _tested(label, python) for label, python in found()}
    for label, status in ended.items():
        print(f"Python {label}: {'passed' if status == 0 else 'FAILED'}")
    return 0 if ended and not any(ended.values()) else 1


def found() -> Iterator[tuple[str, str]]:
    """The Pythons that run, by their version: those on PATH, then pyenv's."""
    for minor in range(11, NEWEST):
        pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for command in (shutil.which(f"python3.{minor}"), *map(str, pyenv)):
            if command is not None and _runs(command):
                yield f"3.{minor}", command
                break


def _runs(python: str) -> bool:
    looked = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False)
    return looked.returncode == 0


def _tested(label: str, python: str) -> int:
    home = MADE / label
    program, stamp = home / "bin" / "python", home / ".installed"
    requested = "\n".join(requirements())
    if not stamp.is_file() or stamp.read_text() != requested:
        print(f"Python {label}: installing into {home}", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
        pins = home / "constraints.txt"
        pins.write_text((ROOT / "constraints.txt").read_text())
        pip = [str(program), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile", "--quiet"]
        subprocess.run([*pip, "--constraint", str(pins), *requirements()], check=True)
        local = ["--no-deps", "--no-build-isolation", *(f"--editable={path}" for path in PROJECTS)]
        subprocess.run([*pip, *local], cwd=ROOT, env=os.environ | {"CC": "false"}, check=True)
        stamp.write_text(requested)
    print(f"Python {label}: testing", flush=True)
    command = [str(program), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def requirements() -> list[str]:
    """What the tests need of the three projects."""
    projects = [tomllib.loads((ROOT / path / "pyproject.toml").read_text()) for path in PROJECTS]
    needed = [one for project in projects for one in project["project"]["dependencies"]]
    _, gateway, whole = projects
    needed += gateway["project"]["optional-dependencies"]["fast"]
    needed += [one for one in whole["dependency-groups"]["dev"] if one.startswith(TOOLS)]
    return [one for one in needed if Requirement(one).name not in HEAVY]


if __name__ == "__main__":
    sys.exit(main())
