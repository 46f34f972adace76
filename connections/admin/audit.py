"""Logs one line for each act of an operator, at any log level: who, what, on whom, and the outcome. No content."""

from __future__ import annotations

import logging

import structlog

NAME = "midstream.audit"

_log = structlog.wrap_logger(logging.getLogger(NAME), wrapper_class=structlog.stdlib.BoundLogger)


def note(*, operator: str | None, act: str, outcome: str, on: dict[str, str | int]) -> None:
    """Write the line. `operator`: the name of the key; None: without a valid one. `on`: the subject of the act, and its extent."""
    _log.info("admin", operator=operator, act=act, outcome=outcome, **on)
