"""Reads one ES module of the page: its imports, its exports, and the script between.

The page's modules use a subset of the language that can be joined without a compiler: names are imported and exported one by
one, and exported values are constant. Anything else is refused with its place.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from app.delivery.js_tokens import Kind, Token, TokenError, tokens


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
