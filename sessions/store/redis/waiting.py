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

_log = structlog.get_logger("midstream.store")
_T = TypeVar("_T")


async def patiently(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Try until the store answers. Raises StoreDown after `PATIENCE_S`, and any other error of an attempt."""
    since = monotonic()
    while True:
        try:
            return await attempt()
        except StoreDown as trouble:
            if monotonic() - since > PATIENCE_S:
                raise
            _log.warning("waiting for the store", why=str(trouble))
            await asyncio.sleep(PAUSE_S)
