"""Wheels of the distributions, built without a network, and environments that have them installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = tomllib.loads((ROOT / "midstream" / "pyproject.toml").read_text())
GATEWAY = tomllib.loads((ROOT / "distributions" / "gateway" / "pyproject.toml").read_text())
PACKAGES = sorted({name.partition(".")[0] for name in GATEWAY["tool"]["setuptools"]["packages"]})
MODELS = ("demo_model", "demo_translator")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
_LEFTOVERS = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.so", "*.egg-info")
_BUILD = "import sys; {path}from {backend} import build_wheel; print(build_wheel(sys.argv[1]))"


def copied_tree(target: Path) -> Path:
    """A copy of what .dockerignore lets through."""
    for package in (*PACKAGES, *MODELS, "distributions", "midstream"):
        shutil.copytree(ROOT / package, target / package, ignore=_LEFTOVERS)
    for file in FILES:
        shutil.copy(ROOT / file, target)
    return target


def built(tree: Path, into: Path) -> Path:
    """The wheel that a tree's backend makes, as pip asks for it."""
    system = tomllib.loads((tree / "pyproject.toml").read_text())["build-system"]
    path = "".join(f"sys.path.insert(0, {folder!r}); " for folder in system.get("backend-path", ()))
    made = subprocess.run(
        [sys.executable, "-c", _BUILD.format(path=path, backend=system["build-backend"]), str(into)],
        cwd=tree,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return into / made.stdout.splitlines()[-1]


def names_in(wheel: Path) -> set[str]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> str:
    """What a wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def requirements_of(wheel: Path) -> list[Requirement]:
    """What a wheel needs without its extras."""
    lines = [line for line in metadata_of(wheel).splitlines() if line.startswith("Requires-Dist: ")]
    return [one for line in lines if _is_needed(one := Requirement(line.partition(": ")[2]), set())]


def _is_needed(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


class Installation:
    """An environment of its own with some wheels; libraries are those of the tests' environment.

    `only_required`: it has those alone that the wheels require.
    """

    def __init__(self, folder: Path, wheels: list[Path], *, only_required: bool = False) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        (self.packages,) = folder.glob("lib/*/site-packages")
        if only_required:
            self._link([one for wheel in wheels for one in requirements_of(wheel)])
        else:
            # Folders that a .pth names are searched, but their own .pth files, the checkout's among them, are not read.
            (self.packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python)]
        options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--ignore-installed"]
        subprocess.run([*pip, "install", *options, *map(str, wheels)], check=True)

    def _link(self, waiting: list[Requirement]) -> None:
        """Link libraries of the tests' environment into this one, with all that they need."""
        linked: set[str] = set()
        while waiting:
            wanted = waiting.pop()
            if wanted.name in linked or wanted.name.startswith("midstream"):
                continue
            linked.add(wanted.name)
            library = distribution(wanted.name)
            for name in {file.parts[0] for file in library.files or ()} - {"..", "__pycache__"}:
                if not (link := self.packages / name).exists():
                    link.symlink_to(str(library.locate_file(name)))
            waiting += [
                one for one in map(Requirement, library.requires or ()) if _is_needed(one, wanted.extras)
            ]

    def run(self, *arguments: str, folder: Path) -> str:
        """What Python prints, started in a folder that has nothing to do with the checkout."""
        command = [str(self.python), *arguments]
        ended = subprocess.run(
            command, cwd=folder, env=self.environment(), check=True, capture_output=True, text=True
        )
        return ended.stdout

    @staticmethod
    def environment(**variables: str) -> dict[str, str]:
        """The tests' environment without what leads to the checkout."""
        hidden = {"PYTHONPATH", "VIRTUAL_ENV"}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in hidden and not name.startswith(("MIDSTREAM_", "COVERAGE_", "COV_"))
        }
        return kept | {"HF_HUB_OFFLINE": "1"} | variables
