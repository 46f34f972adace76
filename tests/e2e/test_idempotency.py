"""A message starts one generation, however often it is sent: promise 6."""

from __future__ import annotations

from tests.e2e.websocket_client import connect_client, has_text, is_end_of, text_of
from tests.server_process import ServerProcess

GREEDY = {"temperature": 0}


async def test_sent_again_while_it_runs(server: ServerProcess, client_id: str) -> None:
    """The same socket only gets a repeated `accepted`; another one gets the text from the beginning, then the rest."""
    same = {"client_msg_id": "once", "params": GREEDY}
    async with (
        connect_client(server.ws_url, client_id) as alice,
        connect_client(server.ws_url, client_id) as again,
    ):
        accepted = await alice.send_message("Count from 1 to 60.", **same)
        turn_id = accepted["turn_id"]
        await alice.until(has_text(turn_id, 30))
        repeated = await alice.send_message("Count from 1 to 60.", **same)
        attached = await again.send_message("Count from 1 to 60.", **same)
        await alice.until(is_end_of(turn_id))
        await again.until(is_end_of(turn_id))

    assert repeated["duplicate"]
    assert attached["duplicate"]
    assert repeated["turn_id"] == attached["turn_id"] == turn_id
    assert text_of(alice.seen, turn_id) == text_of(again.seen, turn_id)


async def test_sent_again_after_its_end(server: ServerProcess, client_id: str) -> None:
    """The answer is sent again, from the history."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, done = await alice.chat("What is 7 plus 8?", client_msg_id="once")
    async with connect_client(server.ws_url, client_id) as again:
        repeated, ended = await again.chat("What is 7 plus 8?", client_msg_id="once")
        history = await again.history()

    assert (repeated, ended["turn_id"]) == (text, done["turn_id"])
    assert len(history) == 2


async def test_other_content_under_a_known_id_is_a_conflict(server: ServerProcess, client_id: str) -> None:
    """And leaves the history as it was."""
    async with connect_client(server.ws_url, client_id) as alice:
        await alice.chat("Hello!", client_msg_id="once")
        refused = await alice.send_message("Goodbye!", client_msg_id="once")
        history = await alice.history()

    assert refused["code"] == "conflict"
    assert len(history) == 2


async def test_a_refused_message_leaves_no_trace(server: ServerProcess, client_id: str) -> None:
    """The same id may be used again."""
    async with connect_client(server.ws_url, client_id) as alice:
        refused = await alice.send_message("Hello!", client_msg_id="once", params={"max_new_tokens": 0})
        _, done = await alice.chat("Hello again!", client_msg_id="once")

    assert refused["code"] == "bad_params"
    assert done["reason"] == "stop"
