"""Bad input gets a clear error, which only its sender sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.websocket_client import WebSocketClient, connect_client, has_text, is_end_of, text_of
from tests.server_process import ServerProcess


def send(**fields: Any) -> str:
    """Return a `send` frame with an error."""
    return json.dumps({"type": "send", "client_msg_id": "m", "content": "Hello!"} | fields)


BAD: dict[str, tuple[str | bytes, str, str]] = {
    "no JSON": ("hello?", "bad_frame", "JSON"),
    "no object": ("[1, 2]", "bad_frame", "object"),
    "a wrong type": (send(content=5), "bad_frame", "content"),
    "an unknown frame type": ('{"type": "shout"}', "bad_frame", "type"),
    "a frame that lacks a field": ('{"type": "resume"}', "bad_frame", "conversation_id"),
    "empty content": (send(content=""), "bad_frame", "content"),
    "a temperature below zero": (send(params={"temperature": -1}), "bad_params", "temperature"),
    "no tokens": (send(params={"max_new_tokens": 0}), "bad_params", "max_new_tokens"),
    "fewer tokens than none": (send(params={"max_new_tokens": -2}), "bad_params", "max_new_tokens"),
    "an unknown busy policy": (send(on_busy="wait"), "bad_frame", "on_busy"),
    "a grace beyond a minute": (send(grace_s=61), "bad_frame", "grace_s"),
    "an unknown word for a disconnect": (send(on_disconnect="stay"), "bad_frame", "on_disconnect"),
    "a prompt beyond the window": (send(content="word " * 6000), "context_overflow", "tokens"),
    "a word beyond the window": (send(content="x" * 60_000), "context_overflow", "tokens"),
    "5,000 nested brackets": (
        '{"type": "ping", "x": ' + "[" * 5000 + "]" * 5000 + "}",
        "bad_frame",
        "nested",
    ),
    "a lone surrogate": (
        '{"type": "send", "client_msg_id": "m", "content": "\\ud800"}',
        "bad_frame",
        "content",
    ),
    "a NUL character": (send(content="a\0b"), "bad_frame", "content"),
    "a binary frame": (b"\x00\x01", "bad_frame", "binary"),
    "an unknown conversation": ('{"type": "history", "conversation_id": "nowhere"}', "not_found", "nowhere"),
}


@pytest.mark.parametrize("name", BAD)
async def test_the_sender_is_told_and_stays(server: ServerProcess, client_id: str, name: str) -> None:
    """Another client's stream goes on meanwhile, complete."""
    frame, code, word = BAD[name]
    async with (
        connect_client(server.ws_url, client_id) as alice,
        connect_client(server.ws_url, f"{client_id}-mallory") as mallory,
    ):
        accepted = await alice.send_message("Count from 1 to 30.", params={"temperature": 0})
        await alice.until(has_text(accepted["turn_id"]))
        error = await provoke(mallory, frame)
        await mallory.put(type="ping", t=1)
        assert (await mallory.until("pong"))["t"] == 1
        done = await alice.until(is_end_of(accepted["turn_id"]))

    assert error["code"] == code
    assert word in error["message"]
    assert done["reason"] == "stop"
    assert text_of(alice.seen, accepted["turn_id"]).endswith("30.")


async def provoke(client: WebSocketClient, frame: str | bytes) -> dict[str, Any]:
    """Send raw text or bytes; return the error."""
    await client.socket.send(frame)
    return await client.until("error")


async def test_a_huge_frame_closes_its_own_connection(server: ServerProcess, client_id: str) -> None:
    """1009 with a reason; the neighbour does not notice."""
    async with (
        connect_client(server.ws_url, client_id) as alice,
        connect_client(server.ws_url, f"{client_id}-mallory") as mallory,
    ):
        accepted = await alice.send_message("Count from 1 to 30.", params={"temperature": 0})
        await mallory.socket.send(send(content="x" * 70_000))
        await mallory.socket.wait_closed()
        done = await alice.until(is_end_of(accepted["turn_id"]))

    assert mallory.socket.close_code == 1009
    assert mallory.socket.close_reason
    assert done["reason"] == "stop"
