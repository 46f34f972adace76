"""Notes whose work a request is, for the places at the store, and weighs HTTP requests as the frames of sockets are weighed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from connections.limits.loop_scheduler import REQUEST_COST, LightClients
from connections.limits.owner_groups import address_group
from sessions.store.pool import with_heaviness

API = "/v1/"
"""Where requests wait for the store, or an engine. Files and probes do not."""


class FairShareMiddleware:
    """Stands before an ASGI application, behind what notes the client's address."""

    def __init__(self, app: ASGIApp, light_clients: LightClients) -> None:
        self._app = app
        self._light_clients = light_clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Those without an address of their own, as behind an unknown proxy, are of no crowd."""
        if scope["type"] == "lifespan" or not (group := address_group(scope)):
            await self._app(scope, receive, send)
            return
        with with_heaviness(partial(self._light_clients.must_yield, group)):
            if scope["type"] == "http" and scope["path"].startswith(API):
                with self._request(group):
                    await self._app(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    def _request(self, group: str) -> AbstractContextManager[None]:
        is_light = self._light_clients.has(group)
        self._light_clients.count(group, REQUEST_COST)
        return self._light_clients.request() if is_light else nullcontext()
