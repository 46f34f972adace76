"""Logs: one line an event, as text for a terminal or JSON for a collector. Never content, keys or tokens of clients.

So tracebacks contain no local variables, and no messages except the system's. Libraries log nothing at `debug`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import orjson
import structlog

from connections.protocol.base import AUDIT_LOGGER
from engine import machine
from engine.machine import printable, printable_lines
from engine.messages import NO_TRACE, current_trace

OURS = ("midstream", machine.__package__)
"""Names of our own loggers."""
QUOTING = ("mcp", "client")
"""Loggers of the MCP library. They quote tools' arguments and results; our own lines contain what matters."""


def set_up(*, style: Literal["auto", "text", "json"], level: str) -> None:
    """Route structlog and the standard library's loggers to standard error."""
    as_json = style == "json" or (style == "auto" and not sys.stderr.isatty())
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _whose,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if as_json:
        renderer = structlog.processors.JSONRenderer(
            lambda event, **_: orjson.dumps(event, default=str).decode()
        )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.ExceptionRenderer(lambda raised: machine.without_values(raised[1])),
            _printable,
            renderer,
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))
    for ours in OURS:
        logging.getLogger(ours).setLevel(level.upper())
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    # their lines hold query strings and frames; httpx logs each request to an upstream
    for talkative in ("uvicorn", "websockets", "asyncio", "httpx", "httpx2"):
        logging.getLogger(talkative).setLevel("WARNING")
    for quoting in QUOTING:
        logging.getLogger(quoting).setLevel(logging.CRITICAL + 1)
    logging.getLogger("asyncio").addFilter(_what_happened)


def _whose(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the id and the trace that the request named, if any, to an event."""
    if (ids := current_trace.get()) != NO_TRACE:
        for name, value in ids.facts.items():
            event.setdefault(name, value)
    return event


def _printable(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what terminals obey: headers, names of models and errors of others are chosen by peers."""
    return {name: _escaped(value, lines=name == "exception") for name, value in event.items()}


def _escaped(value: object, *, lines: bool = False) -> object:
    match value:
        case str():
            if value.isprintable():
                return value
            return printable_lines(value) if lines else printable(value)
        case dict():
            return {_escaped(name): _escaped(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_escaped(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return printable(str(value))


def _what_happened(record: logging.LogRecord) -> bool:
    """Keep only the event in asyncio's reports: the rest shows callbacks' arguments, and objects that hold errors."""
    record.msg, record.args = record.getMessage().partition("\n")[0].partition("(")[0], ()
    return True
