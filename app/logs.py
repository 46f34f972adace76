"""Logs: one line an event, as text for a terminal or JSON for a collector. Never content, keys or tokens of clients."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import orjson
import structlog


def set_up(*, style: Literal["auto", "text", "json"], level: str) -> None:
    """Routes structlog and the standard library's loggers to standard error."""
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    renderer: Any = structlog.processors.JSONRenderer(_dumps) if as_json else _for_people()
    tracebacks = [structlog.processors.format_exc_info] if as_json else []
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, renderer],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for talkative in ("uvicorn", "websockets", "asyncio"):  # their lines hold query strings and frames
        logging.getLogger(talkative).setLevel("WARNING")


def _for_people() -> structlog.dev.ConsoleRenderer:
    """Lines for a terminal. Tracebacks without local variables: those hold what people wrote."""
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


def _dumps(event: Any, **_: Any) -> str:
    return orjson.dumps(event, default=str).decode()
