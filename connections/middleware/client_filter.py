"""The first check of every request: whether its address is allowed, and whether it names this server.

Others get 403, also a WebSocket's handshake. `/health`, `/healthz` and `/readyz` always answer this machine, under any name: an
orchestrator's probe knows neither list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.http.refusal_counters import Refusal, RefusalCounters
from connections.middleware.client_address import AllowedAddresses, is_loopback, set_client_address
from connections.middleware.hosts import AllowedHosts

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
