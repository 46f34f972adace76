"""Builds the distribution of the service (PEP 517): the checkout's folders, in one package of their own.

In a checkout the layers are folders side by side: `app`, `connections`, `sessions`, `engine`. Nobody may install
packages of such names: a project has an `app` of its own. So a wheel holds them inside of
`midstream_server`, and the imports in it are rewritten: `from engine.api import Engine` becomes
`from midstream_server.engine.api import Engine`. Lines stay where they are, so tracebacks fit the sources.

An editable installation and a source distribution have the checkout as it is.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

HOME = "midstream_server"
"""The one package that a wheel of the service installs."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.egg-info")


class CannotBeMoved(Exception):
    """A module names another one in a way that can't be written anew."""


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel in `wheel_directory`; return its file name."""
    target = Path(wheel_directory).absolute()
    with _moved(Path.cwd()) as tree, _working_in(tree):
        return str(build_meta.build_wheel(str(target), config_settings, metadata_directory))


def rewritten(source: str, packages: Iterable[str]) -> str:
    """Return a module's source in which all of `packages` are imported from `midstream_server`. Pure.

    Raises CannotBeMoved for `import engine.api`, which binds the name of the package alone.
    """
    names = frozenset(packages)
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=aliases) if {alias.name.partition(".")[0] for alias in aliases} & names:
                raise CannotBeMoved(f"line {node.lineno}: write `from … import …`: {ast.unparse(node)}")
            case ast.ImportFrom(module=str() as module, level=0) if module.partition(".")[0] in names:
                line = lines[node.lineno - 1]
                at = node.col_offset
                moved = line[at:].replace(f"from {module} ", f"from {HOME}.{module} ", 1)
                if moved == line[at:]:
                    raise CannotBeMoved(f"line {node.lineno}: {line.strip()}")
                lines[node.lineno - 1] = line[:at] + moved
    return "".join(lines)


def moved_project(project: dict[str, Any]) -> dict[str, Any]:
    """Return what pyproject.toml says, for the tree in which all packages lie in `midstream_server`. Pure."""
    tool = project["tool"]["setuptools"]
    extensions = [
        extension
        | {"name": _moved_name(extension["name"])}
        | {key: [f"{HOME}/{file}" for file in extension[key]] for key in ("sources", "depends")}
        for extension in tool["ext-modules"]
    ]
    moved = tool | {
        "packages": [_moved_name(name) for name in tool["packages"]],
        "package-data": {_moved_name(name): files for name, files in tool["package-data"].items()},
        "ext-modules": extensions,
    }
    return {"project": project["project"], "tool": {"setuptools": moved}}


def _moved_name(package: str) -> str:
    return package if package.partition(".")[0] == HOME else f"{HOME}.{package}"


@contextmanager
def _moved(root: Path) -> Iterator[Path]:
    """A tree to build from, as long as the block lasts."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.partition(".")[0] for name in project["tool"]["setuptools"]["packages"]} - {HOME}
    with tempfile.TemporaryDirectory(prefix="midstream-wheel-") as folder:
        tree = Path(folder)
        shutil.copytree(root / HOME, tree / HOME, ignore=_LEFT_OUT)
        for package in packages:
            shutil.copytree(root / package, tree / HOME / package, ignore=_LEFT_OUT)
        for module in (tree / HOME).rglob("*.py"):
            _rewrite(module, packages)
        for document in (project["project"]["readme"], *project["project"]["license-files"]):
            shutil.copy(root / document, tree)
        (tree / "pyproject.toml").write_text(as_toml(moved_project(project)), encoding="utf-8")
        yield tree


def _rewrite(module: Path, packages: Iterable[str]) -> None:
    try:
        source = rewritten(module.read_text(encoding="utf-8"), packages)
    except CannotBeMoved as error:
        raise CannotBeMoved(f"{module}: {error}") from error
    module.write_text(source, encoding="utf-8")


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def as_toml(document: dict[str, Any]) -> str:
    """Return a document as TOML, each of its tables in one line. Pure."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in document.items())


def _value(value: object) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_value(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
