"""One client's connection: a reader task that never does slow work, a writer task for a late peer, and the pending requests."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, suppress
from functools import partial
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import structlog

from connections.authentication.caller import Caller
from connections.limiters import EndpointCounters, Limiters
from connections.outbox import Outbox
from connections.protocol import codec
from connections.protocol.errors import BadFrame, Close, CloseCode, leaves
from connections.protocol.frames import (
    Binary,
    Error,
    Frame,
    Stopping,
    bypasses_request_limit,
    cost_of,
    for_features,
    queues,
)
from sessions.errors import Overloaded, Refused
from sessions.events import ControlEvent, Delta, Event, Gap, Text
from sessions.limits.bounds import BAD_FRAMES, BAD_FRAMES_S, OUTBOX_BYTES, Bound
from sessions.limits.rates import FrameCost, RateLimited
from sessions.records import Client, Owner
from sessions.turn.turn import SentOffsets


class ErrorBudget:
    """Counts a client's bad frames within a sliding window."""

    def __init__(self, *, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=limit)

    def add(self, now: float) -> bool:
        """Count a bad frame at `now` (seconds of any monotonic clock); return whether the limit was reached within the window."""
        self._times.append(now)
        return len(self._times) == self._limit and now - self._times[0] < self._window_s


MAX_REQUESTS = 64
MAX_CANCELS = 64
"""The most pending cancels, which wait for another replica or a rollback: not counted as requests, since they must be handled."""

PendingWork = Coroutine[None, None, None]


class ChainedWork(Coroutine[None, None, None]):
    """Work that awaits other work. If it is closed before it begins, the other work is closed, too."""

    def __init__(self, work: PendingWork, *awaited: PendingWork) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[None, None, None]:
        return self._work.__await__()

    def send(self, value: None, /) -> None:
        """Continue as a coroutine does."""
        return self._work.send(value)

    def throw(self, *error: Any) -> None:
        """Raise within it, as a coroutine does."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Close it, and the work that it awaits."""
        for work in (self._work, *self._awaited):
            work.close()


