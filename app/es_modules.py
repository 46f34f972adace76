"""Joins the page's ES modules into one script, and a second one for modules that are loaded on demand.

The page's modules use a subset of the language that needs no compiler, and that is recognized line by line: each import is
one line at the head of a module, and exports precede a `class`, a `function` or a `const`, or list names. Anything else is
refused. Comments on lines of their own, and types, are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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

Store = Callable[[str], str]
"""Stores the script of the modules that are loaded on demand, and returns its address."""


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


def join(entry: str, sources: Mapping[str, str], addresses: Mapping[str, str], store: Store) -> Bundle:
    """Join a module with all its imports.

    `sources`: the texts of the modules, by path; `addresses`: the addresses of all files when served unjoined, relative to
    the folder of the script. `store` is called once if something is imported on demand. Raises BundleError.
    """
    return _Bundler(sources, addresses).of(entry, store)


class _Bundler:
    """Holds all modules that were read, and knows which of them run at the start."""

    def __init__(self, sources: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        self._sources = sources
        self._addresses = addresses
        self._external = {path: address for path, address in addresses.items() if path not in sources}
        self._modules: dict[str, _Module] = {}
        self._now: dict[str, None] = {}

    def of(self, entry: str, store: Store) -> Bundle:
        """Return the script that joins `entry` and its imports, and the files that it needs."""
        self._read(entry)
        self._order(entry, self._now, ())
        later = [path for path in self._modules if path not in self._now]
        needs = dict.fromkeys(
            path for module in self._now for path in self._modules[module].now if path in self._external
        )
        parts = [
            *(f"import * as {self._name(path)} from {_quoted(self._external[path])};\n" for path in needs),
            *(self._loading(later, store) if later else ()),
            *(self._written(self._modules[path]) for path in self._now if path != entry),
            f"// {entry}\n{{{self._body(self._modules[entry])[0]}}}\n",
        ]
        return Bundle("".join(parts), tuple(self._external[path] for path in needs))

    def _loading(self, later: list[str], store: Store) -> Iterator[str]:
        """Return the code that loads the second script, once; after a failure the next import tries again.

        The second script can't import the first: the address of each would contain a hash of the other's. So it
        takes the first script's modules as arguments.
        """
        for path in later:
            self._order(path, {}, ())
        second = "".join(self._written_later(self._modules[path]) for path in later)
        begun = [path for path in later if any(path in module.later for module in self._modules.values())]
        used = dict.fromkeys(
            path for one in later for path in (*self._modules[one].now, *self._modules[one].later)
        )
        taken = _braced(self._name(path) for path in used if path in self._now)
        given = _braced(f"load${self._name(path)}" for path in begun)
        address = store(f"export const begin = ({taken}) => {{\n{second}return {given};\n}};\n")
        yield "let later$;\nconst load$later = () => (later$ ??= "
        yield f"import({_quoted(address)}).then(({{ begin }}) => begin({taken}))"
        yield ".catch((error) => {\nlater$ = undefined;\nthrow error;\n}));\n"
        for path in begun:
            name = f"load${self._name(path)}"
            yield f"const {name} = () => load$later().then((made) => made.{name}());\n"

    def _read(self, path: str) -> None:
        """Read a module and all that it imports, now or on demand."""
        if path in self._modules or path in self._external:
            return
        self._modules[path] = module = _read(path, self._sources[path])
        for other in (*module.now, *module.later):
            if other not in self._sources and other not in self._external:
                raise BundleError(path, f"it imports {other}, which does not exist")
            self._read(other)

    def _order(self, path: str, done: dict[str, None], above: tuple[str, ...]) -> None:
        """Append a module to `done`, after those that it needs. Raises BundleError."""
        if path in self._external or path in done or path in self._now:
            return
        if path in above:
            raise BundleError(path, f"modules import each other: {' imports '.join((*above, path))}")
        for other in self._modules[path].now:
            self._order(other, done, (*above, path))
        done[path] = None

    def _written(self, module: _Module) -> str:
        if waits := _WAITS.search(module.script):
            why = f"a module that others import can't wait while it loads: {waits[0]}"
            raise BundleError(module.path, why)
        body, exports = self._body(module)
        return f"// {module.path}\nconst {self._name(module.path)} = (() => {{{body}\nreturn {exports};\n}})();\n"

    def _written_later(self, module: _Module) -> str:
        """Return the code of a module that runs on demand: once, and after all that run at the start."""
        name = self._name(module.path)
        body, exports = self._body(module)
        begin = f"{name} ??= Promise.resolve().then(async () => {{{body}\nreturn {exports};\n}})"
        return f"// {module.path}\nlet {name};\nconst load${name} = () => ({begin});\n"

    def _body(self, module: _Module) -> tuple[str, str]:
        """Return a module's script without imports and exports, and the object of its exports."""
        exports: list[str] = []

        def exported(found: re.Match[str]) -> str:
            exports.extend(name.strip() for name in found[1].split(",") if name.strip())
            return ""

        def imported(found: re.Match[str]) -> str:
            names = _AS.sub(r"\1: \2", found[1])
            return f"const {names} = {self._taken(module.other(found[2]), at_once=module.path in self._now)};"

        script = _EXPORTED_NAMES.sub(exported, _EXPORT.sub(exported, module.script))
        script = _DYNAMIC_IMPORT.sub(lambda found: self._requested(module.other(found[1])), script)
        script = _ADDRESS.sub(lambda found: self._address(module, module.other(found[1])), script)
        return _IMPORT.sub(imported, script), _braced(_AS.sub(r"\2: \1", name) for name in exports)

    def _address(self, module: _Module, path: str) -> str:
        if path not in self._addresses:
            raise BundleError(module.path, f"it names {path}, which does not exist")
        return f"new URL({_quoted(self._addresses[path])}, import.meta.url).href"

    def _taken(self, path: str, *, at_once: bool) -> str:
        """Return code for a static import: the module's exports. `at_once`: whether the importer runs at the start."""
        if path in self._external and not at_once:
            return f"await import({_quoted(self._external[path])})"
        if path in self._now or path in self._external:
            return self._name(path)
        return f"await load${self._name(path)}()"

    def _requested(self, path: str) -> str:
        """Return code for an import on demand: a promise of the module's exports."""
        if path in self._external:
            return f"import({_quoted(self._external[path])})"
        if path in self._now:
            return f"Promise.resolve().then(() => {self._name(path)})"
        return f"load${self._name(path)}()"

    def _name(self, path: str) -> str:
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
