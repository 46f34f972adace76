"""A reply without text so far says why: it is queued, or its prompt is long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from tests.e2e.websocket_client import (
    Frame,
    WebSocketClient,
    assert_no_hole,
    connect_client,
    has_text,
    is_end_of,
)
from tests.server_process import ServerProcess, serving

LONG = "Count from 1 to 500."
GREEDY = {"temperature": 0}
FOR_SECONDS = GREEDY | {"max_new_tokens": 4000, "format": {"type": "regex", "pattern": "([0-9]+, ){1200}"}}
"""Parameters of a reply of seconds: the format keeps the model counting. Positions are sent four times a second."""


@pytest.fixture(scope="module")
def narrow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server that makes one reply at a time. Leave nothing running on it."""
    with serving(tmp_path_factory.mktemp("narrow"), {"MIDSTREAM_MAX_BATCH": "1"}) as narrow:
        yield narrow


def statuses(client: WebSocketClient, turn_id: str, state: str) -> list[Frame]:
    """Return the `status` frames that a client got for one turn in one state."""
    reported = [frame for frame in client.seen if frame["type"] == "status" and frame["turn_id"] == turn_id]
    return [status for status in reported if status["state"] == state]


class Waiting(NamedTuple):
    """Alice's reply is being written, Bob's is queued. `running` and `next`: their `accepted`; `queued`: Bob's status."""

    alice: WebSocketClient
    bob: WebSocketClient
    running: Frame
    next: Frame
    queued: Frame


@pytest.fixture
async def waiting(narrow_server: ServerProcess, client_id: str) -> AsyncIterator[Waiting]:
    async with (
        connect_client(narrow_server.ws_url, client_id) as alice,
        connect_client(narrow_server.ws_url, f"{client_id}-bob") as bob,
    ):
        running = await alice.send_message(LONG, params=FOR_SECONDS)
        await alice.until(has_text(running["turn_id"]))
        behind = await bob.send_message("Hello!", params=GREEDY)
        yield Waiting(alice, bob, running, behind, await bob.until("status"))


async def stopped(client: WebSocketClient, turn: Frame) -> Frame:
    """Cancel a client's turn; return its end."""
    await client.put(type="cancel", turn_id=turn["turn_id"])
    return await client.until(is_end_of(turn["turn_id"]))


async def test_a_reply_waits_for_its_place_and_then_comes(waiting: Waiting) -> None:
    """The second client is next in line, learns so, and gets its text once the first one stops."""
    alice, bob, running, behind, queued = waiting
    await stopped(alice, running)
    done = await bob.until(is_end_of(behind["turn_id"]))

    assert (queued["turn_id"], queued["state"], queued["queue_position"]) == (behind["turn_id"], "queued", 1)
    assert statuses(alice, running["turn_id"], "queued") == []
    assert (done["reason"], done["chars"] > 0) == ("stop", True)
    assert_no_hole(bob.seen)


async def test_a_cancel_in_the_queue_needs_no_step_and_lets_the_next_one_move_up(
    waiting: Waiting, narrow_server: ServerProcess, client_id: str
) -> None:
    """The turn behind a cancelled one learns its new position; the running turn can still be stopped."""
    async with connect_client(narrow_server.ws_url, f"{client_id}-carol") as carol:
        third = await carol.send_message("Hello!")
        assert (await carol.until("status"))["queue_position"] == 2
        done = await stopped(waiting.bob, waiting.next)
        moved = await carol.until("status")
        running = await stopped(waiting.alice, waiting.running)
        await carol.until(is_end_of(third["turn_id"]))

    assert (done["reason"], done["cancel"]["cause"]) == ("cancelled", "client")
    assert (done["cancel"]["steps_after"], done["usage"]["generated_tokens"]) == (0, 0)
    assert (running["reason"], running["cancel"]["cause"]) == ("cancelled", "client")
    assert running["cancel"]["steps_after"] <= 1
    assert (moved["turn_id"], moved["queue_position"]) == (third["turn_id"], 1)


async def test_a_long_prompt_says_how_far_it_is(server: ServerProcess, client_id: str) -> None:
    """Its progress grows, and ends with the first text."""
    words = "one two three four five six seven eight nine ten "
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(words * 100, params={"max_new_tokens": 4})
        await alice.until(has_text(accepted["turn_id"]))
        shares = [status["progress"] for status in statuses(alice, accepted["turn_id"], "prefill")]
        done = await alice.until(is_end_of(accepted["turn_id"]))
        behind = statuses(alice, accepted["turn_id"], "prefill")[len(shares) :]

    assert shares
    assert shares == sorted(shares)
    assert all(0 < share < 1 for share in shares)
    assert behind == []
    assert done["usage"]["prompt_tokens"] > 1000
    assert_no_hole(alice.seen)
