"""A span for each turn, and for each call of a server tool. Only this module knows OpenTelemetry.

Deltas cost nothing: a turn's span begins before the request to the engine, and everything else is recorded at the end. Names follow the
semantic conventions for GenAI, or begin with `midstream.`. Spans hold no content.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from time import monotonic, time_ns

import msgspec
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from app.settings import variable
from engine.messages import Trace, current_trace
from sessions.events import Done
from sessions.observer import Observer
from sessions.records import Client

CLOSE_S = 3.0
"""Seconds to send the last spans at the end. A collector that does not answer delays the stop by no more."""
LONGEST_VALUE = 256
"""The most characters of an attribute; a longer one is cut."""
_NS = 1_000_000_000


class _Begun(msgspec.Struct, frozen=True):
    """A turn that runs in this task. `start_ns`: when it was accepted, in nanoseconds since 1970."""

    turn_id: str
    span: Span
    start_ns: int


_begun: ContextVar[_Begun | None] = ContextVar("begun", default=None)


class Spans(Observer):
    """Observes turns, and sends their spans to a collector, from a separate thread.

    At most `OTEL_BSP_MAX_QUEUE_SIZE` (2,048) spans wait; beyond that the oldest are dropped.
    """

    def __init__(self, observer: Observer, *, version: str) -> None:
        """Pass everything on to `observer`, too; events of deltas go to it directly."""
        self._observer = observer
        self.first_token = observer.first_token  # type: ignore[method-assign]
        self.gap = observer.gap  # type: ignore[method-assign]
        self._provider = TracerProvider(
            resource=_resource(version),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=LONGEST_VALUE),
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("midstream", version)

    def began(self, turn_id: str, model: str, accepted_at: float) -> None:
        """Begin a span, a child of the one that the request names and the parent in requests that this task sends."""
        self._observer.began(turn_id, model, accepted_at)
        start_ns = time_ns() - int((monotonic() - accepted_at) * _NS)
        span = self._begin(turn_id, model, start_ns)
        current_trace.set(_named(current_trace.get(), span.get_span_context()))
        _begun.set(_Begun(turn_id, span, start_ns))

    def ended(self, done: Done, client: Client) -> None:
        """End the turn's span. A turn that never ran gets one, too."""
        self._observer.ended(done, client)
        begun = _begun.get()
        if begun is None or begun.turn_id != done.turn_id:
            start_ns = time_ns() - int(done.timing.total_ms * 1e6)
            begun = _Begun(done.turn_id, self._begin(done.turn_id, done.model or "", start_ns), start_ns)
        if begun.span.is_recording():
            self._finish(begun, done)

    def tool_ended(self, name: str, call_id: str, seconds: float, failure: str | None) -> None:
        """Record the span of a call, as a child of its turn."""
        self._observer.tool_ended(name, call_id, seconds, failure)
        now = time_ns()
        span = self._tracer.start_span(
            f"execute_tool {name}",
            context=_context(current_trace.get()),
            start_time=now - int(seconds * _NS),
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name,
                "gen_ai.tool.call.id": call_id,
                "gen_ai.tool.type": "function",
            },
        )
        if failure is not None:
            _fail(span, failure)
        span.end(now)

    async def close(self) -> bool:
        """Send the waiting spans, for `CLOSE_S` at most; return whether all were sent."""
        closed, loop = asyncio.Event(), asyncio.get_running_loop()

        def close() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=close, name="spans", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()
        except TimeoutError:
            return False
        return True

    def _begin(self, turn_id: str, model: str, start_ns: int) -> Span:
        return self._tracer.start_span(
            f"chat {model}".rstrip(),
            context=_context(current_trace.get()),
            kind=SpanKind.SERVER,
            start_time=start_ns,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "midstream",
                "gen_ai.request.stream": True,
                "midstream.turn.id": turn_id,
            },
        )

    def _finish(self, begun: _Begun, done: Done) -> None:
        span, now = begun.span, time_ns()
        span.set_attributes(_facts(done))
        decided = begun.start_ns + int(done.timing.total_ms * 1e6)
        self._parts(begun, done, decided)
        if done.conversation_id:
            self._part(span, "journal", decided, max(decided, now))
        if done.error is not None:
            _fail(span, done.error.code)
        span.end(max(decided, now))

    def _parts(self, begun: _Begun, done: Done, decided: int) -> None:
        """Record, as spans, what a turn waited for: its place in the batch, its prompt, its text."""

        def at(after_ms: float | None) -> int:
            return decided if after_ms is None else begun.start_ns + int(after_ms * 1e6)

        started, first = at(done.timing.queued_ms), at(done.timing.first_token_ms)
        self._part(begun.span, "queue", begun.start_ns, started)
        if done.timing.queued_ms is not None:
            self._part(begun.span, "prefill", started, first)
        if done.timing.first_token_ms is not None:
            begun.span.add_event("first token", timestamp=first)
            self._part(begun.span, "decode", first, decided)

    def _part(self, parent: Span, name: str, start_ns: int, end_ns: int) -> None:
        within = set_span_in_context(parent)
        self._tracer.start_span(name, context=within, start_time=start_ns).end(end_ns)


def _facts(done: Done) -> dict[str, AttributeValue]:
    """Return the attributes of a turn's end."""
    usage, timing, cancel = done.usage, done.timing, done.cancel
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.request.model": done.requested_model or done.model,
        "gen_ai.response.model": done.model,
        "gen_ai.response.id": done.message_id,
        "gen_ai.response.finish_reasons": (done.reason.value,),
        "gen_ai.response.time_to_first_chunk": _seconds(timing.first_token_ms),
        "gen_ai.conversation.id": done.conversation_id or None,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "midstream.usage.sent_tokens": usage.sent_tokens,
        "midstream.usage.wasted_tokens": usage.wasted_tokens,
        "midstream.saved": done.saved,
        "midstream.open_calls": len(done.open),
        "midstream.cancel.cause": None if cancel is None else cancel.cause.value,
        "midstream.cancel.latency": None if cancel is None else _seconds(cancel.latency_ms),
        "midstream.cancel.steps_after": None if cancel is None else cancel.steps_after,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _fail(span: Span, code: str) -> None:
    """Record the code alone: an error's message may quote what somebody wrote."""
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR))


def _context(named: Trace) -> Context:
    """Return the parent span that a request names, never this task's own; without one a new trace begins."""
    if not named.traceparent:
        return Context()
    _, trace_id, span_id, flags = named.traceparent[:55].split("-")
    parent = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _named(before: Trace, span: SpanContext) -> Trace:
    """Return the trace context for outgoing requests within a span."""
    parent = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
    return msgspec.structs.replace(before, traceparent=parent)


def _resource(version: str) -> Resource:
    """Describe this service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` do."""
    named = variable("OTEL_SERVICE_NAME") or "service.name=" in (variable("OTEL_RESOURCE_ATTRIBUTES") or "")
    own: dict[str, AttributeValue] = {} if named else {"service.name": "midstream"}
    return Resource.create({"service.version": version} | own)
