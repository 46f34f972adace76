"""The same of each attack on the model, on keys, on speech and on the other doors."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack, Ground
from tests.attack.ground import Places
from tests.attack.unguarded import GATEWAY, leave_others_their_replies, unguarded


@pytest.mark.parametrize(
    "attack",
    unguarded([ground for ground in Ground if ground not in GATEWAY]),
    ids=lambda one: one.name,
)
async def test_the_others_have_their_replies(attack: Attack, places: Places) -> None:
    await leave_others_their_replies(attack, places)
