"""Whether turns are traced, by OpenTelemetry's own variables. Without them none of its libraries is imported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import structlog

from app.settings import SettingsError, variable
from sessions.observer import Observer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"

_log = structlog.get_logger("midstream.tracing")


@asynccontextmanager
async def traced(observer: Observer, *, version: str) -> AsyncIterator[Observer]:
    """Return an observer that also makes spans of turns, if an endpoint for them is set; else the given one.

    Raises SettingsError.
    """
    endpoint = _endpoint()
    if endpoint is None:
        yield observer
        return
    try:
        from app.operations.spans import Spans  # noqa: PLC0415 - an optional part
    except ModuleNotFoundError as missing:
        why = f"{missing.name} is not installed: pip install 'midstream-server[otel]'."
        raise SettingsError(f"{ENDPOINTS[1]} asks for traces, but {why}") from missing
    spans = Spans(observer, version=version)
    _log.info("tracing enabled", collector=urlsplit(endpoint).hostname)
    try:
        yield spans
    finally:
        if not await spans.close():
            _log.warning("the last spans were dropped: the collector does not accept them")


def _endpoint() -> str | None:
    """Return the endpoint of spans; None if none is set. Raises SettingsError."""
    name = next((name for name in ENDPOINTS if variable(name)), None)
    is_disabled = (variable("OTEL_SDK_DISABLED") or "").strip().lower() == "true"
    is_off = is_disabled or variable("OTEL_TRACES_EXPORTER") == "none"
    if name is None or is_off:
        return None
    endpoint = variable(name) or ""
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise SettingsError(f"{name} takes a URL, such as http://127.0.0.1:4318.")
    spoken = next(
        (name for name in PROTOCOLS if variable(name)), None
    )  # the endpoint of traces has precedence over the general one
    if spoken is not None and variable(spoken) != PROTOCOL:
        raise SettingsError(
            f"{spoken}: only {PROTOCOL} is spoken here; that is port 4318 of most collectors."
        )
    return endpoint
