"""Reads one ES module of the page: its imports, its exports, and the script between.

The page's modules use a subset of the language that can be joined without a compiler: names are imported and exported one by
one, and exported values are constant. Anything else is refused with its place.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

import msgspec

_GAP = re.compile(r"(?:\s+|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_TOKEN = re.compile(r"""(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[\w$#]+)""", re.DOTALL)
_PIECE = re.compile(r"[`}](?:[^`\\$]|\\.|\$(?!\{))*(?:`|\$\{)", re.DOTALL)
_PATTERN = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
_CLOSING = {"(": ")", "[": "]", "{": "}", "${": "}"}
_BEFORE_VALUES = frozenset(
    (
        "await",
        "case",
        "delete",
        "do",
        "else",
        "in",
        "instanceof",
        "new",
        "of",
        "return",
        "throw",
        "typeof",
        "void",
        "yield",
    )
)
"""After these words a slash begins a regular expression; after others it divides."""


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


class BundleError(Exception):
    """The page's files can't be joined. The message names the file, the line and what to write instead."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"app/page/{path}:{line}: {why}")


class ImportedNames(NamedTuple):
    """An import of names from another module. `pattern`: their binding, or None."""

    path: str
    pattern: str | None


class DynamicImport(NamedTuple):
    """A dynamic import of a module."""

    path: str


class ModuleUrl(NamedTuple):
    """A use of an address: of another file, or None for the module's own."""

    path: str | None


Piece = str | ImportedNames | DynamicImport | ModuleUrl


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the page. Paths are relative to `app/page`.

    `exports`: expressions by the names that others import; `waits`: the line where it waits while it loads.
    """

    path: str
    pieces: tuple[Piece, ...]
    exports: dict[str, str]
    waits: int | None

    @property
    def now(self) -> tuple[str, ...]:
        """Return the modules that run before it, in the order of its imports."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces if isinstance(piece, ImportedNames)))

    @property
    def later(self) -> tuple[str, ...]:
        """Return the modules that it imports on demand."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces if isinstance(piece, DynamicImport)))


def braced(pairs: Iterable[tuple[str, str]]) -> str:
    """Write pairs of names between braces, as in JavaScript."""
    return f"{{ {', '.join(name if name == own else f'{name}: {own}' for name, own in pairs)} }}"


def read(path: str, script: str) -> Module:
    """Read a module. Raises BundleError."""
    try:
        listed = list(tokens(script))
    except TokenError as error:
        raise BundleError(path, error.line, str(error)) from error
    reader = _Reader(path, listed)
    pieces = tuple(reader.pieces())
    return Module(path=path, pieces=pieces, exports=reader.exports, waits=reader.waits)


class _Reader:
    """Walks through a module's tokens: imports and exports by statement, all else by token."""

    def __init__(self, path: str, listed: list[Token]) -> None:
        self.exports: dict[str, str] = {}
        self.waits: int | None = None
        self._path = path
        self._tokens = listed
        self._position = 0

    def pieces(self) -> Iterable[Piece]:
        """Return the module's script, and separately its imports."""
        while self._position < len(self._tokens):
            token = self._tokens[self._position]
            if token.text == "import" and self._follows(".") is False:
                yield from self._import(token)
            elif token.text == "export" and token.depth == 0:
                yield from self._export(token)
            else:
                if token.text == "await" and token.depth == 0:
                    self.waits = token.line
                self._position += 1
                yield token.before + token.text

    def _follows(self, text: str) -> bool:
        return self._position > 0 and self._tokens[self._position - 1].text == text

    def _import(self, token: Token) -> Iterable[Piece]:
        self._position += 1
        yield token.before
        if self._comes("("):
            path = self._other(self._take())
            self._demand(")")
            yield DynamicImport(path)
        elif self._comes("."):
            yield self._address()
        elif token.depth > 0:
            raise self._refusal(token, "imports stand at the head of a module")
        else:
            yield self._names(token)

    def _address(self) -> ModuleUrl:
        """`import.meta.url`, or `import.meta.resolve("./a.css")`."""
        self._demand("meta")
        self._demand(".")
        if not self._comes("resolve"):
            self._demand("url")
            return ModuleUrl(None)
        self._demand("(")
        path = self._other(self._take())
        self._demand(")")
        return ModuleUrl(path)

    def _names(self, token: Token) -> ImportedNames:
        """`import "./a.js"`, `import { a, b as c } from "./a.js"` or `import * as a from "./a.js"`."""
        pattern: str | None = None
        if self._comes("{"):
            pattern = braced(self._listed())
        elif self._comes("*"):
            self._demand("as")
            pattern = self._take().text
        elif self._tokens[self._position].kind is not Kind.TEXT:
            raise self._refusal(token, "there are no default exports: `import { name }` instead")
        if pattern is not None:
            self._demand("from")
        path = self._other(self._take())
        self._demand(";")
        return ImportedNames(path, pattern)

    def _export(self, token: Token) -> Iterable[Piece]:
        self._position += 1
        if self._comes("{"):
            listed = self._listed()
            if self._comes("from"):
                yield self._reexports(listed)
            else:
                self.exports |= {shown: own for own, shown in listed}
            self._demand(";")
            return
        words = [word.text for word in self._tokens[self._position : self._position + 4]]
        match words:
            case ["const", name, "=", *_]:
                self.exports[name] = name
            case ["class" | "function", name, *_] | ["async", "function", name, *_] if name != "*":
                self.exports[name] = name
            case _:
                raise self._refusal(token, "export a `class`, a `function`, `const name =` or `{ names }`")
        first = self._tokens[self._position]
        self._tokens[self._position] = first._replace(before=token.before)

    def _reexports(self, listed: list[tuple[str, str]]) -> ImportedNames:
        """`export { a } from "./b.js"`: imported under a private name, and exported again."""
        path = self._other(self._take())
        own = {name: f"{name}$handed" for name, _ in listed}
        self.exports |= {shown: own[name] for name, shown in listed}
        return ImportedNames(path, braced(own.items()))

    def _listed(self) -> list[tuple[str, str]]:
        """Return the names between braces: `a as b` is (a, b), and `a` is (a, a)."""
        found: list[tuple[str, str]] = []
        while not self._comes("}"):
            name = self._take().text
            found.append((name, self._take().text if self._comes("as") else name))
            if not self._comes(","):
                self._demand("}")
                break
        return found

    def _other(self, token: Token) -> str:
        """Return the path of the module that a string in this one names."""
        named = token.text[1:-1]
        if token.kind is not Kind.TEXT or not named.startswith(("./", "../")):
            raise self._refusal(token, "name the file by a string that begins with `./` or `../`")
        return posixpath.normpath(posixpath.join(posixpath.dirname(self._path), named))

    def _take(self) -> Token:
        if self._position == len(self._tokens):
            raise self._refusal(self._tokens[-1], "the module ends in the middle of a statement")
        self._position += 1
        return self._tokens[self._position - 1]

    def _comes(self, text: str) -> bool:
        if self._position < len(self._tokens) and self._tokens[self._position].text == text:
            self._position += 1
            return True
        return False

    def _demand(self, text: str) -> None:
        token = self._take()
        if token.text != text:
            raise self._refusal(token, f"`{text}` is expected here, not `{token.text}`")

    def _refusal(self, token: Token, why: str) -> BundleError:
        return BundleError(self._path, token.line, why)


class Kind(Enum):
    """The kind of a token."""

    WORD = auto()
    """A name, a keyword or a number."""
    TEXT = auto()
    """A string with its quotes."""
    TEMPLATE = auto()
    """A piece of a template literal, up to the next value or its end."""
    PATTERN = auto()
    """A regular expression."""
    MARK = auto()


class Token(NamedTuple):
    """`before`: the white space before it, as far as it matters; `depth`: the number of open brackets around it."""

    kind: Kind
    text: str
    before: str
    line: int
    depth: int


class TokenError(Exception):
    """A script can't be split into tokens. `line` says where."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def tokens(script: str) -> Iterator[Token]:
    """Split a script into tokens. Raises TokenError if a bracket, a string or a template does not end."""
    reader = _Scanner(script)
    while (token := reader.next()) is not None:
        yield token


class _Scanner:
    """Walks through a script from its beginning."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._position = 0
        self._line = 1
        self._open: list[str] = []
        self._last: Token | None = None

    def next(self) -> Token | None:
        """Return the next token; None at the end."""
        gap = self._take(_GAP) or ""
        before = "\n" if "\n" in gap else " " if gap else ""
        line = self._line
        if self._position == len(self._script):
            if self._open:
                raise TokenError(line, f"`{self._open[-1]}` is never closed")
            return None
        kind, text = self._read()
        depth = self._depth(kind, text)
        self._last = Token(kind, text, before, line, depth)
        return self._last

    def _read(self) -> tuple[Kind, str]:
        first = self._script[self._position]
        if first == "`" or (first == "}" and self._open and self._open[-1] == "${"):
            return Kind.TEMPLATE, self._demand(_PIECE, "a template is never closed")
        if first == "/" and self._value_may_follow():
            return Kind.PATTERN, self._demand(_PATTERN, "a regular expression is never closed")
        if first in "\"'":
            return Kind.TEXT, self._demand(_TOKEN, "a string is never closed")
        if (word := self._take(_TOKEN)) is not None:
            return Kind.WORD, word
        self._position += 1
        return Kind.MARK, first

    def _value_may_follow(self) -> bool:
        if self._last is None:
            return True
        match self._last.kind:
            case Kind.WORD:
                return self._last.text in _BEFORE_VALUES
            case Kind.MARK:
                return self._last.text not in ")]}"
            case Kind.TEMPLATE:
                return self._last.text.endswith("${")
        return False

    def _depth(self, kind: Kind, text: str) -> int:
        """Return a token's depth; a bracket has the depth outside it."""
        if kind is Kind.MARK and text in ")]}":
            self._close(text)
        if kind is Kind.TEMPLATE and text.startswith("}"):
            self._close("}")
        depth = len(self._open)
        if kind is Kind.MARK and text in "([{":
            self._open.append(text)
        if kind is Kind.TEMPLATE and text.endswith("${"):
            self._open.append("${")
        return depth

    def _close(self, bracket: str) -> None:
        if not self._open or _CLOSING[self._open.pop()] != bracket:
            raise TokenError(self._line, f"`{bracket}` closes nothing")

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._script, self._position)
        if found is None:
            return None
        self._position = found.end()
        self._line += found[0].count("\n")
        return found[0]

    def _demand(self, pattern: re.Pattern[str], why: str) -> str:
        found = self._take(pattern)
        if found is None:
            raise TokenError(self._line, why)
        return found
