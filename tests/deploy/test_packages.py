"""Each library that the product imports is named by the project that ships the module, with one floor and one pin."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import distributions, packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.deploy.wheels import CLIENT, GATEWAY, PACKAGES, PROJECT, ROOT

PROJECTS = [CLIENT, GATEWAY, PROJECT]
ALL = [
    Requirement(text)
    for file in PROJECTS
    for lists in (
        {"": file["project"]["dependencies"]},
        file["project"].get("optional-dependencies", {}),
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


LAYERS = {*PACKAGES, "midstream"}
DISTRIBUTIONS = packages_distributions()


def named(project: dict[str, Any]) -> set[str]:
    """The distributions that a project or one of its extras asks for."""
    asked = project["project"]
    lists = (asked["dependencies"], *asked.get("optional-dependencies", {}).values())
    return {canonicalize_name(Requirement(text).name) for texts in lists for text in texts}


def imported(source: str) -> Iterator[tuple[str, bool]]:
    """The packages of others that a module imports, and whether a function does."""

    def walk(node: ast.AST, *, late: bool) -> Iterator[tuple[str, bool]]:
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, late) for alias in names)
            case ast.ImportFrom(module=str() as module, level=0):
                yield module, late
        inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, late=inside)

    for module, is_late in walk(ast.parse(source), late=False):
        top = module.partition(".")[0]
        if top not in LAYERS and top not in sys.stdlib_module_names:
            yield top, is_late


def unnamed(package: str, known: set[str], known_late: set[str]) -> list[str]:
    """The imports of a package whose distributions are not among those known."""
    return [
        f"{path.relative_to(ROOT)}: {library}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for library, late in imported(path.read_text())
        if not {canonicalize_name(one) for one in DISTRIBUTIONS.get(library, ())}
        & (known_late if late else known)
    ]


def test_the_client_names_what_it_imports() -> None:
    assert unnamed("midstream", named(CLIENT), named(CLIENT)) == []


@pytest.mark.parametrize("package", sorted({*PACKAGES} - {"engine", "speech"}))
def test_the_gateway_names_what_it_imports(package: str) -> None:
    """What a function imports may be of `midstream-server`: it runs only where models do."""
    assert unnamed(package, named(GATEWAY), named(GATEWAY) | named(PROJECT)) == []


@pytest.mark.parametrize("package", ["engine", "speech"])
def test_the_whole_names_what_runs_models(package: str) -> None:
    both = named(GATEWAY) | named(PROJECT)
    assert unnamed(package, both, both) == []


def test_an_import_that_no_project_names_is_found() -> None:
    assert list(imported("import yaml\ndef f():\n    from yaml.x import y")) == [
        ("yaml", False),
        ("yaml", True),
    ]
