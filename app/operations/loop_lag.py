"""Measures the event loop's lag: during it, nobody gets any text."""

from __future__ import annotations

import asyncio

from engine.durations import Durations

LOOK_S = 0.25


async def keep_measuring(lag: Durations) -> None:
    """Record how much longer sleeps took than asked for, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        lag.observe(max(0.0, loop.time() - due))
