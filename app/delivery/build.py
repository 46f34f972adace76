"""Joins a page's modules into one script and its style sheets into one, and writes the page that names them.

File names hold a hash of the content, so browsers may cache them for ever. No build is written to disk: it is made from the
sources in a fraction of a second, at the first request for the page, and is never older than they are.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from app.delivery.bundler import join
from app.delivery.encodings import Asset
from app.delivery.es_modules import BundleError

SCRIPT = "start.js"
LATER = "later.js"
"""What the page's script loads on demand."""
STYLE = "style.css"
VENDOR = "vendor/"
"""Folders of bundles that stay separate files: they change seldom, and some are loaded on demand."""
# Addresses are relative, since a proxy may serve the page below a path.
_SHEET = re.compile(r'\n *<link rel="stylesheet" href="(?:\.\./)?static/([^"]+)">')
_MODULE = re.compile(r'<script type="module" src="((?:\.\./)?static/)([^"]+)"></script>')
_NAMED = re.compile(r'\b((?:href|src)="(?:\.\./)?static/)([^"]+)"')
_SUMMED = re.compile(r"(.+)\.([0-9a-f]{16})(\.[a-z0-9]+)")
_CSS_GAP = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|/\*.*?\*/""", re.DOTALL)
_CSS_ADDRESS = re.compile(r"""url\((["']?)(?!data:|/|#)([^)"']+)\1\)""")
_KEPT_ADDRESSES = (".webmanifest", ".html")
"""Files that keep their addresses: an installed page asks for its manifest there."""


class Build(msgspec.Struct, frozen=True):
    """The pages and their built files, by their plain names."""

    pages: dict[str, Asset]
    made: dict[str, Asset]


def built(folder: Path) -> Build:
    """Build the pages of a folder; each HTML file in it is one. Raises BundleError."""
    return _Builder(folder).build()


def plain(folder: Path) -> Build:
    """Return the pages unjoined, file by file."""
    return Build({path.name: Asset(path.name, path.read_bytes()) for path in folder.glob("*.html")}, {})


def files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Return every file below a folder, by its path there, without editors' temporary files."""
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                if not name.startswith("."):
                    yield path.relative_to(folder).as_posix(), path.stat()


def summed(path: str, asset: Asset) -> str:
    """Return a file's path with its hash: `css/theme.0123456789abcdef.css`."""
    stem, suffix = posixpath.splitext(path)
    return f"{stem}.{asset.digest}{suffix}"


def unsummed(path: str) -> tuple[str, str] | None:
    """Return a path without its hash, and the hash; None if it has none."""
    found = _SUMMED.fullmatch(path)
    return (found[1] + found[3], found[2]) if found else None


class _Builder:
    """Holds the sources during one build."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Asset] = {}

    def build(self) -> Build:
        """Return the pages and their built files."""
        pages = sorted(path.name for path in self._folder.glob("*.html"))
        return Build({name: Asset(name, self._page(name).encode()) for name in pages}, self._made)

    def _page(self, name: str) -> str:
        text = self._text(name)
        entries = _MODULE.findall(text)
        if len(entries) != 1:
            raise BundleError(name, 1, f"one module begins a page, not {len(entries)}")
        kind = "" if name == "index.html" else f"{posixpath.splitext(name)[0]}-"
        ((static, entry),) = entries
        style = self._make(kind + STYLE, "\n".join(self._sheet(path) for path in _SHEET.findall(text)))
        links = iter([f'\n    <link rel="stylesheet" href="{static}{style}">'])
        text = _SHEET.sub(lambda _: next(links, ""), text)
        text = _MODULE.sub(lambda _: self._script(kind, static, entry), text)
        return _NAMED.sub(lambda found: f'{found[1]}{self._address(found[2], name)}"', text)

    def _script(self, kind: str, static: str, entry: str) -> str:
        """Return the elements that load the script and, in parallel, its imports. `static`: the path to all files."""
        addresses = {path: f"./{self._address(path, path)}" for path, _ in files(self._folder)}
        modules = [path for path in addresses if path.endswith(".js") and not path.startswith(VENDOR)]
        sources = {path: self._text(path) for path in modules}
        joined = join(entry, sources, addresses, lambda script: f"./{self._make(kind + LATER, script)}")
        needs = [address.removeprefix("./") for address in joined.needs]
        preloads = [f'<link rel="modulepreload" href="{static}{name}">' for name in needs]
        script = f'<script type="module" src="{static}{self._make(kind + SCRIPT, joined.script)}"></script>'
        return "\n    ".join([*preloads, script])

    def _sheet(self, path: str) -> str:
        """Return a style sheet without comments; its URLs get hashes."""
        text = _CSS_GAP.sub(lambda found: found[1] or "", self._text(path))
        if "@import" in text:
            raise BundleError(path, 1, "`@import` can't be joined: link the sheet in index.html")
        folder = posixpath.dirname(path)
        return _CSS_ADDRESS.sub(
            lambda found: (
                f'url("{self._address(posixpath.normpath(posixpath.join(folder, found[2])), path)}")'
            ),
            re.sub(r"\s*\n\s*", "\n", text).strip(),
        )

    def _make(self, name: str, text: str) -> str:
        self._made[name] = Asset(name, text.encode())
        return summed(name, self._made[name])

    def _address(self, path: str, named_in: str) -> str:
        """Return the address of a file below `static/`, under which it may be cached for ever."""
        if unsummed(path) is not None or path.endswith(_KEPT_ADDRESSES):
            return path
        file = self._folder / path
        if not file.is_file():
            raise BundleError(named_in, 1, f"it names {path}, which is not there")
        return summed(path, Asset(path, file.read_bytes()))

    def _text(self, path: str) -> str:
        return (self._folder / path).read_text(encoding="utf-8")
