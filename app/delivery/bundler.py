"""Joins the page's modules into one script. Each keeps a scope of its own: nothing is renamed, so errors read as in the sources.

A module that is imported on demand (`import("./a.js")`) runs then, and so do the modules that it alone needs. All of them are
a second script, which is loaded then and is handed what it imports of the first. Modules in `vendor/` are bundles already and
stay separate files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from app.delivery.es_modules import (
    BundleError,
    DynamicImport,
    ImportedNames,
    Module,
    ModuleUrl,
    Piece,
    braced,
    read,
)

Store = Callable[[str], str]
"""Stores the script of what is loaded on demand, and returns its address."""


class Bundle(msgspec.Struct, frozen=True):
    """A script, and the addresses of the files that it needs before it runs."""

    script: str
    needs: tuple[str, ...]


def join(entry: str, sources: Mapping[str, str], addresses: Mapping[str, str], store: Store) -> Bundle:
    """Join a module with all its imports.

    `sources`: the texts of the modules, by path; `addresses`: those of all files when they are not joined, relative to the
    folder of the script. `store` is called once if something is imported on demand. Raises BundleError.
    """
    return _Bundler(sources, addresses).of(entry, store)


class _Bundler:
    """Holds all modules that were read, and which of them run at once."""

    def __init__(self, sources: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        self._sources = sources
        self._addresses = addresses
        self._external = {path: address for path, address in addresses.items() if path not in sources}
        self._modules: dict[str, Module] = {}
        self._now: dict[str, None] = {}
        self._numbers: dict[str, int] = {}

    def of(self, entry: str, store: Store) -> Bundle:
        """Return the script of this module."""
        self._read(entry)
        self._order(entry, self._now, ())
        later = [path for path in self._modules if path not in self._now]
        for path in later:
            self._order(path, {}, ())
        needs = dict.fromkeys(
            path for module in self._now for path in self._modules[module].now if path in self._external
        )
        parts = [
            *(f"import * as {self._name(path)} from {_quoted(self._external[path])};\n" for path in needs),
            *(self._loading(later, store) if later else ()),
            *(self._written(self._modules[path]) for path in self._now if path != entry),
            f"// {entry}\n{{{self._body(self._modules[entry])}}}\n",
        ]
        return Bundle("".join(parts), tuple(self._external[path] for path in needs))

    def _loading(self, later: list[str], store: Store) -> Iterator[str]:
        """Return the code that loads the second script, once; after a failure the next import tries again.

        The second script can't import the first: the address of each would contain a hash of the other's. So it is handed what it uses.
        """
        second = "".join(self._written_later(self._modules[path]) for path in later)
        begun = [path for path in later if any(path in module.later for module in self._modules.values())]
        taken = braced((self._name(path), self._name(path)) for path in self._taken_of_the_first(later))
        given = braced((f"load${self._name(path)}",) * 2 for path in begun)
        address = store(f"export const begin = ({taken}) => {{\n{second}return {given};\n}};\n")
        yield "let later$;\nconst load$later = () => (later$ ??= "
        yield f"import({_quoted(address)}).then(({{ begin }}) => begin({taken}))"
        yield ".catch((error) => {\nlater$ = undefined;\nthrow error;\n}));\n"
        for path in begun:
            name = f"load${self._name(path)}"
            yield f"const {name} = () => load$later().then((made) => made.{name}());\n"

    def _taken_of_the_first(self, later: list[str]) -> list[str]:
        """Return the modules of the first script that those of the second use."""
        named = (path for one in later for path in (*self._modules[one].now, *self._modules[one].later))
        return [path for path in dict.fromkeys(named) if path in self._now]

    def _read(self, path: str) -> None:
        """Read a module and all that it imports, now or on demand."""
        if path in self._modules or path in self._external:
            return
        self._modules[path] = module = read(path, self._sources[path])
        for other in (*module.now, *module.later):
            if other not in self._sources and other not in self._external:
                raise BundleError(path, 1, f"it imports {other}, which is not there")
            self._read(other)

    def _order(self, path: str, done: dict[str, None], above: tuple[str, ...]) -> None:
        """Order a module after those that it needs."""
        if path in self._external or path in done or path in self._now:
            return
        if path in above:
            raise BundleError(path, 1, f"modules import each other: {' imports '.join((*above, path))}")
        for other in self._modules[path].now:
            self._order(other, done, (*above, path))
        done[path] = None

    def _written(self, module: Module) -> str:
        if module.waits is not None:
            why = (
                "a module that others import can't `await` while it loads: `await` in a function with braces"
            )
            raise BundleError(module.path, module.waits, why)
        script = f"{self._body(module)}\nreturn {braced(module.exports.items())};\n"
        return f"// {module.path}\nconst {self._name(module.path)} = (() => {{{script}}})();\n"

    def _written_later(self, module: Module) -> str:
        """Return a module that runs on demand: once, and after all that run at once."""
        name = self._name(module.path)
        script = f"{self._body(module)}\nreturn {braced(module.exports.items())};\n"
        begin = f"{name} ??= Promise.resolve().then(async () => {{{script}}})"
        return f"// {module.path}\nlet {name};\nconst load${name} = () => ({begin});\n"

    def _body(self, module: Module) -> str:
        return "".join(self._piece(piece, module) for piece in module.pieces)

    def _piece(self, piece: Piece, module: Module) -> str:
        match piece:
            case str():
                return piece
            case ImportedNames(path, pattern):
                taken = self._taken(path, at_once=module.path in self._now)
                return f"{taken};" if pattern is None else f"const {pattern} = {taken};"
            case DynamicImport(path):
                return self._requested(path)
            case ModuleUrl(path):
                return self._address(path, module)

    def _address(self, path: str | None, module: Module) -> str:
        """Return an absolute address, as `import.meta` has it."""
        if path is not None and path not in self._addresses:
            raise BundleError(module.path, 1, f"it names {path}, which is not there")
        address = f"./{module.path}" if path is None else self._addresses[path]
        return f"new URL({_quoted(address)}, import.meta.url).href"

    def _taken(self, path: str, *, at_once: bool) -> str:
        """Return a module's exports for a static import."""
        if path in self._external and not at_once:
            return f"await import({_quoted(self._external[path])})"
        if path in self._now or path in self._external:
            return self._name(path)
        return f"await load${self._name(path)}()"

    def _requested(self, path: str) -> str:
        """Return a promise of a module's exports."""
        if path in self._external:
            return f"import({_quoted(self._external[path])})"
        if path in self._now:
            return f"Promise.resolve().then(() => {self._name(path)})"
        return f"load${self._name(path)}()"

    def _name(self, path: str) -> str:
        return f"module${self._numbers.setdefault(path, len(self._numbers))}"


def _quoted(address: str) -> str:
    return msgspec.json.encode(address).decode()
