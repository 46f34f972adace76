"""Every library that the product imports is named by the project that ships the module, or by an extra of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.wheels import CLIENT, GATEWAY, PACKAGES, PROJECT, ROOT

LAYERS = {*PACKAGES, "midstream"}
DISTRIBUTIONS = packages_distributions()


def named(project: dict[str, Any]) -> set[str]:
    """The distributions that a project or one of its extras asks for."""
    lists = (project["project"]["dependencies"], *project["project"]["optional-dependencies"].values())
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
