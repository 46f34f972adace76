"""Live translation over real sockets: for clients that name the feature, with bad input, and for many readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import midstream
from engine.scripted import ScriptedEngine
from engine.served_models import ServedModel, ServedModels
from tests.app.event_source import path_of
from tests.app.in_process_service import Frame, InProcessService, Socket, serving

READERS = 300
AT_ONCE = 50
ANN = {"client_id": "ann", "features": ["interpret"]}


async def begin(socket: Socket, **fields: object) -> Frame:
    """Start an interpretation that sends whole sentences; return `accepted`."""
    requested = {"client_msg_id": "i", "source": "en", "target": "de", "publish_policy": "segment"}
    return await socket.ask(type="interpret.start", **requested | fields)


async def grow(socket: Socket, off: int, text: str, **fields: object) -> Frame:
    """Extend the source; return its `source_ack`, or the error."""
    await socket.send(type="source", off=off, text=text, ref="s", **fields)
    while (frame := await socket.next()).get("ref") != "s":
        pass
    return frame


class Reader:
    """One of many readers of a conversation, who costs the test only its socket."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self.frames: list[Frame] = []

    async def until(self, kind: str) -> None:
        """Read up to a frame of a type."""
        while not self.frames or self.frames[-1]["type"] != kind:
            line = await self._stream.readline()
            assert line, "the stream ended"
            if line.startswith(b"data: "):
                self.frames.append(json.loads(line[len(b"data: ") :]))

    def texts(self) -> tuple[str, str]:
        """Return the source and the translation, from the page of history and the later events."""
        source, target = (message["content"] for message in self.frames[0]["messages"])
        source += "".join(frame["text"] for frame in self.frames if frame["type"] == "source")
        return source, target + "".join(frame["text"] for frame in self.frames if frame["type"] == "delta")


@asynccontextmanager
async def subtitles(running: InProcessService) -> AsyncIterator[Reader]:
    """A reader of the event stream who has the page of history."""
    stream, writer = await asyncio.open_connection("127.0.0.1", running.port)
    path = f"{path_of()}?client_id=ann&features=interpret"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n\r\n".encode())
    try:
        assert b" 200 " in await stream.readline()
        reader = Reader(stream)
        await reader.until("history")
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.timeout(300)
async def test_subtitles_reach_many_readers_and_a_late_one_sees_the_whole(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, read_rate=1000.0, max_client_connections=READERS + 10) as running,
        running.socket(ANN) as ann,
        AsyncExitStack() as stack,
    ):
        for reply in ("Eins.", "Zwei."):
            running.engine.script(reply)
        await begin(ann)
        readers: list[Reader] = []
        while len(readers) < READERS:
            some = (stack.enter_async_context(subtitles(running)) for _ in range(AT_ONCE))
            readers += await asyncio.gather(*some)
        await grow(ann, 0, "One. ")
        await ann.next("delta")
        late = await stack.enter_async_context(subtitles(running))
        assert late.texts() == ("One. ", "Eins.")
        await grow(ann, 5, "Two.", final=True)
        await asyncio.gather(*(reader.until("done") for reader in (*readers, late)))
        assert {reader.texts() for reader in (*readers, late)} == {("One. Two.", "Eins. Zwei.")}


async def test_the_python_client_speaks_and_reads(running: InProcessService) -> None:
    for reply in ("Eins.", "Zwei."):
        running.engine.script(reply)
    async with midstream.connect(running.url, features=["interpret"]) as client:
        interpretation = await client.interpret("de", source="en", publish_policy="segment")
        await interpretation.append("One. ")
        assert await anext(aiter(interpretation)) == "Eins."
        with pytest.raises(midstream.Refused, match="32000 are allowed"):
            await interpretation.append("x" * 32_000)
        await interpretation.append("Two.")
        done = await interpretation.finish()
        assert (interpretation.reply.text, done["reason"]) == ("Eins. Zwei.", "stop")
        started = await client.interpret("de", publish_policy="segment", conversation_id="cut")
        await started.append("Thr")
        await started.cancel()
        cut = await started.reply.wait()
        running.engine.script("Drei.")
        again = await client.continue_interpretation(cut["message_id"], started.source, conversation_id="cut")
        await again.append("ee.")
        await again.finish()
        assert again.reply.text == "Drei."


async def test_the_model_that_the_conversation_has_is_judged_before_anything_ends(tmp_path: Path) -> None:
    plain, able = ScriptedEngine(by_hand=True, features=()), ScriptedEngine()
    models: Any = ServedModels(
        [ServedModel(name="able", engine=able), ServedModel(name="plain", engine=plain)]
    )
    async with serving(tmp_path, models) as running, running.socket(ANN) as socket:
        await socket.send(type="send", client_msg_id="1", content="Hello!", params={"model": "plain"})
        await socket.next("accepted")
        refused = await begin(socket, on_busy="interrupt")
        assert (refused["code"], "can't interpret" in refused["message"]) == ("bad_params", True)
        assert (await socket.ask(type="history"))["messages"][-1]["status"] == "running"
        accepted = await begin(socket, on_busy="interrupt", model="able")
        while accepted["type"] != "accepted":
            accepted = await socket.next()
        await socket.send(type="cancel")
        await socket.next("done")
