"""One conversation: connects, sends its messages, reads replies, stops some, and leaves. All is counted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Self

from midstream.bench.plan import Plan, PlannedMessage
from midstream.bench.results import Results
from midstream.calls import Call
from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, NotConnected, Refused
from midstream.reply import Event, Reasoning, Reply

_WHOLE = frozenset({"stop", "length"})
CONNECT_S = 20.0
LEAVE_S = 5.0
AGAIN_S = 1.0
"""Seconds to wait after an error if the server does not say: immediate errors must not become a storm."""
LONGEST_AGAIN_S = 60.0
ALONE = Reconnecting(patience_s=0, grace_s=0)
"""A lost connection is an error, and replies do not outlive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server and the clock of conversations. `closing`: set once no further message may be sent."""

    url: str
    key: str | None
    plan: Plan
    results: Results
    closing: asyncio.Event

    async def pause(self, seconds: float) -> bool:
        """Wait so long, or until it is closing; return whether messages may still be sent."""
        if not self.closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # none, too, lets others have their turn
                    await self.closing.wait()
        return not self.closing.is_set()


async def run_conversation(server: Server, name: str, script: tuple[PlannedMessage, ...]) -> None:
    """Hold one conversation to its end. Errors of the server are counted, not raised."""
    results = server.results
    results.came(monotonic())
    try:
        await _connected(server, name, script)
    except (ClientError, OSError) as error:
        await server.pause(_counted(results, error))
    finally:
        results.went(monotonic())


async def _connected(server: Server, name: str, script: tuple[PlannedMessage, ...]) -> None:
    """Raises ClientError, OSError."""
    started = monotonic()
    opened = connect(
        server.url,
        client_id=name,
        token=server.key,
        features=("reasoning",),
        reconnecting=ALONE,
        open_timeout=CONNECT_S,
    )
    async with opened as client:
        server.results.durations.ready.add(monotonic() - started)
        try:
            for message in script:
                if not await server.pause(message.pause_s):
                    break
                await _turn(server, client, name, message)
        finally:
            if not server.plan.keeps:
                await _remove(client, name)


async def _remove(client: Client, name: str) -> None:
    """Delete the conversation, if the server still answers. It does not exist if every message was refused."""
    with suppress(ClientError, OSError, TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await client.delete(name)


async def _turn(server: Server, client: Client, name: str, message: PlannedMessage) -> None:
    """Send one message and read all that follows; errors of the message are counted. Raises Disconnected."""
    try:
        await _send_message(server, client, name, message)
    except Disconnected:
        raise
    except ClientError as error:
        await server.pause(_counted(server.results, error))


async def _send_message(server: Server, client: Client, name: str, message: PlannedMessage) -> None:
    """Raises ClientError."""
    plan, durations = server.plan, server.results.durations
    # What is measured is the server, not the pace of somebody who reads along.
    given = {"max_new_tokens": plan.max_new_tokens, "model": plan.model, "chars_per_s": 0}
    params = {field: value for field, value in given.items() if value is not None}
    sent = monotonic()
    reply: Reply | None = await client.send(message.content, conversation_id=name, params=params)
    durations.accepted.add(monotonic() - sent)
    measured = _MeasuredReply(server.results, sent, message.stop_after)
    while reply is not None:  # a reply that called tools is followed by another
        await measured.read(reply)
        reply = await reply.following()


class _MeasuredReply:
    """The replies to one message, one after the other."""

    def __init__(self, results: Results, sent: float, stop_after: int | None) -> None:
        self._results = results
        self._sent = sent
        self._stop_after = stop_after
        self._pieces = 0
        self._last: float | None = None

    async def read(self, reply: Reply) -> None:
        """Read one to its end. Raises ClientError."""
        first: float | None = None
        started: float | None = None
        async with _MeasuredCancel(reply, self._results) as stop:
            async for event in reply.events():
                if isinstance(event, str | Reasoning):
                    now = self._piece()
                    first = now if first is None else first
                if started is None and self._is_to_stop(event):
                    started = stop.begin()
            self._end(reply, first, started)

    def _piece(self) -> float:
        now, durations = monotonic(), self._results.durations
        if self._last is None:
            durations.first_token.add(now - self._sent)
        else:
            durations.gap.add(now - self._last)
        self._last = now
        self._pieces += 1
        self._results.piece(now)
        return now

    def _is_to_stop(self, event: Event) -> bool:
        """Return whether it is stopped here: as planned, or because it waits for a client's answer."""
        if (
            isinstance(event, Call)
            and event.is_open
            and (event.where == "client" or event.needs == "approval")
        ):
            self._results.error("approval_needed", monotonic())
            return True
        return self._stop_after is not None and self._pieces >= self._stop_after

    def _end(self, reply: Reply, first: float | None, started: float | None) -> None:
        done, now = reply.done or {}, monotonic()
        reason, tokens = done["reason"], done["usage"]["generated_tokens"]
        self._results.end(reason, tokens, now)
        if (error := done.get("error")) is not None:
            self._results.error(error["code"], now)
        durations = self._results.durations
        if reason == "cancelled" and started is not None:
            durations.stopped.add(now - started)
        if reason in _WHOLE:
            durations.reply.add(now - self._sent)
        if reason in _WHOLE and first is not None and self._last is not None and self._last > first:
            durations.tokens_per_s.add((tokens - 1) / (self._last - first))


class _MeasuredCancel:
    """Cancel while the reply is read. The block ends once the cancel is answered."""

    def __init__(self, reply: Reply, results: Results) -> None:
        self._reply = reply
        self._results = results
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raise ClientError if the cancel was refused, and nothing else failed."""
        if self._task is None:
            return
        if kind is not None:
            self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled() and (error := self._task.exception()) is not None and kind is None:
            raise error

    def begin(self) -> float:
        """Cancel; return the time of the request."""
        started = monotonic()
        self._task = asyncio.create_task(self._send_cancel(started))
        return started

    async def _send_cancel(self, started: float) -> None:
        answer = await self._reply.cancel()
        if not answer.get("already"):
            self._results.durations.cancelled.add(monotonic() - started)


def _counted(results: Results, error: ClientError | OSError) -> float:
    """Count an error by its code; return how many seconds to wait before the next message."""
    results.error(code_of(error), monotonic())
    after_ms = error.retry_after_ms if isinstance(error, Refused) else None
    return AGAIN_S if after_ms is None else min(LONGEST_AGAIN_S, max(after_ms / 1000, AGAIN_S))


def code_of(error: ClientError | OSError) -> str:
    """Return an error's name: the protocol's code, or the fate of the connection."""
    match error:
        case Refused():
            return error.code
        case Disconnected():
            return "disconnected" if error.code is None else f"disconnected_{error.code}"
        case NotConnected():
            return "not_connected"
        case ClientError():
            return "protocol"
        case _:
            return "connect_timeout" if isinstance(error, TimeoutError) else "unreachable"
