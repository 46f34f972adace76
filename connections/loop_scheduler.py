"""Spreads the work of many sockets over iterations of the event loop, a few pieces in each.

Addresses are served in rotation, and light clients, those with little recent work, come first: a person who sends now and then
does not wait behind twenty peers that never stop. Otherwise everybody's text and pongs would wait for all of the work, however
little each socket may send.
While a light client's request is under way, the others begin less: each of its steps would wait for what they began. HTTP
requests count like frames of sockets.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from connections.authentication.caller import address_group
from sessions.limits.slots import with_heaviness

WINDOW = 1024
"""Pieces of recent work that are remembered."""
SHARE = 2
"""A group is light if it had at most half of an equal share of the remembered pieces: it rarely sends requests."""
PIECES_PER_ITERATION = 4
"""Pieces in one iteration of the event loop: if they are answered frames, a millisecond's work."""
REQUEST_COST = 8
"""How many more pieces than its first one a request counts as, if it waits for the store or an engine."""
LIGHT_ONLY_ITERATIONS = 8
"""While a light client's request is under way, others get pieces in one of this many iterations."""
LIGHT_PRIORITY_S = 1.0
"""How long other clients leave places free after a light client's request. Without light clients they may take all."""
MAX_PRIORITY_S = 0.25
"""How long one request of a light client may make others wait: some requests last as long as a reply."""

_Waiting = OrderedDict[str, deque[Callable[[], None]]]


class LightClients:
    """Knows which groups had little of the recent work, and how many of their requests are under way. A server has one."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._works: deque[tuple[str, int]] = deque()
        self._pieces = 0
        self._had: Counter[str] = Counter()
        self._requests = set[object]()
        self._requested_at = -math.inf

    def count(self, group: str, pieces: int = 1) -> None:
        """Count work that a group causes."""
        self._works.append((group, pieces))
        self._had[group] += pieces
        self._pieces += pieces
        while self._pieces > self._window:
            forgotten, had = self._works.popleft()
            self._pieces -= had
            self._had[forgotten] -= had
            if not self._had[forgotten]:
                del self._had[forgotten]

    def has(self, group: str) -> bool:
        """Return whether a group is light."""
        return SHARE * len(self._had) * self._had.get(group, 0) <= self._pieces

    def must_yield(self, group: str) -> bool:
        """Return whether a light client sent a request lately, and this group is not light."""
        return time.monotonic() - self._requested_at < LIGHT_PRIORITY_S and not self.has(group)

    @property
    def requests(self) -> int:
        """How many requests of light clients are under way."""
        return len(self._requests)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a light client's request while the block lasts, for `MAX_PRIORITY_S` at most."""
        self._requests.add(one := object())
        self._requested_at = time.monotonic()
        timer = asyncio.get_running_loop().call_later(MAX_PRIORITY_S, self._requests.discard, one)
        try:
            yield
        finally:
            timer.cancel()
            self._requests.discard(one)


class FairLoopScheduler:
    """Schedules pieces of work: round robin between groups, first come, first served within a group."""

    def __init__(
        self, at_once: int = PIECES_PER_ITERATION, light_clients: LightClients | None = None
    ) -> None:
        self.light_clients = light_clients or LightClients()
        self._light_only_count = 0
        self._at_once = self._left = at_once
        self._first: _Waiting = OrderedDict()
        self._waiting: _Waiting = OrderedDict()
        self._is_armed = False

    def is_light(self, group: str) -> bool:
        """Return whether a group had few pieces lately."""
        return self.light_clients.has(group)

    def take_nowait(self, group: str) -> bool:
        """Take a piece of this iteration if nobody waits and one is left; return whether that was possible."""
        if not self._left or self._first or self._waiting:
            return False
        if self.light_clients.requests and not self.is_light(group):
            return False
        self._count(group)
        self._arm()
        return True

    async def take(self, group: str) -> None:
        """Wait for a piece."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue(group, partial(_grant, granted))
        await granted

    def queue(self, group: str, callback: Callable[[], None]) -> None:
        """Call back in a later iteration of the event loop."""
        callbacks = self._first.get(group) or self._waiting.get(group)
        if callbacks is None:
            callbacks = self._queue_of(group)[group] = deque()
        callbacks.append(callback)
        self._arm()

    def _queue_of(self, group: str) -> _Waiting:
        return self._first if self.is_light(group) else self._waiting

    def _count(self, group: str) -> None:
        self._left -= 1
        self.light_clients.count(group)

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            # in its own context: what begins there is not done on behalf of whoever came first
            asyncio.get_running_loop().call_soon(self._next, context=Context())

    def _next(self) -> None:
        """Call back for the pieces of one iteration. A callback may queue the next piece."""
        self._is_armed = False
        self._left = self._at_once
        self._promote_first()
        is_light_only = self._is_light_only()
        while self._left and (waiting := self._first or (None if is_light_only else self._waiting)):
            group, callbacks = waiting.popitem(last=False)
            callback = callbacks.popleft()
            self._count(group)
            if callbacks:
                self._queue_of(group)[group] = callbacks
            callback()
        if self._first or self._waiting:
            self._arm()

    def _promote_first(self) -> None:
        """Move the first of the other groups to the light ones once it is light: newcomers must not keep it waiting forever."""
        if self._waiting and self.is_light(first := next(iter(self._waiting))):
            self._first[first] = self._waiting.pop(first)

    def _is_light_only(self) -> bool:
        """Return whether only light clients get pieces of this iteration."""
        if not (self.light_clients.requests and self._waiting):
            self._light_only_count = 0
            return False
        self._light_only_count += 1
        if self._light_only_count >= LIGHT_ONLY_ITERATIONS:
            self._light_only_count = 0
        return self._light_only_count > 0


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():  # its socket may be closed
        granted.set_result(None)


API = "/v1/"
"""Requests below this path wait for the store, or an engine; files and probes do not."""


class FairShareMiddleware:
    """Notes which group a request's work is for, and whether it is heavy. It runs after the middleware that notes the client's address."""

    def __init__(self, app: ASGIApp, light_clients: LightClients) -> None:
        self._app = app
        self._light_clients = light_clients

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Requests without an address of their own, as behind an unknown proxy, belong to no group."""
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
