"""The streams and counts that wait for answers of the engine's process. Knows no process, but is told of starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from engine.errors import EngineUnavailable, PromptRejected
from engine.messages import (
    Cancel,
    CancelCount,
    CountRequest,
    CountResult,
    Finished,
    FinishReason,
    Message,
    Output,
    Request,
)
from engine.process.channel import pack
from engine.reply_spec import PLAIN, ReplySpec
from engine.streamer import Streamer

Send = Callable[[bytes], None]


class _PendingCount(NamedTuple):
    """A requested count."""

    future: asyncio.Future[int]
    messages: tuple[Message, ...]
    client: str
    spec: ReplySpec
    packed: bytes


class PendingRequests:
    """Keeps open requests. They wait here while no process runs. Those that a process has are lost with it.

    Counts are asked again of the next process. All methods but `count` are synchronous.
    """

    def __init__(self) -> None:
        self._send: Send | None = None
        self._waiting: dict[str, tuple[Streamer, bytes]] = {}
        self._sent: dict[str, Streamer] = {}
        self._counts: dict[int, _PendingCount] = {}
        self._count_ids = count()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a process."""
        return len(self._waiting)

    @property
    def open(self) -> int:
        """The number of open requests."""
        return len(self._sent) + len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sent or request_id in self._waiting

    def connect(self, send: Send) -> None:
        """Send everything that waited to a process that is ready."""
        self._send = send
        for request_id, (stream, packed) in self._waiting.items():
            self._sent[request_id] = stream
            send(packed)
        self._waiting.clear()
        for counting in self._counts.values():
            send(counting.packed)

    def disconnect(self, why: str) -> None:
        """End the streams of requests that a dead process had."""
        self._send = None
        lost, self._sent = self._sent, {}
        for stream in lost.values():
            stream.lose(why)

    def close(self, why: str) -> None:
        """End everything: there will be no further process."""
        self.disconnect(why)
        waiting, self._waiting = self._waiting, {}
        for stream, _ in waiting.values():
            stream.lose(why)
        counts, self._counts = self._counts, {}
        for counting in counts.values():
            if not counting.future.done():
                counting.future.set_exception(EngineUnavailable(why))

    def move_waiting_to(self, other: PendingRequests) -> None:
        """Move the requests that wait for a process, and all counts, to another engine. Requests that a process has stay."""
        waiting, self._waiting = self._waiting, {}
        for request_id, (stream, packed) in waiting.items():
            stream.redirect(other._cancel)
            other._submit(request_id, stream, packed)
        counts, self._counts = self._counts, {}
        for counting in counts.values():
            other._submit_count(counting.future, counting.messages, counting.client, counting.spec)

    def request(self, request: Request) -> Streamer:
        """Ask for a reply. Raises ValueError if a request of this id is open."""
        request_id = request.request_id
        if request_id in self:
            raise ValueError(f"request {request_id!r} is still open")
        stream = Streamer(request_id, self._cancel)
        try:
            packed = pack(request)
        except UnicodeEncodeError as error:
            stream.put_nowait(
                _ended(request_id, FinishReason.ERROR, error=f"The messages are no text: {error}")
            )
            return stream
        self._submit(request_id, stream, packed)
        return stream

    async def count(self, messages: Sequence[Message], client: str = "", spec: ReplySpec = PLAIN) -> int:
        """Ask for a prompt's length. Raises PromptRejected, and EngineUnavailable once closed."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            count_id = self._submit_count(future, tuple(messages), client, spec)
        except UnicodeEncodeError as error:
            raise PromptRejected(f"The messages are no text: {error}") from error
        try:
            return await future
        finally:
            if self._counts.pop(count_id, None) is not None and self._send is not None:
                self._send(pack(CancelCount(count_id)))

    def put(self, outputs: Sequence[Output], made_at: float | None = None) -> None:
        """Hand the outputs of a step to their streams. `made_at`: see `StepOutputs`."""
        for output in outputs:
            stream = self._sent.get(output.request_id)
            if stream is None:
                continue
            if isinstance(output, Finished):
                del self._sent[output.request_id]
            stream.put_nowait(output, made_at)

    def counted(self, counted: CountResult) -> None:
        """Hand a prompt's length to its waiting caller, if it is still there."""
        counting = self._counts.pop(counted.count_id, None)
        if counting is None or counting.future.done():
            return
        if counted.error is None:
            counting.future.set_result(counted.tokens)
        else:
            counting.future.set_exception(PromptRejected(counted.error, field=counted.field))

    def _submit(self, request_id: str, stream: Streamer, packed: bytes) -> None:
        if self._send is None:
            self._waiting[request_id] = (stream, packed)
        else:
            self._sent[request_id] = stream
            self._send(packed)

    def _submit_count(
        self, future: asyncio.Future[int], messages: tuple[Message, ...], client: str, spec: ReplySpec
    ) -> int:
        """Ask for a count, and return its id. Raises UnicodeEncodeError."""
        count_id = next(self._count_ids)
        packed = pack(CountRequest(count_id, messages, client, spec))
        self._counts[count_id] = _PendingCount(future, messages, client, spec, packed)
        if self._send is not None:
            self._send(packed)
        return count_id

    def _cancel(self, request_id: str) -> None:
        if self._send is not None:
            self._send(pack(Cancel(request_id)))
        elif request_id in self._waiting:
            stream, _ = self._waiting.pop(request_id)
            stream.put_nowait(_ended(request_id, FinishReason.CANCELLED, steps_after=0))


def _ended(
    request_id: str, reason: FinishReason, *, steps_after: int | None = None, error: str | None = None
) -> Finished:
    return Finished(request_id, reason, 0, 0, 0, steps_after, error)
