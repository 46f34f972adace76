"""What was counted of an upstream, in numbers: for metrics, and read by nobody who decides anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import EngineStatistics
from engine.timed_stream import Deliveries
from engine.upstream_reply import UpstreamReply


@dataclass(slots=True)
class UpstreamCounts:
    """Counts rise only."""

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
        """Count what a reply that is over took of the upstream, as far as that told."""
        self.generated_tokens += reply.generated_tokens
        if reply.started:
            self.prompt_tokens += max(0, reply.prompt_tokens - reply.cached_tokens)
            self.cached_tokens += reply.cached_tokens

    def statistics(self, *, running: int, queued: int, circuit_open: bool) -> EngineStatistics:
        """Return all of it beside what is under way now."""
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
