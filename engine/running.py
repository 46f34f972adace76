"""Runs an engine beside the block that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class Runnable(Protocol):
    """What runs until it is cancelled."""

    async def run(self) -> None:
        """Serve until this is cancelled."""
        ...


R = TypeVar("R", bound=Runnable)


@asynccontextmanager
async def running(one: R, name: str) -> AsyncIterator[R]:
    """Run it inside the block, and stop it behind it."""
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(one.run(), name=name)
        try:
            yield one
        finally:
            serving.cancel()
