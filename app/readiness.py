"""Whether this replica can take turns, and if not, why: the content of `/readyz`."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from engine.door import Engine, EngineState, EngineStatus
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
        """`ready`, and the state of each part; `progress` is the share of the loading that is done.

        Where several engines serve, `engines` has the state of each, and `engines_ready` says how many of them serve.
        """
        status, several = self._engine.status, len(self._engine.parts) > 1
        store = await self._store_answers()
        return {
            "ready": status.state is EngineState.READY and store and not self.draining,
            "draining": self.draining,
            "store": "ok" if store else "unavailable",
            "engine": _told(status),
            **(self._engines() if several else {}),
        }

    def _engines(self) -> dict[str, Any]:
        each = [engine.status for engine in self._engine.parts]
        serving = sum(status.state is EngineState.READY for status in each)
        return {"engines_ready": serving, "engines": [_told(status) for status in each]}

    async def _store_answers(self) -> bool:
        try:
            async with asyncio.timeout(STORE_S):
                with store_errors():
                    return bool(await self._store.ping())
        except (StoreDown, TimeoutError):
            return False


def _told(status: EngineStatus) -> dict[str, Any]:
    return {
        "state": status.state.value,
        "stage": status.stage,
        "progress": round(status.progress, 3),
        "message": status.message,
        "restarts": status.restarts,
    }
