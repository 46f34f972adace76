"""Serves the page: a few joined files that browsers cache forever, and each source under its own name, revalidated on each use."""

from __future__ import annotations

import asyncio
import gzip
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from importlib.util import find_spec
from math import inf
from pathlib import Path, PurePath
from threading import Lock
from time import monotonic

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.es_modules import BundleError, join

REVALIDATED = "no-cache"
"""Cached, but revalidated on each use: a new version shows at the next load."""
KEPT = "public, max-age=31536000, immutable"
"""Cached forever: changed content gets another name."""
NOT_KEPT = "no-store"
"""For content of another version than the one named."""
LOOK_S = 0.25
"""Seconds between two checks of the sources. A check takes two milliseconds."""
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Media types of the page's files, independent of the machine's own list."""
_REFUSED = re.compile(r";\s*q=0(\.0*)?\s*$")
_COMPRESSED = {".png", ".woff2"}
_SMALL = 256
"""Files of fewer bytes are not compressed: they fit into one packet with their headers."""
_DIGITS = 16
"""Hexadecimal digits of the SHA-256 sum, in tags and in names."""
SCRIPT = "start.js"
STYLE = "style.css"
VENDOR = "vendor/"
"""Folder of bundles that stay separate files: they rarely change, and some are loaded on demand."""
# Addresses are relative, since a proxy may serve the page below a path.
_SHEET = re.compile(r'\n *<link rel="stylesheet" href="(?:\.\./)?static/([^"]+)">')
_MODULE = re.compile(r'<script type="module" src="((?:\.\./)?static/)([^"]+)"></script>')
_NAMED = re.compile(r'\b((?:href|src)="(?:\.\./)?static/)([^"]+)"')
_SUMMED = re.compile(r"(.+)\.([0-9a-f]{16})(\.[a-z0-9]+)")
_CSS_GAP = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|/\*.*?\*/""", re.DOTALL)
_CSS_ADDRESS = re.compile(r"""url\((["']?)(?!data:|/|#)([^)"']+)\1\)""")
_KEPT_ADDRESSES = (".webmanifest", ".html")
"""Files that keep their addresses: an installed page asks for its manifest there."""

_log = structlog.get_logger("midstream.page")


Moment = tuple[int, int]
"""A file's modification time and length, which differ once it is written again."""


