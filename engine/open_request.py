"""A request that an upstream has not ended: who waits for it, who works on it, and how far it is."""

from __future__ import annotations

import asyncio

from engine.messages import Request
from engine.timed_stream import TimedStream
from engine.upstream_reply import UpstreamReply


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
