"""A task's boundary: who asked is told what went wrong, nobody else notices."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine

import structlog

from sessions.errors import InternalError, Refused

_log = structlog.get_logger("midstream.sessions")


async def guarded(work: Coroutine[None, None, None]) -> Refused | None:
    """Does it; gives the refusal, which for a defect is a number that the log has."""
    try:
        await work
    except Refused as refusal:
        return refusal
    except Exception:  # noqa: BLE001 - see above
        incident = secrets.token_hex(4)
        _log.exception("request failed", incident=incident)
        return InternalError(incident=incident)
    return None
