"""A moment of each attack on the gateway alone that has no guard of its own: others get their replies. `make attack` has figures."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack
from tests.attack.ground import Places
from tests.attack.unguarded import GATEWAY, leave_others_their_replies, unguarded


@pytest.mark.parametrize(
    "attack",
    unguarded(GATEWAY),
    ids=lambda one: one.name,
)
async def test_the_others_have_their_replies(attack: Attack, places: Places) -> None:
    await leave_others_their_replies(attack, places)
