"""Weighs HTTP requests and handshakes as the frames of sockets are weighed, so that those of a crowd hold up few others."""

from __future__ import annotations

from contextlib import nullcontext

from starlette.types import ASGIApp, Receive, Scope, Send

from connections.limits.groups import address_group
from connections.limits.loop_turns import REQUEST, Guests
from sessions.store.redis.asker import note_crowd


class Weighing:
    """Stands before an ASGI application, behind what notes the client's address."""

    def __init__(self, app: ASGIApp, guests: Guests) -> None:
        self._app = app
        self._guests = guests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Those without an address of their own, as behind an unknown proxy, are of no crowd."""
        if scope["type"] == "lifespan" or not (group := address_group(scope)):
            await self._app(scope, receive, send)
            return
        is_guest = self._guests.has(group)
        note_crowd(is_crowd=not is_guest)
        self._guests.count(group, REQUEST)
        hurries = is_guest and scope["type"] == "http"
        with self._guests.request() if hurries else nullcontext():
            await self._app(scope, receive, send)