class PageFiles:
    """Serves the page in a folder. If its modules can't be joined, they are served one by one, and the log says why.

    The sources are checked on each request for the page or a source, so an edit shows at the next load.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._build: Build | None = None
        self._looked = 0.0
        self._seen: dict[str, Moment] = {}
        self._lock = Lock()

    async def page(self, request: Request, name: str = "index.html") -> Response:
        """Answer a request for a page itself."""
        build = await self._recent_build(LOOK_S)
        return await _answer(build.pages[name], REVALIDATED, request)

    async def file(self, request: Request) -> Response:
        """Answer a request for a file, with or without a hash in its name. Raises HTTPException."""
        path: str = request.path_params["path"]
        named = unsummed(path)
        build = await self._recent_build(LOOK_S if named is None else inf)
        plain, digest = named or (path, "")
        asset = (named and build.made.get(plain)) or build.files.get(plain)
        if asset is None:
            raise HTTPException(404)
        keeping = REVALIDATED
        if named is not None:  # during an upgrade a replica may be asked for another version's file
            keeping = KEPT if asset.digest == digest else NOT_KEPT
        return await _answer(asset, keeping, request)

    async def _recent_build(self, seconds: float) -> Build:
        """Return a build of the sources, checked at most `seconds` ago."""
        if self._build is not None and monotonic() - self._looked < seconds:
            return self._build
        return await asyncio.to_thread(self._newest)

    def _newest(self) -> Build:
        """Return the build of the current sources."""
        with self._lock:
            self._looked = monotonic()
            seen = {path: (facts.st_mtime_ns, facts.st_size) for path, facts in files(self._folder)}
            if self._build is None or seen != self._seen:
                self._build, self._seen = _built(self._folder), seen
            return self._build


async def _answer(asset: Asset, keeping: str, request: Request) -> Response:
    coding = chosen(request.headers.get("accept-encoding", "")) if asset.varies else Coding.IDENTITY
    headers = _headers(asset, coding, keeping)
    if _known(request.headers.get("if-none-match", ""), asset.tag(coding)):
        return Response(status_code=304, headers=headers)
    if asset.ready(coding):
        content = asset.coded(coding)
    else:
        content = await asyncio.to_thread(asset.coded, coding)
    return Response(content, headers=headers, media_type=asset.media_type)


def _headers(asset: Asset, coding: Coding, keeping: str) -> dict[str, str]:
    headers = {"Cache-Control": keeping, "ETag": asset.tag(coding)}
    if asset.varies:
        headers["Vary"] = "Accept-Encoding"
    if coding is not Coding.IDENTITY:
        headers["Content-Encoding"] = coding
    return headers


def _known(tags: str, tag: str) -> bool:
    """Whether a browser has these bytes. A proxy that recodes them writes `W/` before the tag."""
    return tags.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in tags.split(","))


def _built(folder: Path) -> Build:
    try:
        return built(folder)
    except BundleError as why:
        _log.warning("page served unbundled", why=str(why))
        sources = _sources(folder)
        pages = {path: source for path, source in sources.items() if path.endswith(".html")}
        return Build(pages, {}, sources)  # the pages as they are


def _sources(folder: Path) -> dict[str, Asset]:
    return {path: Asset(path, (folder / path).read_bytes()) for path, _ in files(folder)}


class Coding(StrEnum):
    """Content codings, the smallest result first."""

    BROTLI = "br"
    GZIP = "gzip"
    IDENTITY = "identity"


_OFFERED = (Coding.GZIP,) if find_spec("brotli") is None else (Coding.BROTLI, Coding.GZIP)
"""Brotli is in the extra `fast`."""


class Asset:
    """The bytes of a file. Each coding is made once, on first use: brotli takes a tenth of a second for 100 KB."""

    def __init__(self, name: str, content: bytes) -> None:
        suffix = PurePath(name).suffix
        self.media_type = TYPES.get(
            suffix, "text/plain; charset=utf-8" if not suffix else "application/octet-stream"
        )
        self.content = content
        self.digest = sha256(content).hexdigest()[:_DIGITS]
        self.varies = suffix not in _COMPRESSED and len(content) >= _SMALL
        self._coded: dict[Coding, bytes] = {Coding.IDENTITY: content}
        self._lock = Lock()

    def tag(self, coding: Coding) -> str:
        """Return the entity tag of the bytes in this coding."""
        return f'"{self.digest}"' if coding is Coding.IDENTITY else f'"{self.digest}-{coding}"'

    def ready(self, coding: Coding) -> bool:
        """Whether the bytes in this coding are there already."""
        return coding in self._coded

    def coded(self, coding: Coding) -> bytes:
        """The bytes in this coding."""
        with self._lock:
            if coding not in self._coded:
                self._coded[coding] = _compressed(self.content, coding)
            return self._coded[coding]


def chosen(accepted: str) -> Coding:
    """Return the coding with the smallest result among those that an `Accept-Encoding` header names (RFC 9110, 12.5.3)."""
    named = [part.strip() for part in accepted.lower().split(",")]
    names = {part.partition(";")[0].rstrip() for part in named if not _REFUSED.search(part)}
    return next((coding for coding in _OFFERED if coding in names), Coding.IDENTITY)


def _compressed(content: bytes, coding: Coding) -> bytes:
    if coding is Coding.BROTLI:
        import brotli  # noqa: PLC0415 - in the extra `fast`

        return bytes(brotli.compress(content, mode=brotli.MODE_TEXT))
    return gzip.compress(content, compresslevel=9, mtime=0)


class Build(msgspec.Struct, frozen=True):
    """The pages, the files made from their sources, and the sources, by their plain names."""

    pages: dict[str, Asset]
    made: dict[str, Asset]
    files: dict[str, Asset]


def built(folder: Path) -> Build:
    """Build the pages of a folder; each HTML file in it is one. Raises BundleError."""
    return _Builder(folder).build()


def files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below a folder, by its path there, without editors' temporary files."""
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
    """Builds the pages of a folder, once."""

    def __init__(self, folder: Path) -> None:
        self._sources = _sources(folder)
        self._made: dict[str, Asset] = {}

    def build(self) -> Build:
        """Return the pages and their built files."""
        names = [path for path in self._sources if path.endswith(".html") and "/" not in path]
        pages = {name: Asset(name, self._page(name).encode()) for name in names}
        return Build(pages, self._made, self._sources)

    def _page(self, name: str) -> str:
        text = self._text(name)
        entries = _MODULE.findall(text)
        if len(entries) != 1:
            raise BundleError(name, f"a page must start one module, not {len(entries)}")
        kind = "" if name == "index.html" else f"{posixpath.splitext(name)[0]}-"
        ((static, entry),) = entries
        style = self._make(kind + STYLE, "\n".join(self._sheet(path) for path in _SHEET.findall(text)))
        links = iter([f'\n    <link rel="stylesheet" href="{static}{style}">'])
        text = _SHEET.sub(lambda _: next(links, ""), text)
        text = _MODULE.sub(lambda _: self._script(kind, static, entry), text)
        return _NAMED.sub(lambda found: f'{found[1]}{self._address(found[2], name)}"', text)

    def _script(self, kind: str, static: str, entry: str) -> str:
        """Return the elements that load the script and, in parallel, its imports. `static`: the path to all files."""
        addresses = {path: f"./{self._address(path, path)}" for path in self._sources}
        modules = [path for path in addresses if path.endswith(".js") and not path.startswith(VENDOR)]
        sources = {path: self._text(path) for path in modules}
        joined = join(entry, sources, addresses)
        needs = [address.removeprefix("./") for address in joined.needs]
        preloads = [f'<link rel="modulepreload" href="{static}{name}">' for name in needs]
        script = f'<script type="module" src="{static}{self._make(kind + SCRIPT, joined.script)}"></script>'
        return "\n    ".join([*preloads, script])

    def _sheet(self, path: str) -> str:
        """Return a style sheet without comments; its URLs get hashes."""
        text = _CSS_GAP.sub(lambda found: found[1] or "", self._text(path))
        if "@import" in text:
            raise BundleError(path, "`@import` can't be joined: link the sheet in index.html")
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
        """Return the address of a file below `static/`, under which it may be cached forever."""
        if unsummed(path) is not None or path.endswith(_KEPT_ADDRESSES):
            return path
        if path not in self._sources:
            raise BundleError(named_in, f"it names {path}, which does not exist")
        return summed(path, self._sources[path])

    def _text(self, path: str) -> str:
        return self._sources[path].content.decode()
