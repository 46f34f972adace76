"""A chat turn over a real socket, a real store and the real model."""

from __future__ import annotations

import hashlib

import midstream
from tests.server_process import ServerProcess


async def test_a_message_is_answered_by_deltas_and_one_done(server: ServerProcess, client_id: str) -> None:
    """The joined deltas are what `done` and the history say."""
    async with midstream.connect(server.ws_url, client_id=client_id) as client:
        reply = await client.send("What is 7 plus 8?")
        done = await reply.wait()
        history = await client.history()

    assert done["reason"] == "stop"
    assert done["chars"] == len(reply.text) > 0
    assert done["text_sha256"] == hashlib.sha256(reply.text.encode()).hexdigest()
    assert [(message["role"], message["content"]) for message in history] == [
        ("user", "What is 7 plus 8?"),
        ("assistant", reply.text),
    ]
