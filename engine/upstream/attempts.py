"""Attempts at requests: each waits for its turn and for the upstream, and updates its health and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import EngineBusy, EngineError
from engine.messages import EngineStatistics
from engine.stream import Deliveries
from engine.upstream.concurrency import Places
from engine.upstream.errors import RequestRefused
from engine.upstream.exchange import Exchange, Wanted
from engine.upstream.open_request import OpenRequest
from engine.upstream.options import UpstreamOptions
from engine.upstream.watch import UpstreamWatch
from engine.upstream.wire.chunks import Completion
from engine.upstream.wire.reply import UpstreamReply


@dataclass(slots=True)
class UpstreamCounts:
    """Counters."""

    generated_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cancels: int = 0
    failures: int = 0
    shed: int = 0
    retries: int = 0
    fallbacks: int = 0
    deliveries: Deliveries = field(default_factory=Deliveries)

    def count(self, reply: UpstreamReply) -> None:
        """Count the tokens of an ended reply, as far as the upstream reported them."""
        self.generated_tokens += reply.generated_tokens
        if reply.started:
            self.prompt_tokens += max(0, reply.prompt_tokens - reply.cached_tokens)
            self.cached_tokens += reply.cached_tokens

    def statistics(self, *, running: int, queued: int, circuit_open: bool) -> EngineStatistics:
        """Return all counts, with the current ones."""
        return EngineStatistics(
            running=running,
            queued=queued,
            generated_tokens=self.generated_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            cancels=self.cancels,
            failures=self.failures,
            shed=self.shed,
            retries=self.retries,
            fallbacks=self.fallbacks,
            circuit_open=circuit_open,
            deliveries=self.deliveries.count,
            delivery_seconds=self.deliveries.seconds,
        )


class Attempts:
    """Asks one upstream, within its concurrency limit. Knows nothing of retries."""

    def __init__(
        self, exchange: Exchange, watch: UpstreamWatch, counts: UpstreamCounts, options: UpstreamOptions
    ) -> None:
        """Take the exchange, the health of the upstream, and the counters."""
        self._exchange = exchange
        self._watch = watch
        self._counts = counts
        self._patience_s = options.timeouts.patience_s
        self._places: Places[OpenRequest] = Places(options.max_requests, OpenRequest.wait_at)

    async def make(self, opened: OpenRequest) -> None:
        """Ask once, and pass on what comes. Raises EngineError if it is not a whole reply, RequestRefused."""
        try:
            await self._watch.life.ready(self._patience_s)
            await self._places.enter(opened)
            try:
                with self._watch.attempt() as circuit:
                    await self._ask(opened, circuit.answered)
            finally:
                self._places.leave(opened)
        except RequestRefused:
            raise
        except EngineError as error:
            self._counts.failures += opened.running and not isinstance(error, EngineBusy)
            self._counts.shed += opened.running and isinstance(error, EngineBusy)
            opened.running = opened.sent = False
            raise

    async def _ask(self, opened: OpenRequest, answered: Callable[[], None]) -> None:
        opened.running = True

        def hear(chunk: Completion) -> Wanted:
            wanted = opened.hear(chunk)
            if opened.said:
                answered()
            return wanted

        try:
            await self._exchange.reply(opened.request, opened.reply.max_new_tokens, hear, opened.is_sent)
        except EngineError:
            if not opened.reply.ended:
                raise
