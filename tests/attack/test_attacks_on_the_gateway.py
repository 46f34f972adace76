"""A moment of each attack on the gateway alone that has no guard of its own: others get their replies. `make attack` has figures."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack, TargetKind
from tests.attack.client import Attacker
from tests.attack.families.baseline import nobody
from tests.attack.in_test import run_attack, run_beside_reader
from tests.attack.target import Targets
from tests.attack.unguarded_cases import GATEWAY, leave_others_their_replies, unguarded


@pytest.mark.parametrize(
    "attack",
    unguarded(GATEWAY),
    ids=lambda one: one.name,
)
async def test_the_others_have_their_replies(attack: Attack, targets: Targets) -> None:
    await leave_others_their_replies(attack, targets)


async def test_large_messages_have_few_places_and_little_time(targets: Targets) -> None:
    """Who finds no place is told so, and so is who does not end one in time."""
    await run_attack(
        "unended-messages", targets, enough=lambda seen: {"closed 1008", "closed 1013"} <= seen.answers.keys()
    )


async def _idles(me: Attacker) -> None:
    """Does nothing, and is no row of the table."""
    await nobody(me)


async def _greets(me: Attacker) -> None:
    """Says hello."""
    await me.listen(await me.send_hello())


async def test_an_attack_that_does_nothing_is_found(targets: Targets) -> None:
    with pytest.raises(AssertionError, match="the attack did nothing"):
        await run_beside_reader(
            Attack(name="idles", what="", run=_idles), targets.on(TargetKind.SCRIPTED), at_most_s=0.1
        )


async def test_an_attack_has_begun_before_it_ends(targets: Targets) -> None:
    seen = await run_beside_reader(
        Attack(name="greets", what="", run=_greets), targets.on(TargetKind.SCRIPTED), at_least_s=0
    )
    assert seen.outcome.sent_bytes > 0
