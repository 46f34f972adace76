"""Every package that pyproject.toml asks for has one pin, and a pin that it would take."""

from __future__ import annotations

import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "midstream")
]
WANTED = {
    (requirement := Requirement(text)).name: requirement
    for project in PROJECTS
    for texts in (project["dependencies"], *project["optional-dependencies"].values())
    for text in texts
}
WANTED.pop("midstream")  # it is built beside the service


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("requirement", WANTED.values(), ids=lambda requirement: requirement.name)
def test_a_requirement_is_pinned_within_its_range(requirement: Requirement, pins: dict[str, str]) -> None:
    assert pins[canonicalize_name(requirement.name)] in requirement.specifier


def test_no_pin_names_a_gpu_package_or_a_local_build(pins: dict[str, str]) -> None:
    assert not [
        name for name, version in pins.items() if name.startswith(("nvidia-", "cuda-")) or "+" in version
    ]


def test_the_pins_run_on_the_first_release_of_each_python(pins: dict[str, str]) -> None:
    """Debian 12 has Python 3.11.2, where pip finds no pin that asks for 3.11.5."""
    oldest = PROJECTS[0]["requires-python"].removeprefix(">=") + ".0"
    needed = {
        one.name: SpecifierSet(one.metadata["Requires-Python"] or "")
        for one in distributions()
        if pins.get(canonicalize_name(one.name)) == one.version
    }
    assert not {name: str(pythons) for name, pythons in needed.items() if oldest not in pythons}
