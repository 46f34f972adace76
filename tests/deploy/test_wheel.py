"""What the container installs: a wheel with every module and every file that the packages read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from engine.attention.attend import cpu_kernels

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    {
        name.partition(".")[0]
        for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    }
)
LEFTOVERS = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.so")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what .dockerignore lets through."""
    copy = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=LEFTOVERS)
    for paper in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / paper, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path) -> set[str]:
    """The names of the files in the wheel that setuptools builds of the tree."""
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True, text=True)
    (archive,) = (tree / "dist").glob("*.whl")
    return set(zipfile.ZipFile(archive).namelist())


def test_the_wheel_holds_every_file_of_every_package(tree: Path, wheel: set[str]) -> None:
    files = {
        str(path.relative_to(tree))
        for package in PACKAGES
        for path in (tree / package).rglob("*")
        if path.is_file() and path.suffix not in {".c", ".h"}
    }
    assert files - wheel == set()


@pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())
def test_the_wheel_carries_the_kernels_compiled(wheel: set[str]) -> None:
    assert f"engine/_cpu_kernels{sysconfig.get_config_var('EXT_SUFFIX')}" in wheel


def test_the_wheel_carries_the_licence_and_the_command(wheel: set[str]) -> None:
    kept = {name.partition(".dist-info/")[2] for name in wheel}
    assert {"licenses/LICENSE", "entry_points.txt"} <= kept


def test_the_image_takes_in_every_package() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{package}" for package in PACKAGES} <= set(allowed)
