"""No attack: what a measurement shows where nothing is wrong."""

from __future__ import annotations

import asyncio

from tests.attack.attack import Attack
from tests.attack.attacker import Attacker


async def nobody(_: Attacker) -> None:
    """Does nothing, so that the table shows what noise there is."""
    await asyncio.Event().wait()


ATTACKS = (Attack(run=nobody),)
