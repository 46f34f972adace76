"""Collects the layers' statistics for each request of `/metrics`, in Prometheus' names and units.

No label grows with the number of people: there are few codes, reasons, causes, endpoints, engines and models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from platform import python_version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from connections.http.refusal_counters import RefusalCounters
from connections.limiters import BoundCounters
from connections.manager import ConnectionStatistics
from engine.api import Engine
from engine.durations import Durations
from engine.served_models import ServedModels
from sessions.service import SessionStatistics
from sessions.store.ledger import ServerMemory
from sessions.store.redis.pool import StoreStats
from sessions.tools.tool_registry import ToolStatistics

_FROM_THE_START = {
    "overloaded": 0,
    "store_full": 0,
    "store_unavailable": 0,
    "engine_unavailable": 0,
    "internal": 0,
}
"""Codes whose counts begin at zero: an alert sees no increase in a series that begins with its first count."""

_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]

# Name, text, and the field of `EngineStatistics`. A process's own counts begin again with the next process.
_ENGINE_GAUGES = (
    ("engine_batch", "Requests in the engine's batch.", "running"),
    ("engine_queue", "Requests that wait for a place in the batch.", "queued"),
    ("engine_kv_used_bytes", "Keys and values of running replies.", "kv_used_bytes"),
    ("engine_kv_parked_bytes", "Keys and values kept for later turns.", "kv_parked_bytes"),
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
    """The sources of every scrape. `stores`: the store's clients by their use; `lag`: that of the event loop."""

    models: ServedModels
    connections: Callable[[], ConnectionStatistics]
    sessions: Callable[[], SessionStatistics]
    refusals: RefusalCounters
    bounds: BoundCounters
    stores: Mapping[str, StoreStats]
    lag: Durations
    is_draining: Callable[[], bool]
    version: str


def collectors_of(sources: Sources) -> Iterable[Collector]:
    """Make all collectors."""
    yield _GaugeCollector(sources)
    yield _RefusalCollector(sources.refusals)
    yield _BoundCollector(sources.bounds)
    yield _StoreCollector(sources.stores)
    yield Histogram(
        "midstream_event_loop_lag_seconds", "How late the event loop runs what is due.", sources.lag
    )
    yield Histogram(
        "midstream_delta_delay_seconds",
        "From the engine's step that made a delta's first token until its frame is written to the socket.",
        sources.bounds.delays,
    )


class Histogram(Collector):
    """Histograms that are counted elsewhere: the library's own takes a lock for each observation."""

    def __init__(self, name: str, text: str, durations: Durations) -> None:
        self._name = name
        self._text = text
        self._durations = durations

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        yield HistogramMetricFamily(
            self._name, self._text, buckets=_buckets(self._durations), sum_value=self._durations.seconds
        )


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(map(float, durations.counts)), strict=True))


class _GaugeCollector(Collector):
    def __init__(self, sources: Sources) -> None:
        self._models = sources.models
        self._connections = sources.connections
        self._sessions = sources.sessions
        self._bounds = sources.bounds
        self._is_draining = sources.is_draining
        self._build = {"version": sources.version, "python": python_version()}

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("midstream_build", "The version of this service.", self._build)
        for name, (text, value) in self._gauges().items():
            yield GaugeMetricFamily(f"midstream_{name}", text, value)
        for name, (text, total) in self._counters().items():
            yield CounterMetricFamily(f"midstream_{name}", text, total)
        yield from _of_memory(self._sessions().store)
        yield from _of_tools(self._sessions().tools)
        yield from _of_engines(self._models)

    def _gauges(self) -> dict[str, tuple[str, float]]:
        connections, sessions = self._connections(), self._sessions()
        return {
            "connections": ("Open connections: WebSockets and event streams.", connections.connections),
            "clients": ("Client ids with an open connection.", connections.clients),
            "conversations": ("Conversations that somebody is attached to.", sessions.conversations),
            "turns_live": ("Turns running or waiting.", sessions.turns),
            "turns_unsaved": (
                "Turns with text or an end that clients were told and the store does not have.",
                sessions.unsaved,
            ),
            "late_readers": ("Connections with frames waiting for their reader.", connections.late),
            "outbox_bytes": ("Bytes that wait for late readers, in all outboxes.", connections.waiting_bytes),
            "outbox_largest_bytes": (
                "Bytes that wait in the fullest outbox.",
                connections.most_waiting_bytes,
            ),
            "draining": (
                "Whether the service takes no new turns because it is about to stop.",
                self._is_draining(),
            ),
        }

    def _counters(self) -> dict[str, tuple[str, float]]:
        return {
            "connections_opened": (
                "Connections opened, event streams included.",
                self._connections().opened,
            ),
            "journal_pipelines": ("Writes of the journal.", self._sessions().journal_pipelines),
            "journal_bytes": (
                "Events given to the journal; a repeated write counts again.",
                self._sessions().journal_bytes,
            ),
            "reaped_turns": ("Turns without a running replica, closed here.", self._sessions().reaped),
            "reader_gaps": ("How often a reader was told of a gap.", self._bounds.gaps),
        }


class _RefusalCollector(Collector):
    def __init__(self, refusals: RefusalCounters) -> None:
        self._refusals = refusals

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "midstream_refusals", "Requests, connections and messages turned away.", labels=["reason"]
        )
        for refusal, count in self._refusals.statistics().items():
            family.add_metric([refusal.value], count)
        yield family
        errors = CounterMetricFamily(
            "midstream_errors", "Errors sent to clients, by door and code.", labels=["door", "code"]
        )
        for endpoint, sent in self._refusals.sent().items():
            for code, count in {**_FROM_THE_START, **sent}.items():
                errors.add_metric([endpoint.value, code], count)
        yield errors


class _BoundCollector(Collector):
    def __init__(self, bounds: BoundCounters) -> None:
        self._bounds = bounds

    def collect(self) -> Iterable[Metric]:
        met = CounterMetricFamily(
            "midstream_bounds", "How often a connection reached one of its bounds.", labels=["bound"]
        )
        for bound, count in self._bounds.met().items():
            met.add_metric([bound.value], count)
        yield met
        closes = CounterMetricFamily(
            "midstream_closes", "WebSockets that the server closed.", labels=["code"]
        )
        for code, count in self._bounds.closes().items():
            closes.add_metric([code], count)
        yield closes


class _StoreCollector(Collector):
    def __init__(self, tallies: Mapping[str, StoreStats]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterable[Metric]:
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
        for client, tally in self._tallies.items():
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


def _of_tools(sent: ToolStatistics) -> Iterable[Metric]:
    yield GaugeMetricFamily("midstream_tool_calls_running", "Calls of server tools that run.", sent.running)
    yield CounterMetricFamily(
        "midstream_tool_calls_started", "Calls of server tools that were started.", sent.started
    )
    ended = CounterMetricFamily(
        "midstream_tool_calls", "Calls of server tools that ended.", labels=["outcome"]
    )
    seconds = CounterMetricFamily("midstream_tool_seconds", "Time that ended calls took.", labels=["outcome"])
    for outcome, count in sent.ended.items():
        ended.add_metric([outcome.value], count)
        seconds.add_metric([outcome.value], sent.seconds[outcome])
    yield from (ended, seconds)


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
