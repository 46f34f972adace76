"""What waits until a message is taken in."""

from __future__ import annotations

import asyncio

from sessions.errors import Refused


async def refusal(taking: asyncio.Task[Refused | None]) -> None:
    """Waits for a message to be taken in, which goes on where this wait ends. Raises the refusal."""
    if (refused := await asyncio.shield(taking)) is not None:
        raise refused
