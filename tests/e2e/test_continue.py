"""A stopped reply goes on over a real model: token for token as if it had not stopped, and nothing is computed twice."""

from __future__ import annotations

import pytest

from tests.e2e.websocket_client import (
    Frame,
    WebSocketClient,
    assert_no_hole,
    connect_client,
    has_text,
    is_end_of,
)
from tests.server_process import ServerProcess

COUNT = "Count to 30."
LONG = "Count from 1 to 300."
GREEDY = {"temperature": 0, "max_new_tokens": 1500}
PAGE = 16
"""Tokens in a page of keys and values: those after the last full page are computed again."""


async def continue_reply(alice: WebSocketClient, reply_id: str, **fields: object) -> Frame:
    """Continue a reply to its end; return `done`."""
    accepted = await alice.send_message(
        "", **{"type": "continue", "message_id": reply_id, "params": GREEDY} | fields
    )
    assert accepted["type"] == "accepted", accepted
    return await alice.until(is_end_of(accepted["turn_id"]))


async def whole(server: ServerProcess, client_id: str, content: str) -> tuple[str, Frame]:
    """The same reply without a stop."""
    async with connect_client(server.ws_url, f"{client_id}-whole") as alice:
        return await alice.chat(content, params=GREEDY)


def assert_token_for_token(first: Frame, done: Frame, end: Frame) -> None:
    """The kept tokens and the new ones are those of the whole reply, and kept ones are not computed again."""
    kept = done["usage"]["prompt_tokens"] - end["usage"]["prompt_tokens"]
    assert kept + done["usage"]["generated_tokens"] == end["usage"]["generated_tokens"]
    assert done["usage"]["prompt_tokens"] - done["usage"]["cached_tokens"] <= PAGE
    assert (done["reason"], done["text_sha256"]) == (end["reason"], end["text_sha256"])
    assert done["message_id"] == first["message_id"]


@pytest.mark.parametrize("tokens", [1, 35, 36])
async def test_a_count_to_30_that_is_cut_ends_as_one_that_is_not(
    server: ServerProcess, client_id: str, tokens: int
) -> None:
    text, end = await whole(server, client_id, COUNT)
    assert "12" in text
    assert "30" in text
    async with connect_client(server.ws_url, client_id) as alice:
        _, first = await alice.chat(COUNT, params=GREEDY | {"max_new_tokens": tokens})
        assert (first["reason"], first["usage"]["generated_tokens"]) == ("length", tokens)
        done = await continue_reply(alice, first["message_id"])
        history = await alice.history()
    assert history[-1]["content"] == text
    assert_token_for_token(first, done, end)
    assert_no_hole(alice.seen)


async def test_a_count_that_is_stopped_at_12_ends_as_one_that_is_not(
    server: ServerProcess, client_id: str
) -> None:
    text, end = await whole(server, client_id, LONG)
    seen = ", 12"
    async with connect_client(server.ws_url, client_id) as alice:
        accepted = await alice.send_message(LONG, params=GREEDY)
        turn_id = accepted["turn_id"]
        off = text.index(seen) + len(seen)
        await alice.until(has_text(turn_id, off))
        await alice.put(type="cancel", turn_id=turn_id, seen_off=off)
        first = await alice.until(is_end_of(turn_id))
        assert (first["reason"], first["chars"]) == ("cancelled", off)
        done = await continue_reply(alice, first["message_id"])
        history = await alice.history()
    assert history[-1]["content"] == text
    assert (done["reason"], done["text_sha256"]) == (end["reason"], end["text_sha256"])
    going = [frame for frame in alice.seen if frame.get("turn_id") == done["turn_id"]]
    assert next(frame["off"] for frame in going if frame["type"] == "delta") == off
    assert_no_hole(alice.seen)
