"""Waits until a message is accepted."""

from __future__ import annotations

import asyncio

from sessions.errors import Refused


async def raise_if_refused(taking: asyncio.Task[Refused | None]) -> None:
    """Wait for a message to be accepted. Cancelling the wait does not stop that. Raises the refusal."""
    if (refused := await asyncio.shield(taking)) is not None:
        raise refused
