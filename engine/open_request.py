"""A request that an upstream has not ended: who waits for it, who works on it, and how far it is."""

from __future__ import annotations

import asyncio

from engine.messages import Queued, Request
from engine.timed_stream import TimedStream
from engine.upstream_exchange import Wanted
from engine.upstream_reply import Completion, UpstreamReply


class OpenRequest:
    """`sent`: whether the upstream was asked; `position`: the place in the queue that was told last."""

    __slots__ = ("arrival", "position", "reply", "request", "sent", "stream", "task")

    def __init__(self, request: Request, stream: TimedStream, reply: UpstreamReply, arrival: int) -> None:
        """Take what was asked and who reads the answer. `arrival` counts up."""
        self.request = request
        self.stream = stream
        self.reply = reply
        self.arrival = arrival
        self.task: asyncio.Task[None] | None = None
        self.sent = False
        self.position: int | None = None

    @property
    def client(self) -> str:
        """Whose request it is."""
        return self.request.client

    @property
    def priority(self) -> int:
        """The higher, the sooner."""
        return self.request.priority

    @property
    def said(self) -> bool:
        """Whether any of the reply has come."""
        return self.reply.generated_tokens > 0

    def hear(self, chunk: Completion) -> Wanted:
        """Tell what a chunk makes known; return what is still wanted of the answer."""
        for output in self.reply.take(chunk):
            self.stream.put_nowait(output)
        if not self.reply.ended:
            return Wanted.TEXT
        return Wanted.TOTALS if self.reply.told else Wanted.NOTHING

    def wait_at(self, position: int) -> None:
        """Tell the place in the queue, where it changed."""
        if position != self.position:
            self.position = position
            self.stream.put_nowait(Queued(self.request.request_id, position))
