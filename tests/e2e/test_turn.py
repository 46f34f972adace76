"""A chat turn over a real socket, a real store and the real model: promises 1, 2, 8, 10, 11 and 12."""

from __future__ import annotations

from tests.e2e.websocket_client import (
    assert_no_hole,
    connect_client,
    has_text,
    is_end_of,
    text_of,
)
from tests.server_process import ServerProcess

USAGE = {"prompt_tokens", "cached_tokens", "generated_tokens", "sent_tokens", "wasted_tokens"}


async def test_a_message_is_answered_by_deltas_and_one_done(server: ServerProcess, client_id: str) -> None:
    """The joined deltas are the text of `done` and of the history."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, done = await alice.chat("What is 7 plus 8?")
        history = await alice.history()

    assert done["reason"] == "stop"
    assert done["saved"]
    assert text
    assert [(message["role"], message["content"], message["status"]) for message in history] == [
        ("user", "What is 7 plus 8?", "complete"),
        ("assistant", text, "complete"),
    ]
    assert_no_hole(alice.seen)


async def test_text_flows_token_by_token(server: ServerProcess, client_id: str) -> None:
    """Nothing waits to fill a batch: a long reply comes in many deltas, each with its token count.

    A gateway that is slower than its engine merges some, and more while other work uses all cores.
    """
    async with connect_client(server.ws_url, client_id) as alice:
        _, done = await alice.chat("Count from 1 to 60.", params={"temperature": 0})

    deltas = [frame for frame in alice.seen if frame["type"] == "delta"]
    assert sum(delta["tokens"] for delta in deltas) == done["usage"]["sent_tokens"]
    assert len(deltas) > done["usage"]["sent_tokens"] / 20


async def test_usage_and_timing_are_on_every_ending(server: ServerProcess, client_id: str) -> None:
    """A stopped reply has its usage, as a finished one does."""
    async with connect_client(server.ws_url, client_id) as alice:
        _, whole = await alice.chat("Hello!", params={"max_new_tokens": 3, "temperature": 0})
        accepted = await alice.send_message("Count from 1 to 300.")
        await alice.until(has_text(accepted["turn_id"], 10))
        await alice.put(type="cancel", turn_id=accepted["turn_id"])
        stopped = await alice.until("done")

    assert whole["reason"] in ("length", "stop")
    assert whole["usage"]["generated_tokens"] <= 3
    for done in (whole, stopped):
        assert done["usage"].keys() >= USAGE
        assert done["timing"]["total_ms"] >= done["timing"]["first_token_ms"] >= 0
    assert stopped["usage"]["generated_tokens"] >= stopped["usage"]["sent_tokens"] > 0


async def test_chinese_and_emoji_arrive_whole(server: ServerProcess, client_id: str) -> None:
    """No delta holds half a character."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, _ = await alice.chat("How do you say 'thank you' in Chinese?", params={"temperature": 0})

    assert "谢谢" in text
    assert not any("\ufffd" in frame["text"] for frame in alice.seen if frame["type"] == "delta")


async def test_a_reply_has_so_much_time(server: ServerProcess, client_id: str) -> None:
    """Text until then is kept."""
    async with connect_client(server.ws_url, client_id) as alice:
        text, done = await alice.chat("Count from 1 to 500.", params={"temperature": 0, "max_time_s": 0.3})
        history = await alice.history()

    assert done["reason"] == "timeout"
    assert "cancel" not in done
    assert (history[-1]["content"], history[-1]["status"]) == (text, "timeout")


async def test_two_devices_see_the_same_events(server: ServerProcess, client_id: str) -> None:
    """The other device gets the content of the message too; the sender gets its ref."""
    async with (
        connect_client(server.ws_url, client_id) as phone,
        connect_client(server.ws_url, client_id) as laptop,
    ):
        await phone.chat("Hello!")
        await laptop.history()
        laptop.seen.clear()
        accepted = await phone.send_message("Count from 1 to 30.", params={"temperature": 0})
        turn_id = accepted["turn_id"]
        reported = await laptop.until("accepted")
        await phone.until(is_end_of(turn_id))
        await laptop.until(is_end_of(turn_id))

    assert reported["content"] == "Count from 1 to 30."
    assert "content" not in accepted
    assert "ref" not in reported
    assert text_of(laptop.seen, turn_id) == text_of(phone.seen, turn_id) != ""
    assert_no_hole(laptop.seen)


async def test_a_branch_begins_where_its_parent_is(server: ServerProcess, client_id: str) -> None:
    """A message with `parent_id` null is a new root beside the old one, which is kept."""
    async with connect_client(server.ws_url, client_id) as alice:
        await alice.chat("Hello!")
        await alice.chat("What is 2 plus 3?", parent_id=None)
        history = await alice.history()

    assert [message["content"] for message in history if message["role"] == "user"] == ["What is 2 plus 3?"]
    assert len(history[0]["siblings"]) == 2
