"""A moment of each attack on the model, guarded ones too, and of others on keys and on the other endpoints."""

from __future__ import annotations

import pytest

from tests.attack.attack import Attack, TargetKind
from tests.attack.client import MB
from tests.attack.families import ATTACKS
from tests.attack.in_test import ATTACKERS, MOMENT_S, OWN_BYTES, gets, read_a_reply, run_attack, unguarded
from tests.attack.target import Targets


async def test_a_message_that_fits_no_window_is_refused_before_it_is_tokenized(targets: Targets) -> None:
    """Each is answered while the attack lasts."""
    refused = gets("error context_overflow", 40)
    await run_attack(ATTACKS["long-messages"], targets, at_least_s=MOMENT_S, at_most_s=18.0, enough=refused)


@pytest.mark.parametrize("name", ["long-bodies", "many-messages"])
async def test_what_fits_no_window_is_refused_before_it_is_tokenized(name: str, targets: Targets) -> None:
    """Each is answered while the attack lasts; the engine's memory does not know of it."""
    seen = await run_attack(ATTACKS[name], targets, enough=gets("HTTP 400", 3))
    assert seen.grown_bytes <= OWN_BYTES + 3 * 12 * MB
    assert (await read_a_reply(targets.on(TargetKind.MODEL)))[-1]["type"] == "done"


@pytest.mark.parametrize(
    "attack", unguarded(set(TargetKind) - {TargetKind.SCRIPTED}), ids=lambda one: one.name
)
async def test_the_others_have_their_replies(attack: Attack, targets: Targets) -> None:
    await run_attack(attack, targets, attackers=ATTACKERS, at_least_s=MOMENT_S)
