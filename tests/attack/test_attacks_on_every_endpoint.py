"""A moment of each attack on the model, guarded ones too, and of others on keys, on speech and on the other endpoints."""

from __future__ import annotations

import pytest

from tests.attack.attack import MB, Attack, TargetKind
from tests.attack.client import Outcome
from tests.attack.in_test import MOMENT_S, OWN_BYTES, read_a_reply, run_attack
from tests.attack.target import Targets
from tests.attack.unguarded_cases import GATEWAY, leave_others_their_replies, unguarded


async def test_a_message_that_fits_no_window_is_refused_before_it_is_tokenized(targets: Targets) -> None:
    """Each is answered while the attack lasts."""
    await run_attack("long-messages", targets, at_least_s=MOMENT_S, at_most_s=18.0, enough=_refuses_messages)


def _refuses_messages(seen: Outcome) -> bool:
    return seen.answers.get("error context_overflow", 0) >= 40


@pytest.mark.parametrize("name", ["long-bodies", "many-messages"])
async def test_what_fits_no_window_is_refused_before_it_is_tokenized(name: str, targets: Targets) -> None:
    """Each is answered while the attack lasts; the engine's memory does not know of it."""
    seen = await run_attack(name, targets, enough=lambda seen: seen.answers.get("HTTP 400", 0) >= 3)
    assert seen.grown_bytes <= OWN_BYTES + 3 * 12 * MB
    assert (await read_a_reply(targets.on(TargetKind.MODEL)))[-1]["type"] == "done"


@pytest.mark.parametrize(
    "attack",
    unguarded([ground for ground in TargetKind if ground not in GATEWAY]),
    ids=lambda one: one.name,
)
async def test_the_others_have_their_replies(attack: Attack, targets: Targets) -> None:
    await leave_others_their_replies(attack, targets)
