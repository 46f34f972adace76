"""Which pages may open a socket or send requests here (RFC 6454 origins; CORS of the Fetch standard).

Browsers do not apply CORS to WebSockets, so the server must. The browser's credentials (cookies) are never requested, so `*`
may mean every origin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connections.http.refusal_counters import Refusal, RefusalCounters
from connections.protocol.errors import InvalidList

ANY = "*"
"""Means every origin, opaque ones (`null`) included."""
_log = structlog.get_logger("midstream.authentication")
MAX_LOGGED_ORIGINS = 100
"""Refused origins that are logged, each once."""
MAX_LOGGED_CHARS = 200
"""Characters of one; its sender chooses it."""
_EXPOSED_HEADERS = (
    "Retry-After, Retry-After-Ms, X-Request-Id, Request-Id, X-Midstream-Ignored, X-Midstream-Code"
)


def is_allowed(
    origin: str | None, *, host: str | None, allowed: Collection[str], secure: bool = False
) -> bool:
    """Return whether a handshake with this `Origin` is allowed.

    Allowed are: no origin (no browser), the server's own (with host and port of the `Host` header), and exact members of
    `allowed`. An opaque origin (`null`) is not allowed. `secure`: the request came over TLS, so an own page did, too: others on
    the network can replace pages that did not.
    """
    if origin is None or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # not a URL, so not an allowed origin
        return False
    schemes = ("https",) if secure else ("http", "https")
    return parts.scheme in schemes and host is not None and parts.netloc.lower() == host.lower()


def is_secure(connection: HTTPConnection) -> bool:
    """Return whether a request came over TLS: to this server, or to a proxy that says so.

    Anybody may say so, since it only refuses more. Without the header, a proxy may still have taken it over TLS.
    """
    forwarded = connection.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    return connection.scope["scheme"] in ("https", "wss") or forwarded == "https"


class AllowedOrigins:
    """The listed origins, which may change."""

    def __init__(self, sources: Collection[str]) -> None:
        """`sources`: origins, `*` for all of them, and `@PATH` for files of them, one a line.

        Raises InvalidList if a file can't be read, or a `*` is a part of an origin.
        """
        self._sources = tuple(sources)
        self._listed = _read(self._sources)
        self._logged = set[str]()

    @property
    def admit_all(self) -> bool:
        """Whether pages of every origin may connect."""
        return ANY in self._listed

    def allow(self, origin: str | None, *, host: str | None, secure: bool = False) -> bool:
        """Return whether a request with these headers is allowed. One that is not is logged, once an origin."""
        if self.admit_all or is_allowed(origin, host=host, allowed=self._listed, secure=secure):
            return True
        self._log_refused(origin)
        return False

    def _log_refused(self, origin: str | None) -> None:
        """Log a refused origin: browsers show the author of its page no more than the number 403."""
        if (
            origin is None
            or len(self._logged) >= MAX_LOGGED_ORIGINS
            or (shown := origin[:MAX_LOGGED_CHARS]) in self._logged
        ):
            return
        self._logged.add(shown)
        _log.warning("origin refused", origin=shown, remedy="MIDSTREAM_ALLOWED_ORIGINS")

    def reload(self) -> None:
        """Reread the files; one that can't be read changes nothing and is logged."""
        try:
            self._listed = _read(self._sources)
        except InvalidList as error:
            _log.error("origins not reloaded, previous list kept", why=str(error))
            return
        self._logged.clear()
        _log.info("origins reloaded", origins=len(self._listed))


def _read(sources: tuple[str, ...]) -> frozenset[str]:
    """Return the listed origins. Raises InvalidList."""
    listed = frozenset(_listed(sources))
    if partly := sorted(origin for origin in listed if ANY in origin and origin != ANY):
        raise InvalidList(f"{partly[0]}: name an origin whole; only {ANY} alone means all of them.")
    if ANY in listed:
        _log.warning(
            "all origins allowed (MIDSTREAM_ALLOWED_ORIGINS has *)",
            meaning="Any web page that somebody opens can connect from their browser and do what they can do here. "
            "List the origins of your own pages instead, or ask for keys.",
        )
    return listed


def _listed(sources: tuple[str, ...]) -> Iterator[str]:
    for source in sources:
        if source.startswith("@"):
            yield from _of_file(Path(source[1:]).expanduser())
        else:
            yield source


def _of_file(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidList(
            f"{path} can't be read: {getattr(error, 'strerror', None) or 'no UTF-8 text'}."
        ) from None
    contents = (line.partition("#")[0].strip() for line in lines)
    yield from (content for content in contents if content)


class CorsMiddleware:
    """Stands before an application; `refusal` answers pages that are not allowed. Without `Origin`, as from an SDK, it does nothing."""

    def __init__(
        self,
        app: ASGIApp,
        origins: AllowedOrigins,
        refusals: RefusalCounters,
        *,
        method: str,
        refusal: Callable[[str | None], Response],
    ) -> None:
        self._app = app
        self._origins = origins
        self._refusals = refusals
        self._method = method
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, answer a preflight request, or refuse it."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        secure = is_secure(HTTPConnection(scope))
        if not self._origins.allow(origin, host=headers.get("host"), secure=secure):
            self._refusals.count(Refusal.ORIGIN)
            await self._refusal(origin)(scope, receive, send)
            return

        async def shown(message: Message) -> None:
            if message["type"] == "http.response.start" and origin is not None:
                shown_to = (
                    {"Access-Control-Allow-Origin": ANY} if self._origins.admit_all else _allow_origin(origin)
                )
                MutableHeaders(scope=message).update(
                    shown_to | {"Access-Control-Expose-Headers": _EXPOSED_HEADERS}
                )
            await send(message)

        app = self._preflight(headers) if scope["method"] == "OPTIONS" else self._app
        await app(scope, receive, shown)

    def _preflight(self, headers: Headers) -> Response:
        requested = headers.get("access-control-request-headers", "Authorization, Content-Type")
        return Response(
            status_code=204,
            headers={
                "Access-Control-Allow-Methods": self._method,
                "Access-Control-Allow-Headers": requested,
                "Access-Control-Max-Age": "600",
            },
        )


def _allow_origin(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
