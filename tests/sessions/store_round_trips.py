"""Counts what is sent to the store: a command alone, or a pipeline, is one round trip."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

import pytest
from redis.asyncio.connection import AbstractConnection


class RoundTrips:
    """What this process has sent to the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent: list[bytes] = []
        send = AbstractConnection._send_packed_command

        async def noted(connection: AbstractConnection, command: Iterable[bytes]) -> None:
            parts = list(command)
            self._sent.append(b"".join(parts))
            await send(connection, parts)

        monkeypatch.setattr(AbstractConnection, "_send_packed_command", noted)

    def about(self, *names: object) -> int:
        """Return how many named one of these."""
        return sum(any(str(name).encode() in sent for name in names) for sent in self._sent)

    async def of(self, work: Awaitable[object]) -> int:
        """Return how many it takes to do the work."""
        before = len(self._sent)
        await work
        return len(self._sent) - before
