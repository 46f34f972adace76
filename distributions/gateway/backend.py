"""Builds `midstream-gateway` (PEP 517): the checkout's folders, in one package of their own.

In a checkout the layers are folders side by side: `app`, `connections`, `sessions`, `engine`. Nobody may install
packages of such names: a project has an `app` of its own. So wheels and source distributions hold them inside of
`midstream_server`, and the imports in them are rewritten: `from engine.api import Engine` becomes
`from midstream_server.engine.api import Engine`. Lines stay where they are, so tracebacks fit the sources.

An editable installation has the checkout as it is.
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOME = "midstream_server"
"""The one package that a wheel of the service installs."""
_BUILD_SYSTEM = {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"}
"""The build system of a source distribution, whose imports are rewritten already."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.c", "*.h", "*.egg-info")


class CannotBeMoved(Exception):
    """A module names another one in a way that can't be rewritten."""


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel in `wheel_directory`; return its file name."""
    target = str(Path(wheel_directory).absolute())
    with _moved():
        return str(build_meta.build_wheel(target, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build the source distribution in `sdist_directory`; return its file name. Its imports are rewritten already."""
    target = str(Path(sdist_directory).absolute())
    with _moved():
        return str(build_meta.build_sdist(target, config_settings))


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel that points to the checkout; return its file name."""
    target = str(Path(wheel_directory).absolute())
    with _tree(project(), package_dir=str(ROOT)):
        return str(build_meta.build_editable(target, config_settings, metadata_directory))


def project() -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))


def rewritten(source: str, packages: Iterable[str]) -> str:
    """Return a module's source in which all of `packages` are imported from `midstream_server`. Pure.

    Raises CannotBeMoved for an import such as `import engine.api`, which binds only the package's name.
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
    moved = tool | {
        "packages": [_moved_name(name) for name in tool["packages"]],
        "package-data": {_moved_name(name): files for name, files in tool["package-data"].items()},
    }
    return {"project": project["project"], "tool": {"setuptools": moved}}


def _moved_name(package: str) -> str:
    return package if package.partition(".")[0] == HOME else f"{HOME}.{package}"


@contextmanager
def _moved() -> Iterator[None]:
    """Work in a tree with all packages in `midstream_server`, as long as the block lasts."""
    here = project()
    packages = {name.partition(".")[0] for name in here["tool"]["setuptools"]["packages"]} - {HOME}
    with _tree(moved_project(here), package_dir="."):
        tree = Path.cwd()
        shutil.copytree(ROOT / HOME, tree / HOME, ignore=_LEFT_OUT)
        for package in packages:
            shutil.copytree(ROOT / package, tree / HOME / package, ignore=_LEFT_OUT)
        for module in (tree / HOME).rglob("*.py"):
            _rewrite(module, packages)
        yield


@contextmanager
def _tree(project: dict[str, Any], *, package_dir: str) -> Iterator[None]:
    """Work in a new folder with a project whose packages lie in `package_dir`, as long as the block lasts."""
    setuptools = project["tool"]["setuptools"] | {"package-dir": {"": package_dir}}
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="midstream-gateway-") as folder:
        shutil.copy(HERE / "README.md", folder)
        shutil.copy(ROOT / "LICENSE", folder)
        described = project | {"build-system": _BUILD_SYSTEM, "tool": {"setuptools": setuptools}}
        Path(folder, "pyproject.toml").write_text(as_toml(described), encoding="utf-8")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _rewrite(module: Path, packages: Iterable[str]) -> None:
    try:
        source = rewritten(module.read_text(encoding="utf-8"), packages)
    except CannotBeMoved as error:
        raise CannotBeMoved(f"{module}: {error}") from error
    module.write_text(source, encoding="utf-8")


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