class InFlightRequests:
    """The pending requests of a connection, and their limits. The task group owns the tasks."""

    def __init__(self) -> None:
        self._requests: set[asyncio.Task[None]] = set()
        self._cancels: set[asyncio.Task[None]] = set()

    @property
    def is_empty(self) -> bool:
        """Whether no request is pending."""
        return not (self._requests or self._cancels)

    def check_limit(self, frame: object) -> None:
        """Raise Overloaded if too many requests are pending. Cancels and pings always pass: they act at once as far as they can."""
        if len(self._requests) >= MAX_REQUESTS and not bypasses_request_limit(frame):
            raise Overloaded("Too many requests at once.")

    def begin(
        self,
        frame: object,
        slow: PendingWork,
        finish: Callable[[PendingWork], PendingWork],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Run the waiting part of a request. Raises Overloaded if too many cancels wait."""
        group = self._cancels if isinstance(frame, Stopping) else self._requests
        if group is self._cancels and len(group) >= MAX_CANCELS:
            slow.close()
            raise Overloaded(
                "Too many cancels at once: this one took effect as far as it could at once, and no further."
            )
        group.add(request := tasks.create_task(finish(slow)))
        request.add_done_callback(partial(_finished, slow, group))


def _finished(slow: PendingWork, group: set[asyncio.Task[None]], request: asyncio.Task[None]) -> None:
    group.discard(request)
    slow.close()  # the connection may have ended before the task began


FLUSH_S = 1.0

_log = structlog.get_logger("midstream.connection")


class Transport(Protocol):
    """A WebSocket that has been accepted."""

    async def receive(self) -> str | bytes:
        """Return the next message. Raises Disconnected."""
        ...

    def is_writable(self) -> bool:
        """Whether `write` may be called: the peer is connected, and keeps up with reading."""
        ...

    async def writable(self) -> None:
        """Wait until `write` may be called. Raises Disconnected."""
        ...

    def write(self, text: bytes) -> None:
        """Send a text message, in UTF-8. Call it only if `is_writable()` in this iteration of the event loop."""
        ...

    def write_binary(self, message: bytes) -> None:
        """Send a binary message. Call it only if `is_writable()` in this iteration of the event loop."""
        ...

    def charge(self) -> None:
        """Count a request that a rate limit refused: a peer that keeps sending is read more slowly."""
        ...

    def request(self) -> AbstractContextManager[None]:
        """Count the last message as a request; while the block lasts, others may have to wait for it."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """End the connection, in bounded time even if the peer does not read."""
        ...


class Disconnected(Exception):
    """The peer has disconnected."""


class ClientMessage(Protocol):
    """A decoded message of a client."""

    @property
    def ref(self) -> str | None:
        """The reference that its answer repeats."""
        ...


MessageT = TypeVar("MessageT", bound=ClientMessage)
MessageT_contra = TypeVar("MessageT_contra", contravariant=True)


class Handler(Protocol[MessageT_contra]):
    """Answers frames."""

    def handle(self, connection: Connection, frame: MessageT_contra, /) -> PendingWork | None:
        """Do quick work at once, and return work that has to wait. Raises Refused."""
        ...


class Connection:
    """A client's socket after `hello`; a `Subscriber` of the conversations that it is attached to.

    `caller`: the owner of its conversations and the subject of its limits; `features`: what both sides understand.
    """

    # a reply may have a thousand late readers, all of which each token visits: keep the state small and close together
    __slots__ = (
        "__weakref__",
        "_backlog",
        "_encode",
        "_ending",
        "_error_budget",
        "_in_flight",
        "_outbox",
        "_tally",
        "_transport",
        "caller",
        "closed",
        "connection_id",
        "features",
    )

    def __init__(
        self,
        transport: Transport,
        *,
        caller: Caller,
        tally: EndpointCounters,
        outbox: Outbox | None = None,
        features: frozenset[str] = frozenset(),
        encode: Callable[[Frame], bytes] = codec.encode,
    ) -> None:
        """`tally` counts the bounds that the connection reaches, and the errors that it is sent."""
        self.connection_id = f"conn_{secrets.token_hex(8)}"
        self.caller = caller
        self.features = features
        self.closed = False
        self._transport = transport
        self._encode = encode
        self._tally = tally
        self._outbox = outbox or Outbox(max_bytes=OUTBOX_BYTES)
        self._error_budget = ErrorBudget(limit=BAD_FRAMES, window_s=BAD_FRAMES_S)
        self._in_flight = InFlightRequests()
        self._backlog = asyncio.Event()
        self._ending: asyncio.Future[Close] = asyncio.get_running_loop().create_future()

    @property
    def owner(self) -> Owner:
        """The owner of its conversations."""
        return self.caller.owner

    @property
    def client(self) -> Client:
        """The subject of its limits."""
        return self.caller.client

    def push(self, frame: Frame) -> None:
        """Deliver a frame: send it at once, or let it wait for the reader. Events that the reader does not understand are left out.

        A reader that is too far behind is disconnected, and can resume.
        """
        self.publish(frame)

    def publish(self, frame: Frame, made_at: float | None = None, sent: SentOffsets | None = None) -> None:
        """Deliver a frame. `made_at`: for text, when the engine made it, by `time.monotonic`; `sent`: where to report what was sent."""
        if self.closed:
            return
        # text of a reply is the only frame that every client understands as it is, and by far the most frequent one
        understood = frame if type(frame) is Delta else for_features(frame, self.features)
        if understood is None:
            if isinstance(frame, Text | ControlEvent):
                self._outbox.leave_out(frame)
            return
        if (
            self._transport.is_writable()
            and (passed := self._outbox.pass_nowait(understood, sent)) is not None
        ):
            self._send(passed, made_at)
        else:
            self._outbox.put_nowait(understood, made_at, sent)
            self._backlog.set()  # the writer sends what waits once the peer reads again
            if self._outbox.is_over_limit:
                self._tally.met(Bound.OUTBOX)
                self.shut(Close(CloseCode.OVERLOAD, "The reader is too slow; reconnect."))
        if isinstance(frame, Error):
            self._tally.sent(frame.code)
        elif isinstance(frame, Gap):
            self._tally.gap()

    def _send(self, frame: Frame, made_at: float | None) -> None:
        message = self._encode(frame)
        if isinstance(frame, Binary):
            self._transport.write_binary(message)
        else:
            self._transport.write(message)
        if made_at is not None:
            self._tally.delayed(monotonic() - made_at)

    @property
    def endpoint(self) -> str:
        """The endpoint of the connection."""
        return self._tally.endpoint

    @property
    def is_busy(self) -> bool:
        """Whether a request of its client is pending."""
        return not self._in_flight.is_empty

    @property
    def waiting_bytes(self) -> int:
        """The size of the frames that wait for a late reader, as their limit counts it."""
        return self._outbox.bytes

    def understands(self, event: Event) -> bool:
        """Return whether its client understands such events."""
        return for_features(event, self.features) is not None

    def withdraw(self, turn_id: str, chars: int, reasoning_off: int) -> None:
        """Withdraw the turn's waiting text beyond `chars`, and its reasoning beyond `reasoning_off`."""
        self._outbox.withdraw(turn_id, chars, reasoning_off)

    def shut(self, close: Close) -> None:
        """End the connection; the first reason counts."""
        if not self._ending.done():
            self._ending.set_result(close)

    async def serve(self, handler: Handler[MessageT], decode: Callable[[str | bytes], MessageT]) -> None:
        """Serve until the peer leaves or the connection is shut. `decode` reads messages and may raise BadFrame."""
        await self.run(partial(self._read, handler, decode))

    async def run(self, reading: Callable[[asyncio.TaskGroup], PendingWork]) -> None:
        """Serve a peer whose messages `reading` reads; tasks that `reading` begins end with the connection."""
        try:
            await self._run(reading)
        except* Disconnected:
            self.closed = True
        except* Close as ends:
            self.closed = True
            close = leaves(ends)[0]
            await self._transport.close(close.code, close.reason)

    async def _run(self, reading: Callable[[asyncio.TaskGroup], PendingWork]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reading(tasks))
                tasks.create_task(self._write())
                await self._end()
        except BaseExceptionGroup as ends:
            # the traceback's frame refers to the group: only the garbage collector would free both (Python 3.11)
            ends.__traceback__ = None
            raise

    async def _end(self) -> None:
        close = await self._ending
        if close.code is not CloseCode.OVERLOAD:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._catch_up()
        raise close

    async def _read(
        self, handler: Handler[MessageT], decode: Callable[[str | bytes], MessageT], tasks: asyncio.TaskGroup
    ) -> None:
        while True:
            # nothing here keeps a message alive until the next one arrives
            self._answer(handler, partial(decode, await self._transport.receive()), tasks)
            # a burst of frames delays neither the writer nor other connections
            await asyncio.sleep(0)

    def _answer(
        self, handler: Handler[MessageT], decoded: Callable[[], MessageT], tasks: asyncio.TaskGroup
    ) -> None:
        ref = None
        try:
            frame = decoded()
            ref = frame.ref or getattr(frame, "client_msg_id", None)
            self._in_flight.check_limit(frame)
            if (slow := handler.handle(self, frame)) is not None:
                finish = partial(self._finish, ref, self._transport.request())
                self._in_flight.begin(frame, slow, finish, tasks)
        except BadFrame as error:
            self.push(Error(ref=error.ref or ref, code=error.code, message=str(error), retryable=False))
            if self._error_budget.add(asyncio.get_running_loop().time()):
                self._tally.met(Bound.BAD_FRAMES)
                self.shut(Close(CloseCode.POLICY, f"{BAD_FRAMES} bad frames in a minute."))
        except Refused as error:
            self._refuse(error, ref)
        except Exception:  # noqa: BLE001 - a task's boundary: one request fails, the connection stays
            self.push(self._incident(ref))

    async def _finish(
        self, ref: str | None, in_flight: AbstractContextManager[None], slow: PendingWork
    ) -> None:
        try:
            with in_flight:
                await slow
        except Refused as error:
            self._refuse(error, ref)
        except Exception:  # noqa: BLE001 - a task's boundary: one request fails, the connection stays
            self.push(self._incident(ref))

    def _refuse(self, error: Refused, ref: str | None) -> None:
        self.push(error_frame(error, ref))
        if isinstance(error, RateLimited):
            self._transport.charge()

    def _incident(self, ref: str | None) -> Error:
        """Log the exception being handled; the client gets only its number."""
        incident = secrets.token_hex(4)
        _log.exception("request failed", connection_id=self.connection_id, incident=incident)
        return Error(
            ref=ref, code="internal", message=f"An internal error, number {incident}.", retryable=False
        )

    async def _write(self) -> None:
        while True:
            await self._backlog.wait()
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Wait until nothing waits to be sent. Raises Disconnected."""
        while self._backlog.is_set():
            await self._transport.writable()
            self._flush()

    def _flush(self) -> None:
        """Send what waits, for as long as the reader keeps up."""
        while self._transport.is_writable():
            if (frame := self._outbox.take_nowait()) is None:
                self._backlog.clear()
                return
            self._send(frame, self._outbox.made_at)
        self._backlog.set()


async def raise_if_refused(taking: asyncio.Task[Refused | None]) -> None:
    """Wait for a message to be accepted. Cancelling the wait does not stop the message. Raises the refusal."""
    if (refused := await asyncio.shield(taking)) is not None:
        raise refused


def error_frame(error: Refused, ref: str | None) -> Error:
    """Return the `error` frame for a refused request."""
    return Error(
        ref=ref,
        code=error.code,
        message=str(error),
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
    )


MAX_WAITING = 32
"""The most requests that wait for limits: fewer than `MAX_REQUESTS`, so that there is room for a cancel after them."""

FrameT = TypeVar("FrameT")


class RateLimiter(Generic[FrameT]):
    """Counts requests, and holds messages while the limits shared by all replicas are checked.

    It is a `Handler` around another one, for one connection. A request counts as pending from its task's first step, which
    precedes the connection's next frame: the reader yields between two frames.
    """

    def __init__(self, inner: Handler[FrameT], limiters: Limiters) -> None:
        self._inner = inner
        self._limiters = limiters
        self._one_by_one = asyncio.Lock()
        self._in_flight = 0

    def handle(self, connection: Connection, frame: FrameT) -> PendingWork | None:
        """Pass a frame on at once, unless it has to wait. Raises Refused."""
        counts = cost_of(frame)
        if counts is not FrameCost.NOTHING:
            self._limiters.take(counts, connection.caller.subject)
        quotas = self._limiters.quota_limiter
        is_message = counts is FrameCost.MESSAGE
        is_limited = is_message and quotas is not None and quotas.limits(connection.client)
        waits = is_limited or (self._in_flight and queues(frame))
        if quotas is None or not waits:
            return self._inner.handle(connection, frame)
        if self._in_flight >= MAX_WAITING and not isinstance(frame, Stopping):
            raise Overloaded("Too many requests at once.")
        return self._in_order(connection, frame, is_message=is_message)

    async def _in_order(self, connection: Connection, frame: FrameT, *, is_message: bool) -> None:
        self._in_flight += 1
        try:
            async with self._one_by_one:
                if is_message:
                    for near in await self._limiters.admit(connection.client):
                        connection.push(near)
                slow = self._inner.handle(connection, frame)
        finally:
            self._in_flight -= 1
        if slow is not None:
            await slow
