"""The one file that knows Prometheus: it watches turns, and pulls the floors' statistics when it is asked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from connections.http.refusals import Refusals
from connections.limits.bounds import Bounds
from connections.line.registry import RegistryStatistics
from engine.door import Engine, EngineState
from engine.served_models import ServedModels
from sessions.events import Done
from sessions.records import Client
from sessions.service import SessionStatistics
from sessions.tools.tally import ToolStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]

# Name, text, and the field of `EngineStatistics`. What the process counts begins again with the next process.
_ENGINE_GAUGES = (
    ("engine_batch", "Requests in the engine's batch.", "running"),
    ("engine_queue", "Requests that wait for a place in the batch.", "queued"),
    ("engine_kv_used_bytes", "Keys and values of running replies.", "kv_used_bytes"),
    ("engine_kv_parked_bytes", "Keys and values kept for later turns.", "kv_parked_bytes"),
    ("engine_kv_total_bytes", "Keys and values that there is room for.", "kv_total_bytes"),
    ("engine_circuit_open", "Whether an upstream failed so often that it is left alone.", "circuit_open"),
)
_ENGINE_COUNTERS = (
    ("engine_steps", "Engine steps of the running process.", "steps"),
    ("engine_step_seconds", "Time in engine steps of the running process.", "step_seconds"),
    ("engine_prefill_steps", "Engine steps that computed prompt tokens.", "prefill_steps"),
    ("engine_generated_tokens", "Tokens sampled by the running process.", "generated_tokens"),
    ("engine_prompt_tokens", "Prompt tokens computed by the running process.", "prompt_tokens"),
    ("engine_cached_tokens", "Prompt tokens whose keys and values were kept.", "cached_tokens"),
    ("engine_preemptions", "Replies put back into the queue for want of room.", "preemptions"),
    ("engine_cancels", "Requests whose cancel the running process read.", "cancels"),
    ("engine_steps_after_cancel", "Steps started for requests after that.", "steps_after_cancel"),
    ("engine_failures", "Requests that an upstream failed.", "failures"),
    ("engine_shed", "Requests that an upstream had no room for.", "shed"),
    ("engine_retries", "Requests asked of an upstream once more.", "retries"),
    ("engine_fallbacks", "Requests that came to an upstream from another one.", "fallbacks"),
    ("engine_deliveries", "Pieces of an upstream's text that readers took.", "deliveries"),
    ("engine_delivery_seconds", "Time that those lay between arrival and reader.", "delivery_seconds"),
)


class Metrics:
    """Observes turns (`sessions.observer.Observer`) and renders `/metrics`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._first_token = Histogram(
            "midstream_first_token_seconds",
            "From accepted to the first delta.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._gap = _Gaps("midstream_delta_gap_seconds", "Between two deltas of a turn.")
        self._registry.register(self._gap)
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
        self._steps_after = Counter(
            "midstream_steps_after_cancel",
            "Engine steps started for a turn after its cancel.",
            registry=self._registry,
        )

    def first_token(self, seconds: float) -> None:
        """Counts a time to first token."""
        self._first_token.observe(seconds)

    def gap(self, seconds: float) -> None:
        """Counts a gap between deltas."""
        self._gap.observe(seconds)

    def ended(self, done: Done, _: Client) -> None:
        """Counts an ended turn."""
        self._turns.labels(done.reason.value).inc()
        self._models.labels(done.model or "", done.requested_model or done.model or "").inc()
        for kind in ("prompt", "cached", "generated", "sent", "wasted"):
            self._tokens.labels(kind).inc(getattr(done.usage, f"{kind}_tokens"))
        if done.cancel is not None:
            self._cancels.labels(done.cancel.cause.value).inc()
            self._steps_after.inc(done.cancel.steps_after or 0)

    def watch(
        self,
        *,
        models: ServedModels,
        connections: Callable[[], RegistryStatistics],
        sessions: Callable[[], SessionStatistics],
        refusals: Refusals,
        bounds: Bounds,
    ) -> None:
        """Pulls these at every scrape."""
        self._registry.register(_Pulled(models, connections, sessions))
        self._registry.register(_TurnedAway(refusals))
        self._registry.register(_Bounded(bounds))

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._registry)


