"""The first check of every request: whether its address is allowed, and whether it names this server.

Others get 403, also a WebSocket's handshake. `/health`, `/healthz` and `/readyz` always answer this machine, under any name:
an orchestrator's probe knows neither list. A page of another site can point its own name at this machine (DNS rebinding). Its
requests then have the server's origin, and only their `Host` shows it. So a server on loopback, and one without
authentication, answers only to loopback's names, unless more are set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_address

import msgspec
import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.http.refusal_counters import Refusal, RefusalCounters
from connections.middleware.client_address import AllowedAddresses, is_loopback, set_client_address

PROXY_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip", "via")
"""Headers of proxies. A request from this machine that has one comes from somewhere else."""
MAX_LOGGED_PROXIES = 16
"""Proxies that are missing in MIDSTREAM_TRUSTED_PROXIES and are logged, each once."""
HEALTH = ("/health", "/healthz", "/readyz")
_MESSAGES = {
    # names no setting: a refused client need not learn what runs here
    Refusal.ADDRESS: "Your address may not connect here.",
    Refusal.HOST: "This server does not answer to that name. Its operator allows names by MIDSTREAM_ALLOWED_HOSTS.",
}
_log = structlog.get_logger("midstream.gate")
RefusalFactory = Callable[[Scope, int, str, str, Mapping[str, str]], Response]
"""Makes the answer to a refused request: a status, a code, a sentence, and headers."""
ANY = "*"


class ClientFilterMiddleware:
    """Stands before an ASGI application. `refuse` makes its refusals, in the shape that each client reads."""

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

    def _refusal(self, scope: Scope) -> Refusal | None:
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
            return Refusal.ADDRESS
        if not (is_health or self._hosts.allows(headers.getlist("host"))):
            return Refusal.HOST
        return None

    def _warn_of_proxy(self, peer: str) -> None:
        if peer in self._logged_proxies or len(self._logged_proxies) >= MAX_LOGGED_PROXIES:
            return
        self._logged_proxies.add(peer)
        _log.warning(
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
        """Return whether a request with these `Host` headers is for this server. Without one it is not from a browser."""
        if self.names is None or not headers:
            return True
        if len(headers) > 1:
            return False
        name = _name(headers[0])
        if self.addresses and _is_address(name):
            return True
        return is_loopback_name(name) or name in self.names or any(_is_below(name, one) for one in self.names)


def allowed_hosts_for(allowed: Collection[str], *, listening: str, authenticates: bool) -> AllowedHosts:
    """Make the rule from an operator's list and the listening address.

    Without authentication, a page that gets past it may do what its reader may. So any name has to be allowed by `*`.
    """
    is_local = is_loopback_name(listening.lower())
    if ANY in allowed or (not (allowed or is_local) and authenticates):
        return AllowedHosts(None)
    names = frozenset(_name(name) for name in (*allowed, listening))
    return AllowedHosts(names, addresses=not (is_local or authenticates))


def is_loopback_name(name: str) -> bool:
    """Return whether every resolver takes a lower-case name for this machine (RFC 6761, section 6.3)."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """Return the name in a `Host` header, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.removesuffix(".")


def _is_below(name: str, pattern: str) -> bool:
    return pattern.startswith("*.") and name.endswith(pattern[1:])
