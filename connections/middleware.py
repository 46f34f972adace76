"""Decides which requests are served: by the client's address, the name of the server and the origin of the page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connections.http import RefusalCounters, RefusalReason
from connections.protocol.errors import InvalidList

PROXY_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip", "via")
"""Headers of proxies. A request from this machine that has one comes from somewhere else."""
MAX_LOGGED_PROXIES = 16
"""How many proxies that MIDSTREAM_TRUSTED_PROXIES lacks are logged, each once."""
HEALTH = ("/health", "/healthz", "/readyz")
_MESSAGES = {
    # without a setting's name: a refused client need not learn what runs here
    RefusalReason.ADDRESS: "Connections from your address are not allowed.",
    RefusalReason.HOST: "Unknown host name. The operator can allow it (MIDSTREAM_ALLOWED_HOSTS).",
}
_filter_log = structlog.get_logger("midstream.gate")
RefusalFactory = Callable[[Scope, int, str, str, Mapping[str, str]], Response]
"""Makes the answer to a refused request: a status, a code, a sentence, and headers."""

ANY = "*"
"""In a list of origins or host names: all of them; of origins, opaque ones (`null`) too."""


class ClientFilterMiddleware:
    """Passes requests on if their address is allowed and they name this server. Others get 403, also WebSocket handshakes.

    `/health`, `/healthz` and `/readyz` always answer this machine, by any name: an orchestrator's probe knows neither list.
    A page of another site can point its own name at this machine (DNS rebinding). Its requests then have the server's origin,
    and only their `Host` shows it. So a server on loopback, and one without authentication, answers only to names of loopback,
    unless more are set. `refuse` makes the refusals, in the format that each client expects.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        addresses: AllowedAddresses,
        hosts: AllowedHosts,
        refusals: RefusalCounters,
        refuse: RefusalFactory,
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._addresses = addresses
        self._hosts = hosts
        self._refusals = refusals
        self._logged_proxies = set[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        why = self._refusal(scope)
        if why is None:
            await self._app(scope, receive, send)
            return
        self._refusals.count(why)
        no = self._refuse(scope, 403, "forbidden", _MESSAGES[why], {"Connection": "close"})
        await no(scope, receive, send)

    def _refusal(self, scope: Scope) -> RefusalReason | None:
        headers, peer = Headers(scope=scope), (scope.get("client") or (None,))[0]
        forwarded = headers.getlist("x-forwarded-for")
        is_health = scope["path"] in HEALTH
        is_own_probe = is_health and is_loopback(peer) and not forwarded
        client = self._addresses.client(peer, forwarded)
        if not self._addresses.is_trusted(peer):
            if forwarded and peer is not None:
                self._warn_of_proxy(peer)
            if is_loopback(peer) and any(name in headers for name in PROXY_HEADERS):
                client = None
        set_client_address(scope, client)
        if not (is_own_probe or self._addresses.allows(client)):
            return RefusalReason.ADDRESS
        if not (is_health or self._hosts.allows(headers.getlist("host"))):
            return RefusalReason.HOST
        return None

    def _warn_of_proxy(self, peer: str) -> None:
        if peer in self._logged_proxies or len(self._logged_proxies) >= MAX_LOGGED_PROXIES:
            return
        self._logged_proxies.add(peer)
        _filter_log.warning(
            "X-Forwarded-For from untrusted proxy ignored",
            peer=peer,
            remedy=f"If {peer} is your proxy, add it to MIDSTREAM_TRUSTED_PROXIES. Until then all of its clients count as one "
            "address and share its limits.",
        )


class AllowedHosts(msgspec.Struct, frozen=True):
    """`names`: lower case, without ports; `*.example.org` matches every name below it; None: any name.

    `addresses`: whether any IP address is one of them, since nobody can point an address at another machine.
    """

    names: frozenset[str] | None
    addresses: bool = False

    def allows(self, headers: Sequence[str]) -> bool:
        """Return whether a request with these `Host` headers is for this server. A request without one is not from a browser."""
        if self.names is None or not headers:
            return True
        if len(headers) > 1:
            return False
        name = _name(headers[0])
        if self.addresses and _address(name) is not None:
            return True
        below = (one[1:] for one in self.names if one.startswith("*."))
        return is_loopback_name(name) or name in self.names or name.endswith(tuple(below))


def allowed_hosts_for(allowed: Collection[str], *, listening: str, authenticates: bool) -> AllowedHosts:
    """Return the rule for an operator's list and the listening address.

    Without authentication, a page that passes may do whatever its reader may. So only `*` allows every name.
    """
    is_local = is_loopback_name(listening.lower())
    if ANY in allowed or (not (allowed or is_local) and authenticates):
        return AllowedHosts(None)
    names = frozenset(_name(name) for name in (*allowed, listening))
    return AllowedHosts(names, addresses=not (is_local or authenticates))


def is_loopback_name(name: str) -> bool:
    """Return whether a lower-case name means this machine to every resolver (RFC 6761, section 6.3)."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _name(host: str) -> str:
    """Return the name in a `Host` header, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.removesuffix(".")


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AllowedAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed`: addresses that may connect, or none for all; `trusted`: the trusted proxies."""

    allowed: tuple[Network, ...] = ()
    trusted: tuple[Network, ...] = ()

    def client(self, peer: str | None, forwarded_for: Sequence[str]) -> Address | None:
        """Return the nearest address that is not a trusted proxy's; None if a trusted proxy wrote no address.

        `peer`: the other end of the TCP connection; `forwarded_for`: the values of the header's lines, in order. The header is
        read from the right, only as far as trusted proxies wrote it. If all hops are trusted, the result is the farthest one.
        """
        client = None if peer is None else _address(peer)
        hops = [hop.strip() for line in forwarded_for for hop in line.split(",")]
        while hops and client is not None and _is_in(client, self.trusted):
            client = _address(hops.pop())
        return client

    def is_trusted(self, peer: str | None) -> bool:
        """Return whether this peer is a trusted proxy."""
        address = None if peer is None else _address(peer)
        return address is not None and _is_in(address, self.trusted)

    def allows(self, client: Address | None) -> bool:
        """Return whether the client with this address may connect. With a list, an unknown address may not."""
        return not self.allowed or (client is not None and _is_in(client, self.allowed))


_CLIENT = "midstream.client"


def set_client_address(scope: MutableMapping[str, Any], address: Address | None) -> None:
    """Note the address of a request's client for the application."""
    scope[_CLIENT] = address


def client_address_of(scope: Mapping[str, Any]) -> Address | None:
    """Return the address of a request's client, as `ClientFilterMiddleware` noted it."""
    found: Address | None = scope[_CLIENT]
    return found


def is_private(address: Address | None) -> bool:
    """Return whether this is an address of this machine or of a private network."""
    return address is not None and not address.is_global


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read CIDR ranges and single addresses. Raises ValueError, which names the one that is neither."""
    return tuple(ip_network(text) for text in texts)


def is_loopback(peer: str | None) -> bool:
    """Return whether the other end is this machine."""
    address = None if peer is None else _address(peer)
    return address is not None and address.is_loopback


def _address(text: str) -> Address | None:
    """Read an address as peers and proxies write it: bare, in brackets, or followed by a port."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


_origins_log = structlog.get_logger("midstream.authentication")
MAX_LOGGED_ORIGINS = 100
"""How many refused origins are logged, each once."""
MAX_LOGGED_CHARS = 200
"""The most characters of a logged origin, since its sender chooses it."""
_EXPOSED_HEADERS = (
    "Retry-After, Retry-After-Ms, X-Request-Id, Request-Id, X-Midstream-Ignored, X-Midstream-Code"
)


def is_allowed(
    origin: str | None, *, host: str | None, allowed: Collection[str], secure: bool = False
) -> bool:
    """Return whether a handshake with this `Origin` is allowed.

    Allowed are: no origin (no browser), the server's own (with host and port of the `Host` header), and exact members of
    `allowed`. An opaque origin (`null`) is not allowed. `secure`: the request came over TLS, so the
    server's own origin must be https: others on the network can replace pages over http.
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
    """Return whether a request came over TLS: to this server or, by `X-Forwarded-Proto`, to a proxy.

    Any client may send the header, since it only refuses more. Even without it, a request to a proxy may have used TLS.
    """
    forwarded = connection.headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    return connection.scope["scheme"] in ("https", "wss") or forwarded == "https"


class AllowedOrigins:
    """The origins whose pages may open a socket or send requests here (RFC 6454). The list may change.

    Browsers do not apply CORS to WebSockets, so the server must. The browser's credentials (cookies) are never requested, so
    `*` may mean every origin.
    """

    def __init__(self, sources: Collection[str]) -> None:
        """`sources`: origins, `*` for all of them, and `@PATH` for files with one origin a line.

        Raises InvalidList if a file can't be read, or a `*` is only a part of an origin.
        """
        self._sources = tuple(sources)
        self._listed = _read(self._sources)
        self._logged = set[str]()

    @property
    def admit_all(self) -> bool:
        """Whether pages of every origin may connect."""
        return ANY in self._listed

    def allow(self, origin: str | None, *, host: str | None, secure: bool = False) -> bool:
        """Return whether a request with these headers is allowed. A refused origin is logged once."""
        if self.admit_all or is_allowed(origin, host=host, allowed=self._listed, secure=secure):
            return True
        self._log_refused(origin)
        return False

    def _log_refused(self, origin: str | None) -> None:
        """Log a refused origin: all that browsers show the author of its page is the number 403."""
        if (
            origin is None
            or len(self._logged) >= MAX_LOGGED_ORIGINS
            or (shown := origin[:MAX_LOGGED_CHARS]) in self._logged
        ):
            return
        self._logged.add(shown)
        _origins_log.warning("origin refused", origin=shown, remedy="MIDSTREAM_ALLOWED_ORIGINS")

    def reload(self) -> None:
        """Reread the files; one that can't be read changes nothing and is logged."""
        try:
            self._listed = _read(self._sources)
        except InvalidList as error:
            _origins_log.error("origins not reloaded, previous list kept", why=str(error))
            return
        self._logged.clear()
        _origins_log.info("origins reloaded", origins=len(self._listed))


def _read(sources: tuple[str, ...]) -> frozenset[str]:
    """Return the listed origins. Raises InvalidList."""
    listed = frozenset(_listed(sources))
    if partly := sorted(origin for origin in listed if ANY in origin and origin != ANY):
        raise InvalidList(f"{partly[0]}: write origins in full; only {ANY} by itself means all of them.")
    if ANY in listed:
        _origins_log.warning(
            "all origins allowed (MIDSTREAM_ALLOWED_ORIGINS has *)",
            meaning="Any web page that somebody opens can connect from their browser and do whatever they may do here. "
            "List the origins of your own pages instead, or require keys.",
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
            f"{path} can't be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}."
        ) from None
    contents = (line.partition("#")[0].strip() for line in lines)
    yield from (content for content in contents if content)


class CorsMiddleware:
    """CORS for an application; `refusal` answers pages that are not allowed. Requests without `Origin`, as from an SDK, pass."""

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
            self._refusals.count(RefusalReason.ORIGIN)
            await self._refusal(origin)(scope, receive, send)
            return

        async def shown(message: Message) -> None:
            if message["type"] == "http.response.start" and origin is not None:
                headers = MutableHeaders(scope=message)
                headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
                headers["Access-Control-Allow-Origin"] = ANY if self._origins.admit_all else origin
                if not self._origins.admit_all:
                    headers["Vary"] = "Origin"
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
