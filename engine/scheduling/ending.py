"""How a request ends, and what it tells last. Knows neither the others nor the model."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.messages import ErrorCode, FinishReason, Output
from engine.scheduling.active_request import ActiveRequest

NO_TEXT = "The reply's text could not be made."

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """Why a request ends. `flush`: text that is held back is told. `keep`: what it computed may serve a later turn."""

    active: ActiveRequest
    reason: FinishReason
    error: str | None = None
    code: ErrorCode = ErrorCode.INTERNAL
    flush: bool = True
    keep: bool = True


def last_outputs(end: End) -> list[Output]:
    """Return what a request tells last. Nothing that fails here keeps its end from being told."""
    active = end.active
    try:
        if end.reason is FinishReason.CANCELLED:
            # Taken before the flush: what is held back was seen by nobody, so it was not written either.
            ended = active.finished(end.reason, end.error, end.code)
            active.prepared.reply.flush()
            return [ended]
        held_back = active.prepared.reply.flush() if end.flush else ()
        return [*active.tell(held_back), active.finished(end.reason, end.error, end.code)]
    except Exception:
        log.exception("the text of request %s could not be made", active.prepared.named)
        return [active.finished(FinishReason.ERROR, NO_TEXT)]
