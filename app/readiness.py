"""Whether this replica can take turns, and if not, why: the content of `/readyz`."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from engine.door import Engine, EngineState
from sessions.errors import StoreDown
from sessions.store import store_errors

STORE_S = 1.0


class Readiness:
    """Looks at the parts."""

    def __init__(self, *, engine: Engine, store: Redis) -> None:
        self._engine = engine
        self._store = store
        self.draining = False

    async def report(self) -> dict[str, Any]:
        """`ready`, and the state of each part; `progress` is the share of the loading that is done."""
        status = self._engine.status
        store = await self._store_answers()
        return {
            "ready": status.state is EngineState.READY and store and not self.draining,
            "draining": self.draining,
            "store": "ok" if store else "unavailable",
            "engine": {
                "state": status.state.value,
                "stage": status.stage,
                "progress": round(status.progress, 3),
                "message": status.message,
                "restarts": status.restarts,
            },
        }

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_S):
                with store_errors():
                    return bool(await self._store.ping())
        except (StoreDown, TimeoutError):
            return False
