"""An open request to an upstream: its reader, its task, and how far it is."""

from __future__ import annotations

import asyncio

from engine.messages import Queued, Request, Retried
from engine.streamer import TimedStreamer
from engine.upstream.http_client import StillNeeded
from engine.upstream.options import UpstreamOptions
from engine.upstream.wire.chunks import Completion
from engine.upstream.wire.reply import UpstreamReply
from engine.upstream.wire.request import estimated_tokens, most_new_tokens


class OpenRequest:
    """`running`: it has its turn. `sent`: the upstream may know of it. `position`: its last told place in the queue."""

    __slots__ = ("_options", "arrival", "position", "reply", "request", "running", "sent", "stream", "task")

    def __init__(
        self, request: Request, stream: TimedStreamer, options: UpstreamOptions, arrival: int
    ) -> None:
        """Take the request, its reader's stream, and the upstream's options. `arrival` counts up. Raises PromptRejected."""
        self._options = options
        self.request = request
        self.stream = stream
        self.reply = self._new_reply()
        self.arrival = arrival
        self.task: asyncio.Task[None] | None = None
        self.running = False
        self.sent = False
        self.position: int | None = None

    @property
    def client(self) -> str:
        """The client's name."""
        return self.request.client

    @property
    def priority(self) -> int:
        """Requests of a higher priority start sooner."""
        return self.request.priority

    @property
    def has_text(self) -> bool:
        """Whether any part of the reply has come."""
        return self.reply.generated_tokens > 0

    def is_sent(self) -> None:
        """Note that the upstream may know of it from now on."""
        self.sent = True

    def begin_again(self) -> None:
        """Forget the outputs of an attempt without text, and tell the reader to do so."""
        self.reply = self._new_reply()
        self.position = None
        self.stream.put_nowait(Retried(self.request.request_id, elsewhere=False))

    def receive(self, chunk: Completion) -> StillNeeded:
        """Tell the outputs of a chunk, and return what is still wanted of the answer."""
        for output in self.reply.take(chunk):
            self.stream.put_nowait(output)
        if not self.reply.ended:
            return StillNeeded.TEXT
        return StillNeeded.TOTALS if self.reply.has_reason else StillNeeded.NOTHING

    def report_position(self, position: int) -> None:
        """Tell the place in the queue, if it has changed."""
        if position != self.position:
            self.position = position
            self.stream.put_nowait(Queued(self.request.request_id, position))

    def _new_reply(self) -> UpstreamReply:
        estimate = estimated_tokens(self.request.messages, self._options.bytes_per_token, self.request.spec)
        return UpstreamReply(
            self.request.request_id,
            prompt_tokens=estimate,
            max_new_tokens=most_new_tokens(self.request.params.max_new_tokens, self._options, estimate),
            most_tokens=self._options.context_tokens,
            logprobs=self.request.params.top_logprobs is not None,
            upstream=self._options.name,
        )
