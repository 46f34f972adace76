"""Notes whose work a request is, for the places at the store, and weighs HTTP requests as the frames of sockets are weighed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from connections.limits.groups import address_group
from connections.limits.loop_turns import REQUEST, Guests
from sessions.store.redis.asker import crowding

API = "/v1/"
"""Where requests wait for the store, or an engine. Files and probes do not."""


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
        with crowding(partial(self._guests.are_held_up_by, group)):
            if scope["type"] == "http" and scope["path"].startswith(API):
                with self._request(group):
                    await self._app(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    def _request(self, group: str) -> AbstractContextManager[None]:
        is_guest = self._guests.has(group)
        self._guests.count(group, REQUEST)
        return self._guests.request() if is_guest else nullcontext()
