"""An OTLP collector for the tests: it decodes protobuf over HTTP."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_S = 60.0


class ExportedSpan(msgspec.Struct):
    """A span as it was sent. Ids are hexadecimal digits; times are nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: int
    is_error: bool
    attributes: dict[str, Any]
    events: list[str]
    service: str


class Collector:
    """The collector's spans."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self._spans: queue.Queue[ExportedSpan] = queue.Queue()

    def take(self, body: bytes) -> None:
        """Decode a request."""
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {one.key: one.value.string_value for one in resource.resource.attributes}[
                "service.name"
            ]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._spans.put(_exported_span(span, service))

    def until(self, name: str) -> list[ExportedSpan]:
        """Return the spans since the last call, up to one whose name begins so. It blocks: call it in a thread."""
        seen = [self._spans.get(timeout=WAIT_S)]
        while not seen[-1].name.startswith(name):
            seen.append(self._spans.get(timeout=WAIT_S))
        return seen

    @property
    def is_empty(self) -> bool:
        """True if `until` has returned every span that was received."""
        return self._spans.empty()


def _exported_span(span: Span, service: str) -> ExportedSpan:
    return ExportedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        kind=span.kind,
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes={one.key: _value(one.value) for one in span.attributes},
        events=[event.name for event in span.events],
        service=service,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return (
        [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    )


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
