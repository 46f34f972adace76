"""A moment of each attack on the gateway alone that has no guard of its own: others get their replies. `make attack` has figures."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack, Ground
from tests.attack.attacker import Attacker
from tests.attack.families.nobody import nobody
from tests.attack.ground import Places
from tests.attack.raiding import raid, raided
from tests.attack.unguarded import GATEWAY, leave_others_their_replies, unguarded


@pytest.mark.parametrize(
    "attack",
    unguarded(GATEWAY),
    ids=lambda one: one.name,
)
async def test_the_others_have_their_replies(attack: Attack, places: Places) -> None:
    await leave_others_their_replies(attack, places)


async def test_large_messages_have_few_places_and_little_time(places: Places) -> None:
    """Who finds no place is told so, and so is who does not end one in time."""
    await raid(
        "unended-messages", places, enough=lambda seen: {"closed 1008", "closed 1013"} <= seen.told.keys()
    )


async def _idles(me: Attacker) -> None:
    """Does nothing, and is no row of the table."""
    await nobody(me)


async def _greets(me: Attacker) -> None:
    """Says hello."""
    await me.listen(await me.greet())


async def test_an_attack_that_does_nothing_is_found(places: Places) -> None:
    with pytest.raises(AssertionError, match="the attack did nothing"):
        await raided(Attack(run=_idles), places.on(Ground.SCRIPTED), at_most_s=0.1)


async def test_an_attack_has_begun_before_it_ends(places: Places) -> None:
    seen = await raided(Attack(run=_greets), places.on(Ground.SCRIPTED), at_least_s=0)
    assert seen.outcome.sent_bytes > 0