class _Gaps(Collector):
    """A histogram of what is observed with every delta: the library's takes a lock for each of its numbers."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._counts = [0] * (len(_GAPS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bisect_left(_GAPS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        bounds = [*(str(bound) for bound in _GAPS), "+Inf"]
        buckets = list(zip(bounds, accumulate(map(float, self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class _Pulled(Collector):
    def __init__(
        self,
        models: ServedModels,
        connections: Callable[[], RegistryStatistics],
        sessions: Callable[[], SessionStatistics],
    ) -> None:
        self._models = models
        self._connections = connections
        self._sessions = sessions

    def collect(self) -> Iterable[Metric]:
        for name, (text, value) in self._gauges().items():
            yield GaugeMetricFamily(f"midstream_{name}", text, value)
        for name, (text, total) in self._counters().items():
            yield CounterMetricFamily(f"midstream_{name}", text, total)
        yield from _of_tools(self._sessions().tools)
        yield from _of_engines(self._models)

    def _gauges(self) -> dict[str, tuple[str, float]]:
        connections, sessions = self._connections(), self._sessions()
        return {
            "connections": ("Open connections: WebSockets and event streams.", connections.connections),
            "clients": ("Client ids with an open connection.", connections.clients),
            "conversations": ("Conversations somebody is attached to.", sessions.conversations),
            "turns_live": ("Turns running or waiting.", sessions.turns),
        }

    def _counters(self) -> dict[str, tuple[str, float]]:
        return {
            "connections_opened": (
                "Connections that came in, event streams too.",
                self._connections().opened,
            ),
            "journal_pipelines": ("Writes of the journal.", self._sessions().journal_pipelines),
        }


class _TurnedAway(Collector):
    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "midstream_refusals", "Requests, connections and messages turned away.", labels=["reason"]
        )
        for refusal, count in self._refusals.statistics().items():
            family.add_metric([refusal.value], count)
        yield family
        errors = CounterMetricFamily(
            "midstream_errors", "Errors that clients were told, by door and code.", labels=["door", "code"]
        )
        for door, told in self._refusals.told().items():
            for code, count in told.items():
                errors.add_metric([door.value, code], count)
        yield errors


class _Bounded(Collector):
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def collect(self) -> Iterable[Metric]:
        met = CounterMetricFamily(
            "midstream_bounds", "Bounds of a connection that were met.", labels=["bound"]
        )
        for bound, count in self._bounds.met().items():
            met.add_metric([bound.value], count)
        yield met
        closes = CounterMetricFamily("midstream_closes", "WebSockets that the server ended.", labels=["code"])
        for code, count in self._bounds.closes().items():
            closes.add_metric([code], count)
        yield closes


def _of_tools(told: ToolStatistics) -> Iterable[Metric]:
    yield GaugeMetricFamily("midstream_tool_calls_running", "Calls of server tools that run.", told.running)
    yield CounterMetricFamily(
        "midstream_tool_calls_started", "Calls of server tools that were started.", told.started
    )
    ended = CounterMetricFamily(
        "midstream_tool_calls", "Calls of server tools that ended.", labels=["outcome"]
    )
    seconds = CounterMetricFamily("midstream_tool_seconds", "Time that those took.", labels=["outcome"])
    for outcome, count in told.ended.items():
        ended.add_metric([outcome.value], count)
        seconds.add_metric([outcome.value], told.seconds[outcome])
    yield from (ended, seconds)


def _of_engines(models: ServedModels) -> Iterable[Metric]:
    """Tell of each by its number where there are several: a sum would fall when one of them starts anew."""
    engines = list(models.parts_by_model)
    labels = (["engine"] if len(engines) > 1 else []) + (["model"] if len(models.models) > 1 else [])
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for number, (model, engine) in enumerate(engines):
        for family, name, text, value in _facts_of(engine):
            metric = families.setdefault(name, family(f"midstream_{name}", text, labels=labels))
            metric.add_metric([str(number), model][: len(labels)], value)
    return families.values()


def _facts_of(engine: Engine) -> Iterable[tuple[_Family, str, str, float]]:
    status, told = engine.status, engine.statistics()
    up = status.state is EngineState.READY
    yield GaugeMetricFamily, "engine_up", "Whether the engine serves.", up
    yield CounterMetricFamily, "engine_restarts", "Engine processes started after the first.", status.restarts
    for name, text, field in _ENGINE_GAUGES:
        yield GaugeMetricFamily, name, text, getattr(told, field)
    for name, text, field in _ENGINE_COUNTERS:
        yield CounterMetricFamily, name, text, getattr(told, field)
