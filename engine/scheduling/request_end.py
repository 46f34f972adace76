"""How a request ends, and its last outputs. Knows neither other requests nor the model."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.messages import ErrorCode, FinishReason, Output
from engine.scheduling.active_request import ActiveRequest

NO_TEXT = "The reply's text could not be made."

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """Why a request ends. `flush`: tell text that is held back. `keep`: its keys and values may serve a later turn."""

    active: ActiveRequest
    reason: FinishReason
    error: str | None = None
    code: ErrorCode = ErrorCode.INTERNAL
    flush: bool = True
    keep: bool = True


def last_outputs(end: RequestEnd) -> list[Output]:
    """Return the last outputs of a request. If its text can't be made, its end is told all the same."""
    active = end.active
    try:
        if end.reason is FinishReason.CANCELLED:
            # The end is made before the flush: nobody has seen what is held back, so `written` leaves it out.
            ended = active.finished(end.reason, end.error, end.code)
            active.prepared.reply.flush()
            return [ended]
        held_back = active.prepared.reply.flush() if end.flush else ()
        return [*active.outputs_of(held_back), active.finished(end.reason, end.error, end.code)]
    except Exception:
        log.exception("detokenizing request %s failed", active.prepared.named)
        return [active.finished(FinishReason.ERROR, NO_TEXT)]
