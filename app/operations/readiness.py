"""Whether this replica can take turns, and if not, why: the body of `/readyz`."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Literal

import msgspec

from engine.api import EngineState, EngineStatus
from engine.served_models import ServedModels
from sessions.errors import StoreDown
from sessions.limits.slots import as_service
from sessions.store.ledger import Memory
from sessions.store.redis.server_config import OutOfMemory, WriteProbe, WritesRefused

StoreState = Literal["ok", "full", "refuses_writes", "unavailable"]
"""`full`: it has no room for new messages and uploads. The replica stays ready: people can still read, delete, and chat without it."""
PROBE_CACHE_S = 1.0
"""How long an answer of the store counts, so that frequent probes cost it nothing."""


_FULL = "The store has no room for new messages and uploads. Delete something, or raise its maxmemory."


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's state; `progress` is the loaded share, from 0 to 1."""

    state: EngineState
    stage: str
    progress: float
    message: str | None
    restarts: int


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the replica is ready, and the state of each part. `store_message`: why the store is not `ok`, in words.

    With several engines, `engines` has each one's state and `engines_ready` how many serve. With several models, `models` has
    each one's state by name. One that serves is enough to be ready.
    """

    ready: bool
    draining: bool
    store: StoreState
    store_message: str | None = None
    engine: EngineReport
    engines_ready: int | None = None
    engines: tuple[EngineReport, ...] | None = None
    models: dict[str, EngineState] | None = None


class _Store(msgspec.Struct, frozen=True):
    """The store's answer to a probe, and until when it counts."""

    state: StoreState
    message: str | None = None
    until: float = 0.0


class Readiness:
    """Checks the parts."""

    def __init__(self, *, models: ServedModels, store: WriteProbe, memory: Memory) -> None:
        self._models = models
        self._store = store
        self._memory = memory
        self._probed = _Store("unavailable")
        self._probing = asyncio.Lock()
        self.draining = False

    async def report(self) -> Report:
        """Return the current state."""
        status, parts, models = self._models.status, self._models.parts, self._models.models
        store = await self._store_takes_writes()
        several = [part.status for part in parts] if len(parts) > 1 else None
        return Report(
            ready=status.state is EngineState.READY and store.state in ("ok", "full") and not self.draining,
            draining=self.draining,
            store=store.state,
            store_message=store.message,
            engine=_engine_report(status),
            engines_ready=None if several is None else sum(one.state.is_up for one in several),
            engines=None if several is None else tuple(map(_engine_report, several)),
            models={model.name: model.engine.status.state for model in models} if len(models) > 1 else None,
        )

    async def _store_takes_writes(self) -> _Store:
        """Return the store's answer to a small write, some moments old at most: a store that refuses it can't take messages either."""
        async with self._probing:  # concurrent probes wait for the same answer
            if monotonic() >= self._probed.until:
                with as_service():
                    probed = await self._probe()
                self._probed = msgspec.structs.replace(probed, until=monotonic() + PROBE_CACHE_S)
        return self._probed

    async def _probe(self) -> _Store:
        try:
            await self._store.check()
        except OutOfMemory as full:
            return _Store("full", str(full))
        except WritesRefused as refused:
            return _Store("refuses_writes", str(refused))
        except StoreDown as down:
            return _Store("unavailable", str(down))
        return _Store("full", _FULL) if self._memory.is_full else _Store("ok")


def waiting_report(models: ServedModels, why: str) -> Report:
    """Return the state while the service waits for its store."""
    return Report(
        ready=False,
        draining=False,
        store="unavailable",
        store_message=why,
        engine=_engine_report(models.status),
    )


def _engine_report(status: EngineStatus) -> EngineReport:
    return EngineReport(
        state=status.state,
        stage=status.stage,
        progress=round(status.progress, 3),
        message=status.message,
        restarts=status.restarts,
    )
