"""A reply without text so far says why: it is queued, or its prompt is long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from tests.e2e.websocket_client import (
    Frame,
    WebSocketClient,
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
