"""Watches turns, and renders `/metrics`. With `collectors`, the one place that knows Prometheus."""

from __future__ import annotations

import asyncio

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from app.operations import collectors
from app.operations.collectors import Sources, collectors_of
from sessions.events import Cause, Done, Reason
from sessions.observer import Durations, NullObserver
from sessions.records import Client

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LAG_SAMPLE_S = 0.25
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics(NullObserver):
    """Observes turns (`sessions.observer.Observer`) and renders `/metrics`."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, and nobody asks for them
        self._registry = CollectorRegistry()
        self._first_token = Histogram(
            "midstream_first_token_seconds",
            "From accepted to the first delta.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._gaps = Durations()
        self._registry.register(
            collectors.Histogram("midstream_delta_gap_seconds", "Between two deltas of a turn.", self._gaps)
        )
        self._turns = Counter("midstream_turns", "Turns that ended.", ["reason"], registry=self._registry)
        self._models = Counter(
            "midstream_model_turns",
            "Turns that ended, by the model that wrote them and the one that was asked for.",
            ["model", "requested"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "midstream_tokens", "Tokens of ended turns.", ["kind"], registry=self._registry
        )
        self._cancels = Counter("midstream_cancels", "Cancelled turns.", ["cause"], registry=self._registry)
        # An alert sees no increase in a series that begins with its first count, so these begin at zero.
        for reason in Reason:
            self._turns.labels(reason.value)
        for cause in Cause:
            self._cancels.labels(cause.value)
        self._steps_after = Counter(
            "midstream_steps_after_cancel",
            "Engine steps started for a turn after its cancel.",
            registry=self._registry,
        )

    def first_token(self, seconds: float) -> None:
        """Count a time to first token."""
        self._first_token.observe(seconds)

    def gap(self, seconds: float) -> None:
        """Count a gap between deltas."""
        self._gaps.observe(seconds)

    def ended(self, done: Done, client: Client) -> None:  # noqa: ARG002 - it counts for all
        """Count an ended turn, whoever began it."""
        self._turns.labels(done.reason.value).inc()
        self._models.labels(done.model or "", done.requested_model or done.model or "").inc()
        for kind in ("prompt", "cached", "generated", "sent", "wasted"):
            self._tokens.labels(kind).inc(getattr(done.usage, f"{kind}_tokens"))
        if done.cancel is not None:
            self._cancels.labels(done.cancel.cause.value).inc()
            self._steps_after.inc(done.cancel.steps_after or 0)

    def watch(self, sources: Sources) -> None:
        """Pull from these collectors at every scrape."""
        for collector in collectors_of(sources):
            self._registry.register(collector)

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)


async def keep_measuring(lag: Durations) -> None:
    """Record how much longer sleeps took than asked for, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SAMPLE_S
        await asyncio.sleep(LAG_SAMPLE_S)
        lag.observe(max(0.0, loop.time() - due))
