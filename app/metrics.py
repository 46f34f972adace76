"""What operators watch: the metrics at `/metrics`, and the body of `/readyz`. Only this module knows Prometheus.

Each request for `/metrics` collects the layers' statistics; names and units follow Prometheus. No label's values grow with the
number of people: there are few codes, reasons, causes, endpoints, engines and models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from platform import python_version
from time import monotonic
from typing import Literal

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from connections.http import RefusalCounters
from connections.limiters import BoundCounters
from connections.manager import ConnectionStatistics
from engine.api import Engine, EngineState, EngineStatus
from engine.served_models import ServedModels
from sessions.errors import StoreDown
from sessions.events import Cause, Done, Reason
from sessions.limits.slots import as_service
from sessions.observer import Observer
from sessions.records import Client
from sessions.service import SessionStatistics
from sessions.store.ledger import Memory, ServerMemory
from sessions.store.pool import Durations, StoreStats
from sessions.store.server_config import OutOfMemory, WriteProbe, WritesRefused
from sessions.tools.tool_registry import ToolCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LAG_SAMPLE_S = 0.25
PROBE_CACHE_S = 1.0
"""How long an answer of the store is reused, so that frequent probes cost the store nothing."""
StoreState = Literal["ok", "full", "refuses_writes", "unavailable"]
"""`full`: there is no room for new messages and uploads. The replica stays ready: people can still read, delete, and chat without it."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_FULL = "The store has no room for new messages and uploads. Delete something, or raise its maxmemory."


