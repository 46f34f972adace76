"""The architecture's page speaks of modules and subpackages that are there, and its picture has every import between subpackages."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from itertools import pairwise, product
from pathlib import Path

import pytest

from tests.docs.documents import ARCHITECTURE, DESIGN, ROOT, prose, snippets
from tests.test_architecture import imports, modules

LAYERS_WITH_PACKAGES = ("connections", "sessions")
NAMED = (
    "app",
    "connections",
    "sessions",
    "engine",
    "specs",
    "midstream",
    "demo_model",
    "distributions",
    "midstream_server",
    "tests",
)


def arrows() -> set[tuple[str, str]]:
    """The picture of the subpackages, as pairs."""
    picture = re.sub(r'\w+\["(\w+)/"\]', r"\1", snippets(ARCHITECTURE, "mermaid")[0])
    chains = [re.split(r" *--> *", line.strip()) for line in picture.splitlines() if "-->" in line]
    ends = [(above, below.partition("[")[0]) for chain in chains for above, below in pairwise(chain)]
    return {pair for above, below in ends for pair in product(above.split(" & "), below.split(" & "))}


def below(package: str) -> set[str]:
    """All that a package may import, as the picture has it."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        at = waiting.pop()
        new = {lower for upper, lower in arrows() if upper == at} - found
        found |= new
        waiting.extend(new)
    return found


def subpackages(layer: str) -> set[str]:
    return {
        module.split(".")[1] for module in modules() if module.startswith(layer) and module.count(".") > 1
    }


def imported(layer: str) -> set[tuple[str, str]]:
    """The subpackages of a layer that import each other."""
    inside = [module.split(".") for module in modules() if module.startswith(f"{layer}.")]
    pairs = {
        (home[1], there.split(".")[1])
        for home in inside
        for there in imports(".".join(home))
        if there.startswith(f"{layer}.")
    }
    return {(home, there) for home, there in pairs if {home, there} <= subpackages(layer) and home != there}


@pytest.mark.parametrize("layer", LAYERS_WITH_PACKAGES)
def test_the_picture_has_every_package(layer: str) -> None:
    assert subpackages(layer) <= {package for arrow in arrows() for package in arrow}


@pytest.mark.parametrize("layer", LAYERS_WITH_PACKAGES)
def test_the_picture_has_every_import(layer: str) -> None:
    assert {(home, there) for home, there in imported(layer) if there not in below(home)} == set()


def test_the_picture_has_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for above, lower in arrows():
        graph.setdefault(above, set()).add(lower)
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("page", [ARCHITECTURE, *DESIGN], ids=lambda page: page.name)
def test_modules_that_are_named_are_there(page: Path) -> None:
    folders = [ROOT / name for name in NAMED]
    files = {f"/{file.relative_to(ROOT)}" for top in folders for file in (top, *top.rglob("*"))}
    named = re.findall(r"`([\w./]+\.(?:py|lua|c)|(?:[a-z_]+/)+)`", prose(page))
    gone = [name for name in named if not any(file.endswith(f"/{name.rstrip('/')}") for file in files)]
    assert gone == []
