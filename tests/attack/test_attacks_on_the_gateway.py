"""A moment of each attack on the gateway alone that has no guard of its own: others get their replies. `make attack` has figures."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack, TargetKind
from tests.attack.families import ATTACKS
from tests.attack.families.sockets import nobody
from tests.attack.in_test import ATTACKERS, MOMENT_S, run_attack, unguarded
from tests.attack.target import Targets


@pytest.mark.parametrize("attack", unguarded([TargetKind.SCRIPTED]), ids=lambda one: one.name)
async def test_the_others_have_their_replies(attack: Attack, targets: Targets) -> None:
    await run_attack(attack, targets, attackers=ATTACKERS, at_least_s=MOMENT_S)


async def test_large_messages_have_few_places_and_little_time(targets: Targets) -> None:
    """Who finds no place is told so, and so is who does not end one in time."""
    both = {"closed 1008", "closed 1013"}
    await run_attack(ATTACKS["unended-messages"], targets, enough=lambda seen: both <= seen.answers.keys())


async def test_an_attack_that_does_nothing_is_found(targets: Targets) -> None:
    idle = Attack(name="idle", what="", run=nobody)
    with pytest.raises(AssertionError, match="the attack did nothing"):
        await run_attack(idle, targets, at_most_s=0.1)
