"""Spreads the work of many sockets over turns of the event loop, a few pieces in each.

Addresses take turns, and light clients come first, those with little recent work: a person who sends now and then does not wait
behind twenty peers that never stop. Otherwise everybody's text and pongs would wait for all of the work, however little each
socket may send.
While a light client's request is under way, the others begin less: each of its steps would wait for what they began. HTTP
requests are weighed as the frames of sockets are.
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
PART = 2
"""A group that had at most half of an even part of them is light: it asks seldom."""
PIECES_PER_ITERATION = 4
"""Pieces in one turn of the event loop: a millisecond's work of answered frames."""
REQUEST_COST = 8
"""What a request that waits for the store, or an engine, counts beside the piece that began it."""
LIGHT_ONLY_ITERATIONS = 8
"""Turns of the loop in one of which others get pieces, while a guest's request is under way."""
LIGHT_PRIORITY_S = 1.0
"""Seconds after a guest's request in which a crowd leaves places free. Without guests they are everybody's."""
MAX_PRIORITY_S = 0.25
"""Seconds for which one request of a guest has others wait: some last as long as a reply."""

_Waiting = OrderedDict[str, deque[Callable[[], None]]]


class LightClients:
    """Which groups had little of the recent work, and how many requests of theirs are under way. One for a server."""

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
        """Return whether a group had at most half of an even part."""
        return PART * len(self._had) * self._had.get(group, 0) <= self._pieces

    def must_yield(self, group: str) -> bool:
        """Return whether a light client asked for something lately, and this group is none of them."""
        return time.monotonic() - self._requested_at < LIGHT_PRIORITY_S and not self.has(group)

    @property
    def requests(self) -> int:
        """How many requests of light clients are under way."""
        return len(self._requests)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one more while the block lasts, `MAX_PRIORITY_S` at most."""
        self._requests.add(one := object())
        self._requested_at = time.monotonic()
        timer = asyncio.get_running_loop().call_later(MAX_PRIORITY_S, self._requests.discard, one)
        try:
            yield
        finally:
            timer.cancel()
            self._requests.discard(one)


class FairLoopScheduler:
    """One for all sockets of a server: round robin between groups, first come first served within one."""

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
        """Take a piece of this turn, if nobody waits and one is left."""
        if not self._left or self._first or self._waiting:
            return False
        if self.light_clients.requests and not self.is_light(group):
            return False
        self._count(group)
        self._arm()
        return True

    async def take(self, group: str) -> None:
        """Wait for a piece."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue(group, partial(_begin, turn))
        await turn

    def queue(self, group: str, callback: Callable[[], None]) -> None:
        """Call back in a later turn of the loop."""
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
            # in a context of its own: what begins there is not the work of whoever came first
            asyncio.get_running_loop().call_soon(self._next, context=Context())

    def _next(self) -> None:
        """Begin the loop's next turn. A callback may queue the next one."""
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
        """Have the first of the others among the guests once it had little, so that a stream of newcomers keeps nobody waiting."""
        if self._waiting and self.is_light(first := next(iter(self._waiting))):
            self._first[first] = self._waiting.pop(first)

    def _is_light_only(self) -> bool:
        """Return whether guests alone get pieces of this turn."""
        if not (self.light_clients.requests and self._waiting):
            self._light_only_count = 0
            return False
        self._light_only_count += 1
        if self._light_only_count >= LIGHT_ONLY_ITERATIONS:
            self._light_only_count = 0
        return self._light_only_count > 0


def _begin(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # its socket may be closed
        turn.set_result(None)


API = "/v1/"
"""Where requests wait for the store, or an engine. Files and probes do not."""


class FairShareMiddleware:
    """Notes for whose work a request takes slots, and whether it is heavy. It comes after what notes the client's address."""

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
