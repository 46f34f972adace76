"""Whether this replica can take turns, and if not, why: the content of `/readyz`."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Literal

import msgspec

from engine.door import EngineState, EngineStatus
from engine.served_models import ServedModels
from sessions.errors import StoreDown
from sessions.store.redis.writable import RefusesWrites, Writable

PROBED_S = 1.0
"""How long an answer of the store counts: whoever asks more often costs it nothing."""


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's state; `progress` is the share of the loading that is done."""

    state: EngineState
    stage: str
    progress: float
    message: str | None
    restarts: int


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`ready`, and the state of each part. `store_message`: why the store takes no message, in words.

    Where several engines serve, `engines` has the state of each, and `engines_ready` says how many of them serve; where there
    are several models, `models` has the state of each by its name. One of them that serves is enough to be ready.
    """

    ready: bool
    draining: bool
    store: Literal["ok", "refuses_writes", "unavailable"]
    store_message: str | None = None
    engine: EngineReport
    engines_ready: int | None = None
    engines: tuple[EngineReport, ...] | None = None
    models: dict[str, EngineState] | None = None


class _Store(msgspec.Struct, frozen=True):
    """What the store answered to a probe, and until when that counts."""

    state: Literal["ok", "refuses_writes", "unavailable"]
    message: str | None = None
    until: float = 0.0


class Readiness:
    """Looks at the parts."""

    def __init__(self, *, models: ServedModels, store: Writable) -> None:
        self._models = models
        self._store = store
        self._probed = _Store("unavailable")
        self._probing = asyncio.Lock()
        self.draining = False

    async def report(self) -> Report:
        """What is so at this moment."""
        status, parts, models = self._models.status, self._models.parts, self._models.models
        store = await self._store_takes_writes()
        several = [part.status for part in parts] if len(parts) > 1 else None
        return Report(
            ready=status.state is EngineState.READY and store.state == "ok" and not self.draining,
            draining=self.draining,
            store=store.state,
            store_message=store.message,
            engine=_told(status),
            engines_ready=None if several is None else sum(one.state is EngineState.READY for one in several),
            engines=None if several is None else tuple(map(_told, several)),
            models={model.name: model.engine.status.state for model in models} if len(models) > 1 else None,
        )

    async def _store_takes_writes(self) -> _Store:
        """What the store says to a small write, as of a moment ago: a message that it can't take is refused."""
        async with self._probing:  # whoever asks meanwhile waits for the same answer
            if monotonic() >= self._probed.until:
                self._probed = msgspec.structs.replace(await self._probe(), until=monotonic() + PROBED_S)
        return self._probed

    async def _probe(self) -> _Store:
        try:
            await self._store.check()
        except RefusesWrites as refused:
            return _Store("refuses_writes", str(refused))
        except StoreDown as down:
            return _Store("unavailable", str(down))
        return _Store("ok")


def _told(status: EngineStatus) -> EngineReport:
    return EngineReport(
        state=status.state,
        stage=status.stage,
        progress=round(status.progress, 3),
        message=status.message,
        restarts=status.restarts,
    )
