"""No attack: what a measurement shows where nothing is wrong."""

from __future__ import annotations

import asyncio

from tests.attack.attack import Family, TargetKind
from tests.attack.client import Attacker

family = Family()


@family.attack()
async def nobody(_: Attacker) -> None:
    """Does nothing, so that the table shows the noise."""
    await asyncio.Event().wait()


family.add(
    "nobody-at-the-model",
    "Does nothing on the server that has the demo model.",
    nobody,
    ground=TargetKind.MODEL,
)
