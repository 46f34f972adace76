"""Every package that a pyproject.toml asks for has one floor and one pin, and a pin that it would take."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    for folder in ("midstream", "distributions/gateway", "")
]
ALL = [
    Requirement(text)
    for file in PROJECTS
    for lists in (
        {"": file["project"]["dependencies"]},
        file["project"]["optional-dependencies"],
        file.get("dependency-groups", {}),
    )
    for texts in lists.values()
    for text in texts
]
WANTED = [one for one in ALL if not one.name.startswith("midstream")]  # those are built beside the service


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_a_floor_stands_in_one_place() -> None:
    floors = Counter(one.name for one in WANTED if str(one.specifier))
    assert {name: times for name, times in floors.items() if times > 1} == {}
    bare = {one.name for one in WANTED if not str(one.specifier)} - {"types-regex"}
    assert bare <= set(floors)


@pytest.mark.parametrize("requirement", WANTED, ids=lambda requirement: requirement.name)
def test_a_requirement_is_pinned_within_its_range(requirement: Requirement, pins: dict[str, str]) -> None:
    assert pins[canonicalize_name(requirement.name)] in requirement.specifier


def test_no_pin_names_a_gpu_package_or_a_local_build(pins: dict[str, str]) -> None:
    assert not [
        name for name, version in pins.items() if name.startswith(("nvidia-", "cuda-")) or "+" in version
    ]


def test_the_pins_run_on_the_first_release_of_each_python(pins: dict[str, str]) -> None:
    """Debian 12 has Python 3.11.2, where pip finds no pin that asks for 3.11.5."""
    oldest = PROJECTS[0]["project"]["requires-python"].removeprefix(">=") + ".0"
    needed = {
        one.name: SpecifierSet(one.metadata["Requires-Python"] or "")
        for one in distributions()
        if pins.get(canonicalize_name(one.name)) == one.version
    }
    assert not {name: str(pythons) for name, pythons in needed.items() if oldest not in pythons}
