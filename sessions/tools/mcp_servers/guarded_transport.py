"""Stands between the MCP library and the network: limits what a server may send, how fast, and what reaches the library.

The library ends a whole session if one connection breaks. So a failed exchange gets an answer here instead, and
only the call that it belongs to notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from http import HTTPStatus
from typing import cast

import httpx2
import msgspec

from sessions.tools.mcp_servers.call_traffic import CURRENT, CallTraffic
from sessions.tools.mcp_servers.sse_lines import SseLineReader

EVENT_COSTS = 8192
"""Bytes that an event counts as: it is parsed and checked several times, however short it is."""
RATE = 512 * 1024
"""Bytes per second: 64 events."""


class ReadRateLimiter:
    """The rate of one server. A leaky bucket as a meter (ITU-T I.371, appendix I).

    `burst`: bytes that are read without a pause.
    """

    def __init__(self, *, burst: int, rate: int = RATE) -> None:
        self._burst = burst
        self._rate = rate
        self._level = 0.0
        self._since = 0.0

    def pause(self, *, size: int, events: int, now: float) -> float:
        """Count what was read; return the seconds to wait before the next read."""
        self._level = max(0.0, self._level - (now - self._since) * self._rate)
        self._since = now
        self._level += size + events * EVENT_COSTS
        return max(0.0, (self._level - self._burst) / self._rate)


ANSWER_S = 10.0
"""How long a server may take to answer anything but a call: a notification, or the opening of a stream."""
GOODBYE_S = 1.0
"""How long it may take to acknowledge the end of a session."""
BURST_TIMES = 2
"""How many messages of the maximum size are read at full speed."""
_SESSION = "mcp-session-id"
_EVENTS = "text/event-stream"


class BodyCutOff(httpx2.StreamError):
    """The rest of a body is not read. The library takes it as the end of this exchange alone."""


class _Envelope(msgspec.Struct):
    """The parts of a message that matter here: a request has a method and an id."""

    id: str | int | None = None
    method: str | None = None


class GuardedTransport(httpx2.AsyncBaseTransport):
    """One session's transport. `most_bytes`: of one message. `on_suspect`: called if the session may have ended."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        *,
        most_bytes: int,
        connect_s: float,
        on_suspect: Callable[[], None],
    ) -> None:
        self.trouble = ""
        """The last failure, for the operator."""
        self.gone = False
        """Whether the server no longer knows the session."""
        self._inner = inner
        self._most_bytes = most_bytes
        self._connect_s = connect_s
        self._on_suspect = on_suspect
        self._limiter = ReadRateLimiter(burst=BURST_TIMES * most_bytes)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Exchange a request for an answer. A failure gives an answer with a status of 5xx, or 410 if the call is over."""
        call = CURRENT.get()
        if call is not None and request.method == "GET" and (call.over or call.fault.done()):
            return httpx2.Response(HTTPStatus.GONE)  # nobody waits for the rest of that answer
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, "timeout": self._times(request)}
        try:
            async with call.reading() if call is not None else nullcontext():
                response = await self._inner.handle_async_request(request)
        except (httpx2.TransportError, TimeoutError) as error:
            return self._broken(call, error)
        return await self._checked(request, response, call)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    def _times(self, request: httpx2.Request) -> dict[str, float | None]:
        """Return the time limits: a call has its own, an open stream none, anything else a short one."""
        times: dict[str, float | None] = dict.fromkeys(("connect", "pool", "write"), self._connect_s)
        if request.method == "DELETE":
            return dict.fromkeys((*times, "read"), GOODBYE_S)
        if request.method == "GET":
            return times | {"read": None}
        sent = msgspec.json.decode(request.content, type=_Envelope)
        return times | {"read": None if sent.id is not None and sent.method is not None else ANSWER_S}

    def _broken(self, call: CallTraffic | None, error: Exception) -> httpx2.Response:
        reached = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        self.trouble = f"{'the connection broke' if reached else 'it is unreachable'}: {type(error).__name__}"
        if call is not None:
            words = (
                "The connection to the tool's server broke. It is not known whether the tool did its work."
                if reached
                else "The tool's server can't be reached. The tool was not run."
            )
            call.fail(words, ran=reached)
        self._on_suspect()
        return httpx2.Response(HTTPStatus.SERVICE_UNAVAILABLE)

    async def _checked(
        self, request: httpx2.Request, response: httpx2.Response, call: CallTraffic | None
    ) -> httpx2.Response:
        """Return the answer for the library."""
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self.trouble = "its answers are compressed, although that was not requested"
            if call is not None:
                call.fail("The tool's answer can't be read.", ran=True)
            return httpx2.Response(HTTPStatus.BAD_GATEWAY)
        self._note(request, response, call)
        response.headers.pop("set-cookie", None)
        response.stream = GuardedBody(response, call, limiter=self._limiter, most_bytes=self._most_bytes)
        return response

    def _note(self, request: httpx2.Request, response: httpx2.Response, call: CallTraffic | None) -> None:
        """Note the meaning of a refusal, since the library reports its status to nobody."""
        status = response.status_code
        if status < HTTPStatus.BAD_REQUEST or request.method != "POST":
            return
        self.trouble = f"it answers with HTTP status {status}"
        words = f"The tool's server answered with HTTP status {status}."
        if status == HTTPStatus.NOT_FOUND and _SESSION in request.headers:
            self.trouble, self.gone = "it no longer knows the session", True
            words = "The tool's server has restarted. The tool was not run."
            self._on_suspect()
        elif response.headers.get("content-type", "").startswith("application/json"):
            return  # the library reads the reason there
        if call is not None:
            call.fail(words, ran=status >= HTTPStatus.INTERNAL_SERVER_ERROR)


class GuardedBody(httpx2.AsyncByteStream):
    """A body that is read at a limited pace, up to its limits, and only while somebody waits for it."""

    def __init__(
        self,
        response: httpx2.Response,
        call: CallTraffic | None,
        *,
        limiter: ReadRateLimiter,
        most_bytes: int,
    ) -> None:
        self._inner = cast("httpx2.AsyncByteStream", response.stream)
        self._events = (
            SseLineReader() if response.headers.get("content-type", "").lower().startswith(_EVENTS) else None
        )
        self._call = call
        self._limiter = limiter
        self._most_bytes = most_bytes
        self._size = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what may pass. Raises BodyCutOff."""
        parts = aiter(self._inner)
        while (part := await self._next(parts)) is not None:
            passed, events = (part, 0) if self._events is None else self._events.feed(part)
            self._count(len(part))
            if passed:
                yield passed
            await self._wait(size=len(part), events=events)
        if self._events is not None and (rest := self._events.rest()):
            yield rest

    async def aclose(self) -> None:
        """Close the connection if the body was not read to its end."""
        await self._inner.aclose()

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with self._call.reading() if self._call is not None else nullcontext():
                return await anext(parts, None)
        except (httpx2.TransportError, TimeoutError) as error:
            raise BodyCutOff(f"The body broke off: {type(error).__name__}.") from error

    def _count(self, size: int) -> None:
        """Raise BodyCutOff if the server sends more than it may."""
        self._size += size
        if self._call is not None:
            self._call.spend(size)
        largest = self._size if self._events is None else self._events.largest
        if largest > self._most_bytes:
            if self._call is not None:
                self._call.fail("The tool's answer has more bytes than are read.", ran=False)
            raise BodyCutOff(f"A message has more than {self._most_bytes} bytes.")
        if self._call is not None and self._call.fault.done():
            raise BodyCutOff("The call has failed.")

    async def _wait(self, *, size: int, events: int) -> None:
        pause = self._limiter.pause(size=size, events=events, now=asyncio.get_running_loop().time())
        if pause > 0:
            await asyncio.sleep(pause)
