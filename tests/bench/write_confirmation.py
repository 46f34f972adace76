"""`python -m tests.bench.write_confirmation WAY SCRIPT`: the gateway of `tests.chaos.gateway` with another way to confirm writes.

Two ways that the product has not, to compare with. In both the embedded store answers before its disk has a write, and the gateway
waits for the disk before each `accepted` and `done`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from app import parts
from sessions.store.client import WriteConfirmer
from sessions.store_errors import store_errors
from tests.chaos import gateway

WAIT_MS = 3000


class ConfirmationMode(StrEnum):
    """How the gateway waits for the disk."""

    WAITAOF = "waitaof"
    """It asks the store (`WAITAOF 1 0`), which syncs each second. Valkey 8.0 to 9.1 answer before that."""
    OWNER = "owner"
    """It syncs the store's file itself, once for all that wait. The store, which never does (`appendfsync no`), has written to the
    file before it answered: else it would refuse the write that goes before the sync."""


FSYNC = {ConfirmationMode.WAITAOF: "everysec", ConfirmationMode.OWNER: "no"}


class _Syncs:
    """Syncs a store's append-only files, once for all callers that wait meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def sync(self) -> None:
        """Return once all is on the disk that was in the files before the call."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
        await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await running
        self._running, self._next = self._next, None
        await asyncio.to_thread(self._sync_all)

    def _sync_all(self) -> None:
        for path in self._folder.glob("*.incr.aof"):
            file = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(file)
            finally:
                os.close(file)


def _by_store(confirming: WriteConfirmer) -> Callable[..., Any]:
    async def confirm(key: str, *, ttl_ms: int, **_: int) -> None:
        with store_errors():
            await confirming._send_commands(("PEXPIRE", key, ttl_ms), ("WAITAOF", 1, 0, WAIT_MS))

    return confirm


def _by_owner(syncs: _Syncs, confirming: WriteConfirmer) -> Callable[..., Any]:
    async def confirm(key: str, *, ttl_ms: int, **_: int) -> None:
        with store_errors():
            await confirming._send_commands(("PEXPIRE", key, ttl_ms))
        await syncs.sync()

    return confirm


def main() -> None:
    """Serve until a signal."""
    way = ConfirmationMode(sys.argv.pop(1))
    files = Path(os.environ["MIDSTREAM_DATA_DIR"]) / "store" / "appendonlydir"
    confirm = _by_store if way is ConfirmationMode.WAITAOF else partial(_by_owner, _Syncs(files))
    WriteConfirmer.confirm = property(confirm)  # type: ignore[method-assign, assignment]
    embedded = parts.embedded_store
    vars(parts)["embedded_store"] = lambda data_dir, **_: embedded(data_dir, fsync=FSYNC[way])  # type: ignore[arg-type]
    gateway.main()


if __name__ == "__main__":
    main()