class Metrics(Observer, Collector):
    """Observes turns (`sessions.observer.Observer`) and renders `/metrics`."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, for nobody
        self._registry = CollectorRegistry()
        self._first_token = Histogram(
            "midstream_first_token_seconds",
            "From accepted to the first delta.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._gaps = Durations()
        self._sources: Sources | None = None
        self._registry.register(self)
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

    def ended(self, done: Done, client: Client) -> None:  # noqa: ARG002 - the turns of all clients count
        """Count an ended turn, no matter who began it."""
        self._turns.labels(done.reason.value).inc()
        self._models.labels(done.model or "", done.requested_model or done.model or "").inc()
        for kind in ("prompt", "cached", "generated", "sent", "wasted"):
            self._tokens.labels(kind).inc(getattr(done.usage, f"{kind}_tokens"))
        if done.cancel is not None:
            self._cancels.labels(done.cancel.cause.value).inc()
            self._steps_after.inc(done.cancel.steps_after or 0)

    def collect(self) -> Iterable[Metric]:
        """Yield the gaps (the library's own histograms would take a lock for each observation), and the layers' statistics."""
        yield _histogram("midstream_delta_gap_seconds", "Between two deltas of a turn.", self._gaps)
        if self._sources is not None:
            yield from _of_service(self._sources)

    def watch(self, sources: Sources) -> None:
        """Collect from these sources, too, at every scrape."""
        self._sources = sources

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)


async def keep_measuring(lag: Durations) -> None:
    """Record how much longer sleeps take than requested, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SAMPLE_S
        await asyncio.sleep(LAG_SAMPLE_S)
        lag.observe(max(0.0, loop.time() - due))


_FROM_THE_START = {
    "overloaded": 0,
    "store_full": 0,
    "store_unavailable": 0,
    "engine_unavailable": 0,
    "internal": 0,
}
"""Codes whose counts begin at zero: an alert sees no increase in a series that begins with its first count."""
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
# Name, text, and the field of `EngineStatistics`. The counts of a process restart with the next process.
_ENGINE_GAUGES = (
    ("engine_batch", "Requests in the engine's batch.", "running"),
    ("engine_queue", "Requests that wait for a place in the batch.", "queued"),
    ("engine_kv_used_bytes", "Keys and values of running replies.", "kv_used_bytes"),
    ("engine_kv_cached_bytes", "Keys and values kept for later turns.", "kv_cached_bytes"),
    ("engine_kv_total_bytes", "Capacity for keys and values.", "kv_total_bytes"),
    ("engine_resident_memory_bytes", "Memory of the engine's process.", "resident_bytes"),
    (
        "engine_device_used_bytes",
        "Memory of its CUDA device in use, by any process.",
        "device_used_bytes",
    ),
    ("engine_device_total_bytes", "Memory of its CUDA device.", "device_total_bytes"),
    ("engine_circuit_open", "Whether an upstream is skipped because it failed too often.", "circuit_open"),
)
_ENGINE_COUNTERS = (
    ("engine_steps", "Engine steps of the running process.", "steps"),
    ("engine_step_seconds", "Time in engine steps of the running process.", "step_seconds"),
    ("engine_prefill_steps", "Engine steps that computed prompt tokens.", "prefill_steps"),
    ("engine_generated_tokens", "Tokens sampled by the running process.", "generated_tokens"),
    ("engine_prompt_tokens", "Prompt tokens computed by the running process.", "prompt_tokens"),
    ("engine_cached_tokens", "Prompt tokens whose keys and values were cached.", "cached_tokens"),
    ("engine_preemptions", "Replies put back into the queue for lack of memory.", "preemptions"),
    ("engine_cancels", "Cancels that the running process has read.", "cancels"),
    (
        "engine_steps_after_cancel",
        "Steps started for requests after their cancel was read.",
        "steps_after_cancel",
    ),
    ("engine_cpu_seconds", "Processor time of the running process.", "cpu_seconds"),
    ("engine_failures", "Requests that an upstream failed.", "failures"),
    ("engine_shed", "Requests that an upstream had no room for.", "shed"),
    ("engine_retries", "Requests sent to an upstream again.", "retries"),
    ("engine_fallbacks", "Requests that came to an upstream from another one.", "fallbacks"),
    ("engine_deliveries", "Pieces of an upstream's text that readers took.", "deliveries"),
    ("engine_delivery_seconds", "Time that those waited for their reader.", "delivery_seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of every scrape. `stores`: the statistics of the store's clients, by use; `lag`: the event loop's lag."""

    models: ServedModels
    connections: Callable[[], ConnectionStatistics]
    sessions: Callable[[], SessionStatistics]
    refusals: RefusalCounters
    bounds: BoundCounters
    stores: Mapping[str, StoreStats]
    lag: Durations
    is_draining: Callable[[], bool]
    version: str


def _of_service(sources: Sources) -> Iterable[Metric]:
    sessions = sources.sessions()
    build = {"version": sources.version, "python": python_version()}
    yield InfoMetricFamily("midstream_build", "The version of this service.", build)
    yield from _of_connections(sources.connections(), sources.bounds)
    yield from _of_sessions(sessions)
    yield _gauge(
        "draining",
        "Whether the service takes no new turns because it is about to stop.",
        sources.is_draining(),
    )
    yield from _of_memory(sessions.store)
    yield from _of_tools(sessions.tools)
    yield from _of_engines(sources.models)
    yield from _of_refusals(sources.refusals)
    yield from _of_stores(sources.stores)
    yield _histogram(
        "midstream_event_loop_lag_seconds", "How late the event loop runs what is due.", sources.lag
    )
    yield _histogram(
        "midstream_delta_delay_seconds",
        "From the engine's step that made a delta's first token until its frame is written to the socket.",
        sources.bounds.delays,
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"midstream_{name}", text, value)


def _counter(name: str, text: str, total: float) -> Metric:
    return CounterMetricFamily(f"midstream_{name}", text, total)


def _counters(name: str, text: str, counts: Iterable[tuple[str, float]], *, label: str) -> Metric:
    """Return a counter for each value of a label."""
    family = CounterMetricFamily(f"midstream_{name}", text, labels=[label])
    for value, count in counts:
        family.add_metric([value], count)
    return family


def _histogram(name: str, text: str, durations: Durations) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(durations), sum_value=durations.seconds)


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(map(float, durations.counts)), strict=True))


