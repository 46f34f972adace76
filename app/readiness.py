"""Whether this replica can take turns, and if not, why: the content of `/readyz`."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from redis.asyncio import Redis

from engine.door import Engine, EngineState, EngineStatus
from sessions.errors import StoreDown
from sessions.store.client import store_errors

STORE_S = 1.0


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's state; `progress` is the share of the loading that is done."""

    state: EngineState
    stage: str
    progress: float
    message: str | None
    restarts: int


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`ready`, and the state of each part.

    Where several engines serve, `engines` has the state of each, and `engines_ready` says how many of them serve.
    """

    ready: bool
    draining: bool
    store: Literal["ok", "unavailable"]
    engine: EngineReport
    engines_ready: int | None = None
    engines: tuple[EngineReport, ...] | None = None


class Readiness:
    """Looks at the parts."""

    def __init__(self, *, engine: Engine, store: Redis) -> None:
        self._engine = engine
        self._store = store
        self.draining = False

    async def report(self) -> Report:
        """What is so at this moment."""
        status, parts = self._engine.status, self._engine.parts
        store = await self._store_answers()
        several = [part.status for part in parts] if len(parts) > 1 else None
        return Report(
            ready=status.state is EngineState.READY and store and not self.draining,
            draining=self.draining,
            store="ok" if store else "unavailable",
            engine=_told(status),
            engines_ready=None if several is None else sum(one.state is EngineState.READY for one in several),
            engines=None if several is None else tuple(map(_told, several)),
        )

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_S):
                with store_errors():
                    return bool(await self._store.ping())
        except (StoreDown, TimeoutError):
            return False


def _told(status: EngineStatus) -> EngineReport:
    return EngineReport(
        state=status.state,
        stage=status.stage,
        progress=round(status.progress, 3),
        message=status.message,
        restarts=status.restarts,
    )
