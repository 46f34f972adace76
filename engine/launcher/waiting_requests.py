"""Requests that wait while no vLLM serves. Knows no vLLM. All of it is synchronous."""

from __future__ import annotations

import asyncio

from engine.errors import EngineUnavailable
from engine.messages import Finished, FinishReason, Request
from engine.streamer import DeliveryTimes, TimedStreamer


class WaitingRequests:
    """Holds waiting requests. Each leaves by a cancel, at its deadline, or when it is taken."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Request, TimedStreamer]] = {}
        self._deliveries = DeliveryTimes()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def submit(self, request: Request) -> TimedStreamer:
        """Return the stream that will answer a request."""
        stream = TimedStreamer(request.request_id, self._cancel, self._deliveries)
        if (most_s := request.params.max_time_s) is not None:
            stream.deadline = asyncio.get_running_loop().time() + most_s
        self.add(request, stream)
        return stream

    def add(self, request: Request, stream: TimedStreamer) -> None:
        """Let a request wait here whose reader has its stream already."""
        stream.move_to(self._cancel, self._deliveries)
        self._waiting[request.request_id] = (request, stream)
        if stream.deadline is not None:
            asyncio.get_running_loop().call_at(stream.deadline, self._time_out, request.request_id, stream)

    def take(self) -> list[tuple[Request, TimedStreamer]]:
        """Take all of them out, in the order in which they came."""
        taken, self._waiting = list(self._waiting.values()), {}
        return taken

    def fail(self, why: str) -> None:
        """End all of them, since nobody will serve them."""
        for _, stream in self.take():
            stream.fail(EngineUnavailable(why))

    def _cancel(self, request_id: str) -> None:
        self._end(request_id, FinishReason.CANCELLED, steps_after=0)

    def _time_out(self, request_id: str, stream: TimedStreamer) -> None:
        if self._waiting.get(request_id, (None, None))[1] is stream:
            self._end(request_id, FinishReason.TIMEOUT)

    def _end(self, request_id: str, reason: FinishReason, steps_after: int | None = None) -> None:
        if (waiting := self._waiting.pop(request_id, None)) is not None:
            waiting[1].put_nowait(Finished(request_id, reason, 0, 0, 0, steps_after))
