"""No attack: what a measurement shows where nothing is wrong."""

from __future__ import annotations

import asyncio

from tests.attack.attack import TargetKind, attack
from tests.attack.client import Attacker


@attack()
async def nobody(_: Attacker) -> None:
    """Does nothing, so that the table shows the noise."""
    await asyncio.Event().wait()


@attack(ground=TargetKind.MODEL)
async def nobody_at_the_model(_: Attacker) -> None:
    """Does nothing on the server that has the demo model."""
    await asyncio.Event().wait()
