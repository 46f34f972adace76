"""Counts what is sent to the store: a command alone, or a pipeline, is one round trip."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from redis.asyncio.connection import AbstractConnection


class RoundTrips:
    """How often this process has sent something to the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        send = AbstractConnection.send_packed_command

        async def counted(connection: AbstractConnection, *args: Any, **kwargs: Any) -> None:
            self.made += 1
            await send(connection, *args, **kwargs)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)

    async def of(self, work: Awaitable[object]) -> int:
        """Return how many it takes to do the work."""
        before = self.made
        await work
        return self.made - before
