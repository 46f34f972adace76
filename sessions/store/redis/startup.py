"""Waits for the store at the service's start: a store that starts, too, may first read its data, or fail once more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

import structlog

from sessions.errors import StoreDown

PATIENCE_S = 60.0
PAUSE_S = 1.0
LOG_S = 10.0
"""How often the same reason for waiting is logged."""

_log = structlog.get_logger("midstream.store")
_T = TypeVar("_T")


async def retry_until_available(
    attempt: Callable[[], Awaitable[_T]],
    *,
    at: str | None = None,
    within_s: float | None = None,
    failed: Callable[[StoreDown], None] | None = None,
) -> _T:
    """Try until the store answers. `at`: its address, for the log; `failed` is called with each failure of it.

    Raises StoreDown after `within_s`, `PATIENCE_S` by default, and any other error of an attempt.
    """
    since = monotonic()
    patience_s = PATIENCE_S if within_s is None else within_s
    logged: tuple[str, float] | None = None
    while True:
        try:
            return await attempt()
        except StoreDown as trouble:
            now, why = monotonic(), str(trouble)
            if now - since > patience_s:
                raise
            if failed is not None:
                failed(trouble)
            if logged is None or logged[0] != why or now - logged[1] >= LOG_S:
                logged = why, now
                _log.warning("waiting for the store", at=at, why=why, waited_s=round(now - since))
            await asyncio.sleep(PAUSE_S)