def _of_connections(sent: ConnectionStatistics, bounds: BoundCounters) -> Iterable[Metric]:
    yield _gauge("connections", "Open connections: WebSockets and event streams.", sent.connections)
    yield _gauge("clients", "Client ids with an open connection.", sent.clients)
    yield _gauge("slow_readers", "Connections with frames waiting for their reader.", sent.late)
    yield _gauge("outbox_bytes", "Bytes that wait for slow readers, in all outboxes.", sent.waiting_bytes)
    yield _gauge("outbox_largest_bytes", "Bytes that wait in the fullest outbox.", sent.most_waiting_bytes)
    yield _counter("connections_opened", "Connections opened, event streams included.", sent.opened)
    yield _counter("reader_gaps", "Gaps that readers were sent.", bounds.gaps)
    met = "How often a connection reached one of its bounds."
    yield _counters("bounds_reached", met, bounds.met().items(), label="bound")
    yield _counters("closes", "WebSockets that the server closed.", bounds.closes().items(), label="code")


def _of_sessions(sent: SessionStatistics) -> Iterable[Metric]:
    yield _gauge("conversations", "Conversations that somebody is attached to.", sent.conversations)
    yield _gauge("turns_live", "Turns running or waiting.", sent.turns)
    unsaved = "Turns with text or an end that clients received and the store does not have."
    yield _gauge("turns_unsaved", unsaved, sent.unsaved)
    yield _counter("journal_pipelines", "Writes of the journal.", sent.journal_pipelines)
    journalled = "Events given to the journal; a repeated write counts again."
    yield _counter("journal_bytes", journalled, sent.journal_bytes)
    yield _counter("reaped_turns", "Turns without a running replica, closed here.", sent.reaped)


def _of_refusals(refusals: RefusalCounters) -> Iterable[Metric]:
    reasons = "Refused requests, connections and messages."
    yield _counters("refusals", reasons, refusals.statistics().items(), label="reason")
    errors = CounterMetricFamily(
        "midstream_errors", "Errors sent to clients, by API and code.", labels=["api", "code"]
    )
    for endpoint, sent in refusals.sent().items():
        for code, count in {**_FROM_THE_START, **sent}.items():
            errors.add_metric([endpoint.value, code], count)
    yield errors


def _of_stores(tallies: Mapping[str, StoreStats]) -> Iterable[Metric]:
    calls = HistogramMetricFamily(
        "midstream_store_call_seconds", "Calls of the store, retries included.", labels=["client"]
    )
    waits = HistogramMetricFamily(
        "midstream_store_wait_seconds", "Waits for a connection to the store.", labels=["client"]
    )
    running = GaugeMetricFamily(
        "midstream_store_calls_running", "Calls of the store without an answer so far.", labels=["client"]
    )
    errors = CounterMetricFamily(
        "midstream_store_errors", "Calls of the store that failed.", labels=["client", "error"]
    )
    for client, tally in tallies.items():
        calls.add_metric([client], _buckets(tally.calls), sum_value=tally.calls.seconds)
        waits.add_metric([client], _buckets(tally.waits), sum_value=tally.waits.seconds)
        running.add_metric([client], tally.running)
        for error, count in {"ConnectionError": 0, "TimeoutError": 0, **tally.errors}.items():
            errors.add_metric([client, error], count)
    yield from (calls, waits, running, errors)


def _of_memory(servers: Sequence[ServerMemory]) -> Iterable[Metric]:
    used = GaugeMetricFamily(
        "midstream_store_memory_used_bytes", "Memory that a server of the store uses.", labels=["server"]
    )
    limit = GaugeMetricFamily(
        "midstream_store_memory_limit_bytes",
        "Memory that a server of the store may use. New messages and uploads fill four fifths of it at most.",
        labels=["server"],
    )
    for number, server in enumerate(servers):
        used.add_metric([str(number)], server.used)
        if server.limit is not None:
            limit.add_metric([str(number)], server.limit)
    yield from (used, limit)


def _of_tools(sent: ToolCounters) -> Iterable[Metric]:
    yield _gauge("tool_calls_running", "Calls of server tools that run.", sent.running)
    yield _counter("tool_calls_started", "Calls of server tools that were started.", sent.started)
    ended = "Calls of server tools that ended."
    yield _counters("tool_calls", ended, sent.ended.items(), label="outcome")
    yield _counters("tool_seconds", "Time that ended calls took.", sent.seconds.items(), label="outcome")


