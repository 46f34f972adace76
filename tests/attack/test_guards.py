"""A moment of each attack that has a guard of its own: the guard is seen to act, and others get their replies."""

from __future__ import annotations

from typing import Any

import pytest

from sessions.limits.bounds import LARGE_BODIES
from tests.attack.client import MB, Outcome
from tests.attack.families import ATTACKS
from tests.attack.in_test import MOMENT_S, OWN_BYTES, SECONDS, AttackResult, gets, run_attack
from tests.attack.target import Targets

SHED = {
    *("error overloaded", "error rate_limited", "closed 1008", "closed 1013", "closed 4429"),
    *("HTTP 429", "HTTP 503"),
}
"""Answers by which a server says that it has enough."""
TURNS = 1024
READS = 32 * MB
"""Of 32 long answers of the store that are read at once; their memory is given back when all is calm."""


async def attacked(name: str, targets: Targets, **options: Any) -> AttackResult:
    return await run_attack(ATTACKS[name], targets, **options)


def is_shed(seen: Outcome) -> bool:
    return bool(SHED & seen.answers.keys())


async def test_a_message_of_many_fragments_ends_its_connection(targets: Targets) -> None:
    """At most 64 fragments a message."""
    seen = await attacked("empty-fragments", targets, enough=gets("closed 1008", 2))
    assert seen.grown_bytes <= OWN_BYTES


@pytest.mark.parametrize("name", ["unread-pongs", "echoed-pings"])
async def test_nothing_is_read_from_a_peer_that_takes_no_answers(name: str, targets: Targets) -> None:
    """What the kernel holds both ways is all that such a peer can send."""
    seen = await attacked(name, targets)
    assert seen.outcome.sent_bytes <= 8 * MB * seen.outcome.opened
    assert seen.grown_bytes <= OWN_BYTES


async def test_frames_have_a_budget(targets: Targets) -> None:
    """Reads and pings, too: whoever sends 500 a second is told so, ended, or read more slowly."""
    answers = (await attacked("reads-and-pings", targets)).outcome.answers
    most = ATTACKS["reads-and-pings"].sockets * SECONDS * 300
    assert {"closed 1008", "error rate_limited"} & set(answers) or sum(answers.values()) <= most, answers


async def test_messages_are_shed_before_the_store_is_asked(targets: Targets) -> None:
    seen = await attacked("many-conversations", targets, enough=is_shed)
    assert "error store_unavailable" not in seen.outcome.answers


async def test_pipelined_requests_wait_in_the_kernel(targets: Targets) -> None:
    assert (await attacked("pipelined-requests", targets)).grown_bytes <= OWN_BYTES


@pytest.mark.parametrize("name", ["all-turns", "many-clients"])
async def test_one_client_and_one_address_have_a_share_of_the_turns(name: str, targets: Targets) -> None:
    """At most half, whatever its clients are called; others are admitted meanwhile."""
    seen = await attacked(name, targets, enough=is_shed)
    assert seen.outcome.answers.get("accepted", 0) <= TURNS // 2


async def test_what_waits_for_a_reader_is_counted_as_it_is_sent(targets: Targets) -> None:
    assert (await attacked("unread-history", targets, attackers=4)).grown_bytes <= OWN_BYTES + READS


async def test_what_is_too_long_to_tell_is_not_read(targets: Targets) -> None:
    """A resume from the oldest seq fetches nothing of a long conversation but where it stands."""
    assert (await attacked("oldest-seq", targets, attackers=4)).peak_bytes <= OWN_BYTES // 2


async def test_a_handshake_of_too_many_headers_is_answered(targets: Targets) -> None:
    await attacked("long-heads", targets, at_least_s=MOMENT_S, enough=gets("HTTP 431"))


@pytest.mark.parametrize(("name", "answer"), [("read-chains", "HTTP 200"), ("long-chains", "HTTP 400")])
async def test_of_a_long_chain_of_responses_no_more_is_read_than_is_asked_for(
    name: str, answer: str, targets: Targets
) -> None:
    """Who reads a response reads nothing before it; who goes on from it what a request could bring."""
    seen = await attacked(name, targets, enough=gets(answer, 10))
    assert seen.peak_bytes <= OWN_BYTES // 2 + (READS if name == "long-chains" else 0)


async def test_large_items_come_a_few_at_a_time(targets: Targets) -> None:
    """Those of all attackers have twelve places, until their images are on their way to the store."""
    seen = await attacked("large-items", targets, attackers=20)
    assert seen.peak_bytes <= OWN_BYTES + LARGE_BODIES * 6 * MB
