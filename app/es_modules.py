"""Joins the page's ES modules into one script. Only third-party bundles stay files of their own.

The page's modules use a subset of the language that needs no compiler, and that is recognized line by line: each import is
one line at the head of a module, and exports precede a `class`, a `function` or a `const`, or list names. Anything else is
refused. Comments on lines of their own, and types, are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

_COMMENT = re.compile(r"^[ \t]*//.*\n|(?:^[ \t]*)?/\*\*\s[\s\S]*?\*/(?:[ \t]*\n|[ \t]*)", re.MULTILINE)
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "(\.[^"]+)";', re.MULTILINE)
_DYNAMIC_IMPORT = re.compile(r'\bimport\("(\.[^"]+)"\)')
_ADDRESS = re.compile(r'\bimport\.meta\.resolve\("(\.[^"]+)"\)')
_EXPORT = re.compile(r"^export (?=(?:class|const|(?:async )?function\*?) ([\w$]+))", re.MULTILINE)
_EXPORTED_NAMES = re.compile(r"^export \{([^}]*)\};", re.MULTILINE)
_AS = re.compile(r"([\w$]+) as ([\w$]+)")
_REFUSED = re.compile(r"^.*(?:^\s*(?:import|export)\b|\bimport\s*[.(]).*", re.MULTILINE)
_WAITS = re.compile(r"^(?!.*\basync\b)\S.*\bawait\b.*|^await\b.*", re.MULTILINE)


class BundleError(Exception):
    """The page's files can't be joined. The message names the file and what to write instead."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"app/page/{path}: {why}")


class Bundle(NamedTuple):
    """A script, and the addresses of the files that it needs before it runs."""

    script: str
    needs: tuple[str, ...]


class _Module(NamedTuple):
    """A module without its comments. `now`: the modules that run before it; `later`: those that it imports on demand."""

    path: str
    script: str
    now: tuple[str, ...]
    later: tuple[str, ...]

    def other(self, named: str) -> str:
        """Return the path of a file that this module names."""
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.path), named))


def join(entry: str, sources: Mapping[str, str], addresses: Mapping[str, str]) -> Bundle:
    """Join a module with all its imports.

    `sources`: the texts of the modules, by path; `addresses`: the addresses of all files when served unjoined, relative to
    the folder of the script. Raises BundleError.
    """
    return _Bundler(sources, addresses).of(entry)


class _Bundler:
    """Holds the modules that were read, each after those that it needs."""

    def __init__(self, sources: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        self._sources = sources
        self._addresses = addresses
        self._modules: dict[str, _Module] = {}
        self._later: list[tuple[str, str]] = []  # who imports what on demand

    def of(self, entry: str) -> Bundle:
        """Return the script that joins `entry` and its imports, and the files that it needs."""
        self._add(entry, ())
        first = self._modules.pop(entry)
        for importer, path in self._later:  # which grows meanwhile
            self._add(path, (entry, importer))
        modules = [*self._modules.values(), first]
        needs = dict.fromkeys(path for module in modules for path in module.now if self._is_external(path))
        parts = [
            *(f"import * as {_name(path)} from {_quoted(self._addresses[path])};\n" for path in needs),
            *map(self._written, self._modules.values()),
            f"// {entry}\n{{{self._body(first)[0]}}}\n",
        ]
        return Bundle("".join(parts), tuple(self._addresses[path] for path in needs))

    def _is_external(self, path: str) -> bool:
        return path in self._addresses and path not in self._sources

    def _add(self, path: str, above: tuple[str, ...]) -> None:
        """Add a module after those that it needs. `above`: the modules that import it. Raises BundleError."""
        if self._is_external(path) or path in self._modules:
            return
        if path in above:
            raise BundleError(path, f"modules import each other: {' imports '.join((*above, path))}")
        if path not in self._sources:
            raise BundleError(above[-1], f"it imports {path}, which does not exist")
        module = _read(path, self._sources[path])
        for other in module.now:
            self._add(other, (*above, path))
        self._modules[path] = module
        self._later += [(path, other) for other in module.later]

    def _written(self, module: _Module) -> str:
        if waits := _WAITS.search(module.script):
            why = f"a module that others import can't wait while it loads: {waits[0]}"
            raise BundleError(module.path, why)
        body, exports = self._body(module)
        return f"// {module.path}\nconst {_name(module.path)} = (() => {{{body}\nreturn {exports};\n}})();\n"

    def _body(self, module: _Module) -> tuple[str, str]:
        """Return a module's script without imports and exports, and the object of its exports."""
        exports: list[str] = []

        def exported(found: re.Match[str]) -> str:
            exports.extend(name.strip() for name in found[1].split(",") if name.strip())
            return ""

        def imported(found: re.Match[str]) -> str:
            names = _AS.sub(r"\1: \2", found[1])
            return f"const {names} = {_name(module.other(found[2]))};"

        script = _EXPORTED_NAMES.sub(exported, _EXPORT.sub(exported, module.script))
        script = _DYNAMIC_IMPORT.sub(lambda found: self._requested(module.other(found[1])), script)
        script = _ADDRESS.sub(lambda found: self._address(module, module.other(found[1])), script)
        return _IMPORT.sub(imported, script), _braced(_AS.sub(r"\2: \1", name) for name in exports)

    def _address(self, module: _Module, path: str) -> str:
        if path not in self._addresses:
            raise BundleError(module.path, f"it names {path}, which does not exist")
        return f"new URL({_quoted(self._addresses[path])}, import.meta.url).href"

    def _requested(self, path: str) -> str:
        """Return code for an import on demand: a promise of the module's exports."""
        if self._is_external(path):
            return f"import({_quoted(self._addresses[path])})"
        return f"Promise.resolve().then(() => {_name(path)})"


def _name(path: str) -> str:
    return "module$" + re.sub(r"\W", "_", path.removesuffix(".js"))


def _read(path: str, text: str) -> _Module:
    """Read a module. Raises BundleError."""
    script = _COMMENT.sub("", text)
    module = _Module(path, script, (), ())
    rest = script
    for known in (_IMPORT, _DYNAMIC_IMPORT, _ADDRESS, _EXPORT, _EXPORTED_NAMES):
        rest = known.sub("", rest)
    if refused := _REFUSED.search(rest):
        raise BundleError(
            path, f'write `import {{ a }} from "./b.js";` or `export const`: {refused[0].strip()}'
        )
    now = dict.fromkeys(module.other(named) for _, named in _IMPORT.findall(script))
    later = dict.fromkeys(module.other(named) for named in _DYNAMIC_IMPORT.findall(script))
    return module._replace(now=tuple(now), later=tuple(later))


def _braced(names: Iterable[str]) -> str:
    return f"{{ {', '.join(names)} }}"


def _quoted(address: str) -> str:
    return msgspec.json.encode(address).decode()