def _of_engines(models: ServedModels) -> Iterable[Metric]:
    """Yield each engine's statistics under its number: a sum would fall when one engine restarts."""
    engines = list(models.parts_by_model)
    labels = (["engine"] if len(engines) > 1 else []) + (["model"] if len(models.models) > 1 else [])
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for number, (model, engine) in enumerate(engines):
        for family, name, text, value in _facts_of(engine):
            metric = families.setdefault(name, family(f"midstream_{name}", text, labels=labels))
            metric.add_metric([str(number), model][: len(labels)], value)
    return families.values()


def _facts_of(engine: Engine) -> Iterable[tuple[_Family, str, str, float]]:
    status, sent = engine.status, engine.statistics()
    up = status.state.is_up
    yield GaugeMetricFamily, "engine_up", "Whether the engine serves, or starts when it is asked.", up
    yield CounterMetricFamily, "engine_restarts", "Engine processes started after the first.", status.restarts
    for name, text, field in _ENGINE_GAUGES:
        yield GaugeMetricFamily, name, text, getattr(sent, field)
    for name, text, field in _ENGINE_COUNTERS:
        yield CounterMetricFamily, name, text, getattr(sent, field)


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's state; `progress` is the loaded share, from 0 to 1."""

    state: EngineState
    stage: str
    progress: float
    message: str | None
    restarts: int


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the replica is ready, and the state of each part. `store_message`: why the store is not `ok`, as a sentence.

    With several engines, `engines` has each one's state and `engines_ready` how many serve. With several models, `models` has
    each one's state by name. One engine that serves is enough to be ready.
    """

    ready: bool
    draining: bool
    store: StoreState
    store_message: str | None = None
    engine: EngineReport
    engines_ready: int | None = None
    engines: tuple[EngineReport, ...] | None = None
    models: dict[str, EngineState] | None = None


class _Store(msgspec.Struct, frozen=True):
    """The store's answer to a probe, and until when it is reused."""

    state: StoreState
    message: str | None = None
    until: float = 0.0


class Readiness:
    """Whether this replica can take turns, and if not, why: the body of `/readyz`."""

    def __init__(self, *, models: ServedModels, store: WriteProbe, memory: Memory) -> None:
        self._models = models
        self._store = store
        self._memory = memory
        self._probed = _Store("unavailable")
        self._probing = asyncio.Lock()
        self.draining = False

    async def report(self) -> Report:
        """Return the current state."""
        status, parts, models = self._models.status, self._models.parts, self._models.models
        store = await self._store_takes_writes()
        several = [part.status for part in parts] if len(parts) > 1 else None
        return Report(
            ready=status.state is EngineState.READY and store.state in ("ok", "full") and not self.draining,
            draining=self.draining,
            store=store.state,
            store_message=store.message,
            engine=_engine_report(status),
            engines_ready=None if several is None else sum(one.state.is_up for one in several),
            engines=None if several is None else tuple(map(_engine_report, several)),
            models={model.name: model.engine.status.state for model in models} if len(models) > 1 else None,
        )

    async def _store_takes_writes(self) -> _Store:
        """Return the answer to a small write, at most `PROBE_CACHE_S` old: a store that refuses it can't take messages either."""
        async with self._probing:  # concurrent probes wait for the same answer
            if monotonic() >= self._probed.until:
                with as_service():
                    probed = await self._probe()
                self._probed = msgspec.structs.replace(probed, until=monotonic() + PROBE_CACHE_S)
        return self._probed

    async def _probe(self) -> _Store:
        try:
            await self._store.check()
        except OutOfMemory as full:
            return _Store("full", str(full))
        except WritesRefused as refused:
            return _Store("refuses_writes", str(refused))
        except StoreDown as down:
            return _Store("unavailable", str(down))
        return _Store("full", _FULL) if self._memory.is_full else _Store("ok")


def waiting_report(models: ServedModels, why: str) -> Report:
    """Return the state while the service waits for its store."""
    return Report(
        ready=False,
        draining=False,
        store="unavailable",
        store_message=why,
        engine=_engine_report(models.status),
    )


def _engine_report(status: EngineStatus) -> EngineReport:
    return EngineReport(
        state=status.state,
        stage=status.stage,
        progress=round(status.progress, 3),
        message=status.message,
        restarts=status.restarts,
    )
