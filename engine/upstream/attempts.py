"""Attempts at requests: each waits for its turn and for the upstream, and updates its health and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import EngineBusy, EngineError
from engine.messages import EngineStatistics
from engine.streamer import DeliveryTimes
from engine.upstream.concurrency import ConcurrencyLimiter
from engine.upstream.errors import RequestRefused
from engine.upstream.http_client import StillNeeded, UpstreamHttpClient
from engine.upstream.monitor import UpstreamMonitor
from engine.upstream.open_request import OpenRequest
from engine.upstream.options import UpstreamOptions
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
    deliveries: DeliveryTimes = field(default_factory=DeliveryTimes)

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
        self,
        exchange: UpstreamHttpClient,
        watch: UpstreamMonitor,
        counts: UpstreamCounts,
        options: UpstreamOptions,
    ) -> None:
        """Take the exchange, the health of the upstream, and the counters."""
        self._exchange = exchange
        self._monitor = watch
        self._counts = counts
        self._patience_s = options.timeouts.patience_s
        self._limiter: ConcurrencyLimiter[OpenRequest] = ConcurrencyLimiter(
            options.max_requests, OpenRequest.report_position
        )

    async def make(self, opened: OpenRequest) -> None:
        """Ask once, and pass on what comes. Raises EngineError if it is not a whole reply, RequestRefused."""
        try:
            await self._monitor.life.ready(self._patience_s)
            await self._limiter.enter(opened)
            try:
                with self._monitor.attempt() as circuit:
                    await self._request(opened, circuit.answered)
            finally:
                self._limiter.leave(opened)
        except RequestRefused:
            raise
        except EngineError as error:
            self._counts.failures += opened.running and not isinstance(error, EngineBusy)
            self._counts.shed += opened.running and isinstance(error, EngineBusy)
            opened.running = opened.sent = False
            raise

    async def _request(self, opened: OpenRequest, answered: Callable[[], None]) -> None:
        opened.running = True

        def receive(chunk: Completion) -> StillNeeded:
            wanted = opened.receive(chunk)
            if opened.has_text:
                answered()
            return wanted

        try:
            await self._exchange.reply(opened.request, opened.reply.max_new_tokens, receive, opened.is_sent)
        except EngineError:
            if not opened.reply.ended:
                raise
