"""The first check of every request: whether its address is allowed, and whether it names this server.

Others get 403, also a WebSocket's handshake. `/health`, `/healthz` and `/readyz` always answer this machine, under any name: an
orchestrator's probe knows neither list.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.gate.client_address import AddressRule, is_loopback, note_client
from connections.gate.hosts import HostRule
from connections.http.json_answers import refusal
from connections.http.refusals import Refusal, Refusals

HEALTH = ("/health", "/healthz", "/readyz")
_WORDS = {
    # names no setting: a refused client need not learn what runs here
    Refusal.ADDRESS: "Your address may not connect here.",
    Refusal.HOST: "This server does not answer to that name. Its operator allows names by MIDSTREAM_ALLOWED_HOSTS.",
}


class Gate:
    """Stands before an ASGI application."""

    def __init__(self, app: ASGIApp, *, addresses: AddressRule, hosts: HostRule, refusals: Refusals) -> None:
        self._app = app
        self._addresses = addresses
        self._hosts = hosts
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        why = self._refusal(scope)
        if why is None:
            await self._app(scope, receive, send)
            return
        self._refusals.count(why)
        no = refusal(403, "forbidden", _WORDS[why], {"Connection": "close"})
        await no(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers, peer = Headers(scope=scope), (scope.get("client") or (None,))[0]
        forwarded = headers.getlist("x-forwarded-for")
        is_health = scope["path"] in HEALTH
        is_own_probe = is_health and is_loopback(peer) and not forwarded
        note_client(scope, self._addresses.client(peer, forwarded))
        if not (is_own_probe or self._addresses.admits(peer, forwarded)):
            return Refusal.ADDRESS
        if not (is_health or self._hosts.admits(headers.getlist("host"))):
            return Refusal.HOST
        return None
