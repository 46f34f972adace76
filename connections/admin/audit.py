"""One line in the log for each act of an operator's, whatever level the log has: who, what, on whom, and what came of it. No content."""

from __future__ import annotations

import logging

import structlog

NAME = "midstream.audit"

_log = structlog.wrap_logger(logging.getLogger(NAME), wrapper_class=structlog.stdlib.BoundLogger)


def note(*, operator: str | None, act: str, outcome: str, on: dict[str, str | int]) -> None:
    """Writes it. `operator`: the name of the key; None: of nobody who is one. `on`: whom it was about, and how much."""
    _log.info("admin", operator=operator, act=act, outcome=outcome, **on)
