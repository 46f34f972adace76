"""Serves the page: a few joined files that browsers cache for ever, and each source under its own name, revalidated on each use."""

from __future__ import annotations

import os
import stat
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic

import anyio.to_thread
import structlog
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Receive, Scope, Send

from app.delivery.build import Build, built, files, plain, unsummed
from app.delivery.encodings import Asset, Coding, chosen
from app.delivery.es_modules import BundleError

REVALIDATED = "no-cache"
"""Cached, but revalidated on each use: a new version shows at the next load."""
KEPT = "public, max-age=31536000, immutable"
"""Cached for ever: other content has another name."""
NOT_KEPT = "no-store"
"""For content of another version than the name says."""

LOOK_S = 0.25
"""Seconds between two checks of the sources. A check takes two milliseconds."""
Moment = tuple[int, int]
"""A file's modification time and length; they differ once it was written again."""

_log = structlog.get_logger("midstream.page")


class PageFiles(StaticFiles):
    """The page of a folder. If its modules can't be joined, they are served one by one, and the log says why.

    It checks the sources on each request for the page, so an edit shows at the next load.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder)
        self._folder = folder
        self._build: Build | None = None
        self._looked = 0.0
        self._seen: dict[str, Moment] = {}
        self._assets: dict[str, tuple[Moment, Asset]] = {}
        self._lock = Lock()

    async def page(self, scope: Scope, name: str = "index.html") -> Response:
        """Answer a request for a page itself."""
        build = await self._recent_build(LOOK_S)
        return await _answer(build.pages[name], REVALIDATED, scope)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer a request for a file. Raises HTTPException."""
        named = unsummed(path)
        if named is not None and scope["method"] in {"GET", "HEAD"}:
            build = await self._recent_build(inf)
            if (made := build.made.get(named[0])) is not None:
                return await _answer(made, _keeping(made, named[1]), scope)
        return await super().get_response(path, scope)

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file, with or without a hash in its name. Runs in a thread, since it may read the file."""
        found, facts = super().lookup_path(path)
        if facts is None and (named := unsummed(path)) is not None:
            found, facts = super().lookup_path(named[0])
        if facts is not None and stat.S_ISREG(facts.st_mode):
            self._read(found, facts)
        return found, facts

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Answer with a file. Ranges count its uncompressed bytes."""
        asset = self._assets[str(full_path)][1]
        named = unsummed(scope["path"])
        keeping = _keeping(asset, named[1]) if named is not None else REVALIDATED
        request_headers = Headers(scope=scope)
        if "range" in request_headers and "if-none-match" not in request_headers:
            headers = _headers(asset, Coding.IDENTITY, keeping)
            return FileResponse(full_path, status_code, headers, asset.media_type, stat_result=stat_result)
        return _Coded(asset, keeping)

    def _read(self, path: str, facts: os.stat_result) -> None:
        known = self._assets.get(path)
        if known is None or known[0] != _moment(facts):
            self._assets[path] = (_moment(facts), Asset(path, Path(path).read_bytes()))

    async def _recent_build(self, seconds: float) -> Build:
        """Return a build of the sources, checked at most so many seconds ago."""
        if self._build is not None and monotonic() - self._looked < seconds:
            return self._build
        return await anyio.to_thread.run_sync(self._newest)

    def _newest(self) -> Build:
        """Return the build of the current sources."""
        with self._lock:
            self._looked = monotonic()
            seen = {path: _moment(facts) for path, facts in files(self._folder)}
            if self._build is None or seen != self._seen:
                self._build, self._seen = _built(self._folder), seen
            return self._build


class _Coded(Response):
    """A file's bytes in the coding that the request prefers; coding it takes a thread."""

    def __init__(self, asset: Asset, keeping: str) -> None:
        super().__init__()
        self._asset = asset
        self._keeping = keeping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        response = await _answer(self._asset, self._keeping, scope)
        await response(scope, receive, send)


async def _answer(asset: Asset, keeping: str, scope: Scope) -> Response:
    request_headers = Headers(scope=scope)
    coding = chosen(request_headers.get("accept-encoding", "")) if asset.varies else Coding.IDENTITY
    headers = _headers(asset, coding, keeping)
    if _known(request_headers.get("if-none-match", ""), asset.tag(coding)):
        return NotModifiedResponse(Headers(headers))
    if asset.ready(coding):
        content = asset.coded(coding)
    else:
        content = await anyio.to_thread.run_sync(asset.coded, coding)
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


def _keeping(asset: Asset, digest: str) -> str:
    """During an upgrade a replica may be asked for a file of the other version: it answers with its own, uncached."""
    return KEPT if asset.digest == digest else NOT_KEPT


def _built(folder: Path) -> Build:
    try:
        return built(folder)
    except BundleError as why:
        _log.warning("page served unbundled", why=str(why))
        return plain(folder)


def _moment(facts: os.stat_result) -> Moment:
    return facts.st_mtime_ns, facts.st_size
