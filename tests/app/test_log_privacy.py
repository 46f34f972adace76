"""The whole log of a real server, at its lowest level, contains no word of people or of the model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from websockets.asyncio.client import connect

from sessions.store.client import connect as store_client
from sessions.store.embedded import embedded_store
from tests.app.in_process_service import Socket
from tests.server_process import ServerProcess, serving

WORDS = "unmistakable"
"""A word in everything that the test sends, and in no line of the program."""

SEND = {"type": "send", "client_msg_id": "m", "content": WORDS}
UNFIT: list[Any] = [
    WORDS,
    f'{{"type": "send", "content": "{WORDS}',
    f'{{"type": "{WORDS}"}}',
    f'"{WORDS}"',
    WORDS.encode(),
    json.dumps(SEND | {"client_msg_id": [WORDS]}),
    json.dumps(SEND | {"content": f"{WORDS}\0"}),
    json.dumps(SEND | {"content": f"{WORDS}\ud800"}),
    json.dumps(SEND | {"content": WORDS * 4_000}),
    json.dumps(SEND | {"params": {"temperature": WORDS}}),
    json.dumps(SEND | {"params": {"temperature": 7}}),
    json.dumps(SEND | {"parent_id": WORDS}),
    json.dumps(SEND | {"params": {WORDS: WORDS}, "content": {"text": WORDS}}),
    json.dumps({"type": "edit", "message_id": WORDS, "client_msg_id": "e", "content": WORDS}),
    json.dumps({"type": "rename", "conversation_id": WORDS, "title": WORDS}),
    json.dumps({"type": "history", "conversation_id": WORDS, "before": WORDS}),
]


async def chat(socket: Socket, number: int, content: str, **params: Any) -> str:
    """Run a whole turn; return the reply's text."""
    await socket.send(type="send", client_msg_id=f"{number}", content=content, params=params)
    frames = await socket.until("done")
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")


async def spoil(store: Redis) -> None:
    """Replace stored roles with text: the code that reads them complains by quoting it."""
    async for name in store.scan_iter(_type="hash"):
        fields: dict[bytes, bytes] = await store.hgetall(name)  # type: ignore[assignment] # bytes, as it is connected
        for field, value in fields.items():
            await store.hset(name, field, value.replace(b'"user"', f'"{WORDS}"'.encode()))


async def be_loud(server: ServerProcess, store: Redis) -> list[str]:
    """Do everything that may make a server log; return the replies."""
    replies = []
    async with connect(server.ws_url) as opened:
        socket = Socket(opened)
        await socket.send(type="hello", client_id="ann")
        await socket.next("ready")
        for unfit in UNFIT:
            await opened.send(unfit)
            assert (await socket.next())["type"] == "error"
        replies.append(await chat(socket, 1, f"{WORDS}?", system=f"Say {WORDS}.", stop=[WORDS]))
        replies.append(await chat(socket, 2, f"Count from 1 to 40, {WORDS}."))
        await socket.send(type="rename", conversation_id="default", title=WORDS)
        await socket.next("conversations")
        await socket.send(type="send", client_msg_id="3", content="Count from 1 to 300.")
        replies.append((await socket.next("delta"))["text"])
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert (await socket.next("done"))["reason"] == "interrupted"
        await spoil(store)
        assert (await socket.ask(type="history"))["code"] == "internal"
    async with connect(server.ws_url) as opened:
        await opened.send(json.dumps({"type": "send", "content": WORDS, "token": WORDS}))
        assert (await Socket(opened).closed())[0] == 4401
    return replies


async def test_a_log_tells_what_happened_and_nothing_that_was_said(tmp_path: Path) -> None:
    async with embedded_store(tmp_path / "store") as url, store_client(url) as store:
        with serving(tmp_path, {"MIDSTREAM_REDIS_URL": url, "MIDSTREAM_LOG_LEVEL": "debug"}) as server:
            replies = await be_loud(server, store)
            server.stop()
    log = server.log.read_text()
    assert log.count('"turn ended"') == 3
    assert '"request failed"' in log
    assert "Traceback" in log
    assert WORDS not in log
    for reply in replies:
        assert len(reply) < 12 or reply[:12] not in log
